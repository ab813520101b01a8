"""What trainers print: a line a step.

- verl (0.2 to 0.9.1, `utils/logger/aggregate_logger.py`): `step:12 - actor/entropy:0.53 - …`, with
  `np.float64(0.53)` on numpy 2, anywhere in what Ray collects from many processes.
- A dictionary or a JSON object, with its step in it or before it; ROLL's (`utils/tracking.py`) is
  `metrics_tag: {"step": 3, "metrics": {…}}`.
- `Step 12/200 | loss: 0.1 | reward: 0.5`, `[step 12] reward=0.5`, `[name] 12/200 | reward=0.5`.
- TRL and other Hugging Face Trainers: `{'loss': 0.1, 'reward': 0.5, …, 'epoch': 0.02}`, without the
  step.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from ..storage.json_files import parse
from .mapping import meaning
from .metrics import StepReader, inner, numbers
from .progress_bar import Bars
from .reading import lines, number, strip_ansi
from .rows import Candidate
from .source import Findings, Scalars, in_attempts

_LONGEST = 1 << 20  # bytes of a line
SEARCH_BYTES = 64 << 20  # a log begins with its configuration and the noise of start-up

_VERL = re.compile(rb"(?:^|[^\w/])step:(\d{1,10}) - ([\w@./-]+:.*)")
_NUMPY = re.compile(rb"\bnp\.\w+\(|\)")
_DICT = re.compile(rb"\{'[\w./-]+': ")  # how a printed dictionary begins
_EPOCH = b"'epoch': "  # what is last in it
_ENTRY = re.compile(rb"'([^']{1,200})': (?:np\.\w+\()?'?([-+\w.]+)'?\)?")
_STEP = re.compile(
    rb"(?i)\b(?:global_)?(?:step|iter(?:ation)?)\b[\s:=#]*(\d{1,10})(?:/(\d{1,10}))?"
)
_COUNT = re.compile(rb"(?:^|\])\s*(\d{1,10})/(\d{1,10})\s*\|")  # without a word for it
_IN_STEP = b"te"  # what every word for it holds
_PAIR = re.compile(
    rb"([A-Za-z][\w./@-]{0,99})\s?[:=]\s?([-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf))(?![\w:])"
)
_TOTAL = re.compile(rb"Total training steps: (\d{1,10})")
_SUMMARY = "train_runtime"  # of what the Trainer prints at its end

Step = tuple[int, dict[str, float]]


class Console:
    name = "console"
    description = "console output with a line a step: verl's, a dictionary, or name=value"

    def looks_like(self, file: Candidate) -> bool:
        return _anywhere(file, lambda line: _may_hold_a_step(line) and _names_a_signal(line))

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars]:
        yield from in_attempts(self._means(paths, findings), findings)

    def _means(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars]:
        for path in paths:
            is_verls = False  # then other lines that name a step are noise
            for line, is_complete in lines(path, findings, longest=_LONGEST):
                if not _may_hold_a_step(line):
                    continue
                if total := _TOTAL.search(line):
                    findings.planned_steps = int(total[1])
                line = strip_ansi(line)
                if match := _VERL.search(line):
                    is_verls, pair = True, _verls(match, is_complete, findings)
                else:
                    pair = None if is_verls else step_in(line, findings)
                if pair:
                    step, values = pair
                    yield Scalars(step, values)


def _may_hold_a_step(line: bytes) -> bool:
    return _IN_STEP in line or (b"/" in line and b"|" in line)


def _names_a_signal(line: bytes) -> bool:
    """Whether a line is a step with a name that is a signal's: many lines name a step."""
    pair = step_in(line, Findings())
    return pair is not None and any(map(meaning, pair[1]))


def step_in(line: bytes, findings: Findings) -> Step | None:
    """Step and numbers of a line; None where one of them is not there."""
    if match := _VERL.search(line):
        return _verls(match, True, findings)
    return _dictionary(line) or _pairs(line, findings)


def _dictionary(line: bytes) -> Step | None:
    """Step and numbers of a dictionary in a line; None where one of them is not there."""
    begins, ends = line.find(b"{"), line.rfind(b"}")
    if begins < 0 or ends < begins:
        return None
    text, nothing = line[begins : ends + 1], Findings()
    try:
        row = parse(text)
    except ValueError:
        row = _dict_values(text, nothing)
    if not isinstance(row, dict):
        return None
    before = _STEP.search(line[:begins])
    pair = StepReader().of(row) or (("", int(before[1])) if before else None)
    if pair is None or pair[1] >= 2**31:
        return None
    values = numbers(inner(row), nothing, {pair[0]})
    return (pair[1], values) if values else None


def _pairs(line: bytes, findings: Findings) -> Step | None:
    """Step and numbers of a line such as `Step 3/200 | loss: 0.1 | reward: 0.5`."""
    step = _STEP.search(line) or _COUNT.search(line)
    if step is None or int(step[1]) >= 2**31:
        return None
    pairs = _PAIR.findall(line[step.end() :]) or _PAIR.findall(line[: step.start()])
    values = {n.decode(): float(v) for n, v in pairs if v.count(b".") < 2}
    if not values:
        return None
    if step[2]:
        findings.planned_steps = int(step[2])
    return int(step[1]), values


def _verls(match: re.Match[bytes], is_complete: bool, findings: Findings) -> Step | None:
    step, values = int(match[1]), _verl_values(match[2], is_complete, findings)
    if step >= 2**31 or not values:
        findings.skip("metric lines without a metric")
        return None
    return step, values


def _verl_values(text: bytes, is_complete: bool, findings: Findings) -> dict[str, float]:
    values: dict[str, float] = {}
    entries = (_NUMPY.sub(b"", text) if b"np." in text else text).rstrip().split(b" - ")
    if not is_complete and len(entries) > 1:
        entries.pop()  # its number may lack digits
        findings.skip("last metrics of a line that is half written")
    for entry in entries:
        name, _, value = entry.rpartition(b":")
        try:
            values[name.decode("utf-8", "replace")] = float(value)
        except ValueError:
            findings.skip("metrics whose value is not a number")
    values.pop("", None)
    return values


class TrlConsole:
    name = "trl-console"
    description = "console output of TRL or another Hugging Face Trainer"

    def looks_like(self, file: Candidate) -> bool:
        return _anywhere(file, lambda line: _EPOCH in line and _printed(line) is not None)

    def read(self, paths: Sequence[Path], findings: Findings) -> Iterator[Scalars]:
        """The step is the progress bar's where the file has it, or else the number of the printed
        dictionary. Where the epoch goes back, the run was resumed from a checkpoint; so does the
        count."""
        attempt, epochs = 1, list[float]()
        by_file = [self._steps(path, findings) for path in paths]
        steps = chain.from_iterable(by_file if all(by_file) else ())
        for path in paths:
            for line, _ in lines(path, findings, _EPOCH, _LONGEST):
                values = _metrics(line, findings)
                if values is None:
                    continue
                epoch = values.pop("epoch")
                if epochs and epoch < epochs[-1]:
                    attempt += 1
                    del epochs[bisect_left(epochs, epoch) :]
                epochs.append(epoch)
                yield Scalars(next(steps, len(epochs)), values, attempt=attempt)
        if all(by_file):
            findings.note("The steps are those of the progress bar or of logging_steps.")
        else:
            findings.note(
                "The text does not hold the steps: they are the printed lines, counted from 1. "
                "With logging_steps above 1, import trainer_state.json instead."
            )

    def _steps(self, path: Path, findings: Findings) -> list[int]:
        """The steps of the dictionaries in a file; empty where neither its progress bars nor a
        printed `logging_steps` says."""
        bars, nothing = Bars(), Findings()
        for line, _ in lines(path, nothing, longest=_LONGEST):
            bars.saw(line)
            if _EPOCH not in line:
                continue
            if values := _metrics(line, nothing):
                bars.printed(values["epoch"])
            elif printed := _printed(strip_ansi(line)):
                summary = _dict_values(printed, nothing)
                bars.end = summary["epoch"] if _SUMMARY in summary else bars.end
        if steps := bars.steps():
            findings.planned_steps = bars.total
        return steps


def _metrics(line: bytes, findings: Findings) -> dict[str, float] | None:
    """What was printed of a step; None for a line without that, counted where it is damaged."""
    printed = _printed(strip_ansi(line))
    values = _dict_values(printed, findings) if printed else {}
    if not math.isfinite(values.get("epoch", math.nan)):
        findings.skip("printed dictionaries that are cut, or without an epoch")
        return None
    is_other = _SUMMARY in values or any(n.startswith("eval_") for n in values)
    return None if is_other else values


def _printed(line: bytes) -> bytes | None:
    """The dictionary in a line, from its first brace to that which ends it after the epoch."""
    begins, epoch = _DICT.search(line), line.rfind(_EPOCH)
    ends = line.find(b"}", epoch)
    if begins is None or not 0 <= begins.start() < epoch < ends or b"{" in line[epoch:ends]:
        return None
    return line[begins.start() : ends + 1]


def _dict_values(text: bytes, findings: Findings) -> dict[str, float]:
    values: dict[str, float] = {}
    for name, value in _ENTRY.findall(text):
        if (result := number(value.decode())) is None:
            findings.skip("metrics whose value is not a number")
        else:
            values[name.decode("utf-8", "replace")] = result
    return values


def _anywhere(file: Candidate, matches: Callable[[bytes], bool]) -> bool:
    """Whether a line of the first SEARCH_BYTES of a text matches."""
    start = file.head.lstrip()
    if not start or b"\0" in start[:4096] or start.startswith((b'{"', b"PAR1", b"{\n")):
        return False
    size = 0
    for line, _ in lines(file.path, Findings(), longest=_LONGEST):
        size += len(line)
        if (b":" in line or b"=" in line) and matches(strip_ansi(line)):
            return True
        if size > SEARCH_BYTES:
            break
    return False
