"""Tables of the page: what drives the decline, and what is said of runs with a fault."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from .arms import CAUSE
from .results import DELTA_FROM, Result, Results
from .tables import GRPO, arms_of, so_far, table

COMPARED = (GRPO, "positive-only", "half-lr")
"""Arms that stand beside the levers: each takes one possible driver away."""
LLD_PHASES = ("decay", "collapse")


def levers(results: Results) -> str:
    """One thing changed at a time: the final reward against GRPO with the same seeds, and the
    measures of what the papers hold responsible."""
    head = (
        "arm", "seeds", "final reward", "less GRPO's, seed by seed", "mean Δ", "displaced",
        "success", "wrong / right, tokens", "log π wrong", "similarity", "GWHES",
        "entropy, last third",
    )
    plain = results.by_seed(GRPO)
    first = [arm for arm in arms_of(results, ("main", "control")) if arm.name in COMPARED]
    rows = []
    for arm in [*first, *arms_of(results, ("lever",))]:
        seeds = _lever_seeds(results)
        runs = [r for r in results.of(arm.name) if r.plan.seed in seeds]
        if not runs:
            continue
        pairs = [r.final - plain[r.plan.seed].final for r in runs if r.plan.seed in plain]
        text = ", ".join(f"{d:+.2f}" for d in pairs) if arm.name != GRPO and pairs else "–"
        cells = [
            _number(np.mean([r.final for r in runs]), ".2f"),
            text,
            _number(np.mean([r.delta for r in runs]), "+.2f"),
            _number(_mean(runs, "displaced_share"), ".2f"),
            _number(_mean(runs, "success"), ".2f"),
            _number(_mean(runs, "incorrect_tokens") / _mean(runs, "correct_tokens"), ".2f"),
            _number(_mean(runs, "incorrect_logp"), ".2f"),
            _number(_probe(runs, "hidden_similarity"), ".3f"),
            _number(_probe(runs, "gwhes"), ".0f"),
            _number(np.nanmean([_last_third(r, "entropy") for r in runs]), ".2f"),
        ]
        rows.append(
            [f"`{arm.name}` {arm.words}", ", ".join(str(r.plan.seed) for r in runs), *cells]
        )
    return table(head, rows)


def _lever_seeds(results: Results) -> set[int]:
    return {p.seed for p in results.plan if p.arm.kind == "lever"}


def _mean(runs: Sequence[Result], column: str) -> float:
    """Mean over the measured steps from DELTA_FROM on, then over runs."""
    means = [
        float(r.signals[column][r.signals["step"] >= DELTA_FROM].astype(float).mean()) for r in runs
    ]
    values = [m for m in means if np.isfinite(m)]
    return float(np.mean(values)) if values else float("nan")


def _probe(runs: Sequence[Result], name: str) -> float:
    """Mean of a probe over the windows from DELTA_FROM on, then over runs."""
    means = []
    for r in runs:
        rows = r.windows[(r.windows["breakdown"] == "probe") & (r.windows["name"] == name)]
        means.append(float(rows["value"][rows["first_step"] >= DELTA_FROM].mean()))
    values = [m for m in means if np.isfinite(m)]
    return float(np.mean(values)) if values else float("nan")


def _last_third(run: Result, column: str) -> float:
    values = run.signals[column].astype(float)
    return float(values.iloc[-(len(values) // 3) :].mean())


def faults(results: Results) -> str:
    """Per fault: how often its cause is named, how soon, and what is said of LLD."""
    head = (
        "fault", "runs", "cause", "named, alone", "also named", "its alarm fires",
        "runs with an LLD phase after it",
    )
    rows = []
    for arm in arms_of(results, ("fault",)):
        runs = results.of(arm.name)
        assert arm.fault is not None
        cause = CAUSE[arm.fault]
        others = sorted({c for r in runs for c in r.causes if c != cause})
        delays = [r.alarms[cause] - r.fault_step for r in runs if cause in r.alarms]
        late = f"{median(delays):g} ({min(delays)}–{max(delays)}) steps after it" if delays else "–"
        lld = sum(any(r.phases.get(p, -1) >= r.fault_step for p in LLD_PHASES) for r in runs)
        n = so_far(len(runs), results.planned(arm.name))
        alone = sum(r.causes == [cause] for r in runs)
        rows.append(
            [arm.words.removeprefix("GRPO, "), n, f"`{cause}`", f"{alone} of {len(runs)}",
             ", ".join(f"`{c}`" for c in others) or "–", late, f"{lld} of {len(runs)}"]
        )
    return table(head, rows)


def _number(value: float, form: str) -> str:
    return format(value, form) if np.isfinite(value) else "–"
