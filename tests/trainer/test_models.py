"""Policies from Hugging Face directories: loading, scoring, sampling, precision."""

from __future__ import annotations

import functools
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lldscope_trainer.builtin.world import World
from lldscope_trainer.environment.protocol import Environment, prompt_text
from lldscope_trainer.environment.retrieval import Bm25Retriever
from lldscope_trainer.policy.head import head_logits
from lldscope_trainer.policy.logprobs import action_logps, action_scores, compute
from lldscope_trainer.policy.model import Policy, load_policy
from lldscope_trainer.rollout.sampler import Sampler
from lldscope_trainer.rollout.tokens import Rollout, Sampling
from safetensors.torch import load_file, save_file
from tiny_policy import train_tokenizer
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from lldscope.core.errors import UsageError

CPU = torch.device("cpu")
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"head_dim": 16}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM, {"head_dim": 8, "final_logit_softcapping": 0.1}),
}


@pytest.fixture(scope="module")
def make(tmp_path_factory) -> Callable[..., Path]:
    """Write a model directory with random weights; again with the same arguments gives the same."""
    tokenizer = train_tokenizer(400)

    @functools.cache
    def write(kind: str = "llama", tied: bool = True, chat: bool = False) -> Path:
        config, model, more = KINDS[kind]
        torch.manual_seed(3)
        random_model = model(
            config(
                vocab_size=len(tokenizer), tie_word_embeddings=tied, bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
                **SIZES, **more,
            )
        )
        with torch.no_grad():  # sure of itself, so that errors show
            random_model.get_output_embeddings().weight *= 8
        directory = tmp_path_factory.mktemp("models") / f"{kind}-{tied}-{chat}"
        random_model.save_pretrained(directory)
        tokenizer.chat_template = TEMPLATE if chat else None
        tokenizer.save_pretrained(directory)
        return directory

    return write


def play(policy: Policy, *, questions: int = 3, turn_tokens: int) -> list[Rollout]:
    world = World.real()
    environment = Environment(Bm25Retriever(world.documents), max_turns=1)
    sampler = Sampler(policy, Sampling(turn_tokens=turn_tokens))
    requests = world.questions(random.Random(0), questions)
    return sampler.play(environment, requests, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("kind", "tied", "chat"),
    [("llama", True, True), ("llama", False, False),
     ("qwen2", True, False), ("qwen2", False, True)],
)
def test_sampler_and_scorer_agree_with_a_plain_forward(make, kind, tied, chat):
    policy = load_policy(str(make(kind, tied, chat)), CPU)
    model = policy.model
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied
    for rollout in play(policy, turn_tokens=6):
        text = policy.decode(rollout.ids)
        prompt = prompt_text(rollout.episode.question.text)
        assert text.startswith(f"<|user|>{prompt}<eos>\n<|assistant|>" if chat else prompt)
        ids = torch.tensor([rollout.ids])
        mask = torch.tensor([[int(a >= 0) for a in rollout.action]])
        with torch.no_grad():
            logps = policy.model(ids).logits[0].double().log_softmax(-1)
            scores = action_logps(policy.model, ids, mask)[0]
        assert sum(a >= 0 for a in rollout.action) >= 2
        assert rollout.logp is not None
        for t, action in enumerate(rollout.action):
            expected = logps[t - 1, rollout.ids[t]].item() if action >= 0 else 0.0
            assert rollout.logp[t] == pytest.approx(expected, abs=1e-4)
            assert scores[t].item() == pytest.approx(expected, abs=1e-4)


# ---- directories that must not load -------------------------------------------------------------


def remove(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def pickle_only(directory: Path) -> None:
    torch.save(load_file(directory / "model.safetensors"), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()


def lose_a_weight(directory: Path) -> None:
    weights = load_file(directory / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def break_template(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("{% if %}")


def own_code(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.C"}}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "own.py").write_text(f"open({str(directory / 'executed')!r}, 'w')")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove("config.json"), r"no Hugging Face model directory \(with config.json\)"),
        (remove("model.safetensors"), r"no weights .* \(\*\.safetensors"),
        (pickle_only, "pickled .bin weights are not read"),
        (lose_a_weight, "1 weights are missing, .*layers.1.mlp.up_proj.weight"),
        (own_code, "custom code"),
        (remove("tokenizer.json"), r"no tokenizer .* \(one of tokenizer.json"),
        (break_template, "TemplateSyntaxError"),
    ],
)
def test_damaged_directories_are_refused_by_name(make, tmp_path, damage, message):
    directory = tmp_path / "model"
    shutil.copytree(make("llama"), directory)
    damage(directory)
    with pytest.raises(UsageError, match=rf"(?s)model=\S*{tmp_path.name}/model: .*{message}"):
        load_policy(str(directory), CPU)
    assert not (directory / "executed").exists()


def test_a_model_that_caps_its_logits_is_refused(make):
    # Head after decoder is not all of Gemma 2: it would load, sample and train on wrong numbers.
    with pytest.raises(UsageError, match="not those of its output layer"):
        load_policy(str(make("gemma2")), CPU)


# ---- bfloat16 -----------------------------------------------------------------------------------


def random_batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(10, 400, (3, 12), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    mask[:, :4] = 0
    return ids, mask


def test_bfloat16_computes_so_but_keeps_float32_weights_and_logits(make):
    directory = str(make("qwen2"))
    policy, exact = load_policy(directory, CPU, torch.bfloat16), load_policy(directory, CPU)
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    ids, mask = random_batch()
    records = []
    layer = policy.model.get_decoder().layers[0].mlp.up_proj
    hook = layer.register_forward_hook(lambda *call: records.append(call[-1].dtype))
    result = action_scores(policy.model, ids, mask, entropy=True, error_norm=True)
    hook.remove()
    assert records == [torch.bfloat16]
    assert [t.dtype for t in result] == [torch.float32] * 3
    # Rounded somewhere, so not equal; but only in the decoder, so close.
    off = (result.logp - action_logps(exact.model, ids, mask)).abs().max()
    assert 0 < off < 0.2
    with compute(policy.model):
        hidden = policy.model.get_decoder()(input_ids=ids).last_hidden_state
        logits = head_logits(policy.model, hidden)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, policy.model.get_output_embeddings()(hidden.float()))


# ---- gradient checkpointing ---------------------------------------------------------------------


def test_gradient_checkpointing_keeps_less_and_does_not_train(make):
    """That gradients are the same: test_packing.py."""
    ids, mask = random_batch()
    sizes = []
    for on in (False, True):
        policy, copies = load_policy(str(make("llama")), CPU, gradient_checkpointing=on), {}
        weights = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}

        def keep(tensor, copies=copies):
            copies[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            action_logps(policy.model, ids, mask)
        assert not any(module.training for module in policy.model.modules())
        sizes.append(sum(n for place, n in copies.items() if place not in weights))
    assert sizes[1] < 0.8 * sizes[0]
