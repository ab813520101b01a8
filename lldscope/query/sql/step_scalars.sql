-- Grain: one row per step with scalars. means: name → mean over the ranks that logged a number, Inf
-- where none logged a finite one.
-- n_nonfinite: of the names whose sums are looked at elsewhere, how many were NaN or Inf; NULL if none
-- was logged.
SELECT
    step,
    map_from_entries(list((name, value)) FILTER (value IS NOT NULL)) AS means,
    NULL::DOUBLE AS tool_calls, NULL::DOUBLE AS rollout_age,  -- means alone
    NULL::DOUBLE AS engine_diff, NULL::DOUBLE AS engine_prob_diff,
    CASE WHEN bool_or(watched) THEN count(*) FILTER (watched AND bad) END AS n_nonfinite
FROM (
    SELECT
        step,
        name,
        coalesce(avg(value) FILTER (isfinite(value)), max(value) FILTER (isinf(value))) AS value,
        bool_or(NOT isfinite(value))        AS bad,
        count(value) > 0 AND name IN (
            'reward', 'entropy', 'kl', 'loss_policy', 'loss_llds', 'loss_kl', 'grad_norm',
            'grad_norm_max', 'ratio_max', 'correct_logp', 'incorrect_logp'
        )                                   AS watched
    FROM scalars
    GROUP BY step, name
)
GROUP BY step
