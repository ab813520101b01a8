"""Commands to continue from the checkpoint with one change, in the trainer's own names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from shlex import quote
from typing import Any

from lldscope.storage.events import last_checkpoint

ARMS = ("as-it-was", "half-rate", "llds")
AS_IT_WAS = ARMS[0]
ACTOR = "actor_rollout_ref.actor"

# TRL restores the rate of the checkpoint with its optimizer: a callback sets it afterwards.
_TRL_RATE = """\
class Rate(transformers.TrainerCallback):  # the checkpoint brings the old learning rate back
    def on_train_begin(self, args, state, control, lr_scheduler=None, **kwargs):
        lr_scheduler.base_lrs = [args.learning_rate] * len(lr_scheduler.base_lrs)
trainer.add_callback(Rate())
"""


def plan(run: Any, sound: int) -> list[tuple[str, str]]:
    """(description, command) for half the learning rate and for LLDS, in the settings of the run's
    trainer; empty for a trainer without a plan. `sound`: the last step before the trouble."""
    kinds: dict[str, Callable[[str, Mapping[str, Any], Any], tuple[str, ...]]] = {
        "lldscope_trainer": _ours, "trl": _trl, "verl": _verl,
    }
    make = kinds.get(str(run.info.get("trainer") or "").partition(" ")[0])
    if make is None:
        return []
    number = last_checkpoint(run.events(), sound)
    title = f"from checkpoint {number}"
    if number is None:
        title = "from the start (no checkpoint from before the trouble is recorded)"
    config = run.info.get("config")
    texts = make(str(run.path), config if isinstance(config, Mapping) else {}, number)
    return [(title, text) for text in texts]


def _half(rate: Any) -> float:
    """Half of the declared learning rate; 0 if none is declared."""
    try:
        return float(rate) / 2
    except (TypeError, ValueError):
        return 0.0


def _nested(config: Any, name: str) -> Any:
    """The setting with this dotted name in a nested configuration."""
    for part in name.split("."):
        config = config.get(part) if isinstance(config, Mapping) else None
    return config


def _ours(path: str, config: Mapping[str, Any], number: Any) -> tuple[str, ...]:
    start = f"lldscope train --resume --run {quote(path)} --checkpoint {number}"
    if number is None:
        start = f"lldscope train CONFIG --run {quote(path)}-again"
    return f"{start} lr={_half(config.get('lr')):g}", f"{start} llds=action llds_coefficient=0.2"


def _trl(path: str, config: Mapping[str, Any], number: Any) -> tuple[str, ...]:
    folder = f"{config.get('output_dir') or 'OUTPUT_DIR'}/checkpoint-{number}"
    end, resume = f"trainer.train(resume_from_checkpoint={folder!r})", ", resume=True"
    callback = _TRL_RATE
    if number is None:
        end, resume, callback = "trainer.train()", "", ""
    rate, record = _half(config.get("learning_rate")), f"instrument(trainer, {path!r}{resume}"
    return (
        f"GRPOConfig(…, learning_rate={rate:g})  # was {2 * rate:g}\n{callback}{record})\n{end}",
        f'{record}, llds="action", llds_coefficient=0.2)\n{end}',
    )


def _verl(path: str, config: Mapping[str, Any], number: Any) -> tuple[str, ...]:
    folder = _nested(config, "trainer.default_local_dir") or "CHECKPOINTS"
    place = quote(f"{folder}/global_step_{number}")
    start = "python -m verl.trainer.main_ppo …"
    rate = f"{ACTOR}.optim.lr={_half(_nested(config, f'{ACTOR}.optim.lr')):g}"
    if number is not None:
        start += f" \\\n  trainer.resume_mode=resume_path trainer.resume_from_path={place}"
        # The scheduler that a checkpoint brings back has the old rate.
        rate += f" {ACTOR}.checkpoint.load_contents=[model,optimizer]"
    return (
        f"{start} \\\n  {rate}",
        f"{start} \\\n  {ACTOR}.policy_loss._target_="
        f"lldscope.integrations.verl.LLDSPolicyLossConfig \\\n"
        f"  {ACTOR}.policy_loss.loss_mode=llds",
    )
