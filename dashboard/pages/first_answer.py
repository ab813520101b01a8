"""The first answer to an address holds what Dash's scripts would otherwise have to ask for, one
after the other, once they run: the layout of the page and the list of callbacks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import orjson
from dash import Dash
from dash.development.base_component import Component
from flask import request

# A quarter of the size of the plotly.js that Dash would load: the bundle with scatter, bar and pie.
PLOTLY = "/assets/plotly/plotly-basic.min.js"
_PLACE = "<!-- the page -->"

# What stands here goes into the page of any address, and is filled by `App.interpolate_index`.
BODY = f"{_PLACE}{{%app_entry%}}<footer>{{%config%}}{{%scripts%}}{{%renderer%}}</footer>"


class App(Dash):
    """Dash that knows what to show at an address before its scripts run.

    `make_layout` gives the layout for a path and a search, both as they stand in an address.
    """

    def __init__(self, make_layout: Callable[[str, str], Any], **options: Any) -> None:
        super().__init__("lldscope", **options)
        self._make_layout = make_layout

    def interpolate_index(self, *args: Any, **parts: Any) -> str:
        """The index page with the page of the address that is asked for."""
        path = quote(request.path)  # as the browser has it; Flask has decoded it
        layout = self._make_layout(path, request.query_string.decode(errors="replace"))
        place = ""
        if path.startswith("/run/") or path == "/compare":  # these draw charts
            place = f'<script src="{PLOTLY}"></script>'
        place += _answer(
            "_dash-layout", orjson.dumps(layout, default=Component.to_plotly_json).decode()
        )
        place += _answer("_dash-dependencies", self.dependencies().get_data(as_text=True))
        # text of a run is put in last, so that nothing in it is taken for a place to fill
        before, _, after = super().interpolate_index(*args, **parts).partition(_PLACE)
        return before + place + after


def _answer(name: str, text: str) -> str:
    """An answer of the server as data in the page; assets/first.js hands it to who asks for it."""
    safe = text.replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{safe}</script>'
