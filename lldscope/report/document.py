"""The post-mortem of a run, and of two arms, as documents: what is said and in which order."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.palette import VERDICTS
from . import loss_sections, sections
from .arms import sections as arm_sections
from .blocks import Block, Document, Facts, Heading, Items
from .sentences import date


def document(facts: Facts) -> Document:
    """The report of these facts: of a run (`post_mortem`), or of two arms (`compare_arms`)."""
    if "arms" in facts:
        return arm_sections.document(facts)
    run = facts["run"]
    verdict = VERDICTS[facts["state"]["verdict"]]
    title = f"Post-mortem of {run['name']}"
    return Document(title, [(verdict, run["place"])], _blocks(facts), _footer(facts))


def _blocks(facts: Facts) -> Iterator[Block]:
    yield Heading("What happened")
    yield Items(facts["summary"], ordered=True)
    if facts["kind"] != "empty":
        yield from sections.timeline(facts)
        yield from sections.signals(facts)
        yield from sections.alarms(facts)
        yield from sections.links(facts)
        yield from loss_sections.losses(facts)
        yield from loss_sections.examples(facts)
        yield from sections.look_alikes(facts)
        yield from sections.advice(facts)
    yield Heading("What this log cannot tell")
    yield Items(facts["limits"])


def _footer(facts: Facts) -> str:
    run, state = facts["run"], facts["state"]
    evidence = {"delta": "Δ measured", "level": "likelihood levels only",
                "symptoms": "reward, entropy and gradients only"}[state["evidence"]]  # fmt: skip
    told = [f"lldscope {facts['lldscope']}, made {date(facts['made'])}", f"evidence: {evidence}",
            f"decay alarm at one false alarm in {state['arl']:,.0f} steps at most",
            f"run {run['id']}"]  # fmt: skip
    if run["trainer"]:
        told.append(f"recorded by {run['trainer']}")
    if run["correct_rule"]:
        told.append(f"correct: {run['correct_rule']}")
    return " · ".join(told)
