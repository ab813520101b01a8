"""Name, tags and note of a run: at the top of its page, with the form that changes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from lldscope.core.terminal import visible
from lldscope.storage.notes import LONGEST
from lldscope.storage.url import Url, place_of

from ..data.snapshot import Snapshot
from .links import attrs


def tag_pills(tags: Sequence[str]) -> list[Any]:
    """The tags of a run, if it has any."""
    pills = [html.Span(visible(tag, LONGEST["tag"]), className="pill tag") for tag in tags]
    return [html.Div(pills, className="tags")] if pills else []


def about(snapshot: Snapshot) -> html.Div:
    """Tags and note, and the form. After a change the page comes anew."""
    info = snapshot.info
    tags, note = info.get("tags") or [], str(info.get("note") or "")
    content: list[Any] = tag_pills(tags)
    if note:
        content.append(html.Div(visible(note, LONGEST["note"]), className="noted"))

    def field(key: str, label: str, value: str, most: int, **more: Any) -> html.Label:
        box = dcc.Input(id=f"about-{key}", value=value, maxLength=most, debounce=True, **more)
        return html.Label([html.Span(label, className="key"), box], className="want")

    if isinstance(place_of(snapshot.state.path), Url):  # nothing can be written down there
        return html.Div(content, className="about")
    form = [
        field("name", "name", str(info.get("name") or "")[: LONGEST["name"]], LONGEST["name"],
              placeholder=snapshot.subject.name),
        field("tags", "tags", ", ".join(tags), 1000, placeholder="baseline, paper …"),
        html.Label(
            [html.Span("note", className="key"),
             dcc.Textarea(id="about-note", value=note, maxLength=LONGEST["note"], rows=3)],
            className="want",
        ),
        html.Button("Save", id="about-save", className="button small"),
        html.Span("", id="about-said", className="note", role="status"),
        dcc.Store(id="about-saved"),
    ]
    summary = html.Summary("Name, tags, note" if not content else "Edit", className="quiet")
    label = attrs(aria_label="name, tags and note of the run")
    edit = html.Details([summary, html.Div(form, className="wants card")], **label)
    return html.Div([*content, edit], className="about")
