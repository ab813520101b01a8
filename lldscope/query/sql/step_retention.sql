-- Grain: one row per step in which kept responses were scored.
SELECT
    step,
    avg(since)     AS retention,
    count(since)   AS n_retention,
    avg(change)    AS retention_delta,
    count(change)  AS n_retention_delta
FROM response_retention
GROUP BY step
