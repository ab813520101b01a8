"""The rows of the list of runs: which are wanted, in which order, and what a row shows."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from dash import dcc, html

from lldscope.core import palette
from lldscope.core.terminal import visible
from lldscope.figures.series import make_sparkline
from lldscope.monitor.health import RunState
from lldscope.monitor.summary import Summary, points_of

from ..data.run_summaries import RunSummaries
from ..figures import wording as words
from . import components as parts
from .about import tag_pills
from .answer import news_of
from .links import comparison, evidence

READ_SECONDS = 0.5  # of one refresh of the list; the rest follows at the next
COLUMNS = {
    "run": "run",
    "verdict": "verdict",
    "phase": "phase",
    "alarms": "alarms",
    "evidence": "evidence",
    "step": "last step",
    "age": "last row",
    "reward": "reward",
    "delta": "Δ",
}
NUMBERS = ("step",)
MOST_ROWS = 50  # runs on a page
MOST_ALARMS = 3  # named in a row
VERDICTS = ("critical", "warning", "stalled", "insufficient", "healthy", "unreadable")
_PHASES = ("collapse", "decay", "stagnation", "recovered", "healthy", "warmup", None)
_GRADES = ("delta", "level", "symptoms")


@dataclass(frozen=True)
class Choice:
    """What the reader wants to see of the list; the address holds it."""

    find: str = ""
    verdict: str = ""
    sort: str = "run"  # a column, with - before it from the largest down
    by: str = ""  # "group": under headings
    page: int = 1

    @property
    def plain(self) -> dict[str, str]:
        page = str(self.page) if self.page > 1 else ""
        order = {"sort": self.sort, "by": self.by, "page": page}
        return {"q": self.find, "verdict": self.verdict, **order}


def choice_of(params: dict[str, Any]) -> Choice:
    """The choice an address asks for; what it says wrongly is passed over."""
    values = {k: v[0] if isinstance(v, list) else v for k, v in params.items()}
    verdict, sort = values.get("verdict") or "", values.get("sort") or "run"
    page = str(values.get("page") or "")
    return Choice(
        str(values.get("q") or "")[:200],
        verdict if verdict in VERDICTS else "",
        sort if sort.removeprefix("-") in COLUMNS else "run",
        "group" if values.get("by") == "group" else "",
        max(1, int(page)) if re.fullmatch("[0-9]{1,6}", page) else 1,
    )


def run_rows(
    summaries: RunSummaries, choice: Choice, picked: list[str]
) -> tuple[list[Any], list[Any], Any]:
    """The rows that are wanted, in order, what each was drawn from, and what all runs tell the
    tab."""
    lines = summaries.now(READ_SECONDS)
    return *_rows(lines, choice, picked), news_of(lines)


def _rows(
    lines: list[Summary | str], choice: Choice, picked: list[str]
) -> tuple[list[Any], list[Any]]:
    if not lines:
        return [_wide(html.P(words.NO_RUNS))], [["none", ""]]
    matches = sorted((line for line in lines if _is_wanted(line, choice)), key=_name)
    key = choice.sort.removeprefix("-")
    matches.sort(key=lambda line: _key(line, key), reverse=choice.sort.startswith("-"))
    matches.sort(key=lambda line: _key(line, key) is _LAST)
    if not matches:
        return [_wide(f"No run matches the filter ({len(lines)} in total).")], [
            ["none", len(lines)]
        ]
    groups: dict[str, list[Summary | str]] = {}
    if choice.by:
        matches.sort(key=lambda line: (not _group(line), _group(line)))
        for line in matches:
            groups.setdefault(_group(line), []).append(line)
    page = min(choice.page, -(-len(matches) // MOST_ROWS))
    first = (page - 1) * MOST_ROWS
    rows, has, above = [], [], None
    for line in matches[first : first + MOST_ROWS]:
        if choice.by and _group(line) != above:
            above = _group(line)
            name = visible(above) if above else "no group"
            title = f"{name} · {_tally(groups[above])}"
            rows.append(_heading(title, above, groups[above]))
            has.append(["group", title])
        rows.append(_row(line, picked))
        has.append(_has(line))
    if len(matches) > MOST_ROWS:
        rows.append(_wide(_pages(choice, page, len(matches))))
        has.append(["pages", f"{page} {len(matches)}"])
    return rows, has


def _pages(choice: Choice, page: int, runs: int) -> list[Any]:
    """Which of the runs these are, and the ways to the pages before and after."""
    first, last = (page - 1) * MOST_ROWS, min(page * MOST_ROWS, runs)
    ways = [("‹ previous", page - 1, page > 1), ("next ›", page + 1, last < runs)]
    links = [
        html.A(text, href=f"/?{urlencode(replace(choice, page=to).plain)}", className="button")
        for text, to, there in ways
        if there
    ]
    position = html.Span(f"runs {first + 1:,}–{last:,} of {runs:,} ", className="quiet")
    return [position, *links]


_LAST = (1, 0.0)  # what a run has no answer for comes last, whichever way it is sorted


def _key(line: Summary | str, column: str) -> tuple[int, Any]:
    if isinstance(line, str) or (line.state is None and column not in ("run", "verdict")):
        return _LAST
    if column == "run":
        return 0, _title(line)
    if column == "verdict":
        return 0, VERDICTS.index(_verdict(line))
    state = line.state
    assert state is not None
    value = {
        "phase": lambda: _PHASES.index(state.phase),
        "alarms": lambda: len(state.firing) or None,
        "evidence": lambda: _GRADES.index(state.evidence),
        "step": lambda: state.last_step,
        "age": lambda: None if line.last_time is None else -line.last_time,
        "reward": lambda: line.reward,
        "delta": lambda: line.delta,
    }[column]()
    return _LAST if value is None else (0, value)


def _is_wanted(line: Summary | str, choice: Choice) -> bool:
    if isinstance(line, str):
        return not choice.verdict and choice.find.lower() in line.lower()
    if choice.verdict and _verdict(line) != choice.verdict:
        return False
    phase = line.state.phase if line.state else ""
    firing = " ".join(a.rule for a in line.state.firing) if line.state else ""
    about = f"{line.title} {line.name} {line.group or ''} {' '.join(line.tags)}"
    text = f"{about} {_verdict(line)} {phase} {firing}".lower()
    return all(word in text for word in choice.find.lower().split())


def _verdict(line: Summary) -> str:
    return line.state.verdict if line.state else "unreadable"


def _name(line: Summary | str) -> str:
    return line if isinstance(line, str) else line.name


def _title(line: Summary | str) -> str:
    return line if isinstance(line, str) else line.title


def _group(line: Summary | str) -> str:
    return "" if isinstance(line, str) else str(line.group or "")


def _tally(members: list[Summary | str]) -> str:
    verdicts = [m.state.verdict for m in members if isinstance(m, Summary) and m.state]
    counts = [f"{verdicts.count(v)} {palette.VERDICTS[v].word}" for v in VERDICTS if v in verdicts]
    return ", ".join([f"{len(members)} runs" if len(members) > 1 else "1 run", *counts])


def _has(line: Summary | str) -> list[Any]:
    """What a row shows, but for its age, which goes on by itself in the browser."""
    if isinstance(line, str):
        return [line, ""]
    state = [getattr(line.state, k, None) for k in ("verdict", "phase", "evidence", "life")]
    if line.state is not None:
        state += [a.rule for a in line.state.firing] + sorted(line.state.silenced)
    fields = (line.title, line.group, line.tags, line.error, line.last_time, *line.lines, *state)
    # As text: the browser's numbers do not hold 64 bits.
    return [line.name, f"{hash(fields):x}"]


def _wide(content: Any) -> html.Tr:
    return html.Tr(html.Td(content, colSpan=len(COLUMNS) + 1, className="wrap"))


def _heading(title: str, group: str, members: list[Summary | str]) -> html.Tr:
    """A group, and the way to its runs as one line with a band."""
    content: list[Any] = [title]
    if group and len(members) > 1:
        href = comparison([_name(m) for m in members], average="group")
        content += [" · ", html.A("mean of the group", href=href)]
    head = html.Th(content, colSpan=len(COLUMNS) + 1, scope="rowgroup")
    return html.Tr(head, className="run-group")


def _row(line: Summary | str, picked: list[str]) -> html.Tr:
    """A row of a run; what cannot be read says why."""
    rest = len(COLUMNS) - 1
    if isinstance(line, str):
        waits = html.Td("reading …", colSpan=rest)
        return html.Tr([html.Td(), html.Td(parts.run_link(line)), waits])
    if line.state is None:
        why: list[Any] = [
            parts.badge(palette.VERDICTS["unreadable"]),
            f" {visible(line.error)}",
        ]
        reason = html.Td(html.Div(why), colSpan=rest, className="wrap")
        return html.Tr([html.Td(), html.Td(parts.run_link(line.name, line.title)), reason])
    state = line.state
    sign = palette.PHASES[state.phase]
    label = html.Span(visible(f"compare {line.title}"), className="unseen")
    pick = dcc.Checklist(
        [{"label": label, "value": line.name}],
        [line.name] if line.name in picked else [],
        id={"type": "pick", "index": line.name},
        className="pick",
    )
    step = "–" if state.last_step is None else f"{state.last_step:,}"
    life = html.Div([html.Span(className=f"dot {state.life}"), state.life])
    # the place of a run that has another name, and its group
    about = [line.name] if line.title != line.name else []
    about += [str(line.group)] if line.group else []
    below = [html.Div(visible(text), className="quiet") for text in about]
    return html.Tr(
        [
            html.Td(pick),
            html.Td([parts.run_link(line.name, line.title), *tag_pills(line.tags), *below]),
            html.Td(parts.verdict_badge(state)),
            html.Td(
                [parts.mark(sign), sign.word], className="phase", title=words.PHASES[state.phase]
            ),
            html.Td(_alarms(line.name, state), className="alarms"),
            html.Td(
                palette.EVIDENCE[state.evidence],
                className="quiet evidence",
                title=words.EVIDENCE[state.evidence],
            ),
            html.Td(step, className="number"),
            html.Td(
                [life, html.Div(parts.since(line.last_time, step != "–"), className="quiet")],
                className="life",
            ),
            html.Td(_spark(line.lines[0], palette.GREEN, "reward")),
            html.Td(_spark(line.lines[1], palette.BLUE, "Δ of correct responses")),
        ]
    )


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


def _spark(line: str, color: str, name: str) -> Any:
    picture = make_sparkline(points_of(line), color)
    return html.Img(src=picture, alt=name, className="spark") if picture else html.Span("–")
