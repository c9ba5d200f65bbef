"""The run itself: its phases, its limits, the disk under it, the cores it uses."""
