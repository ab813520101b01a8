"""What lldscope says of things that are the same on every machine, as JSON on stdout.

    python -m tests.elsewhere.answers

`decisions` must be equal wherever it runs, `numbers` (name → list) to rounding: whoever compares
two of them (tests/test_anywhere.py) says which is which here.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from lldscope_trainer.builtin.world import World
from lldscope_trainer.environment.corpus_index import open_index
from lldscope_trainer.environment.protocol import Environment
from lldscope_trainer.environment.retrieval import Bm25Retriever
from lldscope_trainer.policy.model import load_policy
from lldscope_trainer.rollout.sampler import Sampler, _nucleus
from lldscope_trainer.rollout.tokens import Sampling

import lldscope
from lldscope.diagnosis import detectors
from lldscope.diagnosis.assess import Assessment, assess
from lldscope.evaluation.bank import read_bank
from lldscope.runs import find_runs

SAMPLES = Path(__file__).parents[2] / "sample_runs"

Decisions = dict[str, Any]
Numbers = dict[str, Sequence[float]]


def main() -> None:
    torch.set_num_threads(1)
    decisions: Decisions = {}
    numbers: Numbers = {}
    for ask in (searches, draws, rollouts, samples, bank, series):
        ask(decisions, numbers)
    json.dump({"decisions": decisions, "numbers": numbers}, sys.stdout)


# -- the trainer ----------------------------------------------------------------------------------


def queries(world: World, n: int = 200) -> list[str]:
    """What a policy that searches well asks on the way to the answers."""
    hops = [hop for question in world.questions(random.Random(0), n) for hop in question.hops]
    return [f"{hop.relation} {hop.subject}" for hop in hops]


def searches(decisions: Decisions, numbers: Numbers) -> None:
    """The built-in world, in memory and from a corpus file."""
    world = World.real()
    questions = queries(world)
    for seed in (0, 1):
        results = Bm25Retriever(world.documents, seed=seed).retrieve(questions)
        decisions[f"search {seed}"] = [[d.id for d in documents] for documents in results]
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "world.jsonl"
        lines = ({"title": d.title, "text": d.text} for d in world.documents)
        corpus.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
        best = [open_index(corpus).search(query, 5) for query in questions[:50]]
    decisions["corpus"] = [[document.id for document, _ in results] for results in best]
    numbers["corpus scores"] = [score for results in best for _, score in results]


def draws(decisions: Decisions, numbers: Numbers) -> None:
    """Nuclei among many equals, and the tokens drawn from given probabilities."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(1, 9, (40, 500), generator=generator).double()
    probs = (counts / counts.sum(-1, keepdim=True)).float()
    masks = {top_p: _nucleus(probs, top_p) > 0 for top_p in (0.02, 0.5, 0.9)}
    decisions["nuclei"] = {p: crc32(mask.numpy().tobytes()) for p, mask in masks.items()}
    logits = probs.log()
    for top_p in (0.9, 1.0):
        sampler = Sampler(load_policy("tiny", torch.device("cpu")), Sampling(top_p=top_p))
        decisions[f"draws {top_p}"] = sampler._choose(logits, probs, generator).tolist()


def rollouts(decisions: Decisions, numbers: Numbers) -> None:
    """Short rollouts of the shipped policy. Tokens are drawn from probabilities that are equal to
    rounding, so they are numbers here."""
    world = World.real()
    policy = load_policy("tiny", torch.device("cpu"))
    questions = [q for q in world.questions(random.Random(2), 8) for _ in range(4)]
    environment = Environment(Bm25Retriever(world.documents), max_turns=2)
    for temperature, top_p in ((0.0, 1.0), (1.0, 0.9)):
        sampler = Sampler(policy, Sampling(temperature=temperature, top_p=top_p))
        played = sampler.play(environment, questions, torch.Generator().manual_seed(4))
        name = f"rollout {temperature:g}"
        for number, rollout in enumerate(played):
            numbers[f"{name} tokens {number}"] = rollout.ids
            numbers[f"{name} logp {number}"] = rollout.logp or []


# -- the analyzer ---------------------------------------------------------------------------------


def samples(decisions: Decisions, numbers: Numbers) -> None:
    """Signals and verdicts of the recorded runs; their boundaries with hindsight."""
    for path in find_runs(SAMPLES):
        with lldscope.open_run(path) as run:
            signals = run.signals()
            result = run.assess()
            _judged(path.name, result, decisions)
            decisions[f"{path.name} boundaries"] = [
                (b.phase, b.step, b.low, b.high) for b in result.account.boundaries
            ]
            decisions[f"{path.name} signals"] = {
                name: crc32(signals[name].to_numpy(float, na_value=np.nan).tobytes())
                for name in signals.columns
            }
            for holder in (result.evidence, result.evidence.decay):
                for name, values in vars(holder).items():
                    if isinstance(values, np.ndarray):
                        numbers[f"{path.name} {name}"] = values.tolist()


def bank(decisions: Decisions, numbers: Numbers) -> None:
    """Phases and alarms of every sixth of the study's runs, as they are and as if Δ had not been
    measured."""
    for labelled in read_bank(SAMPLES / "bank")[::6]:
        signals = labelled.signals()
        _judged(labelled.name, assess(signals), decisions)
        signals[[name for name in signals.columns if "delta" in name]] = np.nan
        result = assess(signals)
        _judged(f"{labelled.name} without Δ", result, decisions)
        numbers[f"{labelled.name} limit"] = result.evidence.decay.level_limit[-1:].tolist()


def _judged(name: str, result: Assessment, decisions: Decisions) -> None:
    decisions[name] = {
        "evidence": result.grade,
        "phases": [(s.phase, s.start_step, s.end_step) for s in result.spans()],
        "alarms": {a.rule: a.episodes for a in result.alerts},
        "look_alikes": {name: f.answer for name, f in result.look_alikes().items()},
    }


def series(decisions: Decisions, numbers: Numbers) -> None:
    """The detectors on noise with gaps and repeated values."""
    rng = np.random.default_rng(0)
    values = np.round(rng.normal(0.02, 0.3, 400), 1)
    values[rng.random(400) < 0.1] = np.nan
    score = detectors.loss_score(values)
    outputs = {
        "loss_score": score,
        "e_detector": detectors.e_detector(score, 200.0),
        "trailing_mean": detectors.trailing_mean(values, 10, 5),
        "trailing_t": detectors.trailing_t(values, 20, 10),
        "rise": detectors.rise(values, 20),
        "trailing_median": detectors.trailing_median(np.abs(values), 30, 10),
    }
    numbers |= {f"detector {name}": result.tolist() for name, result in outputs.items()}
    decisions["median"] = detectors.row_medians(
        detectors.trailing(np.nan_to_num(values), 40)[40:]
    ).tolist()


if __name__ == "__main__":
    main()
