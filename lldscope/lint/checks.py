"""The checks of `lldscope lint`, and the effect of each fault on training.

A check is two SELECTs over the run's tables. `scope` counts the rows that can be checked; if there
are none, the check names the columns that it `needs`. `faults` are the contradicting rows: the
step, and the evidence in the other columns. `faults` may use values of `parameters` in braces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .declared import Setting, group_relative, number

Parameters = dict[str, float | int | str]


@dataclass(frozen=True)
class Check:
    """One check. `settings` are the settings it concerns, by their names in `declared.SETTINGS`;
    `parameters` is None if the declared settings make the check pointless."""

    id: str
    asks: str
    needs: str
    effect: str
    scope: str
    faults: str
    settings: tuple[str, ...] = ()
    parameters: Callable[[Mapping[str, Setting]], Parameters | None] = lambda settings: {}


def _groups(settings: Mapping[str, Setting]) -> Parameters | None:
    return {} if group_relative(settings) else None


def _size(settings: Mapping[str, Setting]) -> Parameters:
    size = number(settings, "group_size")
    return {"size": int(size) if size else "(SELECT mode(n) FROM groups)"}


def _scale(settings: Mapping[str, Setting]) -> Parameters | None:
    if not group_relative(settings):
        return None
    std, none = "('σ', 'σ, population')", "('none', 'leave-one-out')"
    kinds = {"true": std, "group": std, "false": none, "none": none}
    setting = settings.get("advantage_std")
    # Without a declaration: the estimator that explains most rollouts.
    most = "(SELECT mode(kind) FROM scaled)"
    return {"kinds": most if setting is None else kinds.get(str(setting.value).lower(), most)}


def _whole_distribution(settings: Mapping[str, Setting]) -> Parameters | None:
    """None if the run declares a sampling distribution other than the full one."""
    top_p, top_k = number(settings, "top_p") or 1.0, number(settings, "top_k") or 0
    return {} if top_p >= 1 and top_k in (0, -1) else None


def _temperature(settings: Mapping[str, Setting]) -> Parameters | None:
    if _whole_distribution(settings) is None or (number(settings, "temperature") or 1.0) != 1.0:
        return None
    return {}


GROUPS = """
WITH members AS (FROM responses WHERE group_id IS NOT NULL),
groups AS (
    SELECT step, group_id, count(*) AS n, count(reward) AS n_rewards,
        count(advantage) AS n_advantages, avg(reward) AS mean, stddev_samp(reward) AS sd,
        stddev_pop(reward) AS sd_pop, max(reward) - min(reward) AS spread,
        avg(advantage) AS mean_advantage, max(abs(advantage)) AS largest,
        covar_pop(reward, advantage) AS covariance,
        count(DISTINCT prompt_hash) AS prompts, count(DISTINCT policy_version) AS versions
    FROM members GROUP BY ALL
)"""

# The factor of each advantage over reward − mean, and the estimator that explains it.
SCALED = f"""{GROUPS},
factors AS (
    SELECT m.step, m.group_id, m.response_id, m.advantage / (m.reward - g.mean) AS factor, g.*
        EXCLUDE (step, group_id)
    FROM members m JOIN groups g USING (step, group_id)
    WHERE g.n > 1 AND g.n_rewards = g.n AND m.advantage IS NOT NULL
        AND abs(m.reward - g.mean) > 1e-3 * greatest(1, abs(g.mean))
),
scaled AS (
    SELECT *, CASE
        WHEN abs(factor * (sd + 1e-4) - 1) < 0.01 OR abs(factor * sd - 1) < 0.01 THEN 'σ'
        WHEN abs(factor * sd_pop - 1) < 0.01 THEN 'σ, population'
        WHEN abs(factor - 1) < 0.01 THEN 'none'
        WHEN abs(factor * (n - 1) / n - 1) < 0.01 THEN 'leave-one-out'
        ELSE 'unknown' END AS kind
    FROM factors
)"""

# Actions beside the sums of their recorded tokens.
TOKEN_SUMS = """
WITH recorded AS (
    SELECT step, rank, response_id, action_index, count(*) AS n, sum(logp_old) AS logp_old,
        sum(entropy) AS entropy, count(logp_old) AS n_logp, count(entropy) AS n_entropy,
        string_agg(text, '' ORDER BY position) AS text
    FROM tokens WHERE action_index IS NOT NULL GROUP BY ALL
),
pairs AS (
    SELECT step, rank, response_id, action_index, a.n_tokens, t.n, t.n_logp, t.n_entropy,
        a.logp_old_sum, t.logp_old, a.entropy_sum, t.entropy, t.text
    FROM actions a JOIN recorded t USING (step, rank, response_id, action_index)
)"""

# Rollouts with tokens of others than the policy after its first action.
TOOL_TEXT = """
SELECT step, rank, response_id FROM tokens GROUP BY ALL
HAVING max(position) FILTER (action_index IS NULL) > min(position) FILTER (action_index >= 0)"""

BATCHES = """
WITH rows_of_step AS (
    SELECT step, count(*) AS n, sum(reward) AS reward, count(reward) AS n_rewards,
        count(*) FILTER (correct) AS n_correct, count(correct) AS n_judged
    FROM responses GROUP BY ALL
),
sums AS (
    SELECT step, sum(n_responses) AS n_responses, sum(n_correct) AS n_correct,
        sum(reward_sum) AS reward_sum
    FROM steps GROUP BY ALL
)"""

# The prompts of each step, of every attempt that did it.
RESUMES = """
WITH prompts AS (
    SELECT DISTINCT step, attempt, prompt_hash FROM all_responses WHERE prompt_hash IS NOT NULL
),
batches AS (
    SELECT step, attempt, list(prompt_hash ORDER BY prompt_hash) AS batch
    FROM prompts GROUP BY ALL
)"""

# Steps with exactly the prompts of an earlier step. Five steps before the resume must show that it
# does not happen anyway, as after an epoch of few prompts in a fixed order.
REPEATS = """
WITH kept AS (
    SELECT step, any_value(attempt) AS attempt, list(DISTINCT prompt_hash ORDER BY prompt_hash)
        AS batch
    FROM responses WHERE prompt_hash IS NOT NULL GROUP BY step
),
repeats AS (
    SELECT later.step, later.attempt, earlier.step AS as_in_step, earlier.attempt AS before,
        (SELECT count(*) FROM kept k WHERE k.attempt < later.attempt) AS n_before
    FROM kept later JOIN kept earlier ON later.batch = earlier.batch AND earlier.step < later.step
)"""

ENGINE = """
WITH sampled AS (
    SELECT step, rank, response_id, position, text, logp_behaviour AS engine, logp_old AS trainer
    FROM tokens WHERE isfinite(logp_behaviour) AND isfinite(logp_old) AND action_index IS NOT NULL
)"""

# The mean of −log π over sampled tokens is the entropy of π if they were sampled from π.
SURPRISE = """
WITH rollouts AS (
    SELECT step, rank, response_id, sum(-logp_old_sum) AS surprise, sum(entropy_sum) AS entropy,
        sum(n_tokens) AS n
    FROM actions WHERE isfinite(logp_old_sum) AND isfinite(entropy_sum) GROUP BY ALL
),
answer AS (
    SELECT max(step) AS step, sum(surprise) / sum(n) AS surprise, sum(entropy) / sum(n) AS entropy,
        sum(surprise - entropy) / (sqrt(count(*)) * stddev_samp(surprise - entropy)) AS z
    FROM rollouts
)"""

CHECKS: tuple[Check, ...] = (
    Check(
        "group-size",
        "Every group has all its rollouts.",
        "responses.group_id",
        "the mean and the deviation of an incomplete group are those of other rollouts",
        f"{GROUPS} SELECT count(*) FROM groups",
        f"{GROUPS} SELECT step, group_id, n AS rollouts FROM groups WHERE n <> {{size}}",
        ("group_size",),
        _size,
    ),
    Check(
        "group-prompt",
        "The rollouts of a group answer one prompt.",
        "responses.prompt_hash",
        "advantages compare answers to different questions: the easier question is reinforced",
        f"{GROUPS} SELECT count(*) FROM groups WHERE prompts > 0",
        f"{GROUPS} SELECT step, group_id, prompts FROM groups WHERE prompts > 1",
        ("group_size",),
    ),
    Check(
        "group-version",
        "The rollouts of a group were sampled by one policy.",
        "responses.policy_version",
        "the group's baseline mixes policies, and ratios are wrong for a part of it",
        f"{GROUPS} SELECT count(*) FROM groups WHERE versions > 0",
        f"{GROUPS} SELECT step, group_id, versions FROM groups WHERE versions > 1",
    ),
    Check(
        "advantage-offset",
        "Advantages of a group add up to 0.",
        "responses.advantage of whole groups",
        "every response of the group is pushed the same way, right or wrong",
        f"{GROUPS} SELECT count(*) FROM groups WHERE n > 1 AND n_advantages = n",
        f"{GROUPS} SELECT step, group_id, round(mean_advantage, 4) AS mean_advantage FROM groups"
        " WHERE n > 1 AND n_advantages = n AND abs(mean_advantage) > 1e-3 * greatest(1, largest)",
        ("estimator", "advantage_std"),
        _groups,
    ),
    Check(
        "advantage-scale",
        "Advantages are divided by what the configuration says.",
        "responses.reward and advantage",
        "groups that are nearly all right or all wrong weigh more, or less, than was meant",
        f"{SCALED} SELECT count(*) FROM scaled",
        f"{SCALED} SELECT step, group_id, response_id, round(factor, 4) AS factor,"
        " kind AS divided_by FROM scaled WHERE kind NOT IN {kinds} AND abs(sd - 1) > 0.02"
        " AND abs(mean_advantage) <= 1e-3 * greatest(1, largest)",
        ("advantage_std", "estimator"),
        _scale,
    ),
    Check(
        "advantage-order",
        "A higher reward has no lower advantage.",
        "responses.reward and advantage",
        "wrong answers are reinforced and right ones suppressed",
        f"{GROUPS} SELECT count(*) FROM groups WHERE spread > 0 AND n_advantages = n",
        f"{GROUPS} SELECT step, group_id, round(covariance, 4) AS covariance FROM groups"
        " WHERE spread > 0 AND n_advantages = n AND covariance < -1e-6",
        ("estimator",),
        _groups,
    ),
    Check(
        "advantage-without-signal",
        "Equal rewards give no advantage.",
        "responses.reward and advantage",
        "noise is amplified into gradient: a deviation near 0 was divided by",
        f"{GROUPS} SELECT count(*) FROM groups WHERE spread = 0 AND n > 1 AND n_advantages = n",
        f"{GROUPS} SELECT step, group_id, round(largest, 4) AS largest FROM groups"
        " WHERE spread = 0 AND n > 1 AND n_advantages = n AND largest > 1e-3",
        ("advantage_std", "estimator"),
        _groups,
    ),
    Check(
        "empty-response",
        "Empty responses carry no advantage.",
        "responses.n_tokens and advantage",
        "a failed generation counts as a wrong answer and moves the baseline of its group",
        "SELECT count(*) FROM responses WHERE n_tokens IS NOT NULL AND advantage IS NOT NULL",
        "SELECT step, response_id, reward, round(advantage, 4) AS advantage FROM responses"
        " WHERE n_tokens = 0 AND abs(advantage) > 1e-6",
    ),
    Check(
        "resume-order",
        "A step that was done twice had the same prompts both times.",
        "responses.prompt_hash of a resumed run, with steps that both attempts did",
        "prompts are skipped, or seen in another order, after a resume",
        f"{RESUMES} SELECT count(*) FROM batches a JOIN batches b"
        " ON a.step = b.step AND a.attempt < b.attempt",
        f"{RESUMES} SELECT b.step, a.attempt AS one, b.attempt AS other,"
        " len(list_filter(b.batch, lambda p: NOT list_contains(a.batch, p))) AS other_prompts"
        " FROM batches a JOIN batches b ON a.step = b.step AND a.attempt < b.attempt"
        " WHERE a.batch <> b.batch",
    ),
    Check(
        "resume-repeat",
        "Batches from before a resume do not come again after it.",
        "responses.prompt_hash of a resumed run",
        "prompts are trained twice after a resume: the position in the data is not restored",
        "SELECT greatest(count(DISTINCT attempt) - 1, 0) FROM responses"
        " WHERE prompt_hash IS NOT NULL",
        f"{REPEATS} SELECT step, attempt, as_in_step FROM repeats WHERE before < attempt"
        " AND n_before >= 5 AND NOT EXISTS (FROM repeats r WHERE r.before = r.attempt)",
    ),
    Check(
        "tool-text",
        "No action contains what a tool wrote.",
        "tokens.text",
        "the policy is trained to imitate the tool",
        f"{TOKEN_SUMS} SELECT count(*) FROM pairs WHERE text IS NOT NULL",
        # A policy may invent a tool's answer itself; then the tool's own is still there, unmasked.
        f"{TOKEN_SUMS} SELECT step, response_id, action_index, right(text, 60) AS text FROM pairs"
        " SEMI JOIN (FROM actions WHERE tool_ok IS NOT NULL) USING (step, rank, response_id)"
        f" ANTI JOIN ({TOOL_TEXT}) USING (step, rank, response_id) WHERE"
        " regexp_matches(text, '<(information|tool_response|observation|result)>[^<]*</')",
    ),
    Check(
        "token-counts",
        "Counts of tokens agree.",
        "responses.n_tokens and actions.n_tokens",
        "tokens outside of any action carry loss, or actions lost tokens",
        "SELECT count(*) FROM responses WHERE n_tokens IS NOT NULL AND n_actions > 0",
        "SELECT step, response_id, any_value(r.n_tokens) AS of_response,"
        " sum(a.n_tokens) AS of_actions FROM responses r"
        " JOIN actions a USING (step, rank, response_id) WHERE r.n_tokens IS NOT NULL"
        " GROUP BY step, rank, response_id, r.n_actions"
        " HAVING count(a.n_tokens) = r.n_actions AND of_response <> of_actions",
    ),
    Check(
        "token-sums",
        "Log-probabilities and entropies of tokens add up to those of their action.",
        "tokens.logp_old or entropy, of whole actions",
        "a signal is not of the tokens that were trained on",
        f"{TOKEN_SUMS} SELECT count(*) FROM pairs"
        " WHERE n = n_tokens AND (n_logp = n OR n_entropy = n)",
        f"{TOKEN_SUMS} SELECT step, response_id, action_index,"
        " round(logp_old, 3) AS logp_of_tokens, round(logp_old_sum, 3) AS logp_of_action,"
        " round(entropy, 3) AS entropy_of_tokens, round(entropy_sum, 3) AS entropy_of_action"
        " FROM pairs WHERE n = n_tokens AND ("
        " n_logp = n AND abs(logp_old - logp_old_sum) > 0.02 + 0.01 * abs(logp_old_sum) OR"
        " n_entropy = n AND abs(entropy - entropy_sum) > 0.02 + 0.01 * abs(entropy_sum))",
    ),
    Check(
        "batch-sums",
        "Sums of a step are those of its responses.",
        "steps and responses",
        "reward or success is not that of the rollouts that were trained on",
        f"{BATCHES} SELECT count(*) FROM sums JOIN rows_of_step USING (step)",
        f"{BATCHES} SELECT step, n_responses, n AS rows, round(reward_sum, 3) AS reward_sum,"
        " round(reward, 3) AS reward_of_rows, s.n_correct, r.n_correct AS correct_rows FROM sums s"
        " JOIN rows_of_step r USING (step) WHERE n_responses <> n OR"
        " n_rewards = n AND abs(reward_sum - reward) > 1e-3 * (1 + abs(reward)) OR"
        " n_judged = n AND s.n_correct <> r.n_correct",
    ),
    Check(
        "entropy-bound",
        "The entropy is possible for the probability of the sampled token.",
        "tokens.entropy and logp_old",
        "the entropy that is logged, and perhaps trained on, is not the policy's",
        "SELECT count(*) FROM tokens WHERE isfinite(entropy) AND isfinite(logp_old)",
        # H ≥ −p ln p − (1 − p) ln(1 − p), with equality where one other token has all the rest.
        "SELECT step, response_id, position, round(exp(logp_old), 4) AS probability,"
        " round(entropy, 4) AS entropy FROM tokens WHERE isfinite(entropy) AND isfinite(logp_old)"
        " AND (entropy < -0.01 OR logp_old BETWEEN -20 AND -1e-4 AND entropy < 0.9 *"
        " (-exp(logp_old) * logp_old - (1 - exp(logp_old)) * ln(1 - exp(logp_old))) - 0.02)",
    ),
    Check(
        "entropy-mean",
        "Tokens are as surprising as the entropy says.",
        "actions.logp_old_sum and entropy_sum",
        "tokens are sampled from another distribution than the loss takes them to be from, or the"
        " entropy is not the policy's",
        f"{SURPRISE} SELECT CASE WHEN z IS NULL THEN 0 ELSE 1 END FROM answer",
        f"{SURPRISE} SELECT step, round(surprise, 4) AS nats_a_token, round(entropy, 4) AS entropy"
        " FROM answer WHERE abs(z) > 6 AND abs(surprise - entropy) > 0.1 * greatest(entropy, 0.05)",
        ("temperature", "top_p", "top_k"),
        _temperature,
    ),
    Check(
        "engine-slope",
        "The engine samples at the temperature at which the trainer scores.",
        "tokens.logp_behaviour and logp_old",
        "every ratio is of two different distributions",
        f"{ENGINE} SELECT CASE WHEN count(*) < 200 THEN 0 ELSE count(*) END FROM sampled",
        f"{ENGINE} SELECT max(step) AS step, round(regr_slope(engine, trainer), 3) AS slope,"
        " round(1 / regr_slope(engine, trainer), 2) AS temperature, count(*) AS tokens FROM sampled"
        " WHERE trainer > -12 HAVING count(*) >= 200 AND abs(slope - 1) > 0.08",
        ("temperature",),
    ),
    Check(
        "kept-mass",
        "The engine samples from the whole distribution.",
        "tokens.logp_behaviour and logp_old",
        "the engine's probabilities are of what top-p or top-k keeps: ratios are below 1"
        " in the mean",
        f"{ENGINE} SELECT CASE WHEN count(*) < 200 THEN 0 ELSE count(*) END FROM sampled",
        f"{ENGINE} SELECT max(step) AS step, round(avg(least(exp(trainer - engine), 20)), 3)"
        " AS kept_mass, count(*) AS tokens FROM sampled HAVING count(*) >= 200 AND kept_mass < 0.98"
        " AND (1 - kept_mass) * sqrt(count(*)) > 6 * stddev_samp(least(exp(trainer - engine), 20))",
        ("top_p", "top_k"),
        _whole_distribution,
    ),
    Check(
        "confident-disagreement",
        "Engine and trainer agree where the engine is sure.",
        "tokens.logp_behaviour and logp_old",
        "the engine has other weights, another precision or a fault: its tokens get wild ratios",
        f"{ENGINE} SELECT count(*) FROM sampled WHERE engine >= ln(0.5)",
        f"{ENGINE} SELECT step, response_id, position, text, round(exp(engine), 3) AS engine,"
        " round(exp(trainer), 4) AS trainer FROM sampled"
        " WHERE engine >= ln(0.5) AND trainer < engine - 2",
    ),
)
