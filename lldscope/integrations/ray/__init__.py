"""Recording from Ray: ranks send Arrow batches to one actor per node, which writes the run.

    from lldscope.integrations.ray import RayRecorder

    recorder = RayRecorder("s3://bucket/runs/mine", rank=rank, world_size=world_size)
    recorder.actions(step=step, …)  # the calls of lldscope.Recorder
    recorder.close()

The actor needs no CPU of Ray's, is shared by the ranks of a run on its node, and outlives each of
them: what it was sent is sealed when a rank is killed. If the actor itself ends, the next batch
makes another one, which goes on in the same attempt.
"""

from __future__ import annotations

import atexit
import logging
from collections import Counter
from pathlib import Path
from typing import Any

from ray.exceptions import RayError

from ...core.errors import LldscopeError
from ...recording.attempt import check_numbers, plain_end
from ...recording.buffers import Copier
from ...recording.recorder import CLOSE_SECONDS, Recorder, never_raises
from ...storage.url import Url, place_of
from .node import Node, opened
from .sender import Sender

log = logging.getLogger("lldscope")


class RayRecorder(Recorder):
    """`lldscope.Recorder` for a process of Ray's: an actor of its node writes the run.

    Arguments and calls are those of `Recorder`. A call copies its columns and returns; a thread
    sends them, and what it cannot send in time is dropped and counted, in `dropped` and in the run.
    A path must be one that every node has; otherwise take an address on an object store. Close it
    before the task ends or the actor is killed: what was not sent by then is lost.

    Only the constructor raises: RunExists or LldscopeError. It waits for the actor of the node.
    """

    def __init__(
        self, path: str | Path | Url, *, rank: int = 0, world_size: int = 1, resume: bool = False,
        attempt: int | None = None, **about: Any,
    ) -> None:  # fmt: skip
        check_numbers(rank=rank, world_size=world_size, attempt=attempt)
        self.rank, self.place = rank, place_of(path)
        self.dropped = Counter()
        settings = {
            "rank": rank, "world_size": world_size, "resume": resume, "attempt": attempt, **about
        }  # fmt: skip
        node = Node(self.place, settings)
        try:
            opened(node)
        except RayError as error:
            raise LldscopeError(f"Ray cannot start the recorder of this node: {error}") from error
        assert node.attempt is not None
        self.attempt = node.attempt
        self._open_here()
        self._copier = Copier()
        self._writer: Any = Sender(node, rank, self.dropped, self._copier.done)
        self._writer.start()
        atexit.register(self.close, "stopped", "the process ended without closing the recorder")

    @never_raises
    def plan(self, steps: int) -> None:
        if self.rank == 0 and not self._cannot_write():
            self._writer.plan(steps)

    @never_raises
    def close(self, status: str = "finished", reason: str | None = None) -> None:
        """Send everything, and have the actor seal it and record how the run ended. Idempotent."""
        if self._cannot_write():
            return
        self._closed = True
        atexit.unregister(self.close)
        if not self._writer.end(*plain_end(status, reason), CLOSE_SECONDS):
            log.error(
                "lldscope: the last rows of rank %d may not be on disk: the recorder of this node "
                "has not said so", self.rank,
            )  # fmt: skip
