-- Grain: one row per step: the signals of the run (columns and units: `lldscope schema signals`).
SELECT * EXCLUDE (n_tokens)
FROM signal_rows
ORDER BY step
