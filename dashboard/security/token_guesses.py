"""Wrong tokens, counted by address, so that guessing takes longer than anybody has."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

FREE = 10  # wrong tokens of one address before it has to wait
SECONDS = 5.0  # after which one more is allowed
MOST_ADDRESSES = 1000  # that are remembered, the last to be wrong


class Guesses:
    """How many wrong tokens an address may still show: FREE, and one more every SECONDS."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._wrong: OrderedDict[str, tuple[float, float]] = OrderedDict()  # count, when

    def wait(self, address: str | None) -> float:
        """Seconds until a token of this address is looked at; 0 where it is now."""
        with self._lock:
            return max(0.0, (self._count(_network(address)) - FREE + 1) * SECONDS)

    def was_wrong(self, address: str | None) -> None:
        who = _network(address)
        with self._lock:
            self._wrong[who] = self._count(who) + 1, self._clock()
            self._wrong.move_to_end(who)
            while len(self._wrong) > MOST_ADDRESSES:
                self._wrong.popitem(last=False)

    def _count(self, who: str) -> float:
        count, at = self._wrong.get(who, (0.0, 0.0))
        return max(0.0, count - (self._clock() - at) / SECONDS)


def _network(address: str | None) -> str:
    """An address, of IPv6 its first half: whoever has one has the rest of them."""
    try:
        ip = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return "unknown"
    if ip.version == 4:
        return str(ip)
    return str(ipaddress.ip_network((ip, 64), strict=False))
