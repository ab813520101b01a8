"""What `check`, `runs` and `watch` show people on a terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ..core.numbers import short
from ..core.palette import PHASES, SEVERITIES, VERDICTS
from ..core.safe_text import in_one_line
from ..core.schema import signals_in
from ..core.terminal import age, console, plain, sparkline
from ..diagnosis.detectors import as_recorded, floats

if TYPE_CHECKING:
    from ..monitor.alerts import AnyAlert
    from ..monitor.health import RunState
    from ..runs import Run

_REASON_LINES = 40  # of a traceback, the last of it


def status_line(state: RunState) -> Text:
    """Verdict, phase, evidence, alarms and age of a run in one line."""
    return Text.assemble(_head(state), _firing(state, "  "), (f"  {life_text(state)}", "dim"))


def _head(state: RunState) -> Text:
    verdict = VERDICTS[state.verdict]
    return Text.assemble(
        (verdict.word.upper(), verdict.style),
        (f"  phase {PHASES[state.phase].word}" if state.phase else "", "bold"),
        (f"  evidence: {state.evidence_words}", "dim"),
        (f"  step {_or_dash(state.last_step)}", ""),
    )


def _firing(state: RunState, before: str = "") -> Text:
    """The worst alarm that fires, and how many more."""
    firing = [alert for alert in state.firing if alert.severity != "info"]
    if not firing:
        return Text()
    worst = firing[0]
    sign = SEVERITIES[worst.severity]
    words = f"{before}{sign.shape} {worst.rule} {worst.since}"
    more = f" and {len(firing) - 1} more" if len(firing) > 1 else ""
    return Text.assemble((words, sign.style), more)


def live_block(run: Run, state: RunState, width: int) -> Group:
    """`watch`: the same in lines that fit a terminal, none longer than `width`."""
    name = Text.assemble((plain(run.name), "bold"), "  ", _head(state))
    life = Text.assemble(_firing(state), "  " if _firing(state) else "", (life_text(state), "dim"))
    for line in (name, life):
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(name, signal_table(run, width), life)


def life_text(state: RunState) -> str:
    parts = []
    reason = plain(in_one_line(state.reason or ""))
    if state.life == "finished":
        parts.append(reason or state.life)
    elif state.life != "live":
        parts.append(f"{state.life} ({reason})" if reason else state.life)
    if state.last_step is None:
        parts.append("no row yet")
    elif state.last_row_age_seconds is not None:
        parts.append(f"last row {age(state.last_row_age_seconds)} ago")
    return ", ".join(parts)


def show_state(run: Run, state: RunState) -> None:
    """`check`: the status line, the signals as sparklines, phases, alarms and look-alikes."""
    from ..monitor.health import full_length

    out = console()
    out.print(plain(run.name), style="bold", end="  ")
    out.print(status_line(state))
    out.print(f"→ {plain(state.headline)}", style="bold")
    for what, why in state.missing.items():
        out.print(f"not recorded {plain(what)}: {plain(why)}")
    if state.last_step is None:
        return
    out.print(signal_table(run, out.width))
    spans = [s for s in state.phases if s.phase is not None]
    words = [f"{PHASES[s.phase].word} {s.start_step}–{s.end_step}" for s in spans]
    out.print(f"phases       {' → '.join(words)}")
    for alert in state.alerts:
        out.print(alert_text(alert, state.silenced))
    for alert in state.pending:
        out.print(f"· pending {alert.rule}  step {alert.step}: {plain(alert.message)}")
    _show_look_alikes(out, state)
    rounding = as_recorded(run.columns(), "delta_correct_rounding")
    if (rounding := rounding[rounding == rounding]).size:
        out.print(
            f"resolution   a step's Δ is rounded to ± {short(float(rounding[-1]))} nats/response: "
            "the trainer's log-probabilities are bfloat16 or half precision",
            style="dim",
        )
    if state.false_alarm_bound is not None:
        out.print(
            f"decay test   a false alarm in at most {100 * state.false_alarm_bound:.1f} % of runs "
            f"of {full_length(run, state.last_step):,} steps, see docs/research/decay-alarm.md",
            style="dim",
        )
    if state.reason and "\n" in state.reason.strip():
        out.print("its end, as it was recorded:", style="dim")
        for line in state.reason.strip().splitlines()[-_REASON_LINES:]:
            out.print(f"  {plain(line)}", style="dim")


def _show_look_alikes(out: Console, state: RunState) -> None:
    """Causes that the log supports with their evidence, then in a line each the others."""
    by_answer: dict[str, list[str]] = {}
    for name, answer in state.look_alikes.items():
        by_answer.setdefault(answer, []).append(name)
    for name in by_answer.get("supported", []):
        out.print(f"cause        {name}: {plain(state.look_alike_evidence[name])}")
    for name in by_answer.get("consequence", []):
        evidence = plain(state.look_alike_evidence[name])
        out.print(f"consequence  {name}: {evidence}", style="dim")
    for answer, word in (
        ("not_shown", "not shown"), ("ruled_out", "ruled out"), ("not_observable", "unobservable"),
    ):
        if names := by_answer.get(answer):
            out.print(f"{word:<12} {' · '.join(names)}", style="dim")


def signal_table(run: Run, width: int = 100) -> Table:
    """The main signals: label, sparkline over the whole run, first, last, smallest, largest.

    The sparkline gets shorter where `width` is small.
    """
    signals = run.columns()
    rows = []
    for name, label in signals_in("check").items():
        finite = floats(signals, name)
        finite = finite[finite == finite]
        if len(finite):
            ends = (finite[0], finite[-1], finite.min(), finite.max())
            rows.append((label, finite.tolist(), [short(float(v)) for v in ends]))
    columns = list(zip(*(texts for _, _, texts in rows), strict=True))
    text_width = sum(2 + max(5, *map(len, texts)) for texts in columns)
    label_width = max((len(label) for label, _, _ in rows), default=0)
    bars = max(8, min(40, width - label_width - 2 - text_width - 1))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("whole run", no_wrap=True, width=max(bars, len("whole run")))
    for name in ("first", "last", "min", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    for label, values, texts in rows:
        table.add_row(label, sparkline(values, bars), *texts)
    return table


def alert_text(
    alert: AnyAlert, silenced: Mapping[str, float | None] = MappingProxyType({})
) -> Text:
    """An alarm: what and when, and, while it fires, what to do."""
    start, resolved = alert.episodes[-1]
    sign = SEVERITIES[alert.severity]
    head = f"{sign.shape} {alert.severity} {alert.rule}"
    if resolved is not None:
        words = f"  resolved at step {resolved} after firing at step {start}"
        return Text.assemble((head, "dim"), words)
    first = alert.episodes[0][0]
    again = "" if start == first else f" again, for the first time at step {first}"
    return Text.assemble(
        (head, sign.style),
        (_silenced(alert.rule, silenced), "dim"),
        f"  step {_or_dash(start)}{again}: {plain(alert.message)}\n",
        (f"  → {alert.advice}", "dim"),
    )


def _silenced(rule: str, silenced: Mapping[str, float | None]) -> str:
    if rule not in silenced:
        return ""
    until = silenced[rule]
    return " (acknowledged)" if until is None else f" (snoozed for {age(until - time.time())})"


def _or_dash(value: Any) -> str:
    return "–" if value is None else str(value)
