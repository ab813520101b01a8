-- Grain: one row per (step, data_source, group_id). Rollouts without a group form no group.
-- mixed: the group holds correct and incorrect rollouts; only such groups enter Δ (Eq. 3).
-- zero_signal: NULL unless every reward of the group is a number; advantage_offset likewise.
-- all_right, all_wrong: of such groups with equal rewards; NULL unless all rollouts are classified.
-- prompts_collide: more than one prompt_hash, which a group must not have; NULL if none is known.
-- All are numbers if the least and the greatest are: NaN is the greatest. So is the mean, then.
SELECT
    step,
    data_source,
    group_id,
    count(*)                                      AS n_responses,
    bool_or(correct) AND NOT bool_and(correct)    AS mixed,
    CASE WHEN count(reward) = count(*) AND isfinite(min(reward)) AND isfinite(max(reward))
         THEN min(reward) = max(reward) END       AS zero_signal,
    CASE WHEN count(advantage) = count(*) AND isfinite(avg(advantage))
         THEN abs(avg(advantage)) END             AS advantage_offset,
    CASE WHEN zero_signal IS NOT NULL AND count(correct) = count(*)
         THEN zero_signal AND bool_and(correct) END      AS all_right,
    CASE WHEN zero_signal IS NOT NULL AND count(correct) = count(*)
         THEN zero_signal AND NOT bool_or(correct) END   AS all_wrong,
    sum(n_tokens)                                 AS n_tokens,
    min(prompt_hash) <> max(prompt_hash)          AS prompts_collide
FROM responses
WHERE group_id IS NOT NULL
GROUP BY step, data_source, group_id
