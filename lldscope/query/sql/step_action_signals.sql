-- Grain: one row per (step, action_index, correct); rollouts of unknown class are left out.
-- Levels over all rollouts; Δ over the re-scored actions of rollouts of mixed groups. NaN and Inf
-- are left out.
SELECT
    step,
    action_index,
    correct,
    sum(n_actions)                                                     AS n_actions,
    sum(logp) / nullif(sum(n_logp), 0)                                 AS logp,
    sum(CASE WHEN mixed THEN n_delta ELSE 0 END)                       AS n_delta,
    ratio(CASE WHEN mixed THEN delta END, action_totals.n_delta)       AS delta,
    ratio(CASE WHEN mixed THEN n_fallen END, action_totals.n_delta)    AS lld_share,
    sum(engine_k3) / nullif(sum(n_engine), 0)                          AS engine_k3,
    sum(engine_r2) / nullif(sum(n_engine), 0) - 1                      AS engine_chi2,
    ess(engine_r, engine_r2, n_engine)                                 AS engine_ess,
    sum(engine_far) / nullif(sum(n_engine_far), 0)                     AS engine_far_share,
    sum(inner_k3) / nullif(sum(n_inner), 0)                            AS inner_k3,
    sum(inner_r2) / nullif(sum(n_inner), 0) - 1                        AS inner_chi2,
    ess(inner_r, inner_r2, n_inner)                                    AS inner_ess,
    sum(inner_far) / nullif(sum(n_inner_far), 0)                       AS inner_far_share
FROM action_totals
WHERE correct IS NOT NULL
GROUP BY step, action_index, correct
