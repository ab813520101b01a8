-- Grain: one row per step; partial sums of the ranks added up.
-- Losses are weighted by the rank's tokens; seconds are those of the slowest rank.
SELECT
    step,
    max(time)                                AS time,
    count(*) FILTER (NOT isfinite(reward_sum) OR NOT isfinite(entropy_sum)
                     OR NOT isfinite(loss_policy)) AS n_nonfinite,
    sum(n_tokens)                            AS n_tokens,
    sum(n_responses)                         AS n_responses,
    sum(reward_sum) / sum(n_responses)       AS reward,
    sqrt(greatest(0, sum(reward_sq_sum) / sum(n_responses)
                     - (sum(reward_sum) / sum(n_responses)) ** 2)) AS reward_sd,
    sum(n_correct) / sum(n_responses)        AS success,
    sum(entropy_sum) / sum(n_tokens)         AS entropy,
    sum(kl_sum) / sum(n_tokens)              AS kl,
    sum(loss_policy * n_tokens) / sum(n_tokens) FILTER (loss_policy IS NOT NULL) AS loss_policy,
    sum(loss_llds * n_tokens) / sum(n_tokens) FILTER (loss_llds IS NOT NULL)     AS loss_llds,
    sum(loss_kl * n_tokens) / sum(n_tokens) FILTER (loss_kl IS NOT NULL)         AS loss_kl,
    max(lr)                                  AS lr,
    max(seconds_rollout)                     AS seconds_rollout,
    max(seconds_update)                      AS seconds_update,
    max(seconds_record)                      AS seconds_record
FROM steps
GROUP BY step
