-- Grain: one row per rollout with actions.
-- delta: Σ over its actions of (logp_post_sum − logp_old_sum), nats (Def. 4.1 of the response);
-- NULL unless every action was re-scored. mixed is true where the rollout belongs to no group.
SELECT
    r.step,
    r.response_id,
    r.correct,
    r.data_source,
    r.group_id,
    coalesce(g.mixed, r.group_id IS NULL) AS mixed,
    a.n_tokens,
    a.logp_old,
    a.delta
FROM (
    SELECT
        step,
        rank,
        response_id,
        sum(n_tokens) FILTER (logp_old_sum IS NOT NULL) AS n_tokens,
        sum(logp_old_sum::DOUBLE)                       AS logp_old,
        CASE WHEN count(logp_post_sum - logp_old_sum) = count(*)
             THEN sum(logp_post_sum::DOUBLE - logp_old_sum::DOUBLE) END AS delta
    FROM actions
    GROUP BY step, rank, response_id
) a
JOIN responses r USING (step, rank, response_id)
LEFT JOIN group_totals g
    ON g.step = r.step AND g.group_id = r.group_id
   AND g.data_source IS NOT DISTINCT FROM r.data_source
