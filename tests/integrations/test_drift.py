"""`python -m tests.drift` sees what a release has lost; nothing is downloaded here."""

from __future__ import annotations

import zipfile

import pytest

from tests.drift import __main__ as drift
from tests.drift.seams import SEAMS

TRAINER = """
class Base:
    def _prepare_batch_inputs(self, samples): ...
class GRPOTrainer(Base):
    def _postprocess_batch(self, samples): ...
    async def _get_per_token_logps_and_entropies(
        self, model, model_inputs, grpo_batch, *, compute_entropy=False
    ): ...
"""
DATA = """
class OnPolicySample:
    prompt_id: str
"""


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    path = tmp_path / "ms_swift-9.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        name = "ms_swift-9.0.data/purelib/swift/rlhf_trainers/grpo_trainer.py"
        file.writestr(name, TRAINER)
        file.writestr("swift/rl_core/data.py", DATA)
    monkeypatch.setattr(drift, "download", lambda package, folder: zipfile.ZipFile(path))


def test_what_a_release_lost_is_named(wheel, capsys):
    assert drift.main(["ms-swift"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "ms-swift 9.0 (tried with 4.6.0): 2 of 5 seams fit",
        "  swift/rlhf_trainers/grpo_trainer.py: GRPOTrainer._prepare_batch_inputs:"
        " there is no _prepare_batch_inputs",
        "  swift/rlhf_trainers/grpo_trainer.py: GRPOTrainer._postprocess_batch:"
        " it has no batch_encoded_inputs",
        "  swift/rl_core/data.py: GRPOBatch: there is no GRPOBatch",
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
