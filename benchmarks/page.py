"""Pages of the dashboard in chromium: when they are ready, and what they take of the processor."""

from __future__ import annotations

import os
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

ROUNDS = 5
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]

DRAWN = ".js-plotly-plot .scatterlayer .trace"
ALL_DRAWN = (
    "[...document.querySelectorAll('.js-plotly-plot')]"
    ".filter(c => c.querySelectorAll('.scatterlayer .trace').length >= {n}).length >= 8"
)


def measure(browser: Browser, address: str, ready: Callable[[Page], Any]) -> float:
    """Seconds from asking for a page, in a fresh profile, until it is ready."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    start = time.perf_counter()
    page.goto(address, wait_until="commit")
    ready(page)
    seconds = time.perf_counter() - start
    page.context.close()
    return seconds


def chart(page: Page) -> None:
    """The first chart drawn."""
    page.wait_for_selector(DRAWN, state="attached", timeout=600_000)


def all_charts(page: Page, lines: int = 1) -> None:
    """All charts drawn, each with so many lines."""
    while not page.evaluate(ALL_DRAWN.format(n=lines)):
        page.wait_for_timeout(20)


def processor(browser: Browser, address: str, ready: Callable[[Page], Any], server: int) -> float:
    """Seconds of processor time until a page is ready, of its main thread and of the process
    `server`: what hardly moves with other work on the machine."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    watch = Watch(page, server)
    page.goto(address, wait_until="commit")
    ready(page)
    seconds = sum(watch.spent())
    page.context.close()
    return seconds


class Watch:
    """Processor time of a page's main thread and of its server, from now on."""

    def __init__(self, page: Page, server: int) -> None:
        self._tools, self._server = page.context.new_cdp_session(page), server
        self._tools.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._before = self._now()

    def spent(self) -> tuple[float, float]:
        """Seconds of the page and of the server."""
        page, server = self._now()
        return page - self._before[0], server - self._before[1]

    def _now(self) -> tuple[float, float]:
        metrics = self._tools.send("Performance.getMetrics")["metrics"]
        page = next(m["value"] for m in metrics if m["name"] == "TaskDuration")
        return float(page), spent_by(self._server)


def spent_by(process: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    ticks = int(fields[11]) + int(fields[12])  # utime, stime
    return ticks / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(url: str) -> None:
    for _ in range(200):
        try:
            urllib.request.urlopen(url, timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"nothing answers at {url}")
