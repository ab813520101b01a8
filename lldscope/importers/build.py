"""Build a run directory from the logs of other trainers.

The run is built beside its directory and renamed when complete, so a reader never sees half of it.
Importing again gives the same run without duplicates; unchanged sources are not read again.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from ..core.errors import LldscopeError
from ..core.trainers import trainer_of
from ..core.version import __version__
from ..storage import heartbeats, json_files, layout
from .detect import Source, by_format, files_under
from .mapping import like_a_reward
from .reading import file_states
from .rollouts import correct_rule
from .run_writer import RunWriter, earlier_import, move_into_place
from .source import Findings, ImportRequest, Rows, Scalars

POLL_SECONDS = 2.0  # between checks of files that grow
_CANDIDATES = 6  # metrics that are offered as the reward
MANY_STARTS = 20  # a run that is started more often is rare
READ_SHARE = 10  # wait at least this many times as long as the last read took


class NothingImported(LldscopeError):
    """The sources hold nothing that can be imported; growing sources may later."""


@dataclass
class ImportSummary:
    """The result of an import."""

    run: Path
    findings: Findings
    formats: dict[str, int]  # format → its paths
    rows: dict[str, int] = field(default_factory=dict)  # table → rows
    steps: int = 0
    attempts: int = 0
    unchanged: bool = False


class Import:
    """One import: `build` makes the run, `follow` keeps up with growing sources."""

    def __init__(
        self, paths: Sequence[Path], run: Path, request: ImportRequest, format_id: str | None
    ) -> None:
        self.paths, self.run, self.request, self.format_name = list(paths), run, request, format_id
        self.findings = Findings(request)
        self.sources = by_format(paths, format_id, self.findings)
        self._writer: RunWriter
        # Number of items in the run so far, and the last item; by format, and by file too if the
        # files of the format are read one by one.
        self._ingested: Counter[tuple[str, Path | None]] = Counter()
        self._last: dict[tuple[str, Path | None], Scalars | Rows] = {}
        self._info: dict[str, Any] = {}
        self._is_growing = False  # so that the last rows may be of a step that is half written

    @property
    def size(self) -> int:
        """Number of bytes to read, for a progress bar."""
        files = chain.from_iterable(self.sources.values())
        return sum(size for file in files for _, size, _ in file_states(file))

    def build(self, advance: Callable[[int], None], *, live: bool = False) -> ImportSummary:
        """Import everything. Raises NothingImported if there is nothing, RunExists if the path
        holds a run that was recorded."""
        before = earlier_import(self.run)
        request = {
            "format": self.format_name,
            "asked": asdict(self.request),
            "lldscope": __version__,
            "sources": [
                {"path": str(path), "format": source.name, "files": file_states(path)}
                for source, paths in self.sources.items()
                for path in paths
            ],
        }
        if not live and before.get("imported", {}).get("request") == request:
            return self._summary(unchanged=True)
        self._is_growing = live
        self.findings.advance = advance
        place = self.run.with_name(f".{self.run.name}.{os.getpid()}{json_files.IN_PROGRESS}")
        shutil.rmtree(place, ignore_errors=True)
        self._writer = RunWriter(place, self.findings)
        try:
            self._ingest()
            if not self._writer.rows:
                raise NothingImported(self._nothing())
            self._describe(request, live)
            move_into_place(place, self.run)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        self._writer.run = self.run
        return self._summary()

    def follow(
        self, stop: Callable[[float], bool], on_update: Callable[[ImportSummary], None]
    ) -> None:
        """Import new content until `stop(seconds to wait)` returns True. A changed file is read
        again from its start, and rows that the run already has are skipped; so every format can be
        followed."""
        self._writer.live = True
        sizes = self._sizes()
        wait = POLL_SECONDS
        while not stop(wait):
            self._beat(closed=False)
            now = self._sizes()
            if now == sizes:
                continue
            began = time.monotonic()
            if any(now.get(path, 0) < size for path, size in sizes.items()):
                self._ingested.clear()  # a file was started over: a new attempt
                self._writer.after = max(self._writer.attempts, default=0)
            sizes = now
            earlier = {*chain.from_iterable(self.sources.values())}
            self.findings = self._writer.findings = Findings(self.request)
            self.sources = by_format(self.paths, self.format_name, self.findings)
            for paths in self.sources.values():
                paths.sort(key=lambda path: path not in earlier)
            self._ingest()
            self._beat(closed=False)
            on_update(self._summary())
            wait = max(POLL_SECONDS, READ_SHARE * (time.monotonic() - began))

    def close(self, reason: str) -> None:
        """Finish after `follow`."""
        self._is_growing = False
        with suppress(LldscopeError):
            self._ingest()
        self._writer.flush()
        self._beat(closed=True)
        self._info |= {"status": "stopped", "reason": reason, "ended": time.time()}
        layout.write_run(self.run, self._info)

    def _ingest(self) -> None:
        """Write the items that the run does not have yet."""
        for source, paths in self.sources.items():
            self._ingest_format(source, paths)
        self._writer.flush()

    def _ingest_format(self, source: Source, paths: Sequence[Path]) -> None:
        counts: Counter[tuple[str, Path | None]] = Counter()
        items = source.read(paths, self.findings)
        for item in _without_open_ends(items) if self._is_growing else items:
            key = source.name, item.origin if isinstance(item, Scalars) else None
            counts[key] += 1
            done = self._ingested[key]
            if counts[key] > done:
                self._writer.write(item)
                self._ingested[key] += 1
            elif counts[key] == done and (more := _more(self._last[key], item)):
                self._writer.write(more)
            if counts[key] == self._ingested[key]:
                self._last[key] = item

    def _sizes(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for path in self.paths:
            for file in files_under(path, Findings()):
                with suppress(OSError):  # gone this moment
                    sizes |= {name: size for name, size, _ in file_states(file)}
        return sizes

    def _beat(self, *, closed: bool) -> None:
        heartbeats.write_heartbeat(self.run, 0, closed=closed, dropped={})

    def _describe(self, request: dict[str, Any], live: bool) -> None:
        """Write run.json of the import. The log does not say how the run ended, so the run counts
        as finished; otherwise it would be shown as stalled."""
        run, writer = self._writer.run, self._writer
        now = time.time()
        rows = any(table in writer.rows for table in ("responses", "actions"))
        times = len(writer.attempts) - 1 + self.findings.returns
        if times >= MANY_STARTS:
            self.findings.note(
                f"The steps go back {times} times, more often than a run is "
                "restarted: several runs seem to have been written to one log at once, and the "
                "result mixes them. Import the log of each separately."
            )
        if not writer.has_reward:
            self.findings.note(_no_reward(self.findings.names))
        first, last = writer.times or (None, None)
        self._info = layout.new_run(
            first or now,
            trainer=f"imported: {self._description}",
            correct_rule=correct_rule(self.request) if rows else None,
            world_size=1,
            attempts=[{"attempt": a, "started": first or now} for a in writer.attempts],
            status="running" if live else "finished",
            reason=None if live else "imported; how it ended is not in the log",
            ended=None if live else last or now,
            imported={
                "request": request,
                "trainer": trainer_of(self.findings.all_names).id,
                "notes": list(self.findings.notes),
                "counted": self.findings.counted,
            },
        )
        if self.findings.planned_steps:
            self._info["planned_steps"] = self.findings.planned_steps
        if live:
            self._info["attempts"][-1]["started"] = now
        heartbeats.write_heartbeat(run, 0, closed=not live, dropped={})
        layout.write_run(run, self._info)

    @property
    def _description(self) -> str:
        return " and ".join(source.description for source in self.sources)

    def _nothing(self) -> str:
        reasons = "; ".join(f"{n} × {why}" for why, n in self.findings.skipped.items())
        if not self.sources:
            sources = ", ".join(str(p) for p in self.paths[:3])
            if all(map(_is_empty, self.paths)):
                return f"Nothing was imported: {sources} is empty."
            what = (
                f"Nothing was imported: {sources} has none of the known formats, which "
                "`lldscope import --formats` lists. Where metrics have names of their own, say "
                "which is the reward: --map reward=NAME."
            )
            left_out = [f"Left out: {reasons}."] if reasons else []
            return "\n".join([what, *left_out, *self.findings.notes])
        what = f"Nothing was imported: read as {self._description}, it has no steps."
        return "\n".join([f"{what} {reasons}".rstrip(), *self.findings.notes])

    def _summary(self, unchanged: bool = False) -> ImportSummary:
        formats = {source.name: len(paths) for source, paths in self.sources.items()}
        if unchanged:
            return ImportSummary(self.run, self.findings, formats, unchanged=True)
        w = self._writer
        return ImportSummary(
            self.run, self.findings, formats, dict(w.rows), w.steps, len(w.attempts)
        )


def _without_open_ends(items: Iterable[Scalars | Rows]) -> Iterator[Scalars | Rows]:
    """All items except means whose attempt is undecided and trailing rollouts, whose step may be
    incomplete."""
    before = None
    for item in items:
        if isinstance(item, Scalars) and item.is_open:
            continue
        if before is not None:
            yield before
        before = item
    if isinstance(before, Scalars):
        yield before


def _is_empty(path: Path) -> bool:
    if path.is_dir():
        return not any(path.iterdir())
    return path.is_file() and path.stat().st_size == 0


def _no_reward(names: Iterable[str]) -> str:
    """The note for a log without a reward; without one a run is never called healthy."""
    sentence = "No reward was found, so this run cannot be judged."
    if not (candidates := like_a_reward(names)):
        return f"{sentence} Where one of the metrics is the reward, name it: --map reward=NAME."
    listed = ", ".join(candidates[:_CANDIDATES])
    return f"{sentence} It may be {listed}: try --map reward={candidates[0]}."


def _more(before: Scalars | Rows, now: Scalars | Rows) -> Scalars | None:
    """Further means of the last step: loggers write them one after the other."""
    if not isinstance(before, Scalars) or not isinstance(now, Scalars):
        return None
    more = {name: value for name, value in now.values.items() if name not in before.values}
    return Scalars(now.step, more, now.time, now.attempt) if more else None
