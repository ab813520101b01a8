"""What keeps engine and trainer apart is named in real trainings: the tiny policy learns, and an
engine beside it samples from something else and reports the log-probabilities of that."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from lldscope_trainer.config import load_config
from lldscope_trainer.policy.logprobs import pad
from lldscope_trainer.policy.model import Policy
from lldscope_trainer.rollout.sampler import Sampler, _nucleus
from lldscope_trainer.train import Trainer
from plain_engine import InTests

import lldscope
from lldscope.diagnosis.evidence import gather
from lldscope.diagnosis.rules.numerics import engine_mismatch

SETTINGS = ["prompts=4", "group_size=8", "updates=4", "lr=4e-4", "warmup_steps=0", "top_p=1",
            "eval_questions=0", "tokens_every=0", "retention=0", "device=cpu"]
KINDS = {
    "top-p": "cut off (top-p, top-k, min-p) at ",
    "stale": "older weights",
    "precision": "precision or kernels",
    "temperature": "another temperature",
    "other tokens": "other tokens, or another model",
}


class Beside(InTests):
    """An engine with weights of its own, which it syncs unless it is `stale`."""

    stale = False

    def __init__(self, policy: Policy) -> None:
        self.policy = Policy(copy.deepcopy(policy.model), policy.tokenizer)

    def sync(self, weights) -> None:
        if not self.stale:
            self.policy.model.load_state_dict(dict(weights), strict=False)


class Engine:
    """Samples with a copy of the policy as `kind` has it, and scores what it drew as an engine
    does: under the distribution that it drew from."""

    def __init__(self, trainer: Trainer, kind: str) -> None:
        self.kind, self.beside = kind, Beside(trainer.policy)
        if kind == "precision":
            self.beside.policy.model.bfloat16()
        changed = {"top-p": {"top_p": 0.8}, "temperature": {"temperature": 0.7}}.get(kind, {})
        sampling = replace(trainer._players.sampling._sampling, **changed)
        self.sampler, self.sampling = Sampler(self.beside.policy, sampling), sampling
        trainer._players.engine, trainer._players.sampling = self.beside, self

    @torch.inference_mode()
    def play(self, environment, questions, generator):
        rollouts = self.sampler.play(environment, questions, generator)
        ids = pad([r.ids for r in rollouts], 0, torch.device("cpu"))
        logits = self.beside.policy.model(input_ids=ids).logits.float() / self.sampling.temperature
        probs = logits.softmax(-1)
        if self.sampling.top_p < 1:
            probs = _nucleus(probs.flatten(0, 1), self.sampling.top_p).view_as(probs)
            probs = probs / probs.sum(-1, keepdim=True)
        logps = probs.log()[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
        for row, r in enumerate(rollouts):
            scores = [0.0, *logps[row, : len(r.ids) - 1].tolist()]
            if self.kind == "other tokens":
                scores = [0.0, *scores[:-1]]  # off by one
            r.behaviour = [s if a >= 0 else 0.0 for s, a in zip(scores, r.action, strict=True)]
            r.logp = r.entropy = r.error_norm = None
        return rollouts


def recorded(path, kind, steps):
    torch.set_num_threads(1)
    with lldscope.Recorder(path) as recorder:
        trainer = Trainer(load_config("tiny", SETTINGS), recorder)
        engine = Engine(trainer, kind)
        for step in range(steps):
            engine.beside.stale = kind == "stale" and step > 0
            trainer.step(step)
        trainer.close()
    return lldscope.open_run(path).signals()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_message_names_what_was_injected(kind, tmp_path):
    steps = 6 if kind in ("stale", "temperature") else 3
    table = recorded(tmp_path / "run", kind, steps)
    message = engine_mismatch(gather(table, 2000)).message(steps - 1)
    columns = table[["engine_gap", "engine_k3", "engine_ratio", "engine_far_share", "step_kl"]]
    assert KINDS[kind] in message, f"{message}\n{columns.to_string()}"


@pytest.mark.slow
def test_an_engine_with_the_same_weights_is_close(tmp_path):
    table = recorded(tmp_path / "run", "none", 2)
    assert table["engine_gap"].abs().max() < 1e-5
    assert table["engine_ess"].min() > 0.999
