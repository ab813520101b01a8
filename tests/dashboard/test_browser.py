"""The dashboard in a real browser: every everyday control, on live, long, broken and many runs; no
other host is asked, and the console stays empty."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import (
    CHARTS,
    DRAWN,
    Server,
    drag,
    going_on,
    load_charts,
    open_page,
    ranges,
    show_token,
    until,
    until_drawn,
)
from lldscope_dashboard.data.run_registry import RunRegistry
from lldscope_dashboard.data.run_summaries import RunSummaries
from made_up_runs import write_run

import lldscope

pytestmark = pytest.mark.browser
SAMPLES = Path(__file__).parents[2] / "sample_runs"
HOSTILE = (
    "<script>window.hit=1</script>\x1b[31mred\u202egnp\x00'\"><img src=x onerror=window.hit=2>"
)
LONG = "A" * 1_000_000
CHART = "document.querySelector('.js-plotly-plot')"
SHARED = f"new Set({CHARTS}.map(c => c._fullLayout.xaxis.range.join())).size === 1"
LAST = f"Math.max(...{CHART}.data.map(t => t.x.length ? t.x[t.x.length - 1] : 0))"
PAGES = {
    "/": ".runs .badge",
    "/run/dying": DRAWN,
    "/run/means": DRAWN,
    "/compare?run=dying&run=healthy": DRAWN,
    "/responses/dying": ".grid",
    "/response/dying?step=100&id=0": ".response-head",
    "/run/dying?step=100": ".batch-group",
    "/config/dying": "h1",
    "/run/nowhere": "h1",
}
# Names of phases that reach over the ends of their band.
CUT_NAMES = """[...document.querySelectorAll(".graph .shape-group")].filter(g => {
  const [band, name] = [g.querySelector("path"), g.querySelector("text[data-unformatted]")];
  return name && band.getAttribute("d").endsWith("Z") && name.getComputedTextLength()
    > band.getBoundingClientRect().width && getComputedStyle(name).display !== "none";
}).map(g => g.textContent)"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Some short runs, and one that goes on; made-up numbers."""
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "some" / "r00", 140, dies=True)
    for i in range(1, 12):
        write_run(root / "some" / f"r{i:02}", 25)
    write_run(root / "dying", 140, dies=True)
    write_run(root / "healthy", 60)
    with lldscope.Recorder(root / "means") as recorder:
        for step in range(40):
            recorder.step(step=step, n_responses=8, reward_sum=4.0)
    record_hostile(root / "hostile")
    shutil.copytree(SAMPLES / "grpo", root / "grpo")
    with going_on(root / "live", group="first tries"):
        yield root


def record_hostile(path: Path) -> None:
    """A run whose tokens are hostile, long, unmeasured and not finite; one group, two classes."""
    texts = ["asked: ", HOSTILE, LONG, None, "nan", "tool <b>answer</b>", "end\n"]
    with lldscope.Recorder(path, name="<i>hostile</i>") as recorder:
        for number, correct in ((0, True), (1, False)):
            recorder.tokens(
                step=3, response_id=number, position=list(range(7)), token_id=list(range(7)),
                action_index=[None, 0, 0, 0, 0, None, 1],
                text=[*texts[:6], texts[6] if correct else "other"],
                logp_old=[None, -0.5, -1.0, None, math.nan, None, -0.1],
                logp_post=[None, -3.5, -0.5, None, -1.0, None, -0.1],
                entropy=[None, 1.0, 0.5, None, 0.1, None, 0.2],
            )
            recorder.actions(
                step=3, response_id=number, action_index=[0, 1], kind=["search", HOSTILE],
                n_tokens=[4, 1], logp_old_sum=[-1.5, -0.1], logp_post_sum=[-4.0, -0.1],
            )
        recorder.responses(
            step=3, response_id=[0, 1], group_id=0, data_source=HOSTILE, correct=[True, False],
            reward=[1.0, 0.0], n_actions=2, n_tokens=5, text=[HOSTILE, LONG],
        )
        recorder.step(step=3, n_responses=2, n_correct=1, reward_sum=1.0, time=time.time())


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    cache = tmp_path_factory.mktemp("cache")
    # read here, because a loaded machine takes longer than a page of a test may
    registry = RunRegistry(root, cache=cache / "lldscope")
    assert all(line.state or line.error for line in RunSummaries(registry).now(600.0))
    server = Server(root, cache)
    yield server
    server.stop()


@pytest.fixture
def tab(chromium: Any, server: Server) -> Iterator[Any]:
    """A fresh tab; the test fails on console errors and on requests to other hosts."""
    with open_page(chromium, server.address, height=800) as tab:
        yield tab


def last_step(tab: Any) -> float:
    return tab.evaluate(f"Math.max(...{CHART}.data[0].x)")


def test_run_page_draws_charts_bands_and_alarms(tab: Any) -> None:
    tab.goto("/run/some/r00")
    tab.wait_for_selector(DRAWN)
    until(tab, "document.querySelectorAll('.js-plotly-plot .main-svg').length >= 8 * 3")
    names = tab.locator(".js-plotly-plot").first.locator(".annotation text").all_text_contents()
    assert any("lld-collapse" in text for text in names), names
    assert "ago" in tab.locator(".run-head .status").inner_text()
    head = tab.locator(".run-head").bounding_box()
    assert head["height"] < 0.15 * 800, "most of the screen is the page's"
    charts = tab.locator(".chart h2").all_inner_texts()
    assert charts[:2] == ["Reward", "Δ of correct responses"]
    tab.locator(".story", has_text="what happened").wait_for()
    second = tab.locator(".charts .chart").nth(1).bounding_box()
    assert second["y"] < 800, "the story, and the charts that show it, are on the first screen"
    assert not tab.get_by_text("Retriever or tool dead").is_visible(), "the rest is folded"
    tab.get_by_text("Causes that look the same").click()
    assert tab.get_by_text("Retriever or tool dead").is_visible()


@pytest.mark.slow
def test_zoom_is_shared_and_survives_new_points(tab: Any) -> None:
    load_charts(tab, "/run/live")
    drag(tab)
    until(tab, f"{CHART}._fullLayout.xaxis.range[0] > 5")
    for _ in range(2):  # to where the next points come
        before = ranges(tab)[0][0]
        tab.keyboard.press(">")
        until(tab, f"{CHART}._fullLayout.xaxis.range[0] > {before}")
    until(tab, SHARED)
    zoomed = ranges(tab)
    last = last_step(tab)
    until(tab, f"Math.max(...{CHART}.data[0].x) > {min(last, zoomed[0][1])}")
    assert ranges(tab) == zoomed
    assert "zoom=" in tab.url
    tab.locator(".js-plotly-plot .nsewdrag").first.dblclick()
    until(tab, f"{CHARTS}.every(c => c._fullLayout.xaxis.range[0] < 1)")
    until(tab, f"{CHART}._fullLayout.xaxis.range[1] > {last}")
    assert "zoom=" not in tab.url


def test_comparison_overlays_runs_and_hides_one_in_all_charts(tab: Any) -> None:
    tab.goto("/compare?run=some/r00&run=some/r01&run=missing")
    tab.wait_for_selector(DRAWN)
    assert "no run “missing”" in tab.locator(".notice").inner_text()
    names = (
        "[...document.querySelectorAll('.js-plotly-plot')].map(c => c.data.map(t => t.name).join())"
    )
    assert tab.evaluate(names) == ["some/r00,some/r01"] * 8
    tab.locator(".shown-run").first.click()
    until(tab, f"({names}).every(n => n === 'some/r01')")
    tab.get_by_role("button", name="none", exact=True).click()
    until(tab, f"({names}).every(n => n === '')")
    tab.get_by_role("button", name="all", exact=True).click()
    until(tab, f"({names}).every(n => n === 'some/r00,some/r01')")
    assert "hide=" not in tab.url


def test_the_list_sorts_filters_groups_and_keeps_it_in_the_address(tab: Any) -> None:
    names = "[...document.querySelectorAll('.runs .run-link')].map(a => a.textContent)"
    tab.goto("/?by=group")
    until(tab, f"({names}).length === 18 && !document.body.innerText.includes('reading …')")
    until(tab, "document.querySelector('tr.run-group').innerText.startsWith('first tries')")
    tab.get_by_role("button", name="in groups").click()
    until(tab, f"({names})[0] === 'dying' && !location.search")
    tab.keyboard.press("/")
    tab.keyboard.type("r0")
    until(tab, f"({names}).length === 10")
    tab.get_by_role("button", name="run", exact=True).click()
    until(tab, f"({names})[0] === 'some/r00'")
    tab.get_by_role("button", name="run", exact=True).click()
    until(tab, f"({names})[0] === 'some/r09'")
    assert tab.locator("th[aria-sort=descending]").inner_text() == "run"
    for i in (9, 8):
        tab.get_by_role("checkbox", name=f"compare some/r0{i}").click()
    tab.locator("#find").fill("r01")
    until(tab, f"({names}).length === 1")
    assert tab.locator("#compare").inner_text() == "Compare 2 runs", "a filter hides, no more"
    assert "q=r01" in tab.url
    assert "sort=-run" in tab.url
    tab.goto("/?verdict=critical")
    until(tab, f"({names}).sort().join() === 'dying,grpo,some/r00'")


# -- steps -----------------------------------------------------------------------------------------


def choose(tab: Any, share: float) -> None:
    """Press the step bar at a share of its width."""
    box = tab.locator("#steps").bounding_box()
    tab.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)


def test_a_step_is_chosen_scrubbed_by_keys_and_shown_with_its_batch(tab: Any) -> None:
    load_charts(tab, "/run/dying")
    choose(tab, 70.5 / 140)
    tab.locator("#batch h2", has_text="Step 70").wait_for()
    assert "step=70" in tab.url
    word = tab.locator("#step-word")
    assert word.inner_text().startswith("step 70, ")
    spikes = f"{CHARTS}.filter(c => c.querySelector('.hoverlayer .spikeline, .hoverlayer .legend'))"
    until(tab, f"{spikes}.length === 8")
    for key, step in (("ArrowRight", 71), ("ArrowRight", 72), ("ArrowLeft", 71)):
        tab.keyboard.press(key)
        until(tab, f"location.search === '?step={step}'")
        assert word.inner_text().startswith(f"step {step}, ")
        at = f"{CHARTS}.every(c => !c._hoverdata || c._hoverdata[0].x === {step})"
        until(tab, at)
    slider = tab.get_by_role("slider", name="step")
    assert slider.get_attribute("aria-valuenow") == "71"
    assert "step 71" in slider.get_attribute("aria-valuetext")
    tab.locator("#batch h2", has_text="Step 71").wait_for()
    groups = tab.locator(".batch-group")
    assert groups.count() == 4
    groups.locator(".run-link").first.click()
    tab.locator("h1", has_text="of step 71").wait_for()
    tab.go_back()
    tab.locator("#batch h2", has_text="Step 71").wait_for()
    tab.get_by_role("button", name="close the batch").click()
    until(tab, "!location.search && !document.querySelector('#batch > *')")
    until_drawn(tab)
    box = tab.locator(".js-plotly-plot .nsewdrag").first.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    until(tab, "/step=(69|70)/.test(location.search)")
    tab.keyboard.press("Escape")
    until(tab, "!location.search")


@pytest.mark.slow
def test_a_page_goes_on_after_the_server_was_restarted(tab: Any, server: Server) -> None:
    load_charts(tab, "/run/live")
    failed: list[str] = []
    tab.on("requestfailed", lambda r: failed.append(r.url))
    server.stop()
    before = tab.evaluate(LAST)
    until(tab, lambda: bool(failed))
    server.start()
    until(tab, f"{LAST} > {before}")
    until(tab, lambda: not tab.unanswered)  # also those that were under way in between
    # that nobody answered meanwhile is the browser's to say, and nothing else may be wrong
    meant = ("net::ERR_", "the server did not respond")
    tab.faults[:] = [f for f in tab.faults if not any(m in f for m in meant)]


def test_a_swipe_over_a_chart_scrolls_and_a_link_to_an_alarm_lands_on_it(
    chromium: Any, server: Server
) -> None:
    address = server.address
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
    tab.goto(f"{address}/run/dying#alarm-lld-decay")
    tab.locator("#alarm-lld-decay .message").wait_for()
    top = "document.getElementById('alarm-lld-decay').getBoundingClientRect().top"
    until(tab, f"{top} >= 0 && {top} < 400")
    context.close()


@pytest.mark.slow
def test_no_page_is_wider_than_a_phone_or_breaks_the_content_policy(tab: Any) -> None:
    """What breaks the policy is an error of the console."""
    tab.set_viewport_size({"width": 390, "height": 844})
    for path, there in PAGES.items():
        tab.goto(path)
        tab.wait_for_selector(there)
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390, path
        assert tab.evaluate(CUT_NAMES) == [], "a phase has its whole name or none"
        assert tab.faults == [], path
    # and the wall stands: a script that is put into a page does not run
    tab.evaluate(
        "const s = document.createElement('script'); s.textContent = 'window.hit = 1';"
        "document.body.append(s);"
        "const i = document.createElement('img'); i.setAttribute('onerror', 'window.hit = 1');"
        "i.src = 'data:x'; document.body.append(i);"
    )
    until(tab, lambda: sum("Content Security Policy" in f for f in tab.faults) == 2)
    assert tab.evaluate("window.hit") is None
    tab.faults.clear()


@pytest.mark.slow
def test_two_clicks_lead_from_an_alarm_to_the_tokens_that_lost(tab: Any) -> None:
    tab.goto("/run/grpo#alarm-lld-decay")
    alarm = tab.locator("#alarm-lld-decay")
    alarm.get_by_text("Responses that lost most likelihood at step 54").click()
    tab.locator(".grid tbody .run-link").first.click()
    token = tab.locator(".tok.lost.heavy[role=option]")
    token.first.wait_for()
    status = tab.locator("#token-status")
    token.first.hover()
    for word in ("Δ −", "log π old −", "post −", "entropy", "action"):
        assert word in status.inner_text()
    assert tab.locator(".tool").first.inner_text().startswith("tool text")
    assert tab.get_by_text("Beside it: response").count() == 1


def test_hostile_tokens_do_nothing_in_a_browser(tab: Any) -> None:
    for address in ("/response/hostile?step=3&id=0", "/responses/hostile", "/run/hostile?step=3"):
        tab.goto(address)
        tab.locator("h1").wait_for()
        until(tab, "[...document.images].every((image) => image.complete)")
        assert tab.evaluate("window.hit") is None
        assert tab.evaluate("document.querySelectorAll('main script, main img[src=x]').length") == 0
    tab.goto("/response/hostile?step=3&id=0")
    tab.locator(".words .tok").first.wait_for()
    text = tab.locator(".words").first.inner_text()
    assert "<script>window.hit=1</script>␛[31mred⟨U+202E⟩gnp␀" in text
    assert "(1,000,000 characters)" in text
