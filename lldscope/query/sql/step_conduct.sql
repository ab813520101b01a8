-- Grain: one row per step: what the rollouts did. Means over rollouts, of the class where it is named.
SELECT
    step,
    avg(n_tokens)                       AS response_tokens,
    avg(n_tokens) FILTER (correct)      AS correct_tokens,
    avg(n_tokens) FILTER (NOT correct)  AS incorrect_tokens,
    avg(n_searches)                     AS valid_searches,
    avg(answered::INT)                  AS answered_share,
    avg(truncated::INT)                 AS truncated_share,
    avg(repeat_share) FILTER (isfinite(repeat_share)) AS repeat_share,
    ratio(n_invalid, n_actions)         AS invalid_share
FROM responses
GROUP BY step
