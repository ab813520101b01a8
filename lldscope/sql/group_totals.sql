-- Grain: one row per (step, data_source, group_id). Rollouts without a group form no group.
-- mixed: the group holds correct and incorrect rollouts; only such groups enter Δ (Eq. 3).
SELECT
    step,
    data_source,
    group_id,
    count(*)                                AS n_responses,
    count(*) FILTER (correct)               AS n_correct,
    bool_or(correct) AND bool_or(NOT correct) AS mixed,
    min(reward) = max(reward)               AS zero_signal
FROM responses
WHERE group_id IS NOT NULL
GROUP BY step, data_source, group_id
