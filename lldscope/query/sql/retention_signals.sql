-- Grain: one row per (step, action_index) (columns: `lldscope schema retention_signals`).
SELECT * FROM retention_signal_rows
ORDER BY step, action_index
