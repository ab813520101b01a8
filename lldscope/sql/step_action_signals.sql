-- Grain: one row per (step, action_index, correct).
-- Levels over all rollouts; Δ over the re-scored actions of rollouts of mixed groups.
SELECT
    a.step,
    a.action_index,
    r.correct,
    count(*)                                          AS n_actions,
    sum(a.logp_old_sum::DOUBLE)
        / sum(a.n_tokens) FILTER (a.logp_old_sum IS NOT NULL) AS logp,
    count(a.logp_post_sum - a.logp_old_sum) FILTER (r.mixed)  AS n_delta,
    avg(a.logp_post_sum::DOUBLE - a.logp_old_sum::DOUBLE) FILTER (r.mixed) AS delta,
    avg((a.logp_post_sum <= a.logp_old_sum)::INT) FILTER (r.mixed)         AS lld_share
FROM actions a
JOIN response_likelihood r USING (step, response_id)
WHERE r.correct IS NOT NULL
GROUP BY a.step, a.action_index, r.correct
