"""`make docs`: the pages that are made from code, and the API reference in build/api."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from lldscope.core.atlas import trainers
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


def checks() -> str:
    """The checks of `lldscope lint` as a table."""
    rows = [f"| `{c.id}` | {c.asks} | {c.needs} | {c.effect} |" for c in CHECKS]
    return "\n".join(["| check | asks | needs | a fault means |", "|---|---|---|---|", *rows])


def metrics() -> str:
    """The atlas, trainer by trainer."""
    return "".join(printed("schema", "--markdown", "--trainer", name) for name in trainers())


def write_api(folder: Path) -> None:
    """The API reference, from the docstrings."""
    subprocess.run([sys.executable, "-m", "pdoc", "-o", folder, *API], check=True)


if __name__ == "__main__":
    replace_table(DOCS / "schema.md", printed("schema", "--markdown"))
    replace_table(DOCS / "metrics.md", metrics())
    replace_table(DOCS / "settings.md", printed("train", "--settings"))
    replace_block(DOCS / "alarms.md", "rules", printed("rules", "list", "--markdown"))
    replace_block(DOCS / "lint.md", "checks", checks())
    folder = DOCS.parent / "build" / "api"
    write_api(folder)
    print(f"{folder / 'index.html'}")
