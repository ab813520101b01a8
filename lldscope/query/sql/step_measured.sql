-- Grain: one row per step; every signal but tokens_seen, from the rows that the run recorded itself.
SELECT
    t.step, t.time, t.n_tokens, t.n_responses, t.reward, t.reward_sd, t.success, t.entropy, t.kl,
    u.grad_norm, u.grad_norm_max, u.ratio_max, u.clip_share,
    CASE WHEN coalesce(t.n_nonfinite, u.n_nonfinite, a.n_nonfinite) IS NOT NULL
         THEN coalesce(t.n_nonfinite, 0) + coalesce(u.n_nonfinite, 0) + coalesce(a.n_nonfinite, 0)
         END AS n_nonfinite,
    l.correct_logp, l.incorrect_logp, l.correct_logp - l.incorrect_logp AS logp_gap,
    l.delta_correct, l.delta_incorrect, l.delta_correct_sum, l.n_delta_correct, l.lld_share,
    l.delta_correct_loss, l.delta_correct_q10, l.delta_correct_trim, d.displaced_share,
    g.n_groups, g.group_size_max, g.zero_signal_share, g.prompt_collision_share,
    g.advantage_offset,
    c.response_tokens, c.correct_tokens, c.incorrect_tokens,
    c.valid_searches, c.answered_share, c.truncated_share, c.invalid_share,
    a.tool_fail_share, l.merged_action_share, f.good_first_action_share,
    a.action_logp_min, a.incorrect_error_norm,
    a.llds_gate_share, a.dropped_token_share, a.engine_gap,
    t.loss_policy, t.loss_llds, t.loss_kl, t.lr,
    t.seconds_rollout, t.seconds_update, t.seconds_record
FROM step_totals t
LEFT JOIN update_totals u USING (step)
LEFT JOIN step_likelihood l USING (step)
LEFT JOIN step_displaced d USING (step)
LEFT JOIN step_groups g USING (step)
LEFT JOIN step_conduct c USING (step)
LEFT JOIN step_actions a USING (step)
LEFT JOIN step_first_actions f USING (step)
