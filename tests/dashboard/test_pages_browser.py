"""Pages of runs in a browser: title and notices of the tab, acknowledged alarms, added charts, how
runs end, name and note, and all of it on a phone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import CHARTS, DRAWN, going_on, load_charts, open_page, show_token, until
from made_up_runs import write_run, write_step

import lldscope

pytestmark = pytest.mark.browser

PAGES = {
    "/": ".runs .badge",
    "/run/dying": DRAWN,
    "/run/means": DRAWN,
    "/compare?run=dying&run=healthy": DRAWN,
    "/responses/dying": ".grid",
    "/response/dying?step=100&id=0": ".response-head",
    "/group/dying?step=100&id=0": ".response-head",
    "/system/dying": "h1",
    "/actions/dying": ".map .cell",
    "/recording/dying": ".facts",
    "/rules": ".rules",
    "/rules/lld-decay": ".rule-page",
    "/run/nowhere": "h1",
}

TITLES = "[...document.querySelectorAll('.chart h2')].slice(8).map(h => h.textContent).join()"
NAMES = ("rewards/format", "rewards/answer", "actor/ppo_kl", "lr_group/0")
# Name → life, and what the page says why.
RUNS = {
    "on": ("live", ""),
    "well": ("finished", ""),
    "asked": ("stopped", "out of memory"),
    "broke": ("failed", "out of memory"),
    "killed": ("stalled", "the process of rank 0"),
    "silent": ("stalled", "rank 0 has written no heartbeat for"),
}

_KILLED = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[2])
import lldscope
from made_up_runs import write_step
recorder = lldscope.Recorder(sys.argv[1])
for step in range(5):
    write_step(recorder, step, dies=False, at=time.time())
recorder.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""

# What the mark of a life looks like without its colour.
_SHAPE = """selector => {
  const s = getComputedStyle(document.querySelector(selector));
  const filled = s.backgroundColor !== "rgba(0, 0, 0, 0)";
  return [s.borderTopLeftRadius, s.transform, filled].join(" ");
}"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "dying", 140, dies=True)
    write_run(root / "healthy", 60)
    with lldscope.Recorder(root / "means") as recorder:
        for step in range(40):
            recorder.step(step=step, n_responses=8, reward_sum=4.0)
    for name in ("one", "two"):
        with lldscope.Recorder(root / name) as recorder:
            for step in range(30):
                write_step(recorder, step, dies=False, at=1e9 + step)
                for scalar in NAMES:
                    recorder.scalars(step=step, name=scalar, value=0.1 * step)
    for name, ends in (("well", "finished"), ("asked", "stopped"), ("broke", "failed")):
        write_run(root / name, 5, ends=ends)
    for name in ("killed", "silent"):
        code = [
            sys.executable,
            "-c",
            _KILLED,
            str(root / name),
            str(Path(__file__).parents[1] / "helpers"),
        ]
        assert subprocess.run(code, check=False).returncode == -signal.SIGKILL
    (beat,) = (root / "silent" / "heartbeat").glob("r0.json")
    beats = json.loads(beat.read_text())  # as of a process on another machine, ten minutes ago
    beat.write_text(json.dumps(beats | {"space": "elsewhere", "time": time.time() - 600}))
    os.utime(beat)
    with going_on(root / "on"):
        yield root


@pytest.mark.slow
def test_title_and_icon_tell_the_state_and_an_acknowledged_alarm_is_told_no_more(tab: Any) -> None:
    tab.goto("/run/dying")
    until(tab, "document.title.includes('critical · dying')")
    assert "svg" in tab.locator("link[rel=icon]").get_attribute("href")
    cause = tab.locator(".answer a")
    cause.click()
    until(tab, "location.hash.startsWith('#alarm-')")
    target = tab.locator(".alarm:target")
    assert target.bounding_box()["y"] < 400, "the evidence is in sight, below the header"
    firing = tab.locator(".pill.firing").count()
    for left in range(firing, 0, -1):
        buttons = tab.get_by_role("button", name="Acknowledge")
        until(tab, lambda n=left, b=buttons: b.count() == n)
        buttons.first.click()
    until(tab, "document.title === 'dying – lldscope'")
    assert tab.locator(".pill", has_text="acknowledged").count() == firing
    tab.get_by_role("button", name="Unmute").first.click()
    until(tab, "document.title.includes('critical · dying')")


@pytest.mark.slow
def test_a_new_alarm_is_told_by_a_notice_if_asked_for(tab: Any, root: Path) -> None:
    tab.add_init_script(
        """window.told = [];
        window.Notification = class {
          static permission = "granted";
          static requestPermission() { return Promise.resolve("granted"); }
          constructor(title, options) { told.push([title, options.body]); }
        };"""
    )
    with lldscope.Recorder(root / "falls") as recorder:
        for step in range(60):
            write_step(recorder, step, dies=False, at=1e9 + step)
        recorder.flush()
        tab.goto("/run/falls")
        tab.get_by_role("button", name="Notify me").click()
        until(tab, "document.title.endsWith('falls – lldscope')")
        assert tab.evaluate("told") == [], "what was there before is no news"
        for step in range(60, 140):
            write_step(recorder, step, dies=True, at=1e9 + step)
        recorder.flush()
        until(tab, "told.length > 0")
    title, body = tab.evaluate("told[0]")
    assert title.startswith("falls: ")
    assert "at step" in body or "since step" in body
    assert tab.get_by_role("button", name="Notices on").count() == 1


def test_a_swipe_over_a_chart_scrolls_and_a_link_to_an_alarm_lands_on_it(
    chromium: Any, address: str
) -> None:
    context = chromium.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    )
    show_token(context, address)
    tab = context.new_page()
    tab.goto(f"{address}/run/dying")
    tab.wait_for_selector(DRAWN)
    head = tab.locator(".page-head").evaluate("e => getComputedStyle(e).position")
    assert head == "static", "nothing of a phone's screen is taken by a header that stays"
    chart = tab.locator(".js-plotly-plot .nsewdrag").first
    chart.scroll_into_view_if_needed()
    before, box = tab.evaluate("scrollY"), chart.bounding_box()
    tools = context.new_cdp_session(tab)
    finger = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    tools.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [finger]})
    for up in range(0, 330, 30):
        moved = finger | {"y": finger["y"] - up}
        tools.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [moved]})
        tab.wait_for_timeout(30)
    tools.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    until(tab, f"scrollY > {before} + 150")
    assert "zoom=" not in tab.url
    tab.locator(".about summary").click()
    assert tab.locator("#about-name").bounding_box()["width"] > 120
    tab.goto(f"{address}/run/dying#alarm-lld-decay")
    top = "document.getElementById('alarm-lld-decay')?.getBoundingClientRect().top"
    until(tab, f"{top} >= 0 && {top} < 400")
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.slow
def test_no_page_is_wider_than_a_phone(chromium: Any, address: str, scheme: str) -> None:
    with open_page(chromium, address) as tab:
        tab.set_viewport_size({"width": 390, "height": 844})
        tab.emulate_media(color_scheme=scheme)
        for path, there in PAGES.items():
            tab.goto(path)
            tab.wait_for_selector(there)
            assert tab.evaluate("document.documentElement.scrollWidth") <= 390, path


@pytest.mark.slow
def test_charts_line_up_and_those_without_a_measurement_are_small(tab: Any) -> None:
    load_charts(tab, "/run/dying")
    places = tab.evaluate(
        f"{CHARTS}.map(c => [c._fullLayout._size.l, c._fullLayout.width - c._fullLayout._size.r])"
    )
    assert len(set(map(str, places))) == 1
    names = tab.evaluate(
        f"{CHARTS}.map(c => [...c.querySelectorAll('.annotation')]"
        ".filter(a => a.style.visibility !== 'hidden').map(a => {"
        "const b = a.getBoundingClientRect(), p = c.querySelector('.nsewdrag')"
        ".getBoundingClientRect(); return b.bottom <= p.top; }))"
    )
    assert all(names)
    assert all(all(above) for above in names), "above the plot, where no line crosses them"
    load_charts(tab, "/run/means")
    assert tab.locator(".chart:not(.unmeasured) h2").all_inner_texts() == ["Reward"]
    small = tab.locator(".unmeasured").first
    assert small.inner_text().endswith("Not measured in this run")
    assert small.bounding_box()["height"] < 100


@pytest.mark.slow
def test_a_metric_is_found_added_changed_and_kept_in_the_address(tab: Any) -> None:
    load_charts(tab, "/run/dying")
    tab.evaluate("window.here = true")
    tab.locator("#find-chart").fill("grad_norm_max")
    tab.locator("#matches").get_by_role("button", name="grad_norm_max").click()
    until(tab, "location.search === '?chart=grad_norm_max'")
    assert tab.evaluate("window.here"), "the page was not loaded again"
    until(tab, f"{CHARTS}.length === 9 && {CHARTS}.every(c => c._fullLayout)")
    card = tab.locator(".chart").last
    assert card.locator("h2").inner_text() == "grad_norm_max"
    last = f"{CHARTS}[8]._fullLayout.yaxis"
    assert tab.evaluate(f"{last}.type") == "linear"
    card.locator("summary").click()
    card.get_by_role("button", name="log y").click()
    until(tab, f"{last}.type === 'log'")
    until(tab, "location.search.includes('log=grad_norm_max')")
    tab.reload()
    until(tab, f"{CHARTS}.length === 9 && {CHARTS}.every(c => c._fullLayout)")
    assert tab.evaluate(f"{last}.type") == "log"
    card.locator("summary").click()
    before = tab.evaluate(f"{last}.range")
    card.get_by_role("button", name="clip outliers").click()
    until(tab, f"{last}.range[1] !== {before[1]}")
    with tab.expect_download() as picture:
        card.get_by_role("button", name="PNG").click()
    assert Path(picture.value.path()).read_bytes().startswith(b"\x89PNG")
    with tab.expect_download() as data:
        card.get_by_role("link", name="CSV").click()
    assert Path(data.value.path()).read_text().startswith("step,grad_norm_max\n")
    card.get_by_role("button", name="remove").click()
    until(tab, "!location.search.includes('chart=')")


def test_the_x_axis_changes_and_the_zoom_stays_on_the_same_rows(tab: Any) -> None:
    load_charts(tab, "/run/dying?zoom=20,40")
    until(tab, f"{CHARTS}[0]._fullLayout.xaxis.range[0] === 20")
    tab.keyboard.press("x")
    until(tab, "new URL(location.href).searchParams.get('x') === 'tokens'")
    until(tab, "Boolean(new URL(location.href).searchParams.get('zoom'))")
    zoom = f"{CHARTS}[0]._fullLayout.xaxis.range"
    whole = f"{CHARTS}[0].layout.meta.whole"
    until(tab, f"{zoom}[0] > {whole}[0] + 0.1 * {whole}[1] && {zoom}[1] < 0.4 * {whole}[1]")
    for key in ("x", "x"):
        tab.keyboard.press(key)
    until(tab, "new URL(location.href).searchParams.get('x') === null")
    until(tab, f"Math.abs({zoom}[0] - 20) < 0.01 && Math.abs({zoom}[1] - 40) < 0.01")


def add(tab: Any, text: str, button: str) -> None:
    tab.locator("#find-chart").fill(text)
    tab.locator("#matches").get_by_role("button", name=button, exact=True).click()


@pytest.mark.slow
def test_charts_are_added_one_after_the_other_without_a_reload(tab: Any) -> None:
    tab.goto("/run/one")
    tab.wait_for_selector(DRAWN)
    tab.evaluate("window.here = true")
    add(tab, "format", "rewards/format")
    until(tab, f"({TITLES}) === 'rewards/format'")
    add(tab, "scalar/actor", "actor/ppo_kl")
    until(tab, f"({TITLES}) === 'rewards/format,actor/ppo_kl'")
    add(tab, "^(scalar/)?(rewards|lr_group)/", "Add all 2")
    until(tab, f"({TITLES}) === 'rewards/format,actor/ppo_kl,lr_group/0,rewards/answer'")
    until(tab, f"{CHARTS}.length === 12 && {CHARTS}.every(c => c._fullLayout)")
    assert tab.evaluate("window.here"), "the page was not loaded again"
    tab.locator("#find-chart").fill("[")
    until(tab, "document.querySelector('#matches').textContent.startsWith('0 of')")
    tab.goto(tab.url)
    until(tab, f"({TITLES}) === 'rewards/format,actor/ppo_kl,lr_group/0,rewards/answer'")
    tab.goto("/run/two")  # names no chart: those of this browser
    until(tab, f"({TITLES}).split(',').length === 4")
    for left in (3, 2, 1, 0):
        card = tab.locator(".card.chart").nth(8)
        card.locator(".tools summary").click()
        card.get_by_role("button", name="remove").click()
        until(tab, f"document.querySelectorAll('.chart h2').length === 8 + {left}")
    tab.goto("/compare?run=one&run=two&chart=rewards/answer")
    until(tab, f"({TITLES}) === 'rewards/answer'")


@pytest.mark.parametrize("stored", ["not json", '{"a": 1}', '[5, null, "</script>"]'])
def test_whatever_is_stored_pages_open(tab: Any, stored: str) -> None:
    tab.goto("/rules")
    tab.evaluate("text => localStorage.setItem('pins', text)", stored)
    tab.goto("/run/two")
    tab.wait_for_selector(DRAWN)
    assert tab.evaluate(TITLES) == ""


@pytest.mark.slow
def test_name_tags_and_note_are_changed_by_the_form_on_the_page(tab: Any) -> None:
    tab.goto("/run/healthy")
    tab.wait_for_selector(DRAWN)
    tab.get_by_text("Name, tags, note").click()
    tab.locator("#about-name").fill("My <i>run</i>")
    tab.locator("#about-tags").fill("paper, baseline")
    tab.locator("#about-note").fill("first line\nsecond line")
    tab.locator("#about-save").click()
    tab.locator("h1", has_text="My <i>run</i>").wait_for()
    assert tab.locator(".about .pill.tag").all_inner_texts() == ["paper", "baseline"]
    assert "second line" in tab.locator(".noted").inner_text()
    tab.goto("/?q=baseline")
    tab.locator("#rows .pill.tag", has_text="paper").wait_for()
    tab.set_viewport_size({"width": 390, "height": 800})
    tab.goto("/run/healthy")
    tab.get_by_text("Edit", exact=True).click()
    until(tab, "document.documentElement.scrollWidth <= 390")


def shape(tab: Any, selector: str) -> str:
    """Found and looked at in one go: a refresh puts another element in its place."""
    shape: str = tab.evaluate(_SHAPE, selector)
    return shape


@pytest.mark.slow
def test_lives_are_told_by_word_and_shape_on_list_and_run_page(tab: Any) -> None:
    tab.goto("/")
    shapes = {}
    for name, (life, _) in RUNS.items():
        row = tab.locator("tr", has=tab.locator(f"a[href='/run/{name}']"))
        row.locator(".dot").wait_for()
        assert life in row.locator("td", has=tab.locator(".dot")).inner_text().split()
        shapes[life] = shape(tab, f"tr:has(a[href='/run/{name}']) .dot")
        if life in ("failed", "stalled"):
            assert "stalled" in row.locator(".badge").inner_text()
    assert len(set(shapes.values())) == len(shapes), shapes
    for name, (life, why) in RUNS.items():
        tab.goto(f"/run/{name}")
        tab.wait_for_selector(DRAWN)
        life_text = tab.locator(".status .life").inner_text()
        assert life_text.startswith(life), life_text
        assert why in life_text
        assert shape(tab, ".status .dot") == shapes[life]
        if life in ("failed", "stalled"):
            alarm = tab.locator(".alarm", has_text="stalled")
            assert "❚❚" in tab.locator(".status .badge").first.inner_text()
            assert why in alarm.locator(".message").inner_text()
