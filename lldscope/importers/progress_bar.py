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
from dataclasses import dataclass, field

import numpy as np

# transformers 5.19, tqdm: without words before it, as those of data sets have.
_BAR = re.compile(rb"(?:^|[\r\n]|\x1b\[A)\s*\d{1,3}%\|[^|\r]{0,300}\| (\d{1,10})/(\d{1,10}) \[")
_EVERY = re.compile(rb"\blogging_steps['\"]?\s*[=: ]\s*(\d{1,6})\b")  # settings that were printed
_MOST_BARS = 8  # of different lengths that are remembered between two dictionaries
_ROUNDED = 0.0051  # epochs were printed with two decimals
_DIGITS = 1e-3  # and are printed with four significant digits, relative


@dataclass
class Bars:
    """What was seen in a file, in order: `saw` gets its lines, `printed` the dictionaries."""

    epochs: list[float] = field(default_factory=list)
    end: float | None = None  # the epoch of the summary
    every: int | None = None  # steps from one dictionary to the next, by the settings
    _before: list[dict[int, int]] = field(default_factory=list)  # total → step, last before it
    _after: list[dict[int, int]] = field(default_factory=list)  # … and first after it
    _last: dict[int, int] = field(default_factory=dict)
    _seen: Counter[int] = field(default_factory=Counter)

    def saw(self, line: bytes) -> None:
        if (setting := _EVERY.search(line)) and int(setting[1]) > 0:
            self.every = int(setting[1])
        if b"%|" not in line:
            return
        for bar in _BAR.finditer(line):
            step, total = int(bar[1]), int(bar[2])
            if step > total or (total not in self._last and len(self._last) >= _MOST_BARS):
                continue
            self._last[total] = step
            self._seen[total] += 1
            if self._after:
                self._after[-1].setdefault(total, step)

    def printed(self, epoch: float) -> None:
        self.epochs.append(epoch)
        self._before.append(dict(self._last))
        self._after.append({})

    def steps(self) -> list[int] | None:
        """The step of each dictionary; None where the bars do not tell."""
        for total, _ in self._seen.most_common():
            before = [last.get(total, 0) for last in self._before]
            pairs = zip(self._after, before, strict=True)
            for read in ([after.get(total, step) for after, step in pairs], before):
                if read and _agree(read, self.epochs):
                    return read
        for total, _ in self._seen.most_common():
            if self.end and self._last[total] == total:
                estimate = _snapped([epoch * total / self.end for epoch in self.epochs])
                if estimate and _agree([*estimate, total], [*self.epochs, self.end]):
                    return estimate
        if self.every is not None:
            multiples = [self.every * (i + 1) for i in range(len(self.epochs))]
            return multiples if multiples and _agree(multiples, self.epochs) else None
        return None

    @property
    def total(self) -> int | None:
        """The planned steps: the length of the bar that was drawn most often."""
        return next((total for total, _ in self._seen.most_common(1)), None)


def _snapped(steps: Sequence[float]) -> list[int]:
    """Whole steps; multiples of logging_steps where they are nearly that."""
    every = round(float(np.median(np.diff(steps)))) if len(steps) > 1 else 1
    near = [round(step / every) * every for step in steps] if every > 1 else []
    off = [abs(a - b) for a, b in zip(near, steps, strict=False)]
    fits = near and all(
        o <= min(0.4 * every, 1 + b * _DIGITS) for o, b in zip(off, near, strict=True)
    )
    return near if fits else [round(step) for step in steps]


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
