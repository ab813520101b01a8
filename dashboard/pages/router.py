"""From an address to a page: the snapshots that it names, and the page that shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, unquote

from lldscope.core.errors import LldscopeError, RunNotFound
from lldscope.core.terminal import visible

from ..data.run_registry import Reading, RunRegistry
from ..data.run_summaries import RunSummaries
from ..data.snapshot import Snapshot
from ..security import UNREADABLE
from .compare_page import MOST_COMPARED, compare_page
from .frame import Query, message_page, snapshots_of
from .list_page import list_page
from .responses_page import responses_page
from .run_page import config_page, run_page
from .trajectory_page import trajectory_page

# What is about one run, /KIND/NAME.
_OF_A_RUN: dict[str, Callable[[Snapshot, Query], Any]] = {
    "run": run_page,
    "responses": responses_page,
    "response": trajectory_page,
    "config": config_page,
}


def is_page(path: str) -> bool:
    """Whether an address leads to a page, perhaps only when the run that it names exists."""
    kind, _, name = path.removeprefix("/").partition("/")
    return path in ("/", "/compare") or (kind in _OF_A_RUN and name.strip("/") != "")


def page(
    registry: RunRegistry, path: str, search: str, summaries: RunSummaries | None = None
) -> Any:
    """The content for an address; `summaries` are the run list's, if they exist yet.

    `path` and `search` are quoted, as in the address bar.
    """
    query = parse_qs((search or "").lstrip("?"))
    kind, _, rest = path.removeprefix("/").partition("/")
    name = unquote(rest).rstrip("/")
    try:
        if path == "/":
            return list_page(summaries or RunSummaries(registry), query)
        if path == "/compare":
            return _comparison(registry, query)
        if is_page(path):
            return _OF_A_RUN[kind](registry.snapshot(name), query)
    except UNREADABLE:
        what = "The files behind it were deleted or cannot be read."
        return message_page("This page cannot be shown now", what, retry=True)
    except Reading as error:
        return message_page("Loading this run", str(error), retry=True)
    except RunNotFound:
        why = (f"There is no run of this name under {registry.root}. This page refreshes when a "
               "training records there. A run that was deleted or renamed does not come back.")
        return message_page(f"Waiting for “{visible(name, 100)}”", why, retry=True)
    except LldscopeError as error:
        subject = {"responses": "These responses", "response": "This response"}
        title = f"{subject.get(kind, 'This run')} cannot be shown"
        return message_page(title, str(error), retry=kind == "run")
    return message_page("Page not found", f"There is no page at {unquote(path)}.")


def _comparison(registry: RunRegistry, query: Query) -> Any:
    names = list(dict.fromkeys(query.get("run", [])))
    snapshots, errors = snapshots_of(registry, names[:MOST_COMPARED])
    if waits := sum(isinstance(error, Reading) for error in errors):
        progress = f"{len(snapshots)} of {len(snapshots) + waits} runs are loaded."
        return message_page("Loading the runs", progress, retry=True)
    if not snapshots:
        why = "; ".join(map(str, errors)) or "Choose runs in the list, then press Compare."
        return message_page("No runs to compare", why, retry=bool(errors))
    many = f"{len(names)} runs were asked for; the first {MOST_COMPARED} are shown."
    notices = [*map(str, errors), *([many] if len(names) > MOST_COMPARED else [])]
    return compare_page(snapshots, query, notices)
