"""A run in the list of runs: its state and a few numbers, small enough for thousands of runs."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import repeat, starmap
from pathlib import Path
from typing import Any

import numpy as np

from ..core.charts import EVIDENCE
from ..core.errors import LldscopeError
from ..core.schema import signals_in
from ..diagnosis.detectors import Columns, Series, floats
from ..diagnosis.evidence import Rows
from ..runs import Run, open_run, title
from .health import RunState, check

LAST = tuple(signals_in("list"))
LATE = 20  # steps of the means of reward and Δ by which the list is sorted
SHARE, READERS = 20, 8  # runs that a process reads at a time, and processes at most
MOST_POINTS = 40  # of a line: the list is sent with a hundred lines
Line = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Summary:
    """A line of the list. `name` is the run's path under the root, `title` its display name.
    `state` is None and `error` the reason if the run cannot be read; only firing alarms are kept.
    `lines`: reward and Δ as thinned points (row, value). `last`: the last measured values of LAST
    and EVIDENCE."""

    name: str
    title: str
    group: str | None = None
    state: RunState | None = None
    last_time: float | None = None  # when the last row was written, Unix time
    reward: float | None = None  # mean of the last steps
    delta: float | None = None
    lines: tuple[Line, Line] = ((), ())
    last: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    tags: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The summary as plain data, without its name."""
        state = self.state and self.state.to_dict()
        return {k: v for k, v in vars(self).items() if k != "name"} | {"state": state}

    @property
    def row(self) -> dict[str, Any]:
        """The line of `lldscope runs`; for a run that cannot be opened, the reason."""
        state = self.state
        if state is None:
            return {"run": self.name, "path": self.name, "error": self.error}
        names = (
            "verdict", "phase", "evidence", "last_step", "life", "last_row_age_seconds", "damaged",
        )
        return {
            "run": self.title,
            "path": self.name,
            "group": self.group,
            "tags": list(self.tags),
            "verdict_word": state.sign.word,
            **{name: getattr(state, name) for name in names},
            "firing": [alert.rule for alert in state.firing],
        }

    @classmethod
    def from_dict(cls, name: str, plain: dict[str, Any]) -> Summary:
        """The summary stored by `to_dict`, also after JSON, with the age of its last row as of
        now."""
        state = RunState.from_dict(plain["state"])
        if (last_time := plain["last_time"]) is not None:
            state = replace(state, last_row_age_seconds=time.time() - last_time)
        overrides = {"lines": tuple(plain["lines"]), "tags": tuple(plain["tags"]), "state": state}
        return cls(name, **{**plain, **overrides})


def read_summary(name: str, path: Any, root: Any) -> Summary:
    (summary,) = read_summaries({name: path}, root)
    return summary


def read_many(places: Mapping[str, Any], root: Any) -> Iterator[Summary]:
    """The summaries of several runs by name, in any order. More than two SHAREs are read by a
    process on each core: judging a run is mostly Python, so threads would not help."""
    names = [*places]
    shares = [{n: places[n] for n in names[i : i + SHARE]} for i in range(0, len(names), SHARE)]
    workers = min(os.cpu_count() or 1, len(shares) - 1, READERS)
    if workers < 2:
        yield from read_summaries(places, root)
        return
    from concurrent.futures import ProcessPoolExecutor  # which few lists need
    from multiprocessing import get_context

    # Ctrl-C reaches all processes of a terminal: this one ends the others.
    ignore = (signal.SIGINT, signal.SIG_IGN)
    pool = ProcessPoolExecutor(workers, get_context("spawn"), signal.signal, ignore)
    try:
        for summaries in pool.map(_read_share, shares, repeat(root)):
            yield from summaries
    finally:
        pool.shutdown(cancel_futures=True)


def _read_share(places: Mapping[str, Any], root: Any) -> list[Summary]:
    return [*read_summaries(places, root)]


def read_summaries(places: Mapping[str, Any], root: Any) -> Iterator[Summary]:
    """The same in this process. Signals of short runs are computed together."""
    from ..query.contents import RunBatch

    folder = root if isinstance(root, Path) else Path(tempfile.gettempdir())  # of remote copies
    waiting: dict[str, Run] = {}
    with closing(RunBatch(folder.resolve())) as batch:
        for name, path in places.items():
            try:
                run = open_run(path, root, batch=batch)
            except LldscopeError as error:
                yield Summary(name, name, error=str(error))
                continue
            if run.has_signals:
                yield _summary(name, run)
                continue
            waiting[name] = run
            if batch.is_full:
                batch.compute()
                yield from starmap(_summary, waiting.items())
                waiting = {}
        batch.compute()
        yield from starmap(_summary, waiting.items())


def _summary(name: str, run: Run) -> Summary:
    try:
        with run:
            if not run.has_signals:  # a run in the batch could not be read
                run.refresh()
            state, columns = check(run), run.columns()
            series = {signal: floats(columns, signal) for signal in LAST}
            last = last_measured(series | {EVIDENCE: run.assess().last.decay.evidence})
            return summarize(name, run.info, state, columns, last)
    except LldscopeError as error:
        return Summary(name, name, error=str(error))


def summarize(
    name: str, info: Mapping[str, Any], state: RunState, signals: Columns, last: dict[str, float]
) -> Summary:
    """The summary of a run from its parts."""
    reward, delta = floats(signals, "reward"), floats(signals, "delta_correct")
    times = last_measured({"time": floats(signals, "time")})
    return Summary(
        name,
        title(info, name),
        info.get("group"),
        replace(state, alerts=state.firing, pending=(), phases=(), look_alike_evidence={}),
        times.get("time"),
        _late(reward),
        _late(delta),
        (thin(reward), thin(delta)),
        last,
        tags=tuple(info.get("tags") or ()),
    )


def last_measured(series: Mapping[str, Series]) -> dict[str, float]:
    finite = {name: values[np.isfinite(values)] for name, values in series.items()}
    return {name: float(values[-1]) for name, values in finite.items() if len(values)}


def _late(values: Series) -> float | None:
    """Mean of the last LATE measured steps."""
    finite = values[np.isfinite(values)][-LATE:]
    return float(finite.mean()) if len(finite) else None


def extremes(values: Series, most: int) -> Rows:
    """The rows of at most `most` points to draw. Of more points, these are the lowest and the
    highest of every 2, 4, 8 …, so that no peak is lost."""
    if len(values) <= most:
        return np.arange(len(values))
    size = 2
    while -(-len(values) // size) > most // 2:
        size *= 2
    bins = np.pad(values, (0, -len(values) % size), mode="edge").reshape(-1, size)
    ends = [size * np.arange(len(bins)) + end for end in (bins.argmin(axis=1), bins.argmax(axis=1))]
    return np.unique(np.concatenate(ends))


def thin(values: Series) -> Line:
    """Measured rows with their values; of too many, the extremes."""
    rows = np.flatnonzero(np.isfinite(values))
    rows = rows[extremes(values[rows], MOST_POINTS)]
    return [(row, float(f"{values[row]:.4g}")) for row in rows.tolist()]
