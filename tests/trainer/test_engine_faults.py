"""An engine beside the trainer, in real trainings of the tiny policy: close while it has the
trainer's weights, named as stale when it has not."""

from __future__ import annotations

import copy

import pytest
from lldscope_trainer.config import load_config
from lldscope_trainer.policy.model import Policy
from lldscope_trainer.rollout.sampler import Sampler
from lldscope_trainer.train import Trainer
from plain_engine import InTests

import lldscope
from lldscope.diagnosis.evidence import gather
from lldscope.diagnosis.rules.numerics import engine_mismatch

SETTINGS = ["prompts=4", "group_size=8", "updates=4", "lr=4e-4", "warmup_steps=0", "top_p=1",
            "eval_questions=0", "tokens_every=0", "retention=0", "device=cpu"]


class Beside(InTests):
    """An engine with weights of its own, which it syncs unless it is `stale`."""

    stale = False

    def __init__(self, trainer: Trainer) -> None:
        self.policy = Policy(copy.deepcopy(trainer.policy.model), trainer.policy.tokenizer)
        self.sampler = Sampler(self.policy, trainer._players.sampling._sampling)
        trainer._players.engine = trainer._players.sampling = self

    def sync(self, weights) -> None:
        if not self.stale:
            self.policy.model.load_state_dict(dict(weights), strict=False)

    def play(self, environment, questions, generator):
        rollouts = self.sampler.play(environment, questions, generator)
        for r in rollouts:
            r.behaviour, r.logp, r.entropy, r.error_norm = r.logp, None, None, None
        return rollouts


@pytest.mark.slow
@pytest.mark.parametrize(("stale", "steps"), [(False, 2), (True, 6)])
def test_an_engine_is_close_or_named_as_stale(tmp_path, stale, steps):
    with lldscope.Recorder(tmp_path / "run") as recorder:
        trainer = Trainer(load_config("tiny", SETTINGS), recorder)
        engine = Beside(trainer)
        for step in range(steps):
            engine.stale = stale and step > 0
            trainer.step(step)
        trainer.close()
    table = lldscope.open_run(tmp_path / "run").signals()
    if stale:
        message = engine_mismatch(gather(table, 2000)).message(steps - 1)
        assert "older weights" in message, table[["engine_gap", "engine_k3", "step_kl"]].to_string()
    else:
        assert table["engine_gap"].abs().max() < 1e-5
        assert table["engine_ess"].min() > 0.999
