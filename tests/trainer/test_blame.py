"""blame: a recorded step replayed to the bit, and its update made again in other ways."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from keeper import SMALL
from lldscope_trainer import cli
from lldscope_trainer.blame import variants
from lldscope_trainer.blame.answer import interval
from lldscope_trainer.blame.command import blame as command
from lldscope_trainer.blame.experiment import blame
from lldscope_trainer.blame.variants import Variant, correct_rows, measure, update
from lldscope_trainer.checkpoint import find_checkpoint
from lldscope_trainer.config import load_config
from lldscope_trainer.train import Trainer

import lldscope
from lldscope.core.errors import LldscopeError
from lldscope.explore.experiments import experiments

SETTINGS = [
    *SMALL, "group_size=8", "updates=2", "lr=1e-3", "steps=3", "checkpoint_every=2",
    "probes_every=2", "eval_questions=8", "seed=1",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("blame") / "run"
    done = CliRunner().invoke(cli.train, ["tiny", *SETTINGS, "--run", str(path)])
    assert done.exit_code == 0, done.output
    return path


def damaged(run, folder, change):
    """The path of a copy: without checkpoints, with other facts in its run.json, or of none."""
    shutil.copytree(run, folder / "run")
    if change == "path":
        return folder / "nothing"
    if change == "checkpoints":
        shutil.rmtree(folder / "run" / "checkpoints")
    elif isinstance(change, dict):
        file = folder / "run" / "run.json"
        info = json.loads(file.read_text("utf-8"))
        config = info["config"] | change.get("config", {})
        file.write_text(json.dumps(info | change | {"config": config}), "utf-8")
    return folder / "run"


def content(path):
    """A digest of every file."""
    files = (f for f in sorted(path.rglob("*")) if f.is_file())
    return {str(f.relative_to(path)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


@pytest.fixture(scope="module")
def answer(run):
    before = content(run)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("answer", "experiment"):
            patch.setattr(f"lldscope_trainer.blame.{module}.LEAST_DRAWS", 2)
        answer = blame(run, 2, 2)
    assert content(run) == before
    return answer


@pytest.fixture(scope="module")
def trainer(run):
    torch.set_num_threads(1)
    trainer = Trainer(load_config("tiny", SETTINGS), lldscope.NullRecorder())
    trainer.restore(find_checkpoint(run, 2))
    trainer.updater.run(trainer.sample(2).batch, 2, [])  # sets the rate
    return trainer


@pytest.mark.slow
def test_the_replay_is_the_record_to_the_bit(answer):
    assert answer.replay == dict.fromkeys(
        ("steps", "updates", "responses", "actions", "retention"), True
    )


@pytest.mark.slow
def test_every_variant_is_measured_and_changes_what_it_says(answer, run):
    results = {r.name: r for r in answer.variants}
    assert {"as it was", "LLDS, action gate", "momentum alone", "KL 0.05",
            "without shared prefixes", "one update instead of 2"} <= set(results)
    was = results["as it was"]
    assert was.change[0] == 0
    assert all(r.measures["kl"] > 0 and r.measures["entropy"] > 0 for r in answer.variants)
    assert results["half the learning rate"].measures["kl"] < was.measures["kl"]
    up = results["only positive advantages"].measures["delta_correct"]
    down = results["only negative advantages"].measures["delta_correct"]
    assert up > down, "what is correct gains from its own gradient"
    (retained,) = lldscope.open_run(run).signals().query("step == 2")["retention_delta"]
    assert was.measures["retention_delta"] == pytest.approx(retained, abs=1e-5)
    assert all(r.delta and r.change for r in answer.variants), "each over the new batches, too"


def test_measures_are_sums_over_tokens(trainer, run):
    trainer.restore(find_checkpoint(run, 2))
    sample = trainer.sample(2)
    update(trainer, sample, Variant("as it was"))
    values, batch = measure(trainer, sample, 0.0), sample.batch
    delta, n = torch.zeros(len(batch.ids)).double(), int(batch.mask.sum())
    kl = entropy = 0.0
    for row, length in enumerate(batch.lengths):
        with torch.no_grad():
            logits = trainer.policy.model(batch.ids[row : row + 1, :length]).logits[0].double()
        logp, mine = logits.log_softmax(-1)[:-1], batch.mask[row, 1:length].bool()
        now = logp.gather(-1, batch.ids[row, 1:length, None])[:, 0]
        change = (now - batch.old[row, 1:length])[mine]
        delta[row] = change.sum()
        kl += float((change.exp() - change - 1).sum()) / n
        entropy -= float((logp.exp() * logp).sum(-1)[mine].sum()) / n
    assert values["delta_correct"] == pytest.approx(float(delta[correct_rows(sample)].mean()), 1e-3)
    assert values["kl"] == pytest.approx(kl, rel=1e-2)
    assert values["entropy"] == pytest.approx(entropy, rel=1e-3)
    trainer.restore(find_checkpoint(run, 2))


def test_momentum_alone_is_adamw_with_a_gradient_of_0(trainer, run):
    trainer.restore(find_checkpoint(run, 2))
    adamw = trainer.updater._optimizer._adamw
    (group,) = adamw.param_groups
    weight, (b1, b2) = group["params"][0], group["betas"]
    state, expected = adamw.state[weight], weight.detach().clone()
    m, v, t = state["exp_avg"].clone(), state["exp_avg_sq"].clone(), int(state["step"])
    (momentum,) = (one for one in variants.variants(trainer.config, trainer.updater.cures)
                   if one.name == "momentum alone")
    update(trainer, trainer.sample(2), momentum)
    for n in range(t + 1, t + 3):  # Loshchilov and Hutter 2019, Alg. 2
        m, v = b1 * m, b2 * v
        expected *= 1 - group["lr"] * group["weight_decay"]
        expected -= group["lr"] * (m / (1 - b1**n)) / ((v / (1 - b2**n)).sqrt() + group["eps"])
    torch.testing.assert_close(weight.detach(), expected)
    trainer.restore(find_checkpoint(run, 2))


def test_the_interval_is_students(run):
    mean, low, high = interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    assert mean == 4.5
    assert (high - low) / 2 == pytest.approx(2.364624 * 6**0.5 / 8**0.5, abs=2e-3)
    assert interval([1.0] * 5) is None
    with pytest.raises(LldscopeError, match="at least 6 new batches, not 5"):
        blame(run, 2, 5)


@pytest.mark.slow
def test_the_command_prints_and_keeps_the_answer(answer, run, tmp_path, monkeypatch):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    answers = iter([replace(answer, draws=0), answer, answer])
    monkeypatch.setattr("lldscope_trainer.blame.experiment.blame", lambda *_: next(answers))
    done = CliRunner().invoke(command, [str(copy), "--draws", "0"])
    assert "No new batches were drawn" in done.stdout
    assert "[95 %]" not in done.stdout
    assert not (copy / "blame").exists(), "a quick look does not replace a whole answer"
    done = CliRunner().invoke(command, [str(copy), "--step", "2"])
    assert done.exit_code == 0, done.output
    text = done.stdout.replace("\n", " ")
    assert "agrees with the record to the bit" in text
    assert answer.sentence in text
    assert max(map(len, done.stdout.splitlines())) <= 80
    stored = json.loads((copy / "blame" / "step-2.json").read_text("utf-8"))
    assert (stored["schema"], stored["step"], stored["same"]) == (1, 2, True)
    done = CliRunner().invoke(command, [str(copy), "--json"])
    assert json.loads(done.stdout) == stored
    with lldscope.open_run(copy) as read:
        assert [one.sentence for one in experiments(read)] == [answer.sentence]
        for damage in ("{", "[]", json.dumps(stored | {"variants": [{}]})):
            (copy / "blame" / "step-2.json").write_text(damage, "utf-8")
            assert experiments(read) == []


def test_shared_prefixes_end_where_a_negative_leaves_the_correct_response(trainer):
    sample = trainer.sample(2)
    batch, groups = sample.batch, sample.draw.groups
    shared = variants._shared_prefix(sample)
    assert correct_rows(sample)
    for row, ids in enumerate(batch.ids.tolist()):
        mates = [batch.ids[r].tolist() for r in correct_rows(sample) if groups[r] == groups[row]]
        longest = max((next((t for t, (a, b) in enumerate(zip(ids, mate, strict=True)) if a != b),
                            len(ids)) for mate in mates), default=0)
        of_negative = [bool(batch.advantages[row] < 0) and t < longest for t in range(len(ids))]
        assert shared[row].tolist() == of_negative


@pytest.mark.parametrize(
    ("step", "change", "words"),
    [
        (1, None, "no intact checkpoint at or before step 1"),
        (2, "checkpoints", "no intact checkpoint"),
        (2, "torch", "was made with torch 2.0.1"),
        (2, "path", "There is no run"),
        (2, {"trainer": "lldscope_trainer 0.0.1"}, "was recorded with lldscope_trainer 0.0.1"),
        (2, {"config": {"lr": "high"}}, "settings of run cannot be read"),
    ],
)
def test_what_cannot_be_replayed_is_refused(run, tmp_path, step, change, words, monkeypatch):
    copy = damaged(run, tmp_path, change)
    if change == "torch":
        monkeypatch.setattr(torch, "__version__", "2.0.1")
        words = "was made with torch"
    before = content(copy)
    with pytest.raises(LldscopeError, match=words) as error:
        blame(copy, step)
    assert error.value.exit_code == (1 if change == "path" else 2)
    assert content(copy) == before
