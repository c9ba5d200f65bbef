"""The end of a run that failed."""

from __future__ import annotations


class RunFailed(Exception):
    """The run failed, or is frozen until somebody acts. The text gives the reason."""
