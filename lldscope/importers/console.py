"""What trainers print.

`records` reads records. This module decides which shapes of a file are its metrics, and finds the
steps of rows that do not name theirs. Known shapes, among others:

- verl (0.2 to 0.9.1, `utils/logger/aggregate_logger.py`): `step:12 - actor/entropy:0.53 - …`, with
  `np.float64(0.53)` on numpy 2, anywhere in what Ray collects from many processes.
- A dictionary or a JSON object, with its step in it or before it; ROLL's (`utils/tracking.py`) is
  `metrics_tag: {"step": 3, "metrics": {…}}`, slime's `rollout 3: {…}` and `step 3: {…}`.
- `Step 12/200 | loss: 0.1 | reward mean: 0.5`, `Epoch:[1/2](3/100), Reward: 0.5`, or such a line
  and its entries below it, nested (EasyR1) or not (NeMo-RL); tables, of markdown and of notebooks.
- TRL and other Hugging Face Trainers: `{'loss': 0.1, 'reward': 0.5, …, 'epoch': 0.02}`, without the
  step.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from .mapping import meaning
from .metrics import SUMMARY
from .reading import is_notebook, text_lines
from .records import Reader, Record
from .rows import Candidate
from .source import Findings, Scalars, in_attempts

SEARCH_BYTES = 64 << 20  # a log begins with its configuration and the noise of start-up
_SURVEYED = 1000  # records with a signal that are looked at before a file is read
_MOST_SHAPES, _MOST_NAMES = 1000, 20_000  # that are surveyed
_LONGEST_UNKNOWN = 0.05  # of the records of a shape without a signal whose step may go back
_VERLS = frozenset(("verl",))  # beside which other lines that name a step are noise
_PER_RESPONSE = re.compile(rb"loss_agg_mode\W+(seq-mean-token-sum)")  # verl's and ROLL's setting
ROWS = "rows"  # the unit if a text does not tell its steps


class Console:
    name = "console"
    description = "console output: lines, dictionaries, tables or blocks with the metrics of a step"

    def looks_like(self, file: Candidate) -> bool:
        start = file.head.lstrip()
        is_json = start.startswith((b'{"', b"{\n")) and not is_notebook(file.path)
        if not start or is_json or b"\0" in start[:4096] or start.startswith(b"PAR1"):
            return False
        return bool(_survey(file.path, 1).accepted)

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars]:
        yield from in_attempts(self._means(paths, findings), findings)

    def _means(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars]:
        """Rows with their steps. A row without a step takes the step of the progress bar, or of the
        file's other evidence, or is counted; if its epoch goes back, so does the count."""
        epochs = list[float]()
        layouts = {path: _survey(path, _SURVEYED) for path in paths}
        unnamed = [_steps(p, it, findings) for p, it in layouts.items() if it.is_unnamed]
        are_known = all(unnamed)
        steps = chain.from_iterable(unnamed if are_known else ())
        for path, layout in layouts.items():
            in_epochs = _Epochs()
            reader = Reader(findings, layout.mark)
            for record in reader.records(_settings_seen(path, findings)):
                if not layout.accepts(record, findings):
                    continue
                values = record.values
                if record.step is not None:
                    step, planned = in_epochs.of(record)
                    findings.planned_steps = planned or findings.planned_steps
                    step //= layout.every.get(record.shape, 1)
                    yield Scalars(step, values)
                    continue
                epoch = values.pop("epoch", math.nan)
                if epochs and epoch < epochs[-1]:
                    del epochs[bisect_left(epochs, epoch) :]
                epochs.append(epoch)
                if values:
                    yield Scalars(next(steps, len(epochs)), values)
        if unnamed and are_known:
            findings.note(
                "The rows do not name their steps: these are by the progress bar, logging_steps, "
                "the epochs or the learning rate."
            )
        elif unnamed:
            findings.counted = ROWS
            findings.note(
                "The text does not hold the steps: they are its rows, counted from 1. With "
                "logging_steps above 1, import trainer_state.json instead."
            )


def _settings_seen(path: Path, findings: Findings) -> Iterator[tuple[bytes, bool]]:
    """The lines of a file; notes how metrics are averaged, if a line says so."""
    for line, is_complete in text_lines(path, findings):
        if not findings.aggregation and (match := _PER_RESPONSE.search(line)):
            findings.aggregation = match[1].decode()
            findings.note("Entropy, KL and losses are sums over responses, no means over tokens "
                          f"(loss_agg_mode={findings.aggregation}): they keep their names.")
        yield line, is_complete


class _Epochs:
    """Steps that restart in each epoch, counted from the start of the run."""

    def __init__(self) -> None:
        self._epoch = self._last = self._before = 0

    def of(self, record: Record) -> tuple[int, int | None]:
        """The step of a record, and the planned number of steps."""
        step, total = record.step or 0, record.total
        if record.epoch is None:
            return step, total
        epoch, epochs = record.epoch
        if epoch > self._epoch and step <= self._last:
            self._before += total or self._last
        elif epoch < self._epoch:
            self._before = 0
        self._epoch, self._last = epoch, step
        return self._before + step, total and total * epochs


@dataclass
class _Shape:
    """Statistics of the records of one shape."""

    n: int = 0
    signals: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    first: int = 0
    last: int = -1
    highest: int = 0
    back: int = 0  # how often the step went back

    @property
    def weight(self) -> int:
        return self.n * len(self.signals)


@dataclass
class _Layout:
    """The shapes of a file's metrics.

    every       shape → how many of its steps make one of the others: updates of a rollout
    is_unnamed  whether the rows do not name their steps
    has_epochs  whether such rows name their epochs
    """

    accepted: frozenset[str] = frozenset()
    every: dict[str, int] = field(default_factory=dict)
    is_unnamed: bool = False
    has_epochs: bool = False

    @property
    def mark(self) -> bytes | None:
        """Text that the first line of every record contains; None if they have none in common."""
        if self.accepted == _VERLS:
            return b"tep"
        return b"{" if all(re.fullmatch(r"dict(?: [\w-]+)?", n) for n in self.accepted) else None

    def accepts(self, record: Record, findings: Findings) -> bool:
        if record.shape not in self.accepted or (record.step is None) != self.is_unnamed:
            return False
        if SUMMARY in record.values:
            return False
        if self.is_unnamed:
            if _is_other(record):
                return False
            if self.has_epochs and not math.isfinite(record.values.get("epoch", math.nan)):
                findings.skip("rows without an epoch")
                return False
        if record.texts:
            findings.skip("metrics whose value is not a number", record.texts)
        return True


def _is_other(record: Record) -> bool:
    """Whether a row is the Trainer's summary or an evaluation."""
    return SUMMARY in record.values or any(n.startswith("eval_") for n in record.values)


def _survey(path: Path, most: int) -> _Layout:
    """Decide from the first `most` records which shapes of a file are its metrics."""
    named, unnamed = defaultdict[str, _Shape](_Shape), defaultdict[str, _Shape](_Shape)
    size, n_signals, signal_of = 0, 0, dict[str, str | None]()
    findings = Findings()

    def lines() -> Iterator[tuple[bytes, bool]]:
        nonlocal size
        for line, is_complete in text_lines(path, findings):
            size += len(line)
            if size > SEARCH_BYTES:
                return
            yield line, is_complete

    for record in Reader(findings).records(lines()):
        shapes = unnamed if record.step is None else named
        if len(shapes) >= _MOST_SHAPES and record.shape not in shapes:
            continue
        if record.step is None and _is_other(record):
            continue
        shape = shapes[record.shape]
        for name in record.values:
            if name not in signal_of:
                signal_of[name] = m.signal if (m := meaning(name)) else None
        signals = {signal for name in record.values if (signal := signal_of[name])}
        shape.n += 1
        shape.signals |= signals
        shape.names |= record.values.keys()
        if record.step is not None:
            shape.first = record.step if shape.n == 1 else min(shape.first, record.step)
            shape.back += record.step < shape.last
            shape.last = record.step
            shape.highest = max(shape.highest, record.step)
        n_signals += bool(signals)
        if len(signal_of) > _MOST_NAMES:
            break
        enough = min(most, 10) if "verl" in named else most
        if n_signals >= enough and _choose(named, unnamed).accepted:
            break
    return _choose(named, unnamed)


def _choose(named: dict[str, _Shape], unnamed: dict[str, _Shape]) -> _Layout:
    if named.get("verl") and named["verl"].signals:
        return _Layout(_VERLS)
    # A block that comes once is a configuration.
    rows = {n: s for n, s in unnamed.items() if s.n > 1 or (n == "dict" and "epoch" in s.names)}
    best_row = max(rows.values(), key=lambda s: s.weight, default=_Shape())
    ranked = sorted(named.items(), key=lambda item: (item[0] == "bar", -item[1].weight))
    main = ranked[0][1] if ranked else _Shape()
    if best_row.weight > main.weight:
        shapes = frozenset(n for n, s in rows.items() if s is best_row)
        return _Layout(shapes, is_unnamed=True, has_epochs="epoch" in best_row.names)
    if not main.signals:
        return _Layout()
    accepted, signals, names, every = set[str](), set[str](), set[str](), dict[str, int]()
    for name, shape in ranked:
        is_rollouts = name.startswith("dict") and shape.highest and _is_dense(shape)
        times = round((main.highest + 1) / (shape.highest + 1)) if is_rollouts else 1
        if shape.signals & signals or (not shape.signals and shape.names & names):
            continue
        if shape is not main and times > 1 and _is_dense(main) and ranked[0][0].startswith("dict"):
            every[ranked[0][0]] = times
        elif shape is not main and abs(shape.highest - main.highest) > main.highest / 2 + 5:
            continue
        if not shape.signals and shape.back > _LONGEST_UNKNOWN * shape.n:
            continue
        accepted.add(name)
        signals |= shape.signals
        names |= shape.names
    return _Layout(frozenset(accepted), every)


def _is_dense(shape: _Shape) -> bool:
    return shape.n > 2 and shape.n >= 0.8 * (shape.highest - shape.first + 1)


def _steps(path: Path, layout: _Layout, findings: Findings) -> list[int]:
    """The steps of the rows of a file; empty if nothing in it determines them."""
    nothing = Findings()
    reader = Reader(nothing, layout.mark)
    places, epochs, rates = list[int](), list[float](), list[float]()
    for record in reader.records(text_lines(path, nothing)):
        values = record.values
        if SUMMARY in values and record.step is None:
            reader.bars.end = values.get("epoch", reader.bars.end)
        elif layout.accepts(record, nothing):
            places.append(record.place)
            epochs.append(values.get("epoch", math.nan))
            lr = (v for n, v in values.items() if (m := meaning(n)) and m.signal == "lr")
            rates.append(next(lr, math.nan))
    if steps := reader.bars.steps(places, epochs, rates):
        findings.planned_steps = reader.bars.total or findings.planned_steps
    return steps
