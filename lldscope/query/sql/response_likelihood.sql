-- Grain: one row per rollout with actions.
-- delta: Σ over its actions of (logp_post_sum − logp_old_sum), nats (Def. 4.1 of the response);
-- NULL unless every action was re-scored. NaN and Inf are passed on as they came.
-- rounding_sq: Σ rounding_sq_sum; NULL unless every action has it.
-- n_tokens, logp_old: over its actions with a number for both.
-- actions_merged: fewer rows of actions than the searches and the answer are: turns that were
-- merged, as where tool text counts as the policy's own. NULL without an answer or a search.
SELECT
    step,
    rank,
    response_id,
    correct,
    data_source,
    group_id,
    mixed,
    n_tokens,
    logp_old,
    CASE WHEN n_rescored = n_actions THEN delta END                        AS delta,
    CASE WHEN n_rounded = n_actions THEN rounding_sq END                   AS rounding_sq,
    n_actions < n_actions_least                                            AS actions_merged
FROM (
    SELECT
        step,
        rank,
        response_id,
        count(*)                                                           AS n_actions,
        finite_weight(logp_old_sum, n_tokens)                              AS n_tokens,
        finite_sum(logp_old_sum, n_tokens)                                 AS logp_old,
        count(logp_post_sum - logp_old_sum)                                AS n_rescored,
        sum(logp_post_sum::DOUBLE - logp_old_sum::DOUBLE)                  AS delta,
        count(rounding_sq_sum)                                             AS n_rounded,
        sum(rounding_sq_sum::DOUBLE)                                       AS rounding_sq
    FROM actions
    GROUP BY step, rank, response_id
)
JOIN response_class USING (step, rank, response_id)
