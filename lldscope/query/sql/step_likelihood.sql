-- Grain: one row per step, over rollouts with actions.
-- Levels are token means over all tokens of the class. Δ (here d) are means over the re-scored
-- responses of mixed groups whose Δ is a number; the quantile is interpolated linearly.
-- step_kl: each class of the mixed groups counts with all its rollouts, whatever share of it was re-scored.
-- engine_seq_…: over responses all of whose actions the engine scored; w, the ratio, within e^±20.
-- merged_action_share: over answered rollouts with a valid search; see actions_merged.
SELECT
    step,
    sum(logp_old) FILTER (correct)
        / nullif(sum(n_tokens) FILTER (correct), 0)         AS correct_logp,
    sum(logp_old) FILTER (NOT correct)
        / nullif(sum(n_tokens) FILTER (NOT correct), 0)     AS incorrect_logp,
    correct_logp - incorrect_logp                           AS logp_gap,
    sum(d) FILTER (correct)                                 AS delta_correct_sum,
    count(d) FILTER (correct)                               AS n_delta_correct,
    sqrt(sum(rounding_sq) FILTER (correct AND d IS NOT NULL))
        / nullif(count(d) FILTER (correct), 0)              AS delta_correct_rounding,
    avg(d) FILTER (correct)                                 AS delta_correct,
    avg(d) FILTER (NOT correct)                             AS delta_incorrect,
    avg((d <= 0)::INT) FILTER (correct)                     AS lld_share,
    coalesce(sum(-d) FILTER (correct AND d < 0), 0)
        / nullif(count(d) FILTER (correct), 0)              AS delta_correct_loss,
    quantile_cont(d, 0.1) FILTER (correct)                  AS delta_correct_q10,
    avg(CASE WHEN d > 1 THEN 1 WHEN d < -1 THEN -1 ELSE d END) FILTER (correct)
                                                            AS delta_correct_trim,
    -(avg(d) FILTER (correct) * count(*) FILTER (correct AND mixed)
      + avg(d) FILTER (NOT correct) * count(*) FILTER (NOT correct AND mixed))
        / nullif(sum(n_tokens) FILTER (correct IS NOT NULL AND mixed), 0)
                                                            AS step_kl,
    avg(w * w) - 1                                          AS engine_seq_chi2,
    ess(w, w * w, 1)                                        AS engine_seq_ess,
    avg(actions_merged::INT)                                AS merged_action_share
FROM (
    SELECT
        *,
        CASE WHEN mixed AND isfinite(delta) THEN delta END AS d,
        -- In single precision the sums of squares are the same in any order.
        CASE WHEN isfinite(engine_log_ratio)
             THEN exp(greatest(-20, least(20, engine_log_ratio)))::FLOAT::DOUBLE END AS w
    FROM response_likelihood
)
GROUP BY step
