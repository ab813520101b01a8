-- Grain: one row per step. Share of groups whose rewards are all equal: they carry no gradient.
SELECT step, avg(zero_signal::INT) AS zero_signal_share
FROM group_totals
GROUP BY step
