"""`python -m tests.drift` sees what a release has lost, `python -m tests.drift.atlas` which of its
numbers is another; nothing is downloaded or trained here."""

from __future__ import annotations

import zipfile

import pytest

from lldscope.core.atlas import of_trainer
from tests.drift import __main__ as drift
from tests.drift import atlas
from tests.drift.seams import SEAMS

TRAINER = """
class Base:
    def _generate_and_score_completions(self, inputs): ...
class GRPOTrainer(Base):
    def _calculate_rewards(self, inputs, prompts, completions): ...
    def compute_loss(self, model, inputs, return_outputs=False): ...
    async def training_step(self, *args): ...
    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, *, batch_size, compute_entropy=True
    ): ...
    def log(self, logs, start_time=None): ...
"""


@pytest.mark.parametrize("folder", ["", "trl-9.0.data/purelib/"])
def test_what_a_release_lost_is_named(tmp_path, monkeypatch, capsys, folder):
    path = tmp_path / "trl-9.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{folder}trl/trainer/grpo_trainer.py", TRAINER)
    monkeypatch.setattr(drift, "download", lambda package, folder: zipfile.ZipFile(path))
    assert drift.main(["trl"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "trl 9.0 (tried with 1.16.0): 4 of 6 seams fit",
        "  trl/trainer/grpo_trainer.py: GRPOTrainer._generate_and_score_completions:"
        " there is no _generate_and_score_completions",
        "  trl/trainer/grpo_trainer.py: GRPOTrainer._calculate_rewards:"
        " it has no completion_ids_list",
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


@pytest.mark.parametrize("trainer", ["trl", "verl"])
def test_a_number_that_moved_is_named(trainer):
    says = {m.key.replace("NAME", "parity"): [[m.quantity, m.over]] for m in of_trainer(trainer)
            if m.source == atlas.EXPERIMENTS[trainer].source and m.how != "read"}
    assert atlas.moved(trainer, {"matches": says}) == []
    last, *_, absent, other = sorted(says)
    now = says | {last: [["another", "rollouts"], *says[last]], other: [["another", "rollouts"]],
                  "of no atlas": []}
    del now[absent]
    was = " over ".join(says[other][0])
    assert sorted(atlas.moved(trainer, {"matches": now})) == sorted([
        f"{absent}: no longer logged",
        f"{other}: another over rollouts; the atlas says {was}",
    ])
    unknown = "; ".join(atlas.moved(trainer, {"matches": now | {other: []}}))
    assert f"{other}: none of the definitions that were tried" in unknown
