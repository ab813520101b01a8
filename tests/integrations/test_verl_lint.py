"""Faults put into verl's own trainer are found by name; without one nothing is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import verl_tiny
from verl.trainer.ppo.v1 import trainer_base

import lldscope
from lldscope.lint import examine

pytestmark = pytest.mark.filterwarnings("ignore")
ADVANTAGES = "compute_advantage_for_multi_trajectories"


def advantages(change: Any = lambda a: a, **declared: Any) -> Any:
    """verl's function, with other advantages (rows, T) than it computes, or other arguments than
    the configuration's."""
    original = getattr(trainer_base, ADVANTAGES)

    def changed(data: Any, **kwargs: Any) -> Any:
        data = original(data, **kwargs | declared)
        mask = data.batch["response_mask"]
        data.batch["advantages"] = change(data.batch["advantages"]) * mask
        return data

    return lambda monkeypatch: monkeypatch.setattr(trainer_base, ADVANTAGES, changed)


def noise(a: torch.Tensor) -> torch.Tensor:
    constant = (a == 0).all(1, keepdim=True)
    sign = 1.0 - 2.0 * (torch.arange(len(a))[:, None] % 2)
    return torch.where(constant, 0.5 * sign, a)


def rows_of_batches(change: Any) -> Any:
    """The rollouts, changed on their way from the engine."""
    original = verl_tiny.Agents.sample

    def sample(self: Any, **options: Any) -> Any:
        answer = original(self, **options)
        rows = self._store.rows
        change([rows[key] for key in answer[0].keys])
        return answer

    return lambda monkeypatch: monkeypatch.setattr(verl_tiny.Agents, "sample", sample)


def rotate_prompts(rows: list[dict[str, Any]]) -> None:
    prompts = [row["prompts"] for row in rows]
    for row, prompt in zip(rows, [*prompts[1:], prompts[0]], strict=True):
        row["input_ids"] = torch.cat([prompt, row["responses"]])
        row["prompts"] = prompt


def sure_engine(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["rollout_log_probs"] = torch.full_like(row["rollout_log_probs"], -0.05)


def less_entropy(monkeypatch: Any) -> None:
    original = verl_tiny.Workers._score

    def score(self: Any, row: Any) -> Any:
        answer = original(self, row)
        return answer | {"entropy": 0.02 * answer["entropy"]}

    monkeypatch.setattr(verl_tiny.Workers, "_score", score)


FAULTS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "group-size": (None, ("actor_rollout_ref.rollout.n=4",)),
    "group-prompt": (rows_of_batches(rotate_prompts), ()),
    "advantage-scale": (advantages(norm_adv_by_std_in_grpo=False), ()),
    "advantage-offset": (advantages(lambda a: a + 0.3), ()),
    "advantage-order": (advantages(lambda a: -a), ()),
    "advantage-without-signal": (advantages(noise), ()),
    "entropy-bound": (less_entropy, ()),
    "confident-disagreement": (rows_of_batches(sure_engine), ()),
    "lr-schedule": (None, ("actor_rollout_ref.actor.optim.lr=1e-3",)),
}
SOUND = ("actor_rollout_ref.actor.optim.lr=3e-2",)


def lint(tmp_path, monkeypatch, *overrides):
    trainer = verl_tiny.make(
        tmp_path, monkeypatch, f"+trainer.lldscope.path={tmp_path / 'run'}",
        "+trainer.lldscope.tokens_every=1", *(overrides or SOUND),
    )
    trainer.fit(None)
    with lldscope.open_run(tmp_path / "run") as run:
        return examine(run)


@pytest.mark.parametrize("check", FAULTS)
def test_a_fault_in_verl_is_found_by_name(check, tmp_path, monkeypatch):
    fault, overrides = FAULTS[check]
    if fault is not None:
        fault(monkeypatch)
    findings = {f.check: f for f in lint(tmp_path, monkeypatch, *overrides).findings}
    assert check in findings
    assert findings[check].evidence


def test_nothing_is_found_without_one_and_settings_have_verls_names(tmp_path, monkeypatch):
    result = lint(tmp_path, monkeypatch)
    assert result.findings == []
    assert {"advantage-scale", "lr-schedule", "entropy-bound", "group-prompt"} <= {*result.passed}
    advantages(norm_adv_by_std_in_grpo=False)(monkeypatch)
    (finding,) = [f for f in lint(tmp_path / "b", monkeypatch, *SOUND).findings
                  if f.check == "advantage-scale"]
    assert finding.settings["algorithm.norm_adv_by_std_in_grpo"] is True
