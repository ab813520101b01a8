"""The batch of a step: its groups, those first whose correct responses lost most likelihood.

Questions, answers and rewards come from a run and are untrusted; Dash escapes what is given as
text.
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

from dash import html

from lldscope.core.numbers import number
from lldscope.core.terminal import visible
from lldscope.explore.responses import groups_of_step
from lldscope.explore.trajectories import rows_of
from lldscope.recording.transcripts import golden_answers

from ..data.snapshot import Snapshot
from ..figures import delta_colors as deltas
from .frame import address, attrs
from .responses_page import STRONG, answer_of, class_of, end_of, title_of

GROUPS, RESPONSES = 8, 3  # shown of a step, and of each class of a group
MOST_QUESTION, MOST_ANSWER = 240, 160  # characters
MOST_PARTS = 8


def batch(snapshot: Snapshot, step: int) -> list[Any]:
    """The panel of a step. Raises LldscopeError where the query takes too long."""
    close = html.Button("×", className="button small", title="close the batch",
                        **attrs(data_set="step=", aria_label="close the batch"))
    head = html.Header([html.H2(f"Step {step:,}"), close])
    if not (snapshot.subject.table["step"] == step).any():
        return [head, html.P("This step was not recorded.", className="quiet")]
    content: list[Any] = [head]
    if "responses" not in snapshot.tables:
        text = "No single responses are in this log, so the batch of a step cannot be shown."
        return [*content, html.P(text, className="quiet")]
    rows = rows_of(groups_of_step(snapshot.run, step, GROUPS, RESPONSES))
    if not rows:
        return [*content, html.P("No responses of this step were recorded.", className="quiet")]
    everything = address("responses", snapshot.name, first=step, last=step, sort="delta")
    total = rows[0]["n_groups"]
    some = f"{GROUPS} of " if total > GROUPS else ""
    many = f"{some}{total:,} groups" if total > 1 else "One group"
    order = f"{many}, greatest loss of correct responses first. "
    link = html.A("All responses", href=everything)
    content.append(html.P([order, link], className="note"))
    return content + [
        _group(snapshot.name, list(members))
        for _, members in groupby(rows, key=lambda r: r["place"])
    ]


def _group(name: str, rows: list[dict[str, Any]]) -> html.Section:
    first = rows[0]
    label = "one response" if first["group_id"] is None else f"group {first['group_id']:,}"
    delta = first["group_delta"]
    head: list[Any] = [html.Strong(label)]
    if delta is not None:
        head.append(html.Span(f"Δ correct {deltas.nats(delta)}",
                              **deltas.tint(delta, STRONG, "delta", faint=deltas.FAINT)))
    head.append(html.Span(f"{len(rows)} of {first['n']:,} responses", className="quiet"))
    question = next((r["question"] for r in rows if r["question"]), None)
    golden = next((r["golden"] for r in rows if r["golden"]), None)
    texts: list[Any] = []
    if question is not None:
        texts.append(html.P(end_of(question, MOST_QUESTION), className="question"))
    if answers := golden_of(golden):
        key = html.Span("gold answer", className="key")
        texts.append(html.P([key, visible(answers, MOST_ANSWER)]))
    lines = [_response(name, row) for row in rows]
    return html.Section([html.Header(head), *texts, html.Ul(lines)], className="batch-group")


def _response(name: str, row: dict[str, Any]) -> html.Li:
    href = address("response", name, step=row["step"], rank=row["rank"] or None,
                   id=row["response_id"])
    delta = [] if row["delta"] is None and row["not_finite"] is None else [
        html.Span(f"Δ {deltas.nats(row['delta'], row['not_finite'])}",
                  **deltas.tint(row["delta"], STRONG, "delta", faint=deltas.FAINT))
    ]
    reward = [] if row["reward"] is None else [f"reward {number(row['reward'])}"]
    reward += [f"{visible(n, 30)} {number(v)}" for n, v in parts_of_reward(row["reward_parts"])]
    answer = answer_of(row["answer"])
    line = [html.Div(end_of(answer, MOST_ANSWER), className="said")] if answer else []
    head = [html.A(title_of(row), href=href, className="run-link"), class_of(row), *delta,
            html.Span(" · ".join(reward), className="quiet")]
    return html.Li([html.Div(head, className="line"), *line])


def golden_of(column: str | None) -> str:
    """The golden answers of a row, as people read them; text that is no JSON stays as it is."""
    return " · ".join(golden_answers(column))


def parts_of_reward(column: str | None) -> list[tuple[str, float]]:
    """The first MOST_PARTS components of a reward; empty if the column holds none."""
    try:
        values = json.loads(column or "{}")
    except (ValueError, RecursionError):
        return []
    pairs = values.items() if isinstance(values, dict) else ()
    return [(k, float(v)) for k, v in pairs if isinstance(v, int | float)][:MOST_PARTS]
