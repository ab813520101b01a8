-- Grain: one row per (step, horizon, action_index) of kept correct responses. NaN and Inf are left out.
SELECT
    step,
    horizon,
    action_index,
    count(d)            AS n,
    avg(d)              AS retention,
    avg((d < 0)::INT)   AS lost_share
FROM (
    SELECT *, CASE WHEN isfinite(logp_post_sum - logp_old_sum)
                   THEN logp_post_sum::DOUBLE - logp_old_sum::DOUBLE END AS d
    FROM retention
)
GROUP BY step, horizon, action_index
