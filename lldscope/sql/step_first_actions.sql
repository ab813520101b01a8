-- Grain: one row per step with mixed groups (Fig. 5).
-- Population: incorrect rollouts of mixed groups. Counted: those whose first action retrieved the
-- same set of documents as the first action of a correct rollout of the same group.
WITH first_actions AS (
    SELECT r.step, r.data_source, r.group_id, r.correct, a.docs_hash
    FROM actions a
    JOIN response_class r USING (step, rank, response_id)
    WHERE a.action_index = 0 AND r.mixed AND r.group_id IS NOT NULL
),
good AS (
    SELECT DISTINCT step, data_source, group_id, docs_hash
    FROM first_actions
    WHERE correct AND docs_hash IS NOT NULL
)
SELECT
    w.step,
    avg((g.docs_hash IS NOT NULL)::INT) AS good_first_action_share
FROM first_actions w
LEFT JOIN good g
    ON g.step = w.step AND g.group_id = w.group_id AND g.docs_hash = w.docs_hash
   AND g.data_source IS NOT DISTINCT FROM w.data_source
WHERE NOT w.correct
  -- docs_hash is never recorded in some logs; then the share is not measured rather than 0
  AND w.step IN (SELECT step FROM actions WHERE docs_hash IS NOT NULL)
GROUP BY w.step
