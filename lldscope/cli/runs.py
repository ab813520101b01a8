"""`lldscope runs [ROOT]`: the runs under a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .shared import RunPath, print_json, print_table, verdict_text


@click.command()
@click.argument("root", type=RunPath(), default=Path("runs"))
@click.option("--json", "as_json", is_flag=True, help="One JSON array on stdout.")
def runs(root: Path, as_json: bool) -> None:
    """List the runs under ROOT (default: runs) with verdict, phase and age of the last row."""
    from ..runs import find_runs

    rows = [_row(path, root) for path in find_runs(root)]
    if as_json:
        print_json(rows)
    elif rows:
        head = ("run", "verdict", "phase", "evidence", "step", "last row", "alarms")
        print_table(head, map(_shown, rows), right=(4,), wide=False)
    else:
        click.echo(f"lldscope: no runs under {root} yet.", err=True)


def _row(path: Path, root: Path) -> dict[str, Any]:
    """A run's line; a run that cannot be opened is listed with the reason."""
    from ..core.errors import LldscopeError
    from ..monitor.health import check
    from ..runs import open_run, title

    name = path.name if path == root else path.relative_to(root).as_posix()
    try:
        run = open_run(path, root)
        state = check(run)
    except LldscopeError as error:
        return {"run": name, "path": name, "error": str(error)}
    names = ("verdict", "phase", "evidence", "last_step", "life", "last_row_age_seconds", "damaged")
    return {
        "run": title(run.info, name),
        "path": name,
        "group": run.info.get("group"),
        "tags": run.info.get("tags") or [],
        **{name: getattr(state, name) for name in names},
        "firing": [alert.rule for alert in state.firing],
    }


def _shown(row: dict[str, Any]) -> list[Any]:
    if "error" in row:
        return [row["run"], verdict_text("unreadable"), row["error"]]
    from ..core.palette import EVIDENCE, PHASES
    from ..core.terminal import age

    step = "–" if row["last_step"] is None else row["last_step"]
    last = f"{age(row['last_row_age_seconds'])} ago, {row['life']}"
    damage = [f"{len(row['damaged'])} damaged: see check"] if row["damaged"] else []
    name = " ".join([row["run"], *(f"#{tag}" for tag in row["tags"])])
    return [
        name, verdict_text(row["verdict"]), PHASES[row["phase"]].word,
        EVIDENCE[row["evidence"]], step, last,
        ", ".join([*row["firing"], *damage]),
    ]  # fmt: skip
