"""`make docs`: the pages that are made from code, and the API reference in build/api."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from lldscope.core import atlas
from lldscope.core.safe_text import as_sentence
from lldscope.core.schema import TABLES, Table
from lldscope.diagnosis.registry import RULES, STALLED, Rule
from lldscope.diagnosis.rule import Declaration, tallies
from lldscope.diagnosis.rules.measures import REPORTS
from lldscope.lint import CHECKS

DOCS = Path(__file__).parent
API = (
    "lldscope.recording.recorder",
    "lldscope.runs",
    "lldscope.losses",
    "lldscope.integrations.trl",
)


def printed(*arguments: str) -> str:
    """What the command line prints."""
    command = [sys.executable, "-m", "lldscope", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=True).stdout


def replace_table(page: Path, text: str) -> None:
    """Everything after the title and the first paragraph."""
    title, about, _ = page.read_text("utf-8").split("\n\n", 2)
    page.write_text(f"{title}\n\n{about}\n\n{text.strip()}\n", "utf-8")


def replace_block(page: Path, name: str, text: str) -> None:
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.S)
    block = f"{start}{text.strip()}\n{end}"
    page.write_text(pattern.sub(lambda _: block, page.read_text("utf-8")), "utf-8")


def table(head: str, rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the cells of the head are separated by bars."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [head.split(" | "), ["---"] * (head.count(" | ") + 1), *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def checks() -> str:
    """The checks of `lldscope lint`."""
    head = "check | asks | needs | a fault means"
    return table(head, [(f"`{c.id}`", c.asks, c.needs, c.effect) for c in CHECKS])


def schema() -> str:
    """The tables of a run."""
    return "\n".join(columns(each) for each in TABLES.values())


def columns(of: Table) -> str:
    """A table of a run; the columns that every table has are explained above."""
    rows = [
        (f"`{c.name}`", c.arrow, c.unit, "" if c.required else "yes", c.meaning)
        for c in of.columns
        if c.name not in ("attempt", "rank") and not c.meaning.startswith(("RL step.", "RL step, "))
    ]
    head = f"column | type | unit | nullable | meaning ({of.grain})"
    return f"## {of.name}\n\n{table(head, rows)}"


def metrics() -> str:
    """The atlas: a row for each trainer, and below it its metrics; names of the same one share a
    row."""
    rows: list[tuple[str, ...]] = []
    for source, group in groupby(atlas.metrics(), key=lambda m: m.source):
        names: dict[tuple[str, ...], list[str]] = {}
        for m in group:
            signal = f"`{m.signal}`" if m.signal else ""
            times = "" if m.factor == 1 else f" · {m.factor:g}"
            notes = "; ".join(filter(None, (m.differs, m.caution)))
            cells = (m.quantity, m.over, m.unit, signal + times, notes, m.how)
            names.setdefault(cells, []).append(f"`{m.key}`")
        rows.append((f"**{source}**", f"from {m.files}; {m.date}", *[""] * 5))
        rows += [(", ".join(keys), *cells) for cells, keys in names.items()]
    head = (
        "metric | what it is | over | unit | signal | how it differs, when it misleads | known by"
    )
    return table(head, rows)


def rules() -> str:
    """The alarms."""
    head = "rule, severity, fired in runs that held | what it means, when it fires, what to do"
    return table(head, [about(rule) for rule in (*RULES, STALLED)])


def about(rule: Declaration) -> tuple[str, str]:
    needs = " or ".join(f"`{name}`" for name in rule.needs) or "the files of the run"
    needs += "".join(f", and `{name}`" for name in rule.needs_too)
    steps = rule.for_steps if isinstance(rule, Rule) else 1
    delay = "at once" if steps == 1 else f"after {steps} steps"
    words = [
        ("", rule.meaning), (f"**Fires {delay}, from {needs}:** ", rule.evidence),
        ("**Do:** ", rule.advice), ("**Confused with:** ", rule.confused_with),
    ]
    if rule.promise not in ("", REPORTS):
        words.append(("**False alarms:** ", f"{rule.promise}."))
    count = "<br>{} of {}".format(*tallies()[rule.id]) if rule.id in tallies() else ""
    name = f"<a id=\"{rule.id}\"></a>**{rule.id}**<br>{rule.severity}{count}"
    return name, "<br>".join(f"{lead}{as_sentence(text)}" for lead, text in words)


def write_api(folder: Path) -> None:
    """The API reference, from the docstrings."""
    subprocess.run([sys.executable, "-m", "pdoc", "-o", folder, *API], check=True)


if __name__ == "__main__":
    replace_table(DOCS / "schema.md", schema())
    replace_table(DOCS / "metrics.md", metrics())
    replace_table(DOCS / "settings.md", printed("train", "--settings"))
    replace_block(DOCS / "alarms.md", "rules", rules())
    replace_block(DOCS / "lint.md", "checks", checks())
    folder = DOCS.parent / "build" / "api"
    write_api(folder)
    print(f"{folder / 'index.html'}")
