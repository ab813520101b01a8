-- Grain: one row per step; every signal but tokens_seen. Each step depends on its own rows only,
-- so a reader that follows a live run computes the new steps alone.
SELECT
    t.step, t.time, t.n_tokens, t.n_responses, t.reward, t.reward_sd, t.success, t.entropy, t.kl,
    u.grad_norm, u.grad_norm_max, t.n_nonfinite + coalesce(u.n_nonfinite, 0) AS n_nonfinite, u.ratio_max, u.clip_share,
    l.correct_logp, l.incorrect_logp, l.correct_logp - l.incorrect_logp AS logp_gap,
    l.delta_correct, l.delta_incorrect, l.delta_correct_sum, l.n_delta_correct, l.lld_share,
    g.zero_signal_share,
    c.response_tokens, c.valid_searches, c.truncated_share, c.invalid_share,
    a.tool_fail_share, f.good_first_action_share, a.llds_gate_share, a.engine_gap,
    t.loss_policy, t.loss_llds, t.loss_kl, t.lr,
    t.seconds_rollout, t.seconds_update, t.seconds_record
FROM step_totals t
LEFT JOIN update_totals u USING (step)
LEFT JOIN step_likelihood l USING (step)
LEFT JOIN step_groups g USING (step)
LEFT JOIN step_conduct c USING (step)
LEFT JOIN step_actions a USING (step)
LEFT JOIN step_first_actions f USING (step)
