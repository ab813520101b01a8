"""Checkpoints: resuming is going on, to the bit; a full disk costs a checkpoint, not the run."""

from __future__ import annotations

import resource
import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from keeper import ALONE, BRIEF, SMALL, Keeper, train
from lldscope_trainer import cli
from lldscope_trainer.checkpoint import Checkpoints, State, find_checkpoint
from lldscope_trainer.config import load_config
from lldscope_trainer.guard import Cures

import lldscope
from lldscope.core.errors import UsageError
from lldscope.core.schema import TABLES

TIMED = {name for name in TABLES["steps"].names if name.startswith("seconds_")}


def rows(keeper: Keeper, table: str, first: int) -> list[dict]:
    copies = [row for row in keeper.rows(table) if row["step"] >= first]
    return [{k: v for k, v in row.items() if k not in TIMED} for row in copies]


@pytest.mark.parametrize(
    "settings",
    [
        ["llds=action", "kl_coefficient=0.01", "entropy_coefficient=0.001", "warmup_steps=5",
         "probes_every=1", "eval_questions=8"],
        ["importance_sampling=token_truncate", "head_dtype=bfloat16", "eval_questions=2",
         "eval_every=1"],
    ],
    ids=["every term", "another policy samples"],
)
def test_a_resumed_run_goes_on_to_the_bit(tmp_path, settings):
    small = [*SMALL, "updates=2", "steps=2", "checkpoint_every=1"]
    config = load_config("tiny", [*small, *settings])
    straight, resumed = Keeper(), Keeper()
    train(config, straight, run_dir=tmp_path)
    train(config, resumed, run_dir=tmp_path, checkpoint=find_checkpoint(tmp_path, 1))
    for table in ("steps", "updates", "responses", "actions", "tokens", "evals"):
        assert rows(resumed, table, 1) == rows(straight, table, 1), table
    if config.probes_every:
        assert rows(resumed, "probes", 1) == rows(straight, "probes", 1)
        assert "probe_set_logp" in {row["probe"] for row in rows(resumed, "probes", 1)}
    else:
        assert {row["step"] for row in resumed.rows("evals")} == {1, 2}
    assert len(rows(resumed, "steps", 0)) == 1


def test_a_disk_without_room_costs_the_checkpoint_and_not_the_run(tmp_path):
    """No file may grow past 400 kB here; the policy's weights are 1.7 MB."""
    run = tmp_path / "run"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    try:
        done = CliRunner().invoke(
            cli.train, ["tiny", *BRIEF, "checkpoint_every=1", "steps=2", "--run", str(run)]
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.exit_code == 0, done.output
    assert "could not be written" in done.stderr
    assert "training goes on without it" in done.stderr
    assert not list(run.glob("checkpoints/*")), "nothing half-written stays"
    reader = lldscope.open_run(run)
    assert reader.signals()["step"].tolist() == [0, 1]
    assert {e["kind"] for e in reader.events()} == {"checkpoint_failed"}


@pytest.mark.parametrize(
    ("keep", "margin", "alarmed_from", "left", "healthy"),
    [(2, 0, 2, [1, 3, 4], 1), (1, 4, 9, [1, 2, 3, 4], None), (1, 2, 9, [2, 3, 4], 2)],
)
def test_the_newest_are_kept_and_the_one_to_roll_back_to(
    tmp_path, keep, margin, alarmed_from, left, healthy
):
    """However wide the margin; one that was made while an alarm fired is none to go back to."""
    copies, cures = Checkpoints(tmp_path, keep, margin), Cures.of(load_config("tiny"))
    part = SimpleNamespace(save=lambda path: None, model=torch.nn.Module())
    part.full_weights = nullcontext
    for step in range(1, 5):
        alarmed = ("entropy-surge",) if step >= alarmed_from else ()
        copies.write(State(step, 0, cures, 1, alarmed), part, part, ALONE, {})
    assert [c.state.step for c in copies.all()] == left
    newest = copies.healthy(4)
    assert (newest and newest.state.step) == healthy


def test_what_cannot_be_resumed_says_why(lldscope_command, tmp_path, make_run):
    done = lldscope_command("train", "--resume")
    assert (done.returncode, "--run" in done.stderr) == (2, True)
    done = lldscope_command("train", "--resume", "--run", tmp_path / "nowhere")
    assert done.returncode == 1
    assert "There is no run at" in done.stderr
    with pytest.raises(UsageError, match=r"no intact checkpoint \("):
        find_checkpoint(make_run())


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    run = tmp_path_factory.mktemp("checkpoints")
    config = load_config("tiny", [*SMALL, "updates=1", "checkpoint_every=1", "steps=2"])
    train(config, Keeper(), run_dir=run)
    return run


BLOWS = {
    "a bit": lambda whole: whole[:70] + bytes([whole[70] ^ 1]) + whole[71:],
    "cut": lambda whole: whole[:-4],
    "gone": None,
}


@pytest.mark.parametrize("blow", BLOWS)
def test_a_rotten_checkpoint_is_passed_over_for_the_one_before(
    two_checkpoints, tmp_path, caplog, blow
):
    shutil.copytree(two_checkpoints, tmp_path, dirs_exist_ok=True)
    assert find_checkpoint(tmp_path).state.step == 2
    newest = tmp_path / "checkpoints" / "step-00000002"
    files = sorted(path for path in newest.rglob("*") if path.is_file())
    assert len(files) > 6
    for file in files:
        whole = file.read_bytes()
        file.unlink()
        if BLOWS[blow]:
            file.write_bytes(BLOWS[blow](whole))
        caplog.clear()
        assert find_checkpoint(tmp_path).state.step == 1, file
        assert Checkpoints(tmp_path, keep=2).healthy(2).state.step == 1
        assert "step-00000002 is not usable" in caplog.text
        assert find_checkpoint(tmp_path, 2).state.step == 1
        file.write_bytes(whole)
    assert find_checkpoint(tmp_path).state.step == 2


def test_a_checkpoint_can_be_chosen_and_later_ones_are_given_up(tmp_path):
    run = tmp_path / "run"
    small = [*BRIEF, "checkpoint_every=1", "checkpoints_kept=3", "steps=3"]
    done = CliRunner().invoke(cli.train, ["tiny", *small, "--run", str(run)])
    assert done.exit_code == 0, done.output
    folder = run / "checkpoints"
    (folder / "step-00000003" / "state.json").write_text("{")
    resume = ["--resume", "--run", str(run), "--checkpoint"]
    done = CliRunner().invoke(cli.train, [*resume, "0"])
    assert "no intact checkpoint at or before step 0" in str(done.exception)
    done = CliRunner().invoke(cli.train, [*resume, "1", "steps=2", "checkpoint_every=9"])
    assert done.exit_code == 0, done.output
    assert "going on from the checkpoint before step 1" in done.stderr
    assert [path.name for path in folder.iterdir()] == ["step-00000001"]
    with lldscope.open_run(run) as reader:
        assert reader.signals()["step"].tolist() == [0, 1], "whatever the first attempt had done"
        assert [a["attempt"] for a in reader.info["attempts"]] == [1, 2]
        assert reader.info["status"] == "finished"
        assert "resume" in {event["kind"] for event in reader.events()}
    done = CliRunner().invoke(cli.train, ["tiny", "--checkpoint", "1"])
    assert "--checkpoint needs --resume" in str(done.exception)


def test_the_policy_is_written_once_and_nothing_is_pickled(two_checkpoints):
    folder = find_checkpoint(two_checkpoints).path
    weights = {f.relative_to(folder).as_posix() for f in folder.rglob("*.safetensors")}
    assert weights == {"policy/model.safetensors", "optimizer/optimizer-0.safetensors"}
    kinds = {f.suffix for f in folder.rglob("*") if f.is_file()}
    assert kinds <= {".json", ".safetensors", ".jinja", ".npz"}
    for path in folder.rglob("*.npz"):
        with np.load(path, allow_pickle=False) as copies:
            assert [copies[name].dtype for name in copies]
