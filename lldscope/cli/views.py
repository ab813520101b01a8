"""The output of `check`, `demo` and `watch` for people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ..core.numbers import short
from ..core.palette import ANSWERS, PHASES, SEVERITIES
from ..core.safe_text import counted_in, in_one_line
from ..core.schema import signals_in
from ..core.terminal import age, console, paragraph, plain, sparkline
from ..diagnosis.detectors import as_recorded, floats

if TYPE_CHECKING:
    from ..monitor.alerts import AnyAlert
    from ..monitor.health import RunState
    from ..runs import Run

_REASON_LINES = 40  # of a traceback, the last ones


def status_line(state: RunState) -> Text:
    """Verdict, phase, evidence, alarms and age of a run in one line."""
    return Text.assemble(_head(state), _firing(state, "  "), (f"  {life_text(state)}", "dim"))


def phase_words(phase: str | None) -> str:
    """The phase in words, for beside a verdict; empty without a sign of LLD."""
    return "" if phase in (None, "healthy") else f"phase {PHASES[phase].word}"


def _head(state: RunState) -> Text:
    phase = phase_words(state.phase)
    return Text.assemble(
        (state.sign.word.upper(), state.sign.style),
        (f"  {phase}" if phase else "", "bold"),
        f"  {state.counted[:-1]} {_or_dash(state.last_step)}",
        (f"  {state.evidence_words}", "dim"),
    )


def _firing(state: RunState, before: str = "") -> Text:
    """The worst alarm that fires, and how many more."""
    firing = [alert for alert in state.firing if alert.severity != "info"]
    if not firing:
        return Text()
    worst = firing[0]
    sign = SEVERITIES[worst.severity]
    words = f"{before}{sign.shape} {worst.rule} {counted_in(state.counted, worst.since)}"
    more = f" and {len(firing) - 1} more" if len(firing) > 1 else ""
    return Text.assemble((words, sign.style), more)


def live_block(run: Run, state: RunState, width: int) -> Group:
    """The status of a run for `watch`, in lines no longer than `width`."""
    name = Text.assemble((plain(run.name), "bold"), "  ", _head(state))
    life = Text.assemble(_firing(state), "  " if _firing(state) else "", (life_text(state), "dim"))
    for line in (name, life):
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(name, signal_table(run, width), life)


def life_text(state: RunState) -> str:
    """Whether the run is live, and the age of its last row."""
    reason = plain(in_one_line(state.reason or ""))
    word = reason if state.life == "finished" and reason else state.life
    if reason and state.life not in ("finished", "live"):
        word = f"{state.life} ({reason})"
    if state.last_step is None:
        return "no row yet" if state.life == "live" else f"{word}, no row"
    seconds = state.last_row_age_seconds
    if seconds is None:
        return "" if state.life == "live" else word
    if word == "finished":
        return f"finished {age(seconds)} ago"
    before = "" if state.life == "live" else f"{word}, "
    return f"{before}last row {age(seconds)} ago"


def show_state(run: Run, state: RunState) -> None:
    """Print for `check`: the answer, signals as sparklines, phases, alarms, and other possible
    causes."""
    out = console()
    lines: list[Text | str] = [
        Text.assemble((plain(run.name), "bold"), "  ", _head(state), f"  {life_text(state)}"),
        Text(f"→ {plain(state.headline)}", "bold"),
        *(f"not recorded: {what} ({why})" for what, why in state.missing.items()),
        *(f"not known: {what} ({why})" for what, why in state.unclear.items()),
    ]
    _print(out, lines)
    if state.last_step is None:
        return
    out.print()
    out.print(signal_table(run, out.width))
    out.print()
    spans = [s for s in state.phases if s.phase is not None]
    words = [f"{PHASES[s.phase].word} {s.start_step}–{s.end_step}" for s in spans]
    if any(s.phase != "warmup" for s in spans):  # the end of a warm-up alone says nothing
        _print(out, [f"phases: {' → '.join(words)}"])
    step = state.counted[:-1]
    for alert in state.alerts:
        out.print(alert_text(out, alert, state.silenced, step))
    _print(out, [f"· pending {a.rule}, {step} {a.step}: {a.message}" for a in state.pending])
    out.print()
    _print(out, _look_alikes(state), "dim")
    _print(out, _precision(run, state), "dim")
    if state.reason and "\n" in state.reason.strip():
        end = state.reason.strip().splitlines()[-_REASON_LINES:]
        _print(out, ["how it ended, as recorded:", *(f"  {line}" for line in end)], "dim")


def _print(out: Console, lines: Iterable[Text | str], style: str | None = None) -> None:
    for line in lines:
        out.print(paragraph(out, line), style=style)


def _look_alikes(state: RunState) -> Iterator[str]:
    """A line with the evidence of each cause that the log supports, then a line for each other
    answer."""
    by_answer: dict[str, list[str]] = {}
    for name, answer in state.look_alikes.items():
        by_answer.setdefault(answer, []).append(name)
    of = {state.headline.rule, state.headline.remedy}
    causes = of | {"lld"} if of & {"lld-decay", "lld-collapse"} else of
    for answer in ("supported", "consequence"):
        for name in by_answer.get(answer, []):
            occurred = "cause" if name in causes else "occurred"
            word = occurred if answer == "supported" else answer
            yield f"{word}: {name}, {state.look_alike_evidence[name]}"
    for answer in ("not_shown", "ruled_out", "not_observable"):
        if names := by_answer.get(answer):
            yield f"{ANSWERS[answer].word}: {', '.join(names)}"


def _precision(run: Run, state: RunState) -> Iterator[str]:
    """The resolution of Δ, if it matters, and how often the alarm of Δ is false."""
    from ..monitor.health import full_length

    rounding = as_recorded(run.columns(), "delta_correct_rounding")
    if (rounding := rounding[rounding == rounding]).size:
        yield (
            f"resolution: a step's Δ is rounded to ± {short(float(rounding[-1]))} nats/response, "
            "as the trainer's log-probabilities are bfloat16 or half precision"
        )
    if state.false_alarm_bound is not None and state.last_step is not None:
        yield (
            f"decay test: a false alarm in at most {100 * state.false_alarm_bound:.1f} % of runs "
            f"of {full_length(run, state.last_step):,} steps (docs/research/decay-alarm.md)"
        )


def signal_table(run: Run, width: int = 100) -> Table:
    """The main signals: label, sparkline over the whole run (shorter for a small `width`), first,
    last, smallest, largest."""
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
    out: Console, alert: AnyAlert, silenced: Mapping[str, float | None] = MappingProxyType({}),
    step: str = "step",
) -> Text:
    """An alarm in lines that fit: what and when, and, while it fires, what to do. `step` names the
    unit."""
    start, resolved = alert.episodes[-1]
    sign = SEVERITIES[alert.severity]
    head = f"{sign.shape} {alert.severity} {alert.rule}"
    if resolved is not None:
        words = f", fired at {step} {_or_dash(start)}, resolved at {step} {resolved}"
        return paragraph(out, Text.assemble((head, "dim"), words))
    first, now = alert.first_step, alert.step  # the message has the numbers of `now`
    also = [f"first at {step} {first}"] if first != now else []
    also += [f"again since {step} {start}"] if start not in (first, now) else []
    when = f" ({', '.join(also)})" if also else ""
    what = Text.assemble(
        (head, sign.style),
        (_silenced(alert.rule, silenced), "dim"),
        f", {step} {_or_dash(now)}{when}: {plain(alert.message)}",
    )
    advice = Text(f"→ {plain(alert.advice)}", "dim")
    return Text("\n").join([paragraph(out, what), paragraph(out, advice, 2)])


def _silenced(rule: str, silenced: Mapping[str, float | None]) -> str:
    if rule not in silenced:
        return ""
    until = silenced[rule]
    return " (acknowledged)" if until is None else f" (snoozed for {age(until - time.time())})"


def _or_dash(value: Any) -> str:
    return "–" if value is None else str(value)
