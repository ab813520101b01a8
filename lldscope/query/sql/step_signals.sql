-- Grain: one row per step; every signal but tokens_seen. Each step depends on its own rows only,
-- so a reader that follows a live run computes the new steps alone.
-- The means are listed by the registry: each is that of the run's own rows or, where these have none,
-- the one that was imported from another trainer's log.
SELECT
    m.* REPLACE (
        {means}
        coalesce(m.n_nonfinite + coalesce(s.n_nonfinite, 0), s.n_nonfinite) AS n_nonfinite
    )
FROM step_measured m
LEFT JOIN step_scalars s USING (step)
