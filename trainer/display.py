"""The progress of a training: a bar on a terminal, an occasional line in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from lldscope.core.palette import PHASES

if TYPE_CHECKING:
    from .train import StepReport

PLAIN_EVERY = 10
"""Steps between progress lines without a terminal."""


class Display:
    """Shows steps from `first` to `steps`; `bar` is rich's, None in a log. A run that is not
    `visible` shows nothing."""

    def __init__(self, steps: int, first: int, *, visible: bool, bar: Any = None) -> None:
        self._steps, self._first, self._visible, self._bar = steps, first, visible, bar
        self._started = time.monotonic()
        self._task = bar and bar.add_task("starting", total=steps, completed=first)

    def step(self, report: StepReport) -> None:
        """Show a finished step: its alarms, faults and measurements."""
        for line in (*map(alarm_line, report.alerts), *report.notes):
            self.say(line)
        if report.skipped:
            self.say(f"step {report.step}: {report.skipped} updates skipped, their gradient was "
                     "not finite")
        done, text = report.step + 1, summary(report)
        if self._bar:
            self._bar.update(self._task, completed=done, description=f"{text}\n{cost(report)}")
        elif done % PLAIN_EVERY == 0 or done == self._steps:
            seconds = time.monotonic() - self._started
            left = seconds / (done - self._first) * (self._steps - done)
            self.say(f"step {done}/{self._steps}  {text}  {left:.0f} s left\n  {cost(report)}")

    def evaluation(self, done: int, total: int) -> None:
        """Show the progress of an evaluation, in questions."""
        text = f"evaluated {done} of {total} questions"
        if self._bar:
            self._bar.update(self._task, description=text)
        elif done < total:
            self.say(text)

    def say(self, line: str) -> None:
        """A line of its own."""
        if self._bar:
            self._bar.console.print(line, markup=False)
        elif self._visible:
            click.echo(line, err=True)


@contextmanager
def display(steps: int, first: int = 0, *, visible: bool = True) -> Iterator[Display]:
    """Shows steps from `first` to `steps`; nothing unless `visible`."""
    if not (visible and sys.stderr.isatty()):
        yield Display(steps, first, visible=visible)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    columns = MofNCompleteColumn(), BarColumn(24), TextColumn("{task.description}"), Left()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield Display(steps, first, visible=True, bar=bar)


def summary(report: StepReport) -> str:
    """The step in half a line."""
    delta = "" if report.delta_correct is None else f"  Δ correct {report.delta_correct:+.2f}"
    phase = f"  {PHASES[report.phase].word}" if report.phase else ""
    speed = f"  {report.tokens_per_second:.0f} tokens/s"
    return f"reward {report.reward:.2f}{delta}{speed}{phase}"


def cost(report: StepReport) -> str:
    """The time of the step, longest part first."""
    longest = sorted(report.seconds.items(), key=lambda part: -part[1])
    parts = ", ".join(f"{name} {s:.2f}" for name, s in longest if s >= 0.005)
    peak = report.memory_peak
    return f"seconds: {parts}" + ("" if peak is None else f"; peak {peak / 2**30:.1f} GiB")


def alarm_line(alert: dict) -> str:
    """An alarm in one line."""
    return (
        f"{alert['severity']} {alert['rule']} {alert['state']} at step {alert['step']}: "
        f"{alert['message']}"
    )
