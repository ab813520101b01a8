"""The thread of a rank that sends its calls to the actor of its node, and never holds them up."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError

from ...core.schema import TABLES
from ...recording.buffers import Call
from ...recording.calls import CallThread
from ...recording.recorder import FLUSH_SECONDS

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger("lldscope")

LOOK_SECONDS = 0.2  # between two looks for calls
PING_SECONDS = 5.0  # without a call, between two questions whether the actor is alive
IN_FLIGHT = 16  # batches that the actor has not accepted yet
BATCH_CALLS = 256
RETRY_SECONDS = 2.0  # between two attempts to make an actor
LOST = "rows lost with the node's recorder, which ended"


class Sender(CallThread):
    """Sends queued calls of one rank."""

    def __init__(
        self, node: Node, rank: int, dropped: Counter[str], done: Callable[[Call], None]
    ) -> None:
        super().__init__("lldscope-ray", dropped, done)
        self._node, self._rank = node, rank
        self._in_flight: deque[Any] = deque()  # of Ray's ObjectRef
        self._sent: Counter[str] = Counter()  # rows of each table, lines of each file
        self._told: Counter[str] = Counter()  # of `dropped`, what the actor knows
        self._lost: Counter[str] = Counter()  # of `sent`, what did not come
        self._last = time.monotonic()
        self._end: tuple[str, str | None] | None = None
        self._until = 0.0
        self._ended = False

    # -- called by the training's thread ------------------------------------------------------

    def plan(self, steps: int) -> None:
        with self._counting:
            self._append("plan", steps)

    def end(self, status: str, reason: str | None, seconds: float) -> bool:
        """Send everything and close the recorder; False if that takes longer than `seconds`."""
        self._until = time.monotonic() + seconds
        self._end = status, reason
        self._wake.set()
        self.join(seconds)
        return self._ended

    # -- the thread ---------------------------------------------------------------------------

    def run(self) -> None:
        while True:
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()
            ending = self._end
            if not ray.is_initialized():  # any call of Ray's would start another one
                self._discard()
                if ending is not None:
                    return
                continue
            try:
                self._round()
                if ending is not None and not self._calls:
                    self._finish(*ending)
                    return
            except RayActorError:
                self._again()
            except Exception as error:
                self.drop(f"Ray: {type(error).__name__}: {error}")
            if ending is not None and time.monotonic() > self._until:
                return

    def _discard(self) -> None:
        waiting = [self._take() for _ in range(len(self._calls))]
        for kind, value in waiting:
            if kind == "flush":
                value.set()
        if waiting:
            self.drop("calls after the end of Ray", len(waiting))

    def _round(self) -> None:
        """Send what waits, as far as the actor takes it."""
        self._settle(wait=False)
        while self._calls and len(self._in_flight) < IN_FLIGHT:
            self._send(self._batch())
            self._settle(wait=False)
        idle = time.monotonic() - self._last > PING_SECONDS
        if not self._in_flight and (idle or self._untold()):
            self._send([])

    def _untold(self) -> Counter[str]:
        return Counter(self.dropped) - self._told

    def _batch(self) -> list[tuple[str, Any]]:
        """The next calls as Arrow tables and lines."""
        batch: list[tuple[str, Any]] = []
        while self._calls and len(batch) < BATCH_CALLS:
            kind, value = self._take()
            if kind in ("flush", "plan"):
                self._send(batch)
                batch = []
                self._ask(kind, value)
                continue
            try:
                sendable = self._rows(kind, value)
            except Exception as error:
                self.drop(f"{kind}: {type(error).__name__}: {error}")
                continue
            if sendable is not None:
                batch.append((kind, sendable))
            time.sleep(0)  # yields to a training thread that waits for the interpreter
        return batch

    def _rows(self, kind: str, value: Any) -> Any:
        if kind not in TABLES:
            return value
        assert self._node.attempt is not None
        return self._rows_of(kind, value, self._node.attempt, self._rank)

    def _send(self, batch: list[tuple[str, Any]]) -> None:
        for kind, value in batch:
            self._sent[kind] += 1 if isinstance(value, dict) else len(value)
        news = self._untold()
        self._told += news
        self._last = time.monotonic()
        self._in_flight.append(self._node.actor.write.remote(self._rank, batch, dict(news)))

    def _ask(self, kind: str, value: Any) -> None:
        """What comes after all that was sent before."""
        if kind == "plan":
            self._in_flight.append(self._node.actor.plan.remote(self._rank, value))
            return
        try:
            self._done_within(FLUSH_SECONDS, "flush")
        finally:
            value.set()

    def _done_within(self, seconds: float, *what: Any) -> Counter[str] | None:
        """What the recorder has dropped, once it has done that; None if it takes longer."""
        until = time.monotonic() + seconds
        actor, dropped = self._node.actor, None
        ray.get(actor.start.remote(self._rank, *what), timeout=seconds)
        while dropped is None and (left := until - time.monotonic()) > 0:
            time.sleep(0.05)
            dropped = ray.get(actor.ended.remote(self._rank), timeout=left)
        return dropped

    def _settle(self, wait: bool) -> None:
        """Forget batches that the actor has accepted. Raises what Ray raises for one of them."""
        while self._in_flight:
            (first, *_) = self._in_flight
            timeout = self._until - time.monotonic() if wait else 0
            if not ray.wait([first], timeout=max(0, timeout))[0]:
                return
            self._in_flight.popleft()
            ray.get(first)

    def _finish(self, status: str, reason: str | None) -> None:
        self._settle(wait=True)
        if self._untold():
            self._send([])
        left = self._until - time.monotonic()
        dropped = self._done_within(left, "close", status, reason)
        if dropped is not None:
            self.dropped.update(dropped - self.dropped)
            self._node.actor.forget.remote(self._rank)
            self._ended = True

    def _again(self) -> None:
        """The actor has ended, or does not answer: find it or make another one, and count what did
        not come."""
        log.warning("lldscope: the recorder of this node has ended; another one is started")
        self._in_flight.clear()
        while True:
            try:
                come, losses = self._node.open()
                break
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
                self._warn(why, "the recorder of this node cannot be started: %s", why)
                late = self._end is not None and time.monotonic() > self._until
                if late or not ray.is_initialized():
                    return
                time.sleep(RETRY_SECONDS)
        self._told &= losses
        lost = self._sent - come - self._lost
        self._lost += lost
        for kind, count in lost.items():
            self.drop(f"{kind}: {LOST}", count)
