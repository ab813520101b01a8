-- One division, the same rows above and below: those where both x and n were measured. NULL where
-- there are none. (CASE inside of a sum costs DuckDB a tenth of what FILTER does.)
CREATE MACRO ratio(x, n) AS
    sum(CASE WHEN n IS NOT NULL THEN x END)
        / nullif(sum(CASE WHEN x IS NOT NULL THEN n END), 0);

-- Σ x over the rows that have n, in double precision where x is finite; Σ n over those rows; and how
-- many have x. The engine of signals writes NULL instead where a column was not measured at all.
CREATE MACRO finite_sum(x, n) AS
    sum(CASE WHEN isfinite(x) AND n IS NOT NULL THEN x::DOUBLE END);
CREATE MACRO finite_weight(x, n) AS sum(CASE WHEN isfinite(x) THEN n END);
CREATE MACRO counted(x) AS count(x);
CREATE MACRO counted_true(x) AS sum(x::INT);

-- Σ x, and Σ (a − b), in double precision as they came; NULL unless every row has them.
CREATE MACRO total(x) AS CASE WHEN count(x) = count(*) THEN sum(x::DOUBLE) END;
CREATE MACRO total_difference(a, b) AS
    CASE WHEN count(a) = count(*) AND count(b) = count(*) THEN sum(a::DOUBLE - b::DOUBLE) END;

-- Effective sample size as a share of n, from sums of ratios and of their squares, which are NULL
-- in the same rows.
CREATE MACRO ess(r, r2, n) AS
    sum(r) * sum(r) / nullif(sum(CASE WHEN r IS NOT NULL THEN n END) * sum(r2), 0);

-- a − b in double precision; NULL unless both are numbers.
CREATE MACRO difference(a, b) AS
    CASE WHEN isfinite(a) AND isfinite(b) THEN a::DOUBLE - b::DOUBLE END
