"""The dashboard on the sample runs, in chromium: asked for → first chart drawn."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import urllib.request
from statistics import median

from playwright.sync_api import sync_playwright

from lldscope.runs import find_runs

from .check import SAMPLES

ROUNDS = 5
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def main() -> None:
    port = free_port()
    command = [sys.executable, "-m", "lldscope", "dash", str(SAMPLES), "--port", str(port)]
    started = time.perf_counter()
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(f"http://127.0.0.1:{port}/")
        print(f"dashboard answers after     {time.perf_counter() - started:.2f} s")
        draw(port)
    finally:
        server.terminate()
        server.wait()


def draw(port: int) -> None:
    name = find_runs(SAMPLES)[0].name
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        seconds = []
        for _ in range(ROUNDS):
            page = browser.new_page()  # a fresh profile each time: nothing is cached
            begun = time.perf_counter()
            page.goto(f"http://127.0.0.1:{port}/run/{name}")
            page.wait_for_selector(".js-plotly-plot .scatterlayer .trace", timeout=30_000)
            seconds.append(time.perf_counter() - begun)
            page.close()
        browser.close()
    shown = ", ".join(f"{s:.2f}" for s in seconds)
    print(f"first chart of {re.sub('[^a-z0-9-]', '', name):12} {median(seconds):.2f} s ({shown})")


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


if __name__ == "__main__":
    main()
