"""Alarms and detectors on the runs that are labelled by held-out exact match (`label.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.candidates import share_cell, starts
from benchmarks.rivals import RIVALS
from lldscope.diagnosis.assess import DEFAULT_ARL
from lldscope.evaluation.bank import LabelledRun, read_bank
from lldscope.evaluation.ranking import ARM, HEAD, OWN, SIGNALS, STEP, Ranking, cells, rank
from lldscope.evaluation.scoring import ANY, EvaluatedRun, evaluate_run, score

from . import risk
from .arms import ALARM_ARMS, ALARM_BANK, SEED_ARMS, SEED_BANK, Arm
from .counts import evaluated
from .tables import table

DISPLACEMENT = ("lld-decay", "retention-loss")
EITHER = "either of these"
NAMES = (
    *DISPLACEMENT,
    EITHER,
    "entropy-surge",
    "reward-decline",
    "eval-gap",
    *ANY,
    "reward < 0.8 × its best",
)
BY_FAMILY = (
    "lld-decay", "entropy-surge", "eval-gap", "any without evaluations", "any critical",
    "reward < 0.8 × its best",
)
BEFORE = 20  # steps before a degradation
BLOCKS = (
    "judged-summary", "judged-outcomes", "judged-all", "judged-families", "seed-outcomes",
    "seed-detectors",
)
FAMILIES = {
    "large": "letters, a larger policy",
    "letters": "letters",
    "top-p-1": "countries, top-p 1",
    "": "countries, top-p 0.9",
}
SCORED = ("delta", "retention", "lld_share", "displaced_share", "step_kl", "logp")
"""Parts of the names of signals that need log-probabilities of single responses."""
EVALUATIONS = ("eval_score", "eval_n")
BOTH = (*SCORED, *EVALUATIONS)


@dataclass(frozen=True)
class PartialRun(LabelledRun):
    """A run of which some signals were not measured."""

    hidden: tuple[str, ...] = ()

    def signals(self) -> pd.DataFrame:
        frame = super().signals()
        return frame.assign(**{c: np.nan for c in frame if any(h in str(c) for h in self.hidden)})


def family(run: str) -> str:
    """What thresholds hang on: the task, and the distribution that is sampled from."""
    return next(words for part, words in FAMILIES.items() if part in run)


def judged(bank: Path = ALARM_BANK, seeds: Path = SEED_BANK) -> dict[str, str]:
    """Block → its Markdown: all in a few sentences; what became of the runs, and what each alarm
    did in all of them and family by family; and the bank whose recipes hold or degrade by seed,
    with single signals as detectors."""
    runs = _runs(bank)
    if not runs:
        return dict.fromkeys(BLOCKS, "No runs yet.")
    rankings = rank(runs)
    by_seed = _runs(seeds)
    not_degraded = rank([_grey_as_held(run) for run in by_seed], risk.score)
    texts = by_alarm(bank) | {
        "judged-summary": _summary(_evaluated(bank), rankings, by_seed, not_degraded),
        "seed-outcomes": f"{_progress(by_seed, SEED_ARMS)}\n\n{_outcomes(by_seed, SEED_ARMS)}",
        "seed-detectors": _detectors(not_degraded),
    }
    return {name: texts[name] for name in BLOCKS}


def by_alarm(bank: Path = ALARM_BANK) -> dict[str, str]:
    """The blocks that hang on the rules and on nothing else."""
    runs, evaluations = _runs(bank), _evaluated(bank)
    families = {
        name: [j for j in evaluations if family(j.run.name) == name]
        for name in reversed(FAMILIES.values())
    }
    return {
        "judged-outcomes": f"{_progress(runs, ALARM_ARMS)}\n\n{_outcomes(runs, ALARM_ARMS)}",
        "judged-all": _table(evaluations),
        "judged-families": _families(families),
    }


def _evaluated(bank: Path) -> list[EvaluatedRun]:
    return [_with_rivals(result) for result in evaluated(bank)]


def _runs(bank: Path) -> list[LabelledRun]:
    return read_bank(bank) if (bank / "index.jsonl").is_file() else []


def _grey_as_held(run: LabelledRun) -> LabelledRun:
    return replace(run, outcome="held") if run.outcome == "grey" else run


def _progress(runs: list[LabelledRun], arms: tuple[Arm, ...]) -> str:
    plan = sum(len(arm.seeds) for arm in arms)
    return f"{len(runs)} of {plan} planned runs are made (`python -m study run`)."


def _counts(runs: Iterable[LabelledRun]) -> str:
    count = Counter(run.label for run in runs)
    return (
        f"{count['degraded']} degraded, {count['held']} held, {count['grey']} are between the two"
    )


def _summary(
    runs: list[EvaluatedRun], rankings: list[Ranking], by_seed: list[LabelledRun],
    not_degraded: list[Ranking],
) -> str:
    critical, decay = score(runs, ("any critical", "lld-decay"))
    displaced, others = _displaced(runs)
    auroc = {r.detector: f"{r.pooled:.2f}" for r in rankings}
    within = "no recipe has runs of both kinds yet"
    single = [r for r in not_degraded if r.detector in SIGNALS and r.auroc_interval]
    if single:
        best = max(single, key=lambda r: r.auroc or 0.0)
        low, high = best.auroc_interval or (0.0, 1.0)
        within = (
            f"within its recipes the best single signal, {best.detector}, has an AUROC of "
            f"{best.auroc:.2f} ({low:.2f}–{high:.2f}): none tells them apart beyond chance"
            if low <= 0.5 else
            f"within its recipes the best single signal is {best.detector}: {best.auroc:.2f} "
            f"({low:.2f}–{high:.2f})"
        )
    return (
        f"{len(runs)} runs that this project's trainer made, of policies of 0.4 to 3.2 million "
        f"parameters, judged by their held-out exact match: {_counts(j.run for j in runs)}.\n\n"
        f"- Without Δ, from what any trainer logs: {_warned(runs, BOTH)}.\n"
        f"- With Δ: {_warned(runs, EVALUATIONS)}.\n"
        f"- With held-out evaluations too: {_warned(runs)}; `eval-gap` makes the difference, and "
        "it reads the score that defines a degradation.\n"
        f"- A critical alarm came before {share_cell(critical['warned'])}, and in "
        f"{_share(critical)} that held.\n"
        "- `lld-decay` came where correct responses lost likelihood before the degradation, in "
        f"{displaced}; in {others} where they did not; and in {_share(decay)} runs that held.\n"
        "- Controls (AUROC): a detector that sees only the number of the step "
        f"{auroc[STEP]}, one that sees only the configuration {auroc[ARM]}: here nearly every "
        "recipe has one outcome, so these counts do not show that an alarm foresees what a seed "
        f"decides. A second bank asks that, {len(by_seed)} of "
        f"{sum(len(arm.seeds) for arm in SEED_ARMS)} planned runs: {within}."
    )


def _warned(runs: list[EvaluatedRun], hidden: tuple[str, ...] = ()) -> str:
    """In how many degradations a warning came before, where some signals are not measured."""
    partial = [
        evaluate_run(PartialRun(**vars(j.run), hidden=hidden), DEFAULT_ARL) if hidden else j
        for j in runs
    ]
    counts = score(partial, ["any alarm"])[0]
    ahead = counts["lead_median"]
    when = "" if ahead is None else f", {ahead:g} steps ahead in the median"
    return (
        f"a warning before {share_cell(counts['warned'])} of the degradations{when}, and in "
        f"{_share(counts)} that held"
    )


def _detectors(rankings: list[Ranking]) -> str:
    if not rankings:
        return "No runs of both kinds yet."
    first = rankings[0]
    arms = f"In arms with runs of both kinds: {first.hits[1]} degraded, {first.false[1]} held."
    names = {OWN: "frozen combination"}
    rows = [cells(replace(r, detector=names.get(r.detector, r.detector))) for r in rankings]
    return f"{arms}\n\n{table(HEAD, rows)}"


def _share(counts: dict[str, Any]) -> str:
    return "{} of {}".format(*counts["fired"]["held"])


def _with_rivals(j: EvaluatedRun) -> EvaluatedRun:
    signals = j.run.signals()
    step = signals["step"].to_numpy()
    steps = {name: starts(fires(signals, DEFAULT_ARL), step) for name, fires in RIVALS.items()}
    steps[EITHER] = sorted(s for name in DISPLACEMENT for s in j.fired.get(name, ()))
    return replace(j, fired={**j.fired, **steps})


def _outcomes(runs: list[LabelledRun], arms: tuple[Arm, ...]) -> str:
    """Arm by arm, how many runs degraded, held, or are between the two; the mean Δ of their correct
    responses as they degraded; and the mean exact match: the best of each run, and the last."""
    rows = []
    for arm in arms:
        mine = [run for run in runs if run.arm == arm.name]
        if mine:
            ends = [run.end_step for run in mine if run.end_step is not None]
            fall = [_delta_before(run, run.end_step) for run in mine if run.end_step is not None]
            count = Counter(run.outcome for run in mine)
            row = [str(count[name]) for name in ("held", "grey", "degraded")]
            best = mean(max(run.evaluations.values()) for run in mine)
            last = mean(run.evaluations[max(run.evaluations)] for run in mine)
            rows.append(
                (
                    arm.words, str(len(mine)), *row, f"{median(ends):g}" if ends else "–",
                    f"{mean(fall):+.2f}".replace("-", "−") if fall else "–",
                    f"{best:.2f}", f"{last:.2f}",
                )
            )
    head = (
        "arm", "runs", "held", "grey", "degraded", "median step of degradation",
        f"Δ of correct responses in the {BEFORE} steps before, nats",
        "exact match: best", "at the end",
    )
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


def _families(families: dict[str, list[EvaluatedRun]]) -> str:
    """Family by family, before how many degradations each alarm came, and in how many runs that
    held."""
    rows = []
    for name, runs in families.items():
        count = Counter(j.label for j in runs)
        kinds = [str(count[label]) for label in ("held", "grey", "degraded")]
        cells = [f"{t['warned'][0]} / {t['fired']['held'][0]}" for t in score(runs, BY_FAMILY)]
        rows.append([name, *kinds, *cells])
    return table(("warned of / false", "held", "grey", "degraded", *BY_FAMILY), rows)


def _table(runs: list[EvaluatedRun]) -> str:
    scores = score(runs, NAMES)
    rows = [_cells(name, t) for name, t in zip(NAMES, scores, strict=True)]
    step = scores[0]["same_step"]
    head = (
        "alarm", "degradations warned of (95 %)",
        "steps of lead, median (range), share of the way",
        "fired on runs that held", f"of these by step {'–' if step is None else step}",
        "per 1,000 steps of runs that held",
    )
    return table(head, rows)


def _cells(name: str, counts: dict[str, Any]) -> tuple[str, ...]:
    healthy = counts["fired"].get("held", [0, 0])[1]
    reach = counts["lead_range"]
    lead = "–"
    if reach:
        share = counts["lead_median"] / counts["same_step"]
        lead = f"{counts['lead_median']:g} ({reach[0]}–{reach[1]}), {share:.0%}"
    return (
        name if name in (EITHER, *ANY, *RIVALS) else f"`{name}`",
        share_cell(counts["warned"]),
        lead.replace("%", " %"),
        _share(counts) if healthy else "–",
        "{} of {}".format(*counts["false_by_same_step"]) if healthy else "–",
        f"{counts['false_alarms_per_1000_healthy_steps']:.2f}" if healthy else "–",
    )
