"""What keeps engine and trainer apart is told from how the ratios are distributed.

The policies are made up: logits that drift a little in each step. Each fault is injected in what
samples the tokens and scores them, and goes through recorder, signals and rule.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rule_cases import frame

import lldscope
from lldscope.diagnosis.evidence import gather
from lldscope.diagnosis.rules.numerics import engine_mismatch
from lldscope.recording.batch import Batch
from lldscope.recording.columns import record

SHAPE = (32, 48)
VOCABULARY = 16
STEPS = 8


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def nucleus(logp: np.ndarray, mass: float) -> np.ndarray:
    """The smallest set of tokens with so much mass, scaled to 1."""
    order = np.argsort(-logp, axis=-1, kind="stable")
    p = np.exp(np.take_along_axis(logp, order, -1))
    mask = np.empty(logp.shape, bool)
    np.put_along_axis(mask, order, p.cumsum(-1) - p < mass, -1)
    return log_softmax(np.where(mask, logp, -np.inf))


def engine(kind: str, policies: list[np.ndarray], rng) -> np.ndarray:
    """log π of all tokens, of what samples under the last of the policies."""
    now = policies[-1]
    return log_softmax({
        "none": lambda: now,
        "top-p": lambda: nucleus(log_softmax(now), 0.8),
        "stale": lambda: policies[0],
        "precision": lambda: now + rng.normal(0, 0.03, now.shape),
        "temperature": lambda: now / 0.7,
        "other tokens": lambda: now,
        "raw scores": lambda: now / 1.5,
    }[kind]())


def signals(path: Path, kind: str):
    rng = np.random.default_rng(11)
    policies = [2.5 * rng.normal(size=(*SHAPE, VOCABULARY))]
    direction = rng.normal(size=policies[0].shape)
    rows = np.arange(SHAPE[0])

    def of(logp: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return np.take_along_axis(logp, tokens[..., None], -1)[..., 0]

    with lldscope.Recorder(path) as recorder:
        for step in range(STEPS):
            old = log_softmax(policies[-1] / (1.5 if kind == "raw scores" else 1))
            samples = engine(kind, policies, rng)
            noise = rng.gumbel(size=samples.shape)
            tokens = (samples + noise).argmax(-1)
            behaviour = of(samples, tokens)
            if kind == "other tokens":
                behaviour = np.roll(behaviour, 1, axis=1)
            if kind == "raw scores":  # both sample at 1.5, the engine tells of temperature 1
                behaviour = of(log_softmax(policies[-1]), tokens)
            policies.append(policies[-1] + 0.15 * direction + rng.normal(0, 0.05, old.shape))
            record(recorder, Batch(
                step=step, mask=np.ones(SHAPE, bool), prompt_ids=[[1]] * len(rows),
                completion_ids=tokens.tolist(), rewards=rows % 2.0,
                correct=[bool(i % 2) for i in rows], group_ids=rows // 4,
                old=of(old, tokens), post=of(log_softmax(policies[-1]), tokens),
                behaviour=behaviour,
            ))
    return lldscope.open_run(path).signals()


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("top-p", "cut off (top-p, top-k, min-p) at "),
        ("stale", "older weights"),
        ("precision", "precision or kernels"),
        ("temperature", "another temperature"),
        ("other tokens", "other tokens, or another model"),
        ("raw scores", "not of the distribution that the engine sampled from"),
    ],
)
def test_the_message_names_what_was_injected(kind, named, tmp_path):
    table = signals(tmp_path / "run", kind)
    message = engine_mismatch(gather(table, 2000)).message(STEPS - 1)
    assert named in message, message


def test_an_engine_that_agrees_is_close_in_every_measure(tmp_path):
    row = signals(tmp_path / "run", "none").iloc[-1]
    assert abs(row["engine_gap"]) < 1e-6
    assert row["engine_ess"] == pytest.approx(1, abs=1e-6)
    assert row["engine_far_share"] == 0


LARGER = np.linspace(0.001, 0.3, 40)
STAYS = np.full(40, 0.3)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"engine_diff": LARGER}, "older weights (new ones do not reach the engine, or rollouts "
                                  "are old on purpose)"),
        ({"engine_k3": LARGER, "rollout_age": 0 * STAYS}, "older weights (new ones do not reach "
                                                          "the engine)"),
        ({"engine_k3": LARGER, "rollout_age": 10 * STAYS}, "old on purpose: 3.0 versions)"),
        ({"engine_diff": LARGER, "entropy": LARGER}, "grew as the policy broke"),
        ({"engine_prob_diff": STAYS, "entropy": LARGER}, "from the first step on"),
        ({"engine_gap": STAYS, "engine_diff": LARGER}, "from the first step on"),
    ],
)
def test_without_the_distribution_the_message_tells_a_setting_from_older_weights(columns, named):
    message = engine_mismatch(gather(frame(columns), 2000)).message(39)
    assert named in message, message


# 1,000 tokens a step and a K3 of 0.02: four standard errors are 4 √(2 · 0.02 / 10,000).
BORDERS = {  # what is said: a measure on either side
    "below 0": [("gap", -0.0081, -0.0079)],
    "too many for so close a mean": [("far_share", 0.2622, 0.2621)],  # 0.05 + 3 √0.005
    "sampling that is cut off": [("ratio", 0.9919, 0.9921), ("chi2", -0.1, 0.0)],
    "far less than a step's": [("step_kl", 0.081, 0.079)],
}


@pytest.mark.parametrize("words", BORDERS)
def test_each_kind_has_its_border(words):
    measured = {"gap": 0.01, "k3": 0.02, "ratio": 0.99, "chi2": -0.1, "far_share": 0.0}

    def message(**changed: float) -> str:
        values = {f"engine_{name}": value for name, value in (measured | changed).items()}
        values |= {"step_kl": values.pop("engine_step_kl", 0.0)}
        columns = {name: np.full(40, value) for name, value in values.items()}
        columns["tokens_seen"] = 1000.0 * np.arange(1, 41)
        return engine_mismatch(gather(frame(columns), 2000)).message(39)

    for name, inside, outside in BORDERS[words]:
        whole = {} if name in ("ratio", "chi2") else {"ratio": 1.0}
        assert words in message(**whole | {name: inside})
        assert words not in message(**whole | {name: outside})
    halves = [message(gap=0.03, ratio=ratio) for ratio in (0.9849, 0.9851)]  # of the gap
    assert ["cut off" in text for text in halves] == [True, False]
