"""`python -m tests.screenshots`: the pictures in docs/images, from the sample runs.

They show neither where nor when they were taken: paths, dates and ages are written over. A palette
keeps them small; how far a picture may grow is checked, because readers load all of them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from benchmarks.check import SAMPLES
from benchmarks.page import FLAGS, free_port, wait_for

IMAGES = Path(__file__).parent.parent / "docs" / "images"
MOST_BYTES = 150_000
COLORS = 256  # of a picture; the faint bands of phases need them
DRAWN = ".chart:last-child .scatterlayer .trace"
TOKENS = ".tok[role=option]"
LOSER = "/response/language-model?step=74&id=12&mark=t98"


class Picture(NamedTuple):
    """An address, what must be there before it is taken, the theme, the height in pixels."""

    path: str
    drawn: str
    scheme: str
    height: int


PAGES = {
    "runs": Picture("/", "tbody tr:last-child .spark", "light", 500),
    "run": Picture("/run/grpo?step=50", ".batch-group", "light", 1000),
    "run-dark": Picture("/run/grpo", DRAWN, "dark", 800),
    "alarms": Picture("/run/grpo#alarm-lld-collapse", DRAWN, "light", 640),
    "compare": Picture("/compare?run=language-model&run=language-model-llds", DRAWN, "light", 955),
    "responses": Picture("/responses/grpo?alarm=lld-decay&at=54", ".grid", "light", 620),
    "response": Picture(LOSER, TOKENS, "light", 720),
    "response-dark": Picture(LOSER, TOKENS, "dark", 720),
    "report": Picture("report.html", "h1", "light", 1000),
    "compare-report": Picture("compare.html", "h1", "light", 1000),
}

# What would differ from one machine or day to the next.
_WRITE_OVER = r"""root => {
  for (const e of document.querySelectorAll("[data-time]")) delete e.dataset.time;
  const all = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (all.nextNode()) {
    all.currentNode.data = all.currentNode.data.replaceAll(root, "~")
      .replace(/\b\d+ (s|min|h|d) ago/g, "1 h ago")
      .replace(/\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?( UTC)?/g, "(date)");
  }
}"""


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    port = free_port()
    lldscope = [sys.executable, "-m", "lldscope"]
    server = subprocess.Popen(
        [*lldscope, "dash", str(SAMPLES), "--no-token", "--port", str(port)],
        stderr=subprocess.DEVNULL,
    )
    with tempfile.TemporaryDirectory() as folder:
        runs = [str(SAMPLES / name) for name in ("grpo", "grpo-llds")]
        try:
            for words in (["report", runs[0], "-o", "report.html"],
                          ["compare", *runs, "-o", "compare.html"]):
                command = [*lldscope, *words]
                subprocess.run(command, check=True, stderr=subprocess.DEVNULL, cwd=folder)
            wait_for(f"http://127.0.0.1:{port}/")
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path="/usr/bin/chromium", args=FLAGS
                )
                for name in sys.argv[1:] or PAGES:
                    picture = PAGES[name]
                    root = f"http://127.0.0.1:{port}"
                    if not picture.path.startswith("/"):
                        root = f"{Path(folder).as_uri()}/"
                    take(browser, root + picture.path, picture, name)
                browser.close()
        finally:
            server.terminate()
            server.wait()


def take(browser: Browser, address: str, picture: Picture, name: str) -> None:
    """One page into one file; a picture that is too large ends the command."""
    size = {"width": 1280, "height": picture.height}
    page = browser.new_page(viewport=size, color_scheme=picture.scheme)
    page.goto(address)
    page.wait_for_selector(picture.drawn, timeout=60_000)
    page.wait_for_timeout(1500)  # fonts, and bands of the charts
    page.evaluate(_WRITE_OVER, str(SAMPLES.parent))
    file = IMAGES / f"{name}.png"
    with Image.open(BytesIO(page.screenshot())) as image:
        few = image.convert("RGB").quantize(COLORS, kmeans=2, dither=Image.Dither.NONE)
        few.save(file, optimize=True)
    page.close()
    print(f"{file.relative_to(IMAGES.parents[1])}  {file.stat().st_size / 1000:,.0f} kB")
    if file.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{file.name} is larger than {MOST_BYTES / 1000:,.0f} kB: show less of it")


if __name__ == "__main__":
    main()
