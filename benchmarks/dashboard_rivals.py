"""TensorBoard and Trackio on the scalars of the same run: first chart, and what a refresh costs."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import Browser

from lldscope.runs import open_run

from .page import free_port, wait_for

SCALARS = (
    "correct_logp", "incorrect_logp", "delta_correct", "reward", "entropy", "grad_norm",
    "grad_norm_max", "response_tokens", "valid_searches", "zero_signal_share", "invalid_share",
)
STEPS = 5000
ROUNDS = 3
SECONDS = 20.0  # of live rows

# Runs in the rivals' own environment: writes the scalars of a CSV, then one row a second.
_WRITE = """
import csv, sys, time
tool, file, place, seconds = sys.argv[1:]
rows = list(csv.DictReader(open(file)))
names = [n for n in rows[0] if n != "step"]
if tool == "tensorboard":
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    writer = EventFileWriter(place + "/run", flush_secs=1)
    def log(step, row):
        values = [Summary.Value(tag=n, simple_value=float(row[n])) for n in names if row[n]]
        writer.add_event(Event(step=step, wall_time=time.time(), summary=Summary(value=values)))
    finish = writer.flush
else:
    import trackio
    trackio.init(project="bench", name="run", embed=False)
    def log(step, row):
        trackio.log({n: float(row[n]) for n in names if row[n]}, step=step)
    finish = trackio.finish
for step, row in enumerate(rows):
    log(step, row)
if tool == "tensorboard":
    finish()
time.sleep(3)
print("written", flush=True)
end = time.time() + float(seconds)
step = len(rows)
while time.time() < end:
    log(step, rows[step % len(rows)])
    step += 1
    time.sleep(1)
finish()
"""


def compare(browser: Browser, python: str, runs: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scalars.csv"
        signals = open_run(runs / "long").signals().head(STEPS)
        signals[["step", *SCALARS]].to_csv(file, index=False)
        for tool in ("tensorboard", "trackio"):
            place = Path(folder) / tool
            place.mkdir()
            measure(browser, tool, python, file, place)


@contextmanager
def served(tool: str, python: str, place: Path) -> Iterator[str]:
    port = free_port()
    there = Path(python).parent
    environment = os.environ | {
        "TRACKIO_DIR": str(place), "GRADIO_SERVER_PORT": str(port),
        "GRADIO_ANALYTICS_ENABLED": "False",
    }
    command = {
        "tensorboard": [
            str(there / "tensorboard"), "--logdir", str(place), "--port", str(port),
            "--reload_interval", "2",
        ],
        "trackio": [str(there / "trackio"), "show", "--project", "bench"],
    }[tool]
    server = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(f"http://127.0.0.1:{port}/")
        time.sleep(5)  # it reads what was written
        address = {"tensorboard": "/?darkMode=false#timeseries", "trackio": "/?project=bench"}
        yield f"http://127.0.0.1:{port}{address[tool]}"
    finally:
        server.terminate()
        server.wait()


_CHART = {
    # TensorBoard draws lines as SVG paths or on a canvas of WebGL
    "tensorboard": "line-chart svg path[d], line-chart canvas",
    "trackio": ".vega-embed svg path, .vega-embed canvas, canvas, .plotly .trace",
}


def measure(browser: Browser, tool: str, python: str, file: Path, place: Path) -> None:
    environment = os.environ | {"TRACKIO_DIR": str(place)}
    command = [python, "-c", _WRITE, tool, str(file), str(place), str(SECONDS + 60)]
    writer = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert writer.stdout is not None
        for line in writer.stdout:
            if line.strip() == "written":
                break
        with served(tool, python, place) as address:
            seconds = []
            for _ in range(ROUNDS):
                page = browser.new_page(viewport={"width": 1280, "height": 800})
                start = time.perf_counter()
                page.goto(address, wait_until="commit")
                page.wait_for_selector(_CHART[tool], state="attached", timeout=60_000)
                seconds.append(time.perf_counter() - start)
                page.context.close()
            spread = f"({min(seconds):.2f} to {max(seconds):.2f})"
            print(f"{tool}: first chart  {median(seconds):.2f} s {spread}")
            refresh(browser, tool, address)
    finally:
        writer.terminate()
        writer.wait()


def refresh(browser: Browser, tool: str, address: str) -> None:
    """What the page asks for while rows come, a refresh at a time."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(address)
    page.wait_for_selector(_CHART[tool], state="attached", timeout=60_000)
    page.wait_for_timeout(5000)
    page.screenshot(path=f"{tempfile.gettempdir()}/{tool}.png")
    page.evaluate("performance.clearResourceTimings()")
    start = time.perf_counter()
    if tool == "tensorboard":  # its own reload takes 30 s at least; the button does the same
        for _ in range(5):
            page.locator("app-header-reload button, button[aria-label*='eload']").first.click()
            page.wait_for_timeout(SECONDS * 200)
    else:
        page.wait_for_timeout(SECONDS * 1000)
    passed = time.perf_counter() - start
    requests = page.evaluate(
        "performance.getEntriesByType('resource').map(r => [r.startTime, r.responseEnd,"
        " r.transferSize, r.name])"
    )
    page.context.close()
    groups = together(requests)
    sizes = [sum(r[2] for r in g) for g in groups]
    spans = [max(r[1] for r in g) - g[0][0] for g in groups]
    if not groups:
        print(f"{tool}: it asked for nothing in {passed:.0f} s")
        return
    print(
        f"{tool}: {len(groups)} refreshes in {passed:.0f} s, {median(sizes) / 1e3:.1f} kB each (at "
        f"most {max(sizes) / 1e3:.1f}), asked to answered {median(spans):.0f} ms"
    )


def together(requests: list[list[Any]]) -> list[list[list[Any]]]:
    """Requests that follow each other within half a second are one refresh."""
    groups: list[list[list[Any]]] = []
    for request in sorted(requests):
        if groups and request[0] - groups[-1][-1][0] < 500:
            groups[-1].append(request)
        else:
            groups.append([request])
    return groups
