-- Grain: one row per step, over its optimizer updates. Non-finite norms and ratios are counted, each
-- update once however many ranks tell of it, and not averaged. n_nonfinite: NULL if there was
-- nothing to look at.
SELECT
    step,
    median(grad_norm) FILTER (isfinite(grad_norm)) AS grad_norm,
    max(grad_norm) FILTER (isfinite(grad_norm))    AS grad_norm_max,
    CASE WHEN count(grad_finite) + count(grad_norm) + count(ratio_max) > 0
         THEN count(DISTINCT update) FILTER (
             NOT grad_finite OR NOT isfinite(grad_norm) OR NOT isfinite(ratio_max)
         ) END                                     AS n_nonfinite,
    max(ratio_max) FILTER (isfinite(ratio_max))    AS ratio_max,
    ratio(n_clipped, n_tokens)                     AS clip_share
FROM updates
GROUP BY step
