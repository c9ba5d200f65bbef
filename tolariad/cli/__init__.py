"""The commands `tolariad` and `tolaria`. Importing the room loads nothing; each command brings what it needs."""
