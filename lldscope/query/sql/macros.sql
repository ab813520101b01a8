-- One division, the same rows above and below: those where both x and n were measured. NULL where
-- there are none.
CREATE MACRO ratio(x, n) AS
    sum(x) FILTER (n IS NOT NULL) / nullif(sum(n) FILTER (x IS NOT NULL), 0)
