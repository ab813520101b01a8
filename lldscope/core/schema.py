"""The one registry of everything a run records.

Writer, SQL views, documentation and `lldscope schema` read this module. A new column is declared
here once; a new signal also needs its expression, in one file of query/sql. Conventions, for every
table:

- Sums and counts are stored at their natural grain; means are divided once, in SQL.
- NULL means "not measured", never 0. NaN and Inf are stored as they came.
- Log-probabilities are in nats, of the tokens the policy itself emitted (tool text is masked out),
  and their name says which policy gave them: `behaviour` the engine that sampled, `old` the
  trainer's policy at rollout time, `inner` the policy inside the update at the moment of the loss,
  `post` the policy after the step's last update, `ref` the frozen reference.
- The recorder adds `attempt` and `rank` to every row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import pyarrow as pa

SCHEMA_VERSION = 1

Kind = Literal["int", "count", "float", "sum", "bool", "text", "time"]

_ARROW: dict[str, pa.DataType] = {
    "int": pa.int32(),
    "count": pa.int32(),
    "float": pa.float32(),
    "sum": pa.float64(),
    "bool": pa.bool_(),
    "text": pa.string(),
    "time": pa.float64(),
}


@dataclass(frozen=True)
class Column:
    """One column: its name, kind (which fixes the Arrow type), unit, and meaning."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    required: bool = False

    @property
    def arrow(self) -> pa.DataType:
        return _ARROW[self.kind]


@dataclass(frozen=True)
class Table:
    """One table: its grain in words and its columns in order."""

    name: str
    grain: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.columns)


_STAMP = (
    Column("attempt", "int", "", "Which start of the run wrote the row; 1 is the first.", True),
    Column("rank", "int", "", "Process that wrote the row.", True),
)

STEPS = Table(
    "steps",
    "one row per RL step (one rollout batch) and rank; partial sums, the views add the ranks up",
    (
        Column("step", "int", "step", "RL step, counted from 0.", True),
        *_STAMP,
        Column("time", "time", "s", "Unix time at which the step ended."),
        Column("policy_version", "int", "update", "Optimizer updates made before the rollouts."),
        Column("n_responses", "count", "response", "Rollouts in the batch."),
        Column("n_correct", "count", "response", "Rollouts that are correct by the run's rule."),
        Column("reward_sum", "sum", "reward", "Sum of rewards over the rollouts."),
        Column("reward_sq_sum", "sum", "reward²", "Sum of squared rewards."),
        Column("n_tokens", "count", "token", "Action tokens in the batch."),
        Column(
            "entropy_sum",
            "sum",
            "nat",
            "Sum over action tokens of the sampling policy's full-vocabulary entropy.",
        ),
        Column(
            "kl_sum",
            "sum",
            "nat",
            "Sum over action tokens of the k3 estimate of KL to the reference.",
        ),
        Column("loss_policy", "float", "", "Policy loss, token-weighted mean over the updates."),
        Column(
            "loss_llds", "float", "nat", "LLDS loss before its coefficient, mean over the updates."
        ),
        Column("loss_kl", "float", "nat", "KL loss before its coefficient, mean over the updates."),
        Column("lr", "float", "", "Learning rate of the step's last update."),
        Column("seconds_rollout", "float", "s", "Sampling, tools included."),
        Column("seconds_update", "float", "s", "Scoring, losses and optimizer updates."),
        Column(
            "seconds_record",
            "float",
            "s",
            "What recording added: re-score after the last "
            "update, gathering of rows, recorder calls.",
        ),
    ),
)

UPDATES = Table(
    "updates",
    "one row per optimizer update (and rank)",
    (
        Column("step", "int", "step", "RL step.", True),
        *_STAMP,
        Column("update", "int", "update", "Update within the step, counted from 0.", True),
        Column("grad_norm", "float", "", "Global L2 norm of the gradient before clipping."),
        Column("grad_finite", "bool", "", "False if the norm was NaN or Inf."),
        Column("skipped", "bool", "", "True if the update was not applied."),
        Column("ratio_max", "float", "", "Largest importance ratio inner/old of the update."),
        Column("ratio_p99", "float", "", "99th percentile of the importance ratio."),
        Column("n_clipped", "count", "token", "Tokens on which the clip was active."),
        Column("n_tokens", "count", "token", "Action tokens in the update."),
    ),
)

RESPONSES = Table(
    "responses",
    "one row per rollout",
    (
        Column("step", "int", "step", "RL step.", True),
        *_STAMP,
        Column("response_id", "int", "", "Rollout, unique within the step.", True),
        Column("group_id", "int", "", "Rollouts of one question share it; unique within the step."),
        Column("data_source", "text", "", "Data set the question comes from."),
        Column("prompt_hash", "text", "", "Hash of the prompt; a group has one prompt."),
        Column("reward", "float", "reward", "Reward of the rollout."),
        Column("advantage", "float", "", "Group-relative advantage used in the loss."),
        Column("correct", "bool", "", "Correct by the rule in run.json; NULL if unknown."),
        Column("n_actions", "count", "action", "Actions of the rollout."),
        Column("n_tokens", "count", "token", "Action tokens of the rollout."),
        Column("n_searches", "count", "action", "Valid searches."),
        Column("n_invalid", "count", "action", "Actions that parsed as neither search nor answer."),
        Column("answered", "bool", "", "The rollout ended with an answer."),
        Column("truncated", "bool", "", "A length limit cut the rollout."),
        Column("text", "text", "", "The whole rollout as text; untrusted model output."),
    ),
)

ACTIONS = Table(
    "actions",
    "one row per action: everything the model emitted in one turn of a rollout",
    (
        Column("step", "int", "step", "RL step.", True),
        *_STAMP,
        Column("response_id", "int", "", "Rollout the action belongs to.", True),
        Column("action_index", "int", "", "Turn within the rollout, counted from 0.", True),
        Column("kind", "text", "", "search, answer, invalid or text."),
        Column("n_tokens", "count", "token", "Tokens the model emitted in this turn."),
        Column("logp_behaviour_sum", "float", "nat", "Σ log π of the engine that sampled."),
        Column("logp_old_sum", "float", "nat", "Σ log π of the trainer's policy at rollout time."),
        Column("logp_inner_sum", "float", "nat", "Σ log π at the moment of the loss."),
        Column("logp_post_sum", "float", "nat", "Σ log π after the step's last update."),
        Column("logp_ref_sum", "float", "nat", "Σ log π of the frozen reference."),
        Column("n_tokens_down", "count", "token", "Tokens with log π_post < log π_old."),
        Column("drop_sum", "float", "nat", "Σ max(0, log π_old − log π_post)."),
        Column("entropy_sum", "float", "nat", "Σ entropy of the sampling policy."),
        Column(
            "error_norm_sum",
            "float",
            "",
            "Σ ‖e_y − π‖² = Σ (1 − 2π(y) + Σ_v π(v)²), sampling policy.",
        ),
        Column("logp_min", "float", "nat", "Smallest log π_old of the action."),
        Column("llds_gate", "bool", "", "The LLDS gate was open for the action inside the update."),
        Column("llds_sum", "float", "nat", "Σ of the gated LLDS penalty of the action's tokens."),
        Column("tool_ok", "bool", "", "The tool answered; NULL if no tool was called."),
        Column("docs_hash", "text", "", "Hash of the set of documents the tool returned."),
    ),
)

TOKENS = Table(
    "tokens",
    "one row per token of a chosen rollout (a sample of rollouts)",
    (
        Column("step", "int", "step", "RL step.", True),
        *_STAMP,
        Column("response_id", "int", "", "Rollout the token belongs to.", True),
        Column("position", "int", "token", "Position in the sequence, prompt included.", True),
        Column(
            "action_index", "int", "", "Action the token belongs to; NULL for prompt and tool text."
        ),
        Column("token_id", "int", "", "Token id in the policy's vocabulary."),
        Column("text", "text", "", "The token as text; untrusted model output."),
        Column("logp_old", "float", "nat", "log π of the trainer's policy at rollout time."),
        Column("logp_post", "float", "nat", "log π after the step's last update."),
        Column("entropy", "float", "nat", "Entropy of the sampling policy at this position."),
    ),
)

EVALS = Table(
    "evals",
    "one row per evaluation, data source and metric",
    (
        Column("step", "int", "step", "Steps trained when the evaluation ran.", True),
        *_STAMP,
        Column("data_source", "text", "", "Data set evaluated."),
        Column("metric", "text", "", "Name of the metric, for example em_greedy.", True),
        Column("value", "float", "", "Mean over the questions."),
        Column("n", "count", "question", "Questions evaluated."),
    ),
)

PROBES = Table(
    "probes",
    "one row per extra measurement",
    (
        Column("step", "int", "step", "RL step.", True),
        *_STAMP,
        Column(
            "probe",
            "text",
            "",
            "What was measured, for example probe_set_logp or hidden_similarity.",
            True,
        ),
        Column("group_id", "int", "", "Group measured; NULL if the probe is about none."),
        Column("response_id", "int", "", "Response measured; NULL if the probe is about none."),
        Column("action_index", "int", "", "Action measured; NULL if the probe is about none."),
        Column("value", "float", "", "The measurement, in the probe's own unit."),
    ),
)

SCALARS = Table(
    "scalars",
    "one row per step and name: a mean that somebody else computed, as their log tells it",
    (
        Column("step", "int", "step", "RL step.", True),
        *_STAMP,
        Column(
            "name",
            "text",
            "",
            "The signal it stands for, as in `signals`; otherwise the name it had in its log.",
            True,
        ),
        Column("value", "sum", "", "The mean, in the signal's unit where it stands for one."),
        Column(
            "estimator",
            "text",
            "",
            "How it differs from what lldscope would measure; NULL if it does not, or if the name "
            "is no signal's.",
        ),
    ),
)

TABLES: dict[str, Table] = {
    t.name: t for t in (STEPS, UPDATES, RESPONSES, ACTIONS, TOKENS, EVALS, PROBES, SCALARS)
}

SIGNALS = Table(
    "signals",
    "one row per RL step; NULL where nothing was measured",
    (
        Column("step", "int", "step", "RL step."),
        Column("time", "time", "s", "Unix time at which the step's last rank ended."),
        Column("tokens_seen", "sum", "token", "Action tokens trained on, this step included."),
        Column("n_responses", "count", "response", "Rollouts of the step."),
        Column("reward", "float", "reward", "Mean reward over rollouts."),
        Column("reward_sd", "float", "reward", "Standard deviation of the reward over rollouts."),
        Column("success", "float", "share", "Share of rollouts that are correct."),
        Column("entropy", "float", "nat/token", "Mean full-vocabulary entropy over action tokens."),
        Column("kl", "float", "nat/token", "Mean k3 estimate of KL to the reference."),
        Column("grad_norm", "float", "", "Median over the step's updates of the pre-clip norm."),
        Column("grad_norm_max", "float", "", "Largest pre-clip norm of the step's updates."),
        Column(
            "n_nonfinite",
            "count",
            "",
            "Updates whose gradient norm or ratio was NaN or Inf, plus ranks whose reward, "
            "entropy, KL or loss was, plus actions whose log-probability was.",
        ),
        Column("ratio_max", "float", "", "Largest importance ratio inner/old of the step."),
        Column(
            "clip_share", "float", "share", "Share of action tokens on which the clip was active."
        ),
        Column(
            "correct_logp",
            "float",
            "nat/token",
            "Mean log π_old over the tokens of correct responses (Fig. 2).",
        ),
        Column(
            "incorrect_logp",
            "float",
            "nat/token",
            "Mean log π_old over the tokens of incorrect responses (Fig. 9a).",
        ),
        Column("logp_gap", "float", "nat/token", "correct_logp − incorrect_logp."),
        Column(
            "delta_correct",
            "float",
            "nat/response",
            "Mean over re-scored correct responses of "
            "mixed groups of Δ = Σ (log π_post − log π_old) (Eq. 3, Def. 4.1).",
        ),
        Column("delta_incorrect", "float", "nat/response", "The same over incorrect responses."),
        Column("delta_correct_sum", "sum", "nat", "Numerator of delta_correct."),
        Column("n_delta_correct", "count", "response", "Denominator of delta_correct."),
        Column(
            "lld_share",
            "float",
            "share",
            "Share of those correct responses with Δ ≤ 0 (LLD of "
            "the response, Def. 4.1 with ϵ = 0).",
        ),
        Column(
            "delta_correct_loss",
            "float",
            "nat/response",
            "Mean of max(0, −Δ) over those correct responses.",
        ),
        Column(
            "delta_correct_q10",
            "float",
            "nat/response",
            "10 % quantile of Δ over those correct responses.",
        ),
        Column(
            "delta_correct_trim",
            "float",
            "nat/response",
            "Mean of Δ over those correct responses, each clipped to [−1, 1] nat.",
        ),
        Column(
            "displaced_share",
            "float",
            "share",
            "Share of mixed groups whose re-scored correct responses lost likelihood on average: "
            "Δ(x) < 0 (Eq. 3, Fig. 3a).",
        ),
        Column("n_groups", "count", "group", "Groups of the step."),
        Column("group_size_max", "count", "response", "Rollouts of the step's largest group."),
        Column(
            "zero_signal_share", "float", "share", "Share of groups whose rewards are all equal."
        ),
        Column(
            "prompt_collision_share",
            "float",
            "share",
            "Share of groups whose rollouts have more than one prompt.",
        ),
        Column(
            "advantage_offset",
            "float",
            "",
            "Mean over groups of the absolute mean advantage: 0 where advantages are relative to "
            "the recorded group.",
        ),
        Column("response_tokens", "float", "token", "Mean action tokens per rollout."),
        Column("correct_tokens", "float", "token", "Mean action tokens per correct rollout."),
        Column("incorrect_tokens", "float", "token", "Mean action tokens per incorrect rollout."),
        Column("valid_searches", "float", "action", "Mean valid searches per rollout."),
        Column("answered_share", "float", "share", "Share of rollouts that ended with an answer."),
        Column("truncated_share", "float", "share", "Share of rollouts cut by a length limit."),
        Column("invalid_share", "float", "share", "Share of actions that are invalid."),
        Column("tool_fail_share", "float", "share", "Share of tool calls that failed."),
        Column(
            "merged_action_share",
            "float",
            "share",
            "Share of answered rollouts with a valid search that have fewer rows of actions than "
            "n_searches + 1.",
        ),
        Column(
            "good_first_action_share",
            "float",
            "share",
            "Share of incorrect rollouts of mixed "
            "groups whose first action retrieved the same documents as a correct rollout of "
            "the group (Fig. 5).",
        ),
        Column(
            "action_logp_min",
            "float",
            "nat",
            "Median over actions of the smallest log π_old of a token.",
        ),
        Column(
            "incorrect_error_norm",
            "float",
            "1/token",
            "Mean ‖e_y − π‖² over the tokens of incorrect rollouts (GWHES, arXiv 2505.18830).",
        ),
        Column(
            "llds_gate_share",
            "float",
            "share",
            "Share of preserved actions (advantage ≥ 0) with an open LLDS gate.",
        ),
        Column(
            "dropped_token_share",
            "float",
            "share",
            "Share of tokens with log π_post < log π_old in preserved, re-scored actions.",
        ),
        Column("engine_gap", "float", "nat/token", "Mean of log π_behaviour − log π_old."),
        Column("loss_policy", "float", "", "Policy loss."),
        Column("loss_llds", "float", "nat", "LLDS loss before its coefficient."),
        Column("loss_kl", "float", "nat", "KL loss before its coefficient."),
        Column("lr", "float", "", "Learning rate."),
        Column("seconds_rollout", "float", "s", "Sampling, slowest rank."),
        Column("seconds_update", "float", "s", "Updates, slowest rank."),
        Column("seconds_record", "float", "s", "Recording, slowest rank."),
    ),
)

ACTION_SIGNALS = Table(
    "action_signals",
    "one row per RL step, action index and correctness",
    (
        Column("step", "int", "step", "RL step."),
        Column("action_index", "int", "", "Turn within the rollout, counted from 0."),
        Column("correct", "bool", "", "Correctness of the rollouts the actions belong to."),
        Column("n_actions", "count", "action", "Actions counted."),
        Column(
            "logp",
            "float",
            "nat/token",
            "Mean log π_old over the actions' tokens (correct_logp_by_action where correct).",
        ),
        Column("n_delta", "count", "action", "Actions with a measured Δ."),
        Column("delta", "float", "nat/action", "Mean Δ of those actions (delta_by_action)."),
        Column("lld_share", "float", "share", "Share of those actions with Δ ≤ 0."),
    ),
)

PROBE_SIGNALS = Table(
    "probe_signals",
    "one row per RL step and probe",
    (
        Column("step", "int", "step", "RL step."),
        Column("probe", "text", "", "What was measured, for example probe_set_logp."),
        Column("value", "float", "", "Mean over the measurements, in the probe's own unit."),
        Column("n", "count", "", "Measurements."),
    ),
)


def signal_names(*names: str) -> tuple[str, ...]:
    """The names as they are; raises KeyError for one that is no signal."""
    if unknown := set(names) - set(SIGNALS.names):
        raise KeyError(f"not in the registry of signals: {', '.join(sorted(unknown))}")
    return names


VIEWS: dict[str, Table] = {t.name: t for t in (SIGNALS, ACTION_SIGNALS, PROBE_SIGNALS)}


@cache
def arrow_schema(table: str) -> pa.Schema:
    """Arrow schema of a recorded table, the schema version in its metadata."""
    fields = [pa.field(c.name, c.arrow, nullable=not c.required) for c in TABLES[table].columns]
    return pa.schema(fields, metadata={"lldscope.schema": str(SCHEMA_VERSION)})
