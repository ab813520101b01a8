-- Grain: one row per step with an evaluation, of the policy with which the step begins.
-- Of the metrics that are scores the first here counts, over the questions of all data sources; where
-- their number is not known, each data source weighs the same.
SELECT
    step,
    coalesce(ratio(value * n, n), avg(value)) AS eval_score,
    sum(n)                                    AS eval_n
FROM (
    SELECT *, rank() OVER (PARTITION BY step ORDER BY preference) AS place
    FROM (
        SELECT
            step,
            value::DOUBLE AS value,
            n,
            CASE WHEN metric = 'em_greedy' THEN 1
                 WHEN metric LIKE 'acc/mean@%' THEN 2
                 WHEN metric LIKE 'reward/mean@%' THEN 3
                 WHEN metric = 'reward' THEN 4
                 END      AS preference
        FROM evals
        WHERE isfinite(value)
    )
    WHERE preference IS NOT NULL
)
WHERE place = 1
GROUP BY step
