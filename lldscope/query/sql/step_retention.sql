-- Grain: one row per step with kept responses of 10 or 20 steps ago (RETENTION_HORIZONS).
SELECT
    step,
    avg(d) FILTER (horizon = 10)    AS retention_10,
    count(d) FILTER (horizon = 10)  AS n_retention_10,
    avg(d) FILTER (horizon = 20)    AS retention_20,
    count(d) FILTER (horizon = 20)  AS n_retention_20
FROM response_retention
GROUP BY step
