"""Every fault of the bank really does what it says, in a few steps of real training."""

from __future__ import annotations

import json
import math
from functools import cache

import pytest
from click.testing import CliRunner
from keeper import SMALL, Keeper, train
from lldscope_trainer import loop
from lldscope_trainer.config import load_config

import lldscope
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
