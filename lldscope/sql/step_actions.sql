-- Grain: one row per step, over actions.
-- tool_fail_share: over actions that called a tool. llds_gate_share: over actions of rollouts with
-- advantage ≥ 0 (the preserving set). engine_gap: nats per token, over actions with both policies.
SELECT
    a.step,
    avg((NOT a.tool_ok)::INT)                                AS tool_fail_share,
    avg(a.llds_gate::INT) FILTER (r.advantage >= 0)          AS llds_gate_share,
    sum(a.logp_behaviour_sum::DOUBLE - a.logp_old_sum::DOUBLE)
        / sum(a.n_tokens) FILTER (a.logp_behaviour_sum - a.logp_old_sum IS NOT NULL) AS engine_gap
FROM actions a
JOIN responses r USING (step, rank, response_id)
GROUP BY a.step
