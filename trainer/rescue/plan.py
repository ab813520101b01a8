"""What to type to go on from the checkpoint with one thing changed, by the trainer's own names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from shlex import quote
from typing import Any

from lldscope.storage.events import checkpoint_number, last_checkpoint

ARMS = ("as-it-was", "half-rate", "llds", "kl", "fewer-updates")
AS_IT_WAS = ARMS[0]
KL = 0.05
ACTOR = "actor_rollout_ref.actor"
LLDS = "LLDSPolicyLossConfig"

# TRL restores the rate of the checkpoint with its optimizer: a callback sets it afterwards.
_TRL_RATE = """\
class Rate(transformers.TrainerCallback):  # the checkpoint brings the old learning rate back
    def on_train_begin(self, args, state, control, lr_scheduler=None, **kwargs):
        lr_scheduler.base_lrs = [args.learning_rate] * len(lr_scheduler.base_lrs)
trainer.add_callback(Rate())
"""


def plan(run: Any, sound: int, arms: Sequence[str]) -> list[tuple[str, str]]:
    """(what it is, what to type) for each arm that can be said in the settings of the run's
    trainer. `sound`: the last step before the trouble."""
    trainer = str(run.info.get("trainer") or "")
    config = run.info.get("config")
    config = config if isinstance(config, Mapping) else {}
    kinds: dict[str, Callable[..., list[tuple[str, str]]]] = {
        "lldscope_trainer": _ours, "trl": _trl, "verl": _verl,
    }
    make = kinds.get(trainer.partition(" ")[0])
    return [] if make is None else make(run, config, sound, arms)


def _checkpoint(run: Any, sound: int) -> Any:
    """The trainer's number of the last checkpoint at or before a step; None where there is none."""
    event = last_checkpoint(run.events(), sound)
    return None if event is None else checkpoint_number(event)


def _number(config: Mapping[str, Any], name: str, default: float) -> float:
    """A setting whose name has dots where the configuration is nested."""
    value: Any = config
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    try:
        return float(value)
    except (TypeError, ValueError):
        return default


def _ours(
    run: Any, config: Mapping[str, Any], sound: int, arms: Sequence[str]
) -> list[tuple[str, str]]:
    step = _checkpoint(run, sound)
    start = f"lldscope train --resume --run {quote(str(run.path))} --checkpoint {step}"
    if step is None:
        start = f"lldscope train CONFIG --run {quote(str(run.path))}-again"
    words = {
        "half-rate": f"lr={_number(config, 'lr', 0) / 2:g}",
        "llds": "llds=action llds_coefficient=0.2",
        "kl": f"kl_coefficient={KL:g}",
        "fewer-updates": f"updates={int(_number(config, 'updates', 2)) // 2}",
    }
    return [(_title(step), f"{start} {words[arm]}") for arm in arms if arm in words]


def _trl(
    run: Any, config: Mapping[str, Any], sound: int, arms: Sequence[str]
) -> list[tuple[str, str]]:
    step = _checkpoint(run, sound)
    folder = f"{config.get('output_dir') or 'OUTPUT_DIR'}/checkpoint-{step}"
    end = f"trainer.train(resume_from_checkpoint={folder!r})"
    resume = ", resume=True"
    if step is None:
        end, resume = "trainer.train()", ""
    rate = _number(config, "learning_rate", 0) / 2
    iterations = int(_number(config, "num_iterations", 1))
    fewer = (
        f"GRPOConfig(…, num_iterations={iterations // 2})  # was {iterations}" if iterations > 1
        else "GRPOConfig(…, steps_per_generation="
             f"{max(1, int(_number(config, 'steps_per_generation', 2)) // 2)})"
    )
    record = f"instrument(trainer, {str(run.path)!r}{resume}"
    lines = {
        "half-rate": f"GRPOConfig(…, learning_rate={rate:g})  # was {2 * rate:g}\n"
                     f"{_TRL_RATE if step is not None else ''}{record})",
        "llds": f'{record}, llds="action", llds_coefficient=0.2)',
        "kl": f"GRPOConfig(…, beta={KL:g})\n{record})",
        "fewer-updates": f"{fewer}\n{record})",
    }
    return [(_title(step), f"{lines[arm]}\n{end}") for arm in arms if arm in lines]


def _verl(
    run: Any, config: Mapping[str, Any], sound: int, arms: Sequence[str]
) -> list[tuple[str, str]]:
    step = _checkpoint(run, sound)
    trainer = config.get("trainer")
    folder = trainer.get("default_local_dir") if isinstance(trainer, Mapping) else None
    place = f"{folder or 'CHECKPOINTS'}/global_step_{step}"
    resume = f" \\\n  trainer.resume_mode=resume_path trainer.resume_from_path={quote(place)}"
    start = "python -m verl.trainer.main_ppo …" + ("" if step is None else resume)
    rate = _number(config, f"{ACTOR}.optim.lr", 0) / 2
    epochs = int(_number(config, f"{ACTOR}.ppo_epochs", 1))
    size = int(_number(config, f"{ACTOR}.ppo_mini_batch_size", 0))
    fewer = (f"{ACTOR}.ppo_epochs={epochs // 2}" if epochs > 1
             else f"{ACTOR}.ppo_mini_batch_size={2 * size}")
    # The scheduler that a checkpoint brings back has the old rate.
    contents = f"{ACTOR}.checkpoint.load_contents=[model,optimizer]"
    words = {
        "half-rate": f"{ACTOR}.optim.lr={rate:g}" + (f" {contents}" if step is not None else ""),
        "llds": f"{ACTOR}.policy_loss._target_=lldscope.integrations.verl.{LLDS} \\\n"
                f"  {ACTOR}.policy_loss.loss_mode=llds",
        "kl": f"{ACTOR}.use_kl_loss=true {ACTOR}.kl_loss_coef={KL:g}",
        "fewer-updates": fewer,
    }
    return [(_title(step), f"{start} \\\n  {words[arm]}") for arm in arms if arm in words]


def _title(step: int | None) -> str:
    if step is None:
        return "from the start (no checkpoint from before the trouble is recorded)"
    return f"from checkpoint {step}"
