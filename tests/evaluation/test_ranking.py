"""Detectors ranked by how well they tell runs that end from runs of their arm that hold."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lldscope.evaluation.bank import ENDS, read_bank
from lldscope.evaluation.ranking import CONTROLS, OWN, SIGNALS, STEP, Trace, rank, ranking

STEPS = np.arange(6)


def trace(arm: str, end: int | None, scores: list[float]) -> Trace:
    return Trace(arm, end, STEPS[: len(scores)], np.maximum.accumulate(np.array(scores, float)))


traces = st.lists(
    st.builds(
        trace,
        st.sampled_from("ab"),
        st.sampled_from([None, 2, 5]),
        st.lists(st.integers(0, 3), min_size=1, max_size=6),
    ),
    min_size=2,
    max_size=9,
).filter(lambda ts: len({t.end is None for t in ts}) == 2)


@settings(max_examples=40)
@given(traces)
def test_pairs_are_counted_like_by_hand(ts: list[Trace]) -> None:
    """Against loops over pairs, thresholds and steps."""

    def before(t: Trace, step: float) -> float:
        return max(
            (x for s, x in zip(t.steps, t.highest, strict=True) if s < step), default=-math.inf
        )

    def auroc(share: float, pooled: bool = False) -> float | None:
        wins = [
            (a > b) + 0.5 * (a == b)
            for fall in ts if fall.end is not None
            for other in ts if other.end is None and (pooled or other.arm == fall.arm)
            for a, b in [[before(t, share * fall.end) for t in (fall, other)]]
        ]
        return sum(wins) / len(wins) if wins else None

    result = ranking("x", ts)
    assert result.auroc == pytest.approx(auroc(1.0))
    assert result.ahead == pytest.approx(auroc(0.8))
    assert result.pooled == pytest.approx(auroc(1.0, pooled=True))
    arms = [a for a in "ab" if len({t.end is None for t in ts if t.arm == a}) == 2]
    falls = [t for t in ts if t.end is not None and t.arm in arms]
    highs = [t.highest[-1] for t in ts if t.end is None and t.arm in arms]
    if arms:
        limit = max(highs)  # fewer than twenty: none may pass
        passed = [next((s for s, x in zip(t.steps, t.highest, strict=True) if x > limit), math.inf)
                  for t in falls]
        leads = [t.end - s for t, s in zip(falls, passed, strict=True) if s < t.end]
        assert result.hits == (len(leads), len(falls))
        assert result.false == (0, len(highs))
        assert result.lead_median == (np.median(leads) if leads else None)
    else:
        assert result.auroc is result.hit_interval is None


def test_one_in_twenty_may_pass() -> None:
    others = [trace("a", None, [i]) for i in range(40)]
    falls = [trace("a", 3, [value, 0]) for value in (37, 38)]
    result = ranking("x", [*others, *falls])
    assert result.false == (2, 40), "38 and 39"
    assert result.hits == (1, 2)


def write_bank(folder: Path, label: str = "degraded") -> Path:
    """Two arms of four runs each, of which two degrade at step 40 with a clip share that has grown
    since step 20; in one arm all runs clip more."""
    lines, tables = [], []
    for arm, level in (("low", 0.01), ("high", 0.5)):
        for seed in range(4):
            name, bad = f"{arm}-{seed}", seed % 2 == 0
            step = np.arange(60)
            clip = level + (0.2 if bad else 0.0) * (step >= 20)
            score = np.where(step == 50, 0.2 if bad else 0.8, np.nan)
            frame = pd.DataFrame({"step": step, "clip_share": clip, "eval_score": score})
            tables.append(frame.assign(run=name))
            outcome = {"outcome": label, ENDS[label]: 40} if bad else {"outcome": "held"}
            if label == "degraded":
                outcome.setdefault("degraded_step", None)
            lines.append({"run": name, "arm": arm, "split": "development", **outcome})
    pd.concat(tables).to_parquet(folder / "signals.parquet")
    (folder / "index.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_good_signal_passes_and_the_controls_fail(tmp_path: Path) -> None:
    ranks = {r.detector: r for r in rank(read_bank(write_bank(tmp_path)))}
    assert list(ranks) == [*SIGNALS, *CONTROLS]
    assert ranks["clip_share"].auroc == ranks["clip_share"].ahead == 1.0
    assert ranks["clip_share"].pooled == 0.75, "runs of one arm clip more than all of the other"
    step, configuration, shuffled = (ranks[name] for name in CONTROLS)
    for control in (step, configuration):
        assert (control.auroc, control.ahead, control.pooled) == (0.5, 0.5, 0.5)
        assert control.hits[0] == 0
    assert shuffled.auroc == pytest.approx(0.5, abs=0.3)


@pytest.mark.parametrize(("label", "visible"), [("degraded", False), ("collapsed", True)])
def test_a_score_that_defines_the_label_is_withheld(
    tmp_path: Path, label: str, visible: bool
) -> None:
    flags: list[bool] = []

    def spy(signals: pd.DataFrame) -> pd.Series:
        flags.append(bool(signals["eval_score"].notna().any()))
        return signals["step"]

    assert rank(read_bank(write_bank(tmp_path, label)), spy)[0].detector == OWN
    assert flags == [visible] * 8


def test_ones_own_detector_is_ranked(tmp_path: Path, lldscope_command) -> None:
    write_bank(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text("def score(signals):\n    return signals['clip_share'].diff()\n")
    answer = json.loads(lldscope_command("evaluate", tmp_path, "--detector", file, "--json").stdout)
    row = answer["detectors"][0]
    assert (row["detector"], row["auroc"], row["pooled"], row["hits"]) == (OWN, 1.0, 1.0, [4, 4])
    assert row["lead_median"] == 20
    table = lldscope_command("evaluate", tmp_path, "--detector", file).stdout
    assert "In arms with runs of both kinds, 4 ended and 4 held." in table
    assert any(line.startswith(OWN) and "4 of 4" in line for line in table.splitlines())
    assert any(
        line.startswith(STEP) and " 0.50 (0.50–0.50) " in line for line in table.splitlines()
    )


def test_nothing_is_ranked_without_runs_of_both_kinds(tmp_path: Path) -> None:
    runs = read_bank(write_bank(tmp_path))
    assert rank([run for run in runs if run.label == "held"]) == []
