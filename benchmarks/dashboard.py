"""The dashboard in chromium on long and live runs, and beside TensorBoard and Trackio.

python -m benchmarks.dashboard --runs FOLDER [--rivals PYTHON] [--only NAME …]
python -m benchmarks.dashboard --runs FOLDER --only browsers    1 and 20 of them on one live run

FOLDER is filled with made-up runs if they are not there yet (about 400 MB, some minutes). PYTHON
is the interpreter of an environment of its own with tensorboard and trackio; without it the rivals
are left out, and that is said.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, Page, Request, sync_playwright

import lldscope

from . import dashboard_rivals
from .long_run import write_long_run, write_steps
from .memory import resident
from .page import FLAGS, Watch, all_charts, chart, free_port, measure, processor, spent_by, wait_for

ROUNDS = 3
TICKS = 15  # refreshes that are looked at
REFRESH = 2.0  # seconds from one to the next
BROWSERS = 20
# Notes when each chart was drawn, beside what the browser notes of each request.
WATCH = """
window.drawn = [];
for (const c of document.querySelectorAll('.js-plotly-plot'))
  c.on('plotly_afterplot', () => window.drawn.push(performance.now()));
performance.clearResourceTimings();
"""
# Notes when the mouse button was let go, and the first frame in which all charts are zoomed alike.
FOLLOW = """() => {
  addEventListener("mouseup", () => { window.letGo = performance.now(); }, true);
  (function look() {
    const charts = [...document.querySelectorAll(".js-plotly-plot")];
    const shown = charts.map(c => c._fullLayout.xaxis.range);
    if (shown.every(r => r[0] > 5 && r[0] === shown[0][0])) window.followed = performance.now();
    else requestAnimationFrame(look);
  })();
}"""
ASKED = """performance.getEntriesByType('resource')
  .filter(r => r.name.includes('_dash-update-component'))
  .map(r => [r.startTime, r.responseEnd, r.transferSize])"""


def main() -> None:
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--runs", type=Path, required=True)
    cli.add_argument("--rivals", help="python of an environment with tensorboard and trackio")
    parts = ["first", "twenty", "live", "browsers", "memory", "rivals"]
    cli.add_argument("--only", nargs="*", choices=parts)
    options = cli.parse_args()
    names = options.only or ["first", "twenty", "live", "memory", "rivals"]
    if {*names} - {"live", "browsers"}:
        fill(options.runs)
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        with tempfile.TemporaryDirectory() as cache:
            if "first" in names:
                first(browser, options.runs, cache)
            if "twenty" in names:
                twenty(browser, options.runs, cache)
            if "live" in names:
                live(browser, options.runs, cache)
            if "browsers" in names:
                browsers(browser, options.runs, cache)
            if "memory" in names:
                memory(browser, options.runs)
        if "rivals" in names:
            if options.rivals is None:
                print("rivals are left out: name their environment with --rivals PYTHON")
            else:
                dashboard_rivals.compare(browser, options.rivals, options.runs)
        browser.close()


def fill(runs: Path) -> None:
    """Runs of 10 M and of 1 M rows of actions, and twenty of 2,000 steps."""
    for name, steps in (("long", 5000), ("mid", 500)):
        if not (runs / name / "run.json").exists():
            write_long_run(runs / name, steps)
    for i in range(20):
        if not (runs / "twenty" / f"r{i:02}" / "run.json").exists():
            write_long_run(runs / "twenty" / f"r{i:02}", 2000, 10, 2)


@contextmanager
def served(root: Path, cache: str) -> Iterator[tuple[str, int]]:
    """The dashboard over a folder: its address and process."""
    port = free_port()
    command = [sys.executable, "-m", "lldscope", "dash", str(root), "--no-token"]
    command += ["--port", str(port)]
    environment = os.environ | {"XDG_CACHE_HOME": cache}
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)
    try:
        wait_for(f"http://127.0.0.1:{port}/assets/style.css")  # the list of runs reads all of them
        yield f"http://127.0.0.1:{port}", server.pid
    finally:
        server.terminate()
        server.wait()


def first(browser: Browser, runs: Path, cache: str) -> None:
    with served(runs, cache) as (address, pid):
        seconds = measure(browser, f"{address}/run/long", chart)
        print(f"10 M rows of actions, read for the first time  {seconds:.2f} s")
        for what, ready in (("first chart", chart), ("all charts", all_charts)):
            again = [measure(browser, f"{address}/run/long", ready) for _ in range(ROUNDS)]
            tell(f"run page of 10 M rows: {what}", again)
            costs = [processor(browser, f"{address}/run/long", ready, pid) for _ in range(ROUNDS)]
            tell("the same, processor time of page and server", costs)
    with served(runs, cache) as (address, _):
        seconds = measure(browser, f"{address}/run/long", chart)
        print(f"the same, first page after a restart  {seconds:.2f} s")
    with served(runs, cache) as (address, _):
        times = [measure(browser, f"{address}/run/mid", chart) for _ in range(ROUNDS)]
        tell("run page of 1 M rows: first chart drawn", times)


def twenty(browser: Browser, runs: Path, cache: str) -> None:
    names = "&".join(f"run=r{i:02}" for i in range(20))

    def all_lines(page: Page) -> None:
        all_charts(page, 20)

    for what in ("read for the first time", "first page after a restart", ""):
        with served(runs / "twenty", cache) as (address, pid):
            if what:
                seconds = measure(browser, f"{address}/compare?{names}", all_lines)
                print(f"20 runs compared, {what}: all 160 lines drawn  {seconds:.2f} s")
            else:
                measure(browser, f"{address}/compare?{names}", all_lines)
                again = [
                    measure(browser, f"{address}/compare?{names}", all_lines) for _ in range(ROUNDS)
                ]
                tell("20 runs compared: all 160 lines drawn", again)
                compared = f"{address}/compare?{names}"
                costs = [processor(browser, compared, all_lines, pid) for _ in range(ROUNDS)]
                tell("the same, processor time of page and server", costs)
                times = [
                    measure(browser, f"{address}/?q={i}", lambda p: p.wait_for_selector(".spark"))
                    for i in range(2)
                ]
                tell("page of runs: first line drawn", times)


@contextmanager
def going_on(runs: Path, cache: str) -> Iterator[tuple[str, int]]:
    """The dashboard over a run of 5,000 steps that goes on, one step a second: its address and
    process."""
    path = runs / "going" / "live"
    shutil.rmtree(path, ignore_errors=True)
    end = threading.Event()
    with lldscope.Recorder(path, trainer="made-up numbers") as recorder:
        for step in write_steps(recorder, 100_000, 20, 2, start=time.time() - 5000):
            if step == 5000:
                recorder.flush()
                break

        def go_on() -> None:
            for _ in write_steps(recorder, 100_000, 20, 2, start=time.time() - 5000, first=5001):
                if end.wait(1.0):
                    return

        trainer = threading.Thread(target=go_on)
        trainer.start()
        with served(path.parent, cache) as (address, pid):
            yield address, pid
        end.set()
        trainer.join()


def live(browser: Browser, runs: Path, cache: str) -> None:
    """Refreshes of a live run with nothing zoomed, and how long charts take to follow a zoom."""
    with going_on(runs, cache) as (address, pid):
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"{address}/run/live")
        all_charts(page)
        page.wait_for_timeout(4000)
        page.evaluate(WATCH)
        watch = Watch(page, pid)
        page.wait_for_timeout(2000 * TICKS)
        costs = watch.spent()
        requests, draws = page.evaluate(ASKED), page.evaluate("window.drawn")
        page.context.close()
        report(requests, draws, costs)
        for slower in (1, 4, 8):
            followed = [zoom(browser, f"{address}/run/live", slower) for _ in range(ROUNDS)]
            tell(f"zoom, page {slower} x slower: let go to all charts following", followed)


def browsers(browser: Browser, runs: Path, cache: str) -> None:
    """What the server computes in the time of a refresh: nothing asked, one browser, and twenty,
    whose ticks are spread. Nineteen of them repeat the question of the first, as browsers do."""
    ticks: list[Request] = []
    with going_on(runs, cache) as (address, pid):
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.on("request", lambda r: ticks.append(r) if _is_tick(r) else None)
        page.goto(f"{address}/run/live")
        all_charts(page)
        while not ticks:
            page.wait_for_timeout(200)
        question = urllib.request.Request(ticks[-1].url, ticks[-1].post_data_buffer, {
            "Content-Type": "application/json", "Accept-Encoding": "gzip",
        })
        page.context.close()
        costs: dict[int, list[float]] = {}
        for number in (0, 1, BROWSERS, 1, BROWSERS):
            end = threading.Event()
            args = [(question, end, k * REFRESH / number) for k in range(number)]
            clients = [threading.Thread(target=_ask, args=a) for a in args]
            for client in clients:
                client.start()
            time.sleep(2 * REFRESH)
            before = spent_by(pid)
            time.sleep(TICKS * REFRESH)
            costs.setdefault(number, []).append((spent_by(pid) - before) / TICKS)
            end.set()
            for client in clients:
                client.join()
    for number, seconds in costs.items():
        tell(f"server's processor time a refresh, {number} browsers", seconds)
    print(f"{BROWSERS} browsers / 1: {median(costs[BROWSERS]) / median(costs[1]):.2f}")


def _is_tick(request: Request) -> bool:
    return "_dash-update-component" in request.url and '["tick.data"]' in (request.post_data or "")


def _ask(question: urllib.request.Request, end: threading.Event, after: float) -> None:
    """A browser that asks at every refresh, having seen older rows each time."""
    wait = after
    while not end.wait(wait):
        start = time.monotonic()
        with urllib.request.urlopen(question) as answer:
            answer.read()
        wait = max(0.0, REFRESH - (time.monotonic() - start))


def report(requests: list[list[float]], draws: list[float], costs: tuple[float, float]) -> None:
    ticks = refreshes(requests, draws)
    sizes, spans = ([t[i] for t in ticks] for i in (0, 1))
    answers = [1e-3 * (end - start) for start, end, _ in requests]
    print(f"refresh of eight charts, 5,000 steps, {len(ticks)} refreshes")
    print(f"  sent: {median(sizes) / 1e3:.1f} kB (at most {max(sizes) / 1e3:.1f})")
    print(f"  asked to drawn: {1e3 * median(spans):.0f} ms, p95 {1e3 * high(spans):.0f} ms")
    page, server = (1e3 * seconds / max(1, len(ticks)) for seconds in costs)
    print(f"  processor time: {page:.0f} ms of the page, {server:.0f} ms of the server")
    print(f"  asked to answered: {1e3 * median(answers):.0f} ms, p95 {1e3 * high(answers):.0f} ms")


def zoom(browser: Browser, address: str, slower: int) -> float:
    """Seconds from the end of a drag to the first frame in which all charts show its range."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(address)
    all_charts(page)
    tools = page.context.new_cdp_session(page)
    tools.send("Emulation.setCPUThrottlingRate", {"rate": slower})
    page.evaluate(FOLLOW)
    box = page.locator(".js-plotly-plot .nsewdrag").first.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.2, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.9, y, steps=4)
    page.mouse.up()
    while not page.evaluate("window.followed"):
        page.wait_for_timeout(20)
    seconds: float = page.evaluate("window.followed - window.letGo") / 1e3
    page.context.close()
    return seconds


def refreshes(requests: list[list[float]], draws: list[float]) -> list[tuple[float, float]]:
    """Bytes, and seconds from the first request to the last chart drawn, of each refresh."""
    ticks: list[list[list[float]]] = []
    for request in sorted(requests):
        if ticks and request[0] - ticks[-1][0][0] < 1000:  # two requests of one tick
            ticks[-1].append(request)
        else:
            ticks.append([request])
    result = []
    for tick, after in zip(ticks, [*ticks[1:], [[1e12]]], strict=True):
        start = tick[0][0]
        ends = [t for t in draws if start <= t < after[0][0]]
        if ends:
            result.append((sum(r[2] for r in tick), 1e-3 * (max(ends) - start)))
    return result


def memory(browser: Browser, runs: Path) -> None:
    for name in ("mid", "long"):
        with tempfile.TemporaryDirectory() as cache:
            for what in ("read through", "from what was kept"):
                with served(runs, cache) as (address, pid):
                    before = resident(pid, "VmRSS")
                    measure(browser, f"{address}/run/{name}", chart)
                    now, most = resident(pid, "VmRSS"), resident(pid, "VmHWM")
                    print(
                        f"server, {name}, {what}: {before:.0f} MB started, {now:.0f} MB with the "
                        f"page, {most:.0f} MB at most"
                    )


def tell(what: str, seconds: list[float]) -> None:
    print(f"{what}  {median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})")


def high(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


if __name__ == "__main__":
    main()
