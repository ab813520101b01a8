"""The rows of the list of runs: which are wanted, in which order, and what a row shows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from dash import html

from lldscope.core import palette
from lldscope.core.errors import LldscopeError
from lldscope.core.numbers import number
from lldscope.core.terminal import visible
from lldscope.explore.settings import flat
from lldscope.figures.series import make_sparkline
from lldscope.monitor.health import RunState
from lldscope.monitor.summary import LAST, Line, Summary
from lldscope.storage.layout import read_run

from ..data.run_summaries import RunSummaries
from . import components as parts
from .frame import Query, attrs, comparison, evidence, text
from .story import news_of, tag_pills

READ_SECONDS = 0.5  # of one refresh of the list; the rest follows at the next
COLUMNS = {
    "run": "run", "verdict": "verdict", "alarms": "alarms", "step": "last step", "age": "last row",
    "reward": "reward", "delta": "Δ",
}
SETTING = "config/"  # before the name of a setting
MOST_ADDED, MOST_SETTINGS = 8, 200  # columns, and settings that are offered
NUMBERS = ("step", *(name for name in LAST if name not in COLUMNS))
MOST_ROWS = 50  # runs on a page
MOST_ALARMS = 3  # named in a row
VERDICTS = ("critical", "warning", "stalled", "insufficient", "healthy", "unreadable")
NO_RUNS = (
    "There are no runs here yet. Start a training that records into this folder, or run "
    "`lldscope demo`; runs appear here as they start."
)
Settings = Mapping[str, Mapping[str, str]]  # of the runs that a page shows, by name


@dataclass(frozen=True)
class Choice:
    """What the reader wants to see of the list; the address holds it."""

    find: str = ""
    verdict: str = ""
    sort: str = "verdict"  # a column, with - before it from the largest down
    by: str = ""  # "group": under headings
    page: int = 1
    columns: tuple[str, ...] = ()  # added to COLUMNS

    @property
    def plain(self) -> dict[str, list[str]]:
        """The query of its address."""
        page = str(self.page) if self.page > 1 else ""
        sort = "" if self.sort == "verdict" else self.sort
        pairs = {"q": self.find, "verdict": self.verdict, "sort": sort, "by": self.by, "page": page}
        values = {key: [value] for key, value in pairs.items() if value}
        return values | ({"col": [*self.columns]} if self.columns else {})


def choice_of(query: Query) -> Choice:
    """The choice that an address asks for; what it says wrongly is passed over."""
    verdict, sort = text(query, "verdict") or "", text(query, "sort") or "verdict"
    page = text(query, "page") or ""
    added = [c for c in query.get("col", []) if c in LAST or c.startswith(SETTING)]
    columns = tuple(dict.fromkeys(added))[:MOST_ADDED]
    return Choice(
        (text(query, "q") or "")[:200],
        verdict if verdict in VERDICTS else "",
        sort if sort.removeprefix("-") in {*COLUMNS, *columns} else "verdict",
        "group" if text(query, "by") == "group" else "",
        max(1, int(page)) if re.fullmatch("[0-9]{1,6}", page) else 1,
        columns,
    )


def title_of(column: str) -> str:
    """The head of a column."""
    return COLUMNS.get(column) or visible(column.removeprefix(SETTING), 60)


def run_rows(
    summaries: RunSummaries, choice: Choice, picked: list[str]
) -> tuple[list[Any], str, Any]:
    """The rows that are wanted, in order, what changes when they do, and what all runs tell the
    tab."""
    lines = summaries.now(READ_SECONDS)
    wants_settings = any(column.startswith(SETTING) for column in choice.columns)
    settings = settings_of(summaries, lines) if wants_settings else {}
    rows, has = _rows(lines, choice, picked, settings)
    return rows, blake2b(repr(has).encode(errors="replace"), digest_size=8).hexdigest(), \
        news_of(lines)


def settings_of(summaries: RunSummaries, lines: Sequence[Summary]) -> Settings:
    """The settings of the first runs, by their names; of runs that lie elsewhere none."""
    paths = summaries.registry.names()
    settings: dict[str, Mapping[str, str]] = {}
    for line in lines[: 4 * MOST_ROWS]:
        path = paths.get(line.name)
        if isinstance(path, Path):
            try:
                settings[line.name] = flat(read_run(path, {}, "").get("config"))
            except LldscopeError:
                continue  # its row says why
    return settings


def _rows(
    lines: list[Summary], choice: Choice, picked: list[str], settings: Settings
) -> tuple[list[Any], list[Any]]:
    width = len(COLUMNS) + len(choice.columns) + 1
    if not lines:
        return [_wide(html.P(NO_RUNS), width)], ["none"]
    matches = [line for line in lines if _is_wanted(line, choice)]
    matches.sort(key=lambda line: line.name)
    key = choice.sort.removeprefix("-")
    keys = {line.name: _key(line, key, settings) for line in matches}
    matches.sort(key=lambda line: keys[line.name], reverse=choice.sort.startswith("-"))
    matches.sort(key=lambda line: keys[line.name] is _LAST)
    if not matches:
        return [_wide(f"No run matches the filter ({len(lines)} in total).", width)], ["none"]
    groups: dict[str, list[Summary]] = {}
    if choice.by:
        matches.sort(key=lambda line: (not _group(line), _group(line)))
        for line in matches:
            groups.setdefault(_group(line), []).append(line)
    page = min(choice.page, -(-len(matches) // MOST_ROWS))
    first = (page - 1) * MOST_ROWS
    rows: list[Any] = []
    has: list[Any] = []
    above = None
    for line in matches[first : first + MOST_ROWS]:
        if choice.by and _group(line) != above:
            above = _group(line)
            title = f"{visible(above) if above else 'no group'} · {_tally(groups[above])}"
            rows.append(_heading(title, above, groups[above], width))
            has.append(title)
        rows.append(_row(line, picked, choice, settings))
        has.append(_content(line))
    if len(matches) > MOST_ROWS:
        rows.append(_wide(_pages(choice, page, len(matches)), width))
        has.append(f"{page} {len(matches)}")
    return rows, [choice, *has]


def _pages(choice: Choice, page: int, runs: int) -> list[Any]:
    """Which of the runs these are, and the ways to the pages before and after."""
    first, last = (page - 1) * MOST_ROWS, min(page * MOST_ROWS, runs)
    ways = [("‹ previous", page - 1, page > 1), ("next ›", page + 1, last < runs)]
    links = [
        html.A(word, className="button",
               href=f"/?{urlencode(replace(choice, page=to).plain, doseq=True)}")
        for word, to, there in ways
        if there
    ]
    position = html.Span(f"runs {first + 1:,}–{last:,} of {runs:,} ", className="quiet")
    return [position, *links]


_LAST = (1, 0.0)  # what a run has no answer for comes last, whichever way it is sorted


def _key(line: Summary, column: str, settings: Settings) -> tuple[int, Any]:
    if column == "run":
        return 0, line.title
    if column == "verdict" and (verdict := _verdict(line)):
        return 0, VERDICTS.index(verdict)
    state = line.state
    if state is None:
        return _LAST
    if column.startswith(SETTING):
        value: Any = settings.get(line.name, {}).get(column.removeprefix(SETTING))
        return _LAST if value is None else (0, _natural(value))
    value = {
        "alarms": lambda: len(state.firing) or None,
        "step": lambda: state.last_step,
        "age": lambda: None if line.last_time is None else -line.last_time,
        "reward": lambda: line.reward,
        "delta": lambda: line.delta,
    }.get(column, lambda: line.last.get(column))()
    return _LAST if value is None else (0, value)


def _natural(value: str) -> tuple[bool, float, str]:
    """Numbers by their size, before texts."""
    try:
        return False, float(value), ""
    except ValueError:
        return True, 0.0, value


def _is_wanted(line: Summary, choice: Choice) -> bool:
    if choice.verdict and _verdict(line) != choice.verdict:
        return False
    phase = line.state.phase if line.state else ""
    firing = " ".join(a.rule for a in line.state.firing) if line.state else ""
    about = f"{line.title} {line.name} {line.group or ''} {' '.join(line.tags)}"
    text = f"{about} {_verdict(line)} {phase} {firing}".lower()
    return all(word in text for word in choice.find.lower().split())


def _verdict(line: Summary) -> str:
    """Empty for a run that was not read yet."""
    return line.state.verdict if line.state else "unreadable" if line.error else ""


def _group(line: Summary) -> str:
    return str(line.group or "")


def _tally(members: list[Summary]) -> str:
    states = sorted((m.state for m in members if m.state), key=lambda s: VERDICTS.index(s.verdict))
    counts = [f"{n} {word}" for word, n in Counter(s.sign.word for s in states).items()]
    return ", ".join([f"{len(members)} runs" if len(members) > 1 else "1 run", *counts])


def _content(line: Summary) -> list[Any]:
    """What a row shows, but for its age, which goes on by itself in the browser."""
    state = line.state
    fields = [getattr(state, k, None) for k in ("verdict", "phase", "evidence", "life", "last_step",
                                                 "trend")]
    if state is not None:
        fields += [a.rule for a in state.firing] + sorted(state.silenced)
    return [line.name, line.title, line.group, line.tags, line.error, line.last_time, line.lines,
            line.last, *fields]


def _wide(content: Any, width: int) -> html.Tr:
    return html.Tr(html.Td(content, colSpan=width, className="wrap"))


def _heading(title: str, group: str, members: list[Summary], width: int) -> html.Tr:
    """A group: its verdicts, its mean reward, and the way to its runs as one line with a band."""
    rewards = [m.reward for m in members if m.reward is not None]
    content: list[Any] = [title]
    if rewards:
        ends = f" ({number(min(rewards))} to {number(max(rewards))})" if len(rewards) > 1 else ""
        content.append(f" · mean reward {number(sum(rewards) / len(rewards))}{ends}")
    if group and len(members) > 1:
        href = comparison([m.name for m in members], average="group")
        content += [" · ", html.A("mean of the group in charts", href=href)]
    head = html.Th(content, colSpan=width, scope="rowgroup")
    return html.Tr(head, className="run-group")


def _row(
    line: Summary, picked: list[str], choice: Choice, settings: Settings
) -> html.Tr:
    """A row of a run; what cannot be read says why."""
    rest = len(COLUMNS) - 1 + len(choice.columns)
    if line.state is None:
        why: list[Any] = ["reading …"]
        if line.error:
            why = [parts.badge(palette.VERDICTS["unreadable"]), f" {visible(line.error)}"]
        reason = html.Td(html.Div(why), colSpan=rest, className="wrap")
        return html.Tr([html.Td(), html.Td(parts.run_link(line.name, line.title)), reason])
    state = line.state
    about = attrs(
        aria_checked=str(line.name in picked).lower(), data_pick=line.name,
        aria_label=visible(f"compare {line.title}"),
    )
    pick = html.Button(role="checkbox", className="pick", **about)
    life = [html.Div([html.Span(className=f"dot {state.life}"), parts.life_word(state)])]
    if line.last_time is not None:
        life.append(html.Div(parts.since(line.last_time), className="quiet"))
    # the place of a run that has another name, and its group
    names = [line.name] if line.title != line.name else []
    names += [str(line.group)] if line.group else []
    below = [html.Div(visible(name), className="quiet") for name in names]
    trend = [html.Div(f"reward {state.trend}", className="quiet")] if state.trend else []
    added = [html.Td(_value(line, column, settings), className="number" if column in LAST else None)
             for column in choice.columns]
    return html.Tr(
        [
            html.Td(pick),
            html.Td([parts.run_link(line.name, line.title), *tag_pills(line.tags), *below]),
            html.Td([parts.verdict_badge(state), *trend]),
            html.Td(_alarms(line.name, state), className="alarms"),
            html.Td(parts.count(state.last_step), className="number"),
            html.Td(life, className="life"),
            html.Td(_spark(line.lines[0], palette.GREEN, "reward")),
            html.Td(_spark(line.lines[1], palette.BLUE, "Δ of correct responses")),
            *added,
        ]
    )


def _value(line: Summary, column: str, settings: Settings) -> Any:
    """What a column that the reader has added shows of a run."""
    if column.startswith(SETTING):
        return visible(settings.get(line.name, {}).get(column.removeprefix(SETTING), "–"), 80)
    return number(line.last.get(column))


def _alarms(name: str, state: RunState) -> list[Any]:
    """The alarms that fire, worst first, each with the way to its evidence."""
    firing = [a for a in state.firing if a.severity != "info"]
    rows = [
        html.Div(
            [
                parts.mark(palette.SEVERITIES[a.severity]),
                html.A(visible(a.rule, 40), href=evidence(name, a.rule)),
                *([html.Span(" quiet", className="quiet")] if a.rule in state.silenced else []),
            ],
            title=visible(a.message),
        )
        for a in firing[:MOST_ALARMS]
    ]
    more = len(firing) - MOST_ALARMS
    return [*rows, *([html.Div(f"and {more} more", className="quiet")] if more > 0 else [])]


def _spark(line: Line, color: str, name: str) -> Any:
    picture = make_sparkline(line, color)
    return html.Img(src=picture, alt=name, className="spark") if picture else html.Span("–")
