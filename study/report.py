"""`python -m study report`: the numbers of study.md and alarm-rates.md in docs/research and
what others repeat of them, from the banks.

The pages are written by hand; between `<!-- NAME -->` and `<!-- end of NAME -->` stands what is
generated, and is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from lldscope.core.errors import LldscopeError

from . import analyses, comparisons, cures, mechanism, order, tables
from .arms import BANK, ROOT
from .judged import BLOCKS, judged
from .results import Results, collect

PAGE = ROOT / "docs" / "research" / "study.md"
RATES = ROOT / "docs" / "research" / "alarm-rates.md"
SUMMARIES = (ROOT / "README.md",)
"""Pages with the first block of `judged` alone."""
PICTURES = {
    "rewards": "Reward of every run, arm by arm: ten-step means, × collapse, ▽ first decay alarm, "
    "red where the run collapsed",
    "finals": "Final reward of every run: red where it collapsed, one shape per warm start",
    "signals": "Signals of GRPO and LLDS: mean over seeds and one standard deviation",
    "actions": "Δ by action index, and likelihood by number of searches",
}


def blocks(results: Results) -> dict[str, Callable[[], str]]:
    """Name of the block → what makes its Markdown."""
    makers = (
        tables.progress, tables.outcomes, tables.alarms, comparisons.verdict,
        comparisons.comparisons, analyses.periods, mechanism.levers, mechanism.faults,
        order.order, cures.cures,
    )
    return {maker.__name__.replace("_", "-"): partial(maker, results) for maker in makers}


def filled(page: str, name: str, text: str) -> str:
    """The page with the block's text replaced; raises LldscopeError if it has no such block."""
    mark, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(mark)}.*?{re.escape(end)}", re.S)
    if not pattern.search(page):
        raise LldscopeError(f"The page has no block {mark} … {end}")
    return pattern.sub(lambda _: f"{mark}\n{text}\n{end}", page)


def write(bank: Path = BANK, page: Path = PAGE, pictures: bool = True) -> list[Path]:
    """Fill every block of the page, and make the pictures that there are runs for; the files."""
    results = collect(bank)
    text = page.read_text("utf-8")
    for name, make in blocks(results).items():
        text = filled(text, name, make())
    files = _pictures(results, page.parents[1] / "images") if pictures else {}
    if pictures:
        for name, words in PICTURES.items():
            link = f"![{words}](../images/{files[name].name})" if name in files else "No runs yet."
            text = filled(text, f"picture-{name}", link)
    page.write_text(text, "utf-8")
    return [page, *files.values()]


def write_rates(page: Path = RATES) -> Path:
    """Fill the tables of how often the alarms are wrong; the file."""
    text = page.read_text("utf-8")
    for name, block in judged().items():
        text = filled(text, name, block)
    page.write_text(text, "utf-8")
    return page


def write_summaries(page: Path = RATES, pages: Sequence[Path] = SUMMARIES) -> list[Path]:
    """Repeat what `page` says in short on other pages; the files."""
    name = BLOCKS[0]
    block = page.read_text("utf-8").split(f"<!-- {name} -->\n")[1].split("\n<!-- end of")[0]
    for other in pages:
        other.write_text(filled(other.read_text("utf-8"), name, block), "utf-8")
    return list(pages)


def _pictures(results: Results, folder: Path) -> dict[str, Path]:
    from .pictures import figures, photograph

    charts = figures(results)
    return dict(zip(charts, photograph(charts, folder), strict=True))
