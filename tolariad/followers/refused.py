"""The error of a follower that cannot begin, or cannot go on."""

from __future__ import annotations


class FollowRefused(Exception):
    """The output cannot be written. The text says why, and what to do."""
