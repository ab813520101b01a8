-- Grain: one row per step. Each step depends on its own rows only, so a reader that follows a live run
-- computes the new steps alone; to tokens_seen it adds those of the steps before, earlier.tokens.
-- Runs that are read together have each a range of 2³² steps. An evaluation after the last step of
-- a run, of which there is no other row, has a row, too.
-- The means that another trainer's log has are filled in where the run's own rows have none.
SELECT
    * EXCLUDE before REPLACE ({means} n_nonfinite::BIGINT AS n_nonfinite),
    coalesce(before + sum(n_tokens) OVER tokens, before, sum(n_tokens) OVER tokens) AS tokens_seen
FROM (
    -- No two of these views have a column in common but step and n_nonfinite. (To join them takes
    -- twice as long to plan.)
    SELECT
        step,
        sum(n_nonfinite) AS n_nonfinite,
        any_value(COLUMNS(* EXCLUDE (step, n_nonfinite)))
    FROM (
        FROM step_totals
        UNION ALL BY NAME FROM update_totals
        UNION ALL BY NAME FROM step_likelihood
        UNION ALL BY NAME FROM step_displaced
        UNION ALL BY NAME FROM step_groups
        UNION ALL BY NAME FROM step_conduct
        UNION ALL BY NAME FROM step_actions
        UNION ALL BY NAME FROM step_first_actions
        UNION ALL BY NAME FROM step_retention
        UNION ALL BY NAME FROM step_evals
        UNION ALL BY NAME FROM step_scalars
    )
    SEMI JOIN (
        SELECT step FROM step_totals
        UNION ALL
        SELECT step FROM step_evals JOIN ends ON step > last AND step < before_next
    ) USING (step)
    GROUP BY step
)
CROSS JOIN (SELECT tokens AS before FROM earlier)
WINDOW tokens AS (PARTITION BY (step + 2147483648) // 4294967296 ORDER BY step)
