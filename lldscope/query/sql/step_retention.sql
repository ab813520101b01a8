-- Grain: one row per step in which kept responses were scored.
SELECT
    step,
    avg(since)   AS retention,
    avg(change)  AS retention_delta
FROM response_retention
GROUP BY step
