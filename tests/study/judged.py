"""The alarms on the alarm bank: runs labelled by held-out exact match (`label.py`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from lldscope.diagnosis.assess import DEFAULT_ARL
from lldscope.evaluation.bank import LabelledRun, read_bank
from lldscope.evaluation.scoring import ANY, EvaluatedRun, evaluate_run, score
from tests.bench.candidates import share_cell, starts
from tests.bench.rivals import RIVALS

from .arms import ALARM_ARMS, ALARM_BANK
from .tables import table

DISPLACEMENT = ("lld-decay", "retention-loss")
EITHER = "either of these"
NAMES = (
    *DISPLACEMENT,
    EITHER,
    "entropy-surge",
    "entropy-floor",
    "reward-decline",
    "eval-gap",
    *ANY,
    *RIVALS,
)
BEFORE = 20  # steps before a degradation
BLOCKS = ("judged-summary", "judged-outcomes", "judged-all", "judged-families")
FAMILIES = {
    "large": "letters, a larger policy",
    "letters": "letters",
    "top-p-1": "countries, top-p 1",
    "": "countries, top-p 0.9",
}


def family(run: str) -> str:
    """What thresholds hang on: the task, and the distribution that is sampled from."""
    return next(words for part, words in FAMILIES.items() if part in run)


def judged(bank: Path = ALARM_BANK) -> dict[str, str]:
    """Block → its Markdown: all in a few sentences, what became of the runs, and what each alarm
    did in all of them and family by family."""
    runs = read_bank(bank) if (bank / "index.jsonl").is_file() else []
    if not runs:
        return dict.fromkeys(BLOCKS, "No runs yet.")
    evaluated = [_with_rivals(evaluate_run(run, DEFAULT_ARL)) for run in runs]
    plan = sum(len(arm.seeds) for arm in ALARM_ARMS)
    made = f"{len(runs)} of {plan} planned runs are made (`python -m tests.study run`)."
    families = {
        name: [j for j in evaluated if family(j.run.name) == name]
        for name in reversed(FAMILIES.values())
    }
    tables = [
        _table(name, own)
        for name, own in families.items()
        if any(j.label == "degraded" for j in own)
    ]
    texts = (
        _summary(evaluated),
        f"{made}\n\n{_outcomes(evaluated)}",
        _table("all runs", evaluated),
        "\n\n".join(tables),
    )
    return dict(zip(BLOCKS, texts, strict=True))


def _summary(runs: list[EvaluatedRun]) -> str:
    alarm, critical, decay = (s.to_dict() for s in score(runs, (*ANY, "lld-decay")))
    displaced, others = _displaced(runs)
    count = Counter(j.label for j in runs)
    return (
        f"{len(runs)} runs of policies of 0.4 to 3.2 million parameters, by their held-out exact "
        f"match: {count['degraded']} degraded, {count['held']} held, {count['grey']} are between "
        "the two.\n\n"
        f"- A warning came before {share_cell(alarm['warned'])} of those that degraded, "
        f"{alarm['lead_median']:g} steps ahead in the median, and in {_held(alarm)} that held.\n"
        f"- A critical alarm came before {share_cell(critical['warned'])}, and in "
        f"{_held(critical)} that held.\n"
        "- `lld-decay` came where correct responses lost likelihood before the degradation, in "
        f"{displaced}; in {others} where they did not; and in {_held(decay)} runs that held."
    )


def _held(told: dict[str, Any]) -> str:
    return "{} of {}".format(*told["fired"]["held"])


def _with_rivals(j: EvaluatedRun) -> EvaluatedRun:
    signals = j.run.signals()
    step = signals["step"].to_numpy()
    fired = {name: starts(fires(signals, DEFAULT_ARL), step) for name, fires in RIVALS.items()}
    fired[EITHER] = sorted(s for name in DISPLACEMENT for s in j.fired.get(name, ()))
    return replace(j, fired={**j.fired, **fired})


def _outcomes(runs: list[EvaluatedRun]) -> str:
    """Arm by arm, how many runs degraded, held, or are between the two; the mean Δ of their correct
    responses as they degraded; and the mean exact match: the best of each run, and the last."""
    rows = []
    for arm in ALARM_ARMS:
        own = [j.run for j in runs if j.run.name.rsplit("-", 1)[0] == arm.name]
        if own:
            ends = [run.end_step for run in own if run.end_step is not None]
            fall = [_delta_before(run, run.end_step) for run in own if run.end_step is not None]
            count = Counter(run.outcome for run in own)
            row = [str(count[name]) for name in ("held", "grey", "degraded")]
            best = mean(max(run.evaluations.values()) for run in own)
            last = mean(run.evaluations[max(run.evaluations)] for run in own)
            rows.append(
                (
                    arm.words, str(len(own)), *row, f"{median(ends):g}" if ends else "–",
                    f"{mean(fall):+.2f}".replace("-", "−") if fall else "–",
                    f"{best:.2f}", f"{last:.2f}",
                )
            )  # fmt: skip
    head = (
        "arm", "runs", "held", "grey", "degraded", "median step of degradation",
        f"Δ of correct responses in the {BEFORE} steps before, nats",
        "exact match: best", "at the end",
    )  # fmt: skip
    return table(head, rows)


def _displaced(runs: list[EvaluatedRun]) -> list[str]:
    """Of how many degradations with a negative Δ of correct responses before them, and of how many
    others, `lld-decay` warned."""
    warned: dict[bool, list[bool]] = {True: [], False: []}
    for j in runs:
        if (end := j.run.end_step) is not None:
            before = any(step < end for step in j.fired.get("lld-decay", ()))
            warned[_delta_before(j.run, end) < 0].append(before)
    return [f"{sum(warned[kind])} of {len(warned[kind])}" for kind in (True, False)]


def _delta_before(run: LabelledRun, end: int) -> float:
    signals = run.signals()
    last = signals["delta_correct"][signals["step"].between(end - BEFORE, end - 1)]
    return float(last.mean())


def _table(title: str, runs: list[EvaluatedRun]) -> str:
    told = [s.to_dict() for s in score(runs, NAMES)]
    count = Counter(j.label for j in runs)
    rows = [_cells(name, t) for name, t in zip(NAMES, told, strict=True)]
    step = told[0]["same_step"]
    head = (
        "alarm", "degradations warned of (95 %)",
        "steps of lead, median (range), share of the way",
        "fired on runs that held", f"of these by step {'–' if step is None else step}",
        "per 1,000 steps of runs that held",
    )  # fmt: skip
    kinds = ", ".join(f"{count[name]} {name}" for name in ("held", "grey", "degraded"))
    return f"**{title[0].upper()}{title[1:]}**: {kinds}.\n\n{table(head, rows)}"


def _cells(name: str, told: dict[str, Any]) -> tuple[str, ...]:
    healthy = told["fired"].get("held", [0, 0])[1]
    reach = told["lead_range"]
    lead = "–"
    if reach:
        share = told["lead_median"] / told["same_step"]
        lead = f"{told['lead_median']:g} ({reach[0]}–{reach[1]}), {share:.0%}"
    return (
        name if name in (EITHER, *ANY, *RIVALS) else f"`{name}`",
        share_cell(told["warned"]),
        lead.replace("%", " %"),
        _held(told) if healthy else "–",
        "{} of {}".format(*told["false_by_same_step"]) if healthy else "–",
        f"{told['false_alarms_per_1000_healthy_steps']:.2f}" if healthy else "–",
    )
