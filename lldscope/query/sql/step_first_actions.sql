-- Grain: one row per step with mixed groups (Fig. 5).
-- Population: incorrect rollouts of mixed groups. Counted: those whose first action retrieved the
-- same set of documents as the first action of a correct rollout of the same group. NULL where no
-- first action of these groups has documents: some logs never tell them.
SELECT
    step,
    CASE WHEN n_docs > 0
         THEN coalesce(n_found, 0) / nullif(n_incorrect, 0) END AS good_first_action_share
FROM (
    WITH first_actions AS (
        SELECT a.step, r.data_source, r.group_id, a.docs_hash, r.correct
        FROM actions a
        JOIN response_class r USING (step, rank, response_id)
        WHERE a.action_index = 0 AND r.mixed AND r.group_id IS NOT NULL
    )
    SELECT step, n_docs, n_incorrect, n_found
    FROM (
        SELECT
            step,
            count(docs_hash)                        AS n_docs,
            count(CASE WHEN NOT correct THEN 1 END) AS n_incorrect
        FROM first_actions
        GROUP BY step
    )
    LEFT JOIN (
        SELECT i.step, count(*) AS n_found
        FROM (FROM first_actions WHERE NOT correct) i
        SEMI JOIN (FROM first_actions WHERE correct) c
            ON c.step = i.step AND c.group_id = i.group_id AND c.docs_hash = i.docs_hash
           AND c.data_source IS NOT DISTINCT FROM i.data_source
        GROUP BY i.step
    ) USING (step)
)
