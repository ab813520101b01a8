-- Grain: one row per step with mixed groups (Fig. 5).
-- Population: incorrect rollouts of mixed groups. Counted: those whose first action retrieved the
-- same set of documents as the first action of a correct rollout of the same group. NULL where no
-- first action of these groups has documents: some logs never tell them.
SELECT
    step,
    CASE WHEN count(docs_hash) > 0
         THEN coalesce(sum(n_incorrect) FILTER (found_by_correct AND docs_hash IS NOT NULL), 0)
              / nullif(sum(n_incorrect), 0) END AS good_first_action_share
FROM (
    SELECT
        a.step, data_source, group_id, a.docs_hash,
        count(CASE WHEN NOT r.correct THEN 1 END) AS n_incorrect,
        bool_or(r.correct)                        AS found_by_correct
    FROM actions a
    JOIN response_class r USING ({same_response})
    WHERE a.action_index = 0 AND r.mixed AND r.group_id IS NOT NULL
    GROUP BY a.step, data_source, group_id, a.docs_hash
)
GROUP BY step
