"""What a training run shows while it runs: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

import click

if TYPE_CHECKING:
    from .train import StepReport

PLAIN_EVERY = 10
"""Steps between progress lines where there is no terminal to draw a bar on."""


class Display:
    """What is shown of a run while it trains: nothing, for the ranks that are not watched."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None: ...
    def step(self, report: StepReport) -> None: ...
    def evaluation(self, done: int, total: int) -> None: ...
    def say(self, line: str) -> None: ...


def display(steps: int, first: int = 0, *, visible: bool = True) -> Display:
    """Shows the steps from `first` to `steps` as they are done; nothing unless `visible`."""
    if not visible:
        return Display()
    return (_BarDisplay if sys.stderr.isatty() else _PlainDisplay)(steps, first)


class _PlainDisplay(Display):
    """A line every few steps, for logs."""

    def __init__(self, steps: int, first: int) -> None:
        self._steps = steps
        self._first = first
        self._started = time.monotonic()

    def step(self, report: StepReport) -> None:
        done = report.step + 1
        for line in notices(report):
            self.say(line)
        if done % PLAIN_EVERY == 0 or done == self._steps:
            seconds = time.monotonic() - self._started
            left = seconds / (done - self._first) * (self._steps - done)
            self.say(f"step {done}/{self._steps}  {summary(report)}  {left:.0f} s left")
            self.say(f"  {cost(report)}")

    def evaluation(self, done: int, total: int) -> None:
        if done < total:
            self.say(f"evaluated {done} of {total} questions")

    def say(self, line: str) -> None:
        click.echo(line, err=True)


class _BarDisplay(Display):
    """A progress bar with reward, Δ, phase and time left; alarms are printed above it."""

    def __init__(self, steps: int, first: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Left

        self._bar = Progress(
            MofNCompleteColumn(), BarColumn(bar_width=24), TextColumn("{task.description}"), Left(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("starting", total=steps, completed=first)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bar.stop()

    def step(self, report: StepReport) -> None:
        for line in notices(report):
            self.say(line)
        text = f"{summary(report)}\n{cost(report)}"
        self._bar.update(self._task, completed=report.step + 1, description=text)

    def evaluation(self, done: int, total: int) -> None:
        self._bar.update(self._task, description=f"evaluated {done} of {total} questions")

    def say(self, line: str) -> None:
        self._bar.console.print(line, markup=False)


def summary(report: StepReport) -> str:
    """The step in half a line."""
    delta = "" if report.delta_correct is None else f"  Δ correct {report.delta_correct:+.2f}"
    phase = f"  {report.phase}" if report.phase else ""
    mfu = "" if report.mfu is None else f"  MFU {report.mfu:.0%}"
    speed = f"  {report.tokens_per_second:.0f} tokens/s{mfu}"
    return f"reward {report.reward:.2f}{delta}{speed}{phase}"


def cost(report: StepReport) -> str:
    """What the step took, the longest part first."""
    longest = sorted(report.seconds.items(), key=lambda part: -part[1])
    parts = ", ".join(f"{name} {s:.2f}" for name, s in longest if s >= 0.005)
    peak = report.memory_peak
    return f"seconds: {parts}" + ("" if peak is None else f"; peak {peak / 2**30:.1f} GiB")


def notices(report: StepReport) -> list[str]:
    """Lines about what happened beside the training itself."""
    lines = [alarm_line(a) for a in report.alerts] + report.notes
    if report.skipped:
        lines.append(
            f"step {report.step}: {report.skipped} updates skipped, their gradient was not finite"
        )
    return lines


def alarm_line(alert: dict) -> str:
    """An alarm in one line."""
    return (
        f"{alert['severity']} {alert['rule']} {alert['state']} at step {alert['step']}: "
        f"{alert['message']}"
    )
