"""`lldscope runs [ROOT]`: the runs under a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .shared import NO_RUNS, RunPath, here, print_json, print_table, verdict_text

if TYPE_CHECKING:
    from ..monitor.summary import Summary


@click.command()
@click.argument("root", type=RunPath(), required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON array on stdout.")
def runs(root: Path | None, as_json: bool) -> None:
    """List the runs under ROOT (default: runs): verdict, phase, last step, alarms."""
    place = here(root)
    rows = rows_below(place)
    if as_json:
        print_json(rows)
    elif rows:
        head = ("run", "verdict", "phase", "step", "last row", "alarms")
        print_table(head, map(_cells, rows), right=(3,), wide=False)
    else:
        click.echo(f"lldscope: no runs under {place} yet. {NO_RUNS}", err=True)


def rows_below(root: Any) -> list[dict[str, Any]]:
    """A row for each run under a folder or at an address."""
    return [_row(summary) for summary in _summaries(root)]


def _summaries(root: Any) -> list[Summary]:
    """A summary of each run: from the index beside them, or read now."""
    from ..monitor.run_index import RunIndex, fingerprint
    from ..monitor.summary import read_summary
    from ..query.remote import find_remote
    from ..runs import find_runs
    from ..storage.url import Url

    # Before the rows are read, so that what comes meanwhile is not missed.
    remote = isinstance(root, Url)
    states = find_remote(root) if remote else {p: fingerprint(p) for p in find_runs(root)}
    if [*states] == [root]:
        return [read_summary(root.name, root, root)]
    index, summaries = RunIndex(root), []
    for path, digest in states.items():
        name = path.relative_to(root).as_posix()
        summary = index.get(name, digest)
        if summary is None:
            summary = read_summary(name, path, root)
            index.put(summary, digest)
        summaries.append(summary)
    index.save([summary.name for summary in summaries])
    return summaries


def _row(summary: Summary) -> dict[str, Any]:
    """A run's line; a run that cannot be opened is listed with the reason."""
    state = summary.state
    if state is None:
        return {"run": summary.name, "path": summary.name, "error": summary.error}
    names = ("verdict", "phase", "evidence", "last_step", "life", "last_row_age_seconds", "damaged")
    return {
        "run": summary.title,
        "path": summary.name,
        "group": summary.group,
        "tags": list(summary.tags),
        "verdict_word": state.sign.word,
        **{name: getattr(state, name) for name in names},
        "firing": [alert.rule for alert in state.firing],
    }


def _cells(row: dict[str, Any]) -> list[Any]:
    if "error" in row:
        return [row["run"], verdict_text("unreadable", "unreadable"), row["error"]]
    from ..core.palette import PHASES
    from ..core.terminal import age

    step = "–" if row["last_step"] is None else row["last_step"]
    seconds = row["last_row_age_seconds"]
    last = row["life"] if seconds is None else f"{row['life']} {age(seconds)} ago"
    others = [f"+{len(row['firing']) - 1}"] if len(row["firing"]) > 1 else []
    damage = [f"{len(row['damaged'])} damaged: see check"] if row["damaged"] else []
    name = " ".join([row["run"], *(f"#{tag}" for tag in row["tags"])])
    return [
        name, verdict_text(row["verdict"], row["verdict_word"]),
        PHASES[row["phase"]].word if row["phase"] else "–", step, last,
        ", ".join([" ".join([*row["firing"][:1], *others]), *damage]).strip(", "),
    ]
