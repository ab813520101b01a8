-- Grain: one row per (step, action_index, correct); rollouts of unknown class are left out.
-- Levels over all rollouts; Δ over the re-scored actions of rollouts of mixed groups. NaN and Inf
-- are left out.
SELECT
    a.*,
    engine_k3, engine_chi2, engine_ess, engine_far_share,
    inner_k3, inner_chi2, inner_ess, inner_far_share
FROM (
    SELECT
        step,
        action_index,
        correct,
        count(*)                AS n_actions,
        ratio(logp, n_tokens)   AS logp,
        count(d)                AS n_delta,
        avg(d)                  AS delta,
        avg((d <= 0)::INT)      AS lld_share
    FROM (
        SELECT
            a.step, a.action_index, a.n_tokens, r.correct,
            CASE WHEN isfinite(a.logp_old_sum) THEN a.logp_old_sum::DOUBLE END AS logp,
            CASE WHEN r.mixed THEN difference(a.logp_post_sum, a.logp_old_sum) END       AS d
        FROM actions a
        JOIN response_class r USING (step, rank, response_id)
        WHERE r.correct IS NOT NULL
    )
    GROUP BY step, action_index, correct
) a
LEFT JOIN step_action_ratios r USING (step, action_index, correct)
