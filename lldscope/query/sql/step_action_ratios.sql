-- Grain: one row per (step, action_index, correct), over actions with ratios of a known class.
SELECT
    step,
    action_index,
    correct,
    ratio(engine_k3, n_tokens)          AS engine_k3,
    ratio(engine_r2, n_tokens) - 1      AS engine_chi2,
    ess(engine_r, engine_r2, n_tokens)  AS engine_ess,
    ratio(engine_far, n_tokens)         AS engine_far_share,
    ratio(inner_k3, n_tokens)           AS inner_k3,
    ratio(inner_r2, n_tokens) - 1       AS inner_chi2,
    ess(inner_r, inner_r2, n_tokens)    AS inner_ess,
    ratio(inner_far, n_tokens)          AS inner_far_share
FROM action_ratios
WHERE correct IS NOT NULL
GROUP BY step, action_index, correct
