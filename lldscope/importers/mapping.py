"""Which of our signals a foreign metric is; one line a name, whatever logger carried it.

A metric that is something else than the signal it looks like keeps its own name, and `KEPT` says
why. Where it is the same quantity by another estimator, the third column says which: it stands in
the table `scalars` and among the notes of the import. Of several metrics of one log that mean one
signal, the first here stands for it.

Sources: verl 0.9.1 (`trainer/ppo/metric_utils.py`, `workers/utils/losses.py`), Search-R1 a14dc3a
(`verl/trainer/ppo/ray_trainer.py`), the authors' fork vengdeng/LLDS-On-Group-Relative c19a094
(`verl/workers/actor/dp_actor.py`), TRL 1.16 (`trainer/grpo_trainer.py`), NeMo-RL 7ea279a
(`algorithms/loss/loss_functions.py`), OpenRLHF 0.11.2, SkyRL 0.3.0, AReaL 1.0.4
(`trainer/ppo/actor.py`), slime 624b824 (`observability/train_metric_utils.py`), prime-rl 559b447,
tinker-cookbook 0.6.1 (`rl/metrics.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..schema import SIGNALS


@dataclass(frozen=True)
class Meant:
    """A signal, and how the foreign number differs from what lldscope itself would measure."""

    signal: str
    estimator: str | None = None
    factor: float = 1.0  # foreign unit → ours
    rank: int = 0  # place in the table


SIGNAL_NAMES = frozenset(SIGNALS.names)
TOLD = frozenset(c.name for c in SIGNALS.columns if c.kind == "float")  # what a mean may stand for

_SAMPLED = "mean −log π of the sampled tokens, not the entropy of the whole vocabulary"
_UPDATES = "mean over the step's updates, not their median"
_TOOL_TEXT = "tool text counted in where the rollout has it"
_WHOLE = "the whole loss, KL term included where there is one"
_MAXIMUM = "share of responses as long as the limit"

_TABLE: tuple[tuple[str, str, str | None], ...] = (
    # verl and Search-R1
    ("critic/score/mean", "reward", None),
    ("critic/rewards/mean", "reward", "after the KL penalty, where the reward has one"),
    ("actor/entropy", "entropy", None),
    ("actor/entropy_loss", "entropy", "mean over micro-batches, each weighing the same"),
    ("actor/grad_norm", "grad_norm", _UPDATES),
    ("actor/pg_loss", "loss_policy", "mean over micro-batches, each weighing the same"),
    ("actor/kl_loss", "loss_kl", "Search-R1: of the last micro-batch alone"),
    ("actor/reward_kl_penalty", "kl", "by the run's kl_penalty estimator"),
    ("critic/kl", "kl", "by the run's kl_penalty estimator"),
    ("actor/pg_clipfrac", "clip_share", "mean over micro-batches, each weighing the same"),
    ("actor/lr", "lr", None),
    ("response_length/mean", "response_tokens", _TOOL_TEXT),
    ("response_length/clip_ratio", "truncated_share", _MAXIMUM),
    ("env/number_of_valid_search", "valid_searches", None),
    ("env/finish_ratio", "answered_share", None),
    ("timing_s/gen", "seconds_rollout", None),
    ("timing_s/update_actor", "seconds_update", None),
    # TRL; `reward`, `entropy`, `kl`, `grad_norm` have our names
    ("reward", "reward", None),
    ("reward_std", "reward_sd", "within groups or over the batch, as scale_rewards says"),
    ("entropy", "entropy", None),
    ("kl", "kl", None),
    ("grad_norm", "grad_norm", None),
    ("loss", "loss_policy", _WHOLE),
    ("learning_rate", "lr", None),
    ("completions/mean_length", "response_tokens", _TOOL_TEXT),
    ("completion_length", "response_tokens", _TOOL_TEXT),
    ("completions/clipped_ratio", "truncated_share", "share without an end-of-text token"),
    ("frac_reward_zero_std", "zero_signal_share", "share of rollouts in groups of equal rewards"),
    ("clip_ratio/region_mean", "clip_share", None),
    ("clip_ratio", "clip_share", None),
    ("tools/failure_frequency", "tool_fail_share", None),
    # OpenRLHF, SkyRL, AReaL, slime
    ("policy_loss", "loss_policy", None),
    ("actor_grad_norm", "grad_norm", _UPDATES),
    ("rollout/reward", "reward", None),
    ("policy/policy_loss", "loss_policy", None),
    ("policy/policy_entropy", "entropy", None),
    ("policy/raw_grad_norm", "grad_norm", _UPDATES),
    ("policy/policy_kl", "kl", None),
    ("reward/avg_raw_reward", "reward", None),
    ("rollout/raw_reward", "reward", None),
    ("entropy_loss", "entropy", None),
    ("pg_loss", "loss_policy", None),
    ("pg_clipfrac", "clip_share", None),
    ("kl_loss", "loss_kl", None),
    # NeMo-RL, prime-rl, Tinker
    ("approx_entropy", "entropy", _SAMPLED),
    ("entropy/mean", "entropy", None),
    ("entropy/all/mean", "entropy", None),
    ("optim/grad_norm", "grad_norm", None),
    ("grad_norm:mean", "grad_norm", _UPDATES),
    ("optim/lr", "lr", None),
    ("reward/mean", "reward", None),
    ("reward/all/mean", "reward", None),
    ("env/all/reward/total", "reward", None),
    ("env/all/correct", "success", None),
    ("optim/entropy", "entropy", _SAMPLED),
)

MEANT: dict[str, Meant] = {
    name: Meant(signal, estimator, rank=rank)
    for rank, (name, signal, estimator) in enumerate(_TABLE)
}

_OLD_NEW = "it is the KL between the policies before and inside the update, not to the reference"
_ENGINES = "it is the KL between the engine that sampled and the trainer, not to the reference"
_ABSOLUTE = "it is an absolute difference, and engine_gap is not"
_ALL_TOKENS = "it is over the tokens of all responses, not of the correct ones"

KEPT: dict[str, str] = {
    "actor/pos_avg_old_log_prob": "its sum over responses with advantage ≥ 0 is divided by the "
    "tokens of all responses, so it moves with their share as well, and only the last micro-batch "
    "is kept",
    **dict.fromkeys(("actor/ppo_kl", "ppo_kl", "approx_kl", "actor/approx_kl"), _OLD_NEW),
    **dict.fromkeys(
        (
            "mismatch_kl/mean",
            "mismatch_kl/all/mean",
            "optim/kl_sample_train_v1",
            "optim/kl_sample_train_v2",
            "gen_kl_error",
        ),
        _ENGINES,
    ),
    **dict.fromkeys(("rollout/log_probs", "new_logp", "old_logp"), _ALL_TOKENS),
    "positive_nll_loss": "it is over rewards above 0, and 0 where its weight is 0",
    "training/rollout_probs_diff_mean": "it is an absolute difference of probabilities",
    **dict.fromkeys(
        (
            "sampling/sampling_logp_difference/mean",
            "policy/rollout_train_logprobs_abs_diff_mean",
            "train_rollout_logprob_abs_diff",
        ),
        _ABSOLUTE,
    ),
}


def meaning(name: str) -> Meant | None:
    """The signal that a foreign name stands for; None where it keeps its own name. `train/` before
    a name, as loggers of the Hugging Face Trainer put it, changes nothing."""
    if why_kept(name):
        return None
    bare = name.removeprefix("train/")
    found = MEANT.get(name) or MEANT.get(bare)
    if found is None and bare in TOLD:
        return Meant(bare)
    return found


def why_kept(name: str) -> str | None:
    """Why a metric that looks like a signal is not taken for it."""
    return KEPT.get(name) or KEPT.get(name.removeprefix("train/"))
