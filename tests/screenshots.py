"""`python -m tests.screenshots`: the pictures in docs/images, from the sample runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from .bench.check import SAMPLES
from .bench.page import FLAGS, free_port, wait_for

IMAGES = Path(__file__).parent.parent / "docs" / "images"
DRAWN = ".js-plotly-plot .scatterlayer .trace"
PAGES = {
    "runs": ("/", ".verdict, table", "light", 620),
    "run": ("/run/grpo", DRAWN, "light", 1180),
    "run-dark": ("/run/grpo", DRAWN, "dark", 1180),
    "compare": ("/compare?run=grpo&run=grpo-llds", DRAWN, "light", 1180),
}


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [sys.executable, "-m", "lldscope", "dash", str(SAMPLES), "--port", str(port)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_for(f"http://127.0.0.1:{port}/")
        with sync_playwright() as p:
            browser = p.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
            for name, (path, drawn, scheme, height) in PAGES.items():
                size = {"width": 1280, "height": height}
                page = browser.new_page(viewport=size, color_scheme=scheme)
                take(page, f"http://127.0.0.1:{port}{path}", drawn, IMAGES / f"{name}.png")
                page.close()
            browser.close()
    finally:
        server.terminate()
        server.wait()


def take(page: Page, url: str, drawn: str, file: Path) -> None:
    page.goto(url)
    page.wait_for_selector(drawn, timeout=30_000)
    page.wait_for_timeout(1500)  # fonts, bands and the other charts
    page.screenshot(path=file)
    print(file)


if __name__ == "__main__":
    main()
