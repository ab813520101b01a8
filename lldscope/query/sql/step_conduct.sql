-- Grain: one row per step: what the rollouts did. Means over rollouts, of the class where it is named.
SELECT
    step,
    avg(n_tokens)                       AS response_tokens,
    avg(CASE WHEN correct THEN n_tokens END)      AS correct_tokens,
    avg(CASE WHEN NOT correct THEN n_tokens END)  AS incorrect_tokens,
    avg(n_searches)                     AS valid_searches,
    avg(answered::INT)                  AS answered_share,
    avg(truncated::INT)                 AS truncated_share,
    avg(CASE WHEN isfinite(repeat_share) THEN repeat_share END) AS repeat_share,
    ratio(n_invalid, n_actions)         AS invalid_share
FROM responses
GROUP BY step
