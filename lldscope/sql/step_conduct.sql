-- Grain: one row per step: what the rollouts did. Means over rollouts.
SELECT
    step,
    avg(n_tokens)                     AS response_tokens,
    avg(n_searches)                   AS valid_searches,
    avg(truncated::INT)               AS truncated_share,
    sum(n_invalid) / sum(n_actions)   AS invalid_share
FROM responses
GROUP BY step
