-- Grain: one row per step; every signal but tokens_seen. Each step depends on its own rows only,
-- so a reader that follows a live run computes the new steps alone.
-- The means are listed by the registry: each is that of the run's own rows or, where these have none,
-- the one that was imported from another trainer's log.
SELECT
    m.* REPLACE (
        {means}
        coalesce(m.n_nonfinite + coalesce(s.n_nonfinite, 0), s.n_nonfinite) AS n_nonfinite
    )
FROM (
    SELECT
        * EXCLUDE (n_nonfinite),
        CASE WHEN coalesce(t.n_nonfinite, u.n_nonfinite, a.n_nonfinite) IS NOT NULL
             THEN coalesce(t.n_nonfinite, 0) + coalesce(u.n_nonfinite, 0)
                  + coalesce(a.n_nonfinite, 0) END AS n_nonfinite
    FROM step_totals t
    LEFT JOIN update_totals u USING (step)
    LEFT JOIN step_likelihood l USING (step)
    LEFT JOIN step_displaced d USING (step)
    LEFT JOIN step_groups g USING (step)
    LEFT JOIN step_conduct c USING (step)
    LEFT JOIN step_actions a USING (step)
    LEFT JOIN step_first_actions f USING (step)
    LEFT JOIN step_retention k USING (step)
    LEFT JOIN step_evals e USING (step)
) m
LEFT JOIN step_scalars s USING (step)
