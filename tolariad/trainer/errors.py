"""The errors of the trainer that the surrounding process handles."""

from __future__ import annotations


class SetupRefused(Exception):
    """The task or configuration cannot be trained, and a restart would not help. The text says what to do."""


class TaskRaised(SetupRefused):
    """The task's code raises. The cause of this error is that exception; its traceback shows the line."""


class ToldToExit(BaseException):
    """The daemon ordered the exit, or has ended. Not an Exception: `except Exception` in a task must not catch it."""
