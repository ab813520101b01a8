"""The methods of TRL's GRPOTrainer that recording hooks into, and their check."""

from __future__ import annotations

import inspect
from typing import Any

from ...core.errors import LldscopeError

SUPPORTED = "TRL 1.x (tested with 1.16)"

REWARDED = ("inputs", "prompts", "completions", "completion_ids_list")
LOSS = ("model", "inputs")
SCORING = (
    "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy",
)
# The replaced methods of the trainer, with their arguments that are read, in order.
METHODS: dict[str, tuple[str, ...]] = {
    "_generate_and_score_completions": (),
    "_calculate_rewards": REWARDED,
    "compute_loss": LOSS,
    "_get_per_token_logps_and_entropies": SCORING,
    "training_step": (),
    "log": ("logs",),
    "train": (),
}
NAMES = (
    "accelerator", "args", "beta", "epsilon_high", "epsilon_low", "importance_sampling_level",
    "loss_type", "num_generations", "num_iterations", "processing_class", "reward_weights", "state",
)
NAMES_FOR_LLDS = ("_buffered_inputs", "_step")


def check(trainer: Any, with_llds: bool) -> None:
    """Raise LldscopeError for what is missing or cannot be followed, before the training begins."""
    import trl

    of = f"{type(trainer).__name__} of TRL {trl.__version__}"
    made_of = [c.__module__.lower() for c in type(trainer).__mro__]
    for package, title in (("unsloth", "Unsloth"), ("swift.", "ms-swift")):
        if any(module.startswith(package) for module in made_of):
            raise LldscopeError(
                f"{title} has methods of its own in the place of those of TRL's GRPOTrainer that "
                "recording hooks into. What it logs can be recorded: trainer.add_callback("
                "lldscope.integrations.callback.LldscopeCallback(path)). For Δ, train with TRL "
                "itself, or record from your own loop."
            )
    missing = [m for m in METHODS if not callable(getattr(trainer, m, None))]
    names = NAMES + (NAMES_FOR_LLDS if with_llds else ())
    missing += [n for n in names if not hasattr(trainer, n)]
    missing += [
        f"args.{n}" for n in ("steps_per_generation", "gradient_accumulation_steps")
        if not hasattr(getattr(trainer, "args", None), n)
    ]
    if missing:
        raise LldscopeError(
            f"{of} has no {', '.join(missing)}, which recording hooks into. This version of "
            f"lldscope knows the GRPOTrainer of {SUPPORTED}."
        )
    for name, read in METHODS.items():
        signature = inspect.signature(getattr(trainer, name))
        takes_any = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
        if not takes_any and (*signature.parameters,)[: len(read)] != read:
            raise LldscopeError(
                f"{of} has {name}{signature}, where recording needs ({', '.join(read)}). A method "
                "of your own may take more arguments than TRL's, but has to take these first."
            )
    if hasattr(trainer, "lldscope_recorder"):
        raise LldscopeError(
            f"This trainer is recorded already, in {trainer.lldscope_recorder.path}. Make a new "
            "trainer for another run."
        )
