-- Grain: one row per step.
-- Levels are token means over all tokens of the class; Δ are means over responses of mixed groups.
SELECT
    step,
    sum(logp_old) FILTER (correct) / sum(n_tokens) FILTER (correct)         AS correct_logp,
    sum(logp_old) FILTER (NOT correct) / sum(n_tokens) FILTER (NOT correct) AS incorrect_logp,
    sum(delta) FILTER (correct AND mixed)                                   AS delta_correct_sum,
    count(delta) FILTER (correct AND mixed)                                 AS n_delta_correct,
    avg(delta) FILTER (correct AND mixed)                                   AS delta_correct,
    avg(delta) FILTER (NOT correct AND mixed)                               AS delta_incorrect,
    avg((delta <= 0)::INT) FILTER (correct AND mixed)                       AS lld_share
FROM response_likelihood
GROUP BY step
