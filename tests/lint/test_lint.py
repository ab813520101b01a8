"""Faults put into real trainings are found by name, and nothing is found in sound ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from keeper import SMALL, train
from lldscope_trainer import train as training
from lldscope_trainer.config import load_config
from lldscope_trainer.train import Trainer

import lldscope
from lldscope.lint import CHECKS, examine
from lldscope.storage import layout

SAMPLES = Path(__file__).parents[2] / "sample_runs"
SETTINGS = [*SMALL, "steps=3", "top_p=1.0", "eval_questions=0"]
advantages = training.group_advantages
draw = Trainer._draw
batch = Trainer._batch


def change_rollouts(change: Callable[[Any], None]) -> Callable[..., Any]:
    """The trainer's `_batch`, with every rollout changed."""

    def changed(self: Trainer, rollouts: Any) -> Any:
        for rollout in rollouts:
            change(rollout)
        return batch(self, rollouts)

    return changed


def include_tool_text(rollout: Any) -> None:
    first = next(t for t, a in enumerate(rollout.action) if a >= 0)
    for t in range(first + 1, len(rollout.action)):
        rollout.action[t] = max(rollout.action[t], rollout.action[t - 1])


def scale_engine(rollout: Any) -> None:
    rollout.logp = [1.6 * value for value in rollout.logp]


def renormalise_engine(rollout: Any) -> None:
    rollout.logp = [value + 0.1 for value in rollout.logp]


def distort_engine(rollout: Any) -> None:
    rollout.logp = [-0.1 if value < -2.2 else value for value in rollout.logp]


def noise_in_constant_groups(rewards: Any, keys: Any, **options: Any) -> Any:
    values = advantages(rewards, keys, **options)
    noise = torch.tensor([0.5, -0.5]).repeat(len(values))[: len(values)]
    return torch.where(values == 0, noise, values)


@dataclass(frozen=True)
class Fault:
    """What is trained with but not declared, what is replaced in the trainer, and what is changed
    on the way to the recorder."""

    trained: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()
    patch: tuple[Any, str, Any] | None = None
    rows: dict[str, Callable[[dict[str, Any]], Any]] = field(default_factory=dict)


def first_is_empty(columns: dict[str, Any]) -> dict[str, Any]:
    tokens = list(columns["n_tokens"])
    worst = min(range(len(tokens)), key=lambda i: columns["advantage"][i])
    return {**columns, "n_tokens": [0 if i == worst else n for i, n in enumerate(tokens)]}


def scaled(values: list[float | None], factor: float) -> list[float | None]:
    return [None if value is None else factor * value for value in values]


FAULTS = {
    "group-size": Fault(declared=("group_size=8",)),
    "advantage-scale": Fault(trained=("advantage_std=false",)),
    "entropy-mean": Fault(trained=("temperature=0.4",)),
    "advantage-offset": Fault(
        patch=(training, "group_advantages", lambda *a, **k: advantages(*a, **k) + 0.3)
    ),
    "advantage-order": Fault(
        patch=(training, "group_advantages", lambda *a, **k: -advantages(*a, **k))
    ),
    "advantage-without-signal": Fault(
        patch=(training, "group_advantages", noise_in_constant_groups)
    ),
    "group-prompt": Fault(
        patch=(
            Trainer, "_draw",
            lambda *a: replace(d := draw(*a), groups=[*d.groups[1:], d.groups[0]]),
        )
    ),
    "tool-text": Fault(patch=(Trainer, "_batch", change_rollouts(include_tool_text))),
    "engine-slope": Fault(
        trained=("dtype=bfloat16",), patch=(Trainer, "_batch", change_rollouts(scale_engine))
    ),
    "kept-mass": Fault(
        trained=("dtype=bfloat16",),
        patch=(Trainer, "_batch", change_rollouts(renormalise_engine)),
    ),
    "confident-disagreement": Fault(
        trained=("dtype=bfloat16",),
        patch=(Trainer, "_batch", change_rollouts(distort_engine)),
    ),
    "empty-response": Fault(rows={"responses": first_is_empty}),
    "token-sums": Fault(rows={"tokens": lambda c: {**c, "entropy": scaled(c["entropy"], 2)}}),
    "entropy-bound": Fault(rows={"tokens": lambda c: {**c, "entropy": scaled(c["entropy"], 0.3)}}),
    "token-counts": Fault(rows={"responses": lambda c: {**c, "n_tokens": c["n_tokens"] + 7}}),
    "batch-sums": Fault(rows={"step": lambda c: {**c, "reward_sum": c["reward_sum"] + 1}}),
    "group-version": Fault(
        rows={"responses": lambda c: {**c, "policy_version": [*range(len(c["reward"]))]}}
    ),
}


class Changed(lldscope.Recorder):
    """A recorder that is told other values than the trainer has."""

    rows: dict[str, Callable[[dict[str, Any]], Any]]

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name != "rows" and name in self.rows:
            return lambda **columns: method(**self.rows[name](columns))
        return method


def record(path: Path, fault: Fault) -> Path:
    configuration = load_config("tiny", [*SETTINGS, *fault.declared]).to_dict()
    recorder = Changed.__new__(Changed)
    recorder.rows = fault.rows
    recorder.__init__(path, config=configuration)  # type: ignore[misc]
    with recorder:
        train(load_config("tiny", [*SETTINGS, *fault.trained]), recorder)
    return path


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("sound") / "run", Fault())


@pytest.mark.slow
@pytest.mark.parametrize("check", FAULTS)
def test_a_fault_in_training_is_found_by_name(check, tmp_path, monkeypatch):
    fault = FAULTS[check]
    if fault.patch is not None:
        monkeypatch.setattr(*fault.patch)
    with lldscope.open_run(record(tmp_path / "run", fault)) as run:
        findings = {finding.check: finding for finding in examine(run).findings}
    assert check in findings
    assert findings[check].evidence
    assert findings[check].first_step <= findings[check].evidence[0]["step"]


@pytest.mark.slow
def test_another_order_of_prompts_after_a_resume_is_found(tmp_path):
    path = tmp_path / "run"
    for seed, resume in ((0, False), (1, True)):
        config = load_config("tiny", [*SETTINGS, f"seed={seed}"])
        with lldscope.Recorder(path, config=config.to_dict(), resume=resume) as recorder:
            train(config, recorder)
    with lldscope.open_run(path) as run:
        assert [f.check for f in examine(run).findings] == ["resume-order"]


@pytest.mark.parametrize(("again", "repeated"), [(2, True), (7, False)])
def test_batches_that_come_again_after_a_resume_are_found(again, repeated, tmp_path):
    """After seven steps the run is resumed, at the eighth batch or at one of those before."""
    for steps in (range(7), range(7, 9)):
        with lldscope.Recorder(tmp_path / "run", resume=steps[0] > 0) as recorder:
            for step in steps:
                batch = step if step < 7 else again + step - 7
                recorder.responses(
                    step=step,
                    response_id=[0, 1],
                    prompt_hash=[f"p{2 * batch}", f"p{2 * batch + 1}"],
                )
                recorder.step(step=step)
    with lldscope.open_run(tmp_path / "run") as run:
        assert ["resume-repeat"] * repeated == [f.check for f in examine(run).findings]


@pytest.mark.parametrize("name", ["grpo", "grpo-llds", "retriever-dies"])
def test_nothing_is_found_in_the_sample_runs(name):
    with lldscope.open_run(SAMPLES / name) as run:
        result = examine(run)
    assert result.findings == []
    assert {"advantage-scale", "entropy-bound", "token-sums"} <= {*result.passed}


def test_nothing_is_found_in_a_sound_run_and_every_check_is_accounted_for(sound):
    with lldscope.open_run(sound) as run:
        result = examine(run)
    assert result.findings == []
    ids = [*result.passed, *result.unseen, *result.declared]
    assert sorted(ids) == sorted(c.id for c in CHECKS)


def test_a_log_of_means_says_what_it_cannot_show(tmp_path):
    with lldscope.Recorder(tmp_path / "run") as recorder:
        for step in range(3):
            recorder.step(step=step)
            recorder.scalars(step=step, name=["reward", "kl"], value=[0.5, 0.1])
    with lldscope.open_run(tmp_path / "run") as run:
        result = examine(run)
    assert (result.findings, result.passed) == ([], [])
    assert all(result.unseen.values())


def test_the_page_lists_every_check():
    page = (SAMPLES.parent / "docs" / "lint.md").read_text("utf-8")
    for check in CHECKS:
        assert f"| `{check.id}` | {check.asks} | {check.needs} | {check.effect} |" in page


def test_the_command_names_rows_effect_and_setting(sound, tmp_path, lldscope_command):
    path = shutil.copytree(sound, tmp_path / "run")
    info = layout.read_run(path)
    layout.write_run(path, info | {"config": info["config"] | {"advantage_std": False}})
    result = lldscope_command("lint", path)
    assert result.returncode == 10, result.stderr
    for text in ("advantage-scale", "effect: ", "setting: advantage_std = False", "response_id"):
        assert text in result.stdout
    answer = json.loads(lldscope_command("lint", path, "--json").stdout)
    assert [f["check"] for f in answer["findings"]] == ["advantage-scale"]
    assert lldscope_command("lint", SAMPLES / "grpo").returncode == 0
    assert lldscope_command("lint", tmp_path / "nothing").returncode == 1
