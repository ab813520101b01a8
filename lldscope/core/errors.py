"""Errors that a user can cause. Each message says what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Sequence


class LldscopeError(Exception):
    """The message explains the failure to the user: an I/O error, or an internal one."""

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
    """The error to raise if `what` needs a package that is not installed. `extra` names the extra
    with the package; by default it is looked up. If no extra has the package, the import error
    itself is raised."""
    package = (error.name or "").partition(".")[0]
    extra = extra or EXTRAS.get(package)
    if extra is None:
        raise error
    return MissingPackage(f"{what} needs the package {package}: pip install 'lldscope[{extra}]'")


def interrupted(error: Exception) -> bool:
    """Whether an error is Ctrl-C during a DuckDB statement: DuckDB 2.0 turns the KeyboardInterrupt
    into a RuntimeError."""
    return isinstance(error, RuntimeError) and str(error) == "Query interrupted"
