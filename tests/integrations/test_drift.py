"""`python -m tests.drift` sees what a release has lost; nothing is downloaded here."""

from __future__ import annotations

import zipfile

import pytest

from tests.drift import __main__ as drift
from tests.drift.seams import SEAMS

ACTOR = """
class PPOActor:
    def compute_logp(self, data): ...
    def compute_advantages(self, batch): ...
    async def ppo_update(self, data, *, more=1): ...
"""
SETTINGS = """
class Base:
    def should_compute_prox_logp(self): ...
class PPOActorConfig(Base): ...
"""


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    path = tmp_path / "areal-9.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("areal-9.0.data/purelib/areal/trainer/ppo/actor.py", ACTOR)
        file.writestr("areal/api/cli_args.py", SETTINGS)
    monkeypatch.setattr(drift, "download", lambda package, folder: zipfile.ZipFile(path))


def test_what_a_release_lost_is_named(wheel, capsys):
    assert drift.main(["areal"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "areal 9.0 (tried with 1.0.4): 2 of 4 seams fit",
        "  areal/trainer/ppo/actor.py: PPOActor.compute_advantages: it has no data",
        "  areal/api/cli_args.py: PPOActorConfig.should_compute_prox_logp:"
        " there is no should_compute_prox_logp",
    ]


def test_a_package_that_cannot_be_had(monkeypatch, capsys):
    def none(package, folder):
        raise OSError("No matching distribution found")

    monkeypatch.setattr(drift, "download", none)
    assert drift.main([]) == 2
    assert capsys.readouterr().out.count("No matching distribution") == len(SEAMS)


def test_the_seams_of_trl_fit_what_is_installed():
    trl = pytest.importorskip("trl", reason="trl: not installed")
    from importlib.resources import files

    root = files(trl).parent
    for seam in SEAMS["trl"]:
        tree = drift.ast.parse((root / seam.file).read_text(encoding="utf-8"))
        assert drift.misfit(tree, seam) is None
