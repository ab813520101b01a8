"""rescue: forks from the checkpoint before the trouble, a fair test, and on with the best."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from keeper import SMALL
from lldscope_trainer import cli
from lldscope_trainer.checkpoint import find_checkpoint, with_settings
from lldscope_trainer.config import load_config
from lldscope_trainer.rescue import forks
from lldscope_trainer.rescue.command import rescue as command
from lldscope_trainer.rescue.forks import Score, end_losers, winner, worse
from lldscope_trainer.rescue.plan import ARMS
from test_blame import content, damaged

import lldscope
from lldscope.diagnosis.account import Onset
from lldscope.explore.experiments import experiments

SETTINGS = [*SMALL, "prompts=2", "max_turns=1", "updates=2", "lr=1e-3", "steps=3",
            "checkpoint_every=1", "eval_questions=4", "checkpoints_kept=5", "seed=1",
            "warmup_steps=0"]
ONSET = Onset("reward-decline", 2, 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("rescue") / "run"
    done = CliRunner().invoke(cli.train, ["tiny", *SETTINGS, "--run", str(path)])
    assert done.exit_code == 0, done.output
    return path


@pytest.fixture
def copy(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run"


def invoke(*words, onset=ONSET):
    return CliRunner().invoke(command, [str(w) for w in words], obj={"onset": lambda run: onset})


def fork(name, *rounds, delta=0.0):
    scores = [Score(i, np.array(right, dtype=float)) for i, right in enumerate(rounds)]
    return SimpleNamespace(
        arm=name, scores=scores, ended=None, delta=delta,
        em=float(np.mean([s.em for s in scores])),
    )


def test_an_arm_ends_where_a_sign_test_shows_that_it_is_worse():
    right = np.ones(40)
    half = np.array([1.0, 0.0] * 20)
    # 20 questions that only the best answered: p = 2^-20. One of 20 the other way: 21 / 2^20.
    assert worse(half, right) == 2**-20
    other = half.copy()
    other[1], right[1] = 1, 0
    assert worse(other, right) == 21 / 2**20
    arms = [fork("a", np.ones(40)), fork("b", half), fork("c", [1.0] * 36 + [0.0] * 4)]
    assert [f.arm for f in end_losers(arms, 4)] == ["a", "c"], "4 of 40 may be chance"
    assert arms[1].ended == 0
    assert winner(arms).arm == "a"
    assert winner([fork("x", [1, 0], delta=0.1), fork("y", [0, 1], delta=0.2)]).arm == "y"


def test_the_test_seldom_ends_an_arm_that_is_as_good():
    """At most LEVEL of the times over all looks and pairs, where all arms answer alike."""
    rng, ended = np.random.default_rng(0), 0
    for _ in range(400):
        arms = [fork(str(i), *(rng.random(64) < 0.5 for _ in range(1))) for i in range(5)]
        for _ in range(4):
            for arm in arms:
                arm.scores.append(Score(0, (rng.random(64) < 0.5).astype(float)))
            end_losers(arms, 4)
        ended += any(arm.ended is not None for arm in arms)
    assert ended <= 0.05 * 400


@pytest.mark.slow
def test_forks_are_compared_and_the_run_goes_on_with_the_best(copy, monkeypatch):
    before = content(copy)
    done = invoke(copy, "--steps", 4, "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["checkpoint"] == 1
    arms = {a["arm"]: a for a in answer["arms"]}
    assert list(arms) == ["as-it-was", "half-rate", "llds"]
    assert arms["half-rate"]["settings"] == {"lr": 5e-4}
    assert all(len(a["em"]) == 4 for a in arms.values() if a["ended"] is None)
    after = content(copy)
    assert {name: after[name] for name in before} == before, "what was there is as it was"
    with lldscope.open_run(copy) as source:
        (experiment,) = experiments(source)
        assert experiment.sentence == answer["sentence"]
        assert [row[0] for row in experiment.rows] == list(arms)
        measured = "SELECT reward_sum, entropy_sum FROM steps WHERE step IN (1, 2) ORDER BY step"
        rows = source.rows(measured).rows
    with lldscope.open_run(copy / "rescue" / "step-1" / "as-it-was") as same:
        assert same.rows(measured).rows == rows, "the fork as it was repeats the run"

    path = copy / "rescue" / "step-1.json"
    path.write_text(json.dumps(answer | {"winner": "half-rate", "settings": {"lr": 5e-4}}))
    monkeypatch.setattr("lldscope_trainer.rescue.command._train", lambda *_: pytest.fail("trained"))
    done = invoke(copy, "--apply")
    assert done.exit_code == 0, done.output
    with lldscope.open_run(copy) as source:
        ((lr,),) = source.rows("SELECT DISTINCT lr FROM steps WHERE step >= 1").rows
        assert lr == pytest.approx(5e-4)
        attempts = experiments(source)[1]
    assert attempts.rows == [("1", "0 to 2", "to 0", ""), ("2", "1 to 2", "to 2", "lr=0.0005")]


def test_each_arm_changes_what_it_says(run):
    checkpoint = find_checkpoint(run, 1)
    config = load_config("tiny", SETTINGS)
    changes = {arm: forks.changes(arm, config, checkpoint) for arm in ARMS}
    assert changes == {
        "as-it-was": {}, "half-rate": {"lr": 5e-4},
        "llds": {"llds": "action", "llds_coefficient": 0.2},
    }
    has_llds = with_settings(checkpoint, config.replace(llds="token"), ["llds"])
    assert forks.changes("llds", config, has_llds) is None


@pytest.mark.parametrize(
    ("change", "onset", "message"),
    [
        (None, None, "No warning has fired"),
        ("checkpoints", ONSET, "no intact checkpoint at or before step 1"),
        ({"trainer": "trl 1.16.0"}, ONSET, "only steps of `lldscope train` can be repeated"),
        ({"config": {"eval_questions": 0}}, ONSET, "no held-out questions"),
        ("path", ONSET, "There is no run"),
    ],
)
def test_what_cannot_be_rescued_is_refused(run, tmp_path, change, onset, message):
    copy = damaged(run, tmp_path, change)
    before = content(copy)
    done = invoke(copy, onset=onset)
    assert message in str(done.exception), done.output
    assert done.exception.exit_code == (1 if change == "path" else 2)
    assert content(copy) == before


TRL = {"learning_rate": 1e-6, "output_dir": "out"}
VERL = {
    "trainer": {"default_local_dir": "ck"},
    "actor_rollout_ref": {"actor": {"optim": {"lr": 1e-6}}},
}


@pytest.mark.parametrize(
    ("trainer", "config", "words"),
    [
        ("lldscope_trainer 1.0", {"lr": 1e-6}, ["--checkpoint 11 lr=5e-07", "llds=action"]),
        ("trl 1.16.0", TRL,
         ["learning_rate=5e-07", "base_lrs", 'llds="action"',
          "resume_from_checkpoint='out/checkpoint-12'", "resume=True"]),
        ("verl 0.9.1", VERL,
         ["actor.optim.lr=5e-07", "load_contents=[model,optimizer]", "loss_mode=llds",
          "trainer.resume_from_path=ck/global_step_12"]),
    ],
)
def test_the_plan_names_checkpoint_and_settings_of_the_trainer(tmp_path, trainer, config, words):
    path = tmp_path / "run"
    with lldscope.Recorder(path, trainer=trainer, config=config) as recorder:
        number, first = ("resume_from", 11) if "lldscope" in trainer else ("global_step", 12)
        recorder.event("checkpoint", step=10, **{number: first})
        recorder.event("checkpoint", step=20, **{number: first + 10})
        recorder.step(step=0)
    done = invoke(path, "--plan", onset=Onset("lld-decay", 30, 19))
    assert done.exit_code == 0, done.output
    assert [w for w in words if w not in done.stdout] == []
    assert not (path / "rescue").exists()
    none = invoke(path, "--plan", onset=Onset("lld-decay", 9, 4)).stdout
    none = none.replace(str(path), "RUN").replace("\n", " ")  # pytest's folders have numbers
    assert "no checkpoint from before the trouble is recorded" in none
    assert "_12" not in none
    assert "-12" not in none
