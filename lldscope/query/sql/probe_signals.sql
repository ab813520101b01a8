-- Grain: one row per (step, probe) (columns: `lldscope schema probe_signals`).
SELECT * FROM probe_signal_rows
ORDER BY step, probe
