"""The doctor's look at those who write a run: how they ended, what they lost, their clocks."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from ..storage import files, heartbeats, json_files, layout
from ..storage.manifest import manifest_path
from .files import name_of
from .findings import WHY, Finding, Location

CLOCK_SECONDS = 60.0  # clocks of several machines may differ by this much
LOW_DISK = 1 << 30  # bytes


def check_writers(at: Location) -> Iterator[Finding]:
    odd: dict[str, str] = {}
    beats = heartbeats.read_heartbeats(at.run, odd)
    for where, why in odd.items():
        yield Finding("warning", "heartbeat", where, f"{why}.")
    for name in at.names:
        attempt, rank = name
        if name in at.manifest.closed or _closed_before_there_were_marks(at, name, beats):
            continue
        where = f"attempt {attempt}, rank {rank}"
        if name in at.living:
            yield Finding("note", "recording", where, f"{at.living[name]}.")
            continue
        last = max(
            (p.last_step for p in at.manifest.parts if (p.attempt, p.rank) == name),
            default=None,
        )
        after = "nothing was sealed" if last is None else f"the last sealed step is {last}"
        yield Finding(
            "warning",
            "not-closed",
            where,
            f"the process ended without closing its recorder; {after}, and rows after it that "
            "were not sealed yet, about a second's worth, are lost.",
        )
    for path in sorted(at.run.glob(f"**/*{json_files.IN_PROGRESS}")):
        small = path.parent in (at.run, at.run / heartbeats.HEARTBEAT_DIR)
        if small and not at.living:
            yield Finding(
                "note", "leftover", name_of(at.run, path), f"{WHY['unfinished']}.",
                "remove it", action=lambda p=path: p.unlink(missing_ok=True),  # type: ignore[misc]
            )  # fmt: skip
    if at.info.get("status") == "running" and at.names and not at.living:
        yield Finding(
            "note", "status", layout.RUN_FILE, "it says running, but no process records the run."
        )


def _closed_before_there_were_marks(
    at: Location, name: tuple[int, int], beats: dict[int, dict[str, Any]]
) -> bool:
    """Runs of earlier versions say only in the last heartbeat that they were closed."""
    beat = beats.get(name[1])
    return beat is not None and "attempt" not in beat and bool(beat.get("closed"))


def check_dropped_rows(at: Location) -> Iterator[Finding]:
    for rank, beat in sorted(heartbeats.read_heartbeats(at.run).items()):
        dropped = beat.get("dropped")
        for what, count in dropped.items() if isinstance(dropped, dict) else ():
            yield Finding("warning", "dropped", f"rank {rank}", f"{count} × {what}.")
    free = shutil.disk_usage(at.run).free
    if at.living and free < LOW_DISK:
        yield Finding(
            "warning", "disk", str(at.run), f"{free >> 20} MiB are left on its file system."
        )


def check_clocks(at: Location) -> Iterator[Finding]:
    """Times that run backwards; only ages shown to people and `stalled` depend on them."""
    now = time.time()
    for rank, beat in sorted(heartbeats.read_heartbeats(at.run).items()):
        if beat["time"] > now + CLOCK_SECONDS:
            ahead = beat["time"] - now
            yield Finding(
                "warning", "clock", f"rank {rank}", f"its heartbeat is {ahead:.0f} s ahead of "
                "this machine's clock: a stall would be seen that much later.",
            )  # fmt: skip
    for attempt, rank in at.names:
        path = manifest_path(at.run, attempt, rank)
        times = [
            line["time"]
            for line, _ in files.read_lines(path, at.run)[0]
            if isinstance(line, dict) and isinstance(line.get("time"), int | float)
        ]
        back = max((a - b for a, b in pairwise(times)), default=0.0)
        if back > 1.0:
            yield Finding(
                "note", "clock", f"attempt {attempt}, rank {rank}",
                f"the machine's clock was set back by {back:.0f} s while it recorded.",
            )  # fmt: skip
