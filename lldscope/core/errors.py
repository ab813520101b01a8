"""Errors that a user can cause. Each message says what is wrong and what to do.

LldscopeError          exit 1   I/O or internal
├── UsageError         exit 2   a wrong argument, config key or value
├── RunNotFound        exit 1   no run at that path
├── NewerSchema        exit 1   the run was written by a newer lldscope
└── RunExists          exit 1   the path already holds a run, and `resume` was not given
"""

from __future__ import annotations


class LldscopeError(Exception):
    """Something went wrong that the message explains to the user."""

    exit_code = 1


class UsageError(LldscopeError):
    """The request is not valid; the message says what would be."""

    exit_code = 2


class RunNotFound(LldscopeError):
    """There is no run at the path."""


class NewerSchema(LldscopeError):
    """The run was written by a newer lldscope than this one."""


class RunExists(LldscopeError):
    """The directory already holds a run."""


def interrupted(error: Exception) -> bool:
    """Whether an error is Ctrl-C during a statement of DuckDB 2.0, which then catches the
    KeyboardInterrupt and raises a RuntimeError of its own."""
    return isinstance(error, RuntimeError) and str(error) == "Query interrupted"
