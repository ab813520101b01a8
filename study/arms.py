"""What the study runs: every arm, seed, warm start and split, declared before a run is made.

The setting all arms share is `base.yaml`. A run is an arm and a seed; its name is `ARM-SEED`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from lldscope_trainer.config import load_config

from lldscope.core.errors import UsageError

ROOT = Path(__file__).parents[1]
BASE_FILE = Path(__file__).with_name("base.yaml")
BASE: dict[str, Any] = yaml.safe_load(BASE_FILE.read_text("utf-8"))
STUDY = ROOT / "runs" / "study"
BANK = ROOT / "sample_runs" / "bank"
ALARM_BANK = ROOT / "sample_runs" / "alarm_bank"
"""The runs on which alarms are judged by held-out exact match (`label.py`)."""
CURE_BANK = ROOT / "sample_runs" / "cure_bank"
"""The runs in which what the guard does about a cause is compared with LLDS from the start."""
SEED_BANK = ROOT / "sample_runs" / "seed_bank"
"""The runs of recipes that hold or degrade by seed: what is early is counted within their arms."""

WARM_STARTS = ("tiny", "warm-1", "warm-2")
"""The shipped policy, and two made like it from other seeds (the number in the name)."""
POLICIES = Path(__file__).with_name("policies")

FIRST = 10  # seeds under it were seen while the demo was made
TEN, FIVE, FOUR, THREE, TWO = (tuple(range(FIRST, FIRST + n)) for n in (10, 5, 4, 3, 2))
PILOT = 100  # seeds from here on were used to find the setting and count for nothing

LLDS: dict[str, Any] = {"llds": "action", "llds_coefficient": 0.2}
GSPO: dict[str, Any] = {
    "objective": "gspo",
    "aggregation": "sequence-mean",
    "clip_low": 0.2,
    "clip_high": 0.2,
}

Kind = Literal["main", "fault", "control", "variant", "sweep", "lever", "seed", "alarm", "cure"]
Split = Literal["development", "test", "pilot"]


@dataclass(frozen=True)
class Arm:
    """Runs that differ in seed and warm start only."""

    name: str
    kind: Kind
    words: str
    seeds: tuple[int, ...]
    settings: dict[str, Any] = field(default_factory=dict, hash=False)
    fault: str | None = None  # what `study.faults` breaks in it
    warm_starts: tuple[str, ...] = WARM_STARTS


@dataclass(frozen=True)
class Planned:
    """One run of the study."""

    arm: Arm
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm.name}-{self.seed}"

    @property
    def folder(self) -> Path:
        return STUDY / self.name

    @property
    def bank(self) -> Path:
        return {"alarm": ALARM_BANK, "cure": CURE_BANK, "seed": SEED_BANK}.get(self.arm.kind, BANK)

    @property
    def warm_start(self) -> str:
        starts = self.arm.warm_starts
        return starts[self.seed % len(starts)]

    @property
    def split(self) -> Split:
        return split(self.seed)

    def overrides(self) -> list[str]:
        """What `lldscope train` is told on top of `base.yaml`."""
        model = self.warm_start
        if model != "tiny":
            model = _relative(POLICIES / model)
        values = {**self.arm.settings, "name": self.name, "seed": self.seed, "model": model}
        return [f"{key}={value}" for key, value in values.items()]

    def resolved(self) -> dict[str, Any]:
        """Every setting of the run, defaults included; raises UsageError for one that the trainer
        does not have."""
        return load_config(str(BASE_FILE), self.overrides()).to_dict()


def _relative(path: Path) -> str:
    return os.path.relpath(path, ROOT)


def split(seed: int) -> Split:
    """Detectors are tuned on runs with even seeds and judged on those with odd ones."""
    if seed >= PILOT:
        return "pilot"
    return "test" if seed % 2 else "development"


def model_file(warm_start: str) -> Path:
    """The weights of a warm start."""
    shipped = ROOT / "trainer" / "warm_start"
    folder = shipped if warm_start == "tiny" else POLICIES / warm_start
    return folder / "model.safetensors"


# -- the arms -------------------------------------------------------------------------------------

_SWEEP = {f"lambda-{value}": value for value in (0.05, 0.1, 0.5)}

_LEVERS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "top-p-1": ("GRPO, sampling from the full distribution", TWO, {"top_p": 1.0}),
    "one-update": ("GRPO, one update per batch", TWO, {"updates": 1}),
    "sequence-mean": ("GRPO, responses weigh alike", TWO, {"aggregation": "sequence-mean"}),
    "no-std": ("GRPO, advantages not divided by the deviation", TWO, {"advantage_std": False}),
    "half-batch": ("GRPO, 8 questions per step", TWO, {"prompts": 8}),
    "warm-up": ("GRPO, full rate from the first step", TWO, {"warmup_steps": 0}),
}
"""What might drive the decline, one thing changed at a time."""

FAULTS: dict[str, str] = {
    "retriever-dies": "every search fails",
    "tool-unmasked": "the policy is trained on tool text",
    "truncation": "a length limit far too small",
    "lr-jump": "the learning rate jumps",
    "overflow": "some updates are NaN or infinite",
    "wrong-group": "questions share a group id in pairs",
    "stale-engine": "the rollout engine gets no new weights",
    "lagging-engine": "the rollout engine gets new weights after every tenth step",
}
"""Fault → what breaks, in words; an arm `fault-FAULT` each. `python -m study.faults FAULT`
takes the arguments of `lldscope train`, and exits with 0 if the run is on record, however it
went."""

CAUSE: dict[str, str] = {
    "retriever-dies": "tool-outage",
    "tool-unmasked": "mask-lint",
    "truncation": "truncation",
    "lr-jump": "lr-jump",
    "overflow": "nonfinite",
    "wrong-group": "group-collision",
    "stale-engine": "engine-mismatch",
}
"""Fault → the look-alike that has to be named."""

ARMS: tuple[Arm, ...] = (
    Arm("grpo", "main", "GRPO", TEN),
    Arm("grpo-llds-action", "main", "GRPO + LLDS, action gate, λ 0.2", TEN, LLDS),
    Arm(
        "nll",
        "control",
        "GRPO + likelihood of the same tokens, weight 0.2, no gate",
        FIVE,
        LLDS | {"llds": "ungated"},
    ),
    Arm("half-lr", "control", "GRPO at half the learning rate", FIVE, {"lr": BASE["lr"] / 2}),
    Arm(
        "positive-only",
        "control",
        "GRPO without negative advantages",
        FIVE,
        {"positive_only": True},
    ),
    Arm("grpo-kl", "variant", "GRPO + KL 0.04", FIVE, {"kl_coefficient": 0.04}),
    Arm("llds-token", "variant", "LLDS, token gate", FIVE, LLDS | {"llds": "token"}),
    Arm("llds-response", "variant", "LLDS, response gate", FIVE, LLDS | {"llds": "response"}),
    Arm("llds-ma", "variant", "LLDS, answers masked", FIVE, LLDS | {"llds_answer_weight": 0.0}),
    Arm("gspo", "variant", "GSPO", FIVE, GSPO),
    Arm("gspo-llds", "variant", "GSPO + LLDS", FIVE, GSPO | LLDS),
    *(
        Arm(name, "sweep", f"LLDS, λ {value}", THREE, LLDS | {"llds_coefficient": value})
        for name, value in _SWEEP.items()
    ),
    *(Arm(f"lever-{name}", "lever", *options) for name, options in _LEVERS.items()),
    *(
        Arm(f"fault-{f}", "fault", f"GRPO, {words}", FOUR, {"steps": 90, "prompts": 8}, fault=f)
        for f, words in FAULTS.items()
        if f in CAUSE
    ),
)
"""GSPO's clip is 0.2 as in the LLDS reference code, not the 3e-4 of its paper (arXiv 2507.18071):
what is compared is the reference's GSPO."""

LETTERS, LONG_LETTERS = STUDY / "letters", STUDY / "letters-long"
_JUDGED: dict[str, Any] = {
    "steps": 100, "eval_every": 10, "eval_questions": 512, "probes_every": 10, "tokens_every": 0,
}


def _letters(folder: Path, turn_tokens: int) -> dict[str, Any]:
    return {
        "data": _relative(folder / "train.jsonl"),
        "eval_data": _relative(folder / "eval.jsonl"),
        "corpus": _relative(folder / "corpus.jsonl"),
        "max_turns": 1,
        "turn_tokens": turn_tokens,
    }


def _judged(name: str, words: str, seeds: tuple[int, ...], **settings: Any) -> Arm:
    return Arm(f"judged-{name}", "alarm", words, seeds, _JUDGED | settings)


def _sorting(name: str, words: str, seeds: tuple[int, ...], **settings: Any) -> Arm:
    values = _letters(LETTERS, 64) | settings
    arm = _judged(f"letters-{name}", f"letters: {words}", seeds, **values)
    return replace(arm, warm_starts=("letters-1",))


def _large(name: str, words: str, seeds: tuple[int, ...], **settings: Any) -> Arm:
    arm = _sorting(f"large-{name}", f"3.2 million parameters: {words}", seeds, **settings)
    return replace(arm, warm_starts=("letters-large-1",))


def _long(name: str, words: str, seeds: tuple[int, ...], **settings: Any) -> Arm:
    values = _letters(LONG_LETTERS, 128) | settings
    arm = _large(f"long-{name}", f"8 to 12 letters: {words}", seeds, **values)
    return replace(arm, warm_starts=("letters-long-1",))


NEW = tuple(range(20, 30))
"""Seeds of the alarm bank. Nobody had seen a run of theirs when the rules were fixed."""

ALARM_ARMS: tuple[Arm, ...] = (
    _judged("grpo", "countries: GRPO", NEW),
    _judged("half-lr", "countries: GRPO at half the learning rate", NEW, lr=BASE["lr"] / 2),
    _judged("llds", "countries: GRPO + LLDS, action gate", NEW, **LLDS),
    _judged("gspo", "countries: GSPO", NEW[:5], **GSPO),
    _judged("top-p-1", "countries: GRPO, sampling from the full distribution", NEW, top_p=1.0),
    _judged(
        "half-lr-top-p-1",
        "countries: the same at half the learning rate",
        NEW,
        top_p=1.0,
        lr=BASE["lr"] / 2,
    ),
    _judged(
        "half-lr-llds",
        "countries: GRPO + LLDS at half the learning rate",
        NEW,
        lr=BASE["lr"] / 2,
        **LLDS,
    ),
    _sorting("grpo", "GRPO", NEW),
    _sorting("half-lr", "GRPO at half the learning rate", NEW, lr=BASE["lr"] / 2),
    _sorting("llds", "GRPO + LLDS, action gate", NEW[:5], **LLDS),
    _sorting("quarter-lr", "GRPO at a quarter of the learning rate", NEW, lr=BASE["lr"] / 4),
    _sorting("eighth-lr", "GRPO at an eighth of the learning rate", NEW, lr=BASE["lr"] / 8),
    _sorting(
        "eighth-lr-llds",
        "GRPO + LLDS at an eighth of the learning rate",
        NEW,
        lr=BASE["lr"] / 8,
        **LLDS,
    ),
    _sorting(
        "eighth-lr-top-p-1",
        "GRPO at an eighth of the learning rate, sampling from the full distribution",
        NEW,
        top_p=1.0,
        lr=BASE["lr"] / 8,
    ),
    _large("quarter-lr", "GRPO at a quarter of the learning rate", NEW[:5], lr=BASE["lr"] / 4),
    _large("eighth-lr", "GRPO at an eighth of the learning rate", NEW[:5], lr=BASE["lr"] / 8),
    _long("quarter-lr", "GRPO at a quarter of the learning rate", NEW[:2], lr=BASE["lr"] / 4),
    _long("eighth-lr", "GRPO at an eighth of the learning rate", NEW[:2], lr=BASE["lr"] / 8),
)
"""Judged by greedy exact match on 512 fixed questions every ten steps."""

_CURED: dict[str, Any] = {
    "steps": 60, "prompts": 8, "eval_every": 0, "eval_questions": 512, "tokens_every": 0,
}
TREATMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("nothing done", {}),
    "llds": ("LLDS from the start", LLDS),
    "guard": (
        "the guard's cure",
        {"guard": "cure", "guard_on": "step-size,lr-jump,engine-mismatch,lld-decay,retention-loss"},
    ),
}
ILLS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "high-lr": ("twice the learning rate", {"lr": 2 * BASE["lr"]}, None),
    "lagging": ("engine ten steps behind", {}, "lagging-engine"),
}

CURE_ARMS: tuple[Arm, ...] = tuple(
    Arm(f"cure-{ill}-{name}", "cure", f"{words}, {done}", tuple(range(30, 35)),
        _CURED | settings | extra, fault)
    for ill, (words, settings, fault) in ILLS.items()
    for name, (done, extra) in TREATMENTS.items()
)
"""Compared by greedy exact match on 512 fixed questions after the last step."""

SEEDS = tuple(range(40, 56))
"""Of the seed bank; each run is warm-started from the same policy as the other runs of its arm."""
SNAPSHOTS = 4
"""Evaluations whose mean is one evaluation of a run of the seed bank."""
_BY_SEED: dict[str, Any] = _JUDGED | {"steps": 120, "eval_every": 5, "eval_questions": 192}


def _by_seed(family: str, words: str, lr: float, start: str, **settings: Any) -> Arm:
    name = f"seed-{family}-{1e6 * lr:.0f}"
    options = _BY_SEED | settings | {"lr": lr}
    return Arm(name, "seed", f"{words}, lr {lr:.3g}", SEEDS, options, warm_starts=(start,))


SEED_ARMS: tuple[Arm, ...] = (
    *(_by_seed("countries", "countries: GRPO", lr, "warm-1") for lr in (2.6e-4, 3.1e-4)),
    *(
        _by_seed("top-p-1", "countries, top-p 1: GRPO", lr, "warm-2", top_p=1.0)
        for lr in (3.3e-4, 3.9e-4)
    ),
    _by_seed("countries-llds", "countries: GRPO + LLDS, action gate", 3.5e-4, "warm-1", **LLDS),
    *(
        _by_seed("letters", "letters: GRPO", lr, "letters-1", **_letters(LETTERS, 64))
        for lr in (1.1e-4, 1.25e-4, 1.4e-4)
    ),
)
"""Three families: countries at top-p 0.9, the same at top-p 1, and letters, the family on which a
combined score is judged. The learning rates lie between those at which runs of the alarm bank held
and those at which they degraded.

Judged by greedy exact match on 192 fixed questions, every five steps; four evaluations in a row are
one. Runs with a degraded label end with the evaluation that makes it certain (`until_degraded.py`).
Two earlier plans were given up. With single evaluations 8 of 11 runs of 80 steps of 8 questions lay
between the outcomes, because exact match moves by a tenth from one step to the next. With
letters put in order without thoughts, answers of ten tokens, nothing runs away: seven of eight runs
of 240 steps settled between the outcomes, at a level that the learning rate sets, not the seed."""


def planned(only: Sequence[str] = ()) -> list[Planned]:
    """Every run of the study, or of the arms named, in the order in which they are made: the main
    arms first, and within a kind seed by seed. Raises UsageError for an arm that does not exist."""
    arms = (*ARMS, *ALARM_ARMS, *CURE_ARMS, *SEED_ARMS)
    names = [arm.name for arm in arms]
    for name in only:
        if name not in names:
            raise UsageError(f"There is no arm {name!r}: {', '.join(names)}")
    kinds = list(get_args(Kind))
    selection = [arm for arm in arms if not only or arm.name in only]
    runs = [Planned(arm, seed) for arm in selection for seed in arm.seeds]
    return sorted(runs, key=lambda r: (kinds.index(r.arm.kind), r.seed))
