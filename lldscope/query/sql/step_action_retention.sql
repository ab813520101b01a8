-- Grain: one row per (step, action_index) of kept correct responses. NaN and Inf are left out.
SELECT
    step,
    action_index,
    count(since)            AS n,
    avg(since)              AS retention,
    count(change)           AS n_delta,
    avg(change)             AS delta,
    avg((since < 0)::INT)   AS lost_share
FROM action_retention
GROUP BY step, action_index
