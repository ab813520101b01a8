-- Grain: one row per step with groups. Shares are over the groups of which the answer is known.
-- zero_signal_share: rewards all equal, so the group carries no gradient.
SELECT
    step,
    count(*)                     AS n_groups,
    max(n_responses)             AS group_size_max,
    avg(zero_signal::INT)        AS zero_signal_share,
    avg(all_right::INT)          AS all_right_share,
    avg(all_wrong::INT)          AS all_wrong_share,
    ratio(zero_signal::INT * n_tokens, n_tokens)
                                 AS zero_signal_token_share,
    avg(prompts_collide::INT)    AS prompt_collision_share,
    avg(advantage_offset)        AS advantage_offset
FROM group_totals
GROUP BY step
