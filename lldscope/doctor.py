"""Whether a run directory is whole: what is on disk against what the manifests promise.

`examine` only looks. Damage is what takes rows away that were once sealed; a warning is what
somebody should know or tidy up; a note explains. `repair` never touches what a living recorder
writes, moves damaged parts aside rather than deleting them, and lists parts again whose manifest
line is lost. What it cannot bring back it leaves named.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from . import compaction, files, parts, store
from .damage import damage
from .doctor_files import (
    lost_rows,
    name_of,
    quarantine,
    readable,
    set_aside,
    wrong_content,
)
from .errors import LldscopeError, NewerSchema
from .manifest import (
    Part,
    manifest_names,
    manifest_path,
    quarantined,
)
from .schema import SCHEMA_VERSION

Severity = Literal["damage", "warning", "note"]

CLOCK_SECONDS = 60.0  # clocks of several machines may differ by this much
LOW_DISK = 1 << 30  # bytes


@dataclass
class Finding:
    """One thing about a run: what, where, and what `--repair` does about it (None: nothing)."""

    severity: Severity
    what: str
    where: str
    message: str
    repair: str | None = None
    repaired: bool = False
    action: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    def plain(self) -> dict[str, Any]:
        names = ("severity", "what", "where", "message", "repair", "repaired")
        return {name: getattr(self, name) for name in names}


@dataclass
class Examination:
    """What is in a run directory, and everything there is to say about it."""

    run: Path
    parts: int = 0
    rows: dict[str, int] = field(default_factory=dict)  # of the sound parts, by table
    findings: list[Finding] = field(default_factory=list)

    def worst(self) -> Severity | None:
        """The most severe of what is not repaired."""
        left = {f.severity for f in self.findings if not f.repaired}
        order: tuple[Severity, ...] = ("damage", "warning", "note")
        return next((s for s in order if s in left), None)


def examine(run: Path) -> Examination:
    """Look at every file of a run. Raises RunNotFound, NewerSchema."""
    return _Look(run).result


def repair(examination: Examination) -> Examination:
    """Do what the findings offer, in their order, and look again. Raises OSError."""
    done = [f for f in examination.findings if f.action is not None]
    for finding in done:
        assert finding.action is not None
        finding.action()
        finding.repaired = True
    again = examine(examination.run)
    again.findings = done + again.findings
    return again


class _Look:
    """One look at a run."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.result = Examination(run)
        self.info = self._read_info()
        self.manifest = store.read_manifest(run)
        self.names = manifest_names(run)
        self.living = {
            name: why
            for name in self.names
            if (why := compaction.still_writing(run, *name, self.manifest))
        }
        for look in (self._manifests, self._parts, self._strays, self._writers, self._clocks):
            self.result.findings += look()
        self.result.findings += self._losses()

    # -- run.json ---------------------------------------------------------------------------------

    def _read_info(self) -> dict[str, Any]:
        odd: dict[str, str] = {}
        try:
            info = store.read_run(self.run, odd)
        except NewerSchema:
            raise
        except LldscopeError as error:
            if not (self.run / store.MANIFEST_DIR).is_dir():
                raise  # not a run
            self.result.findings.append(
                Finding(
                    "damage",
                    "run-json",
                    store.RUN_FILE,
                    str(error),
                    "write a new one; configuration and the rule for correct are lost",
                    action=self._rebuild_info,
                )
            )
            return {}
        self.result.findings += [
            Finding("warning", "run-json", where, f"{why}.") for where, why in odd.items()
        ]
        return info

    def _rebuild_info(self) -> None:
        path = self.run / store.RUN_FILE
        if path.exists():
            set_aside(self.run, path, store.RUN_FILE, "it could not be read")
        now = time.time()
        attempts = sorted({attempt for attempt, _ in self.names})
        began = {
            a: min(manifest_path(self.run, *n).stat().st_mtime for n in self.names if n[0] == a)
            for a in attempts
        }
        info = {
            "schema": SCHEMA_VERSION,
            "id": os.urandom(16).hex(),
            "name": self.run.name,
            "created": min(began.values(), default=now),
            "world_size": 1 + max((rank for _, rank in self.names), default=0),
            "attempts": [{"attempt": a, "started": began[a]} for a in attempts],
            "status": "stopped",
            "reason": "run.json was lost and written anew by lldscope doctor",
            "ended": now,
        }
        store.replace_file(path, store.to_json(info, indent=1))

    # -- manifests and parts ----------------------------------------------------------------------

    def _manifests(self) -> Iterator[Finding]:
        for where, why in self.manifest.damaged.items():
            name = next((n for n in self._known() if where.startswith(_manifest(*n))), None)
            if name is None or name in self.living:
                yield Finding("damage", "manifest", where, f"{why}.")
            else:
                yield Finding(
                    "damage", "manifest", where, f"{why}.",
                    "keep the sound lines, and list sound parts that are listed no more",
                    action=lambda n=name: self._mend(*n),  # type: ignore[misc]
                )  # fmt: skip
        for path in sorted((self.run / store.MANIFEST_DIR).glob("*")):
            if not store.is_small_file(f"{store.MANIFEST_DIR}/{path.name}"):
                yield Finding("note", "foreign", name_of(self.run, path), "no file of lldscope.")

    def _known(self) -> set[tuple[int, int]]:
        """Every (attempt, rank) of which there is a trace."""
        strays = parts.stray_files(self.run, self.manifest)
        return {*self.names, *(s.name.owner for s in strays if s.name is not None)}

    def _mend(self, attempt: int, rank: int) -> None:
        """Put an empty line in the place of each that cannot be read, so that none is missing."""
        path = manifest_path(self.run, attempt, rank)
        told = store.counted_lines(self.run).get(path.name, 0)
        lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
        empty = files.with_checksum(store.to_json({"parts": {}})).rstrip()
        bad = {
            w.rpartition(" ")[2]
            for w in self.manifest.damaged
            if w.startswith(_manifest(attempt, rank))
        }
        kept = [empty if str(number) in bad else line for number, line in enumerate(lines, 1)]
        kept += [empty] * (told - len(kept))
        if path.exists():
            name = f"{store.MANIFEST_DIR}-{path.name}"
            shutil.copyfile(path, path.with_name(path.name + store.IN_PROGRESS))
            set_aside(self.run, path.with_name(path.name + store.IN_PROGRESS), name, "bad lines")
        store.replace_file(path, b"".join(line + b"\n" for line in kept).decode())

    def _parts(self) -> Iterator[Finding]:
        """Every part that counts, read whole: size, checksum, footer, rows, steps, columns."""
        rows: Counter[str] = Counter()
        steps: Counter[tuple[int, int, int]] = Counter()
        for part in self.manifest.parts:
            where = f"{part.table}/{part.file}"
            wrong = damage(self.run, part) or wrong_content(self.run, part, steps)
            if wrong and (part.attempt, part.rank) in self.living and self._merged_away(part):
                continue
            if wrong is None:
                rows[part.table] += part.rows
            elif quarantined(self.run, part):
                yield Finding("warning", "quarantine", where, f"{lost_rows(part)}: {wrong}.")
            elif part.path(self.run).exists() and (part.attempt, part.rank) not in self.living:
                yield Finding(
                    "damage",
                    "part",
                    where,
                    f"{lost_rows(part)}: {wrong}.",
                    "move it into quarantine/",
                    action=lambda p=part, w=wrong: quarantine(self.run, p, w),  # type: ignore[misc]
                )
            else:
                yield Finding("damage", "part", where, f"{lost_rows(part)}: {wrong}.")
        self.result.parts, self.result.rows = len(self.manifest.parts), dict(rows)
        for (attempt, rank, step), times in sorted(steps.items()):
            if times > 1:
                yield Finding(
                    "warning",
                    "repeated-step",
                    f"attempt {attempt}, rank {rank}",
                    f"step {step} was recorded {times} times: its sums count {times} times. Call "
                    "`step()` once per step.",
                )

    def _merged_away(self, part: Part) -> bool:
        """Whether a living recorder has let go of a part since the manifest was read."""
        return part not in store.read_manifest(self.run).parts

    def _strays(self) -> Iterator[Finding]:
        """Files that do not count: leftovers of a kill, and rows that can be listed again."""
        lost = {path.split(" ")[0] for path in self.manifest.damaged}
        whole: dict[tuple[int, int, int, int], list[tuple[parts.StrayFile, Part]]] = {}
        for stray in parts.stray_files(self.run, self.manifest):
            where = name_of(self.run, stray.path)
            if stray.name is None:
                yield Finding("note", "foreign", where, "no file of lldscope.")
            elif stray.name.owner in self.living:
                continue  # its writer is about to list or to remove it
            elif stray.kind == "unsealed" and (part := readable(self.run, stray)):
                seal = (*stray.name.owner, stray.name.first, stray.name.last)
                whole.setdefault(seal, []).append((stray, part))
            elif stray.kind == "unsealed":
                why = "it was never listed, and cannot be read"
                yield Finding(
                    "warning", "leftover", where, f"{why}.", "move it into quarantine/",
                    action=lambda s=stray, w=why: set_aside(  # type: ignore[misc]
                        self.run, s.path, f"{s.table}-{s.path.name}", w
                    ),
                )  # fmt: skip
            else:
                yield Finding(
                    "note", "leftover", where, f"{_WHY[stray.kind]}.", "remove it",
                    action=lambda s=stray: s.path.unlink(missing_ok=True),  # type: ignore[misc]
                )  # fmt: skip
        for (attempt, rank, first, last), found in sorted(whole.items()):
            yield self._unlisted(attempt, rank, found, first < last, lost)

    def _unlisted(
        self,
        attempt: int,
        rank: int,
        found: list[tuple[parts.StrayFile, Part]],
        merged: bool,
        lost: set[str],
    ) -> Finding:
        """Sound parts of one seal that no manifest line lists.

        The part of `steps` is written last: with it the seal is whole. Without it only a manifest
        that has lost lines can be the reason to list the others.
        """
        manifest = _manifest(attempt, rank)
        rows = sum(part.rows for _, part in found)
        where = ", ".join(name_of(self.run, stray.path) for stray, _ in found)
        if manifest in lost or merged or any(part.table == "steps" for _, part in found):
            return Finding(
                "damage" if manifest in lost else "warning", "unlisted", where,
                f"{rows} rows that are whole and that no manifest lists.", "list them",
                action=lambda: parts.seal(self.run, attempt, rank, [part for _, part in found]),
            )  # fmt: skip

        def aside() -> None:
            for stray, part in found:
                name = f"{part.table}-{part.file}"
                set_aside(self.run, stray.path, name, "part of a seal that was not completed")

        return Finding(
            "warning", "leftover", where,
            f"{rows} rows of a seal that was not completed; the process ended in it.",
            "move them into quarantine/", action=aside,
        )  # fmt: skip

    # -- writers ----------------------------------------------------------------------------------

    def _writers(self) -> Iterator[Finding]:
        odd: dict[str, str] = {}
        beats = store.read_heartbeats(self.run, odd)
        for where, why in odd.items():
            yield Finding("warning", "heartbeat", where, f"{why}.")
        for name in self.names:
            attempt, rank = name
            if name in self.manifest.closed or self._closed_before_there_were_marks(name, beats):
                continue
            where = f"attempt {attempt}, rank {rank}"
            if name in self.living:
                yield Finding("note", "recording", where, f"{self.living[name]}.")
                continue
            last = max(
                (p.last_step for p in self.manifest.parts if (p.attempt, p.rank) == name),
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
        for path in sorted(self.run.glob(f"**/*{store.IN_PROGRESS}")):
            small = path.parent in (self.run, self.run / store.HEARTBEAT_DIR)
            if small and not self.living:
                yield Finding(
                    "note", "leftover", name_of(self.run, path), f"{_WHY['unfinished']}.",
                    "remove it", action=lambda p=path: p.unlink(missing_ok=True),  # type: ignore[misc]
                )  # fmt: skip
        if self.info.get("status") == "running" and self.names and not self.living:
            yield Finding(
                "note", "status", store.RUN_FILE, "it says running, but no process records the run."
            )

    def _closed_before_there_were_marks(
        self, name: tuple[int, int], beats: dict[int, dict[str, Any]]
    ) -> bool:
        """Runs of earlier versions say only in the last heartbeat that they were closed."""
        beat = beats.get(name[1])
        return beat is not None and "attempt" not in beat and bool(beat.get("closed"))

    def _losses(self) -> Iterator[Finding]:
        for rank, beat in sorted(store.read_heartbeats(self.run).items()):
            dropped = beat.get("dropped")
            for what, count in dropped.items() if isinstance(dropped, dict) else ():
                yield Finding("warning", "dropped", f"rank {rank}", f"{count} × {what}.")
        free = shutil.disk_usage(self.run).free
        if self.living and free < LOW_DISK:
            yield Finding(
                "warning", "disk", str(self.run), f"{free >> 20} MiB are left on its file system."
            )

    def _clocks(self) -> Iterator[Finding]:
        """Times that run backwards; only ages shown to people and `stalled` depend on them."""
        now = time.time()
        for rank, beat in sorted(store.read_heartbeats(self.run).items()):
            if beat["time"] > now + CLOCK_SECONDS:
                ahead = beat["time"] - now
                yield Finding(
                    "warning", "clock", f"rank {rank}", f"its heartbeat is {ahead:.0f} s ahead of "
                    "this machine's clock: a stall would be seen that much later.",
                )  # fmt: skip
        for attempt, rank in self.names:
            path = manifest_path(self.run, attempt, rank)
            times = [
                line["time"]
                for line, _ in files.read_lines(path, self.run)[0]
                if isinstance(line, dict) and isinstance(line.get("time"), int | float)
            ]
            back = max((a - b for a, b in pairwise(times)), default=0.0)
            if back > 1.0:
                yield Finding(
                    "note", "clock", f"attempt {attempt}, rank {rank}",
                    f"the machine's clock was set back by {back:.0f} s while it recorded.",
                )  # fmt: skip


_WHY = {
    "unfinished": "a file that was never finished; its writer ended in the middle of it",
    "merged away": "its rows are in a merged part",
    "unpublished": "a merged part that was never listed; what it was made of still counts",
}


def _manifest(attempt: int, rank: int) -> str:
    return f"{store.MANIFEST_DIR}/a{attempt}-r{rank}.jsonl"
