-- Grain: one row per step with mixed groups (Fig. 5).
-- Population: incorrect rollouts of mixed groups. Counted: those whose first action retrieved the
-- same set of documents as the first action of a correct rollout of the same group. NULL where no
-- first action of these groups has documents: some logs never have them.
SELECT
    step,
    CASE WHEN count(docs_hash) > 0
         THEN coalesce(sum(n_incorrect) FILTER (docs_hash IS NOT NULL AND is_good), 0)
              / nullif(sum(n_incorrect), 0)
         END AS good_first_action_share
FROM (
    SELECT
        a.step,
        a.docs_hash,
        count(*) FILTER (NOT r.correct)      AS n_incorrect,
        bool_or(coalesce(r.correct, false))  AS is_good
    FROM actions a
    JOIN response_class r USING (step, rank, response_id)
    WHERE a.action_index = 0 AND r.mixed AND r.group_id IS NOT NULL
    GROUP BY a.step, r.data_source, r.group_id, a.docs_hash
)
GROUP BY step
