"""The dashboard beside clients that send and read slowly, and with many tabs at once.

python -m benchmarks.slow_clients
"""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit
from urllib.request import urlopen

from .dashboard import served
from .long_run import write_long_run

HALF, UNREAD, TABS = 850, 50, 100  # questions never finished, answers never read, tabs
LOOKS = 10


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        write_long_run(root / "long", 90, 16, 2)
        with served(root, f"{folder}/cache") as (address, server):
            _look(address, 3, 1)
            print("one tab, alone:", _look(address, LOOKS, 1), _memory(server))
            slow = [_slow(address, complete=n >= HALF) for n in range(HALF + UNREAD)]
            print(f"beside {len(slow)} slow ones:", _look(address, LOOKS, 1), _memory(server))
            for one in slow:
                one.close()
            print(f"{TABS} tabs at once:", _look(address, 1, TABS), _memory(server))


def _slow(address: str, complete: bool) -> socket.socket:
    """A client that does not finish its question, or one that does not read the answer."""
    one = socket.create_connection(("127.0.0.1", urlsplit(address).port), timeout=60)
    question = b"GET /assets/plotly/plotly-basic.min.js HTTP/1.1\r\nHost: localhost\r\n"
    one.sendall(question + b"\r\n" if complete else question)
    return one


def _look(address: str, looks: int, tabs: int) -> str:
    """How long the page of a run takes, in milliseconds."""
    took: list[float] = []

    def look() -> None:
        for _ in range(looks):
            began = time.monotonic()
            with urlopen(f"{address}/run/long", timeout=300) as answer:
                answer.read()
            took.append(1000 * (time.monotonic() - began))

    threads = [threading.Thread(target=look) for _ in range(tabs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return f"{median(took):.0f} ms (at most {max(took):.0f})"


def _memory(server: int) -> str:
    status = Path(f"/proc/{server}/status").read_text(encoding="utf-8")
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return f"{int(line.split()[1]) >> 10} MB"


if __name__ == "__main__":
    main()
