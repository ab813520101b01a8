"""What the trainer's tests play with, loaded once: the little world, its policy, a random one."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def world():
    from lldscope_trainer.builtin.world import World

    return World.real()


@pytest.fixture(scope="session")
def tiny():
    import torch
    from lldscope_trainer.policy.model import load_policy

    return load_policy("tiny", torch.device("cpu"))


@pytest.fixture(scope="session")
def policy():
    from tiny_policy import new_policy

    return new_policy(seed=1)
