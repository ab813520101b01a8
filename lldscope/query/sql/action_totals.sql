-- Grain: one row per (step, action_index, correct, mixed, preserved): sums over actions. The last
-- three are those of the rollout, NULL where it is not recorded.
-- Numbers that are NaN or Inf are counted and left out.
-- logp over n_logp tokens, n_down over n_down_of, error_norm over n_error: actions that have both.
-- delta over n_delta actions: log π_post − log π_old, nats. n_scored: with any policy's log π.
-- gap over n_gap: log π_behaviour − log π_old. engine_…: of the ratios r = π_old/π_behaviour,
-- inner_…: of r = π_inner/π_old: k3 of r − 1 − log r, r, r2 of r², all three over n_engine or n_inner
-- tokens, those of actions for which all that the pair needs is a number; far, over n_…_far: tokens
-- with |log r| > ln 2. Σ r follows from k3 and Σ log r, and is exact where Σ r itself, kept in single
-- precision, is not.
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
    count(tool_ok)                                                  AS n_tool,
    sum((NOT tool_ok)::INT)                                         AS n_tool_fail,
    count(llds_gate)                                                AS n_gate,
    sum(llds_gate::INT)                                             AS n_gate_open,
    finite_sum(n_tokens_down, n_tokens)                             AS n_down,
    finite_weight(n_tokens_down, n_tokens)                          AS n_down_of,
    finite_sum(error_norm_sum, n_tokens)                            AS error_norm,
    finite_weight(error_norm_sum, n_tokens)                         AS n_error,
    finite_sum(logp_old_sum, n_tokens)                              AS logp,
    finite_weight(logp_old_sum, n_tokens)                           AS n_logp,
    count(d)                                                        AS n_delta,
    sum(d)                                                          AS delta,
    sum((d <= 0)::INT)                                              AS n_fallen,
    sum(CASE WHEN n_tokens IS NOT NULL THEN log_ratio_engine END)   AS gap,
    sum(CASE WHEN log_ratio_engine IS NOT NULL THEN n_tokens END)   AS n_gap,
    sum(CASE WHEN engine THEN n_tokens END)                         AS n_engine,
    sum(CASE WHEN engine THEN engine_k3_sum::DOUBLE END)            AS engine_k3,
    sum(CASE WHEN engine THEN n_tokens + engine_k3_sum::DOUBLE - log_ratio_engine END) AS engine_r,
    sum(CASE WHEN engine THEN engine_ratio_sq_sum::DOUBLE END)      AS engine_r2,
    sum(CASE WHEN engine THEN n_tokens_engine_far END)              AS engine_far,
    sum(CASE WHEN engine AND n_tokens_engine_far IS NOT NULL THEN n_tokens END) AS n_engine_far,
    sum(CASE WHEN inside THEN n_tokens END)                         AS n_inner,
    sum(CASE WHEN inside THEN inner_k3_sum::DOUBLE END)             AS inner_k3,
    sum(CASE WHEN inside THEN n_tokens + inner_k3_sum::DOUBLE + log_ratio_inner END) AS inner_r,
    sum(CASE WHEN inside THEN inner_ratio_sq_sum::DOUBLE END)       AS inner_r2,
    sum(CASE WHEN inside THEN n_tokens_inner_far END)               AS inner_far,
    sum(CASE WHEN inside AND n_tokens_inner_far IS NOT NULL THEN n_tokens END) AS n_inner_far
FROM (
    SELECT
        *,
        difference(logp_post_sum, logp_old_sum)      AS d,
        difference(logp_behaviour_sum, logp_old_sum) AS log_ratio_engine,
        difference(logp_inner_sum, logp_old_sum)     AS log_ratio_inner,
        log_ratio_engine IS NOT NULL AND n_tokens IS NOT NULL
            AND isfinite(engine_k3_sum) AND isfinite(engine_ratio_sq_sum) AS engine,
        log_ratio_inner IS NOT NULL AND n_tokens IS NOT NULL
            AND isfinite(inner_k3_sum) AND isfinite(inner_ratio_sq_sum)   AS inside
    FROM actions
    LEFT JOIN (SELECT step, rank, response_id, correct, mixed, preserved FROM response_class)
        USING (step, rank, response_id)
)
GROUP BY step, action_index, correct, mixed, preserved
