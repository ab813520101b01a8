"""A plugin for pytest (`-p tests.elsewhere.order`): another order of files, and of tests in them.

Files stay together, because what is set up for a file would be set up again and again otherwise.
"""

from __future__ import annotations

import random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--order", help="a text to draw an order from")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    order = config.getoption("--order")
    if order:
        rng = random.Random(order)
        rng.shuffle(items)
        rank = {path: rng.random() for path in sorted({item.path for item in items})}
        items.sort(key=lambda item: rank[item.path])
