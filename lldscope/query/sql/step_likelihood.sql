-- Grain: one row per step, over rollouts with actions.
-- Δ are means over the re-scored responses of mixed groups whose Δ is a number, of correct (d) and of
-- incorrect ones (e).
-- step_kl: each class of the mixed groups counts with all its rollouts, whatever share of it was re-scored.
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
    -(avg(d) * count(CASE WHEN correct AND mixed THEN 1 END)
      + avg(e) * count(CASE WHEN NOT correct AND mixed THEN 1 END))
        / any_value(mixed_tokens)                           AS step_kl,
    avg(actions_merged::INT)                                AS merged_action_share
FROM (
    SELECT
        *,
        CASE WHEN correct AND mixed AND isfinite(delta) THEN delta END     AS d,
        CASE WHEN NOT correct AND mixed AND isfinite(delta) THEN delta END AS e
    FROM response_likelihood
)
LEFT JOIN (
    SELECT step, nullif(sum(n_logp), 0) AS mixed_tokens
    FROM action_totals
    WHERE correct IS NOT NULL AND mixed
    GROUP BY step
) USING (step)
GROUP BY step
