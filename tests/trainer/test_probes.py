"""Probes of a group against plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from lldscope_trainer.policy import logprobs as scoring
from lldscope_trainer.policy.model import load_policy
from lldscope_trainer.probes import probe_group


@pytest.fixture(scope="module")
def policy():
    return load_policy("tiny", torch.device("cpu"))


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


def twin(policy, ids, mask, correct) -> tuple[float, list[float]]:
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
def test_twin(policy, seed, logits_bytes, monkeypatch):
    if logits_bytes:
        monkeypatch.setattr(scoring, "LOGITS_BYTES", logits_bytes)
    ids, mask, correct = made_up_group(seed)
    with torch.inference_mode():
        result, influences = probe_group(policy.model, ids, mask, torch.tensor(correct))
    similarity, influence = twin(policy, ids, mask, correct)
    assert result == pytest.approx(similarity, abs=1e-5)
    assert influences.tolist() == pytest.approx(influence, rel=2e-4, abs=1e-3)
