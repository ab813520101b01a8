-- Grain: one row per (step, action_index, correct); rollouts of unknown class are left out.
-- Levels over all rollouts; Δ over the re-scored actions of rollouts of mixed groups. NaN and Inf
-- are left out.
SELECT
    step,
    action_index,
    correct,
    sum(n_actions)                                                     AS n_actions,
    ratio(action_totals.logp, n_logp)                                  AS logp,
    sum(CASE WHEN mixed THEN n_delta ELSE 0 END)                       AS n_delta,
    ratio(CASE WHEN mixed THEN delta END, action_totals.n_delta)       AS delta,
    ratio(CASE WHEN mixed THEN n_fallen END, action_totals.n_delta)    AS lld_share
FROM action_totals
WHERE correct IS NOT NULL
GROUP BY step, action_index, correct
