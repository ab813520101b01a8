-- One division, the same rows above and below: those where both x and n were measured. NULL where
-- there are none. (CASE inside of a sum costs DuckDB a tenth of what FILTER does.)
CREATE MACRO ratio(x, n) AS
    sum(CASE WHEN n IS NOT NULL THEN x END)
        / nullif(sum(CASE WHEN x IS NOT NULL THEN n END), 0);

-- Σ x over the rows that have n, in double precision where x is finite; and Σ n over those rows.
CREATE MACRO finite_sum(x, n) AS
    sum(CASE WHEN isfinite(x) AND n IS NOT NULL THEN x::DOUBLE END);
CREATE MACRO finite_weight(x, n) AS sum(CASE WHEN isfinite(x) THEN n END);

-- Effective sample size as a share of n, from sums of ratios and of their squares.
CREATE MACRO ess(r, r2, n) AS sum(r) * sum(r) / nullif(sum(n) * sum(r2), 0);

-- a − b in double precision; NULL unless both are numbers.
CREATE MACRO difference(a, b) AS
    CASE WHEN isfinite(a) AND isfinite(b) THEN a::DOUBLE - b::DOUBLE END
