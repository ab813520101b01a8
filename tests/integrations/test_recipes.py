"""What adapters stand on: batches by hand, hooks, the example of docs/integrations.md."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import torch

import lldscope
from lldscope.integrations.common.hooks import after_import

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")

PROMPTS = [[5, 6], [5, 6], [7, 8, 9], [7, 8, 9]]
RESPONSES = [[1, 2, 3, 4, 5], [1, 2], [3, 4, 5], [6]]
OWN = [[1, 1, 0, 1, 1], [1, 1], [1, 0, 1], [1]]
REWARDS = [1.0, 0.0, 1.0, 0.5]


def examples(kind: str) -> list[str]:
    return re.findall(rf"```python {kind}\n(.*?)```", PAGE, re.S)


def made_up(seed: int) -> list[list[float]]:
    """A number for each token of each response."""
    random = np.random.default_rng(seed)
    return [(-random.gamma(2.0, 1.0, len(r))).tolist() for r in RESPONSES]


OLD, POST = map(made_up, range(2))


def actions(policy_mask: list[int]) -> list[list[int]]:
    results: list[list[int]] = []
    for k, mine in enumerate(policy_mask):
        if mine and (k == 0 or not policy_mask[k - 1]):
            results.append([])
        if mine:
            results[-1].append(k)
    return results


def test_the_pages_batch(tmp_path):
    def filled(rows: list[list[float]]) -> torch.Tensor:
        return torch.tensor([r + [0] * (5 - len(r)) for r in rows])

    with lldscope.Recorder(tmp_path / "run") as recorder:
        (code,) = examples("batch")
        names = {
            "recorder": recorder, "step": 3, "mask": filled(OWN), "prompts": PROMPTS,
            "completions": RESPONSES, "rewards": torch.tensor(REWARDS), "groups": [0, 0, 1, 1],
            "old": filled(OLD), "post": filled(POST), "norms": [0.5],
        }
        exec(compile(code, "integrations.md", "exec"), names)
    rows = lldscope.open_run(tmp_path / "run").sql(
        "SELECT logp_post_sum - logp_old_sum AS d FROM actions ORDER BY response_id, action_index"
    )
    expected = [
        sum(POST[i][k] - OLD[i][k] for k in action)
        for i, policy_mask in enumerate(OWN) for action in actions(policy_mask)
    ]
    assert np.allclose(rows["d"], expected, atol=1e-5)


def test_what_waits_for_an_import_happens_after_it_once(tmp_path, monkeypatch):
    (tmp_path / "comes_late.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    sightings, hooks = [], list(sys.meta_path)
    after_import("comes_late", lambda: sightings.append(sys.modules["comes_late"].value))
    importlib.import_module("json")
    assert sightings == []
    importlib.import_module("comes_late")
    assert sightings == [3]
    assert sys.meta_path == hooks, "the hook removes itself"
    after_import("comes_late", lambda: sightings.append(4))
    assert sightings == [3, 4]
    del sys.modules["comes_late"]
