"""The plug-in for verl: its policy loss, and what its trainer records, against passes of the test's
own."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import verl_tiny
from mismatch_twin import dump, twin
from scripted_monitor import critical_at_the_second_look
from torch.nn.utils.rnn import pad_sequence
from verl.trainer.ppo import rollout_corr_helper
from verl.trainer.ppo.core_algos import get_policy_loss_fn

import lldscope
from lldscope.core.errors import LldscopeError, RunExists
from lldscope.explore.settings import pairs
from lldscope.integrations.verl import LLDSPolicyLossConfig
from lldscope.integrations.verl.trainer import RecordingSync
from lldscope.lint import examine
from lldscope.losses.llds import llds_loss
from lldscope.monitor.health import check

pytestmark = pytest.mark.filterwarnings("ignore")
LLDS = (
    "actor_rollout_ref.actor.policy_loss._target_=lldscope.integrations.verl.LLDSPolicyLossConfig",
    "actor_rollout_ref.actor.policy_loss.loss_mode=llds",
)


def run_of(tmp_path: Path, monkeypatch, *overrides: str):
    trainer = verl_tiny.make(
        tmp_path, monkeypatch, f"+trainer.lldscope.path={tmp_path / 'run'}", *overrides
    )
    trainer.fit(None)
    return trainer, lldscope.open_run(tmp_path / "run")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A training of two steps, its run, and the state of torch's generator after it."""
    with pytest.MonkeyPatch.context() as patch:
        trainer, run = run_of(
            tmp_path_factory.mktemp("recorded"), patch, "+trainer.lldscope.tokens_every=1",
            "actor_rollout_ref.actor.optim.lr=0.03",  # as the stand-in for verl's worker has it
        )
    return trainer, run, torch.get_rng_state()


def logps(state, row):
    """log π of each token of the response, from a model of its own."""
    fresh = verl_tiny.model()
    fresh.load_state_dict(state)
    with torch.no_grad():
        logits = fresh.eval()(row["input_ids"][None]).logits[0].double() / verl_tiny.TEMPERATURE
    table = torch.log_softmax(logits, -1)
    n = len(row["prompts"])
    return [table[n + k - 1, token].item() for k, token in enumerate(row["responses"])]


def test_a_step_is_recorded_as_verl_made_it(recorded):
    trainer, run, _ = recorded
    workers = trainer.actor_rollout_wg
    assert run.info["status"] == "finished"
    assert run.info["trainer"].startswith("verl 0.9")
    assert check(run).last_step == 1
    assert dict(pairs(run.info["config"]))["algorithm.norm_adv_by_std_in_grpo"] is True
    lint = examine(run)
    assert lint.findings == []
    assert {"advantage-scale", "entropy-bound", "group-prompt"} <= {*lint.passed}
    assert run.signals()["n_responses"].tolist() == [12, 12], "without the rows that verl added"
    sizes = run.sql("SELECT step, group_id, count(*) AS n FROM responses GROUP BY ALL ORDER BY ALL")
    assert sizes["n"].tolist() == [3] * 8
    norms = run.sql("SELECT grad_norm FROM updates ORDER BY step, update")["grad_norm"]
    assert norms.tolist() == workers.norms
    assert len(norms) == 4

    rows = run.sql(
        "SELECT r.step, r.response_id, r.reward, r.advantage, r.correct, r.n_tokens, r.n_searches,"
        " r.data_source, list(a.kind ORDER BY action_index) AS kinds,"
        " list(a.n_tokens ORDER BY action_index) AS lengths,"
        " list(a.logp_old_sum ORDER BY action_index) AS old,"
        " list(a.logp_post_sum ORDER BY action_index) AS post,"
        " list(a.drop_sum ORDER BY action_index) AS drops,"
        " sum(a.logp_behaviour_sum) AS behaviour"
        " FROM responses r JOIN actions a USING (step, response_id) GROUP BY ALL ORDER BY ALL"
    ).to_dict("records")
    at = 0
    for step in (0, 1):
        # Two updates of nine rows: those of the batch, and six that verl added.
        sightings = [row for mini in workers.seen[2 * step : 2 * step + 2] for row in mini]
        sightings = [row for row in sightings if int(row["response_mask"].sum())]
        assert len(sightings) == 12
        for row in sightings:
            results, at = rows[at], at + 1
            policy_mask = row["response_mask"].tolist()
            assert results["reward"] == row["rm_scores"].sum().item()
            assert results["correct"] == (results["reward"] >= 1)
            assert results["advantage"] == pytest.approx(row["advantages"][0].item(), abs=1e-6)
            old = logps(workers.states[2 * step], row)
            post = logps(workers.states[2 * step + 2], row)
            cut = policy_mask.index(0) if 0 in policy_mask else len(policy_mask)
            runs = [list(range(cut))]
            if 0 in policy_mask:
                runs.append([k for k in range(cut, len(policy_mask)) if policy_mask[k]])
            assert list(results["kinds"]) == (
                ["search", "answer"] if 0 in policy_mask else ["text"]
            )
            assert list(results["lengths"]) == [len(r) for r in runs]
            for name, values in (("old", old), ("post", post)):
                expected = [sum(values[k] for k in r) for r in runs]
                assert np.allclose(results[name], expected, atol=1e-4), name
            drops = [sum(max(0.0, old[k] - post[k]) for k in r) for r in runs]
            assert np.allclose(results["drops"], drops, atol=1e-4)
            assert results["behaviour"] == -sum(policy_mask)
            assert results["data_source"] == "nq"
            assert results["n_searches"] == (1 if 0 in policy_mask else 0)
    delta = run.sql("SELECT max(abs(logp_post_sum - logp_old_sum)) AS d FROM actions")["d"][0]
    assert delta > 0.01, "the policy did not move"
    signals = run.signals()
    assert signals[["delta_correct", "entropy", "lr", "loss_policy"]].notna().all(axis=None)
    text = run.sql("SELECT text FROM responses WHERE text IS NOT NULL")["text"][0]
    assert "<search>" in text or "<answer>" not in text


def test_retention_is_what_the_weights_say(recorded):
    trainer, run, _ = recorded
    workers = trainer.actor_rollout_wg
    sightings = [
        row for mini in workers.seen[:2] for row in mini if int(row["response_mask"].sum())
    ]
    results = run.sql("SELECT * FROM retention ORDER BY ALL")
    assert set(results["step"]) == {1}
    assert set(results["age"]) == {1}
    copies = results["response_id"].unique()
    assert len(copies) == 2
    correct = set(run.sql("SELECT response_id FROM responses WHERE step = 0 AND correct")
                  ["response_id"])
    assert correct.issuperset(copies)
    for response in copies:
        row = sightings[response]
        policy_mask = row["response_mask"].numpy().astype(bool)
        names = {"logp_old_sum": 0, "logp_post_sum": 4}
        mine = results[results["response_id"] == response]
        assert mine["n_tokens"].sum() == policy_mask.sum()
        for name, state in names.items():
            expected = np.array(logps(workers.states[state], row))[policy_mask].sum()
            assert mine[name].sum() == pytest.approx(expected, abs=1e-4), name
    assert results["logp_previous_sum"].isna().all(), "it was not scored after its own step"
    assert run.signals()["retention"].notna().tolist() == [False, True]
    assert not [key for key in workers._store.rows if "lldscope" in key], "nothing is left behind"


def test_recording_does_not_change_the_training(recorded, tmp_path, monkeypatch):
    with_run, _, random = recorded
    alone = verl_tiny.make(tmp_path, monkeypatch, mode="sync")
    alone.fit(None)
    first, second = (t.actor_rollout_wg.states for t in (with_run, alone))
    assert len(first) == len(second) == 5
    assert all(torch.equal(a[k], b[k]) for a, b in zip(first, second, strict=True) for k in a)
    assert torch.equal(random, torch.get_rng_state())
    assert type(with_run).__mro__[2] is type(alone)
    assert with_run.trainer_mode == "sync", "verl chooses its replay buffer by this name"


def expected_llds(state, rows, gate):
    """The gradient of L_LLDS over a whole update, divided by all of its action tokens; L_LLDS."""
    fresh = verl_tiny.model()
    fresh.load_state_dict(state)
    new = []
    for row in rows:
        logits = fresh(row["input_ids"][None]).logits[0] / verl_tiny.TEMPERATURE
        table = torch.log_softmax(logits[len(row["prompts"]) - 1 : -1], -1)
        new.append(table.gather(-1, row["responses"][:, None])[:, 0])
    old, mask = (
        [row[name][: len(row["responses"])] for row in rows]
        for name in ("old_log_probs", "response_mask")
    )
    result = llds_loss(
        *(pad_sequence(values, batch_first=True) for values in (new, old, mask)),
        torch.stack([row["advantages"][0] for row in rows]), gate=gate, coefficient=1.0,
        normalizer="all",
    )
    result.loss.backward()
    return torch.cat([p.grad.flatten() for p in fresh.parameters()]), result.loss.item()


@pytest.mark.parametrize("gate", ["token", "action"])
def test_llds_adds_its_gradient(recorded, tmp_path, monkeypatch, gate):
    """The second update of a batch differs by λ∇L_LLDS over all micro-batches; the first, where old
    and new policy are the same, by nothing."""
    on, run = run_of(
        tmp_path, monkeypatch, *LLDS, f"+actor_rollout_ref.actor.policy_loss.llds_gate={gate}",
        "+actor_rollout_ref.actor.policy_loss.llds_coefficient=0.5",
        "+actor_rollout_ref.actor.policy_loss.llds_dead_band=1e-5",  # passes differ by rounding
    )
    first, second = recorded[0].actor_rollout_wg, on.actor_rollout_wg
    assert torch.allclose(first.gradients[0], second.gradients[0], atol=1e-7)
    expected, loss = expected_llds(second.states[1], second.seen[1], gate)
    assert expected.abs().max() > 1e-3
    added = second.gradients[1] - first.gradients[1]
    assert torch.allclose(added, 0.5 * expected, atol=2e-6)
    assert loss > 0
    signals = run.signals()
    assert signals["loss_llds"][0] > 0
    assert signals["loss_policy"].isna().all(), "verl's pg_loss has LLDS in it"


def test_settings_of_the_loss_are_checked_when_they_are_read():
    with pytest.raises(ValueError, match="one of token, response, action"):
        LLDSPolicyLossConfig(llds_gate="sometimes")
    with pytest.raises(ValueError, match="llds_coefficient must be a number >= 0"):
        LLDSPolicyLossConfig(llds_coefficient=float("nan"))
    with pytest.raises(ValueError, match="Unsupported loss mode: nothing"):
        LLDSPolicyLossConfig(llds_base="nothing")
    assert get_policy_loss_fn("llds").__module__ == "lldscope.integrations.verl"


def test_in_bypass_mode_with_a_processor_of_images_and_evaluations(tmp_path, monkeypatch):
    """verl then has the engine's log-probabilities as old_log_probs, here −1 for each token: the
    policy is scored before the update. No responses are kept, and check says so."""
    monkeypatch.setattr(RecordingSync, "processor", object(), raising=False)
    monkeypatch.setattr(RecordingSync.__mro__[2], "_validate", lambda self: {
        "val-core/org/nq/reward/mean@1": 0.25, "val-aux/num_turns/max": 4.0,
    })
    trainer, run = run_of(
        tmp_path, monkeypatch, "algorithm.rollout_correction.bypass_mode=true",
        "actor_rollout_ref.rollout.calculate_log_probs=true", "trainer.val_before_train=true",
    )
    row = next(r for r in trainer.actor_rollout_wg.seen[0] if int(r["response_mask"].sum()))
    old = run.sql("SELECT sum(logp_old_sum) AS old, sum(logp_behaviour_sum) AS b FROM actions"
                  " WHERE step = 0 AND response_id = 0")
    expected = sum(np.array(logps(trainer.actor_rollout_wg.states[0], row))
                   * row["response_mask"].numpy())
    assert old["old"][0] == pytest.approx(expected, abs=1e-4)
    assert old["b"][0] == -row["response_mask"].sum().item()
    assert run.sql("SELECT count(*) AS n FROM retention")["n"].tolist() == [0]
    assert check(run).missing == {"retention": "the model has a processor of images"}
    rows = run.sql("SELECT * FROM evals")
    assert rows[["step", "data_source", "metric", "value"]].to_numpy().tolist() == [
        [0, "org/nq", "reward/mean@1", 0.25]
    ]


def test_an_alarm_stops(tmp_path, monkeypatch):
    monkeypatch.setattr("lldscope.integrations.common.alarms.Monitor", critical_at_the_second_look)
    trainer = verl_tiny.make(
        tmp_path, monkeypatch, f"+trainer.lldscope.path={tmp_path / 'run'}",
        "+trainer.lldscope.on_alarm=stop",
    )
    saved = []
    trainer._save_checkpoint = lambda: saved.append(trainer.global_steps)
    trainer.total_training_steps = 4
    trainer.fit(None)
    run = lldscope.open_run(tmp_path / "run")
    assert saved == [2]
    assert len(run.signals()) == 2
    assert run.info["status"] == "stopped"
    event = next(e for e in run.events() if e["kind"] == "guard_stop")
    assert (event["rule"], event["step"]) == ("lld-decay", 1)


def test_what_goes_wrong_in_recording_never_ends_the_training(tmp_path, monkeypatch, caplog):
    def fails(*_, **__):
        raise KeyError("rm_scores")

    monkeypatch.setattr("lldscope.integrations.verl.trainer.batch_of", fails)
    trainer, run = run_of(tmp_path, monkeypatch)
    assert trainer._recorder.dropped == {"verl: a step: KeyError: 'rm_scores'": 2}
    assert run.info["status"] == "finished"
    assert len(run.signals()) == 0
    assert sum("is not recorded; training goes on" in r.message for r in caplog.records) == 1


def test_wrong_settings_and_runs_are_refused_before_the_first_step(
    recorded, tmp_path, monkeypatch
):
    with pytest.raises(LldscopeError, match=r"trainer\.lldscope has no paht"):
        run_of(tmp_path, monkeypatch, "+trainer.lldscope.paht=x")
    with pytest.raises(LldscopeError, match=r"correct must be a minimum score, or .*; it is \[1\]"):
        run_of(tmp_path, monkeypatch, "+trainer.lldscope.correct=[1]")
    shutil.copytree(recorded[1].path, tmp_path / "run")
    again = verl_tiny.make(tmp_path, monkeypatch, f"+trainer.lldscope.path={tmp_path / 'run'}")
    with pytest.raises(RunExists):
        again.fit(None)
    again.global_steps = 2  # as after a checkpoint of step 2
    again.total_training_steps = 3
    again.fit(None)
    assert lldscope.open_run(tmp_path / "run").signals()["step"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("scale", [1e-3, 0.3])
def test_the_twin_of_the_mismatch_metrics_is_verl(scale):
    old, rollout, mask = dump(3, scale)
    new, was, on = (torch.tensor(x) for x in (old, rollout, mask))
    results = rollout_corr_helper.compute_offpolicy_metrics(new, was, on)
    _, weights = rollout_corr_helper.compute_rollout_correction_weights(
        new - was, on, rollout_is="token", rollout_is_threshold=1e9
    )
    for name, value in twin(old, rollout, mask).items():
        assert (results | weights)[name] == pytest.approx(value, rel=1e-6, abs=1e-6), name


def test_verl_computes_what_the_atlas_says(tmp_path):
    from drift.atlas import moved, outcome

    assert moved("verl", outcome("verl", Path(sys.executable), tmp_path)) == []
