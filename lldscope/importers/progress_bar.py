"""The steps of printed metrics, from the progress bar that the Hugging Face Trainer draws.

The dictionaries it prints hold the epoch and not the step. The bar, in the same file where standard
error went there too, has the step, and is drawn anew right after each dictionary. Where the two
streams were written in blocks of their own the bar's place says nothing; then the run's length, by
the bar, and the epoch in the summary at its end say how many steps an epoch has. Whatever is found
must agree with every epoch, or it is not used.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

# transformers 5.19, tqdm: without words before it, as those of data sets have.
_BAR = re.compile(rb"(?:^|[\r\n]|\x1b\[A)\s*\d{1,3}%\|[^|\r]{0,300}\| (\d{1,10})/(\d{1,10}) \[")
_EVERY = re.compile(rb"\blogging_steps['\"]?\s*[=: ]\s*(\d{1,6})\b")  # settings that were printed
_MOST_BARS = 8  # of different lengths that are counted
_ROUNDED = 0.0051  # epochs were printed with two decimals
_DIGITS = 1e-3  # and are printed with four significant digits, relative


class Bars:
    """What was seen in a file, in order: `saw` gets its lines, `printed` the dictionaries."""

    def __init__(self) -> None:
        self.end: float | None = None  # the epoch of the summary
        self._every: int | None = None  # steps from one dictionary to the next, by the settings
        self._epochs: list[float] = []
        self._after: list[int] = []  # step of the first bar after each dictionary
        self._last = (0, 0)  # step and length of the last bar
        self._seen: Counter[int] = Counter()  # bars by their length
        self._is_waiting = False  # for the bar after a dictionary

    def saw(self, line: bytes) -> None:
        if (setting := _EVERY.search(line)) and int(setting[1]) > 0:
            self._every = int(setting[1])
        for bar in _BAR.finditer(line) if b"%|" in line else ():
            step, total = int(bar[1]), int(bar[2])
            if step > total or (total not in self._seen and len(self._seen) >= _MOST_BARS):
                continue
            self._seen[total] += 1
            self._last = step, total
            if self._is_waiting:
                self._after[-1] = step
                self._is_waiting = False

    def printed(self, epoch: float) -> None:
        self._epochs.append(epoch)
        self._after.append(self._last[0])
        self._is_waiting = True

    @np.errstate(over="ignore", invalid="ignore")  # an epoch may be any number
    def steps(self) -> list[int]:
        """The step of each dictionary; empty where the bars do not tell."""
        choices = [self._after]
        done, total = self._last
        if self._epochs and self.end and done == total == self.total:
            steps = np.array(self._epochs) * total / self.end
            if (np.abs(steps) < 2**31).all():
                every = max(1, round(float(np.median(np.diff(steps, prepend=0)))))
                choices += [(np.rint(steps / n) * n).astype(int).tolist() for n in (every, 1)]
        if self._every is not None:
            choices.append([self._every * (i + 1) for i in range(len(self._epochs))])
        return next((steps for steps in choices if steps and _agree(steps, self._epochs)), [])

    @property
    def total(self) -> int | None:
        """The planned steps: the length of the bar that was drawn most often."""
        return next((total for total, _ in self._seen.most_common(1)), None)


def _agree(steps: Sequence[int], epochs: Sequence[float]) -> bool:
    """Whether epochs are as these steps would have them, and no two in a row have one step."""
    n, e = np.array(steps, float), np.array(epochs, float)
    if n.min() < 1 or e.min() <= 0:
        return False
    rises = np.diff(e) > 0
    if (np.diff(n)[rises] <= 0).any():
        return False
    of_an_epoch = n[-1] / e[-1] if len(n) == 1 else n[e.argmax()] / e.max()
    off = np.abs(n - e * of_an_epoch)
    # With two decimals many steps share an epoch; then it must at least rise with them.
    return bool((off <= 0.5 + of_an_epoch * np.maximum(_ROUNDED, e * _DIGITS)).all())
