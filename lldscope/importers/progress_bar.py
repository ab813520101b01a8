"""The steps of rows without a step, from other evidence in the file.

The Hugging Face Trainer prints the epoch but not the step. Its progress bar, if standard error went
to the same file, is drawn right before and after each row and has the step. If the two streams were
written in separate blocks, the position of the bar means nothing. Then the spacing of rows follows
from the length of the run and the number of rows, from the epoch in the final summary, or from the
learning rate, which falls to zero at the last step. A spacing is used only if it agrees with every
epoch, read as the interval that rounding leaves.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

# transformers 5.19, tqdm: bars of data sets have words before them, this one has none.
_BAR = re.compile(
    rb"(?:^|[\r\n\]]|\x1b\[A)\s*\d{1,3}%\|[^|\r]{0,300}\| (\d{1,10})/(\d{1,10}) \["
)
_TITLE = re.compile("─ Step (\\d{1,10}) ─".encode())  # of the completions that TRL 1.16 prints
_EVERY = re.compile(rb"\blogging_steps['\"]?\s*[=: ]\s*(\d{1,6})\b")  # settings that were printed
_MOST_BARS = 8  # of different lengths that are counted
_LEAST_FALL = 0.1  # of a learning rate that tells
_STRAIGHT = 0.01  # how far it may be from its schedule
_SURE = 0.015  # how far from a whole number the steps between two rows may be


class Bars:
    """Collects the evidence in order: `saw` takes lines, `mark` the position of each row."""

    def __init__(self) -> None:
        self.end: float | None = None  # the epoch of the summary
        self._every: int | None = None  # steps from one row to the next, by the settings
        self._before: list[int] = []  # step of the last bar before each row …
        self._after: list[int] = []  # … and of the first after it
        self._last = (0, 0)  # step and length of the last bar
        self._done: Counter[int] = Counter()  # length of a bar → the highest step
        self._seen: Counter[int] = Counter()  # bars by their length
        self._waiting = 0  # marks before the bar that comes

    def saw(self, line: bytes) -> None:
        setting = _EVERY.search(line) if b"logging_steps" in line else None
        if setting and int(setting[1]) > 0:
            self._every = int(setting[1])
        if b" Step " in line and (title := _TITLE.search(line)):
            self._moved(int(title[1]), self._last[1])
        for bar in _BAR.finditer(line) if b"%|" in line else ():
            step, total = int(bar[1]), int(bar[2])
            if step > total or (total not in self._seen and len(self._seen) >= _MOST_BARS):
                continue
            self._seen[total] += 1
            self._done[total] = max(self._done[total], step)
            self._moved(step, total)

    def _moved(self, step: int, total: int) -> None:
        self._last = step, total
        if self._waiting:
            self._after[-self._waiting :] = [step] * self._waiting
            self._waiting = 0

    def mark(self) -> int:
        """The number of the position of a row."""
        self._before.append(self._last[0])
        self._after.append(self._last[0])
        self._waiting += 1
        return len(self._after) - 1

    @property
    def total(self) -> int | None:
        """The planned number of steps: the most frequent length of the bar."""
        return next((total for total, _ in self._seen.most_common(1)), None)

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # an epoch may be any number
    def steps(
        self, places: Sequence[int], epochs: Sequence[float], rates: Sequence[float]
    ) -> list[int]:
        """The step of each row from its position, epoch and learning rate (NaN if missing); empty
        if the evidence does not suffice."""
        choices = [[self._after[p] for p in places], [self._before[p] for p in places]]
        n, e = np.arange(1, len(places) + 1), np.array(epochs, float)
        total, has_epochs = self.total or 0, bool(np.isfinite(e).all() and len(e))
        if has_epochs and self.end and total and self._done[total] == total:
            steps = e * total / self.end
            if (np.abs(steps) < 2**31).all():
                every = max(1, round(float(np.median(np.diff(steps, prepend=0)))))
                choices += [(np.rint(steps / k) * k).astype(int).tolist() for k in (every, 1)]
        # Rows were written in blocks, apart from the bar: several have one place.
        is_apart = len({self._before[p] for p in places[1:]}) < len(places) - 1
        for first in (0, 1):  # 5, 10, 15, …, or, with logging_first_step, 1, 5, 10, …
            spacings = self._spacings(rates[first:]) if is_apart else []
            for every in spacings if self._every is None else [self._every]:
                choices.append(np.maximum(1, (n - first) * every).tolist())
        agree = _agrees_with(e) if has_epochs else _is_regular
        return next((steps for steps in choices if steps and agree(np.array(steps))), [])

    def _spacings(self, rates: Sequence[float]) -> list[int]:
        """Possible spacings of rows, by the length of the run; empty if ambiguous."""
        total, n_rows = self.total, len(rates)
        if not total or n_rows < 1:
            return []
        by_rate = _rows_in_all(rates)
        if by_rate is not None:
            every = total / by_rate
            if round(every) >= 1 and abs(every - round(every)) <= _SURE * every:
                return [round(every)]
        done = self._done[total]
        fitting = range(done // (n_rows + 1) + 1, done // n_rows + 1)
        whole = [every for every in fitting if total % every == 0]
        return list(fitting) if len(fitting) == 1 else whole if len(whole) == 1 else []


def _rows_in_all(rates: Sequence[float]) -> float | None:
    """The number of rows after which a learning rate reaches zero, linearly or as a cosine; None
    for other schedules."""
    lr = np.array(rates, float)
    if len(lr) < 5 or not np.isfinite(lr).all() or lr.max() <= 0:
        return None
    top = int(lr.argmax())
    lr = lr[top:] / lr[top]
    if len(lr) < 5 or 1 - lr[-1] < _LEAST_FALL or (np.diff(lr) > 0).any():
        return None
    n, best = np.arange(top + 1, top + 1 + len(lr)), None
    for fall in (1 - lr, np.arccos(2 * lr - 1) / math.pi):
        x, y = n[1:], fall[1:]
        if len(x) < 4:
            continue
        slope, start = np.polyfit(x, y, 1)
        off = float(np.abs(slope * x + start - y).max())
        if slope > 0 and off < _STRAIGHT and (best is None or off < best[0]):
            best = off, (1 - start) / slope
    return best[1] if best else None


def _agrees_with(epochs: np.ndarray) -> Callable[[np.ndarray], bool]:
    """Whether the epochs fit the steps: with some number of steps per epoch, each epoch is within
    its rounding, and no two rows in a row share a step."""
    half = _rounding(epochs)

    def agrees(steps: np.ndarray) -> bool:
        if steps.min() < 1 or epochs.min() < 0 or epochs.max() <= 0:
            return False
        if (np.diff(steps)[np.diff(epochs) >= 0] <= 0).any():
            return False
        least = (steps - 0.5) / (epochs + half)
        most = (steps + 0.5) / np.maximum(epochs - half, 1e-12)
        return bool(least.max() <= most.min())

    return agrees


def _rounding(epochs: np.ndarray) -> np.ndarray:
    """Rounding error of each epoch: two decimals, or a number of significant digits."""
    texts = [f"{e:.12g}" for e in epochs]
    decimals = max(len(text.partition(".")[2].partition("e")[0]) for text in texts)
    if decimals <= 2:
        return np.full(len(epochs), 0.0051)
    digits = max(len(t.partition("e")[0].replace(".", "").strip("0")) for t in texts)
    size = np.floor(np.log10(np.maximum(np.abs(epochs), 10.0**-decimals)))
    return 0.51 * 10.0 ** (size - max(digits, 4) + 1)


def _is_regular(steps: np.ndarray) -> bool:
    """Whether steps without epochs are those of a trainer that logs every so many."""
    apart = np.diff(steps)
    if len(steps) < 2 or steps[0] < 1 or (apart <= 0).any():
        return False
    return bool((apart[1:] == apart[1:].min()).all() if len(apart) > 1 else steps[0] <= apart[0])
