"""Every trainer gives the same rows and re-scores the same rollouts for the same batch."""

from __future__ import annotations

import sys
import types
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lldscope_trainer.optim.processes import Processes
from lldscope_trainer.records import recorded_batch
from lldscope_trainer.rollout.batch import RolloutBatch
from lldscope_trainer.rollout.tokens import Rollout
from lldscope_trainer.train import Trainer

from lldscope.integrations.trl import step as trl_step
from lldscope.integrations.trl.rollouts import Samples, StepRollouts
from lldscope.recording.batch import Batch, padded
from lldscope.recording.columns import tables
from lldscope.recording.recorder import FailOpen
from lldscope.recording.rescore import rescore_sample
from lldscope.recording.retention import Retention

QUESTION = SimpleNamespace(data_source=None, text=None, golds=())
N, SIZE, STEP = 16, 4, 3
RANDOM = np.random.default_rng(5)
PROMPTS = [RANDOM.integers(20, 99, 2 + i // SIZE).tolist() for i in range(0, N, SIZE)
           for _ in range(SIZE)]
OWN = [
    [1] * a + [0] * b + [1] * (a if b else 0)
    for a, b in zip(RANDOM.integers(1, 5, N), RANDOM.integers(0, 3, N), strict=True)
]
RESPONSES = [RANDOM.integers(20, 99, len(policy_mask)).tolist() for policy_mask in OWN]
CORRECT = [i in (0, 4, 5, 7, 8, 9, 10, 11, 14) for i in range(N)]
REWARDS = [float(c) for c in CORRECT]
ADVANTAGES = RANDOM.normal(0, 1, N).round(2).tolist()
GROUPS = [i // SIZE for i in range(N)]


def made_up() -> list[list[float]]:
    """A number for each token that the policy wrote, 0 for tool text."""
    return [
        [float(np.float32(-RANDOM.gamma(2.0))) * policy_mask for policy_mask in row] for row in OWN
    ]


OLD, POST, ENGINE, REFERENCE = (made_up() for _ in range(4))
ENGINE[2][0] = float("nan")  # a token that the engine did not score
MEASURED = {"old": OLD, "post": POST, "behaviour": ENGINE, "reference": REFERENCE}


def left(rows: list[list[float]], dtype: Any = torch.float32) -> torch.Tensor:
    return torch.tensor(padded([np.array(r) for r in rows]), dtype=dtype)


def whole(rows: list[list[float]]) -> list[list[float]]:
    """With a 0 for each token of the prompt."""
    return [[0] * len(p) + list(r) for p, r in zip(PROMPTS, rows, strict=True)]


SEQUENCES = [p + r for p, r in zip(PROMPTS, RESPONSES, strict=True)]


def by_hand() -> Batch:
    return Batch(
        step=STEP, mask=left(OWN), prompt_ids=PROMPTS, completion_ids=RESPONSES, rewards=REWARDS,
        correct=CORRECT, group_ids=GROUPS, advantages=ADVANTAGES,
        **{name: left(rows) for name, rows in MEASURED.items()},
    )


class OurBatch(RolloutBatch):
    """Scored by looking up what the policy after the updates would say."""

    def score(self, model, rows, micro_tokens):
        return model[list(rows)]


def our_trainer(share: float = 1, rank: int = 0, ranks: int = 1) -> Batch:
    """The groups dealt to the ranks one by one, as `Trainer._draw` does it."""
    rows = [i for i in range(N) if GROUPS[i] % ranks == rank]

    def mine(values: list[list[float]]) -> torch.Tensor:
        return left(whole(values))[rows]

    def actions(policy_mask: list[int]) -> list[int]:
        turn = np.cumsum(np.diff(policy_mask, prepend=0) == 1) - 1
        return np.where(np.array(policy_mask) == 1, turn, -1).tolist()

    rollouts = [
        Rollout(
            SimpleNamespace(
                reward=REWARDS[i], correct=CORRECT[i], question=QUESTION,
                actions=[SimpleNamespace(kind="text", tool_ok=None, docs_hash=None)
                         for _ in range(max(actions(OWN[i])) + 1)],
            ),
            SEQUENCES[i], [-1] * len(PROMPTS[i]) + actions(OWN[i]),
        )
        for i in rows
    ]
    batch = OurBatch(
        ids=left(SEQUENCES, torch.long)[rows], mask=mine(OWN).long(), old=mine(OLD),
        entropy=mine(OLD), error_norm=mine(OLD), advantages=torch.tensor(ADVANTAGES)[rows],
        lengths=[len(SEQUENCES[i]) for i in rows], inner=mine(OLD), post=mine(OLD),
        rescored=torch.zeros(len(rows), dtype=torch.bool), behaviour=mine(ENGINE),
        ref=mine(REFERENCE),
    )
    processes = Processes(rank, ranks, rank, torch.device("cpu"))
    everywhere = torch.tensor(REWARDS)
    loop = SimpleNamespace(
        config=SimpleNamespace(
            rescore_share=share, prompts=N // SIZE, group_size=SIZE, micro_tokens=1024
        ),
        processes=SimpleNamespace(sum=lambda version: everywhere, device=processes.device),
        policy=SimpleNamespace(model=mine(POST), decode=str),
    )
    groups = [GROUPS[i] for i in rows]
    Trainer._rescore(loop, STEP, batch, [CORRECT[i] for i in rows], groups)
    draw = SimpleNamespace(step=STEP, groups=groups, policy_version=None)
    return recorded_batch(draw, rollouts, batch, SIZE, loop.policy)


def trl(share: float = 1, rank: int = 0, ranks: int = 1) -> Batch:
    """The rows dealt to the ranks in blocks, as TRL's sampler does it."""
    n = N // ranks
    rows = slice(rank * n, (rank + 1) * n)
    ids = left(RESPONSES, torch.long)[rows]
    after = {tuple(r.tolist()): p for r, p in zip(ids, left(POST)[rows], strict=True)}
    assert len(after) == n
    passes = []

    def scorer(model, sequences, attention, n_completion, **_):
        passes.append(len(sequences))
        return torch.stack([after[tuple(s[-n_completion:].tolist())] for s in sequences]), None

    prompts = left(PROMPTS, torch.long)[rows]
    mask = left([[1] * len(r) for r in RESPONSES])[rows]
    inputs = {
        "prompt_ids": prompts, "prompt_mask": (prompts > 0).long(), "completion_ids": ids,
        "completion_mask": mask, "tool_mask": left(OWN)[rows],
        "advantages": torch.tensor(ADVANTAGES)[rows],
        "sampling_per_token_logps": left(ENGINE)[rows],
        "ref_per_token_logps": left(REFERENCE)[rows],
    }
    parts = [{}] * n
    samples = Samples(
        parts, [None] * n, RESPONSES[rows], REWARDS[rows], CORRECT[rows], rank * n, parts
    )
    rollouts = StepRollouts(inputs, STEP, 0, samples, CORRECT, SIZE)
    rollouts.set_old(left(OLD)[rows], None)
    trainer = SimpleNamespace(
        model=torch.nn.Module(), args=SimpleNamespace(per_device_train_batch_size=4)
    )
    writer = trl_step.StepWriter(
        trainer, None, FailOpen(None, "trl"), scorer, Retention(0), share, tokens_every=0
    )
    writer._rescore(rollouts)
    # As many rows as on the rank with the largest part of the sample.
    sample = rescore_sample(CORRECT, GROUPS, share, STEP)
    assert passes == [max(sum(i // n == r for i in sample) for r in range(ranks))]
    return trl_step.batch_of(rollouts, SimpleNamespace(decode=str), [])


def verl() -> Batch:
    def nested(rows: list[list[float]], dtype: Any = torch.float32) -> torch.Tensor:
        tensors = [torch.tensor(r, dtype=dtype) for r in rows]
        return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)

    spread = [[a] * len(policy_mask) for a, policy_mask in zip(ADVANTAGES, OWN, strict=True)]
    data = {
        "uid": [f"q{g}" for g in GROUPS], "prompts": nested(PROMPTS, torch.long),
        "responses": nested(RESPONSES, torch.long), "response_mask": nested(OWN, torch.long),
        "rm_scores": nested([[0] * (len(r) - 1) + [x]
                             for r, x in zip(RESPONSES, REWARDS, strict=True)]),
        "old_log_probs": nested(OLD), "advantages": nested(spread),
        "rollout_log_probs": nested(ENGINE), "ref_log_prob": nested(REFERENCE),
    }
    algorithms, config = (types.ModuleType(f"verl.{name}") for name in ("algorithms", "config"))
    algorithms.register_policy_loss = lambda name: lambda loss: loss  # type: ignore[attr-defined]
    algorithms.get_policy_loss_fn = lambda name: None  # type: ignore[attr-defined]
    config.PolicyLossConfig = object  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("verl", "verl.trainer", "verl.trainer.ppo", "verl.workers"):
            patch.setitem(sys.modules, name, types.ModuleType(name))
        patch.setitem(sys.modules, "verl.trainer.ppo.core_algos", algorithms)
        patch.setitem(sys.modules, "verl.workers.config", config)
        finders = list(sys.meta_path)
        from lldscope.integrations.verl import batch as verl_batch

        sys.meta_path[:] = finders  # without the one that waits for verl's trainers
    return verl_batch.batch_of(
        data, nested(POST), step=STEP, padding=[False] * N, correct=1.0, decode=str, limit=99
    )


COLUMNS = {
    "responses": ("response_id", "group_id", "prompt_hash", "reward", "advantage", "correct",
                  "n_actions", "n_tokens"),
    "actions": ("response_id", "action_index", "n_tokens", "logp_behaviour_sum", "logp_old_sum",
                "logp_post_sum", "logp_ref_sum", "logp_min", "n_tokens_down", "drop_sum"),
    "steps": ("step", "n_responses", "n_correct", "reward_sum", "reward_sq_sum", "n_tokens",
              "kl_sum"),
}


def unmasked(column: Any) -> list[Any]:
    """A list, None where nothing was measured."""
    if isinstance(column, np.ma.MaskedArray):
        return column.tolist()
    return np.atleast_1d(np.array(column, object)).tolist()


def rows_of(*batches: Batch) -> dict[str, list[tuple]]:
    """Rows of the tables in COLUMNS, of all ranks; None where nothing was measured."""
    results: dict[str, list[tuple]] = {}
    for batch in batches:
        for table, columns in tables(batch).items():
            values = [unmasked(columns[name]) for name in COLUMNS[table]]
            results.setdefault(table, []).extend(zip(*values, strict=True))
    return {table: sorted(rows, key=lambda r: r[:2]) for table, rows in results.items()}


def same(one: dict[str, list[tuple]], other: dict[str, list[tuple]], tables: Any = COLUMNS) -> None:
    for table in tables:
        for a, b in zip(one[table], other[table], strict=True):
            for x, y, name in zip(a, b, COLUMNS[table], strict=True):
                assert x == (pytest.approx(y, abs=1e-5) if isinstance(y, float) else y), (a, name)


@pytest.mark.parametrize("path", [our_trainer, trl, verl])
def test_every_trainer_gives_the_same_rows(path):
    expected = rows_of(by_hand())
    same(rows_of(path()), expected)
    index = COLUMNS["actions"].index("logp_behaviour_sum")
    unscored = [r[:2] for r in expected["actions"] if r[index] is None]
    assert unscored == [(2, 0)], "a sum with a token that the engine did not score"


@pytest.mark.parametrize("share", [0.25, 0.5])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("path", [our_trainer, trl])
def test_every_trainer_scores_the_same_sample_again_on_any_number_of_ranks(path, ranks, share):
    sample = rescore_sample(CORRECT, GROUPS, share, STEP)
    assert len(sample) == share * N
    rows = rows_of(*(path(share, rank, ranks) for rank in range(ranks)))
    expected = rows_of(by_hand())
    of = {name: i for i, name in enumerate(COLUMNS["actions"])}
    delta = [of[name] for name in ("logp_post_sum", "n_tokens_down", "drop_sum")]
    expected["actions"] = [
        r if r[0] in sample else tuple(None if i in delta else x for i, x in enumerate(r))
        for r in expected["actions"]
    ]
    same(rows, expected, ("responses", "actions"))
