-- Grain: one row per step; partial sums of the ranks added up, each over the ranks that measured it.
-- Losses are weighted by the rank's tokens, alike where these are unknown; seconds are those of the
-- slowest rank. n_nonfinite: NULL if there was nothing to look at.
SELECT
    step,
    max(time)                                AS time,
    CASE WHEN count(coalesce(reward_sum, entropy_sum, kl_sum, loss_policy, loss_llds, loss_kl))
              > 0
         THEN count(*) FILTER (
             NOT isfinite(reward_sum) OR NOT isfinite(entropy_sum) OR NOT isfinite(kl_sum)
             OR NOT isfinite(loss_policy) OR NOT isfinite(loss_llds) OR NOT isfinite(loss_kl)
         ) END                               AS n_nonfinite,
    sum(n_tokens)                            AS n_tokens,
    sum(n_responses)                         AS n_responses,
    ratio(reward_sum, n_responses)           AS reward,
    ratio(CASE WHEN reward_sum IS NOT NULL THEN reward_sq_sum END, n_responses)
        - ratio(CASE WHEN reward_sq_sum IS NOT NULL THEN reward_sum END, n_responses) ** 2
                                             AS variance,
    CASE WHEN variance < 0 THEN 0 ELSE sqrt(variance) END AS reward_sd,  -- below 0: rounding
    ratio(n_correct, n_responses)            AS success,
    ratio(entropy_sum, n_tokens)             AS entropy,
    ratio(kl_sum, n_tokens)                  AS kl,
    ratio(loss_policy * weight, weight)      AS loss_policy,
    ratio(loss_llds * weight, weight)        AS loss_llds,
    ratio(loss_kl * weight, weight)          AS loss_kl,
    max(lr)                                  AS lr,
    max(seconds_rollout)                     AS seconds_rollout,
    max(seconds_update)                      AS seconds_update,
    max(seconds_record)                      AS seconds_record,
    max(seconds_score)                       AS seconds_score,
    max(seconds_reference)                   AS seconds_reference,
    max(seconds_sync)                        AS seconds_sync,
    max(seconds_evaluation)                  AS seconds_evaluation,
    sum(n_tokens) / (max(seconds_rollout) + max(seconds_update) + max(seconds_record))
                                             AS tokens_per_second,
    max(memory_peak)                         AS memory_peak
FROM (SELECT *, coalesce(n_tokens, 1)::DOUBLE AS weight FROM steps)
GROUP BY step
