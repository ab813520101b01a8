"""The dashboard beside clients that send and read slowly, and with many tabs at once.

python -m tests.bench.slow_clients
"""

from __future__ import annotations

import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
from browsing import BEARER, Server
from made_up_runs import write_run

HALF, UNREAD, TABS = 850, 50, 100  # questions never finished, answers never read, tabs
LOOKS = 10


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_run(Path(folder) / "runs" / "dying", 90, dies=True)
        server = Server(Path(folder) / "runs", Path(folder) / "cache")
        try:
            _look(server, 3, 1)
            print("one tab, alone:", _look(server, LOOKS, 1), _memory(server))
            slow = [_slow(server, whole=n >= HALF) for n in range(HALF + UNREAD)]
            print(f"beside {len(slow)} slow ones:", _look(server, LOOKS, 1), _memory(server))
            for one in slow:
                one.close()
            print(f"{TABS} tabs at once:", _look(server, 1, TABS), _memory(server))
        finally:
            server.stop()


def _slow(server: Server, whole: bool) -> socket.socket:
    """A client that does not finish its question, or one that does not read the answer."""
    one = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    question = b"GET /assets/plotly/plotly-basic.min.js HTTP/1.1\r\nHost: localhost\r\n"
    one.sendall(question + b"\r\n" if whole else question)
    return one


def _look(server: Server, looks: int, tabs: int) -> str:
    """How long the page of a run takes, in milliseconds."""
    took: list[float] = []

    def look() -> None:
        for _ in range(looks):
            began = time.monotonic()
            request = Request(f"{server.address}/run/dying", headers=BEARER)
            with urlopen(request, timeout=300) as answer:
                answer.read()
            took.append(1000 * (time.monotonic() - began))

    threads = [threading.Thread(target=look) for _ in range(tabs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return f"{median(took):.0f} ms (at most {max(took):.0f})"


def _memory(server: Server) -> str:
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8")
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return f"{int(line.split()[1]) >> 10} MB"


if __name__ == "__main__":
    main()
