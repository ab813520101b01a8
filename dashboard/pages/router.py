"""From an address to a page: the snapshots that it names, and the page that shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import parse_qs, unquote

from lldscope.core.errors import LldscopeError, RunNotFound

from ..data.run_registry import Reading, RunRegistry
from ..data.run_summaries import RunSummaries
from ..data.snapshot import Snapshot
from ..security.errors import UNREADABLE
from .actions_page import actions_page
from .compare_page import MOST_COMPARED, compare_page
from .config_page import config_page
from .diff_page import diff_page
from .frame import message_page, snapshots_of, waiting_page
from .group_page import group_page
from .links import Query
from .list_page import list_page
from .recording_page import recording_page
from .responses_page import responses_page
from .rules_page import RULE_IDS, rules_page
from .run_page import run_page
from .system_page import system_page
from .trajectory_page import trajectory_page

# What is about one run, /KIND/NAME, and about a run and those that the address names after `with`.
_OF_A_RUN: dict[str, Callable[[Snapshot, Query], Any]] = {
    "run": run_page,
    "recording": recording_page,
    "system": system_page,
    "responses": responses_page,
    "response": trajectory_page,
    "group": group_page,
    "actions": actions_page,
}
_OF_RUNS: dict[str, Callable[[Sequence[Snapshot]], Any]] = {
    "config": config_page,
    "diff": diff_page,
}


def is_page(path: str) -> bool:
    """Whether there is a page at an address, or will be once there is the run that it names."""
    _, kind, *rest = [*path.split("/", 2), ""]
    of_a_run = kind in _OF_A_RUN | _OF_RUNS and len(rest) > 1 and rest[0].strip("/") != ""
    rule = path.removeprefix("/rules/")
    return path in ("/", "/compare", "/rules", "/rules/") or of_a_run or unquote(rule) in RULE_IDS


def page(
    registry: RunRegistry, path: str, search: str, summaries: RunSummaries | None = None
) -> Any:
    """The content for an address; `summaries` are those of the run list, if there are any yet.

    `path` and `search` are quoted, as in the address bar.
    """
    try:
        return _page(registry, path, search, summaries)
    except UNREADABLE:
        what = "The files behind it were deleted or cannot be read."
        return message_page("This page cannot be shown now", what, retry=True)


def _page(registry: RunRegistry, path: str, search: str, summaries: RunSummaries | None) -> Any:
    query = parse_qs((search or "").lstrip("?"))
    if path == "/compare":
        return _comparison(registry, query)
    if path == "/rules" or path.startswith("/rules/"):
        return rules_page(path)
    _, kind, *rest = [*path.split("/", 2), ""]
    if kind in _OF_A_RUN | _OF_RUNS and len(rest) > 1:
        return _of_a_run(registry, kind, unquote(rest[0]).rstrip("/"), query)
    if path == "/":
        return list_page(summaries or RunSummaries(registry), query)
    return message_page("Page not found", f"There is no page at {unquote(path)}.")


def _of_a_run(registry: RunRegistry, kind: str, name: str, query: Query) -> Any:
    try:
        if kind in _OF_A_RUN:
            return _OF_A_RUN[kind](registry.snapshot(name), query)
        names = dict.fromkeys([name, *query.get("with", [])])
        return _OF_RUNS[kind]([registry.snapshot(one) for one in list(names)[:MOST_COMPARED]])
    except Reading as error:
        return message_page("Loading this run", str(error), retry=True)
    except RunNotFound:
        return waiting_page(str(registry.root), name)
    except LldscopeError as error:
        what = {"responses": "These responses", "response": "This response", "group": "This group"}
        title = f"{what.get(kind, 'This run')} cannot be shown"
        return message_page(title, str(error), retry=kind in ("run", "recording"))


def _comparison(registry: RunRegistry, query: Query) -> Any:
    names = list(dict.fromkeys(query.get("run", [])))
    snapshots, errors = snapshots_of(registry, names[:MOST_COMPARED])
    if waits := [name for name in errors if registry.is_opening(name)]:
        progress = f"{len(snapshots)} of {len(snapshots) + len(waits)} runs are loaded."
        return message_page("Loading the runs", progress, retry=True)
    if not snapshots:
        why = "; ".join(errors.values()) or "Choose runs in the list, then press Compare."
        return message_page("No runs to compare", why, retry=bool(errors))
    many = f"{len(names)} runs were asked for; the first {MOST_COMPARED} are shown."
    notices = [*errors.values(), *([many] if len(names) > MOST_COMPARED else [])]
    return compare_page(snapshots, query, notices)
