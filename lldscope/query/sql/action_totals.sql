-- Grain: one row per (step, action_index, correct, mixed, preserved): sums over actions.
-- Numbers that are NaN or Inf are counted and left out.
-- logp over n_logp tokens, n_down over n_down_of, error_norm over n_error: actions that have both.
-- delta over n_delta actions: log π_post − log π_old, nats. n_scored: with any policy's log π.
SELECT
    step,
    action_index,
    correct,
    mixed,
    preserved,
    count(*)                                                        AS n_actions,
    count(coalesce(logp_behaviour_sum, logp_old_sum, logp_post_sum)) AS n_scored,
    count(CASE WHEN NOT isfinite(logp_behaviour_sum) OR NOT isfinite(logp_old_sum)
                 OR NOT isfinite(logp_post_sum) THEN 1 END)         AS n_nonfinite,
    counted(tool_ok)                                                AS n_tool,
    counted_true(NOT tool_ok)                                       AS n_tool_fail,
    counted(llds_gate)                                              AS n_gate,
    counted_true(llds_gate)                                         AS n_gate_open,
    finite_sum(n_tokens_down, n_tokens)                             AS n_down,
    finite_weight(n_tokens_down, n_tokens)                          AS n_down_of,
    finite_sum(error_norm_sum, n_tokens)                            AS error_norm,
    finite_weight(error_norm_sum, n_tokens)                         AS n_error,
    finite_sum(logp_old_sum, n_tokens)                              AS logp,
    finite_weight(logp_old_sum, n_tokens)                           AS n_logp,
    count(d)                                                        AS n_delta,
    sum(d)                                                          AS delta,
    sum((d <= 0)::INT)                                              AS n_fallen
FROM (SELECT *, difference(logp_post_sum, logp_old_sum) AS d FROM action_class)
GROUP BY step, action_index, correct, mixed, preserved
