-- Grain: one row per step, over actions; numbers that are NaN or Inf are counted and left out.
-- tool_fail_share: over actions that called a tool. llds_gate_share, dropped_token_share: over the
-- preserving set of LLDS, rollouts with advantage ≥ 0. action_logp_min: median over actions.
-- correct_logp, incorrect_logp, incorrect_error_norm: per token of the class.
-- engine_gap: nats per token, over actions with both policies; other engine_… and inner_…: over
-- actions with their ratios.
SELECT
    step,
    CASE WHEN sum(n_scored) > 0 THEN sum(n_nonfinite) END::BIGINT       AS n_nonfinite,
    ratio(n_tool_fail, n_tool)                                          AS tool_fail_share,
    ratio(CASE WHEN preserved THEN n_gate_open END, n_gate)             AS llds_gate_share,
    ratio(CASE WHEN preserved THEN n_down END, n_down_of)               AS dropped_token_share,
    any_value(action_logp_min)                                          AS action_logp_min,
    ratio(CASE WHEN NOT correct THEN error_norm END, n_error)           AS incorrect_error_norm,
    ratio(CASE WHEN correct THEN logp END, n_logp)                      AS correct_logp,
    ratio(CASE WHEN NOT correct THEN logp END, n_logp)                  AS incorrect_logp,
    correct_logp - incorrect_logp                                       AS logp_gap,
    ratio(gap, n_gap)                                                   AS engine_gap,
    ratio(engine_k3, n_engine)                                          AS engine_k3,
    ratio(engine_r2, n_engine) - 1                                      AS engine_chi2,
    ess(engine_r, engine_r2, n_engine)                                  AS engine_ess,
    ratio(engine_far, n_engine_far)                                     AS engine_far_share,
    ratio(engine_r, n_engine)                                           AS engine_ratio,
    ratio(inner_k3, n_inner)                                            AS inner_k3,
    ratio(inner_r2, n_inner) - 1                                        AS inner_chi2,
    ess(inner_r, inner_r2, n_inner)                                     AS inner_ess,
    ratio(inner_far, n_inner_far)                                       AS inner_far_share
FROM action_totals
LEFT JOIN (
    SELECT step, median(logp_min) AS action_logp_min
    FROM actions
    WHERE isfinite(logp_min)
    GROUP BY step
) USING (step)
GROUP BY step
