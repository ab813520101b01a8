"""Trainers as their users know them: how one records Δ, and what it calls its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..explore.settings import flat
from .events import Event

OUTCOME = ("reward-crash", "reward-decline", "eval-loss")


@dataclass(frozen=True)
class Trainer:
    """`record`: the lines that make it record what all checks need; empty where it does already.
    `settings`: what it calls them."""

    record: tuple[str, ...]
    settings: Mapping[str, str]


OWN = Trainer((), {
    "learning rate": "lr", "clipping": "clip_high", "KL": "kl_coefficient",
    "length limit": "sequence_tokens", "updates": "updates", "LLDS": "llds", "top-p": "top_p",
})
LOOP = Trainer((
    'recorder = lldscope.Recorder("runs/mine")',
    "recorder.step(step=…, …)  # docs/integrations.md",
), {})
TRL = Trainer((
    "from lldscope.integrations.trl import instrument",
    'instrument(trainer, "runs/mine")',
), {
    "learning rate": "GRPOConfig.learning_rate", "clipping": "GRPOConfig.epsilon_high",
    "KL": "GRPOConfig.beta", "length limit": "GRPOConfig.max_completion_length",
    "updates": "GRPOConfig.num_iterations", "top-p": "GRPOConfig.top_p",
})
VERL = Trainer((
    "trainer.v1.trainer_mode=lldscope_sync",
    "trainer.lldscope.path=runs/mine",
), {
    "learning rate": "actor_rollout_ref.actor.optim.lr",
    "clipping": "actor_rollout_ref.actor.clip_ratio_high",
    "KL": "actor_rollout_ref.actor.kl_loss_coef", "length limit": "data.max_response_length",
    "updates": "actor_rollout_ref.actor.ppo_epochs", "top-p": "actor_rollout_ref.rollout.top_p",
})
_BY_FORMAT = {
    "trl-console": TRL, "trl-completions": TRL, "metric-document": TRL, "notebook": TRL,
    "verl-console": VERL, "verl-rollouts": VERL,
}
_BY_NAME = {"lldscope_trainer": OWN, "trl": TRL, "verl": VERL}

# Rule → the setting that is the first to change, and how.
_FIRST = {
    **dict.fromkeys(
        ("lld-decay", "lld-collapse", "grad-explosion", "grad-sustained", "entropy-surge",
         "clip-share", "lr-jump"), ("learning rate", "halve it"),
    ),
    "entropy-floor": ("clipping", "raise it"),
    "kl-explosion": ("KL", "raise it"),
    "kl-drift": ("KL", "raise it"),
    "truncation": ("length limit", "raise it, if responses are right when they are longer"),
    "step-size": ("updates", "make fewer per batch"),
}


@dataclass(frozen=True)
class Change:
    """A setting by the trainer's own name, its value in this run (None: not recorded), and how to
    change it."""

    setting: str
    value: str | None
    change: str

    def __str__(self) -> str:
        here = "" if self.value is None else f", {self.value} in this run"
        return f"{self.setting}{here}: {self.change}"


def trainer_of(info: Mapping[str, Any]) -> Trainer:
    """The trainer that made a run, or the log it was imported from, by its run.json."""
    imported = info.get("imported")
    if imported:
        sources = imported.get("request", {}).get("sources", [])
        formats = [source.get("format") for source in sources]
        return next((_BY_FORMAT[f] for f in formats if f in _BY_FORMAT), LOOP)
    name, _, _ = str(info.get("trainer") or "").partition(" ")
    trainer = _BY_NAME.get(name, LOOP)
    return Trainer((), trainer.settings)  # a recorded run has what its trainer can record


def first_change(
    trainer: Trainer, config: Mapping[str, Any] | None, rule: str | None, events: Sequence[Event]
) -> Change | None:
    """The one setting to change, if the cause is one that a setting cures. `rule` is that of the
    headline; of a lost outcome, what began before it is the cause."""
    rules = [rule]
    if rule in OUTCOME:
        end = min((e.start for e in events if e.rule in OUTCOME), default=0)
        rules = [e.rule for e in events if e.start < end]
    kinds = [_FIRST[name] for name in rules if name in _FIRST]
    if not kinds:
        return None
    kind, change = kinds[0]
    name, value = find_setting(config, kind)
    name = name or trainer.settings.get(kind)
    return Change(name, value, change) if name else None


def find_setting(
    config: Mapping[str, Any] | None, kind: str
) -> tuple[str | None, str | None]:
    """The setting of this kind that a configuration holds, under the name of any known trainer, and
    its value; None and None without."""
    tails = {t.settings[kind].rsplit(".", 1)[-1] for t in (OWN, TRL, VERL) if kind in t.settings}
    pairs = flat(config).items()
    return next(((n, v) for n, v in pairs if n.rsplit(".", 1)[-1] in tails), (None, None))
