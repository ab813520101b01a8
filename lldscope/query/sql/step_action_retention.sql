-- Grain: one row per (step, action_index) of kept correct responses. NaN and Inf are left out.
SELECT
    step,
    action_index,
    count(since)            AS n,
    avg(since)              AS retention,
    count(change)           AS n_delta,
    avg(change)             AS delta,
    avg((since < 0)::INT)   AS lost_share
FROM (
    SELECT
        step,
        action_index,
        CASE WHEN isfinite(logp_post_sum - logp_old_sum)
             THEN logp_post_sum::DOUBLE - logp_old_sum::DOUBLE END       AS since,
        CASE WHEN isfinite(logp_post_sum - logp_previous_sum)
             THEN logp_post_sum::DOUBLE - logp_previous_sum::DOUBLE END  AS change
    FROM retention
)
GROUP BY step, action_index
