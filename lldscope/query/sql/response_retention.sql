-- Grain: one row per kept response that was scored again (step, rank, horizon, response_id).
-- d = Σ (log π_post − log π_old) over its actions; NULL unless all of them are numbers.
SELECT
    step,
    horizon,
    CASE WHEN count(*) = count(*) FILTER (isfinite(logp_post_sum - logp_old_sum))
         THEN sum(logp_post_sum::DOUBLE - logp_old_sum::DOUBLE) END  AS d
FROM retention
GROUP BY step, rank, horizon, response_id
