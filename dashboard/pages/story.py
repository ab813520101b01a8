"""A run in words: what is wrong and what to do, its story, its name, tags and note.

The story is the report's, what began and was seen when, the setting to change, the worst tokens; it
is asked for after the page, whose charts must not wait for it. Messages come from runs and are
untrusted; Dash escapes what is given as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from dash import html

from lldscope.core import palette
from lldscope.core.safe_text import as_sentence
from lldscope.core.terminal import visible
from lldscope.diagnosis.account import Event
from lldscope.explore.responses import largest_drops_at
from lldscope.monitor.health import RunState
from lldscope.report.losses import worst_tokens
from lldscope.report.trainers import first_change, trainer_of
from lldscope.storage.notes import LONGEST

from ..data.snapshot import Snapshot
from ..figures import delta_colors as deltas
from . import components
from .frame import address, attrs, evidence

MOST_EVENTS = 6


def story_key(snapshot: Snapshot) -> str:
    """Changes when the story may."""
    alerts = [(a.rule, a.state, a.episodes) for a in snapshot.state.alerts]
    content = repr((alerts, snapshot.state.evidence, snapshot.tables))
    return blake2b(content.encode(), digest_size=8).hexdigest()


def story(snapshot: Snapshot) -> list[Any]:
    """The parts of the page beside its charts, if there are any. Raises LldscopeError if the rows
    cannot be read."""
    beside = [*_change(snapshot), *_tokens(snapshot), *_lacks(snapshot)]
    events = _events(snapshot, snapshot.state.events)
    return [*events, *([html.Div(beside)] if beside else [])]


def _events(snapshot: Snapshot, events: Sequence[Event]) -> list[Any]:
    """For each event two steps: when it began, with hindsight, and when it was seen."""
    if not events:
        return []
    rows = []
    for event in events[:MOST_EVENTS]:
        link = html.A(visible(event.what), href=evidence(snapshot.name, event.rule))
        low, high = event.low, event.high
        title = None if low is None else f"95 %: {low:,} to {high:,}, with hindsight"
        onset = html.Td(components.count(event.onset_step), className="number", title=title)
        alarm = html.Td(html.Button(
            f"{event.alarm_step:,}", className="button plain small", title="show its batch",
            **attrs(data_set=f"step={event.alarm_step}"),
        ), className="number")
        rows.append([onset, alarm, [components.mark(palette.SEVERITIES[event.severity]), link]])
    table = components.table(("began", "seen", "what happened"), rows, {0, 1})
    return [html.Section(table, className="card")]


def _change(snapshot: Snapshot) -> list[Any]:
    """The setting to change first, by the trainer's own name."""
    config, rule = snapshot.info.get("config"), snapshot.state.headline.remedy
    change = first_change(trainer_of(snapshot.info), config, rule)
    if change is None or snapshot.state.verdict not in ("warning", "critical"):
        return []
    value = [] if change.value is None else [f", now {visible(change.value, 60)}"]
    text: list[Any] = [html.Code(visible(change.setting, 120)), *value, f": {change.change}"]
    return [html.Section([html.H2("Change first"), html.P(text)], className="card")]


def _tokens(snapshot: Snapshot) -> list[Any]:
    """The tokens of correct responses that lost most around the headline's event."""
    state = snapshot.state
    at = state.headline.step if state.headline.step is not None else state.last_step
    if state.evidence != "delta" or "tokens" not in snapshot.tables or at is None:
        return []
    drops = largest_drops_at(snapshot.run, at)
    losses = worst_tokens(snapshot.run, drops.first, drops.last)
    if not losses:
        return []
    items = []
    for loss in losses:
        href = address("response", snapshot.name, step=loss.step, rank=loss.rank or None,
                       id=loss.response_id, mark=f"t{loss.position}")
        tint = deltas.tint(loss.delta, deltas.STRONG_TOKEN, "delta")
        text = visible(loss.text or "▯", 24).strip() or "␣"
        items.append(html.Li([
            html.A(html.Code(text), href=href), " ",
            html.Span(f"Δ {deltas.nats(loss.delta)} nats", **tint),
            html.Span(f" step {loss.step:,}, response {loss.response_id}", className="quiet"),
        ]))
    first, last = f"{drops.first:,}", f"{drops.last:,}"
    steps = f"step {first}" if first == last else f"steps {first}–{last}"
    title = f"Tokens of correct responses that lost most, {steps}"
    return [html.Section([html.H2(title), html.Ul(items)], className="card", style=deltas.COLORS)]


def _lacks(snapshot: Snapshot) -> list[Any]:
    """How to record what the checks of this log lack."""
    answers = [*snapshot.state.look_alikes.values()]
    many, record = answers.count("not_observable"), trainer_of(snapshot.info).record
    if not many or not record or snapshot.state.evidence == "delta":
        return []
    text = f"{many} of {len(answers)} checks need what this log lacks. To record it next time:"
    return [html.Section([html.P(text), html.Pre(html.Code("\n".join(record)))], className="card")]


# -- the answer, and the tab -----------------------------------------------------------------------

VERDICTS = ("critical", "warning", "stalled", "insufficient", "healthy", "unreadable")


def answer(snapshot: Snapshot) -> list[Any]:
    """What is wrong, with a link to the evidence; below it what to do."""
    state, headline = snapshot.state, snapshot.state.headline
    sign = state.sign
    cause: Any = visible(headline.cause)
    if headline.rule is not None:
        cause = html.A(cause, href=evidence(snapshot.name, headline.rule))
    mark = html.Span(sign.shape, className="mark", **attrs(aria_hidden="true"))
    action = as_sentence(headline.action)
    return [
        html.P([mark, cause], className="cause"),
        *([html.P(["→ ", visible(action, 500)], className="action")] if action else []),
    ]


def tab_title(states: Sequence[RunState], title: str) -> str:
    """The title of the tab: the worst verdict and its number of runs, unless all are healthy."""
    verdicts = [loud(state) for state in states]
    worst = next((v for v in VERDICTS if v in verdicts), "healthy")
    sign = palette.VERDICTS[worst]
    count = f"{verdicts.count(worst)} " if len(states) > 1 else ""
    before = "" if worst == "healthy" else f"{sign.shape} {count}{sign.word} · "
    return f"{before}{visible(title, 80)} – lldscope"


def title_of_run(snapshot: Snapshot) -> str:
    """The title of the tab of a page about one run."""
    return tab_title([snapshot.state], snapshot.title)


def loud(state: RunState) -> str:
    """The verdict; healthy if every firing alarm was acknowledged or snoozed."""
    firing = [a.rule for a in state.firing if a.severity != "info"]
    return "healthy" if firing and all(rule in state.silenced for rule in firing) else state.verdict


def tag_pills(tags: Sequence[str]) -> list[Any]:
    """The tags of a run, if it has any."""
    pills = [html.Span(visible(tag, LONGEST["tag"]), className="pill tag") for tag in tags]
    return [html.Div(pills, className="tags")] if pills else []


def about(snapshot: Snapshot) -> html.Div:
    """Tags and note, which `lldscope annotate` writes."""
    note = str(snapshot.info.get("note") or "")
    text = [html.Div(visible(note, LONGEST["note"]), className="noted")] if note else []
    return html.Div([*tag_pills(snapshot.info.get("tags") or []), *text], className="about")
