"""Scores of whole sequences and probes of a group against the definition, and their memory."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from lldscope_trainer.policy.logprobs import action_scores
from lldscope_trainer.policy.model import Policy
from lldscope_trainer.probes import probe_group


def random_batch(rows: int, width: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(10, 600, (rows, width), generator=generator)
    mask = (torch.rand(rows, width, generator=generator) < 0.7).long()
    mask[:, 0] = 0
    return ids, mask


def twin(policy: Policy, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, list[list[float]]]:
    """Token by token from the model's own logits, in plain floats."""
    results: dict[str, list[list[float]]] = {"logp": [], "entropy": [], "error_norm": []}
    for row, row_mask in zip(ids, mask, strict=True):
        logits = policy.model(row[None]).logits[0].double()
        for values in results.values():
            values.append([0.0] * len(row))
        for t in range(len(row)):
            if not row_mask[t]:
                continue
            weights = [math.exp(x) for x in logits[t - 1].tolist()]
            probs = [w / sum(weights) for w in weights]
            results["logp"][-1][t] = math.log(probs[row[t]])
            results["entropy"][-1][t] = -sum(p * math.log(p) for p in probs)
            errors = [float(v == row[t]) - p for v, p in enumerate(probs)]
            results["error_norm"][-1][t] = sum(e * e for e in errors)
    return results


def test_twin(policy):
    ids, mask = random_batch(2, 7)
    scores = action_scores(policy.model, ids, mask, entropy=True, error_norm=True)
    for name, rows in twin(policy, ids, mask).items():
        values = getattr(scores, name)
        assert values.dtype == torch.float32
        assert torch.allclose(values.double(), torch.tensor(rows).double(), atol=1e-4)
    assert not scores.error_norm.requires_grad


def test_gradient_of_the_entropy(policy):
    # Against autograd through the textbook formula on the model's own logits.
    ids, mask = random_batch(2, 6)
    head = policy.model.get_output_embeddings().weight

    def gradient(entropy: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(entropy.sum(), head)[0]

    logits = policy.model(ids).logits[:, :-1][mask[:, 1:].bool()]
    probs = logits.softmax(-1)
    expected = gradient(-(probs * probs.log()).sum(-1))
    actual = gradient(action_scores(policy.model, ids, mask, entropy=True).entropy)
    assert expected.abs().max() > 0.1
    assert torch.allclose(actual, expected, rtol=1e-3, atol=1e-4)


def test_chunks_of_the_head_change_nothing(policy, monkeypatch):
    ids, mask = random_batch(3, 20)

    def values_and_gradient() -> list[torch.Tensor]:
        policy.model.zero_grad()
        scores = action_scores(policy.model, ids, mask, entropy=True, error_norm=True)
        (scores.logp.square() + scores.entropy.sin()).sum().backward()
        return [*(t.detach() for t in scores), policy.model.get_output_embeddings().weight.grad]

    whole = [t.clone() for t in values_and_gradient()]
    monkeypatch.setattr("lldscope_trainer.policy.logprobs.LOGITS_BYTES", 7 * 4 * 600)
    for a, b in zip(whole, values_and_gradient(), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-4)


def test_no_block_of_logits_is_larger_than_its_budget(policy, monkeypatch):
    """So memory does not grow with vocabulary times sequence, in the backward pass either: what it
    keeps of a block is computed again."""
    blocks: list[int] = []

    def noted(*info: torch.Tensor) -> torch.Tensor:
        logits = torch.nn.functional.linear(*info)
        blocks.append(logits.numel() * logits.element_size())
        return logits

    monkeypatch.setattr("lldscope_trainer.policy.head.linear", noted)
    monkeypatch.setattr("lldscope_trainer.policy.logprobs.LOGITS_BYTES", 64 * 1024)
    sizes: Counter[int] = Counter()
    ids, mask = random_batch(2, 200)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: sizes.update({t.untyped_storage().nbytes(): 1}) or t, lambda t: t
    ):
        action_scores(policy.model, ids, mask, entropy=True, error_norm=True)
    whole = 4 * int(mask.sum()) * policy.model.config.vocab_size
    assert 0 < max(blocks) <= 64 * 1024 < whole
    assert max(sizes) < whole / 4


def made_up_group(seed: int) -> tuple[torch.Tensor, torch.Tensor, list[bool]]:
    """Five short responses of a question, ragged, with gaps (tool text)."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [14, 9, 17, 12, 10]
    ids = torch.zeros(5, max(lengths), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(20, 60, (length,), generator=generator)
        mask[row, 4:length] = (torch.rand(length - 4, generator=generator) < 0.7).long()
        mask[row, 4] = 1
    return ids, mask, [seed % 2 == 0, True, False, False, seed % 3 == 0]


def probes_twin(policy, ids, mask, correct) -> tuple[float, list[float]]:
    """The double sums of arXiv 2505.18830, one pair of tokens at a time, in Python floats."""
    tokens = []  # (row, error over the kept vocabulary, hidden state)
    copies = sorted({int(y) for row, m in zip(ids, mask, strict=True) for y in row[m.bool()]})
    with torch.no_grad():
        for row in range(len(ids)):
            out = policy.model(input_ids=ids[row : row + 1], output_hidden_states=True)
            for t in range(1, ids.shape[1]):
                if not mask[row, t]:
                    continue
                probs = out.logits[0, t - 1].softmax(-1)
                error = [float(v == ids[row, t]) - float(probs[v]) for v in copies]
                tokens.append((row, error, out.hidden_states[-1][0, t - 1].tolist()))

    def dot(a: list[float], b: list[float]) -> float:
        return math.fsum(x * y for x, y in zip(a, b, strict=True))

    def influence(error, hidden) -> float:
        return math.fsum(dot(error, g) * dot(hidden, h) for row, g, h in tokens if correct[row])

    scores: list[list[float]] = [[] for _ in ids]
    hiddens: list[list[list[float]]] = [[] for _ in ids]
    for row, error, hidden in tokens:
        scores[row].append(influence(error, hidden))
        hiddens[row].append(hidden)
    means = [[math.fsum(x) / len(x) for x in zip(*h, strict=True)] for h in hiddens]
    classes = [[m for m, c in zip(means, correct, strict=True) if c == k] for k in (True, False)]
    centres = [[sum(x) for x in zip(*mine, strict=True)] for mine in classes]
    norms = [math.sqrt(dot(c, c)) for c in centres]
    return (dot(*centres) / (norms[0] * norms[1]), [math.fsum(mine) / len(mine) for mine in scores])


@pytest.mark.parametrize(
    ("seed", "logits_bytes"), [(0, None), (1, 7 * 4 * 1200), (2, 7 * 4 * 1200)]
)
def test_probes_of_a_group_agree_with_plain_loops(policy, seed, logits_bytes, monkeypatch):
    if logits_bytes:
        monkeypatch.setattr("lldscope_trainer.policy.logprobs.LOGITS_BYTES", logits_bytes)
    ids, mask, correct = made_up_group(seed)
    with torch.inference_mode():
        result, influences = probe_group(policy.model, ids, mask, torch.tensor(correct))
    similarity, influence = probes_twin(policy, ids, mask, correct)
    assert result == pytest.approx(similarity, abs=1e-5)
    assert influences.tolist() == pytest.approx(influence, rel=2e-4, abs=1e-3)
