-- Grain: one row per step. Population: mixed groups with a re-scored correct response.
-- Counted: those with Δ(x) < 0, the mean of Δ over these responses (Eq. 3).
SELECT step, avg((delta < 0)::INT) AS displaced_share
FROM (
    SELECT step, data_source, group_id, avg(delta) AS delta
    FROM response_likelihood
    WHERE correct AND mixed AND group_id IS NOT NULL AND isfinite(delta)
    GROUP BY step, data_source, group_id
)
GROUP BY step
