-- Grain: one row per step, over its optimizer updates. Non-finite norms are counted, not averaged.
SELECT
    step,
    median(grad_norm) FILTER (isfinite(grad_norm)) AS grad_norm,
    max(grad_norm) FILTER (isfinite(grad_norm))    AS grad_norm_max,
    count(*) FILTER (NOT grad_finite OR NOT isfinite(grad_norm)) AS n_nonfinite,
    max(ratio_max) FILTER (isfinite(ratio_max))    AS ratio_max,
    sum(n_clipped) / sum(n_tokens) FILTER (n_clipped IS NOT NULL) AS clip_share
FROM updates
GROUP BY step
