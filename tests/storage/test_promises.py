"""Each sentence of SECURITY.md, docs/security.md and docs/store.md that promises something names
the test that fails if it is untrue: in the row of its table, or in tests/cases/promises.txt."""

from __future__ import annotations

import re
from pathlib import Path

import promises
import pytest

ROOT = Path(__file__).parents[2]
END_OF_SENTENCE = re.compile(r"(?<=[.:;])\s+(?=[A-Z`])")


def table() -> dict[str, dict[str, list[str]]]:
    """Document → how a sentence begins → its tests."""
    documents: dict[str, dict[str, list[str]]] = {}
    for document, (begins, tests) in promises.table(promises.PROMISES):
        documents.setdefault(document, {})[begins] = [] if tests == "-" else tests.split(", ")
    return documents


def sentences(document: str) -> list[str]:
    """Of a document, without code and headings; a row of a table is one."""
    text = re.sub(r"```.*?```", "", (ROOT / document).read_text("utf-8"), flags=re.S)
    result = []
    for block in re.split(r"\n\s*\n", text):
        lines = [line for line in block.splitlines() if not line.startswith(("#", "|--"))]
        if any(line.startswith("|") for line in lines):
            result += lines
            continue
        for item in re.split(r"\n(?=- )", "\n".join(lines)):
            result += filter(None, END_OF_SENTENCE.split(" ".join(item.split())))
    return result


@pytest.mark.parametrize("document", table())
def test_every_promise_has_a_test(document):
    begins = table()[document]
    used = set()
    for sentence in sentences(document):
        matching = [begin for begin in begins if sentence.startswith(begin)]
        names_its_test = sentence.startswith("|") and (
            promises.LINK.search(sentence.split("|")[-2]) or sentence.rstrip("| ").endswith("test")
        )
        assert names_its_test or len(matching) == 1, f"{document}: {sentence}"
        used |= {*matching}
    assert used == begins.keys(), "a sentence that is gone"


def test_the_tests_exist():
    names = {test for begins in table().values() for tests in begins.values() for test in tests}
    text = (ROOT / "docs/store.md").read_text("utf-8")
    names |= {f"{file}::{name}" for file, name in promises.LINK.findall(text)}
    assert len(names) > 80
    for test in names:
        file, name = test.split("::")
        source = (ROOT / "tests" / file).read_text("utf-8")
        assert f"\ndef test_{name}(" in source, f"{file} has no {name}"


def test_every_promise_names_the_line_that_keeps_it():
    """What `python -m tests.promises --mutate` takes out, and that the lines are still there."""
    mutations = promises.mutations()
    assert {(m.document, m.begins) for m in mutations} == promises.tests_of().keys()
    for m in mutations:
        assert m.old in (ROOT / m.file).read_text("utf-8"), m


def test_no_line_that_keeps_a_promise_can_be_taken_out():
    """By the table of what was tried; `python -m tests.promises --left` tries what is not in it."""
    left = [m for m in promises.mutations() if not promises.has_failure(m)]
    assert left == []
