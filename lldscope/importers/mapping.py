"""Which of our signals a foreign metric is; one line a name, whatever logger carried it.

A metric that only resembles a signal is not here and keeps its own name, such as LLDS' fork's
`actor/pos_avg_old_log_prob`, which is divided by the tokens of all responses. Where it is the same
quantity by another estimator, the third column says which: it stands in the table `scalars` and
among the notes of the import. Of several metrics of one log that mean one signal, the first here
stands for it.

Every name but the last ones was found in the public source that stands above it; so were the
estimators. Of a name that several trainers use, the estimator says what holds
for which.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..core.schema import COMPONENT, SIGNALS


@dataclass(frozen=True)
class Meaning:
    """A signal, and how the foreign number differs from what lldscope itself would measure."""

    signal: str
    estimator: str | None = None
    rank: int = 0  # place in the table


SIGNAL_NAMES = frozenset(SIGNALS.names)
# What a mean may stand for.
SCALAR_SIGNALS = frozenset(c.name for c in SIGNALS.columns if c.kind == "float")

_SAMPLED = "mean −log π of the sampled tokens, not the entropy of the whole vocabulary"
_WEIGHTED = "sampled: mean of −π/π_engine · log π, not the entropy of the whole vocabulary"
_UPDATES = "mean over the step's updates, not their median"
_LAST = "of the step's last update, not their median"
_MICRO = "mean over micro-batches, each weighing the same"
_MODE = "over action tokens where loss_agg_mode is token-mean, otherwise aggregated as it says"
_RESPONSES = "each response weighing the same"
_TOOL_TEXT = "tool text counted in where the rollout has it"
_WHOLE = "the whole loss, KL term included where there is one"
_MAXIMUM = "share of responses as long as the batch allows"
_AFTER = "of the policy after the step"
_PENALTY = "by the run's kl_penalty estimator, each response weighing the same"

_INSIDE = "of the policy inside the updates, over all responses, not after the last update"

_TABLE: tuple[tuple[str, str, str | None], ...] = (
    # verl 0.9.1: trainer/ppo/metric_utils.py, trainer/ppo/v1/trainer_base.py,
    # workers/utils/losses.py, workers/engine_workers.py, trainer/ppo/rollout_corr_helper.py
    ("critic/score/mean", "reward", None),
    ("critic/rewards/mean", "reward", "after the KL penalty, where the reward has one"),
    ("actor/entropy", "entropy", _MODE),
    ("actor/entropy_loss", "entropy", f"{_MODE}; Search-R1: {_MICRO}"),
    ("actor/grad_norm", "grad_norm", _UPDATES),
    ("actor/pg_loss", "loss_policy", _MICRO),
    ("actor/kl_loss", "kl", f"before its coefficient, by kl_loss_type; {_MICRO}"),
    ("actor/ppo_kl", "step_kl", _INSIDE),
    ("actor/reward_kl_penalty", "kl", _PENALTY),
    ("actor/pg_clipfrac", "clip_share", _MICRO),
    ("actor/lr", "lr", None),
    ("response_length/mean", "response_tokens", _TOOL_TEXT),
    ("response_length/clip_ratio", "truncated_share", _MAXIMUM),
    ("rollout_corr/kl", "engine_gap", None),
    ("rollout_corr/k3_kl", "engine_k3", None),
    ("rollout_corr/chi2_token", "engine_chi2", None),
    ("rollout_corr/rollout_is_eff_sample_size", "engine_ess", "of the weights after truncation"),
    ("tool_call_counts/mean", "valid_searches", "calls of tools, whatever came back"),
    ("timing_s/gen", "seconds_rollout", None),
    ("timing_s/update_actor", "seconds_update", None),
    # ROLL e25f5fa: pipeline/base_worker.py, utils/tracking.py; others under verl's names
    ("actor/entropy_mean", "entropy", _MODE),
    ("actor/approxkl", "step_kl", _INSIDE),
    ("actor/ppo_ratio_clipfrac", "clip_share", _MICRO),
    # rdan_grpo (a pipeline on ROLL, 2026-11): rdan_grpo/tracking.py and its pipeline
    ("reward/selected_mean", "reward", "over the responses that are trained on"),
    # Search-R1 0789f5e: verl/trainer/ppo/ray_trainer.py
    ("critic/kl", "kl", _PENALTY),
    ("env/number_of_valid_search", "valid_searches", None),
    ("env/finish_ratio", "answered_share", "share that ended before the turns ran out"),
    # TRL 1.16.0: trainer/grpo_trainer.py; `completion_length`, `clip_ratio` of older ones
    ("reward", "reward", None),
    ("reward_std", "reward_sd", "TRL 1.16: over the batch; older: as scale_rewards says"),
    ("entropy", "entropy", _MICRO),
    ("kl", "kl", f"TRL: k3, {_MICRO}; OpenRLHF: by the run's estimator"),
    ("grad_norm", "grad_norm", "of the step's one update; NeMo-RL adds up those of several"),
    ("policy_loss", "loss_policy", "TRL: KL term included where there is one"),
    ("loss", "loss_policy", _WHOLE),
    ("learning_rate", "lr", None),
    ("completions/mean_length", "response_tokens", None),
    ("completion_length", "response_tokens", None),
    ("completions/clipped_ratio", "truncated_share", "share without an end-of-text token"),
    ("frac_reward_zero_std", "zero_signal_share", "share of rollouts in groups of equal rewards"),
    ("clip_ratio/region_mean", "clip_share", _MICRO),
    ("clip_ratio", "clip_share", _MICRO),
    ("tools/failure_frequency", "tool_fail_share", None),
    ("eval_reward", "eval_score", _AFTER),
    ("eval/reward", "eval_score", _AFTER),
    # OpenRLHF 0.11.2: trainer/ray/ppo_actor.py, trainer/ppo_trainer.py, in TensorBoard under train/
    ("rollout/reward_mean", "reward", None),
    ("rollout/reward_std", "reward_sd", None),
    ("rollout/response_length_mean", "response_tokens", None),
    ("rollout/truncated_rate", "truncated_share", None),
    ("actor_grad_norm", "grad_norm", _LAST),
    ("actor_lr", "lr", None),
    ("ppo_clip_ratio", "clip_share", _RESPONSES),
    # SkyRL 0.3.0: train/trainer.py, backends/skyrl_train/workers/worker.py; older: `raw_grad_norm`
    ("reward/avg_raw_reward", "reward", None),
    ("policy/policy_loss", "loss_policy", _MICRO),
    ("policy/policy_entropy", "entropy", _MICRO),
    ("policy/policy_kl", "kl", _MICRO),
    ("policy/grad_norm", "grad_norm", _UPDATES),
    ("policy/raw_grad_norm", "grad_norm", _UPDATES),
    ("policy/policy_lr", "lr", None),
    ("policy/loss_metrics/clip_ratio", "clip_share", _MICRO),
    # AReaL 1.0.4: trainer/ppo/actor.py, utils/stats_tracker.py
    ("ppo_actor/task_reward/avg", "reward", None),
    ("ppo_actor/update/entropy/avg", "entropy", None),
    ("ppo_actor/update/actor_loss/avg", "loss_policy", None),
    ("ppo_actor/update/clip_ratio/avg", "clip_share", None),
    ("ppo_actor/update/approx_kl/avg", "step_kl", _INSIDE),
    ("ppo_actor/update/grad_norm", "grad_norm", _UPDATES),
    ("ppo_actor/update/lr", "lr", None),
    # slime 00c2d6d: backends/megatron_utils/loss.py, observability/train_metric_utils.py
    ("rollout/raw_reward", "reward", None),
    ("entropy_loss", "entropy", f"OpenRLHF: over tokens; slime: {_RESPONSES}"),
    ("pg_loss", "loss_policy", _RESPONSES),
    ("pg_clipfrac", "clip_share", _RESPONSES),
    ("ppo_kl", "step_kl", _INSIDE),
    ("kl_loss", "kl", f"before its coefficient; {_RESPONSES}"),
    # NeMo-RL 006907a: algorithms/loss/loss_functions.py, algorithms/grpo.py
    ("approx_entropy", "entropy", _WEIGHTED),
    ("mean_gen_tokens_per_sample", "response_tokens", None),
    # prime-rl: trainer/rl/train.py, the orchestrator and the documentation, names of 2025 and 2026
    ("train/agg/effective/reward/mean", "reward", "over the rollouts that are trained on"),
    ("train/agg/effective/agent/reward/mean", "reward", "over the rollouts that are trained on"),
    ("reward/all/mean", "reward", "mean over questions of their mean"),
    ("reward/mean", "reward", "mean over questions of their mean"),
    ("entropy/mean", "entropy", None),
    ("entropy/all/mean", "entropy", None),
    ("optim/grad_norm", "grad_norm", None),
    ("optim/lr", "lr", None),
    # tinker-cookbook 0.6.1: rl/metric_util.py, rl/metrics.py, rl/train.py, recipes/rl_loop.py
    ("env/all/reward/total", "reward", None),
    ("reward/total", "reward", None),
    ("env/all/correct", "success", None),
    ("optim/entropy", "entropy", _SAMPLED),
    ("grad_norm:mean", "grad_norm", _LAST),
    # What loops of people's own call it, whatever trainer they are of; more in _WORDS.
    ("score", "reward", "a score that is taken for the reward"),
    ("performance", "reward", "a score that is taken for the reward"),
)

MEANINGS: dict[str, Meaning] = {
    name: Meaning(signal, estimator, rank=rank)
    for rank, (name, signal, estimator) in enumerate(_TABLE)
}

# verl 0.9.1: val-core/DATA SOURCE/acc or reward/mean@N; Search-R1: val/test_score/DATA SOURCE
_HELD_OUT = re.compile(r"val-core/.+/(acc|reward)/mean@\d+|val/test_score/.+")
_OF_A_SOURCE = Meaning(
    "eval_score", f"{_AFTER}; of one data source, the first of the log", rank=len(_TABLE)
)

# Words that say nothing of which signal it is, and names of the signals without them.
_FILLING = re.compile(
    r"mean|avg|average|train|trainer|training|metrics|rollout|policy|actor|batch|step|env"
)
_WORDS: dict[str, str] = {
    words: signal
    for signal, names in {
        "reward": "reward|rewards|reward total|total reward|total rewards|reward score|ep rew|"
                  "episode reward",
        "reward_sd": "reward std|rewards std|reward sd|std reward|total rewards std",
        "success": "success|success rate|accuracy|acc|pass rate|solve rate|correct|correct rate|"
                   "fraction correct|correct fraction|solved",
        "grad_norm": "gradient norm|grad norm|grad|gradnorm",
        "entropy": "entropy|token entropy",
        "kl": "kl|kl divergence|kl to ref|ref kl|kl ref",
        "step_kl": "approx kl|ppo kl",
        "loss_policy": "loss|total loss|pg loss|gradient loss|surrogate loss",
        "lr": "lr|learning rate",
        "response_tokens": "|".join(
            f"{text} {unit}" for text in ("completion", "response", "output", "generation")
            for unit in ("length", "len", "tokens")
        ),
        "truncated_share": "truncation rate|truncated rate|truncation share|truncated ratio|"
                           "truncation ratio|clipped ratio|truncated|truncated share|"
                           "truncated fraction|length clip ratio|length cap hit rate",
        "clip_share": "clip fraction|clip frac|clipfrac|clip rate|pg clipfrac",
        "zero_signal_share": "zero std frac|frac zero std|zero std fraction",
        "valid_searches": "|".join(
            f"{count}{search}" for count in ("", "valid ", "number of valid ", "number of ", "num ")
            for search in ("search", "searches", "search calls", "search count")
        ),
    }.items()
    for words in names.split("|")
}


def _by_words(name: str) -> Meaning | None:
    words = re.findall(r"[a-z]+", name.lower().replace("loss/", ""))
    signal = _WORDS.get(" ".join(w for w in words if not _FILLING.fullmatch(w)))
    return Meaning(signal, "by its name", rank=len(_TABLE) + len(words)) if signal else None


def meaning(name: str) -> Meaning | None:
    """The signal that a foreign name stands for; None where it keeps its own name. `train/` before
    a name, as loggers of the Hugging Face Trainer put it, and capitals change nothing; of names
    that no trainer is known for the words decide."""
    bare = name.removeprefix("train/")
    for one in (name, bare, bare.lower()):
        if one in MEANINGS:
            return MEANINGS[one]
    if bare in SCALAR_SIGNALS:
        return Meaning(bare)
    return _OF_A_SOURCE if _HELD_OUT.fullmatch(name) else _by_words(name)


# `rewards/NAME/mean` and `rewards/NAME` of TRL, `reward/NAME` of loops of people's own.
_COMPONENT = re.compile(r"(?:train/)?(?:rewards/(.+?)(?:/mean)?|reward/([^/]+?)(?:_mean)?)")
_STATISTIC = re.compile(
    r"(?:.*[/_])?(?:std|sd|var|min|max|sum|total|mean|avg|median|raw|all|count|selected|rate)"
    r"|(?:avg|mean)_.*|.*pass(?:_at_|@)\d+", re.I
)


def component(name: str) -> str | None:
    """`component/NAME` for the mean of one of several rewards that add up; None for other names."""
    match = _COMPONENT.fullmatch(name)
    part = (match[1] or match[2]) if match else None
    return f"{COMPONENT}{part}" if part and not _STATISTIC.fullmatch(part) else None


def assign(names: Iterable[str], choices: Mapping[str, str] | None = None) -> dict[str, Meaning]:
    """What each metric of one entry is recorded as. Of several that mean one signal, the first of
    the table stands for it; others keep their names, under `log/` where that is a signal's. Reward
    components are `component/NAME`.

    choices: name in the log → the signal that somebody said it is.
    """
    meanings = {n: Meaning(choices[n]) if choices and n in choices else meaning(n) for n in names}
    first: dict[str, str] = {}
    for name, m in sorted(meanings.items(), key=lambda item: item[1].rank if item[1] else 0):
        if m is not None:
            first.setdefault(m.signal, name)
    return {
        name: m
        if m is not None and first[m.signal] == name
        else Meaning(component(name) or (f"log/{name}" if name in SIGNAL_NAMES else name))
        for name, m in meanings.items()
    }


# What people call a reward, for when no --map was given.
_LIKE_A_REWARD = re.compile(
    r"reward|return|score|performance|accuracy|success|win_rate|pass@", re.I
)
_NO_MEAN = re.compile(
    r"std|_sd|/sd|min\b|max\b|var\b|penalty|loss|val|eval|test|time|baseline", re.I
)


def like_a_reward(names: Iterable[str]) -> list[str]:
    """The names that may be those of the reward, most telling first."""
    candidates = [n for n in names if _LIKE_A_REWARD.search(n) and not _NO_MEAN.search(n)]
    return sorted(candidates, key=lambda n: ("reward" not in n.lower(), len(n), n))
