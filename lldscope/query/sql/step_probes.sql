-- Grain: one row per (step, probe): mean over what was measured and is a number.
SELECT
    step,
    probe,
    avg(value::DOUBLE) FILTER (isfinite(value))  AS value,
    count(*) FILTER (isfinite(value))            AS n
FROM probes
GROUP BY step, probe
