-- Grain: one row per (step, action_index, correct); rollouts of unknown class are left out.
-- Levels over all rollouts; Δ over the re-scored actions of rollouts of mixed groups. NaN and Inf
-- are left out.
SELECT
    step,
    action_index,
    correct,
    count(*)                AS n_actions,
    ratio(logp, n_tokens)   AS logp,
    count(d)                AS n_delta,
    avg(d)                  AS delta,
    avg((d <= 0)::INT)      AS lld_share,
    ratio(engine_k3, n_tokens)          AS engine_k3,
    ratio(engine_r2, n_tokens) - 1      AS engine_chi2,
    ess(engine_r, engine_r2, n_tokens)  AS engine_ess,
    ratio(engine_far, n_tokens)         AS engine_far_share,
    ratio(inner_k3, n_tokens)           AS inner_k3,
    ratio(inner_r2, n_tokens) - 1       AS inner_chi2,
    ess(inner_r, inner_r2, n_tokens)    AS inner_ess,
    ratio(inner_far, n_tokens)          AS inner_far_share
FROM (
    SELECT
        a.*, r.correct,
        CASE WHEN isfinite(a.logp_old_sum) THEN a.logp_old_sum::DOUBLE END AS logp,
        CASE WHEN r.mixed THEN difference(a.logp_post_sum, a.logp_old_sum) END       AS d
    FROM action_ratios a
    JOIN response_class r USING (step, rank, response_id)
    WHERE r.correct IS NOT NULL
)
GROUP BY step, action_index, correct
