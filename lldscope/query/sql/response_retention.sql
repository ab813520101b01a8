-- Grain: one row per kept response that was scored again.
-- since, change: Σ over its actions of log π_post − log π_old, and − log π_previous; NULL unless
-- all of them are numbers.
SELECT
    step,
    rank,
    age,
    response_id,
    CASE WHEN count(*) = count(since) THEN sum(since) END    AS since,
    CASE WHEN count(*) = count(change) THEN sum(change) END  AS change
FROM (
    SELECT
        *,
        difference(logp_post_sum, logp_old_sum)       AS since,
        difference(logp_post_sum, logp_previous_sum)  AS change
    FROM retention
)
GROUP BY step, rank, age, response_id
