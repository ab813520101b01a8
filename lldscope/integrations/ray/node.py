"""The actor that writes a run for the ranks of a node of Ray, and how a rank finds it."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...core.errors import LldscopeError
from ...recording.proxy import ProxyRecorder
from ...storage.heartbeats import pid_namespace, process_exited
from ...storage.url import Url

NAMESPACE = "lldscope"  # of Ray, in which the actors have their names
START_SECONDS = 120  # for an actor, before the training begins
LINGER_SECONDS = 45.0  # of an actor without a living rank; longer than a step waits for its end


class NodeRecorder:
    """The actor: the recorders of the ranks on its node."""

    def __init__(self) -> None:
        self._recorders: dict[int, ProxyRecorder] = {}
        self._before: dict[int, Counter[str]] = {}  # what was sealed when a recorder was opened
        self._received: dict[int, Counter[str]] = {}
        self._processes: dict[int, Mapping[str, Any]] = {}
        self._waiting: dict[int, threading.Thread] = {}
        threading.Thread(target=self._watch, args=(_this_actor(),), daemon=True).start()

    def open(
        self, place: str, process: Mapping[str, Any], continued: bool, settings: dict[str, Any]
    ) -> tuple[int, Counter[str], Counter[str]]:
        """The attempt; what of the rank has come, rows of each table and lines of each file; and
        the losses that are known, by reason. A rank that is open already goes on. Raises RunExists
        or LldscopeError."""
        rank = settings["rank"]
        if not (continued and rank in self._recorders):
            recorder = ProxyRecorder(place, process, continued, **settings)
            self._recorders[rank], self._processes[rank] = recorder, process
            self._before[rank] = recorder.sealed() if continued else Counter()
            self._received[rank] = Counter()
        recorder, come = self._recorders[rank], self._before[rank] + self._received[rank]
        return recorder.attempt, come, recorder.known_losses()

    def write(self, rank: int, batch: list[tuple[str, Any]], dropped: Mapping[str, int]) -> None:
        """Rows and lines, in the order of the calls, and what the rank had to drop."""
        recorder, received = self._recorders[rank], self._received[rank]
        for kind, value in batch:
            recorder.put(kind, value)
            received[kind] += 1 if isinstance(value, dict) else len(value)
        for reason, count in dropped.items():
            recorder.lost(reason, count)

    def plan(self, rank: int, steps: int) -> None:
        self._recorders[rank].plan(steps)

    def start(self, rank: int, method: str, *arguments: Any) -> None:
        """Begin to `flush` or `close` a recorder, while other ranks go on. It is over when `ended`
        says so."""
        call = getattr(self._recorders[rank], method)
        self._waiting[rank] = threading.Thread(target=call, args=arguments, daemon=True)
        self._waiting[rank].start()

    def ended(self, rank: int) -> Counter[str] | None:
        """What the recorder has dropped; None while it does what it was told to `start`."""
        return None if self._waiting[rank].is_alive() else self._recorders[rank].dropped

    def forget(self, rank: int) -> None:
        """A recorder that is closed."""
        for of_rank in (self._recorders, self._processes, self._before, self._received):
            of_rank.pop(rank)

    def _watch(self, actor: Any) -> None:
        """Ends the actor when no rank is left that could send anything."""
        used = time.monotonic()
        while time.monotonic() - used < LINGER_SECONDS:
            time.sleep(1.0)
            if not all(process_exited(p) for p in [*self._processes.values()]):
                used = time.monotonic()
        ray.kill(actor)


def _this_actor() -> Any:
    return ray.get_runtime_context().current_actor


class Node:
    """The actor of a run on this node, as one rank sees it. `open` finds it, or makes it."""

    def __init__(self, place: Path | Url, settings: dict[str, Any]) -> None:
        self._place = place.address if isinstance(place, Url) else str(place.resolve())
        self._settings = settings
        self._process = {"pid": os.getpid(), "space": pid_namespace()}
        self.attempt: int | None = None

    def open(self) -> tuple[Counter[str], Counter[str]]:
        """Returns what of this rank has come before, and the losses that are known. Raises
        RunExists, LldscopeError, RayError."""
        node = ray.get_runtime_context().get_node_id()
        name = f"{node} {self._place}"
        self.actor = ray.remote(NodeRecorder).options(
            name=name, namespace=NAMESPACE, get_if_exists=True, lifetime="detached", num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote()  # fmt: skip
        continued = self.attempt is not None
        settings = self._settings | ({"attempt": self.attempt} if continued else {})
        asked = self.actor.open.remote(self._place, self._process, continued, settings)
        try:
            self.attempt, come, losses = ray.get(asked, timeout=START_SECONDS)
        except RayTaskError as error:
            if isinstance(error.cause, LldscopeError):
                raise error.cause from None
            raise
        return come, losses


def opened(node: Node) -> None:
    """Opens it, also where the actor that was found is just ending."""
    for last in (False, False, True):
        try:
            node.open()
            return
        except RayActorError:
            if last:
                raise
            time.sleep(0.5)
