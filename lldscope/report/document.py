"""The report of a run as a document: one screen with the story, and the evidence folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core import palette
from ..core.numbers import percent, plural, true_minus
from ..core.safe_text import as_sentence
from ..explore.settings import flat
from ..figures.svg import Drawing
from . import charts
from .blocks import (
    Block,
    Box,
    Cell,
    Charts,
    Code,
    Document,
    Items,
    Paragraph,
    Section,
    Table,
    Tokens,
)
from .facts import PostMortem
from .sentences import confidence, date, interval, spending

MOST_SETTINGS = 300
MOST_TEXT = 300  # characters of a setting


def document(facts: PostMortem) -> Document:
    """The report of a run."""
    drawings = charts.of_run(facts) if facts.run.n_steps else []
    evidence = (
        ("What was tried", _experiments(facts)),
        ("Alarms", _alarms(facts)),
        ("What looks like LLD", _look_alikes(facts)),
        ("More charts", [Charts(more)] if (more := drawings[charts.STORY :]) else []),
        ("What lost likelihood", _losses(facts)),
        ("Settings", _settings(facts)),
        ("What this log cannot tell", [Items(facts.gaps)] if facts.gaps else []),
    )
    sections = [Section("", [*_story(facts, drawings)])]
    sections += [Section(name, blocks) for name, of in evidence if (blocks := [*of])]
    about = facts.state.sign, facts.run.place
    return Document(f"Post-mortem of {facts.run.name}", [about], sections, _footer(facts))


def _story(facts: PostMortem, drawings: Sequence[Drawing]) -> Iterator[Block]:
    yield _box(facts)
    if facts.events or any(s.phase not in (None, "warmup") for s in facts.phases):
        yield _timeline(facts)
    yield Charts(drawings[: charts.STORY])
    if facts.losses.tokens and facts.events:
        yield Tokens(facts.losses.tokens)
    possible, checks = facts.state.coverage
    if facts.record and possible < checks:
        yield Paragraph(
            f"This log allows {possible} of {checks} checks. These lines record Δ and what the "
            "others need:"
        )
        yield Code(facts.record)


def _box(facts: PostMortem) -> Box:
    """State, cause and action, for the reader to begin with."""
    headline = facts.state.headline
    bad = facts.state.verdict in ("warning", "critical", "stalled")
    rows = [
        ("what is wrong" if bad else "verdict", f"{headline.cause}."),
        ("what to do", as_sentence(headline.action)),
        ("setting to change", f"{facts.change}." if facts.change else ""),
        ("the run", " ".join(facts.summary)),
        ("cost", spending(facts.cost) if facts.cost else ""),
        ("how sure", confidence(facts)),
        ("tags", ", ".join(facts.run.tags)),
        ("note", facts.run.note or ""),
    ]
    return Box([(label, true_minus(text)) for label, text in rows if text])


def _timeline(facts: PostMortem) -> Table:
    """Phases, and each event with the steps at which it began and was seen."""
    x = charts.steps_axis([facts.run.first_step, facts.run.last_step])
    rows: list[Sequence[Cell]] = []
    if any(span.phase not in (None, "warmup") for span in facts.phases):
        rows.append(["phases", "", "", charts.phase_strip(facts.phases, x)])
    rows += [
        [event.what, "–" if event.onset_step is None else f"{event.onset_step:,}{interval(event)}",
         f"{event.alarm_step:,}", charts.event_strip(event, x)]
        for event in facts.events
    ]
    rows.append(["", "", "", charts.step_strip(x)])
    return Table("Timeline", ["event", "began", "seen", "steps"], rows, frozenset({1, 2}))


def _experiments(facts: PostMortem) -> Iterator[Block]:
    for one in facts.experiments:
        yield Paragraph(true_minus(one.sentence))
        yield Table(one.title, one.head, [[true_minus(c) for c in row] for row in one.rows])


def _alarms(facts: PostMortem) -> Iterator[Block]:
    if not facts.alarms:
        return
    starts = {event.rule: event.start for event in facts.events}
    rows: list[Sequence[Cell]] = [
        [palette.SEVERITIES[a.severity], a.rule,
         "–" if (step := facts.alarm_step(a)) is None else f"{step:,}",
         f"{'' if (a.step or 0) >= (step or 0) else f'at step {a.step}, '}{true_minus(a.message)}",
         as_sentence(a.action),
         a.false_alarms]
        for a in sorted(facts.alarms, key=lambda a: starts.get(a.rule, a.start or 0))
    ]
    head = ["severity", "rule", "fired at", "grounds", "what to do", "false alarms"]
    yield Table("Alarms in the order in which they began", head, rows, frozenset({2}))


def _look_alikes(facts: PostMortem) -> Iterator[Block]:
    if not facts.look_alikes:
        return
    rows: list[Sequence[Cell]] = [
        [name, palette.ANSWERS[f.answer], true_minus(f.evidence)]
        for name, f in facts.look_alikes.items()
    ]
    yield Table("Causes that look the same on the reward curve", ["cause", "this log", "evidence"],
                rows)


def _losses(facts: PostMortem) -> Iterator[Block]:
    losses = facts.losses
    if not losses.n_groups:
        return
    share = percent(losses.n_displaced / losses.n_groups)
    yield Paragraph(
        f"Steps {losses.first_step:,}–{losses.last_step:,}, groups with both classes: correct "
        f"responses lost likelihood on average in {losses.n_displaced:,} of "
        f"{plural(losses.n_groups, 'group')} ({share}). “lldscope blame” tells what takes it away."
    )
    if losses.tokens and not facts.events:
        yield Tokens(losses.tokens)


def _settings(facts: PostMortem) -> Iterator[Block]:
    settings = flat(facts.run.config)
    if settings:
        rows = [[name[:MOST_TEXT], value[:MOST_TEXT]] for name, value in settings.items()]
        left = len(rows) - MOST_SETTINGS
        more = f"; {left:,} more are in run.json" if left > 0 else ""
        caption = f"{plural(len(rows), 'setting')}{more}"
        yield Table(caption, ["setting", "value"], rows[:MOST_SETTINGS])


def _footer(facts: PostMortem) -> str:
    run = facts.run
    parts = [
        f"lldscope {facts.lldscope}, made {date(facts.made)}",
        f"run {run.id}",
        run.trainer and (run.trainer if "import" in run.trainer else f"recorded by {run.trainer}"),
        run.correct_rule and f"correct: {run.correct_rule}",
    ]
    return " · ".join(part for part in parts if part)
