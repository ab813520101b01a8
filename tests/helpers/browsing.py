"""The dashboard as a process of its own, and Debian's chromium to look at it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from made_up_runs import write_step

import lldscope

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]
DRAWN = ".chart:not(.unmeasured) .js-plotly-plot .main-svg"
CHARTS = "[...document.querySelectorAll('.js-plotly-plot')]"
TOKEN = "shown-by-every-tab"  # of every dashboard here
BEARER = {"Authorization": f"Bearer {TOKEN}"}
WAIT = 180_000  # milliseconds; a loaded machine is slow
slower = 1  # how many times slower every page runs: pytest --slower


class Server:
    """A dashboard over the runs of `root`, which can be restarted on its port. It keeps what it has
    read under `cache`, and not in the cache of the user who runs the tests."""

    def __init__(self, root: Path, cache: Path) -> None:
        self.root, self.cache, self.port = root, cache, 0
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lldscope", "dash", str(self.root), "--port", str(self.port)],
            stderr=subprocess.PIPE, text=True,
            env=os.environ | {"XDG_CACHE_HOME": str(self.cache), "LLDSCOPE_TOKEN": TOKEN},
        )
        assert self.process.stderr is not None
        self.address = self.process.stderr.readline().split()[-1].partition("/?token=")[0]
        self.port = int(self.address.rsplit(":", 1)[1])

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextmanager
def served(root: Path, cache: Path) -> Iterator[str]:
    """The address of a dashboard over the runs of `root`."""
    server = Server(root, cache)
    yield server.address
    server.stop()


def show_token(context: Any, address: str) -> None:
    """Give a browser what a first visit with the token leaves there."""
    port = address.rsplit(":", 1)[1]
    context.add_cookies([{"name": f"lldscope_{port}", "value": TOKEN, "url": address}])


@contextmanager
def open_page(browser: Any, address: str, height: int = 900) -> Iterator[Any]:
    """A fresh tab. Its `faults` are console errors and requests to anybody but the server, and at
    its end there must be none; `unanswered` are its requests for which no answer has come yet."""
    context = browser.new_context(viewport={"width": 1280, "height": height}, base_url=address)
    context.set_default_timeout(WAIT)
    show_token(context, address)
    tab = context.new_page()
    tab.unanswered = set()
    tab.on("request", lambda r: tab.unanswered.add(r))
    for end in ("requestfinished", "requestfailed"):
        tab.on(end, lambda r: tab.unanswered.discard(r))
    faults: list[str] = []
    tab.faults = faults
    local = (address, "data:", "blob:")
    tab.on("console", lambda m: faults.append(m.text) if m.type in ("error", "warning") else None)
    tab.on("pageerror", lambda e: faults.append(str(e)))
    tab.on("request", lambda r: None if r.url.startswith(local) else faults.append(r.url))
    with throttled(tab, slower):
        yield tab
    context.close()
    assert faults == []


@contextmanager
def going_on(path: Path, **about: Any) -> Iterator[None]:
    """A run with made-up numbers that gets step after step; sixty of them at once."""
    end = threading.Event()

    def go_on() -> None:
        with lldscope.Recorder(path, **about) as recorder:
            step = 0
            while not end.wait(0.002 if step < 60 else 0.4):
                write_step(recorder, step, dies=False, at=time.time())
                step += 1

    trainer = threading.Thread(target=go_on)
    trainer.start()
    yield
    end.set()
    trainer.join()


def until(tab: Any, holds: str | Callable[[], bool]) -> None:
    """Wait for a condition: a JavaScript expression, or a function that is called here.

    The expression is evaluated from here, because the page's policy forbids eval in it.
    """
    end = time.monotonic() + WAIT / 1000
    while not (tab.evaluate(holds) if isinstance(holds, str) else holds()):
        assert time.monotonic() < end, f"never came true: {holds}"
        tab.wait_for_timeout(50)  # handles events of the page meanwhile


def load_charts(tab: Any, address: str) -> None:
    """Open a page with charts and wait until all eight are drawn."""
    tab.goto(address)
    until_drawn(tab)


def until_drawn(tab: Any) -> None:
    """Wait until all eight charts are drawn, and as wide as they stay."""
    until(tab, f"{CHARTS}.length === 8 && {CHARTS}.every("
               "c => c._fullLayout && Math.abs(c._fullLayout.width - c.clientWidth) < 2)")


def ranges(tab: Any) -> list[list[float]]:
    """The range of x that each chart shows."""
    return tab.evaluate(f"{CHARTS}.map(c => c._fullLayout.xaxis.range)")


def drag(tab: Any) -> None:
    """Zoom into a part of the first chart, as a reader does."""
    box = tab.locator(".js-plotly-plot .nsewdrag").first.bounding_box()
    y = box["y"] + box["height"] / 2
    tab.mouse.move(box["x"] + box["width"] * 0.2, y)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] * 0.95, y, steps=4)
    tab.mouse.up()


@contextmanager
def throttled(tab: Any, rate: int) -> Iterator[None]:
    """The page runs `rate` times slower, as the browser's developer tools do it."""
    tools = tab.context.new_cdp_session(tab)
    tools.send("Emulation.setCPUThrottlingRate", {"rate": rate})
    yield
    tools.send("Emulation.setCPUThrottlingRate", {"rate": 1})
    tools.detach()
