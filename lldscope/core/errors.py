"""Errors that a user can cause. Each message says what is wrong and what to do."""

from __future__ import annotations


class LldscopeError(Exception):
    """Something went wrong that the message explains to the user: I/O, or an internal error."""

    exit_code = 1  # of the command


class UsageError(LldscopeError):
    """An argument, configuration key or value is wrong; the message says what would be valid."""

    exit_code = 2


class RunNotFound(LldscopeError):
    """There is no run at the path."""


class NewerSchema(LldscopeError):
    """The run was written by a newer lldscope than this one."""


class RunExists(LldscopeError):
    """The directory already holds a run, and `resume` was not given."""


def interrupted(error: Exception) -> bool:
    """Whether an error is Ctrl-C during a statement of DuckDB 2.0, which then catches the
    KeyboardInterrupt and raises a RuntimeError of its own."""
    return isinstance(error, RuntimeError) and str(error) == "Query interrupted"
