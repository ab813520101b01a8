-- Grain: one row per rollout: the populations it belongs to.
-- mixed: its group holds both classes; true where no group is recorded, as then nothing is known.
-- preserved: advantage ≥ 0, the preserving set of LLDS.
-- n_actions_least: actions that an answer after so many valid searches needs.
SELECT
    r.step,
    r.rank,
    r.response_id,
    r.data_source,
    r.group_id,
    r.correct,
    CASE WHEN r.group_id IS NULL THEN true ELSE coalesce(g.mixed, false) END AS mixed,
    r.advantage >= 0 AND NOT isnan(r.advantage)                              AS preserved,
    CASE WHEN r.answered AND r.n_searches > 0 THEN r.n_searches + 1 END      AS n_actions_least
FROM responses r
LEFT JOIN group_totals g
    ON g.step = r.step AND g.group_id = r.group_id
   AND g.data_source IS NOT DISTINCT FROM r.data_source
