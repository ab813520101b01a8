"""The one registry of everything a run records.

Writer, SQL views, documentation and `lldscope schema` read this module. A new column is declared
here once; a new signal also needs its expression in a file of query/sql. Conventions of every
table:

- Sums and counts are stored at their natural grain; means are divided once, in SQL.
- NULL means "not measured", never 0. NaN and Inf are stored as they came.
- Log-probabilities are in nats, of the tokens the policy itself emitted (tool text is masked out).
  Their name says which policy they are of: `behaviour` the engine that sampled, `old` the
  trainer's policy at rollout time, `inner` the policy inside the update at the moment of the loss,
  `post` the policy after the step's last update, `ref` the frozen reference.
- The recorder adds `attempt` and `rank` to every row, after `step`.

A table is declared as text: its name and grain, and a line for each column with name (`!` if it is
required), kind, unit (`-` for none) and meaning. A line that is indented further continues it; an
empty line separates tables.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 1

RETENTION_STEPS = 16
"""Steps over which a kept correct response is scored again after every update."""

COMPONENT = "component/"
"""Prefix of the scalars that are components of the reward."""

Kind = Literal["int", "count", "float", "sum", "bool", "text", "time"]

_ARROW: dict[Kind, str] = {
    "int": "int32", "count": "int32", "float": "float", "sum": "double", "bool": "bool",
    "text": "string", "time": "double",
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
    def arrow(self) -> str:
        """Name of the Arrow type; a name, because importing Arrow is slow."""
        return _ARROW[self.kind]


@dataclass(frozen=True)
class Table:
    """One table: its grain, as a phrase, and its columns in order."""

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


def _tables(declarations: str, stamp: tuple[Column, ...] = ()) -> dict[str, Table]:
    """Parse declarations into tables by name. The columns of `stamp` are inserted after the first
    one. Raises ValueError if the text is malformed."""
    tables = (_table(text, stamp) for text in declarations.split("\n\n"))
    return {table.name: table for table in tables}


def _table(declaration: str, stamp: tuple[Column, ...]) -> Table:
    title, *lines = declaration.strip().splitlines()
    name, _, grain = title.partition(": ")
    columns: list[Column] = []
    for line in lines:
        if line.startswith(" " * 8):
            last = columns.pop()
            columns.append(replace(last, meaning=f"{last.meaning} {line.strip()}"))
        else:
            column, kind, unit, meaning = line.split(None, 3)
            if kind not in _ARROW:
                raise ValueError(f"{name}.{column} has no known kind: {kind}")
            unit, required = unit.removeprefix("-"), column.endswith("!")
            columns.append(Column(column.removesuffix("!"), kind, unit, meaning, required))
    return Table(name, grain, (columns[0], *stamp, *columns[1:]))


TABLES: dict[str, Table] = _tables("""
steps: one row per RL step (one rollout batch) and rank; partial sums, the views add the ranks up
    step!           int   step     RL step, counted from 0.
    time            time  s        Unix time at which the step ended.
    policy_version  int   update   Optimizer updates made before the rollouts were sampled.
    n_responses     count response Rollouts in the batch.
    n_correct       count response Rollouts that are correct by the run's rule.
    reward_sum      sum   reward   Sum of rewards over the rollouts.
    reward_sq_sum   sum   reward²  Sum of squared rewards.
    n_tokens        count token    Action tokens in the batch.
    entropy_sum     sum   nat      Sum over action tokens of the sampling policy's full-vocabulary
        entropy.
    kl_sum          sum   nat      Sum over action tokens of the k3 estimate of KL to the reference.
    loss_policy     float -        Policy loss, token-weighted mean over the updates.
    loss_llds       float nat      LLDS loss before its coefficient, mean over the updates.
    loss_kl         float nat      KL loss before its coefficient, mean over the updates.
    lr              float -        Learning rate of the step's last update.
    seconds_rollout float s        Sampling, tools included.
    seconds_update  float s        Scoring, losses and optimizer updates.
    seconds_record  float s        What recording added: re-score after the last update, gathering
        of rows, recorder calls.
    seconds_score   float s        Part of seconds_update: π_old, where another engine sampled.
    seconds_reference float s      Part of seconds_update: scoring under the reference.
    seconds_sync    float s        Part of seconds_update: the new weights to the engine.
    seconds_evaluation float s     Evaluations since the step before; part of no other.
    memory_peak     count byte     Most memory allocated on the device.

updates: one row per optimizer update (and rank)
    step!       int   step   RL step.
    update!     int   update Update within the step, counted from 0.
    grad_norm   float -      Global L2 norm of the gradient before clipping.
    grad_finite bool  -      False if the norm was NaN or Inf.
    skipped     bool  -      True if the update was not applied.
    ratio_max   float -      Largest importance ratio inner/old of the update.
    ratio_p99   float -      99th percentile of the importance ratio.
    n_clipped   count token  Tokens on which the clip was active.
    n_tokens    count token  Action tokens in the update.

responses: one row per rollout
    step!        int   step   RL step.
    response_id! int   -      Rollout, unique within the step.
    group_id     int   -      Rollouts of one question share it; unique within the step.
    data_source  text  -      Data set the question comes from.
    policy_version int update Optimizer updates made before it was sampled.
    prompt_hash  text  -      Hash of the prompt; a group has one prompt.
    reward       float reward Reward of the rollout.
    advantage    float -      Group-relative advantage used in the loss.
    correct      bool  -      Correct by the rule in run.json; NULL if unknown.
    n_actions    count action Actions of the rollout.
    n_tokens     count token  Action tokens of the rollout.
    n_searches   count action Valid searches.
    n_invalid    count action Actions that parsed as neither search nor answer.
    answered     bool  -      The rollout ended with an answer.
    truncated    bool  -      A length limit cut the rollout.
    repeat_share float share  Share of its 4-grams of action tokens that it has had before.
    text         text  -      The whole rollout as text; untrusted model output.
    question     text  -      What was asked: the end of the last message of the prompt; untrusted.
    golden       text  -      Golden answers, as a JSON array of texts.
    reward_parts text  -      Reward by component, as a JSON object of numbers.

actions: one row per action: everything the model emitted in one turn of a rollout
    step!              int   step  RL step.
    response_id!       int   -     Rollout the action belongs to.
    action_index!      int   -     Turn within the rollout, counted from 0.
    kind               text  -     search, answer, invalid or text.
    n_tokens           count token Tokens the model emitted in this turn.
    logp_behaviour_sum float nat   Σ log π of the engine that sampled.
    logp_old_sum       float nat   Σ log π of the trainer's policy at rollout time.
    logp_inner_sum     float nat   Σ log π at the moment of the loss.
    logp_post_sum      float nat   Σ log π after the step's last update.
    logp_ref_sum       float nat   Σ log π of the frozen reference.
    n_tokens_down      count token Tokens with log π_post < log π_old.
    drop_sum           float nat   Σ max(0, log π_old − log π_post).
    rounding_sq_sum    float nat^2 Σ of the squared rounding errors to expect in log π_post −
        log π_old: (u² + v²)/12, with u and v the spacings of bfloat16 or half precision there. NULL
        where the trainer's numbers are finer.
    entropy_sum        float nat   Σ entropy of the sampling policy.
    error_norm_sum     float -     Σ ‖e_y − π‖² = Σ (1 − 2π(y) + Σ_v π(v)²), sampling policy.
    logp_min           float nat   Smallest log π_old of the action.
    engine_k3_sum      float nat   Σ (r − 1 − log r) of the ratios r = π_old/π_behaviour. In r,
        here and below, log r counts as 20 at most.
    engine_ratio_sq_sum float -    Σ r² of the same.
    n_tokens_engine_far count token Tokens with |log r| > ln 2 of the same.
    inner_k3_sum       float nat   Σ (r − 1 − log r) of the ratios r = π_inner/π_old.
    inner_ratio_sq_sum float -     Σ r² of the same.
    n_tokens_inner_far count token Tokens with |log r| > ln 2 of the same.
    llds_gate          bool  -     The LLDS gate was open for the action inside the update.
    llds_sum           float nat   Σ of the gated LLDS penalty of the action's tokens.
    tool_ok            bool  -     The tool answered; NULL if no tool was called.
    docs_hash          text  -     Hash of the set of documents the tool returned.

tokens: one row per token of a chosen rollout (a sample of rollouts)
    step!        int   step  RL step.
    response_id! int   -     Rollout the token belongs to.
    position!    int   token Position in the sequence, prompt included.
    action_index int   -     Action the token belongs to; NULL for prompt and tool text.
    token_id     int   -     Token id in the policy's vocabulary.
    text         text  -     The token as text; untrusted model output.
    logp_behaviour float nat log π of the engine that sampled.
    logp_old     float nat   log π of the trainer's policy at rollout time.
    logp_post    float nat   log π after the step's last update.
    entropy      float nat   Entropy of the sampling policy at this position.

retention: one row per RL step and action of a correct response of an earlier step, scored again
    step!             int   step   RL step after whose last update it was scored again.
    age!              int   step   Steps since the response was sampled: it is of step − age.
    response_id!      int   -      The response, unique within the step that sampled it.
    action_index!     int   -      Turn within the rollout, counted from 0.
    n_tokens          count token  Tokens the model emitted in this turn.
    logp_old_sum      float nat    Σ log π of the trainer's policy when the response was sampled.
    logp_previous_sum float nat    Σ log π after the last update of the step before; NULL if it was
        not scored there.
    logp_post_sum     float nat    Σ log π after the last update of `step`.

evals: one row per evaluation, data source and metric
    step!       int   step     Steps trained when the evaluation ran.
    data_source text  -        Data set evaluated.
    metric!     text  -        Name of the metric, for example em_greedy.
    value       float -        Mean over the questions.
    n           count question Questions evaluated.

eval_questions: one row per evaluation and question
    step!       int   step     Steps trained when the evaluation ran.
    name!       text  -        Which evaluation, for example greedy: the end of its metrics' names.
    question!   int   -        The question's place in the evaluation, counted from 0.
    data_source text  -        Data set of the question.
    em          float -        Exact match, 0 or 1.
    f1          float -        Token F1.

probes: one row per extra measurement
    step!        int   step RL step.
    probe!       text  -    What was measured, for example probe_set_logp or hidden_similarity.
    group_id     int   -    Group measured; NULL if the probe is about none.
    response_id  int   -    Response measured; NULL if the probe is about none.
    action_index int   -    Action measured; NULL if the probe is about none.
    value        float -    The measurement, in the probe's own unit.

scalars: one row per step and name: a mean that somebody else computed, as their log tells it
    step!     int  step RL step.
    name!     text -    The signal it stands for, as in `signals`; otherwise the name it had in its
        log.
    value     sum  -    The mean, in the signal's unit where it stands for one.
    estimator text -    How it differs from what lldscope would measure; NULL if it does not, or if
        the name is no signal's.
""", _STAMP)

VIEWS: dict[str, Table] = _tables("""
signals: one row per RL step; NULL where nothing was measured
    step                    int   step         RL step.
    time                    time  s            Unix time at which the step's last rank ended.
    tokens_seen             sum   token        Action tokens trained on, this step included.
    n_responses             count response     Rollouts of the step.
    reward                  float reward       Mean reward over rollouts.
    reward_sd               float reward       Standard deviation of the reward over rollouts.
    success                 float share        Share of rollouts that are correct.
    eval_score              float -            Held-out score of the policy with which the step
        begins: exact match, or else accuracy, or else reward.
    eval_n                  count question     Questions of that evaluation.
    entropy                 float nat/token    Mean full-vocabulary entropy over action tokens.
    kl                      float nat/token    Mean k3 estimate of KL to the reference.
    grad_norm               float -            Median over the step's updates of the pre-clip norm.
    grad_norm_max           float -            Largest pre-clip norm of the step's updates.
    n_nonfinite             count -            Updates whose gradient norm or ratio was NaN or Inf,
        plus ranks whose reward, entropy, KL or loss was, plus actions whose log-probability was.
    ratio_max               float -            Largest importance ratio inner/old of the step.
    clip_share              float share        Share of action tokens on which the clip was active.
    correct_logp            float nat/token    Mean log π_old over the tokens of correct responses
        (Fig. 2).
    incorrect_logp          float nat/token    Mean log π_old over the tokens of incorrect responses
        (Fig. 9a).
    logp_gap                float nat/token    correct_logp − incorrect_logp.
    delta_correct           float nat/response Mean over re-scored correct responses of mixed groups
        of Δ = Σ (log π_post − log π_old) (Eq. 3, Def. 4.1).
    delta_incorrect         float nat/response The same over incorrect responses.
    delta_correct_sum       sum   nat          Numerator of delta_correct.
    delta_correct_rounding  float nat/response Standard error of delta_correct that comes from
        rounding log-probabilities to bfloat16 or half precision. NULL where they are finer.
    n_delta_correct         count response     Denominator of delta_correct.
    lld_share               float share        Share of those correct responses with Δ ≤ 0 (LLD of
        the response, Def. 4.1 with ϵ = 0).
    step_kl                 float nat/token    Mean over the action tokens of mixed groups of
        log π_old − log π_post: estimates KL(π_old ‖ π_post), how far the step moved the policy.
    displaced_share         float share        Share of mixed groups whose re-scored correct
        responses lost likelihood on average: Δ(x) < 0 (Eq. 3, Fig. 3a).
    retention               float nat/response Mean over kept correct responses of the last 16
        steps of Σ (log π_post − log π_old), π_old being the policy that sampled them.
    retention_delta         float nat/response Mean over those responses of their change in this
        step, Σ (log π_post − log π_previous).
    n_groups                count group        Groups of the step.
    group_size_max          count response     Rollouts of the step's largest group.
    zero_signal_share       float share        Share of groups whose rewards are all equal.
    all_right_share         float share        Share of groups whose rewards are all equal and whose
        rollouts are all correct.
    all_wrong_share         float share        The same, none of them correct.
    zero_signal_token_share float share        Share of action tokens in groups whose rewards are
        all equal.
    prompt_collision_share  float share        Share of groups whose rollouts have more than one
        prompt.
    advantage_offset        float -            Mean over groups of the absolute mean advantage: 0
        where advantages are relative to the recorded group.
    response_tokens         float token        Mean action tokens per rollout.
    correct_tokens          float token        Mean action tokens per correct rollout.
    incorrect_tokens        float token        Mean action tokens per incorrect rollout.
    valid_searches          float action       Mean valid searches per rollout.
    tool_calls              float action       Mean tool calls per rollout, whatever came back.
        Imported only.
    answered_share          float share        Share of rollouts that ended with an answer.
    truncated_share         float share        Share of rollouts cut by a length limit.
    repeat_share            float share        Mean over rollouts of the share of their 4-grams that
        they have had before.
    invalid_share           float share        Share of actions that are invalid.
    tool_fail_share         float share        Share of tool calls that failed.
    merged_action_share     float share        Share of answered rollouts with a valid search that
        have fewer rows of actions than n_searches + 1.
    good_first_action_share float share        Share of incorrect rollouts of mixed groups whose
        first action retrieved the same documents as a correct rollout of the group (Fig. 5).
    action_logp_min         float nat          Median over actions of the smallest log π_old of a
        token.
    incorrect_error_norm    float 1/token      Mean ‖e_y − π‖² over the tokens of incorrect rollouts
        (GWHES, arXiv 2505.18830).
    llds_gate_share         float share        Share of preserved actions (advantage ≥ 0) with an
        open LLDS gate.
    dropped_token_share     float share        Share of tokens with log π_post < log π_old in
        preserved, re-scored actions.
    engine_gap              float nat/token    Mean of log π_behaviour − log π_old.
    engine_diff             float nat/token    Mean of |log π_behaviour − log π_old|: no KL.
        Imported only.
    engine_prob_diff        float -            Mean of |π_behaviour − π_old|, of probabilities.
        Imported only.
    rollout_age             float version      Mean number of versions of the policy made after
        the one that sampled. Imported only.
    engine_k3               float nat/token    Mean of r − 1 − log r over the action tokens' ratios
        r = π_old/π_behaviour: the k3 estimate of KL(π_behaviour ‖ π_old).
    engine_ratio            float -            Mean of those ratios.
    engine_chi2             float -            Mean of r² − 1: estimates χ²(π_old ‖ π_behaviour).
    engine_ess              float share        (Σ r)²/(n Σ r²): effective sample size of n tokens.
    engine_far_share        float share        Share of tokens with |log r| > ln 2.
    inner_k3                float nat/token    As engine_k3, of r = π_inner/π_old: estimates
        KL(π_old ‖ π_inner).
    inner_chi2              float -            As engine_chi2, of r = π_inner/π_old.
    inner_ess               float share        As engine_ess, of r = π_inner/π_old.
    inner_far_share         float share        As engine_far_share, of r = π_inner/π_old.
    loss_policy             float -            Policy loss.
    loss_llds               float nat          LLDS loss before its coefficient.
    loss_kl                 float nat          KL loss before its coefficient.
    lr                      float -            Learning rate.
    seconds_rollout         float s            Sampling, slowest rank.
    seconds_update          float s            Updates, slowest rank.
    seconds_record          float s            Recording, slowest rank.
    seconds_score           float s            π_old by the trainer, part of the updates' seconds.
    seconds_reference       float s            The reference, part of the updates' seconds.
    seconds_sync            float s            Weights to the engine, part of the updates' seconds.
    seconds_evaluation      float s            Evaluations since the step before.
    tokens_per_second       float token/s      Action tokens of the step per second of sampling,
        updates and recording.
    memory_peak             count byte         Most memory allocated on a device.

action_signals: one row per RL step, action index and correctness
    step         int   step       RL step.
    action_index int   -          Turn within the rollout, counted from 0.
    correct      bool  -          Correctness of the rollouts the actions belong to.
    n_actions    count action     Actions counted.
    logp         float nat/token  Mean log π_old over the actions' tokens (correct_logp_by_action
        where correct).
    n_delta      count action     Actions with a measured Δ.
    delta        float nat/action Mean Δ of those actions (delta_by_action).
    lld_share    float share      Share of those actions with Δ ≤ 0.
""")

SIGNALS, ACTION_SIGNALS = VIEWS.values()
UNITS = {column.name: column.unit for column in SIGNALS.columns}

Role = Literal["list", "check", "compare", "report", "apart"]
"""Where a signal appears: `list`, in the list of runs and in /metrics; `check` and `watch`;
`compare`; the report's table of signals. `apart`: never compared by `diff`, because clocks and
counts differ in any two runs."""

# Signal → its roles, and its label on a terminal, in the order in which signals are shown.
_ROLES: dict[str, tuple[str, str]] = {
    "reward": ("list check compare report", "reward"),
    "success": ("list", ""),
    "eval_score": ("check compare report", "held-out score"),
    "correct_logp": ("list check compare report", "log π correct"),
    "incorrect_logp": ("report", ""),
    "delta_correct": ("list check compare report", "Δ correct, nats"),
    "delta_incorrect": ("report", ""),
    "lld_share": ("compare report", ""),
    "displaced_share": ("report", ""),
    "entropy": ("list check compare report", "entropy, nats"),
    "grad_norm": ("list check compare report", "gradient norm"),
    "grad_norm_max": ("report", ""),
    "kl": ("list", ""),
    "response_tokens": ("check compare report", "response tokens"),
    "valid_searches": ("check compare report", "searches"),
    "tool_calls": ("check compare report", "tool calls"),
    "good_first_action_share": ("report", ""),
    "zero_signal_share": ("compare report", ""),
    "llds_gate_share": ("report", ""),
    "tool_fail_share": ("report", ""),
    "lr": ("list report", ""),
    **dict.fromkeys(
        ("step", "time", "tokens_seen", "tokens_per_second", "memory_peak", "n_delta_correct",
         "delta_correct_sum", *(n for n in SIGNALS.names if n.startswith("seconds_"))),
        ("apart", ""),
    ),
}


def signals_in(role: Role) -> dict[str, str]:
    """The signals with this role and their labels. Raises KeyError if one is not in the
    registry."""
    if unknown := set(_ROLES) - set(SIGNALS.names):
        raise KeyError(f"not in the registry of signals: {', '.join(sorted(unknown))}")
    return {name: label for name, (roles, label) in _ROLES.items() if role in roles.split()}


@cache
def arrow_schema(table: str) -> pa.Schema:
    """Arrow schema of a recorded table, with the schema version in its metadata."""
    import pyarrow as pa

    fields = [pa.field(c.name, c.arrow, nullable=not c.required) for c in TABLES[table].columns]
    return pa.schema(fields, metadata={"lldscope.schema": str(SCHEMA_VERSION)})
