"""What a page of the dashboard holds, without a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def texts(component: Any) -> str:
    """Everything a page says and links to, as one string."""
    return json.dumps(component, default=lambda c: c.to_plotly_json(), ensure_ascii=False)


def walk(component: Any) -> Iterator[Any]:
    """A component and all inside it."""
    if isinstance(component, list | tuple):
        for one in component:
            yield from walk(one)
    elif hasattr(component, "to_plotly_json"):
        yield component
        yield from walk(getattr(component, "children", None))


def links(component: Any) -> list[str]:
    """The addresses that a page leads to."""
    return [c.href for c in walk(component) if getattr(c, "href", None)]


def ids(component: Any, kind: str) -> list[str]:
    """The indices of the components of a kind, in order: charts, cards, parts."""
    return [
        c.id["index"] for c in walk(component)
        if isinstance(getattr(c, "id", None), dict) and c.id["type"] == kind
    ]
