-- Grain: one row per step, over actions; numbers that are NaN or Inf are counted and left out.
-- tool_fail_share: over actions that called a tool. llds_gate_share, dropped_token_share: over the
-- preserving set of LLDS, rollouts with advantage ≥ 0. action_logp_min: median over actions.
-- correct_logp, incorrect_logp, incorrect_error_norm: per token of the class.
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
    correct_logp - incorrect_logp                                       AS logp_gap
FROM action_totals
LEFT JOIN (
    SELECT step, median(logp_min) AS action_logp_min
    FROM action_class
    WHERE isfinite(logp_min)
    GROUP BY step
) USING (step)
GROUP BY step
