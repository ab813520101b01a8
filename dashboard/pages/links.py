"""Addresses of the pages, what they say in their query, and attributes of HTML."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from dash import html

from lldscope.core.terminal import visible

Query = dict[str, list[str]]


def attrs(**values: Any) -> Any:
    """`aria_label="…"` as Dash wants it; what is None is left out."""
    return {name.replace("_", "-"): value for name, value in values.items() if value is not None}


def address(page: str, name: str, **query: Any) -> str:
    """Where a page about a run is; what is None is left out of the query."""
    path = f"/{page}/{quote(name)}"
    values = {k.rstrip("_"): v for k, v in query.items() if v is not None}
    return f"{path}?{urlencode(values, doseq=True)}" if values else path


def evidence(name: str, rule: str) -> str:
    """Where a run's page shows an alarm with its evidence."""
    return f"{address('run', name)}#alarm-{quote(rule)}"


def comparison(names: list[str], average: str | None = None) -> str:
    """Where runs are compared; `average="group"`: runs of a group as one line."""
    values = [("run", name) for name in names]
    values += [] if average is None else [("average", average)]
    return f"/compare?{urlencode(values)}"


def crumbs(name: str, label: str, *steps: tuple[str, str]) -> html.P:
    """The way from the list of runs over the run, as people call it, to this page, as links."""
    links = [("Runs", "/"), (visible(label), address("run", name)), *steps]
    parts: list[Any] = []
    for text, href in links:
        parts += [html.A(text, href=href), html.Span(" › ", **attrs(aria_hidden="true"))]
    return html.P(parts, className="crumbs quiet")


def way(word: str, href: str | None, key: str) -> html.A | html.Span:
    """A button to a neighbour, also by a key; a disabled one where there is none."""
    if href is None:
        return html.Span(word, className="button disabled", **attrs(aria_disabled="true"))
    title = f"keyboard: {key}"
    return html.A(word, href=href, className="button", title=title, **attrs(data_key=key))


def whole(query: Query, name: str, least: int = 0) -> int | None:
    """A whole number of the query; None if it is not there or none."""
    value = text(query, name)
    try:
        number = int(value) if value else None
    except ValueError:
        return None
    return None if number is None or not least <= number < 2**31 else number


def yes_no(query: Query, name: str) -> bool | None:
    """yes or no of the query; None if it says neither."""
    return {"yes": True, "no": False}.get(text(query, name) or "")


def text(query: Query, name: str) -> str | None:
    """The first value of that name in the query."""
    return next(iter(query.get(name, [])), None)
