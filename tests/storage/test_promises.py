"""Each promise of docs/store.md names the test that holds it, and that test exists."""

from __future__ import annotations

import os
import re
from pathlib import Path

import lldscope
from lldscope.storage import json_files

STORE = Path(__file__).parents[2] / "docs" / "store.md"
LINK = re.compile(r"\]\((\.\./tests/[\w/]+\.py)#(\w+)\)")


def rows_of_tables() -> list[str]:
    """The rows of tables whose last column is `test`."""
    rows, inside = [], False
    for line in STORE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            inside = False
        elif line.rstrip("| ").endswith("test"):
            inside = True
        elif inside and not line.startswith("|---"):
            rows.append(line)
    return rows


def test_every_promise_has_a_test():
    rows = rows_of_tables()
    assert len(rows) > 20
    for row in rows:
        assert LINK.search(row.split("|")[-2]), row


def test_the_tests_exist():
    links = LINK.findall(STORE.read_text(encoding="utf-8"))
    assert len(links) > 30
    for file, name in links:
        source = (STORE.parent / file).read_text(encoding="utf-8")
        assert f"\ndef {name}(" in source, f"{file} has no {name}"


def test_a_part_is_durable_before_it_is_listed(tmp_path, monkeypatch):
    """What can be tested of a power cut: the contents are flushed, then renamed, then listed."""
    order: list[str] = []
    sync, rename, append = os.fsync, os.replace, json_files.append_line

    def path_of(handle: int) -> Path:
        return Path(os.readlink(f"/proc/self/fd/{handle}"))

    def fsync(handle: int) -> None:
        order.append(f"flush {path_of(handle).name.split('.')[0]}")
        sync(handle)

    def replace(source: Path, target: Path) -> None:
        order.append(f"rename {Path(target).name.split('.')[0]}")
        rename(source, target)

    def append_line(path: Path, value: object) -> None:
        order.append(f"list {path.parent.name}")
        append(path, value)

    with lldscope.Recorder(tmp_path / "r") as recorder:
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "replace", replace)
        monkeypatch.setattr(json_files, "append_line", append_line)
        recorder.step(step=0)
        recorder.flush()
        part = "a1-r0-000001"
        assert order[:4] == [f"flush {part}", f"rename {part}", "list manifest", "flush a1-r0"]
        monkeypatch.undo()
