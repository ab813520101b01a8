-- Grain: one row per (step, action_index, correct) (columns: `lldscope schema action_signals`).
SELECT * FROM action_signal_rows
ORDER BY step, action_index, correct
