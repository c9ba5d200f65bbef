"""The few errors of this room that mean something to the process around it."""

from __future__ import annotations


class SetupRefused(Exception):
    """The task or configuration cannot be trained, and a restart would not change that. The text says what to do."""


class ToldToExit(BaseException):
    """The daemon said so, or is gone. Not an Exception: a task's own `except Exception` must not swallow it."""
