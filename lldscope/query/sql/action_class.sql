-- Grain: one row per action: what is measured of it, and the class of its rollout, which is NULL
-- where the rollout is not recorded. The columns are those that signals need of the registry's.
SELECT
    a.step,
    {response},
    {actions},
    r.correct,
    r.mixed,
    r.preserved
FROM actions a
{class_join} response_class r USING ({same_response})
