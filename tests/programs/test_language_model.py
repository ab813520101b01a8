"""The driver of the language-model experiment: its plan, what is made, and when a signal turns."""

from __future__ import annotations

import pandas as pd

from study import language_model as lm


def test_a_signal_turns_where_ten_means_in_a_row_are_beyond_its_limit():
    flat = dict.fromkeys(("reward", "entropy", "grad_norm"), 1.0)
    rows = [{"step": s, **flat, "delta_correct": 0.1, "retention_delta": 0.1} for s in range(60)]
    signals = pd.DataFrame(rows)
    assert set(lm.events(signals).values()) == {None}
    signals.loc[30:, "delta_correct"] = -0.3  # the mean of ten is under 0 with the third of them
    signals.loc[20:22, "retention_delta"] = -9.0  # for ten steps and no longer than its window
    signals.loc[40:, "reward"] = 0.0
    signals.loc[55:, "entropy"] = 9.0  # too late for ten in a row
    turns = lm.events(signals)
    assert turns == {"reward": 41, "delta": 32, "retention": 20, "entropy": None, "norm": None}
