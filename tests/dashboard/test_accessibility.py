"""The pages for everyone: axe-core finds nothing of levels A and AA, and every control has its key.

One server and one browser for all; `python -m pytest tests/dashboard/test_accessibility.py`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from browsing import WAIT, show_token, until
from made_up_runs import write_run

import lldscope
from lldscope.core import palette
from lldscope.report import post_mortem
from lldscope.report.document import document
from lldscope.report.html import html

SAMPLES = Path(__file__).parents[2] / "sample_runs"
LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
LEAST_TEXT, LEAST_LINE = 4.5, 3.0  # contrast: WCAG 2.2, 1.4.3 and 1.4.11
CHART = ".chart:last-child .scatterlayer .trace"

# Address, and what must be there before it is looked at.
PAGES = {
    "runs": ("/", "tbody tr:last-child :is(.spark, .quiet)"),
    "run": ("/run/grpo", CHART),
    "run without steps": ("/run/empty", ".notice"),
    "compare": ("/compare?run=grpo&run=grpo-llds&x=onset", CHART),
    "batch of a step": ("/run/grpo?step=50", ".batch-group"),
    "settings": ("/config/grpo", ".config"),
    "responses behind an alarm": ("/responses/grpo?alarm=lld-decay&at=54", ".grid .lost"),
    "response": ("/response/grpo?step=25&id=124", ".tok[role=option]"),
    "map of actions": ("/run/grpo?chart=action-map", ".barlayer .point path"),
    "response without tokens": ("/response/failed?step=3&id=1", ".words"),
    "no such run": ("/run/nothing", ".empty"),
    "report": ("report.html", "h1"),
}

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample runs as a group, one that failed and one without steps; and a report."""
    root = tmp_path_factory.mktemp("accessible") / "runs"
    for name in ("grpo", "grpo-llds"):
        shutil.copytree(SAMPLES / name, root / name)
        info = json.loads((root / name / "run.json").read_text())
        (root / name / "run.json").write_text(json.dumps(info | {"group": "seed 0"}))
    write_run(root / "failed", 30, ends="failed")
    write_run(root / "empty", 0)
    with lldscope.open_run(root / "grpo") as run:
        (root.parent / "report.html").write_text(html(document(post_mortem(run))), "utf-8")
    return root


@pytest.fixture(scope="module")
def tab(chromium: Any, address: str) -> Iterator[Any]:
    """One tab for all tests, so that scripts come from its cache."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800}, base_url=address)
    show_token(context, address)
    tab = context.new_page()
    tab.set_default_timeout(WAIT)
    yield tab
    context.close()


def visit(tab: Any, root: Path, page: str) -> None:
    where, selector = PAGES[page]
    tab.goto(where if where.startswith("/") else (root.parent / where).as_uri())
    tab.wait_for_selector(selector)
    tab.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.slow
def test_axe_finds_nothing_in_light_and_dark(tab: Any, root: Path, page: str) -> None:
    tab.emulate_media(color_scheme="light")
    visit(tab, root, page)
    options = {"resultTypes": ["violations"], "runOnly": LEVELS}
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        result = Axe().run(tab, options=options).response
        assert result["testEngine"]["name"] == "axe-core"
        problems = [
            (v["id"], n["target"], n["failureSummary"])
            for v in result["violations"]
            for n in v["nodes"][:3]
        ]
        assert not problems, (scheme, problems)


def test_axe_finds_what_is_put_there(tab: Any, root: Path) -> None:
    """The twin of the test above: a page with faults is not found to be without."""
    visit(tab, root, "settings")
    tab.evaluate(
        "document.body.insertAdjacentHTML('beforeend', "
        '\'<img src="data:,"><p style="color:#aaa;background:#fff">pale</p>\')'
    )
    violations = Axe().run(tab, options={"runOnly": LEVELS}).response["violations"]
    assert {v["id"] for v in violations} == {"image-alt", "color-contrast", "region"}


# -- colours ---------------------------------------------------------------------------------------


def channels(color: str) -> list[int]:
    return [int(color[i : i + 2], 16) for i in (1, 3, 5)]


def luminance(rgb: list[float]) -> float:
    """Relative luminance of sRGB from 0 to 255 (WCAG 2.2)."""
    linear = [c / 255 / 12.92 if c <= 10.31 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: list[float], b: list[float]) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [palette.LIGHT, palette.DARK], ids=["light", "dark"])
def test_every_sign_and_line_reads_on_its_ground(theme: dict[str, str]) -> None:
    """Also those that no sample run shows."""
    card, ink = channels(theme["card"]), channels(theme["ink"])
    for table in (palette.PHASES, palette.VERDICTS, palette.SEVERITIES):
        for sign in table.values():
            color = channels(sign.color)
            assert contrast(channels(sign.ink), color) >= LEAST_TEXT, sign
            mark = [(a + b) / 2 for a, b in zip(color, ink, strict=True)]  # .mark of style.css
            assert contrast(mark, card) >= LEAST_TEXT, sign
    for line in {*palette.RUN_COLORS, *palette.ACTION_COLORS, palette.GREY}:
        assert contrast(channels(line), card) >= LEAST_LINE, line
    for name in ("ink", "ink-2", "ink-3", "accent"):
        for ground in ("ground", "card", "sunken"):
            assert contrast(channels(theme[name]), channels(theme[ground])) >= 4.45, (name, ground)


# -- keys ------------------------------------------------------------------------------------------

# What a person can act on, one of each group of radio buttons and of each set that arrows move in.
_REACHABLE = """() => {
  const seen = (e) => e.checkVisibility({ visibilityProperty: true });  /* closed ones are not */
  const all = [...document.querySelectorAll(
    "a[href], button, input, textarea, select, summary, [tabindex]")];
  const one = all.filter((e) => seen(e) && e.tabIndex >= 0 && !e.disabled && e.type !== "hidden");
  const groups = new Set();
  return one.filter((e) => {
    if (e.type !== "radio") return true;
    const first = !groups.has(e.name);
    groups.add(e.name);
    return first;
  }).length;
}"""

# The element with the focus, numbered once, and whether its focus is seen on it or around it.
_FOCUSED = """() => {
  const e = document.activeElement;
  if (e === document.body) return null;
  window.numbered = window.numbered || new Map();
  const key = e.type === "radio" ? "radio " + e.name : e;
  if (!numbered.has(key)) numbered.set(key, numbered.size);
  const rings = [e, e.closest("label"), e.parentElement].filter(Boolean).map(getComputedStyle);
  const ring = rings.some((s) => s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2);
  const box = e.getBoundingClientRect();
  const told = e.outerHTML.slice(0, 120);
  return [numbered.get(key), ring, box.bottom > 0 && box.top < innerHeight, told];
}"""


@pytest.mark.parametrize("page", ["runs", "run", "response"])
def test_tab_reaches_every_control_with_its_focus_seen(tab: Any, root: Path, page: str) -> None:
    visit(tab, root, page)
    until(tab, "!document.querySelector('.dash-graph--pending')")
    if (pause := tab.get_by_role("button", name="Pause")).count():
        pause.click()  # lines that are drawn anew are other elements
    tab.evaluate("document.activeElement.blur(), getSelection().removeAllRanges(), scrollTo(0, 0)")
    many = tab.evaluate(_REACHABLE)
    reached = set()
    for _ in range(many + 5):
        tab.keyboard.press("Tab")
        focused = tab.evaluate(_FOCUSED)
        if focused is None:
            continue  # out of the page and in again: no trap
        number, ring, visible, name = focused
        assert ring, f"focus is not seen: {name}"
        assert visible, f"focus is out of sight: {name}"
        reached.add(number)
    assert len(reached) == many


@pytest.mark.slow
def test_the_keys_that_are_told_do_what_is_told(tab: Any, root: Path) -> None:
    visit(tab, root, "run")
    tab.keyboard.press("?")
    keys = tab.locator("dialog#keys")
    keys.wait_for()
    names, means = (keys.locator(t).all_inner_texts() for t in ("dt", "dd"))
    shortcuts = dict(zip(names, means, strict=True))
    tab.keyboard.press("Escape")
    keys.wait_for(state="hidden")
    chart = "document.querySelector('.js-plotly-plot')"
    width = f"{chart}._fullLayout.xaxis.range.reduce((a, b) => b - a)"
    start = f"{chart}._fullLayout.xaxis.range[0]"
    whole = tab.evaluate(width)
    does = {
        "p": "document.getElementById('pause').textContent === 'Resume'",
        "+": f"Math.abs({width} - {whole / 2}) < 0.01",
        ">": f"{start} > {whole * 0.3}",
        "<": f"{start} < {whole * 0.3}",
        "-": f"{width} > {whole * 0.9}",
        "0": f"{start} <= 0",
        "Arrow Left": "location.search.includes('step=129')",
        "Arrow Right": "location.search.includes('step=129')",
        "Escape": "!location.search.includes('step=')",
    }
    assert set(shortcuts) == {*does, "?", "/"}
    for key, holds in does.items():
        assert not tab.evaluate(holds) or key in ("0", "-", "<", "Arrow Right"), key
        tab.keyboard.press(key.replace(" ", ""))
        until(tab, holds)
    visit(tab, root, "runs")
    tab.keyboard.press("/")
    until(tab, "document.activeElement.id === 'find'")
    tab.keyboard.type("x?p")  # letters in a field are letters
    until(tab, "document.activeElement.value === 'x?p'")
    assert not tab.locator("dialog#keys").count()
