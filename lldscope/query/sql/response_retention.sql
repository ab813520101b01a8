-- Grain: one row per kept response that was scored again (step, rank, age, response_id).
-- since, change: Σ over its actions of log π_post − log π_old, and − log π_previous; NULL unless all of
-- them are numbers.
SELECT
    step,
    CASE WHEN count(*) = count(*) FILTER (isfinite(logp_post_sum - logp_old_sum))
         THEN sum(logp_post_sum::DOUBLE - logp_old_sum::DOUBLE) END       AS since,
    CASE WHEN count(*) = count(*) FILTER (isfinite(logp_post_sum - logp_previous_sum))
         THEN sum(logp_post_sum::DOUBLE - logp_previous_sum::DOUBLE) END  AS change
FROM retention
GROUP BY step, rank, age, response_id
