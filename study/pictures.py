"""The pictures of docs/research/study.md: plotly, photographed by chromium."""

from __future__ import annotations

import tempfile
from pathlib import Path

import plotly.graph_objects as go
from playwright.sync_api import sync_playwright
from plotly.subplots import make_subplots

from benchmarks.page import FLAGS
from lldscope.core.errors import LldscopeError
from lldscope.core.palette import BLUE, VERMILLION

from .analyses import SHOWN, SIGNALS, band, delta_by_action, likelihood_by_searches, trailing
from .results import Results

COLORS = dict(zip(SHOWN, (VERMILLION, BLUE), strict=True))
CHROMIUM = "/usr/bin/chromium"
WIDTH, PANEL = 1200, 210
WARMS = ("circle", "square", "diamond")  # of the dots: one shape per warm start


def figures(results: Results) -> dict[str, go.Figure]:
    """Name of the picture → figure; only those that there are runs for."""
    result: dict[str, go.Figure] = {}
    if results.runs:
        result["rewards"] = rewards(results)
        result["finals"] = finals(results)
    if any(results.of(arm) for arm in SHOWN):
        result["signals"] = signals(results)
        result["actions"] = actions(results)
    return result


def rewards(results: Results) -> go.Figure:
    """A panel per arm, a line per seed; × where it collapsed, ▽ at the first decay alarm."""
    arms = list(dict.fromkeys(r.plan.arm for r in results.runs))
    columns = 4
    titles = [f"{arm.name} ({len(results.of(arm.name))} runs)" for arm in arms]
    figure = _grid(titles, columns, shared_y="all")
    for i, arm in enumerate(arms):
        at = {"row": i // columns + 1, "col": i % columns + 1}
        for r in results.of(arm.name):
            series = trailing(r.signals, "reward")
            color = VERMILLION if r.collapsed else BLUE
            figure.add_scatter(
                x=series.index, y=series, mode="lines", line={"color": color, "width": 1}, **at
            )
            for step, symbol in ((r.collapse_step, "x"), (r.decay, "triangle-down-open")):
                if step is not None:
                    mark = {"symbol": symbol, "color": color, "size": 8}
                    figure.add_scatter(
                        x=[step], y=[series[step]], mode="markers", marker=mark, **at
                    )
    figure.update_yaxes(rangemode="tozero")
    return figure


def finals(results: Results) -> go.Figure:
    """Final reward of every run, arm by arm."""
    figure = go.Figure()
    for r in results.runs:
        color = VERMILLION if r.collapsed else BLUE
        shape = WARMS[r.plan.seed % len(WARMS)]
        figure.add_scatter(
            x=[r.plan.arm.name], y=[r.final], mode="markers",
            marker={"color": color, "symbol": shape, "size": 9, "opacity": 0.75},
        )
    figure.update_yaxes(rangemode="tozero", title="reward, last 10 steps")
    return _styled(figure, 380).update_layout(margin_t=10)


def signals(results: Results) -> go.Figure:
    """Every signal of the analyses: mean over seeds, and one standard deviation around it."""
    columns = 3
    titles = [s.words + (f", {s.unit}" if s.unit else "") for s in SIGNALS]
    figure = _grid(titles, columns)
    for i, signal in enumerate(SIGNALS):
        at = {"row": i // columns + 1, "col": i % columns + 1}
        for arm in _arms(results):
            b = band(results.of(arm), signal.column)
            edge = {"mode": "lines", "line": {"width": 0}, "showlegend": False, **at}
            figure.add_scatter(x=b.step, y=b.mean - b.sd, **edge)
            figure.add_scatter(
                x=b.step, y=b.mean + b.sd, fill="tonexty", fillcolor=_faint(COLORS[arm]), **edge
            )
            figure.add_scatter(
                x=b.step, y=b.mean, mode="lines", line={"color": COLORS[arm], "width": 2},
                name=f"{arm} ({b.n} runs)", showlegend=i == 0, **at,
            )
    return _with_legend(figure)


def actions(results: Results) -> go.Figure:
    """Δ of correct responses by action index, and likelihood by number of searches."""
    titles = [*(f"Δ of action {k}, nats" for k in range(4)), "correct: nats/token by searches",
              "incorrect: nats/token by searches"]
    figure = _grid(titles, 3)
    for arm in _arms(results):
        color = COLORS[arm]
        line = {"mode": "lines+markers", "line": {"color": color}, "marker": {"size": 4}}
        by_action = delta_by_action(results.of(arm))
        for k in range(4):
            rows = by_action[(by_action["key"] == k) & (by_action["n"] >= 10)]
            figure.add_scatter(
                x=rows["step"], y=rows["delta"], name=arm, showlegend=k == 0, **line,
                row=k // 3 + 1, col=k % 3 + 1,
            )
        by_searches = likelihood_by_searches(results.of(arm))
        for col, correct in ((2, True), (3, False)):
            rows = by_searches[(by_searches["correct"] == correct) & (by_searches["n"] >= 100)]
            figure.add_scatter(
                x=rows["key"], y=rows["logp"], showlegend=False, row=2, col=col, **line
            )
    return _with_legend(figure)


def _arms(results: Results) -> list[str]:
    return [arm for arm in SHOWN if results.of(arm)]


# -- style ----------------------------------------------------------------------------------------


def _grid(titles: list[str], columns: int, shared_y: str | bool = False) -> go.Figure:
    rows = -(-len(titles) // columns)
    figure = make_subplots(
        rows, columns, subplot_titles=titles, shared_yaxes=shared_y,
        horizontal_spacing=0.05, vertical_spacing=0.3 / rows if rows > 1 else 0.3,
    )
    figure.update_annotations(font_size=12)
    return _styled(figure, 60 + PANEL * rows)


def _styled(figure: go.Figure, height: int) -> go.Figure:
    figure.update_layout(
        width=WIDTH, height=height, template="plotly_white", showlegend=False,
        font={"family": "DejaVu Sans, sans-serif", "size": 11},
        margin={"l": 45, "r": 15, "t": 40, "b": 35},
    )
    return figure


def _with_legend(figure: go.Figure) -> go.Figure:
    """The legend above the panels."""
    place = {"orientation": "h", "y": 1, "yref": "container", "yanchor": "top"}
    return figure.update_layout(showlegend=True, margin_t=60, legend=place)


def _faint(color: str) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def photograph(figures: dict[str, go.Figure], folder: Path) -> list[Path]:
    """Save each figure as folder/study-NAME.png; without chromium this raises LldscopeError."""
    if not figures:
        return []
    if not Path(CHROMIUM).is_file():
        raise LldscopeError(f"The pictures need {CHROMIUM}: make chromium")
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for name, figure in figures.items():
            page = Path(scratch) / f"{name}.html"
            figure.write_html(page, config={"staticPlot": True})
            size = {"width": WIDTH + 50, "height": int(figure.layout.height) + 50}
            tab = browser.new_page(viewport=size)
            tab.goto(page.as_uri())
            tab.wait_for_selector(".js-plotly-plot .main-svg", timeout=30_000)
            tab.wait_for_timeout(500)
            files.append(folder / f"study-{name}.png")
            tab.locator(".js-plotly-plot").screenshot(path=files[-1])
            tab.close()
        browser.close()
    return files
