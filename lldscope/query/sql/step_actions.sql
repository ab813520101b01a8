-- Grain: one row per step, over actions; numbers that are NaN or Inf are counted and left out.
-- tool_fail_share: over actions that called a tool. llds_gate_share, dropped_token_share: over the
-- preserving set of LLDS, rollouts with advantage ≥ 0. action_logp_min: median over actions.
-- correct_logp, incorrect_logp, incorrect_error_norm: per token of the class.
-- engine_gap: nats per token, over actions with both policies; other engine_… and inner_…: over
-- actions with their ratios.
SELECT
    step,
    CASE WHEN sum(n_scored) > 0 THEN sum(n_nonfinite) END::BIGINT       AS n_nonfinite,
    sum(n_tool_fail) / nullif(sum(n_tool), 0)                           AS tool_fail_share,
    sum(n_gate_open) FILTER (preserved)
        / nullif(sum(n_gate) FILTER (preserved), 0)                     AS llds_gate_share,
    sum(n_down) FILTER (preserved)
        / nullif(sum(n_down_of) FILTER (preserved), 0)                  AS dropped_token_share,
    any_value(action_logp_min)                                          AS action_logp_min,
    sum(error_norm) FILTER (NOT correct)
        / nullif(sum(n_error) FILTER (NOT correct), 0)                  AS incorrect_error_norm,
    sum(logp) FILTER (correct) / nullif(sum(n_logp) FILTER (correct), 0) AS correct_logp,
    sum(logp) FILTER (NOT correct)
        / nullif(sum(n_logp) FILTER (NOT correct), 0)                   AS incorrect_logp,
    correct_logp - incorrect_logp                                       AS logp_gap,
    sum(gap) / nullif(sum(n_gap), 0)                                    AS engine_gap,
    sum(engine_k3) / nullif(sum(n_engine), 0)                           AS engine_k3,
    sum(engine_r2) / nullif(sum(n_engine), 0) - 1                       AS engine_chi2,
    ess(engine_r, engine_r2, n_engine)                                  AS engine_ess,
    sum(engine_far) / nullif(sum(n_engine_far), 0)                      AS engine_far_share,
    sum(engine_r) / nullif(sum(n_engine), 0)                            AS engine_ratio,
    sum(inner_k3) / nullif(sum(n_inner), 0)                             AS inner_k3,
    sum(inner_r2) / nullif(sum(n_inner), 0) - 1                         AS inner_chi2,
    ess(inner_r, inner_r2, n_inner)                                     AS inner_ess,
    sum(inner_far) / nullif(sum(n_inner_far), 0)                        AS inner_far_share
FROM action_totals
LEFT JOIN (
    SELECT step, median(logp_min) AS action_logp_min
    FROM actions
    WHERE isfinite(logp_min)
    GROUP BY step
) USING (step)
GROUP BY step
