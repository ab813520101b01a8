"""How long after a drag the last chart of a live run shows the stretch that was chosen.

python -m tests.bench.zoom [--busy N]: with the page's processor as it is, 4 and 8 times slower, and
beside N busy processes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import sync_playwright

from .page import FLAGS

sys.path.insert(0, str(Path(__file__).parent.parent))
from browsing import DRAWN, Server, busy, drag, going_on, throttled, until

ROUNDS = 8
# When the button was let go, and the first frame in which all charts show the same other stretch;
# and how often, for as long as is looked, one of them shows another one.
WATCH = """
() => {
  const charts = () => [...document.querySelectorAll(".js-plotly-plot")];
  const shown = () => charts().map(c => c._fullLayout && c._fullLayout.xaxis.range.join());
  window.zoomed = { before: shown()[0], let: 0, followed: 0, lost: 0, frames: 0 };
  addEventListener("mouseup", () => { zoomed.let = performance.now(); },
    { capture: true, once: true });
  (function look() {
    if (zoomed.let) {
      const now = shown();
      const all = now[0] !== zoomed.before && now.every(r => r === now[0]);
      zoomed.frames += 1;
      if (all && !zoomed.followed) { zoomed.followed = performance.now(); zoomed.range = now[0]; }
      if (zoomed.followed && now.some(r => r !== zoomed.range)) zoomed.lost += 1;
    }
    if (!zoomed.end) requestAnimationFrame(look);
  })();
}"""


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--busy", type=int, default=0)
    asked.add_argument("--rates", type=int, nargs="*", default=[1, 4, 8])
    told = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder, busy(told.busy), sync_playwright() as p:
        root = Path(folder)
        with going_on(root / "runs" / "live"):
            server = Server(root / "runs", root / "cache")
            browser = p.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
            for rate in told.rates:
                found = [measure(browser, server.address, rate) for _ in range(ROUNDS)]
                times = [f["ms"] for f in found]
                lost = sum(f["lost"] > 0 for f in found)
                print(
                    f"{rate} x slower, {told.busy} busy: the last chart follows after "
                    f"{median(times):.0f} ms ({min(times):.0f} to {max(times):.0f}); "
                    f"lost in {lost} of {len(found)}, frames {found[0]['frames']}",
                    flush=True,
                )
            browser.close()
            server.stop()


def measure(browser: Any, address: str, rate: int) -> dict[str, Any]:
    page = browser.new_page(viewport={"width": 1280, "height": 800}, base_url=address)
    page.goto("/run/live")
    page.wait_for_selector(DRAWN, timeout=60_000)
    until(page, "document.querySelectorAll('.js-plotly-plot .main-svg').length >= 8 * 3")
    with throttled(page, rate):
        page.evaluate(WATCH)
        drag(page)
        until(page, "zoomed.followed")
        page.wait_for_timeout(5000)
        found = page.evaluate("zoomed.end = true, zoomed")
    page.context.close()
    return found | {"ms": found["followed"] - found["let"]}


if __name__ == "__main__":
    main()
