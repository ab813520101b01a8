-- One division, the same rows above and below: those where both x and n were measured. NULL where
-- there are none.
CREATE MACRO ratio(x, n) AS
    sum(x) FILTER (n IS NOT NULL) / nullif(sum(n) FILTER (x IS NOT NULL), 0);

-- Effective sample size as a share of n, from sums of ratios and of their squares, which are NULL
-- in the same rows.
CREATE MACRO ess(r, r2, n) AS
    sum(r) * sum(r) / nullif(sum(n) FILTER (r IS NOT NULL) * sum(r2), 0);

-- a − b in double precision; NULL unless both are numbers.
CREATE MACRO difference(a, b) AS
    CASE WHEN isfinite(a) AND isfinite(b) THEN a::DOUBLE - b::DOUBLE END
