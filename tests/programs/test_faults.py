"""Every fault of the bank really does what it says, in a few steps of real training."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from functools import cache

import pytest
import torch
from click.testing import CliRunner
from keeper import SMALL, Keeper, train
from lldscope_trainer import loop
from lldscope_trainer.config import load_config

import lldscope
from lldscope.losses.advantages import group_advantages
from study.broken import FAULTS
from study.faults import FaultyTrainer, main

AT = 1


class Watching(FaultyTrainer):
    """Keeps the rollouts of the latest step."""

    def _batch(self, rollouts):
        self.played = rollouts
        return super()._batch(rollouts)


@cache
def run(fault: str, *overrides: str, steps: int = 2) -> tuple[Keeper, Watching]:
    keeper = Keeper()
    settings = [*SMALL, "eval_questions=0", f"steps={steps}", *overrides]
    trainer = Watching(load_config("tiny", settings), keeper, fault, AT)
    loop.run(trainer, keeper)
    return keeper, trainer


def at_step(keeper: Keeper, table: str, step: int) -> list[dict]:
    return [row for row in keeper.rows(table) if row["step"] == step]


@pytest.fixture(scope="module")
def healthy() -> Keeper:
    keeper = Keeper()
    train(load_config("tiny", [*SMALL, "eval_questions=0", "steps=2"]), keeper)
    return keeper


@pytest.mark.parametrize("fault", [f for f in FAULTS if not f.endswith("-engine")])
def test_before_it_begins_the_run_is_that_of_the_trainer(fault, healthy):
    keeper, _ = run(fault)
    for table, names in (
        ("responses", ("reward", "advantage", "n_tokens")),
        ("updates", ("grad_norm", "skipped")),
        ("actions", ("logp_old_sum", "logp_post_sum")),
    ):
        for name in names:
            actual, expected = (
                [row[name] for row in at_step(k, table, 0)] for k in (keeper, healthy)
            )
            assert actual == expected, (table, name)
    (event,) = [e for e in keeper.events if e["kind"] == "injected_fault"]
    assert (event["step"], event["fault"]) == (AT, fault)


def test_retriever_dies():
    keeper, _ = run("retriever-dies")
    before, after = (
        [a["tool_ok"] for a in at_step(keeper, "actions", s) if a["kind"] == "search"]
        for s in (0, 1)
    )
    assert True in before
    assert False not in before
    assert False in after
    assert True not in after


def test_tool_unmasked(healthy):
    keeper, trainer = run("tool-unmasked")
    rollouts = trainer.played
    tool = 0
    for r in rollouts:
        first = next(t for t, a in enumerate(r.action) if a >= 0)
        assert all(a >= 0 for a in r.action[first:]), "everything after the prompt"
        assert all(a < 0 for a in r.action[:first])
        tool += "<information>" in trainer.policy.decode(r.ids[first:])
        for series in (r.logp, r.entropy, r.error_norm):
            assert all(math.isfinite(x) for x in series)
            assert not any(series[:first])
        assert all(x < 0 for x in r.logp[first:])
    assert tool > 3
    n_tokens = sum(r["n_tokens"] for r in at_step(keeper, "responses", 1))
    assert n_tokens == sum(len(r.ids) - r.action.index(0) for r in rollouts)
    # The same questions and random numbers: a policy not yet trained on it writes no longer.
    assert n_tokens > 1.5 * sum(r["n_tokens"] for r in at_step(healthy, "responses", 1))
    (update, *_) = [u for u in at_step(keeper, "updates", 1) if u["update"] == 0]
    assert update["ratio_max"] == pytest.approx(1, abs=1e-3), "old and new score it alike"


def test_truncation():
    keeper, _ = run("truncation")
    (event,) = keeper.events
    limit = event["turn_tokens"]
    longest = [max(a["n_tokens"] for a in at_step(keeper, "actions", s)) for s in (0, 1)]
    assert longest[0] > limit == longest[1]
    cut = [sum(r["truncated"] for r in at_step(keeper, "responses", s)) for s in (0, 1)]
    assert cut[1] > cut[0] + 2


def test_lr_jump():
    keeper, trainer = run("lr-jump")
    (event,) = keeper.events
    assert 10 <= event["factor"] <= 30
    before, after = (row["lr"] for row in keeper.rows("steps"))
    before *= 2  # the second step of the warm-up
    assert after / before == pytest.approx(event["factor"], abs=0.01)
    assert trainer.optimizer.lr == after


def test_overflow():
    keeper, trainer = run("overflow", "seed=2", "updates=8", steps=3)
    assert not any(u["skipped"] for u in at_step(keeper, "updates", 0))
    after = [u for u in keeper.rows("updates") if u["step"] >= AT]
    skipped = [u for u in after if u["skipped"]]
    assert 0 < len(skipped) < len(after), "some, not all"
    assert all(not math.isfinite(u["grad_norm"]) for u in skipped)
    assert trainer.updater.n_applied == 24 - len(skipped)
    events = [e for e in keeper.events if e["kind"] == "nonfinite_gradient"]
    assert [(e["step"], e["update"]) for e in events] == [(u["step"], u["update"]) for u in skipped]
    assert all(math.isfinite(s["loss_policy"]) for s in keeper.rows("steps"))


def test_wrong_group(healthy):
    keeper, trainer = run("wrong-group")
    rollouts = trainer.played
    keys = [r.episode.question.key for r in rollouts]
    texts = [r.episode.question.text for r in rollouts]
    of_key = defaultdict(set)
    for key, text in zip(keys, texts, strict=True):
        of_key[key].add(text)
    assert [len(t) for t in of_key.values()] == [2, 2]
    rows = at_step(keeper, "responses", 1)
    expected = group_advantages(
        torch.tensor([r["reward"] for r in rows]), [r["group_id"] // 2 for r in rows]
    )
    assert [r["advantage"] for r in rows] == pytest.approx(expected.tolist(), abs=1e-6)
    # What was played is what a sound run plays: only the comparison is wrong.
    sound = at_step(healthy, "responses", 1)
    assert [r["reward"] for r in rows] == [r["reward"] for r in sound]
    assert [r["data_source"] for r in rows] == [r["data_source"] for r in sound]
    assert [r["advantage"] for r in rows] != [r["advantage"] for r in sound]


def engine_gap(keeper: Keeper, step: int) -> float:
    """How far the engine's log-probabilities are from the trainer's, nats per token."""
    rows = at_step(keeper, "actions", step)
    assert all(a["logp_behaviour_sum"] is not None for a in rows)
    total = sum(abs(a["logp_behaviour_sum"] - a["logp_old_sum"]) for a in rows)
    return total / sum(a["n_tokens"] for a in rows)


def test_stale_engine():
    keeper, trainer = run("stale-engine", "lr=1e-3", "warmup_steps=0", steps=4)
    # In step 1 the engine still has the weights that the first step left; then it falls behind.
    assert engine_gap(keeper, 0) < 1e-4
    assert engine_gap(keeper, 1) < 1e-4
    assert engine_gap(keeper, 2) > 1e-2
    assert engine_gap(keeper, 3) > 1e-2
    ours, engines = (
        dict(p.model.named_parameters()) for p in (trainer.policy, trainer._fault._engine.policy)
    )
    assert any(not (ours[name] == engines[name]).all() for name in ours)
    assert trainer._players.evaluating._policy is trainer._fault._engine.policy


@pytest.mark.slow
def test_lagging_engine():
    keeper, trainer = run("lagging-engine", "lr=1e-3", "warmup_steps=0", steps=13)
    level = [step for step in range(13) if engine_gap(keeper, step) < 1e-4]
    assert level == [0, 1, 10], "it has the policy's weights before the fault, and every tenth step"
    assert trainer._players.evaluating._policy is trainer.policy


def test_command(tmp_path):
    directory = tmp_path / "run"
    words = ["retriever-dies", "tiny", *SMALL, "eval_questions=4", "steps=3", "--seed", "7"]
    done = CliRunner().invoke(main, [*words, "--run", str(directory)])
    assert done.exit_code == 0, done.output
    info = json.loads((directory / "run.json").read_text())
    assert (info["name"], info["status"]) == ("fault-retriever-dies-7", "finished")
    assert (info["config"]["fault"], info["config"]["fault_at"]) == ("retriever-dies", 1)
    assert info["config"]["seed"] == 7
    run = lldscope.open_run(directory)
    assert [(e["kind"], e["step"]) for e in run.events()] == [("injected_fault", 1)]
    assert run.signals()["tool_fail_share"].tolist() == [0, 1, 1]


@pytest.mark.parametrize("at", ["0", "3"])
def test_a_fault_needs_a_step_to_begin_at(tmp_path, at):
    words = ["overflow", "tiny", *SMALL, "steps=3", "--at", at, "--run", str(tmp_path / "run")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert f"--at {at}" in done.stderr
    assert not (tmp_path / "run").exists()
