"""The page as plain HTML, in the first answer: seen before any script has run, with a picture in
the place of each chart. Dash makes the same page from the same components and takes its place.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

from dash import dcc
from dash.development.base_component import Component

from ..figures.picture import make_picture

_VOID = {"img", "input", "br", "hr"}
_NAMES = {"className": "class", "colSpan": "colspan", "rowSpan": "rowspan", "htmlFor": "for"}
_LEFT_OUT = {"children", "id", "style", "n_clicks", "key"}  # names of parts are the real page's
_OPTION = "dash-options-list-option"


def to_html(part: Any) -> str:
    """What a component of a page looks like before scripts run; nothing for those without looks."""
    if part is None:
        return ""
    if isinstance(part, list | tuple):
        return "".join(map(to_html, part))
    if not isinstance(part, Component):
        return escape(str(part))
    if isinstance(part, dcc.Graph):
        return make_picture(part.to_plotly_json()["props"]["figure"])
    if isinstance(part, dcc.RadioItems | dcc.Checklist):
        return _options(part)
    if part._namespace != "dash_html_components":
        return ""
    return _element(part)


def _element(part: Component) -> str:
    props = part.to_plotly_json()["props"]
    tag = part._type.lower()
    told = [
        f' {_NAMES.get(name, name)}="{escape(str(value))}"' if value is not True else f" {name}"
        for name, value in props.items()
        if name not in _LEFT_OUT and value not in (None, False)
    ]
    if style := props.get("style"):
        told.append(f' style="{escape(";".join(_declared(k, v) for k, v in style.items()))}"')
    opened = f"<{tag}{''.join(told)}>"
    return opened if tag in _VOID else f"{opened}{to_html(props.get('children'))}</{tag}>"


def _declared(name: str, value: Any) -> str:
    plain = name if name.startswith("--") else re.sub("[A-Z]", lambda m: "-" + m[0].lower(), name)
    unit = "px" if isinstance(value, int | float) and plain in ("height", "width") else ""
    return f"{plain}:{value}{unit}"


def _options(part: Any) -> str:
    """Radio buttons or boxes, as Dash marks them up."""
    many = isinstance(part, dcc.Checklist)
    kind, box = ("dash-checklist", "checkbox") if many else ("dash-radioitems", "radio")
    chosen = part.value if many else [part.value]
    options = part.options
    if isinstance(options, dict):
        options = [{"label": label, "value": value} for value, label in options.items()]
    told = []
    for option in options:
        on = option["value"] in chosen
        told.append(
            f'<label class="{_OPTION}{" selected" if on else ""}">'
            f'<span class="{_OPTION}-wrapper"><input type="{box}" class="{_OPTION}-checkbox" '
            f'{" checked" if on else ""}></span><span class="{_OPTION}-text">'
            f"<span>{to_html(option['label'])}</span></span></label>"
        )
    classes = f"dash-options-list {kind} {part.className}"
    return f'<div class="{escape(classes)}" inert>{"".join(told)}</div>'
