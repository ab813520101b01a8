-- Grain: one row per action with a number for both of a pair of policies; its sums over tokens are
-- NULL unless all that the pair needs is a number. Most runs record no such pair, and cost nothing.
-- gap: of log π_behaviour − log π_old. engine_…: of the ratios r = π_old/π_behaviour, inner_…: of
-- r = π_inner/π_old: k3 of r − 1 − log r, r, r2 of r², far: tokens with |log r| > ln 2.
-- Σ r follows from k3 and Σ log r, and is exact where Σ r itself, kept in single precision, is not.
SELECT
    *,
    CASE WHEN engine THEN engine_k3_sum::DOUBLE END                     AS engine_k3,
    CASE WHEN engine THEN n_tokens + engine_k3_sum::DOUBLE - gap END    AS engine_r,
    CASE WHEN engine THEN engine_ratio_sq_sum::DOUBLE END               AS engine_r2,
    CASE WHEN engine THEN n_tokens_engine_far END                       AS engine_far,
    CASE WHEN inside THEN inner_k3_sum::DOUBLE END                      AS inner_k3,
    CASE WHEN inside THEN n_tokens + inner_k3_sum::DOUBLE + moved END   AS inner_r,
    CASE WHEN inside THEN inner_ratio_sq_sum::DOUBLE END                AS inner_r2,
    CASE WHEN inside THEN n_tokens_inner_far END                        AS inner_far
FROM (
    SELECT
        *,
        difference(logp_behaviour_sum, logp_old_sum) AS gap,
        difference(logp_inner_sum, logp_old_sum)     AS moved,
        gap IS NOT NULL AND n_tokens IS NOT NULL
            AND isfinite(engine_k3_sum) AND isfinite(engine_ratio_sq_sum) AS engine,
        moved IS NOT NULL AND n_tokens IS NOT NULL
            AND isfinite(inner_k3_sum) AND isfinite(inner_ratio_sq_sum) AS inside
    FROM action_class
)
WHERE gap IS NOT NULL OR moved IS NOT NULL
