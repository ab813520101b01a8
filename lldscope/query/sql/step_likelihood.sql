-- Grain: one row per step, over rollouts with actions.
-- Δ are means over the re-scored responses of mixed groups whose Δ is a number, of correct (d) and of
-- incorrect ones (e); the quantile is interpolated linearly.
-- step_kl: each class of the mixed groups counts with all its rollouts, whatever share of it was re-scored.
-- engine_seq_…: over responses all of whose actions the engine scored; w, the ratio, within e^±20.
-- merged_action_share: over answered rollouts with a valid search; see actions_merged.
SELECT
    step,
    sum(d)                                                  AS delta_correct_sum,
    count(d)                                                AS n_delta_correct,
    sqrt(sum(CASE WHEN d IS NOT NULL THEN rounding_sq END)) / nullif(count(d), 0)
                                                            AS delta_correct_rounding,
    avg(d)                                                  AS delta_correct,
    avg(e)                                                  AS delta_incorrect,
    avg((d <= 0)::INT)                                      AS lld_share,
    coalesce(sum(CASE WHEN d < 0 THEN -d END), 0) / nullif(count(d), 0)
                                                            AS delta_correct_loss,
    quantile_cont(d, 0.1)                                   AS delta_correct_q10,
    avg(CASE WHEN d > 1 THEN 1 WHEN d < -1 THEN -1 ELSE d END)
                                                            AS delta_correct_trim,
    -(avg(d) * count(CASE WHEN correct AND mixed THEN 1 END)
      + avg(e) * count(CASE WHEN NOT correct AND mixed THEN 1 END))
        / any_value(mixed_tokens)                           AS step_kl,
    avg(w * w) - 1                                          AS engine_seq_chi2,
    ess(w, w * w, (w IS NOT NULL)::INT)                     AS engine_seq_ess,
    avg(actions_merged::INT)                                AS merged_action_share
FROM (
    SELECT
        *,
        CASE WHEN correct AND mixed AND isfinite(delta) THEN delta END     AS d,
        CASE WHEN NOT correct AND mixed AND isfinite(delta) THEN delta END AS e,
        -- In single precision the sums of squares are the same in any order.
        CASE WHEN isfinite(engine_log_ratio)
             THEN exp(greatest(-20, least(20, engine_log_ratio)))::FLOAT::DOUBLE END AS w
    FROM response_likelihood
)
LEFT JOIN (
    SELECT step, nullif(sum(n_logp), 0) AS mixed_tokens
    FROM action_totals
    WHERE correct IS NOT NULL AND mixed
    GROUP BY step
) USING (step)
GROUP BY step
