"""The page of runs: one line each, live, to sort, filter, group and choose for a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dash import dcc, html

from lldscope.core import palette

from ..data.run_summaries import RunSummaries, Summary
from ..figures import wording as words
from . import components as parts
from .frame import PAUSE, REFRESH_MS, named_group
from .links import attrs, comparison

READ_SECONDS = 0.5  # of one refresh of the list; the rest follows at the next
COLUMNS = {
    "run": "run",
    "verdict": "verdict",
    "phase": "phase",
    "evidence": "evidence",
    "step": "last step",
    "age": "last row",
    "reward": "reward",
    "delta": "Δ",
}
NUMBERS = ("step",)
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

    @property
    def plain(self) -> dict[str, str]:
        return {"q": self.find, "verdict": self.verdict, "sort": self.sort, "by": self.by}


def choice_of(asked: dict[str, Any]) -> Choice:
    """The choice an address asks for; what it says wrongly is passed over."""
    values = {k: v[0] if isinstance(v, list) else v for k, v in asked.items()}
    verdict, sort = values.get("verdict") or "", values.get("sort") or "run"
    return Choice(
        str(values.get("q") or "")[:200],
        verdict if verdict in VERDICTS else "",
        sort if sort.removeprefix("-") in COLUMNS else "run",
        "group" if values.get("by") == "group" else "",
    )


def list_page(summaries: RunSummaries, query: dict[str, list[str]]) -> html.Div:
    """The page as the address asks for it."""
    choice = choice_of(query)
    rows, has = run_rows(summaries, choice, [])
    down = choice.sort.startswith("-")
    sorted_by = {choice.sort.removeprefix("-"): "descending" if down else "ascending"}
    head = html.Tr([html.Th(html.Span("compare", className="unseen"))] + [
        html.Th(
            html.Button(text, id={"type": "sort", "index": key}, className="sort"),
            className="number" if key in NUMBERS else None,
            **attrs(aria_sort=sorted_by.get(key, "none"), data_key=key),
        )
        for key, text in COLUMNS.items()
    ])  # fmt: skip
    root = html.P(str(summaries.registry.root), className="quiet path")
    compare = html.A("Compare", href="/compare", id="compare", className="button disabled")
    buttons = html.Div([PAUSE, compare], className="buttons")
    return html.Div(
        [
            html.Header([html.Div([html.H1("Runs"), root]), buttons], className="page-head"),
            _filters(choice),
            html.Table([html.Thead(head), html.Tbody(rows, id="rows")], className="card runs"),
            dcc.Interval(id="list-clock", interval=REFRESH_MS),
            dcc.Store(id="list-tick"),
            dcc.Store(id="choice", data=choice.plain),
            dcc.Store(id="list-has", data=has),
            dcc.Store(id="picks", data=[]),
        ]
    )


def _filters(choice: Choice) -> html.Div:
    verdicts = {"": "all"} | {v: palette.VERDICTS[v].word for v in VERDICTS}
    groups = {"group": "in groups"}
    return html.Div(
        [
            dcc.Input(
                id="find", type="search", value=choice.find, debounce=0.2, className="find",
                placeholder="name, group, phase …  ( / )",
            ),
            named_group(
                "verdict",
                dcc.RadioItems(verdicts, choice.verdict, id="verdict", className="segments"),
                seen=False,
            ),
            dcc.Checklist(groups, [choice.by] if choice.by else [], id="by", className="shown"),
        ],
        className="controls",
    )  # fmt: skip


def run_rows(
    summaries: RunSummaries, choice: Choice, picked: list[str]
) -> tuple[list[Any], list[Any]]:
    """The rows that are wanted, in order, and what each was drawn from."""
    found = summaries.now(READ_SECONDS)
    if not found:
        return [_wide(html.P(words.NO_RUNS))], [["none", ""]]
    wanted = sorted((line for line in found if _is_wanted(line, choice)), key=_name)
    key = choice.sort.removeprefix("-")
    wanted.sort(key=lambda line: _key(line, key), reverse=choice.sort.startswith("-"))
    wanted.sort(key=lambda line: _key(line, key) is _LAST)
    if not wanted:
        return [_wide(f"None of the {len(found)} runs is like that.")], [["none", len(found)]]
    if not choice.by:
        return [_row(w, picked) for w in wanted], [_has(w) for w in wanted]
    rows, has = [], []
    for group in sorted({_group(w) for w in wanted}, key=lambda g: (not g, g)):
        members = [w for w in wanted if _group(w) == group]
        title = f"{words.visible(group) if group else 'no group'} · {_counted(members)}"
        rows += [_heading(title, group, members), *(_row(w, picked) for w in members)]
        has += [["group", title], *map(_has, members)]
    return rows, has


_LAST = (1, 0.0)  # what a run has no answer for comes last, whichever way it is sorted


def _key(line: Summary | str, column: str) -> tuple[int, Any]:
    if isinstance(line, str) or (line.state is None and column not in ("run", "verdict")):
        return _LAST
    if column == "run":
        return 0, line.name
    if column == "verdict":
        return 0, VERDICTS.index(_verdict(line))
    state = line.state
    assert state is not None
    value = {
        "phase": lambda: _PHASES.index(state.phase),
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
    text = f"{line.name} {line.group or ''} {_verdict(line)} {phase}".lower()
    return all(word in text for word in choice.find.lower().split())


def _verdict(line: Summary) -> str:
    return line.state.verdict if line.state else "unreadable"


def _name(line: Summary | str) -> str:
    return line if isinstance(line, str) else line.name


def _group(line: Summary | str) -> str:
    return "" if isinstance(line, str) else str(line.group or "")


def _counted(members: list[Summary | str]) -> str:
    verdicts = [m.state.verdict for m in members if isinstance(m, Summary) and m.state]
    counts = [f"{verdicts.count(v)} {palette.VERDICTS[v].word}" for v in VERDICTS if v in verdicts]
    return ", ".join([f"{len(members)} runs" if len(members) > 1 else "1 run", *counts])


def _has(line: Summary | str) -> list[Any]:
    """What a row shows, but for its age, which goes on by itself in the browser."""
    if isinstance(line, str):
        return [line, ""]
    state = [getattr(line.state, k, None) for k in ("verdict", "phase", "evidence", "life")]
    # As text: the browser's numbers do not hold 64 bits.
    return [line.name, f"{hash((line.group, line.error, line.last_time, *line.sparks, *state)):x}"]


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
            f" {words.visible(line.error)}",
        ]
        reason = html.Td(html.Div(why), colSpan=rest, className="wrap")
        return html.Tr([html.Td(), html.Td(parts.run_link(line.name)), reason])
    state = line.state
    sign = palette.PHASES[state.phase]
    pick = dcc.Checklist(
        [{"label": html.Span(f"compare {line.name}", className="unseen"), "value": line.name}],
        [line.name] if line.name in picked else [],
        id={"type": "pick", "index": line.name},
        className="pick",
    )
    step = "–" if state.last_step is None else f"{state.last_step:,}"
    life = html.Div([html.Span(className=f"dot {state.life}"), state.life])
    group = [html.Div(words.visible(line.group), className="quiet")] if line.group else []
    return html.Tr(
        [
            html.Td(pick),
            html.Td([parts.run_link(line.name), *group]),
            html.Td(parts.badge(palette.VERDICTS[state.verdict])),
            html.Td([parts.mark(sign), sign.word], title=words.PHASES[state.phase]),
            html.Td(
                palette.EVIDENCE[state.evidence],
                className="quiet evidence",
                title=words.EVIDENCE[state.evidence],
            ),
            html.Td(step, className="number"),
            html.Td([life, html.Div(parts.since(line.last_time), className="quiet")]),
            html.Td(_spark(line.sparks[0], "reward")),
            html.Td(_spark(line.sparks[1], "Δ of correct responses")),
        ]
    )


def _spark(picture: str, name: str) -> Any:
    return html.Img(src=picture, alt=name, className="spark") if picture else html.Span("–")
