"""The dashboard in a real browser: every everyday control, on live, long, broken and many runs; no
other host is asked, and the console stays empty."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
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
    refreshed,
    show_token,
    ticked,
    until,
)
from lldscope_dashboard.data.run_registry import RunRegistry
from lldscope_dashboard.data.run_summaries import RunSummaries
from made_up_runs import write_run, write_step

import lldscope

pytestmark = pytest.mark.browser
STEPS = 20_000
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
TITLES = "[...document.querySelectorAll('.chart h2')].slice(8).map(h => h.textContent).join()"
# Names of phases that reach over the ends of their band.
CUT_NAMES = """[...document.querySelectorAll(".graph .shape-group")].filter(g => {
  const [band, name] = [g.querySelector("path"), g.querySelector("text[data-unformatted]")];
  return name && band.getAttribute("d").endsWith("Z") && name.getComputedTextLength()
    > band.getBoundingClientRect().width && getComputedStyle(name).display !== "none";
}).map(g => g.textContent)"""
NAMES = ("rewards/format", "rewards/answer", "actor/ppo_kl", "lr_group/0")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Some short runs, with other metrics among them, and one that goes on; made-up numbers."""
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "some" / "r00", 140, dies=True)
    for i in range(1, 12):
        write_run(root / "some" / f"r{i:02}", 25)
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
    with going_on(root / "live", group="first tries"):
        yield root


def write_long(path: Path) -> None:
    """20,000 steps with a reward and a gradient norm, and one peak of each."""
    rng = np.random.default_rng(0)
    steps = np.arange(STEPS)
    reward, norm = rng.uniform(0.2, 0.4, STEPS), rng.gamma(9, 0.1, STEPS)
    reward[3_141], norm[2_718] = 0.99, 77.0
    with lldscope.Recorder(path) as recorder:
        for part in np.array_split(steps, 10):
            recorder.updates(
                step=part, update=0, grad_norm=norm[part], grad_finite=True, skipped=False
            )
            recorder.step(
                step=part, time=1e9 + part, n_responses=100, reward_sum=100 * reward[part]
            )
            recorder.flush()


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


@pytest.mark.slow
def test_list_shows_runs_and_leads_to_a_comparison(tab: Any) -> None:
    tab.goto("/")
    row = tab.locator("tr", has_text="some/r00")
    row.locator(".badge").wait_for()  # the list is there before its runs are read
    assert "critical" in row.inner_text()
    assert row.locator("img.spark").count() == 2
    for name in ("some/r00", "some/r01"):
        tab.get_by_role("checkbox", name=f"compare {name}").click()
    refreshed(tab, "list-tick", 1)  # must not take the choice away
    tab.get_by_text("Compare 2 runs").click()
    tab.wait_for_selector(DRAWN)
    assert tab.url.endswith("/compare?run=some%2Fr00&run=some%2Fr01")


def test_run_page_draws_charts_bands_and_alarms(tab: Any) -> None:
    tab.goto("/run/some/r00")
    tab.wait_for_selector(DRAWN)
    until(tab, "document.querySelectorAll('.js-plotly-plot .main-svg').length >= 8 * 3")
    first = tab.locator(".js-plotly-plot").first
    labels = first.locator(
        ".shapelayer text, .shape-label text, .shape-group text"
    ).all_text_contents()
    assert any("collapse" in text for text in labels), labels
    names = first.locator(".annotation text").all_text_contents()
    assert any("lld-collapse" in text for text in names), names
    assert tab.locator(".alarm .rule").first.text_content().startswith("lld-")
    status = tab.locator(".run-head .status").inner_text()
    assert "critical" in status
    assert "ago" in status
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


@pytest.mark.slow
def test_the_pointer_is_shown_in_all_charts(tab: Any) -> None:
    load_charts(tab, "/run/some/r00")
    box = tab.locator(".js-plotly-plot .nsewdrag").first.bounding_box()
    pointed = (
        f"{CHARTS}.filter(c => c.querySelector('.hoverlayer .legend, .hoverlayer .hovertext'))"
    )
    tab.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.5)
    until(tab, f"{pointed}.length === 8")
    tab.mouse.move(5, 5)
    until(tab, f"{pointed}.length === 0")


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


@pytest.mark.slow
def test_20_000_steps_are_thinned_with_their_peaks_and_asked_again_on_zoom(
    tab: Any, root: Path
) -> None:
    write_long(root / "long")
    load_charts(tab, "/run/long?mean=1")
    foot = tab.locator(".foot").first.inner_text()
    points = foot.split(" points")[0].split(" · ")[-1]
    count, whole = (int(w.replace(",", "")) for w in points.split(" of "))
    assert 1000 <= count <= 2000
    assert whole == STEPS
    reward = f"{CHART}.data[0]"
    assert tab.evaluate(f"Math.max(...{reward}.y)") == 0.99
    assert tab.evaluate(f"{reward}.x[{reward}.y.indexOf(0.99)]") == 3_141
    tab.goto("/run/long?mean=1&zoom=3130,3180")
    tab.wait_for_selector(DRAWN)
    until(tab, f"{reward} && {reward}.x.length === 53 || {reward}.x.length === 52")
    assert "points" not in tab.locator(".foot").first.inner_text()


def test_the_list_sorts_filters_groups_and_keeps_it_in_the_address(tab: Any) -> None:
    names = "[...document.querySelectorAll('.runs .run-link')].map(a => a.textContent)"
    tab.goto("/?by=group")
    until(tab, f"({names}).length > 16 && !document.body.innerText.includes('reading …')")
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
    until(tab, f"({names}).sort().join() === 'dying,some/r00'")


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
    deltas = [float(x.split()[-1].replace("−", "-")) for x in
              groups.locator("header .delta").all_inner_texts()]
    assert deltas == sorted(deltas)
    tab.locator(".batch-group .run-link").first.click()
    tab.locator("h1", has_text="of step 71").wait_for()
    tab.go_back()
    tab.locator("#batch h2", has_text="Step 71").wait_for()
    tab.get_by_role("button", name="close the batch").click()
    until(tab, "!location.search && !document.querySelector('#batch > *')")
    box = tab.locator(".js-plotly-plot .nsewdrag").first.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    until(tab, "/step=(69|70)/.test(location.search)")
    tab.keyboard.press("Escape")
    until(tab, "!location.search")


def test_every_press_shows_at_once_also_while_the_server_is_silent(tab: Any) -> None:
    load_charts(tab, "/run/dying")
    tab.route("**/_dash-update-component", lambda route: None)
    for setting in ("x=time", "mean=25", "log~reward"):
        button = f"document.querySelector('[data-set=\"{setting}\"]')"
        tab.evaluate(f"{button}.click()")
        until(tab, f"{button}.ariaPressed === 'true'")
    tab.locator("#pause").click()
    until(tab, "document.querySelector('#pause').textContent === 'Resume'")


def test_targets_are_24_pixels_and_charts_have_a_name_and_words(tab: Any) -> None:
    load_charts(tab, "/run/dying")
    small = tab.evaluate("""() => {
      document.querySelectorAll('details.fold').forEach(d => { d.open = true; });
      return [...document.querySelectorAll('button, summary, .page-head a.button')]
        .filter(e => e.checkVisibility())
        .filter(e => Math.min(e.offsetWidth, e.offsetHeight) < 24).map(e => e.outerHTML);
    }""")
    assert small == []
    for chart in tab.locator(".chart").all():
        assert chart.locator("[role=img]").get_attribute("aria-label").startswith("chart of ")
        assert "→" in chart.locator(".foot").inner_text()


def test_a_new_alarm_is_read_aloud(tab: Any, root: Path) -> None:
    with lldscope.Recorder(root / "falls") as recorder:
        for step in range(60):
            write_step(recorder, step, dies=False, at=1e9 + step)
        recorder.flush()
        tab.goto("/run/falls")
        until(tab, "document.title.endsWith('falls – lldscope')")
        tab.wait_for_selector(DRAWN)
        status = tab.locator(".answer")
        assert status.get_attribute("role") == "status"
        assert "No alarm" in status.inner_text()
        for step in range(60, 140):
            write_step(recorder, step, dies=True, at=1e9 + step)
        recorder.flush()
        until(tab, "Boolean(document.querySelector('.answer[role=status] a[href*=\"#alarm-\"]'))")
    shutil.rmtree(root / "falls")


@pytest.mark.slow
def test_a_hidden_tab_asks_nothing_and_one_that_is_seen_again_goes_on(tab: Any) -> None:
    load_charts(tab, "/run/live")
    requests: list[str] = []
    hide = "Object.defineProperty(document, 'hidden', {{get: () => {}, configurable: true}})"
    tab.evaluate(hide.format("true"))
    ticked(tab, "clock", 1)
    until(tab, lambda: not tab.unanswered)
    tab.on("request", lambda r: requests.append(r.url))
    ticked(tab, "clock", 3)
    assert requests == []
    tab.evaluate(hide.format("false"))
    before = tab.evaluate(LAST)
    until(tab, f"{LAST} > {before}")


@pytest.mark.slow
def test_a_run_whose_part_breaks_a_run_that_is_deleted_and_one_that_begins(
    tab: Any, root: Path
) -> None:
    tab.goto("/run/later")
    tab.get_by_text("Waiting for “later”").wait_for()
    path = write_run(root / "later", 12)
    tab.wait_for_selector(DRAWN)
    part = next((path / "actions").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-11])
    load_charts(tab, "/run/later")
    tab.locator(".notice").get_by_text(part.name).wait_for()
    shutil.rmtree(path)
    tab.get_by_text("The last charts are shown.").wait_for()
    assert tab.locator(DRAWN).count() >= 8
    with lldscope.Recorder(path, name="begun anew"):
        pass
    load_charts(tab, "/run/later")
    tab.get_by_text("No step has been recorded yet").wait_for()


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.slow
def test_no_page_is_wider_than_a_phone(chromium: Any, server: Server, scheme: str) -> None:
    with open_page(chromium, server.address) as tab:
        tab.set_viewport_size({"width": 390, "height": 844})
        tab.emulate_media(color_scheme=scheme)
        for path, there in PAGES.items():
            tab.goto(path)
            tab.wait_for_selector(there)
            assert tab.evaluate("document.documentElement.scrollWidth") <= 390, path
            assert tab.evaluate(CUT_NAMES) == [], "a phase has its whole name or none"


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
    tab.goto("/run/means")
    tab.wait_for_selector(DRAWN)
    assert [h.inner_text() for h in tab.locator(".chart h2").all() if h.is_visible()] == ["Reward"]
    tab.get_by_text("Not in this log: Δ of correct responses").wait_for()


def test_the_x_axis_changes_and_a_zoom_ends(tab: Any) -> None:
    load_charts(tab, "/run/dying?zoom=20,40")
    until(tab, f"{CHARTS}[0]._fullLayout.xaxis.range[0] === 20")
    tab.get_by_role("button", name="tokens").click()
    until(tab, "location.search === '?x=tokens'")
    until(tab, f"{CHART}.layout.meta.x === 'tokens'")
    until(tab, f"{CHART}._fullLayout.xaxis.range.join() === {CHART}.layout.meta.whole.join()")


def choose_metric(tab: Any, text: str, name: str) -> None:
    """Find a metric in the field, and choose it, or no longer."""
    tab.locator("#more").click()
    tab.locator(".dash-dropdown-search").fill(text)
    tab.locator(".dash-dropdown-content").get_by_text(name).click()
    tab.keyboard.press("Escape")


@pytest.mark.slow
def test_metrics_are_found_added_and_removed_without_a_reload(tab: Any) -> None:
    load_charts(tab, "/run/one")
    tab.evaluate("window.here = true")
    choose_metric(tab, "format", "rewards/format")
    until(tab, f"({TITLES}) === 'rewards/format'")
    choose_metric(tab, "actor", "actor/ppo_kl")
    until(tab, f"({TITLES}) === 'rewards/format,actor/ppo_kl'")
    until(tab, f"{CHARTS}.length === 10 && {CHARTS}.every(c => c._fullLayout)")
    last = f"{CHARTS}[9]._fullLayout.yaxis.type"
    assert tab.evaluate(last) == "linear"
    tab.locator(".chart").last.get_by_role("button", name="log").click()
    until(tab, f"{last} === 'log'")
    until(tab, "location.search.includes('log=')")
    assert tab.evaluate("window.here"), "the page was not loaded again"
    tab.goto(tab.url)
    until(tab, f"({TITLES}) === 'rewards/format,actor/ppo_kl'")
    until(tab, f"{CHARTS}.length === 10 && {CHARTS}.every(c => c._fullLayout)")
    assert tab.evaluate(last) == "log"
    choose_metric(tab, "format", "rewards/format")
    until(tab, f"({TITLES}) === 'actor/ppo_kl'")
    tab.goto("/compare?run=one&run=two&chart=scalar/rewards/answer")
    until(tab, f"({TITLES}) === 'rewards/answer'")
