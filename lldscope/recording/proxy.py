"""The recorder of a process that sends its rows to this one, as Arrow tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..storage import journal, json_files
from ..storage.layout import ALERTS_FILE, EVENTS_FILE
from ..storage.manifest import ManifestFile
from ..storage.url import Url
from .recorder import Recorder
from .writer import Writer


class ProxyRecorder(Recorder):
    """Records a rank that is another process of this machine.

    `process` is that process, as a heartbeat names it. With `continued` it goes on in `attempt`,
    where a ProxyRecorder of the same rank, whose process has ended, has stopped; raises
    LldscopeError if that cannot be. Everything else is `Recorder`'s.
    """

    _may_continue = True

    def __init__(
        self, path: str | Path, process: Mapping[str, Any], continued: bool = False, **settings: Any
    ) -> None:
        self._principal, self._continued = dict(process), continued
        super().__init__(path, **settings)

    def put(self, kind: str, value: pa.Table | dict[str, Any]) -> None:
        """Rows of a table, as `buffers.to_arrow` makes them for this attempt and rank, or a line of
        a file, as `Recorder.event` makes it."""
        if self._cannot_write() or not self._writer.enqueue(kind, value):
            self._refuse(kind)

    def lost(self, reason: str, count: int) -> None:
        """Count what the rank had to drop."""
        self._writer.drop(reason, count)

    def known_losses(self) -> Counter[str]:
        """By reason, those of a writer before included."""
        return self._writer.losses()

    def sealed(self) -> Counter[str]:
        """Table or file → rows or lines of this attempt and rank that are on disk; without the
        events that tell of losses, which the rank did not send."""
        written = ManifestFile(self.path, self.attempt, self.rank)
        written.read()
        count = Counter[str]()
        for part in written.active.values():
            count[part.table] += part.rows
        owner = journal.owner_name(self.attempt, self.rank)
        for file in (EVENTS_FILE, ALERTS_FILE):
            lines, _ = json_files.read_lines(self.path / file, self.path)
            own = [x for x in lines if str(x.get("line")).partition(":")[0] == owner]
            count[file] = sum(line.get("kind") != "dropped" for line in own)
        return count

    def _begin(
        self, resume: bool, attempt: int | None, world_size: int, info: dict[str, Any]
    ) -> None:
        if not self._continued:
            super()._begin(resume, attempt, world_size, info)
            return
        assert attempt is not None
        self.attempt = attempt
        if isinstance(self.place, Url):
            from .spool import Spool

            self._spool = Spool.left(self.place, self.rank, attempt)
            self.path = self._spool.path
        else:
            self.path = self.place

    def _make_writer(self) -> Writer:
        return Writer(
            self.path, self.attempt, self.rank, self.dropped, self._copier.done, self._spool,
            self._principal, self._continued,
        )  # fmt: skip
