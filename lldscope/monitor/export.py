"""Phases and alarms of a watched run as metrics in another tool: TensorBoard, W&B or Trackio.

The tool runs in a process of its own (`export_writers`), because W&B and Trackio print, wait for
networks and hook into the end of a process: whatever they do, `watch` goes on, and exits when it
should. That process reads one JSON object per line:

    {"step": 12, "phase": 3, "alarms": {"lld-decay": 1, …}, "first": true}
    {"step": 12, "alert": "warning: …", "text": "…", "severity": "warning"}
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from ..core.errors import UsageError, interrupted
from ..diagnosis.phases import Phase
from ..diagnosis.registry import RULES
from .channels import VARIABLE, as_text, warn

if TYPE_CHECKING:
    from ..diagnosis.assess import Assessment
    from .follow import AlertEvent, Follower, RunUpdate

PHASE_NUMBERS: dict[Phase | None, int] = {phase: n for n, phase in enumerate(get_args(Phase))}
LEGEND = ", ".join(f"{n} {phase}" for phase, n in PHASE_NUMBERS.items())
TOOLS = ("tensorboard", "wandb", "trackio")  # each needs the package of its name
FLUSH_SECONDS = 30.0  # at the end, for what is still queued
_NO_PHASE = -1


class MetricsExporter:
    """Sends what is new in each update; a context manager, whose exit waits a limited time."""

    def __init__(self, address: str) -> None:
        tool, colon, place = address.partition(":")
        if tool not in TOOLS or not colon or not place.strip("/"):
            raise UsageError(
                f"--mirror {address}: write tensorboard:DIR, wandb:PROJECT, wandb:PROJECT/RUN_ID "
                "or trackio:PROJECT."
            )
        spec = find_spec(tool)
        if spec is None or spec.origin is None:  # a folder of that name is no package
            raise UsageError(
                f"--mirror {address} needs the package {tool}, which is not installed here: "
                "pip install 'lldscope[mirrors]'"
            )
        self._address = address
        self._answers: dict[int, list[int]] = {}  # by step, as sent
        self._queue: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._work, name="lldscope-mirror", daemon=True)
        self._failed = False  # whether it has failed, which is reported once
        self._thread.start()

    def send(self, follower: Follower, update: RunUpdate, events: Sequence[AlertEvent]) -> None:
        """Queue steps that are new or whose answer has changed, and the alarms; never blocks."""
        if self._failed or follower.run is None:
            return
        try:
            rules = RULES if follower.rules is None else follower.rules
            assessment = follower.run.assess(follower.arl, follower.rules)
            lines = [*self._new(assessment, [r.id for r in rules], update.first)]
            lines += [_alert(event) for event in events]
        except Exception as error:  # `watch` goes on, whatever state the run is in
            if interrupted(error):
                raise
            self._failed = True
            warn(f"{self._address} stopped, the run is no longer exported: {error}")
            return
        for line in lines:
            self._queue.put((follower.run.name, json.dumps(line)))

    def _new(
        self, assessment: Assessment, rules: Sequence[str], first: bool
    ) -> Iterator[dict[str, Any]]:
        """The steps to send. An answer uses rows up to its step only, so an old one changes only if
        the rows do, as when a run is resumed at an earlier step."""
        steps, answers = (of.tolist() for of in answers_of(assessment, rules))
        previous, self._answers = self._answers, dict(zip(steps, answers, strict=True))
        for step, answer in self._answers.items():
            if previous.get(step) != answer:
                phase, *alarms = answer
                yield {
                    "step": step,
                    "phase": None if phase == _NO_PHASE else phase,
                    "alarms": dict(zip(rules, alarms, strict=True)),
                    "first": first,
                }

    def __enter__(self) -> MetricsExporter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._queue.put(None)
        self._thread.join(FLUSH_SECONDS)
        if self._thread.is_alive():
            if self._process is not None:
                self._process.kill()
            warn(f"{self._address} did not take everything within {FLUSH_SECONDS:.0f} s.")

    # -- in the thread ----------------------------------------------------------------------------

    def _work(self) -> None:
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            try:
                while (item := self._queue.get()) is not None:
                    run, line = item
                    self._process = self._process or self._start(run, output)
                    assert self._process.stdin is not None
                    self._process.stdin.write(line + "\n")
                    if self._queue.empty():
                        self._process.stdin.flush()
                if self._process is None or self._close() == 0:
                    return
            except OSError:
                self._close()
            self._failed = True
            output.seek(0)
            why = [line.strip() for line in output if line.strip()][-1:] or ["it gave no reason"]
            warn(f"{self._address} stopped, the run is no longer exported: {why[0]}")

    def _start(self, run: str, output: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "lldscope.monitor.export_writers",
             self._address, run, LEGEND],
            stdin=subprocess.PIPE, stdout=output, stderr=output, encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for `watch`
            env={name: value for name, value in os.environ.items() if name != VARIABLE},
        )

    def _close(self) -> int | None:
        if self._process is None:
            return None
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        return self._process.wait()


def _alert(event: AlertEvent) -> dict[str, Any]:
    title, text = as_text(event)
    start, end = event.alert.episodes[-1]
    step = start if end is None else end
    return {"step": step or 0, "alert": title, "text": text, "severity": event.alert.severity}


def answers_of(assessment: Assessment, rules: Sequence[str]) -> tuple[Any, Any]:
    """Steps (n,), and for each the number of its phase and 0 or 1 for each rule: (n, 1 + rules)."""
    steps = np.asarray(assessment.evidence.step, dtype=np.int64)
    answers = np.zeros((len(steps), 1 + len(rules)), np.int8)
    answers[:, 0] = [PHASE_NUMBERS.get(phase, _NO_PHASE) for phase in assessment.phases]
    for alert in assessment.alerts:
        column = 1 + list(rules).index(alert.rule)
        for start, end in alert.episodes:
            until = len(steps) if end is None else np.searchsorted(steps, end)
            answers[np.searchsorted(steps, start) : until, column] = 1
    return steps, answers
