"""The comparison of two arms as a document: what is said and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...alarms.rule import Severity
from ...core import palette
from ...core.numbers import number, true_minus
from ..blocks import Block, Document, Facts, Heading, Items, Paragraph, Picture, Table
from ..sections import FINDINGS
from ..sentences import date, interval
from .sentences import fired, label, spread, values

MOST_SETTINGS = 60
MOST_STRETCHES = 12

Cell = str | palette.Sign


def document(facts: Facts) -> Document:
    a, b = facts["arms"]
    title = f"{a['name']} and {b['name']} compared"
    about = [
        (palette.VERDICTS[arm["runs"][0]["state"]["verdict"]],
         f"{label(arm)}: {arm['runs'][0]['run']['place']}")
        for arm in (a, b) if len(arm["runs"]) == 1
    ]  # fmt: skip
    return Document(title, about, _blocks(facts), _footer(facts))


def _blocks(facts: Facts) -> Iterator[Block]:
    yield Heading("What differs")
    yield Items(facts["summary"], ordered=True)
    for arm in facts["arms"]:
        yield from _arm(arm)
    if any(arm["carried"] for arm in facts["arms"]):
        yield Heading("Phases")
        yield Picture("timeline", facts)
        yield _phases(facts)
        yield Heading("Signals")
        yield Paragraph(_lines(facts))
        yield Picture("charts", facts)
        yield from _matched(facts)
        yield from _alarms(facts)
        yield from _links(facts)
        yield from _look_alikes(facts)
    yield from _settings(facts)
    yield Heading("What this comparison cannot tell")
    yield Items(facts["limits"])


def _arm(arm: Facts) -> Iterator[Block]:
    """What happened in an arm: in sentences for a run, in a table for several."""
    yield Heading(f"{arm['letter']}: {arm['name']}")
    if len(arm["runs"]) == 1:
        yield Items(arm["runs"][0]["summary"], ordered=True)
        return
    rows = [_run(run) for run in arm["runs"]]
    head = ["run", "verdict", "steps", "fall from", "decay alarm", "collapse", "best reward",
            "last reward", "ended"]  # fmt: skip
    yield Table(f"Runs of {label(arm)}", head, rows, frozenset(range(2, 8)))
    stretches = [f"{s['start_step']}–{s['end_step']}: {s['runs']}" for s in arm["carried"]]
    shown = "; ".join(stretches[:MOST_STRETCHES])
    more = (
        f"; and {len(stretches) - MOST_STRETCHES} more" if len(stretches) > MOST_STRETCHES else ""
    )
    yield Paragraph(f"Steps, and how many runs have rows there: {shown}{more}.")


def _run(run: Facts) -> list[Cell]:
    reward = run["outline"].get("reward")
    decay = next((a["step"] for a in run["alarms"] if a["rule"] == "lld-decay"), None)
    about = run["run"]
    steps = "–" if about["first_step"] is None else f"{about['first_step']}–{about['last_step']}"
    return [
        about["name"], palette.VERDICTS[run["state"]["verdict"]], steps, _step(run["fall"]),
        _step(decay), _step(run["collapse"]), number(reward and reward["highest"]),
        number(reward and reward["end"]), run["state"]["life"],
    ]  # fmt: skip


def _step(step: int | None) -> str:
    return "–" if step is None else str(step)


def _phases(facts: Facts) -> Table:
    rows = []
    for arm in facts["arms"]:
        for run in arm["runs"]:
            live = [f"{palette.PHASES[s['phase']].word} {s['start_step']}–{s['end_step']}"
                    for s in run["phases"]]  # fmt: skip
            began = [f"{palette.PHASES[b['phase']].word} from {b['step']}{interval(b)}"
                     for b in run["boundaries"]]  # fmt: skip
            rows.append([arm["letter"], run["run"]["name"], ", ".join(live) or "–",
                         ", ".join(began) or "–"])  # fmt: skip
    return Table("Phases", ["arm", "run", "as seen live, steps", "with hindsight"], rows)


def _lines(facts: Facts) -> str:
    """What the lines and bands of the charts are."""
    several = [arm for arm in facts["arms"] if len(arm["runs"]) > 1]
    told = "Solid is A, broken is B; trailing means over ten measured steps."
    if len(several) < 2:
        told += " Of a single run the raw values stand faintly behind, and its phases above."
    if several:
        told += (
            " Of several runs the line is the mean, step by step, over those that have the step, "
            "each counting once; the band goes from the lowest run to the highest. How many they "
            "are is said on hover and above."
        )
    return f"{told} Upright lines: the decay alarm of each run."


def _matched(facts: Facts) -> Iterator[Block]:
    matched = facts["matched"]
    if not matched["points"]:
        return
    yield Heading("At matched points")
    rows = []
    for of in matched["signals"]:
        name = f"{of['signal']}, {of['unit']}" if of["unit"] else of["signal"]
        for i, (point, sides) in enumerate(zip(matched["points"], of["values"], strict=True)):
            if sides != [None, None]:
                place = point if isinstance(point, str) else number(point, 12)
                rows.append([name if i == 0 else "", place, *map(spread, sides), _gap(sides)])
    at = {"step": "step", "tokens": "tokens", "onset": "steps since the fall began"}
    head = ["signal", at[matched["align"]] if matched["every"] else "at", "A", "B", "B − A"]
    caption = "Means over the last ten measured steps"
    if any(len(arm["runs"]) > 1 for arm in facts["arms"]):
        caption += "; of several runs their mean, and the lowest and highest in brackets"
    yield Table(caption, head, rows, frozenset({1, 2, 3, 4}))


def _gap(sides: Sequence[Any]) -> str:
    a, b = sides
    return "–" if a is None or b is None else true_minus(f"{b['mean'] - a['mean']:+.3g}")


def _alarms(facts: Facts) -> Iterator[Block]:
    yield Heading("Alarms")
    found: dict[str, Mapping[str, Any]] = {}
    for arm in facts["arms"]:
        for run in arm["runs"]:
            for alarm in run["alarms"]:
                found.setdefault(alarm["rule"], alarm)
    if not found:
        yield Paragraph("No alarm fired in either.")
        return
    rows: list[Sequence[Cell]] = [
        [palette.SEVERITIES[alarm["severity"]], rule, *(fired(arm, rule) for arm in facts["arms"])]
        for rule, alarm in sorted(
            found.items(), key=lambda pair: -Severity(pair[1]["severity"]).rank
        )
    ]
    yield Table("Of each rule the first alarm of a run", ["severity", "rule", "A", "B"], rows)


def _links(facts: Facts) -> Iterator[Block]:
    yield Heading("The spiral's links")
    names = [link["link"] for link in facts["arms"][0]["runs"][0]["links"]]
    rows = [[name, *(_onset(arm, name) for arm in facts["arms"])] for name in sorted(names)]
    yield Table("Where each link began, with hindsight", ["link", "A", "B"], rows)


def _onset(arm: Facts, name: str) -> str:
    links = [link for run in arm["runs"] for link in run["links"] if link["link"] == name]
    seen = [link for link in links if link["seen"] is not None]
    if not any(link["measured"] for link in links):
        return "not measured"
    if not seen:
        return "not seen"
    steps = [link["seen"] if link["onset"] is None else link["onset"] for link in seen]
    if len(links) == 1:
        return f"step {steps[0]}{interval(seen[0])}"
    return f"in {len(seen)} of {len(links)} runs, from step {min(steps)} to {max(steps)}"


def _look_alikes(facts: Facts) -> Iterator[Block]:
    yield Heading("LLD and what looks like it")
    names = dict.fromkeys(
        n for arm in facts["arms"] for run in arm["runs"] for n in run["look_alikes"]
    )
    rows: list[list[Cell]] = [
        [name, *(cell for arm in facts["arms"] for cell in _findings(arm, name))] for name in names
    ]
    head = ["cause", "A", "evidence in A", "B", "evidence in B"]
    yield Table("Causes that look the same on the reward curve", head, rows)


def _findings(arm: Facts, name: str) -> list[Cell]:
    """What the log of a run says of a cause, or how many of several say so; and the evidence."""
    found = [run["look_alikes"][name] for run in arm["runs"] if name in run["look_alikes"]]
    if not found:
        return ["–", "–"]
    if len(found) == 1:
        return [FINDINGS[found[0]["answer"]], true_minus(found[0]["evidence"])]
    told = [
        f"{sign.shape} {n} {sign.word}"
        for answer, sign in FINDINGS.items()
        if (n := sum(f["answer"] == answer for f in found))
    ]
    first = next((f for f in found if f["answer"] == "supported"), None)
    return [", ".join(told), true_minus(first["evidence"]) if first else "–"]


def _settings(facts: Facts) -> Iterator[Block]:
    yield Heading("Settings that differ")
    rows = [
        [row["setting"], values(row, 0), values(row, 1)]
        for row in facts["settings"][:MOST_SETTINGS]
    ]
    if not rows:
        told = any(run["run"]["config"] for arm in facts["arms"] for run in arm["runs"])
        yield Paragraph("None of those recorded." if told else "No settings are recorded.")
    yield Table("Recorded settings", ["setting", "A", "B"], rows)
    if len(facts["settings"]) > len(rows):
        yield Paragraph(f"And {len(facts['settings']) - len(rows)} more.")
    if facts["varying"]:
        same = ", ".join(facts["varying"][:MOST_SETTINGS])
        yield Paragraph(f"Within each arm differ, with the same values in both: {same}.")


def _footer(facts: Facts) -> str:
    told = [f"lldscope {facts['lldscope']}, made {date(facts['made'])}"]
    for arm in facts["arms"]:
        ids = [str(run["run"]["id"]) for run in arm["runs"]]
        told.append(f"{arm['letter']}: {', '.join(ids)}")
    return " · ".join(told)
