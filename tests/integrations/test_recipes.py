"""Adapters to trainers that do not install here: SkyRL. It runs against a
stand-in with the calls, fields and alignment of the trainer's source, in the version named in
docs/integrations.md; what it records is compared with plain loops over the made-up rollouts."""

from __future__ import annotations

import importlib
import re
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import lldscope
from lldscope.core.errors import RunExists
from lldscope.integrations.common.hooks import after_import
from lldscope.monitor.health import check
from lldscope.recording.batch import Batch, Scores
from lldscope.recording.columns import record
from lldscope.recording.episodes import tagged_turns

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")

PROMPTS = [[5, 6], [5, 6], [7, 8, 9], [7, 8, 9]]
RESPONSES = [[1, 2, 3, 4, 5], [1, 2], [3, 4, 5], [6]]
OWN = [[1, 1, 0, 1, 1], [1, 1], [1, 0, 1], [1]]
REWARDS = [1.0, 0.0, 1.0, 0.5]
ADVANTAGES = [1.0, -1.0, 0.5, -0.5]


def examples(kind: str) -> list[str]:
    return re.findall(rf"```python {kind}\n(.*?)```", PAGE, re.S)


def made_up(seed: int) -> list[list[float]]:
    """A number for each token of each response."""
    random = np.random.default_rng(seed)
    return [(-random.gamma(2.0, 1.0, len(r))).tolist() for r in RESPONSES]


OLD, POST, ENGINE, REFERENCE = map(made_up, range(4))


def actions(policy_mask: list[int]) -> list[list[int]]:
    results: list[list[int]] = []
    for k, mine in enumerate(policy_mask):
        if mine and (k == 0 or not policy_mask[k - 1]):
            results.append([])
        if mine:
            results[-1].append(k)
    return results


def recorded(run: lldscope.Run, step: int = 0) -> None:
    """The run has what the lists above say."""
    rows = run.sql(
        "SELECT response_id, action_index, n_tokens, logp_old_sum, logp_post_sum,"
        " logp_behaviour_sum, logp_ref_sum, drop_sum, logp_min FROM actions"
        f" WHERE step = {step} ORDER BY ALL"
    )
    expected = [
        (i, j, len(a), *(sum(values[i][k] for k in a) for values in (OLD, POST, ENGINE, REFERENCE)),
         sum(max(0.0, OLD[i][k] - POST[i][k]) for k in a), min(OLD[i][k] for k in a))
        for i, policy_mask in enumerate(OWN) for j, a in enumerate(actions(policy_mask))
    ]
    assert np.allclose(rows.to_numpy(dtype=float), np.array(expected), atol=1e-5)
    rows = run.sql(
        "SELECT group_id, reward, advantage, correct, n_tokens, prompt_hash FROM responses"
        f" WHERE step = {step} ORDER BY response_id"
    )
    assert rows["group_id"].tolist() == [0, 0, 1, 1]
    assert rows["reward"].tolist() == REWARDS
    assert np.allclose(rows["advantage"], ADVANTAGES)
    assert rows["correct"].tolist() == [True, False, True, False]
    assert rows["n_tokens"].tolist() == [sum(policy_mask) for policy_mask in OWN]
    assert rows["prompt_hash"].nunique() == 2
    tokens = run.sql(f"SELECT token_id, logp_old FROM tokens WHERE step = {step}"
                     " AND response_id = 0 ORDER BY position")
    assert tokens["token_id"].tolist() == PROMPTS[0] + RESPONSES[0]
    old = [o if policy_mask else None for o, policy_mask in zip(OLD[0], OWN[0], strict=True)]
    assert np.allclose(tokens["logp_old"].to_numpy(float), [np.nan, np.nan, *map(float_, old)],
                       equal_nan=True)


def float_(value: float | None) -> float:
    return np.nan if value is None else value


class Tokenizer:
    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


# -- SkyRL ----------------------------------------------------------------------------------------


class SkyBatch(dict):
    """TrainingInputBatch: tensors by name, and metadata."""

    metadata: dict[str, Any]

    def select(self, keys: list[str], metadata_keys: list[str]) -> SkyBatch:
        results = SkyBatch({k: self[k] for k in keys})
        results.metadata = {k: self.metadata[k] for k in metadata_keys}
        return results


def right(rows: list[list[float]], dtype: Any = torch.float32) -> torch.Tensor:
    """Rows aligned at the right, and one more that SkyRL adds: a copy of the first."""
    width = max(map(len, rows))
    return torch.tensor([[0] * (width - len(r)) + list(r) for r in [*rows, rows[0]]], dtype=dtype)


class SkyTrainer:
    """The calls of RayPPOTrainer.train that matter, in their order."""

    def __init__(self) -> None:
        self.tokenizer, self.global_step = Tokenizer(), 0
        self.now = OLD
        self.passes: list[SkyBatch] = []
        self.dispatch = SimpleNamespace(get_lcm_dp_size=lambda: 3)
        self.cfg = SimpleNamespace(trainer=SimpleNamespace(max_training_steps=None))

    def fwd_logprobs_values_reward(self, batch: SkyBatch) -> SkyBatch:
        batch["action_log_probs"] = right(OLD)
        batch["base_action_log_probs"] = right(REFERENCE)
        return batch

    def _execute_forward_pass(self, model, batch, *, key, mini_batch_boundaries):
        assert (model, key) == ("policy", "logprobs")
        self.passes.append(batch)
        if mini_batch_boundaries is None:
            return self.entries(batch)
        assert mini_batch_boundaries == [(0, 2), (2, 4)]
        return right(self.now)

    def entries(self, batch: SkyBatch) -> torch.Tensor:
        """Log-probabilities of other sequences than the step's."""
        assert len(batch["sequences"]) % 3 == 0
        whole = [p + r for p, r in zip(PROMPTS, RESPONSES, strict=True)]
        rows = zip(batch["sequences"], batch["attention_mask"].bool(), strict=True)
        results = [[0.0] * 9 + self.now[whole.index(ids[there].tolist())] for ids, there in rows]
        k = batch.metadata["response_length"]
        return torch.tensor([row[-k:] for row in results])

    def train(self, callback: Any) -> None:
        control = SimpleNamespace(should_save=False)
        callback.on_train_start(self, SimpleNamespace(global_step=self.global_step), control)
        self.global_step += 1
        for _ in range(2):
            sequences = [p + r for p, r in zip(PROMPTS, RESPONSES, strict=True)]
            batch = SkyBatch(
                sequences=right(sequences, torch.long),
                attention_mask=right([[1] * len(s) for s in sequences], torch.long),
                response_mask=right([[1] * len(r) for r in RESPONSES], torch.long),
                loss_mask=right(OWN, torch.long), rollout_logprobs=right(ENGINE),
                rewards=right([[0.0] * (len(r) - 1) + [x]
                               for r, x in zip(RESPONSES, REWARDS, strict=True)]),
                pixel_values=None,
            )
            batch["loss_mask"][-1] = 0
            batch.metadata = {
                "uids": ["b", "b", "a", "a", "pad0"], "pad_size": 1, "response_length": 5,
                "policy_mini_batch_boundaries": [(0, 2), (2, 4)],
            }
            batch = self.fwd_logprobs_values_reward(batch)
            batch["advantages"] = right(
                [[a] * len(r) for a, r in zip(ADVANTAGES, RESPONSES, strict=True)]
            )
            batch.pop("rewards")
            batch.metadata.pop("uids")
            self.now = POST
            messages = SimpleNamespace(
                global_step=self.global_step, batch=batch, metrics={"grad_norm": 0.25}
            )
            callback.on_step_end(self, messages, control)
            self.now = OLD
            self.global_step += 1
        callback.on_train_end(self, SimpleNamespace(), control)


@pytest.fixture
def modules(monkeypatch):
    """Modules of trainers that are not installed: name → what they have."""

    def put(**arguments: Any) -> None:
        for name, members in arguments.items():
            parts = name.replace("__", ".").split(".")
            for k in range(1, len(parts) + 1):
                module = types.ModuleType(".".join(parts[:k]))
                module.__path__ = []  # type: ignore[attr-defined]
                if k == len(parts):
                    vars(module).update(members)
                monkeypatch.setitem(sys.modules, module.__name__, module)
        for name in ("skyrl",):
            monkeypatch.delitem(sys.modules, f"lldscope.integrations.{name}", raising=False)

    return put


@pytest.fixture
def sky(modules):
    modules(skyrl__train__utils__callbacks={"TrainingCallback": type("TrainingCallback", (), {})})
    return importlib.import_module("lldscope.integrations.skyrl")


def test_skyrl(tmp_path, sky):
    trainer = SkyTrainer()
    trainer.train(sky.LldscopeCallback(tmp_path / "run", tokens_every=1, name="sky"))
    run = lldscope.open_run(tmp_path / "run")
    assert (run.info["status"], run.info["name"]) == ("finished", "sky")
    assert check(run).last_step == 1
    recorded(run)
    recorded(run, step=1)
    assert run.signals()["grad_norm"].tolist() == [0.25, 0.25]
    assert set(trainer.passes[0]) == {"sequences", "attention_mask"}
    entries = run.sql("SELECT step, age, response_id, action_index, logp_post_sum FROM retention"
                   " ORDER BY ALL").to_numpy()
    expected = [
        (1, 1, i, j, sum(POST[i][k] for k in a))
        for i in (0, 2) for j, a in enumerate(actions(OWN[i]))
    ]
    assert np.allclose(entries, expected, atol=1e-5)


def test_the_page_for_skyrl(tmp_path, sky, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer, entries = SkyTrainer(), []
    trainer.add_callback = entries.append
    (code,) = examples("skyrl")
    exec(compile(code, "integrations.md", "exec"), {"trainer": trainer})
    trainer.train(*entries)
    recorded(lldscope.open_run("runs/mine"))


def test_skyrl_goes_on_after_a_checkpoint_and_survives_its_own_faults(tmp_path, sky, caplog):
    SkyTrainer().train(sky.LldscopeCallback(tmp_path / "run"))
    with pytest.raises(RunExists):
        SkyTrainer().train(sky.LldscopeCallback(tmp_path / "run"))
    again = SkyTrainer()
    again.global_step = 2
    again.train(sky.LldscopeCallback(tmp_path / "run"))
    assert lldscope.open_run(tmp_path / "run").signals()["step"].tolist() == [0, 1, 2, 3]
    broken = SkyTrainer()
    broken._execute_forward_pass = None
    callback = sky.LldscopeCallback(tmp_path / "broken")
    broken.train(callback)
    assert sum("training goes on" in r.message for r in caplog.records) == 1
    assert sum(callback._recorder.dropped.values()) == 2


# -- what all of them stand on --------------------------------------------------------------------


def test_a_batch_by_hand(tmp_path):
    """Rows that were not measured are NULL, a NaN that was measured is a NaN."""
    old = [[-1.0, np.nan], [-2.0, -3.0]]
    with lldscope.Recorder(tmp_path / "run") as recorder:
        record(
            recorder,
            Batch(
                step=0, mask=[[1, 1], [1, 0]], prompt_ids=[[1], [1]], completion_ids=[[2, 3], [4]],
                rewards=np.array([1.0, np.nan]), correct=[True, None], group_ids=[7, 7],
                old=old, post=Scores(old, [True, False]), entropy=Scores(old, [False, True]),
            ),
            updates={"grad_norm": [0.5, 0.25]},
        )
    run = lldscope.open_run(tmp_path / "run")
    rows = run.sql("SELECT * FROM actions ORDER BY response_id")
    results = rows[["logp_old_sum", "logp_post_sum", "entropy_sum"]].to_dict("list")
    assert np.isnan(results["logp_old_sum"][0])
    assert results["logp_old_sum"][1] == -2
    null = run.sql(
        "SELECT list(logp_post_sum IS NULL ORDER BY response_id) AS post,"
        " list(entropy_sum IS NULL ORDER BY response_id) AS entropy FROM actions"
    )
    assert list(null["post"][0]) == [False, True]
    assert list(null["entropy"][0]) == [True, False]
    assert rows["n_tokens"].tolist() == [2, 1]
    sums = "n_correct, reward_sum, reward_sq_sum, entropy_sum"
    assert run.sql(f"SELECT {sums} FROM steps").isna().all(axis=None)
    assert run.sql("SELECT grad_norm FROM updates ORDER BY update")["grad_norm"].tolist() == [
        0.5, 0.25,
    ]


@pytest.mark.parametrize(
    ("rewards", "mean"),
    [([1, 1, np.nan, np.nan], None), ([np.nan] * 4, None), ([1, 0, 1, 1], 0.75)],
)
def test_a_rollout_without_a_reward_is_not_one_of_reward_0(tmp_path, rewards, mean):
    with lldscope.Recorder(tmp_path / "run") as recorder:
        batch = Batch(
            step=0, mask=np.ones((4, 1)), prompt_ids=[[1]] * 4, completion_ids=[[2]] * 4,
            rewards=np.array(rewards), correct=[None] * 4, group_ids=[0] * 4,
        )
        record(recorder, batch)
    run = lldscope.open_run(tmp_path / "run")
    (results,) = run.sql("SELECT reward IS NULL AS missing, reward FROM signals").to_dict("records")
    assert results["missing"] == (mean is None)
    assert mean is None or results["reward"] == mean
    null = run.sql("SELECT count(*) AS n FROM steps WHERE reward_sq_sum IS NULL")["n"][0]
    assert null == (mean is None)


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


def test_a_batch_of_the_wrong_shape_is_refused():
    arguments: dict[str, Any] = {
        "step": 0, "mask": [[1, 1]], "prompt_ids": [[1]], "completion_ids": [[2, 3]],
        "rewards": np.ones(1), "correct": [True], "group_ids": [0],
    }
    with pytest.raises(ValueError, match="correct has 2 rows, mask has 1"):
        Batch(**arguments | {"correct": [True, True]})
    with pytest.raises(ValueError, match=r"old has shape \(1, 3\), mask \(1, 2\)"):
        Batch(**arguments, old=np.zeros((1, 3)))


def test_turns_by_tags_and_without():
    kinds = [t.kind for t in tagged_turns(
        ["<search>x</search>", "no tags", "<answer>y</answer>"],
        ["<information>Doc 1(Title: t) a</information>", "\nMy previous action is invalid. …", ""],
        truncated=False,
    )]
    assert kinds == ["search", "invalid", "answer"]
    results = tagged_turns(["<search>x</search>"], ["<information></information>"], truncated=False)
    assert (results[0].kind, results[0].tool_ok) == ("search", False)
    plain = tagged_turns(["call", "and so"], ["result", ""], truncated=False)
    assert [t.kind for t in plain] == ["search", "answer"]
    plain = tagged_turns(["call", "and s"], ["result", ""], truncated=True)
    assert [t.kind for t in plain] == ["search", "text"]
    assert [t.kind for t in tagged_turns(["hello"], [""], truncated=False)] == ["text"]


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
