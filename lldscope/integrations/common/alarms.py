"""The action on an alarm (save, or save and stop), and the summary at the end of a training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from ...core.errors import LldscopeError
from ...core.safe_text import in_one_line
from ...diagnosis.registry import RULES
from ...monitor.follow import Monitor
from ...monitor.health import check
from ...recording.recorder import FailOpen, Recorder
from ...runs import open_run

log = logging.getLogger("lldscope")

ACTIONS = ("stop", "save")
DEFAULT_RULES = ("lld-decay", "lld-collapse")


class AlarmAction:
    """Follows the run in a thread of rank 0, which broadcasts the alarm: all ranks act alike.

    action: one of ACTIONS; None does nothing. every: seconds between looks at the run. processes:
    those in which `act` is called.
    """

    def __init__(
        self, action: str | None, rules: Sequence[str], every: float, processes: int = 1
    ) -> None:
        if action is not None and action not in ACTIONS:
            raise ValueError(f"on_alarm must be one of {', '.join(ACTIONS)}, got {action!r}")
        if unknown := set(rules) - {rule.id for rule in RULES}:
            raise LldscopeError(
                f"There is no rule {', '.join(sorted(unknown))}. "
                "`lldscope rules list` lists all of them."
            )
        if action is not None and find_spec("duckdb") is None:
            raise LldscopeError("on_alarm reads the run, with the package duckdb: install it.")
        self._processes = processes
        self._action, self._rules, self._every = action, frozenset(rules), every
        self._recorder: Any = None
        self._monitor: Monitor | None = None
        self.stopped: str | None = None

    def begin(self, recorder: Any) -> None:
        self._recorder = recorder
        self._fail_open = FailOpen(recorder, "alarms")
        if self._action is not None and recorder.rank == 0:
            with self._fail_open("what the alarms say"):
                self._monitor = Monitor(self._recorder.place, self._every)

    def act(self, control: Any, step: int) -> None:
        """Called on all ranks after a recorded step. On an alarm it sets `should_save`, and perhaps
        `should_training_stop`, of `control`, as transformers' TrainerControl has them."""
        if self._action is None:
            return
        rule = self._firing()
        if self._processes > 1:
            from accelerate.utils import broadcast_object_list

            (rule,) = broadcast_object_list([rule])
        if rule is None:
            return
        control.should_save = True
        if self._action == "stop":
            control.should_training_stop = True
            self.stopped = f"{rule} fired at step {step}"
        if self._recorder.rank == 0:
            self._recorder.event(f"guard_{self._action}", step=step, rule=rule)

    def end(self) -> None:
        if self._monitor is not None:
            self._monitor.close()

    def _firing(self) -> str | None:
        """A rule whose alarm began since the last call. A latched alarm counts once."""
        if self._monitor is None:
            return None
        with self._fail_open("what the alarms say"):
            _, news = self._monitor.poll()
            rules = [a["rule"] for a in news if a["state"] == "firing" and a["rule"] in self._rules]
            return rules[0] if rules else None
        return None


def record_training(
    recorder: Recorder,
    action: AlarmAction,
    train: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run the training, close the recorder however it ends, and print the summary."""
    try:
        with recorder:
            result = train(*args, **kwargs)
            if action.stopped is not None:
                recorder.close("stopped", action.stopped)
    finally:
        action.end()
    if recorder.rank == 0:
        farewell(recorder.place)
    return result


def farewell(place: Any) -> None:
    """Print one line: verdict, and where to look. An error here is only logged."""
    try:
        with open_run(place) as run:
            state = check(run)
            steps = run.assess().rows
            word, cause = state.sign.word, in_one_line(state.headline.cause)
            verdict = "" if cause.lower().startswith(word) else f", {word}"
            print(f"lldscope: {steps} steps in {place}{verdict}. {cause}. "
                  f"Look: lldscope dash {place}")
    except Exception as error:
        log.warning("lldscope: nothing can be said of the run at %s: %s", place, error)
