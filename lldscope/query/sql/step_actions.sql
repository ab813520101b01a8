-- Grain: one row per step, over actions; numbers that are NaN or Inf are counted and left out.
-- tool_fail_share: over actions that called a tool. llds_gate_share, dropped_token_share: over the
-- preserving set of LLDS, rollouts with advantage ≥ 0. action_logp_min: median over actions.
-- incorrect_error_norm: per token.
SELECT
    a.step,
    CASE WHEN count(coalesce(a.logp_behaviour_sum, a.logp_old_sum, a.logp_post_sum)) > 0
         THEN count(*) FILTER (
             NOT isfinite(a.logp_behaviour_sum) OR NOT isfinite(a.logp_old_sum)
             OR NOT isfinite(a.logp_post_sum)
         ) END                                               AS n_nonfinite,
    avg((NOT a.tool_ok)::INT)                                AS tool_fail_share,
    avg(a.llds_gate::INT) FILTER (r.preserved)               AS llds_gate_share,
    ratio(CASE WHEN r.preserved THEN a.n_tokens_down END, a.n_tokens) AS dropped_token_share,
    median(a.logp_min) FILTER (isfinite(a.logp_min))         AS action_logp_min,
    ratio(CASE WHEN NOT r.correct AND isfinite(a.error_norm_sum) THEN a.error_norm_sum::DOUBLE END,
          a.n_tokens)                                        AS incorrect_error_norm
FROM actions a
LEFT JOIN (
    SELECT step, rank, response_id, correct, advantage >= 0 AND NOT isnan(advantage) AS preserved
    FROM responses
) r USING (step, rank, response_id)
GROUP BY a.step
