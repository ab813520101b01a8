"""The warm start: supervised training of the tiny policy on imperfect demonstrations.

    python -m study.warm_start --out DIR --seed 0

Every pool of demonstrations is played in a fresh counterfactual world, so the policy
learns to search and to copy, not the facts. The loss is on the tokens the policy would write, never
on tool text.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
import torch
from lldscope_trainer.builtin.world import World
from lldscope_trainer.environment.protocol import Environment
from lldscope_trainer.environment.retrieval import Bm25Retriever
from lldscope_trainer.policy.logprobs import action_logps, pad
from lldscope_trainer.policy.model import Policy
from lldscope_trainer.rollout.sampler import Sampler
from lldscope_trainer.rollout.tokens import Sampling
from rich.progress import Progress
from torch import Tensor

from .demonstrations import Demonstration, Teacher
from .tiny import new_policy

STEPS = 3000
"""Reading off the right document has to emerge, which takes most of them."""
FAULT_SHARE = 0.5
MISS_RATE = 0.25
CLEAN_SHARE = 0.5
"""The first part of the training sees a teacher without faults and a tool without misses: copying
emerges sooner. The rest sees both, and the policy becomes as unreliable as its teacher."""
TOOL_WEIGHT = 0.3
"""Weight of the loss on tool text. Documents repeat the words of the query, which is practice in
copying; RL later masks them out."""
POOL_BATCHES = 10
"""Batches drawn from one world; sorted by length inside, so that batches hold little padding."""


def batches(
    policy: Policy, *, seed: int, steps: int, batch_size: int = 32, turn_tokens: int = 40
) -> Iterator[tuple[Tensor, Tensor]]:
    """(ids, action_mask), each (B, T), of demonstrations, for `steps` steps and a few more."""
    rng = random.Random(seed)

    def cut(text: str) -> str:
        ids = policy.encode(text)
        return text if len(ids) <= turn_tokens else policy.decode(ids[:turn_tokens])

    for first in range(0, steps, POOL_BATCHES):
        clean = first < CLEAN_SHARE * steps
        world = World.counterfactual(rng)
        retriever = Bm25Retriever(
            world.documents, seed=rng.getrandbits(30), miss_rate=0.0 if clean else MISS_RATE
        )
        faults = 0.0 if clean else FAULT_SHARE
        teacher = Teacher(world, Environment(retriever), rng, cut, fault_share=faults)
        questions = world.questions(rng, POOL_BATCHES * batch_size)
        pool = [_encode(policy, teacher.play(question)) for question in questions]
        pool.sort(key=lambda row: len(row[0]))
        cuts = [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
        rng.shuffle(cuts)
        for rows in cuts:
            ids = pad([ids for ids, _ in rows], policy.tokenizer.pad_token_id, policy.device)
            yield ids, pad([mask for _, mask in rows], 0, policy.device)


def _encode(policy: Policy, demonstration: Demonstration) -> tuple[list[int], list[int]]:
    ids: list[int] = []
    mask: list[int] = []
    for text, by_model in demonstration.segments:
        tokens = policy.encode(text)
        ids += tokens
        mask += [int(by_model)] * len(tokens)
    return ids, mask


def train_supervised(
    policy: Policy,
    stream: Iterable[tuple[Tensor, Tensor]],
    *,
    steps: int,
    lr: float = 3e-3,
    on_step: Callable[[int, float], None] | None = None,
) -> None:
    """Train in place on (ids, action_mask) batches: AdamW, 100 steps of warm-up, then linear decay
    to a twentieth. `on_step` gets the loss on action tokens."""
    optimizer = torch.optim.AdamW(
        policy.model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / 100, 1 - 0.95 * s / steps)
    )
    policy.model.train()
    for step, (ids, mask) in zip(range(steps), stream, strict=False):
        tool = (ids != policy.tokenizer.pad_token_id).long() - mask
        tool[:, 0] = 0
        logps = action_logps(policy.model, ids, mask + tool)
        loss = -(logps * mask).sum() / mask.sum()
        total = loss - TOOL_WEIGHT * (logps * tool).sum() / tool.sum().clamp(min=1)
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if on_step:
            on_step(step, float(loss.detach()))
    policy.model.eval()


def measure(policy: Policy, *, seed: int, n: int = 512) -> tuple[float, float, float]:
    """(sampled success, greedy success, sampled entropy in nats per token) on real questions."""
    world = World.real()
    environment = Environment(Bm25Retriever(world.documents, seed=seed))
    questions = world.questions(random.Random(seed), n)
    generator = torch.Generator(policy.device).manual_seed(seed)
    success = []
    for temperature in (0.0, 1.0):
        sampler = Sampler(policy, Sampling(temperature=temperature))
        rollouts = sampler.play(environment, questions, generator)
        success.append(sum(r.episode.reward for r in rollouts) / n)
    n_tokens = sum(a >= 0 for r in rollouts for a in r.action)
    entropy = sum(sum(r.entropy or ()) for r in rollouts) / n_tokens
    return success[1], success[0], entropy


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory to write.")
@click.option("--seed", default=0, show_default=True)
@click.option("--steps", default=STEPS, show_default=True)
def main(out: Path, seed: int, steps: int) -> None:
    """Train the tiny policy's warm start and save it as a Hugging Face directory."""
    torch.set_num_threads(1)
    policy = new_policy(seed=seed)
    start = time.perf_counter()
    with Progress() as progress:
        task = progress.add_task("warm start", total=steps)

        def show(step: int, loss: float) -> None:
            progress.update(task, completed=step + 1, description=f"warm start, loss {loss:.3f}")

        stream = batches(policy, seed=seed, steps=steps)
        train_supervised(policy, stream, steps=steps, on_step=show)
    policy.save(out)
    seconds = time.perf_counter() - start
    success, greedy, entropy = measure(policy, seed=seed)
    click.echo(
        f"{steps} steps in {seconds:.0f} s; sampled success {success:.3f}, greedy {greedy:.3f}, "
        f"entropy {entropy:.3f} nats per token"
    )


if __name__ == "__main__":
    main()
