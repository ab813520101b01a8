"""Nothing is found in a sound training by verl's own trainer; what is found has verl's names."""

from __future__ import annotations

import pytest
import verl_tiny
from verl.trainer.ppo.v1 import trainer_base

import lldscope
from lldscope.lint import examine

pytestmark = pytest.mark.filterwarnings("ignore")
ADVANTAGES = "compute_advantage_for_multi_trajectories"


def lint(tmp_path, monkeypatch):
    trainer = verl_tiny.make(
        tmp_path, monkeypatch, f"+trainer.lldscope.path={tmp_path / 'run'}",
        "+trainer.lldscope.tokens_every=1", "actor_rollout_ref.actor.optim.lr=3e-2",
    )
    trainer.fit(None)
    with lldscope.open_run(tmp_path / "run") as run:
        return examine(run)


def test_nothing_is_found_without_one_and_settings_have_verls_names(tmp_path, monkeypatch):
    result = lint(tmp_path, monkeypatch)
    assert result.findings == []
    assert {"advantage-scale", "entropy-bound", "group-prompt"} <= {*result.passed}
    original = getattr(trainer_base, ADVANTAGES)
    monkeypatch.setattr(
        trainer_base, ADVANTAGES,
        lambda data, **kwargs: original(data, **kwargs | {"norm_adv_by_std_in_grpo": False}),
    )
    (finding,) = [f for f in lint(tmp_path / "b", monkeypatch).findings
                  if f.check == "advantage-scale"]
    assert finding.settings["algorithm.norm_adv_by_std_in_grpo"] is True
