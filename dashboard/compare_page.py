"""Runs compared: a table of where they stand, and the eight charts with all of them."""

from __future__ import annotations

from dash import dcc, html

from . import parts, theme, words
from .charts import CHARTS
from .figures import make_overlay, run_style
from .frame import controls, looks_of, memory, told, view_of, words_page
from .shelf import Look, Shelf

MOST_COMPARED = 20


def compare_page(shelf: Shelf, query: dict[str, list[str]]) -> html.Div:
    """The page that compares the runs the address names, or words if none can be read."""
    names = list(dict.fromkeys(query.get("run", [])))
    looks, lost = looks_of(shelf, names[:MOST_COMPARED])
    if not looks:
        why = "; ".join(lost.values()) or "Choose runs in the list, then press Compare."
        return words_page("No runs to compare", why)
    view = view_of(query)
    subjects = [look.subject for look in looks]
    shown = [s.name for s in subjects]
    cards = [
        parts.chart_card(c, make_overlay(c, subjects, set(shown), view), [], c.compared or c.note)
        for c in CHARTS
    ]
    missed = list(lost.values())
    if len(names) > MOST_COMPARED:
        missed.append(f"{len(names)} runs were asked for; the first {MOST_COMPARED} are shown.")
    options = [
        {
            "label": html.Span(
                [parts.stroke(*run_style(i)), words.visible(s.name)], className="entry"
            ),
            "value": s.name,
        }
        for i, s in enumerate(subjects)
    ]
    return html.Div(
        [
            html.Header([html.H1(f"{len(subjects)} runs compared")], className="page-head"),
            html.Div(" ".join(missed), className="notice", role="status") if missed else None,
            html.Div(compare_table(looks), id=told("compared")),
            controls(
                view,
                dcc.Checklist(options, shown, id={"type": "shown", "index": 0}, className="shown"),
            ),
            html.Div(cards, className="charts"),
            *memory(looks, shown, view),
        ]
    )


def compare_table(looks: list[Look]) -> html.Table:
    """A row per compared run: verdict, phase, first alarms."""
    named = ("run", "verdict", "phase", "last step", "decay alarm", "collapse alarm", "last row")
    rows = []
    for i, look in enumerate(looks):
        state, name = look.state, look.subject.name
        sign = theme.PHASES[state["phase"]]
        first = {a["rule"]: a["step"] for a in state["alerts"]}
        rows.append(
            html.Tr(
                [
                    html.Td([parts.stroke(*run_style(i)), parts.run_link(name)]),
                    html.Td(parts.badge(theme.VERDICTS[state["verdict"]])),
                    html.Td(
                        [
                            parts.mark(sign),
                            sign.word,
                        ]
                    ),
                    html.Td(_step(state["last_step"]), className="number"),
                    html.Td(_step(first.get("lld-decay")), className="number"),
                    html.Td(_step(first.get("lld-collapse")), className="number"),
                    html.Td(words.age(state["last_row_age_seconds"])),
                ]
            )
        )
    numeric = ("last step", "decay alarm", "collapse alarm")
    head = html.Tr([html.Th(n, className="number" if n in numeric else None) for n in named])
    return html.Table([html.Thead(head), html.Tbody(rows)], className="card runs")


def _step(step: int | None) -> str:
    return "–" if step is None else f"{step:,}"
