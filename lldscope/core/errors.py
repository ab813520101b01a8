"""Errors that a user can cause. Each message says what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Sequence


class LldscopeError(Exception):
    """Something went wrong that the message explains to the user: I/O, or an internal error."""

    exit_code = 1  # of the command


class UsageError(LldscopeError):
    """An argument, configuration key or value is wrong; the message says what would be valid."""

    exit_code = 2


class SeveralRuns(UsageError):
    """There are several runs and none was named; `runs` has the name or id of each."""

    def __init__(self, message: str, runs: Sequence[str]) -> None:
        super().__init__(message)
        self.runs = list(runs)


class RunNotFound(LldscopeError):
    """There is no run at the path."""


class NewerSchema(LldscopeError):
    """The run was written by a newer lldscope than this one."""


class RunExists(LldscopeError):
    """The directory already holds a run, and `resume` was not given."""


class MissingPackage(LldscopeError, ImportError):
    """A package of one of the extras is not installed."""


# Package → the extra that brings it.
EXTRAS = {
    **dict.fromkeys(("bm25s", "httpx2", "pydantic", "safetensors", "torch", "transformers",
                     "yaml"), "train"),
    **dict.fromkeys(("dash", "plotly", "prometheus_client", "waitress"), "dash"),
    **dict.fromkeys(("trl", "datasets"), "trl"), "verl": "verl",
    **dict.fromkeys(("fsspec", "s3fs"), "remote"), "apprise": "notify", "mcp": "mcp",
    "deepspeed": "deepspeed",
    **dict.fromkeys(("tensorboard", "wandb"), "import"),
}


def missing_package(error: ImportError, what: str, extra: str | None = None) -> MissingPackage:
    """The error to raise where `what` needs a package that is not there; `extra` by default that
    which brings it. Raises the error itself where none of the extras has the package."""
    package = (error.name or "").partition(".")[0]
    extra = extra or EXTRAS.get(package)
    if extra is None:
        raise error
    return MissingPackage(f"{what} needs the package {package}: pip install 'lldscope[{extra}]'")


def interrupted(error: Exception) -> bool:
    """Whether an error is Ctrl-C during a statement of DuckDB 2.0, which then catches the
    KeyboardInterrupt and raises a RuntimeError of its own."""
    return isinstance(error, RuntimeError) and str(error) == "Query interrupted"
