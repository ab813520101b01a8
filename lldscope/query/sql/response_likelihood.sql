-- Grain: one row per rollout with actions.
-- delta: Σ over its actions of (logp_post_sum − logp_old_sum), nats (Def. 4.1 of the response);
-- NULL unless every action was re-scored. NaN and Inf are passed on as they came.
-- rounding_sq: Σ rounding_sq_sum; NULL unless every action has it.
-- engine_log_ratio: likewise of (logp_old_sum − logp_behaviour_sum).
-- n_tokens, logp_old: over its actions with a number for both.
-- actions_merged: fewer rows of actions than the searches and the answer are: turns that were not
-- told apart, as where tool text counts as the policy's own. NULL without an answer or a search.
SELECT
    r.step,
    r.rank,
    r.response_id,
    r.correct,
    r.data_source,
    r.group_id,
    r.mixed,
    a.n_tokens,
    a.logp_old,
    a.delta,
    a.rounding_sq,
    a.engine_log_ratio,
    a.n_actions < r.n_actions_least AS actions_merged
FROM (
    SELECT
        step,
        rank,
        response_id,
        count(*)                                            AS n_actions,
        sum(n_tokens) FILTER (isfinite(logp_old_sum))       AS n_tokens,
        sum(logp_old_sum::DOUBLE)
            FILTER (isfinite(logp_old_sum) AND n_tokens IS NOT NULL) AS logp_old,
        CASE WHEN count(logp_post_sum - logp_old_sum) = count(*)
             THEN sum(logp_post_sum::DOUBLE - logp_old_sum::DOUBLE) END AS delta,
        CASE WHEN count(rounding_sq_sum) = count(*)
             THEN sum(rounding_sq_sum::DOUBLE) END          AS rounding_sq,
        CASE WHEN count(logp_old_sum - logp_behaviour_sum) = count(*)
             THEN sum(logp_old_sum::DOUBLE - logp_behaviour_sum::DOUBLE) END AS engine_log_ratio
    FROM actions
    GROUP BY step, rank, response_id
) a
JOIN response_class r USING (step, rank, response_id)
