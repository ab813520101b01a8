"""The post-mortem in a bounded answer: what `lldscope diagnose` and `lldscope mcp` say of a run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from ..core.safe_text import counted_in
from ..core.schema import COMPONENT
from ..diagnosis.evidence import SMOOTH
from ..diagnosis.registry import RULES
from ..runs import Run
from .facts import PostMortem
from .ordinary import identities, ordinary
from .trainers import trainer_of

BRIEF_SCHEMA = 1
LISTED = 5  # sentences of a kind


def brief(run: Run, facts: PostMortem) -> dict[str, Any]:
    """Verdict and grounds, onset, cost, what the log cannot show and how to record it, and the
    setting to change first by the name that the trainer of the run has for it."""
    state = facts.state
    serious = [alert for alert in state.alerts if alert.severity != "info"]
    is_idle = any(alert.rule == "no-update" for alert in serious)
    is_bad = state.verdict in ("warning", "critical")
    return {
        "schema": BRIEF_SCHEMA,
        "run": facts.run.name,
        "trainer": trainer_of(run.info).name,
        "verdict": state.verdict,
        "verdict_word": state.sign.word,
        "evidence": state.evidence,
        "evidence_words": state.evidence_words,
        "trend": facts.trend,
        "cause": state.headline.cause,
        "action": state.headline.action,
        "change": asdict(facts.change) if facts.change and is_bad else None,
        "onset": run.assess().account.first_sign,
        "first_step": facts.run.first_step,
        "last_step": state.last_step,
        "planned_steps": run.planned_steps,
        "counted": run.counted,
        "grounds": [
            {"rule": a.rule, "severity": a.severity, "state": a.state,
             "step": a.first_step, "message": a.message,
             "again": None if (step := facts.alarm_step(a)) == a.first_step else step}
            for a in serious[:LISTED]
        ],
        "summary": [counted_in(run.counted, text) for text in facts.summary[:LISTED]],
        "reward_components": _components(run),
        # Nothing is ordinary about zeros where nothing is trained.
        "usual": [u for u in ordinary(run, trainer_of(run.info)) if u["median"] or not is_idle],
        "expected": [] if is_idle else identities(run),
        "cost": facts.cost and asdict(facts.cost),
        "not_in_this_log": facts.gaps[:LISTED],
        "record_next_time": list(facts.record),
        "numbers": _numbers(run, {alert.rule for alert in serious}),
        "notes": list((run.info.get("imported") or {}).get("notes") or [])[:LISTED],
    }


def _numbers(run: Run, alarms: set[str]) -> list[str]:
    """How the signals behind the alarms differ from lldscope's own measurements."""
    read = dict.fromkeys(s for rule in RULES if rule.id in alarms for s in rule.needs)
    estimators = run.estimators()
    return [f"{s}: {estimators[s]}." for s in read if estimators.get(s)][:LISTED]


def _components(run: Run) -> list[dict[str, Any]]:
    """Each component of the reward at first, at its best and at the end: means of SMOOTH entries,
    or of half of all entries if there are few."""
    answer = []
    for name, column in run.components().items():
        values = column[np.isfinite(column)]
        n = min(SMOOTH, (len(values) + 1) // 2)
        means = np.convolve(values, np.full(n, 1 / n), "valid")
        first, best, last = (float(m) for m in (means[0], means.max(), means[-1]))
        component = name.removeprefix(COMPONENT)
        answer.append({
            "component": component, "first": first, "best": best, "last": last,
            "unpaid": not values.any(),
        })
    return answer
