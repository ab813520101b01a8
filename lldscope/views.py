"""What `check`, `runs` and `watch` show people on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .terminal import (
    SEVERITY_MARK,
    SEVERITY_STYLE,
    VERDICT_STYLE,
    age,
    console,
    number,
    plain,
    sparkline,
)

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from .runs import Run

# Signal, its label, and digits: what a person wants to see first.
SHOWN = (
    ("reward", "reward", 3),
    ("delta_correct", "Δ correct, nats", 3),
    ("correct_logp", "log π correct", 3),
    ("entropy", "entropy, nats", 3),
    ("grad_norm", "gradient norm", 3),
    ("valid_searches", "searches", 3),
)


def status_line(state: dict[str, Any]) -> Text:
    """Verdict, phase, evidence, alarms and age of a run in one line."""
    from rich.text import Text

    phase = state["phase"] or "no phase (no likelihoods in this log)"
    firing = [a for a in state["alerts"] if a["state"] == "firing" and a["severity"] != "info"]
    parts = [
        (state["verdict"].upper(), VERDICT_STYLE[state["verdict"]]),
        (f"  phase {phase}", "bold"),
        (f"  evidence {state['evidence']}", "dim"),
        (f"  step {_or_dash(state['last_step'])}", ""),
    ]
    if firing:
        worst = firing[0]
        mark = SEVERITY_MARK[worst["severity"]]
        parts.append((f"  {mark} {worst['rule']} since step {worst['episodes'][-1][0]}",
                      SEVERITY_STYLE[worst["severity"]]))  # fmt: skip
    parts.append((f"  {life_words(state)}", "dim"))
    return Text.assemble(*parts)


def life_words(state: dict[str, Any]) -> str:
    last = f"last row {age(state['last_row_age_seconds'])} ago"
    if state["life"] == "live":
        return last
    reason = f" ({plain(state['reason'])})" if state["reason"] else ""
    return f"{state['life']}{reason}, {last}"


def show_state(run: Run, state: dict[str, Any]) -> None:
    """`check`: the status line, the signals as sparklines, phases, alarms and look-alikes."""
    out = console()
    out.print(plain(run.name), style="bold", end="  ")
    out.print(status_line(state))
    if state["last_step"] is None:
        return
    out.print(signal_table(run))
    spans = [f"{s['phase'] or '–'} {s['start_step']}–{s['end_step']}" for s in state["phases"]]
    out.print(f"phases       {' → '.join(spans)}")
    for alert in state["alerts"]:
        out.print(alert_text(alert))
    causes = [f"{name} {answer.replace('_', ' ')}" for name, answer in state["look_alikes"].items()]
    out.print(f"look-alikes  {' · '.join(causes)}", style="dim")


def signal_table(run: Run) -> Table:
    """The main signals: label, sparkline over the whole run, first, last, smallest, largest."""
    from rich.table import Table

    signals = run.signals()
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    table.add_column("whole run")
    for name in ("first", "last", "min", "max"):
        table.add_column(name, justify="right")
    for name, label, digits in SHOWN:
        known = signals[name].astype("float64").dropna()
        if len(known):
            ends = (known.iloc[0], known.iloc[-1], known.min(), known.max())
            table.add_row(label, sparkline(known.tolist(), 40), *(number(v, digits) for v in ends))
    return table


def alert_text(alert: dict[str, Any]) -> Text:
    """An alarm: what and when, and, while it fires, what to do."""
    from rich.text import Text

    fired, resolved = alert["episodes"][-1]
    head = f"{SEVERITY_MARK[alert['severity']]} {alert['severity']} {alert['rule']}"
    if resolved is not None:
        words = f"  resolved at step {resolved} after firing at step {fired}"
        return Text.assemble((head, "dim"), words)
    again = "" if fired == alert["step"] else f" again, for the first time at step {alert['step']}"
    return Text.assemble(
        (head, SEVERITY_STYLE[alert["severity"]]),
        f"  step {_or_dash(fired)}{again}: {plain(alert['message'])}\n",
        (f"  → {alert['advice']}", "dim"),
    )


def _or_dash(value: Any) -> str:
    return "–" if value is None else str(value)
