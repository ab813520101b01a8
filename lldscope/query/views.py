"""The views over the tables of a run: their SQL, in the order in which they build on each other."""

from __future__ import annotations

from functools import cache
from importlib import resources

from ..storage.part import STEP_TABLES

SQL = resources.files(__package__) / "sql"
SIGNAL_TABLES = (*STEP_TABLES, "retention", "evals", "scalars")  # of signals
# Views of rollouts, which are open to users' queries.
ROLLOUT_VIEWS = ("group_totals", "response_class", "response_likelihood", "response_retention")
# Views of steps, each computed once. The last two are stored, as `signals` and `action_signals`; a
# live run only appends to these.
STEP_VIEWS = (
    "action_totals",
    "step_likelihood",
    "step_displaced",
    "step_totals",
    "update_totals",
    "step_conduct",
    "step_groups",
    "step_actions",
    "step_first_actions",
    "step_retention",
    "step_evals",
    "step_scalars",
    "step_signals",
    "step_action_signals",
)


@cache
def view_sql(name: str) -> str:
    """The SELECT behind a view, or the macros of all."""
    return (SQL / f"{name}.sql").read_text(encoding="utf-8")
