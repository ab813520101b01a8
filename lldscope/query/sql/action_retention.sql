-- Grain: one row per action of a kept response that was scored again.
-- since, change: log π_post − log π_old, and − log π_previous, Σ over its tokens; NULL unless both
-- are numbers.
SELECT
    step,
    rank,
    age,
    response_id,
    action_index,
    difference(logp_post_sum, logp_old_sum)       AS since,
    difference(logp_post_sum, logp_previous_sum)  AS change
FROM retention
