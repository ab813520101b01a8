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
    {response},
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
        {same_response},
        count(*)                                            AS n_actions,
        finite_weight(logp_old_sum, n_tokens)               AS n_tokens,
        finite_sum(logp_old_sum, n_tokens)                  AS logp_old,
        total_difference(logp_post_sum, logp_old_sum)       AS delta,
        total(rounding_sq_sum)                              AS rounding_sq,
        total_difference(logp_old_sum, logp_behaviour_sum)  AS engine_log_ratio
    FROM {own_actions}
    GROUP BY {same_response}
) a
JOIN response_class r USING ({same_response})
