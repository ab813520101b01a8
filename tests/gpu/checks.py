"""How a check is declared, run and told: pass, fail, or not run and why."""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

Figures = dict[str, Any]


class NotRun(Exception):
    """A check that this machine or installation does not allow; the message completes "not run,
    because …"."""


@dataclass(frozen=True)
class Place:
    """Where the checks run. `small` is for the CPU: the same logic on sizes of seconds."""

    device: torch.device
    folder: Path
    model: str
    small: bool

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def size(self, large: int, small: int) -> int:
        """`large` on a GPU, `small` on the CPU."""
        return small if self.small else large

    def need_cuda(self, what: str) -> None:
        """Raise NotRun on the CPU."""
        if not self.cuda:
            raise NotRun(f"{what} is measured on a GPU only")


@dataclass(frozen=True)
class Row:
    """The outcome of one check: "pass", "fail" or "not run"; `message` is the measurement, the
    failure or the reason."""

    name: str
    result: str
    message: str
    seconds: float
    figures: Figures = field(default_factory=dict)


Check = Callable[[Place], tuple[str, Figures]]
CHECKS: dict[str, Check] = {}
_RANKS: dict[str, int] = {}
SECONDS = {1: 120.0, 2: 120.0, 3: 300.0}
"""What a check may take, by rank: one that hangs leaves time for the others."""
OVERTIME = 60.0
"""Seconds after those of all checks by which the last of them has to be done."""
GRACE = 30.0
"""Seconds after which a check that cannot be interrupted, such as a kernel that never ends, ends
the program: the rows so far are in the file, the stack is on the standard error."""
LOG = 8000
"""Characters of a failure that go into the file; the table shows its first line."""


def check(name: str, *, rank: int = 2) -> Callable[[Check], Check]:
    """Register a function as the check of this name. It returns what it measured, in words and as
    figures; raises AssertionError where that is wrong, and NotRun. `rank` 1 is cheap or tells most,
    3 is dear or needs another package."""

    def register(function: Check) -> Check:
        CHECKS[name], _RANKS[name] = function, rank
        return function

    return register


def select(only: Sequence[str]) -> list[str]:
    """The checks with one of these texts in their name, all without any; by rank."""
    names = [name for name in CHECKS if not only or any(text in name for text in only)]
    return sorted(names, key=lambda name: _RANKS[name])


def need(package: str) -> None:
    """Raise NotRun if the package is not installed."""
    if importlib.util.find_spec(package) is None:
        raise NotRun(f"{package} is not installed")


def now(place: Place) -> float:
    """Seconds, once the device has done what it was given."""
    if place.cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def close(name: str, results: torch.Tensor, expected: torch.Tensor, tolerance: float) -> float:
    """The norm of the difference over that of `expected`; AssertionError above the tolerance."""
    results, expected = results.double().cpu(), expected.double().cpu()
    error = float((results - expected).norm() / expected.norm().clamp(min=1e-12))
    assert error <= tolerance, f"{name} is {error:.1e} off, allowed {tolerance:.0e}"
    return error


def run_worker(module: str, place: Place, model: str, seconds: float) -> Figures:
    """The line of JSON that a process of its own prints about a model. AssertionError, with what it
    had measured and said, where it fails or is not done in time."""
    command = [sys.executable, "-m", f"tests.gpu.{module}", str(place.small)]
    try:
        done = subprocess.run(
            [*command, str(place.folder), model], capture_output=True, text=True,
            check=False, timeout=seconds, env=os.environ | {"VLLM_NO_USAGE_STATS": "1"},
        )
        code, out, err = f"exit code {done.returncode}", done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        code = f"not done after {seconds:g} s"
        both = (late.output or b"", late.stderr or b"")
        out, err = (t.decode(errors="replace") if isinstance(t, bytes) else t for t in both)
    figures = next((line for line in reversed(out.splitlines()) if line.startswith("{")), "")
    if code != "exit code 0":
        lines = [line.strip() for line in err.splitlines() if line.strip()]
        causes = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
        cause = [*lines, *causes][-1] if lines else "no message"
        message = f"{code}: {cause[:400]}; measured: {figures or 'nothing'}"
        raise AssertionError(f"{message}\n{err[-LOG:]}")
    return json.loads(figures)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in what is inside after so many seconds, and end the program `GRACE` later
    where that does not reach it."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def run_all(
    place: Place,
    names: Sequence[str],
    seconds: float,
    on_row: Callable[[list[Row]], None] = lambda rows: None,
) -> list[Row]:
    """One row per check, in order; what has not begun when the seconds are over is not run, and
    what is not done `OVERTIME` later fails.
    `on_row` gets the rows so far after each one: a program that is killed loses none."""
    end = time.monotonic() + seconds
    rows = []
    for name in names:
        start = time.monotonic()
        figures: Figures = {}
        if start > end:
            result, message = "not run", f"because {seconds / 60:g} minutes were over"
        else:
            most = min(SECONDS[_RANKS[name]], end + OVERTIME - start)
            result, message, figures = outcome(CHECKS[name], place, most)
        rows.append(Row(name, result, message, time.monotonic() - start, figures))
        print(f"{result}: {name}: {message}", file=sys.stderr, flush=True)
        on_row(rows)
        if place.cuda:
            torch.cuda.empty_cache()
    return rows


def outcome(run: Check, place: Place, seconds: float) -> tuple[str, str, Figures]:
    """(result, message, figures); a failure's figures are its whole message and its stack."""
    try:
        with limited(seconds):
            message, figures = run(place)
    except NotRun as reason:
        return "not run", f"because {reason}", {}
    except Exception as error:  # whatever it is, the other checks shall still run
        frames = traceback.extract_tb(error.__traceback__)
        where = ([frame for frame in frames if frame.filename != __file__] or frames)[-1]
        at = f"{Path(where.filename).name}:{where.lineno}"
        text = " ".join(str(error).partition("\n")[0].split())[:600]
        log = "".join(traceback.format_exception(error))[-2 * LOG :]
        return "fail", f"{type(error).__name__} at {at}: {text}", {"log": log}
    return "pass", message, figures
