"""The language model's task in TRL's hands: `python -m study.other_hands RUN [--steps N]`.

TRL's GRPOTrainer trains, `instrument` records. TRL's own tool loop needs a chat template with
tools, which this model lacks, so its `rollout_func` plays the environment: turns, questions and
settings are those of `lldscope train search-smollm2` (docs/research/language-model.md).
"""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import click
import torch
from lldscope_trainer.builtin.imitation import make_ready
from lldscope_trainer.config import load_config
from lldscope_trainer.engines.players import sampling_of
from lldscope_trainer.policy.model import load_policy
from lldscope_trainer.rollout.sampler import Sampler
from lldscope_trainer.rollout.tokens import TokenProtocol
from lldscope_trainer.task import make_task

from lldscope.integrations.trl import instrument


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--steps", default=20, show_default=True, help="Rollout batches.")
def main(run: Path, steps: int) -> None:
    """Train SmolLM2 with TRL, and record the run."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(Path(folder), steps)
        instrument(trainer, str(run))
        trainer.train()


def make_trainer(folder: Path, steps: int) -> Any:
    """A GRPOTrainer of so many rollout batches, whose files go to `folder`."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    config = load_config("search-smollm2")
    make_ready(config.model)
    policy = load_policy(config.model, torch.device("cpu"), shared_prefixes=True)
    policy.model.get_input_embeddings().requires_grad_(not config.frozen_embeddings)
    task, sampling = make_task(config, policy), sampling_of(config)
    sampler, protocol = Sampler(policy, sampling), TokenProtocol(policy, sampling)
    generator = torch.Generator().manual_seed(config.seed)
    rng = random.Random(config.seed)
    questions = [q for s in range(steps) for q in task.questions.draw(s, config.prompts, rng)]
    prompts = [policy.decode(protocol.prompt(question)) for question in questions]
    question_of = dict(zip(prompts, questions, strict=True))

    def play(batch: list[str], trainer: Any) -> dict[str, list[Any]]:
        rollouts = sampler.play(task.environment, [question_of[p] for p in batch], generator)
        fields: dict[str, list[Any]] = defaultdict(list)
        for rollout in rollouts:
            n = rollout.action.index(0)  # tokens of the prompt
            assert rollout.logp is not None
            fields["prompt_ids"].append(rollout.ids[:n])
            fields["completion_ids"].append(rollout.ids[n:])
            fields["logprobs"].append(rollout.logp[n:])
            fields["env_mask"].append([int(action >= 0) for action in rollout.action[n:]])
            fields["score"].append(rollout.episode.reward)
        return fields

    def reward(score: list[float], **_: Any) -> list[float]:
        return score

    settings = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=config.prompts * config.group_size // config.updates,
        gradient_accumulation_steps=1, steps_per_generation=config.updates,
        num_generations=config.group_size, max_steps=steps * config.updates,
        max_completion_length=config.sequence_tokens, learning_rate=config.lr,
        lr_scheduler_type="constant", weight_decay=config.weight_decay,
        max_grad_norm=config.grad_clip, epsilon=config.clip_low, epsilon_high=config.clip_high,
        beta=0.0, loss_type="bnpo", shuffle_dataset=False, use_cpu=True, bf16=False,
        gradient_checkpointing=False, logging_steps=config.updates, save_strategy="no",
        report_to=[],
    )
    return GRPOTrainer(
        model=policy.model, args=settings, processing_class=policy.tokenizer, reward_funcs=reward,
        rollout_func=play,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
    )


if __name__ == "__main__":
    main()
