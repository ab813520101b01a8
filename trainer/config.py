"""Every setting of a training run: declared once, checked at the start, saved with the run."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from lldscope.errors import UsageError


def _setting(
    default: Any, meaning: str, limit: str = "", ok: Callable[[Any], bool] | None = None
) -> Any:
    """A field with its meaning, and the limit its value must keep to, in words and as a test."""
    return field(default=default, metadata={"meaning": meaning, "limit": limit, "ok": ok})


def _at_least(low: float) -> tuple[str, Callable[[Any], bool]]:
    return f"a number >= {low}", lambda v: low <= v < math.inf


def _above(low: float) -> tuple[str, Callable[[Any], bool]]:
    return f"a number > {low}", lambda v: low < v < math.inf


def _share(open_low: bool = False) -> tuple[str, Callable[[Any], bool]]:
    if open_low:
        return "a number above 0 and at most 1", lambda v: 0 < v <= 1
    return "a number from 0 to 1", lambda v: 0 <= v <= 1


def _one_of(*names: str) -> tuple[str, Callable[[Any], bool]]:
    return f"one of {', '.join(names)}", lambda v: v in names


@dataclass(frozen=True)
class TrainConfig:
    """The resolved settings of one run. Raises UsageError naming the key, its value and what is
    allowed."""

    name: str = _setting("tiny", "What people call the run.")
    seed: int = _setting(0, "Decides questions, sampling and minibatch order.", *_at_least(0))
    model: str = _setting("tiny", "A Hugging Face model directory, or tiny for the shipped policy.")
    device: str = _setting(
        "auto",
        "Where the policy lives; auto takes CUDA if there is one.",
        *_one_of("auto", "cpu", "cuda"),
    )
    dtype: str = _setting(
        "float32", "Number format of the weights.", *_one_of("float32", "bfloat16")
    )
    threads: int = _setting(1, "CPU threads; more than 1 slows a tiny policy down.", *_at_least(1))

    steps: int = _setting(100, "RL steps (rollout batches).", *_at_least(1))
    prompts: int = _setting(8, "Questions per step.", *_at_least(1))
    group_size: int = _setting(8, "Rollouts per question.", *_at_least(2))
    updates: int = _setting(
        8, "Minibatch updates per step; with one, LLDS can never act.", *_at_least(1)
    )
    buckets: int = _setting(
        2, "Length buckets per minibatch in the scoring forward.", *_at_least(1)
    )

    lr: float = _setting(2e-4, "AdamW's learning rate after warm-up.", *_above(0))
    warmup_steps: int = _setting(0, "Steps over which the rate rises linearly.", *_at_least(0))
    weight_decay: float = _setting(0.01, "AdamW's weight decay.", *_at_least(0))
    grad_clip: float = _setting(1.0, "Largest global gradient norm applied.", *_above(0))

    objective: str = _setting(
        "grpo", "Importance ratio per token or per sequence.", *_one_of("grpo", "gspo")
    )
    aggregation: str = _setting(
        "token-mean",
        "How token losses become one number.",
        *_one_of("token-mean", "sequence-mean", "dr-grpo"),
    )
    advantage_std: bool = _setting(True, "Divide advantages by the group's standard deviation.")
    clip_low: float = _setting(0.2, "The ratio is clipped below 1 − this.", *_share())
    clip_high: float = _setting(0.2, "The ratio is clipped above 1 + this.", *_at_least(0))
    dual_clip: float | None = _setting(None, "Bound c of dual clip; none is off.", *_above(1))
    kl_coefficient: float = _setting(
        0.0, "Weight of the k3 KL to the starting policy.", *_at_least(0)
    )

    llds: str = _setting(
        "off",
        "Gate of the LLDS term (arXiv 2512.04220 v2, Eq. 4, 9, 10).",
        *_one_of("off", "token", "response", "action"),
    )
    llds_coefficient: float = _setting(0.2, "λ of the LLDS term (Eq. 6).", *_at_least(0))
    llds_dead_band: float = _setting(
        0.0, "Drop in nats a gate ignores; 0 in the paper.", *_at_least(0)
    )
    llds_answer_weight: float = _setting(
        1.0, "β: weight of the LLDS penalty on answer tokens (Eq. 5); 1 is no masking.", *_share()
    )
    llds_adaptive: str = _setting(
        "off",
        "Take β from the step's mean number of valid searches instead, by the paper's rule or the "
        "reference code's.",
        *_one_of("off", "paper", "reference"),
    )
    llds_normalizer: str = _setting(
        "preserved", "Tokens the LLDS sum is divided by.", *_one_of("preserved", "all")
    )

    temperature: float = _setting(1.0, "Sampling temperature.", *_above(0))
    top_p: float = _setting(
        1.0,
        "Nucleus of the sampling; log-probabilities stay those of the full distribution.",
        *_share(open_low=True),
    )
    turn_tokens: int = _setting(40, "Most tokens in one turn.", *_at_least(1))
    observation_tokens: int = _setting(64, "Most tokens of one tool answer.", *_at_least(1))
    sequence_tokens: int = _setting(
        400, "Most tokens of a rollout, prompt included.", *_at_least(16)
    )
    max_turns: int = _setting(4, "Turns with a tool; one last generation follows.", *_at_least(1))
    instruction: str = _setting("", "Text before the question, for models that need telling.")

    two_hop: float = _setting(0.65, "Share of two-hop questions.", *_share())
    top_k: int = _setting(2, "Documents per search.", *_at_least(1))
    miss_rate: float = _setting(
        0.25, "Share of queries whose best document is withheld.", *_share()
    )

    rescore_share: float = _setting(
        0.25,
        "Share of the rollouts scored again after the step's last update; 0 measures no Δ.",
        *_share(),
    )
    tokens_every: int = _setting(
        5, "Steps between samples of texts and tokens; 0 is never.", *_at_least(0)
    )
    eval_every: int = _setting(
        50, "Steps between greedy evaluations; 0 is only start and end.", *_at_least(0)
    )
    eval_questions: int = _setting(
        128, "Held-out questions per evaluation; 0 is none.", *_at_least(0)
    )
    save_policy: bool = _setting(False, "Keep the trained policy in the run directory.")

    def __post_init__(self) -> None:
        kinds = typing.get_type_hints(type(self))
        for f in dataclasses.fields(self):
            value = _convert(f.name, getattr(self, f.name), kinds[f.name])
            object.__setattr__(self, f.name, value)
            ok = f.metadata["ok"]
            if ok and value is not None and not ok(value):
                raise UsageError(
                    f"{f.name}={value!r} is not allowed: it must be {f.metadata['limit']}"
                )
        if self.prompts * self.group_size < self.updates:
            raise UsageError(
                f"updates={self.updates} is not allowed: it must be at most the "
                f"{self.prompts * self.group_size} rollouts of a step (prompts × group_size)"
            )

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values."""
        return dataclasses.asdict(self)


def load_config(source: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a YAML file, or a shipped configuration by its name, and apply `key=value` overrides.

    Raises UsageError for a missing file, an unknown key, a value of the wrong kind or out of range.
    """
    path = _find(source)
    values: dict[str, Any] = {"name": path.stem}
    try:
        read = yaml.safe_load(path.read_text("utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not readable as YAML: {error}") from error
    if not isinstance(read, Mapping):
        raise UsageError(f"{path} must hold key: value lines")
    values.update(read)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise UsageError(f"{override!r} is not understood: write settings as key=value")
        values[key] = value
    known = [f.name for f in dataclasses.fields(TrainConfig)]
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
            raise UsageError(f"There is no setting {key!r}{hint}")
    return TrainConfig(**values)


def shipped() -> list[str]:
    """Names of the configurations that come with the trainer."""
    return sorted(
        f.name.removesuffix(".yaml")
        for f in (files(__package__) / "configs").iterdir()
        if f.name.endswith(".yaml")
    )


def _find(source: str | Path) -> Path:
    if Path(source).is_file():
        return Path(source)
    if str(source) in shipped():
        return Path(str(files(__package__) / "configs" / f"{source}.yaml"))
    raise UsageError(
        f"There is no configuration {str(source)!r}: give the path of a YAML file or one of "
        f"{', '.join(shipped())}"
    )


def _convert(key: str, value: Any, kind: Any) -> Any:
    """`value`, which may be the text of a key=value override, as `kind`."""
    optional = isinstance(kind, types.UnionType)
    if optional and (value is None or value in ("none", "null")):
        return None
    base = typing.get_args(kind)[0] if optional else kind
    try:
        if base is bool:
            # YAML 1.1 reads a bare `off` as false, and so do we.
            return {"true": True, "on": True, "false": False, "off": False}[str(value).lower()]
        if base is int and int(value) != float(value):
            raise ValueError
        if base is str:
            return "off" if value is False else str(value)
        if isinstance(value, bool):
            raise ValueError
        return base(value)
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"{key}={value!r} is not allowed: it must be {_WORDS[base]}") from None


_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
