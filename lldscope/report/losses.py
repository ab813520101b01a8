"""What lost likelihood, and beside which wrong responses: questions to the views of one run.

All over a window of steps, and over mixed groups, as the signals are. Δ is that of `schema`: log π
after the step's updates minus before, summed over a response or an action, in nats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ..runs import Run

MOST = 10  # groups and responses that are named
LEAST_STEPS = 5  # steps with groups on both sides before a contrast is told

_GROUPS = """
SELECT l.step, l.data_source, l.group_id,
    count(*) FILTER (l.correct)                               AS n_correct,
    count(*) FILTER (NOT l.correct)                           AS n_incorrect,
    avg(l.delta) FILTER (l.correct AND isfinite(l.delta))     AS delta,
    avg(l.delta) FILTER (NOT l.correct AND isfinite(l.delta)) AS delta_incorrect,
    sum(l.logp_old) FILTER (NOT l.correct) / sum(l.n_tokens) FILTER (NOT l.correct) AS wrong_logp,
    avg(l.n_tokens) FILTER (NOT l.correct)                    AS wrong_tokens,
    any_value(f.n_good_first)                                 AS n_good_first
FROM response_likelihood l
LEFT JOIN (
    SELECT step, data_source, group_id,
        CASE WHEN count(docs_hash) > 0
             THEN coalesce(sum(n) FILTER (found AND docs_hash IS NOT NULL), 0) END AS n_good_first
    FROM (
        SELECT r.step, r.data_source, r.group_id, a.docs_hash,
            count(*) FILTER (NOT r.correct) AS n, bool_or(r.correct) AS found
        FROM actions a JOIN response_class r USING (step, rank, response_id)
        WHERE a.action_index = 0 AND r.mixed AND r.step BETWEEN $1 AND $2
        GROUP BY ALL
    ) GROUP BY ALL
) f ON f.step = l.step AND f.group_id = l.group_id
    AND f.data_source IS NOT DISTINCT FROM l.data_source
WHERE l.mixed AND l.group_id IS NOT NULL AND l.step BETWEEN $1 AND $2
GROUP BY ALL
HAVING delta IS NOT NULL
ORDER BY delta, l.step, l.data_source, l.group_id
"""

_SOURCES = """
SELECT data_source, count(*) AS n_responses, avg(delta) AS delta,
    avg((delta <= 0)::INT) AS lld_share, sum(greatest(0, -delta)) AS lost
FROM response_likelihood
WHERE correct AND mixed AND isfinite(delta) AND step BETWEEN $1 AND $2
GROUP BY data_source ORDER BY lost DESC, data_source
"""

_CORRECT = """
SELECT step, response_id, group_id, data_source, n_tokens, logp_old / n_tokens AS logp, delta
FROM response_likelihood
WHERE correct AND mixed AND isfinite(delta) AND delta < 0 AND step BETWEEN $1 AND $2
ORDER BY delta, step, rank, response_id LIMIT $3
"""

# The push of a wrong response on the correct ones grows with its prediction error, which is large
# where its tokens are unlikely, and with its length (GWHES, arXiv 2505.18830).
_WRONG = """
SELECT l.step, l.response_id, l.group_id, l.data_source, l.n_tokens,
    l.logp_old / l.n_tokens AS logp, abs(r.advantage) AS advantage, a.error_norm,
    a.error_norm * abs(r.advantage) AS weight, g.delta AS group_delta
FROM response_likelihood l
JOIN responses r USING (step, rank, response_id)
JOIN (
    SELECT step, rank, response_id,
        CASE WHEN count(error_norm_sum) = count(*) THEN sum(error_norm_sum::DOUBLE) END
            AS error_norm
    FROM actions WHERE step BETWEEN $1 AND $2 GROUP BY ALL
) a USING (step, rank, response_id)
JOIN (
    SELECT step, data_source, group_id, avg(delta) AS delta FROM response_likelihood
    WHERE correct AND mixed AND isfinite(delta) AND step BETWEEN $1 AND $2 GROUP BY ALL
) g ON g.step = l.step AND g.group_id = l.group_id
    AND g.data_source IS NOT DISTINCT FROM l.data_source
WHERE NOT l.correct AND g.delta < 0
ORDER BY coalesce(weight, -l.logp_old) DESC, l.step, l.rank, l.response_id LIMIT $3
"""

_FIRST_ACTIONS = """
SELECT r.correct, count(*) AS n, avg(a.logp_post_sum::DOUBLE - a.logp_old_sum::DOUBLE) AS delta
FROM actions a
JOIN response_class r USING (step, rank, response_id)
JOIN (
    SELECT DISTINCT r.step, r.data_source, r.group_id, a.docs_hash
    FROM actions a JOIN response_class r USING (step, rank, response_id)
    WHERE a.action_index = 0 AND r.mixed AND r.correct AND a.docs_hash IS NOT NULL
      AND r.step BETWEEN $1 AND $2
) g ON g.step = r.step AND g.group_id = r.group_id AND g.docs_hash = a.docs_hash
    AND g.data_source IS NOT DISTINCT FROM r.data_source
WHERE a.action_index = 0 AND isfinite(a.logp_post_sum - a.logp_old_sum)
GROUP BY r.correct ORDER BY r.correct
"""


def losses(run: Run, first: int, last: int) -> dict[str, Any]:
    """What lost likelihood from step `first` to `last`, both included."""
    groups = run.sql(_GROUPS, [first, last])
    return {
        "first_step": first,
        "last_step": last,
        "n_groups": len(groups),
        "n_displaced": int((groups["delta"] < 0).sum()),
        "by_action": by_action(run.action_signals(), first, last),
        "by_source": records(run.sql(_SOURCES, [first, last])),
        "groups": records(groups[groups["delta"] < 0].head(MOST)),
        "correct": records(run.sql(_CORRECT, [first, last, MOST])),
        "wrong": records(run.sql(_WRONG, [first, last, MOST])),
        "first_actions": records(run.sql(_FIRST_ACTIONS, [first, last])),
        "contrasts": contrasts(groups),
    }


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as dictionaries of plain values; None where nothing was measured."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(k): _plain(v) for k, v in row.items()} for row in plain.to_dict("records")]


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def by_action(actions: pd.DataFrame, first: int, last: int) -> list[dict[str, Any]]:
    """Mean Δ per action, by action index and class, before the window and in it.

    Each action weighs the same. `actions` has the columns of `schema.ACTION_SIGNALS`.
    """
    known = actions[actions["n_delta"].fillna(0) > 0]
    found = []
    for _, rows in known.groupby(["action_index", "correct"]):
        inside = rows["step"].between(first, last)
        row: dict[str, Any] = {
            "action_index": int(rows["action_index"].iloc[0]),
            "correct": bool(rows["correct"].iloc[0]),
        }
        for name, part in (("before", rows[rows["step"] < first]), ("in_window", rows[inside])):
            n = float(part["n_delta"].sum())
            total = float((part["delta"] * part["n_delta"]).sum())
            row[name] = total / n if n else None
            row[f"n_{name}"] = int(n)
        found.append(row)
    return sorted(found, key=lambda row: (not row["correct"], row["action_index"]))


def contrasts(groups: pd.DataFrame) -> list[dict[str, Any]]:
    """Do correct responses lose more beside wrong ones that are unlikely, long, or began well?

    Groups of the same step are compared with each other, so that what all of a step share does not
    count: `with` and `without` are means of Δ over steps, `difference` the mean of the differences
    and `error` its standard error. `supported` where it lies two of those below 0.
    """
    tests = {
        "low_likelihood": lambda g: g["wrong_logp"] < g["wrong_logp"].median(),
        "long": lambda g: g["wrong_tokens"] > g["wrong_tokens"].median(),
        "good_first_action": lambda g: g["n_good_first"] > 0,
    }
    columns = {"low_likelihood": "wrong_logp", "long": "wrong_tokens"}
    found = []
    for name, test in tests.items():
        known = groups.dropna(subset=[columns.get(name, "n_good_first"), "delta"])
        pairs = []
        for _, of_step in known.groupby("step"):
            there = np.asarray(test(of_step), dtype=bool)
            if there.any() and not there.all():
                delta = of_step["delta"].to_numpy(dtype=float)
                pairs.append((delta[there].mean(), delta[~there].mean()))
        found.append({"contrast": name, "n_steps": len(pairs)} | _difference(np.array(pairs)))
    return found


def _difference(pairs: np.ndarray) -> dict[str, Any]:
    if len(pairs) < LEAST_STEPS:
        nothing = dict.fromkeys(("with", "without", "difference", "error"))
        return nothing | {"supported": None}
    gap = pairs[:, 0] - pairs[:, 1]
    error = float(gap.std(ddof=1) / np.sqrt(len(gap)))
    mean = float(gap.mean())
    return {
        "with": float(pairs[:, 0].mean()),
        "without": float(pairs[:, 1].mean()),
        "difference": mean,
        "error": error,
        "supported": mean < -2.0 * error,
    }
