"""Trainers that are not ours: the examples of docs/integrations.md, and a callback for
transformers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import lldscope
from lldscope.core.errors import RunExists

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")


def examples(kind: str) -> list[str]:
    return re.findall(rf"```python {kind}\n(.*?)```", PAGE, re.S)


def test_the_loop_of_the_page(tmp_path, monkeypatch):
    """With numbers that are made up, Δ in the run is what the scores say."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    rewards, scores = torch.tensor([1.0, 0.0] * 4), []
    batch = torch.zeros(8, 5), torch.ones(8, 4), rewards, rewards - 0.5, 4

    def score(rollouts):
        scores.append(-torch.rand(8, 4))
        return scores[-1]

    (code,) = examples("loop")
    exec(
        compile(code, "integrations.md", "exec"),
        {"np": np, "sample": lambda: batch, "score": score, "update": lambda *_: 0.5},
    )
    run = lldscope.open_run("runs/mine")
    assert run.signals()["step"].tolist() == [0, 1, 2]
    delta = run.sql(
        "SELECT logp_post_sum - logp_old_sum AS d FROM actions ORDER BY step, response_id"
    )["d"]
    expected = [(post - old).sum(1) for old, post in zip(scores[::2], scores[1::2], strict=True)]
    assert np.allclose(delta, torch.cat(expected), atol=1e-5)
    assert run.signals()["delta_correct"].notna().all()


def test_the_batch_of_the_page(tmp_path):
    mask = torch.tensor([[1, 1, 1], [1, 0, 1], [1, 1, 0], [1, 0, 0]])
    old, moved = -torch.rand(4, 3), torch.rand(4, 3) - 0.5
    with lldscope.Recorder(tmp_path / "run") as recorder:
        (code,) = examples("batch")
        exec(compile(code, "integrations.md", "exec"), {
            "recorder": recorder, "step": 3, "mask": mask, "prompts": [[5, 6]] * 4,
            "completions": [[1, 2, 3], [1, 2, 4], [3, 4], [6]], "groups": [0, 0, 1, 1],
            "rewards": torch.tensor([1.0, 0.0, 1.0, 0.5]), "old": old, "post": old + moved,
            "norms": [0.5],
        })
    rows = lldscope.open_run(tmp_path / "run").sql(
        "SELECT logp_post_sum - logp_old_sum AS d FROM actions ORDER BY response_id, action_index"
    )
    actions = [moved[0], moved[1, :1], moved[1, 2:], moved[2, :2], moved[3, :1]]
    assert np.allclose(rows["d"], [action.sum() for action in actions], atol=1e-5)


def test_the_lines_for_trl_run(tmp_path, monkeypatch):
    pytest.importorskip("trl", reason="trl: not installed")
    import trl_tiny

    monkeypatch.chdir(tmp_path)
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    for code in (*re.findall(r"```python trl\n(.*?)```", readme, re.S), *examples("trl")):
        if "import" not in code:
            code = f"from lldscope.integrations.trl import instrument\n{code}"
        if Path("runs").exists():
            code = code.replace('"runs/mine"', '"runs/mine", resume=True')
        trainer = trl_tiny.make(tmp_path, max_steps=2)
        exec(compile(code, "integrations.md", "exec"), {"trainer": trainer})
        trainer.lldscope_recorder.close()
    run = lldscope.open_run("runs/mine")
    assert run.info["status"] == "finished"
    assert run.info["config"]["llds"] == "off"
    assert run.signals()["step"].tolist() == [0]
    assert run.sql("SELECT logp_post_sum FROM actions")["logp_post_sum"].notna().any()


def test_the_callback_records_what_transformers_logs(tmp_path, monkeypatch):
    from torch.utils.data import TensorDataset
    from transformers import Trainer, TrainingArguments

    monkeypatch.chdir(tmp_path)

    class Line(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor(3.0))

        def forward(self, x):
            return {"loss": (self.weight * x).square().mean()}

    def trainer():
        result = Trainer(
            model=Line(),
            args=TrainingArguments(
                output_dir="out", use_cpu=True, max_steps=4, logging_steps=1, report_to=[],
                save_strategy="no", disable_tqdm=True, learning_rate=0.1, eval_strategy="steps",
                eval_steps=2, label_names=["x"],
            ),
            train_dataset=TensorDataset(torch.arange(8.0)),
            eval_dataset=TensorDataset(torch.arange(8.0)),
            data_collator=lambda rows: {"x": torch.stack([r[0] for r in rows])},
        )
        (code,) = examples("callback")
        exec(compile(code, "integrations.md", "exec"), {"trainer": result})
        return result

    first = trainer()
    first.train()
    run = lldscope.open_run("runs/mine")
    log = [e for e in first.state.log_history if "grad_norm" in e]
    assert run.signals()["step"].tolist() == [0, 1, 2, 3]
    assert np.allclose(run.signals()["grad_norm"], [e["grad_norm"] for e in log])
    assert np.allclose(run.signals()["lr"], [e["learning_rate"] for e in log])
    messages = run.sql("SELECT DISTINCT estimator FROM scalars WHERE name = 'loss_policy'")
    assert "the whole loss" in messages["estimator"][0]
    losses = [e["eval_loss"] for e in first.state.log_history if "eval_loss" in e]
    evals = run.sql("SELECT step, metric, value FROM evals ORDER BY step")
    assert evals["metric"].tolist() == ["loss"] * 2
    assert evals["step"].tolist() == [2, 4]
    assert np.allclose(evals["value"], losses)
    assert run.info["status"] == "finished"
    with pytest.raises(RunExists):
        trainer().train()


def test_of_two_metrics_of_one_signal_the_callback_records_one_as_the_signal(tmp_path):
    from types import SimpleNamespace

    from lldscope.integrations.callback import LldscopeCallback

    callback = LldscopeCallback(tmp_path / "run")
    state = SimpleNamespace(is_world_process_zero=True, global_step=1, max_steps=1)
    callback.on_train_begin(None, state, None)
    callback.on_log(None, state, None, logs={"reward": 0.25, "critic/score/mean": 0.5})
    callback.on_train_end(None, state, None)
    with lldscope.open_run(tmp_path / "run") as run:
        names = run.sql("SELECT name, value FROM scalars ORDER BY name").values.tolist()
        assert run.signals()["reward"].tolist() == [0.25]
    assert names == [["critic/score/mean", 0.5], ["reward", 0.25]]
