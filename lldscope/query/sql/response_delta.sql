-- Grain: one row per rollout with actions: what the signals of a step need of `response_likelihood`.
SELECT step, data_source, group_id, correct, mixed, delta, rounding_sq, engine_log_ratio, actions_merged
FROM response_likelihood
