-- Grain: one row per step, over actions. engine_gap: nats per token, over actions with both policies;
-- the other engine_… and inner_…: over actions with their ratios.
SELECT
    step,
    ratio(gap, n_tokens)                AS engine_gap,
    ratio(engine_k3, n_tokens)          AS engine_k3,
    ratio(engine_r2, n_tokens) - 1      AS engine_chi2,
    ess(engine_r, engine_r2, n_tokens)  AS engine_ess,
    ratio(engine_far, n_tokens)         AS engine_far_share,
    ratio(engine_r, n_tokens)           AS engine_ratio,
    ratio(inner_k3, n_tokens)           AS inner_k3,
    ratio(inner_r2, n_tokens) - 1       AS inner_chi2,
    ess(inner_r, inner_r2, n_tokens)    AS inner_ess,
    ratio(inner_far, n_tokens)          AS inner_far_share
FROM action_ratios
GROUP BY step
