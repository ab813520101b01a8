"""A whole run, from the first evaluation or a checkpoint to the end; the guard acts between
steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lldscope.core.errors import LldscopeError

from .checkpoint import Checkpoints
from .config import TrainConfig
from .guard import Cures, Guard
from .train import StepReport, Trainer


@dataclass
class Ending:
    """The end of a run: rewards of its last steps (ten at most), and exact match of its last
    evaluation; `stopped` is the guard's reason, if it ended the run."""

    rewards: list[float]
    em: float | None
    stopped: str | None = None


def run(
    trainer: Trainer,
    recorder: Any,
    *,
    run_dir: Path | None = None,
    monitor: Any = None,
    on_step: Callable[[StepReport], None] | None = None,
    on_evaluation: Callable[[int, int], None] | None = None,
) -> Ending:
    """Take the trainer from the step it stands at to its last one, recording into `recorder` (a
    lldscope.Recorder or NullRecorder, which the caller closes), and close it.

    `run_dir` is where checkpoints and the trained policy go, if the configuration asks for any;
    `monitor.poll()` gives phase and alarms that changed, on rank 0 alone; `on_step` is called after
    every step, `on_evaluation` with (done, total) while questions are played for an evaluation.
    """
    config, first = trainer.config, trainer.next_step
    trainer.recorder = recorder
    recorder.plan(config.steps)
    supervisor = _Supervisor(trainer, run_dir, monitor)
    rewards: list[float] = []
    reason = None
    em = None
    try:
        # In a resumed run, too: the evaluation of the attempt before no longer counts.
        if first == 0 or _evaluates(config, first):
            em = trainer.evaluate(on_evaluation)
        while trainer.next_step < config.steps and reason is None:
            report = trainer.step(trainer.next_step)
            rewards.append(report.reward)
            reason = supervisor.after(report)
            if on_step:
                on_step(report)
            if reason is None and _evaluates(config, trainer.next_step):
                trainer.evaluate(on_evaluation)
        if trainer.next_step > first:
            em = trainer.evaluate(on_evaluation)
        if run_dir and config.save_policy:
            trainer.save_policy(run_dir / "policy")
    except RuntimeError as error:  # torch's own, or what vLLM raises when it wakes
        if "out of memory" not in str(error):
            raise
        why = str(error).partition(".")[0]
        raise LldscopeError(
            f"out of memory in step {trainer.next_step} ({why}): lower micro_tokens, "
            "engine_memory or sequence_tokens, or take gradient_checkpointing=true, dtype=bfloat16 "
            "or more GPUs with optimizer=deepspeed; with checkpoints, --resume goes on"
        ) from None
    finally:
        trainer.close()
    return Ending(rewards[-10:], em, reason)


def _evaluates(config: TrainConfig, step: int) -> bool:
    """Whether an evaluation is due before this step."""
    return config.eval_every > 0 and step % config.eval_every == 0 and step < config.steps


class _Supervisor:
    """The work between two steps: checkpoints, and the guard's actions."""

    def __init__(self, trainer: Trainer, run_dir: Path | None, monitor: Any) -> None:
        config = self._config = trainer.config
        self._trainer = trainer
        self._monitor = monitor
        self._guard = Guard(config.guard, config.guard_on, trainer.answered)
        margin = config.guard_margin if "rollback" in self._guard.actions else 0
        self._checkpoints = (
            Checkpoints(run_dir, config.checkpoints_kept, margin) if run_dir else None
        )

    def after(self, report: StepReport) -> str | None:
        """Look, act, save; puts phase, alarms and actions into `report`. Returns a reason to stop,
        or None."""
        cause, step = self._look(report), report.step + 1
        due = bool(self._config.checkpoint_every) and step % self._config.checkpoint_every == 0
        reason = None
        if cause is not None:
            save, reason = self._act(report, cause)
            due |= save
        if due:
            self._save(report, step)
        return reason

    def _act(self, report: StepReport, cause: str) -> tuple[bool, str | None]:
        """Act on an alarm; returns whether a checkpoint is needed, and the reason to stop, if
        any."""
        due, reason, least = False, None, self._config.guard_coefficient
        for action in self._guard.actions:
            cures = self._trainer.updater.cures
            if action == "rollback":
                # A run that is killed now must not go on from the weights that were given up.
                due |= self._roll_back(report, cause)
            elif action == "llds":
                self._treat(report, cause, cures.with_llds(least))
            elif action == "cure":
                self._treat(report, cause, cures.against(cause, least))
            else:
                due = True
            if action == "stop":
                reason = f"the guard stopped the run at step {report.step}: {cause} fires"
                self._trainer.event("guard_stop", step=report.step, rule=cause)
        return due, reason

    def _look(self, report: StepReport) -> str | None:
        """The alarm to act on: the same on every rank; rank 0 has the monitor."""
        cause = None
        if self._monitor is not None:
            report.phase, report.alerts = self._monitor.poll()
            for alert in report.alerts:
                self._trainer.recorder.alert(**alert)
            cause = self._guard.decide(report.alerts)
        if not self._guard.actions:
            return None
        rules = self._guard.rules
        number = self._trainer.processes.most(0 if cause is None else 1 + rules.index(cause))
        return rules[number - 1] if number else None

    def _save(self, report: StepReport, step: int) -> None:
        if self._checkpoints is None:
            return
        try:
            self._trainer.save(
                self._checkpoints, step, alarmed=self._guard.firing, answered=self._guard.answered
            )
        except OSError as error:
            report.notes.append(
                f"the checkpoint before step {step} could not be written ({error}); "
                "training goes on without it"
            )
            self._trainer.event("checkpoint_failed", step=report.step, reason=str(error))
        else:
            self._trainer.event("checkpoint", step=report.step, resume_from=step)

    def _roll_back(self, report: StepReport, cause: str) -> bool:
        """Return to the healthy checkpoint; False if there is none."""
        healthy = self._checkpoints.healthy(report.step + 1) if self._checkpoints else None
        if self._checkpoints is None or healthy is None:
            report.notes.append(f"{cause} fires, and there is no healthy checkpoint to go back to")
            self._trainer.event("rollback_failed", step=report.step, rule=cause)
            return False
        self._trainer.restore(healthy, keep_cures=True)
        if self._trainer.processes.rank == 0:
            self._checkpoints.forget_after(healthy.state.step)
        report.notes.append(
            f"{cause} fires: rolled back to the weights before step {healthy.state.step}"
        )
        self._trainer.event("rollback", step=report.step, to_step=healthy.state.step, rule=cause)
        return True

    def _treat(self, report: StepReport, cause: str, cures: Cures) -> None:
        """Continue with other settings, and report them."""
        updater, trainer = self._trainer.updater, self._trainer
        before, updater.cures = updater.cures, cures
        if (cures.llds, cures.llds_coefficient) != (before.llds, before.llds_coefficient):
            trainer.event("llds", step=report.step, gate=cures.llds,
                          coefficient=cures.llds_coefficient, rule=cause)
            change = f"LLDS with the {cures.llds} gate and λ = {cures.llds_coefficient:g}"
        elif cures.lr_share != before.lr_share:
            lr = self._config.lr * cures.lr_share
            trainer.event("lr_change", step=report.step + 1, lr=lr, rule=cause)
            change = f"half the learning rate, {lr:g} after warm-up"
        elif cures.importance_sampling != before.importance_sampling:
            mode = cures.importance_sampling
            trainer.event("importance_sampling", step=report.step, mode=mode, rule=cause)
            change = f"importance_sampling={mode}"
        else:
            change = "what there was: its cure is in force already"
        report.notes.append(f"{cause} fires: from the next step on {change}")
