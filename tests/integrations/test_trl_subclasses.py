"""Subclasses of TRL's trainer with methods of another form, and losses that cannot be seen: the
training goes on as it would alone, and the run says what is missing."""

from __future__ import annotations

import pytest

pytest.importorskip("trl", reason="trl: not installed")

import torch
import trl_tiny
from test_trl import Witness, whole
from trl import GRPOTrainer

from lldscope.cli.views import show_state
from lldscope.core.errors import LldscopeError
from lldscope.integrations.trl import instrument
from lldscope.integrations.trl.llds import Regularizer
from lldscope.monitor.health import check

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
RATIOS = "importance ratios, clipped tokens and the KL of the loss"


class OwnLoss(Witness):
    """A loss that runs the model itself, as a fused one does."""

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        mask, n = inputs["completion_mask"], inputs["completion_ids"].size(1)
        logits = model(input_ids=ids, attention_mask=torch.cat([inputs["prompt_mask"], mask], 1))
        table = torch.log_softmax(logits.logits[:, -n - 1 : -1], -1)
        logps = table.gather(-1, inputs["completion_ids"][..., None])[..., 0]
        ratio = torch.exp(logps - logps.detach())
        loss = -(ratio * inputs["advantages"][:, None] * mask).sum() / mask.sum()
        return loss / self.current_gradient_accumulation_steps


def test_a_loss_past_the_scoring(tmp_path, capsys):
    """Δ, entropy and the gradient norm are measured; what is not is said, by `check` too."""
    trainer = trl_tiny.make(tmp_path, kind=OwnLoss, logging_strategy="steps", logging_steps=1,
                            max_steps=4)
    recorder = instrument(trainer, tmp_path / "run", rescore_share=1)
    trainer.train()
    assert not recorder.dropped
    run = whole(tmp_path / "run", trainer, steps=2)
    norms = run.sql("SELECT grad_norm FROM updates ORDER BY step, update")["grad_norm"]
    logged = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    assert norms.tolist() == pytest.approx(logged, rel=1e-5)
    assert run.signals()["entropy"].notna().all()
    assert run.sql("SELECT ratio_max FROM updates")["ratio_max"].isna().all()
    state = check(run)
    assert list(state.missing) == [RATIOS]
    assert "two passes" in state.missing[RATIOS]
    show_state(run, state)
    assert f"not recorded: {RATIOS}" in capsys.readouterr().out.replace("\n", " ")


def test_llds_is_refused_where_the_loss_cannot_be_seen(tmp_path):
    trainer = trl_tiny.make(tmp_path, kind=OwnLoss)
    instrument(trainer, tmp_path / "run", llds="action")
    with pytest.raises(LldscopeError, match="llds needs the log-probabilities of the loss"):
        trainer.train()


def test_what_cannot_be_followed_is_refused_at_once(tmp_path):
    run = tmp_path / "run"
    for methods, message in (
        ({"compute_loss": lambda self, model, batch, sizes: None},
         r"compute_loss\(model, batch, sizes\), where recording needs \(model, inputs"),
        ({"_calculate_rewards": lambda self, samples: None},
         r"_calculate_rewards\(samples\), where recording needs \(inputs, prompts"),
        ({"_get_per_token_logps_and_entropies": lambda self, model, batch: None},
         r"\(model, batch\), where recording needs \(model, input_ids"),
        ({"_calculate_rewards": None}, r"no _calculate_rewards.*knows the GRPOTrainer of TRL 1"),
        ({"__module__": "unsloth_compiled"}, "Unsloth has methods.*LldscopeCallback"),
        ({"__module__": "swift.rlhf_trainers"}, "ms-swift has methods.*LldscopeCallback"),
    ):
        theirs = type("TheirGRPOTrainer", (GRPOTrainer,), methods)
        with pytest.raises(LldscopeError, match=message):
            instrument(trl_tiny.make(tmp_path, kind=theirs), run)
    trainer = trl_tiny.make(tmp_path, gradient_accumulation_steps=2)
    with pytest.raises(LldscopeError, match="every gate is closed"):
        instrument(trainer, run, llds="action")
    with pytest.raises(ValueError, match="one of token, response, action"):
        Regularizer(trainer, "sometimes", 0.2)
    assert not run.exists()
    instrument(trainer, run)
    with pytest.raises(LldscopeError, match="recorded already"):
        instrument(trainer, tmp_path / "other")
