"""A model for the checks, and how they tell what they measured."""

from __future__ import annotations

import pytest

from tests.gpu.made import CUDA, make_model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.slow)
        if not CUDA and item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip("this torch finds no GPU"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("gpu") / "model")


@pytest.fixture
def tell(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]):
    """Prints what a check measured, at once: a run that is killed loses nothing."""

    def write(message: str) -> None:
        with capsys.disabled():
            print(f"\n{request.node.name}: {message}", flush=True)

    return write
