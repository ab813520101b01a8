"""Faults put into real trainings and their rows are found by name, and nothing is found in sound
ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from keeper import SMALL, Keeper, train
from lldscope_trainer.config import load_config
from lldscope_trainer.train import Trainer

import lldscope
from lldscope.lint import CHECKS, examine
from lldscope.storage import layout

SAMPLES = Path(__file__).parents[2] / "sample_runs"
SETTINGS = [*SMALL, "steps=3", "top_p=1.0", "eval_questions=0"]
Columns = dict[str, Any]
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


@dataclass(frozen=True)
class Fault:
    """What is trained with but not declared, and what every rollout is changed by; or what is
    declared of a sound training, and what is changed in its rows."""

    trained: tuple[str, ...] = ()
    rollout: Callable[[Any], None] | None = None
    declared: tuple[str, ...] = ()
    rows: dict[str, Callable[[Columns], Columns]] = field(default_factory=dict)


def of_advantages(change: Callable[[list[float]], list[float]]) -> Fault:
    """A fault in the advantages of a batch."""
    return Fault(rows={"responses": lambda c: {**c, "advantage": change(list(c["advantage"]))}})


def noise_in_constant_groups(values: list[float]) -> list[float]:
    return [a if a else 0.5 - i % 2 for i, a in enumerate(values)]


def first_is_empty(columns: Columns) -> Columns:
    tokens = list(columns["n_tokens"])
    worst = min(range(len(tokens)), key=lambda i: columns["advantage"][i])
    return {**columns, "n_tokens": [0 if i == worst else n for i, n in enumerate(tokens)]}


def entropy_times(factor: float) -> Fault:
    def scaled(columns: Columns) -> Columns:
        values = [None if value is None else factor * value for value in columns["entropy"]]
        return {**columns, "entropy": values}

    return Fault(rows={"tokens": scaled})


def other_group_of_the_first(columns: Columns) -> Columns:
    groups = list(columns["group_id"])
    return {**columns, "group_id": [*groups[1:], groups[0]]}


def with_engine(change: Callable[[Any], None]) -> Fault:
    return Fault(trained=("dtype=bfloat16",), rollout=change)


FAULTS = {
    "advantage-scale": Fault(trained=("advantage_std=false",)),
    "entropy-mean": Fault(trained=("temperature=0.4",)),
    "tool-text": Fault(rollout=include_tool_text),
    "engine-slope": with_engine(scale_engine),
    "kept-mass": with_engine(renormalise_engine),
    "confident-disagreement": with_engine(distort_engine),
    "group-size": Fault(declared=("group_size=8",)),
    "advantage-offset": of_advantages(lambda values: [a + 0.3 for a in values]),
    "advantage-order": of_advantages(lambda values: [-a for a in values]),
    "advantage-without-signal": of_advantages(noise_in_constant_groups),
    "group-prompt": Fault(rows={"responses": other_group_of_the_first}),
    "empty-response": Fault(rows={"responses": first_is_empty}),
    "token-sums": entropy_times(2),
    "entropy-bound": entropy_times(0.3),
    "token-counts": Fault(rows={"responses": lambda c: {**c, "n_tokens": c["n_tokens"] + 7}}),
    "batch-sums": Fault(rows={"steps": lambda c: {**c, "reward_sum": c["reward_sum"] + 1}}),
    "group-version": Fault(
        rows={"responses": lambda c: {**c, "policy_version": [*range(len(c["reward"]))]}}
    ),
}


def rows_of(*settings: str) -> dict[str, list[Columns]]:
    """What a training records: by table, the columns of each call."""
    keeper = Keeper()
    train(load_config("tiny", [*SETTINGS, *settings]), keeper)
    return keeper.tables


def record(path: Path, tables: dict[str, list[Columns]], fault: Fault, **options: Any) -> Path:
    config = load_config("tiny", [*SETTINGS, *fault.declared]).to_dict()
    with lldscope.Recorder(path, config=config, **options) as recorder:
        for table, calls in tables.items():
            write = recorder.step if table == "steps" else getattr(recorder, table)
            for columns in calls:
                write(**fault.rows.get(table, dict)(columns))
    return path


@pytest.fixture(scope="module")
def sound_rows() -> dict[str, list[Columns]]:
    return rows_of()


@pytest.fixture(scope="module")
def sound(sound_rows: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("sound") / "run", sound_rows, Fault())


@pytest.mark.slow
@pytest.mark.parametrize("check", FAULTS)
def test_a_fault_is_found_by_name(check, sound_rows, tmp_path, monkeypatch):
    fault = FAULTS[check]
    if fault.rollout is not None:
        monkeypatch.setattr(Trainer, "_batch", change_rollouts(fault.rollout))
    rows = rows_of(*fault.trained) if fault.trained or fault.rollout else sound_rows
    with lldscope.open_run(record(tmp_path / "run", rows, fault)) as run:
        findings = {finding.check: finding for finding in examine(run).findings}
    assert check in findings
    assert findings[check].evidence
    assert findings[check].first_step <= findings[check].evidence[0]["step"]


@pytest.mark.slow
def test_another_order_of_prompts_after_a_resume_is_found(sound_rows, tmp_path):
    other = Fault(rows={"responses": lambda c: {
        **c, "prompt_hash": [f"other {prompt}" for prompt in c["prompt_hash"]]
    }})
    record(tmp_path / "run", sound_rows, Fault())
    with lldscope.open_run(record(tmp_path / "run", sound_rows, other, resume=True)) as run:
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


def test_a_finding_has_the_trainers_own_names_of_the_settings(sound, tmp_path):
    path, verls = shutil.copytree(sound, tmp_path / "run"), "algorithm.norm_adv_by_std_in_grpo"
    for name, value, is_found in (
        ("scale_rewards", "group", False), ("scale_rewards", "none", True), (verls, True, False),
        (verls, False, True),
    ):
        layout.write_run(path, layout.read_run(path) | {"config": {name: value}})
        with lldscope.open_run(path) as run:
            settings = [f.settings for f in examine(run).findings if f.check == "advantage-scale"]
        assert settings == [{name: value}] * is_found


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
