"""What people's own files have that the formats' documentation does not say, and W&B's server."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from imported import query, signals

import lldscope
from lldscope.core.errors import LldscopeError, UsageError
from lldscope.core.safe_text import in_one_line
from lldscope.importers import addresses
from lldscope.importers.mapping import meaning
from lldscope.monitor.health import check

FIXTURES = Path(__file__).parents[1] / "fixtures"
TEXT, BARS = FIXTURES / "text", FIXTURES / "trl-bars"


def lines(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("names", "signal"),
    [
        (["eval/accuracy", "eval_accuracy", "eval_reward", "eval_rewards/accuracy_reward/mean",
          "val/gsm8k/mean@1", "val-core/nq/acc/mean@8", "val/test_score/nq", "val/reward_mean",
          "test/env/all/correct", "eval/all/avg_score", "eval/all/pass_at_1", "eval/aime24/avg@16",
          "heldout_accuracy", "test/env/all/reward/total"], "eval_score"),
        (["eval_loss", "eval_runtime", "eval_reward_std", "eval_completions/mean_length",
          "eval/global_step", "val/response_length/mean", "val-core/nq/acc/best@8/mean",
          "eval_entropy", "contest_score", "test_time", "latest_reward"], None),
        (["train/accuracy", "accuracy"], "success"),
    ],
)
def test_held_out_scores_are_known_by_their_usual_names(names, signal):
    meanings = {name: meaning(name) for name in names}
    assert {name: m and m.signal for name, m in meanings.items()} == dict.fromkeys(names, signal)


# -- rewards ---------------------------------------------------------------------------------------


def test_a_log_without_a_reward_says_so_and_is_never_healthy(run_import, tmp_path):
    rows = [
        {"step": s, "entropy": 1.0, "grad_norm": 0.1 + 0.001 * (s % 3), "win_rate": 0.4,
         "team_reward": 0.5, "reward_std": 0.1, "val/reward": 0.4}
        for s in range(200)
    ]
    path = lines(tmp_path / "metrics.jsonl", rows)
    outcome = run_import(path)
    (message,) = [note for note in outcome.findings.notes if "No reward" in note]
    assert "team_reward, win_rate" in message
    assert "--map reward=team_reward" in message
    state = check(lldscope.open_run(outcome.run))
    assert state.verdict == "insufficient"
    assert "(logged: team_reward, win_rate, " in state.headline.cause
    mapped = run_import(path, to="mapped", columns={"reward": "team_reward"})
    assert not [note for note in mapped.findings.notes if "No reward" in note]
    assert check(lldscope.open_run(mapped.run)).verdict == "healthy"


def test_inf_is_inf_in_signals_and_harms_no_statistic(run_import, tmp_path):
    rows = [{"step": s, "reward": 0.5, "grad_norm": 0.1} for s in range(120)]
    path = tmp_path / "metrics.jsonl"
    rows[60]["grad_norm"] = math.inf
    rows[61]["grad_norm"] = math.nan
    outcome = run_import(lines(path, rows))
    values = signals(outcome)
    assert values[60]["grad_norm"] == math.inf
    assert math.isnan(values[61]["grad_norm"])
    assert values[62]["grad_norm"] == pytest.approx(0.1)
    assert [values[s]["n_nonfinite"] for s in (60, 61)] == [1, 1]
    state = check(lldscope.open_run(outcome.run))
    assert state.last_step == 119
    assert "grad-explosion" not in {alert.rule for alert in state.firing}


# -- TRL's console with its progress bar -----------------------------------------------------------


@pytest.mark.parametrize("name", ["every5-unbuffered.log", "every5-buffered.log"])
def test_steps_come_from_the_progress_bar(run_import, name):
    """Written by TRL itself with logging_steps=5, 23 steps."""
    outcome = run_import(BARS / name)
    assert sorted(signals(outcome)) == [5, 10, 15, 20]
    assert any("progress bar" in note for note in outcome.findings.notes)


def test_a_bar_that_contradicts_the_epochs_is_not_believed(run_import, tmp_path):
    text = (BARS / "every5-unbuffered.log").read_text(encoding="utf-8")
    wrong = tmp_path / "train.log"
    wrong.write_text(text.replace("10/23", "7/23").replace("11/23", "7/23"), encoding="utf-8")
    outcome = run_import(wrong)
    # the length of the run and the summary's epoch still tell
    assert sorted(signals(outcome)) == [5, 10, 15, 20]
    wrong.write_text(text.replace("/23 [", "/17 [").split("{'train_runtime'")[0], encoding="utf-8")
    outcome = run_import(wrong, to="counted")
    assert sorted(signals(outcome)) == [1, 2, 3, 4]
    assert any("trainer_state.json" in note for note in outcome.findings.notes)


# -- NeMo-RL ---------------------------------------------------------------------------------------


def content(kind: str) -> Any:
    texts = [
        "Answer with <search> and <answer>. Who wrote it?",
        "<search>author</search>",
        "<information>Bob wrote it.</information>",
        "<answer>Bob</answer>",
    ]
    if kind == "texts":
        return [texts]
    roles = ("user", "assistant", "environment", "assistant")
    return [[{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)]]


@pytest.mark.parametrize("kind", ["texts", "messages"])
def test_nemo_rl_tells_what_was_said_in_turn(run_import, tmp_path, kind):
    row = json.loads((TEXT / "nemo" / "train_data_step1.jsonl").read_text().splitlines()[0])
    path = lines(tmp_path / "train_data_step1.jsonl", [row | {"content": content(kind)}])
    outcome = run_import(path)
    assert outcome.formats == {"rollouts": 1}
    assert query(outcome, "SELECT n_actions, n_searches, answered FROM responses") == [(2, 1, True)]
    assert [k for (k,) in query(outcome, "SELECT kind FROM actions ORDER BY action_index")] == [
        "search", "answer",
    ]
    ((text,),) = query(outcome, "SELECT text FROM responses")
    assert "Who wrote it?" in text


# -- rollouts of one's own -------------------------------------------------------------------------


def test_plain_rollouts_under_any_names(run_import, tmp_path):
    rows = [
        {"it": s, "q": f"question {s}", "a": f"<search>x</search>{i}", "r": float(i), "extra": [1]}
        for s in (1, 2)
        for i in range(4)
    ]
    path = lines(tmp_path / "rollouts.jsonl", rows)
    names = {"step": "it", "prompt": "q", "response": "a", "reward": "r"}
    outcome = run_import(path, columns=names)
    assert outcome.formats == {"rollouts": 1}
    assert query(outcome, "SELECT step, count(*), avg(reward), count(DISTINCT group_id) "
                          "FROM responses GROUP BY step ORDER BY step") == [
        (1, 4, 1.5, 1), (2, 4, 1.5, 1),
    ]


# -- W&B's server ----------------------------------------------------------------------------------


class WandbError(Exception):
    pass


@pytest.fixture
def wandb(monkeypatch):
    """The package's calls that are used, on a run that is made up."""

    class Api:
        def __init__(self, timeout: int) -> None: ...

        def run(self, path: str) -> SimpleNamespace:
            if path != "me/project/abc123":
                raise WandbError(f"Could not find run <Run {path} (not found)>")
            rows = (
                {"_step": s, "_timestamp": 1.76e9 + s, "train/reward": s / 2500, "text": "x\ny",
                 "train/grad_norm": math.nan if s == 5 else 0.1}
                for s in range(2500)
            )
            return SimpleNamespace(scan_history=lambda: rows)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Api=Api, Error=WandbError))


@pytest.mark.usefixtures("wandb")
def test_a_run_at_wandb_is_fetched_whole(run_import, tmp_path):
    path = addresses.located("wandb://me/project/abc123", tmp_path / "cache", None)[0]
    outcome = run_import(path)
    assert (outcome.formats, outcome.steps) == ({"metrics": 1}, 2500)
    rows = signals(outcome)
    assert rows[2000]["reward"] == pytest.approx(0.8)
    assert math.isnan(rows[5]["grad_norm"])


@pytest.mark.usefixtures("wandb")
def test_what_wandb_refuses_is_reported_and_leaves_nothing(tmp_path):
    with pytest.raises(LldscopeError, match="nobody cannot be read from W&B: Could not find"):
        addresses.located("wandb://me/project/nobody", tmp_path, None)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_without_wandb_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(LldscopeError, match=r"pip install 'lldscope\[import\]'"):
        addresses.located("wandb://me/project/abc123", tmp_path, None)


@pytest.mark.parametrize("source", ["wandb://me/project", "wandb://../../x", "wandb://a/b/c/d"])
def test_what_is_no_address_of_a_run_is_refused(source, tmp_path):
    with pytest.raises(UsageError, match="ENTITY/PROJECT/RUN"):
        addresses.located(source, tmp_path, None)


# -- how a run ended -------------------------------------------------------------------------------

RAISED = """RayTaskError(ValueError): ray::Worker.step() (pid=7)
  File "worker.py", line 3, in step
    raise ValueError("bad batch")
ValueError: bad batch"""


@pytest.mark.parametrize(
    ("reason", "line"),
    [(RAISED, "ValueError: bad batch"), ("killed", "killed"), ("", ""),
     ("OutOfMemory\n\ndetails follow", "OutOfMemory"),
     ("Traceback (most recent call last):\n  File \"a\"\ntorch.OutOfMemoryError: CUDA\n",
      "torch.OutOfMemoryError: CUDA")],
)
def test_a_reason_in_one_line(reason, line):
    assert in_one_line(reason) == line
