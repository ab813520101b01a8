-- Grain: one row per step: the signals of the run (columns and units: `lldscope schema signals`).
SELECT * EXCLUDE (n_tokens), sum(n_tokens) OVER (ORDER BY step) AS tokens_seen
FROM signal_rows
ORDER BY step
