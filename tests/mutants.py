"""Random changes to the rooms that compute and keep, and whether a test fails.

    python -m tests.mutants NUMBERS [TESTS…]        (numbers such as 0-99 or 3,17,20-29)

All places of ROOMS where a comparison, operator, number or condition can be changed are put in an
order by SEED; those of NUMBERS are tried, on each processor in a copy of the checkout. `coverage`
(pip install coverage) first tells which tests of TESTS run which line. A mutant then meets the
tests of its line alone, those of its own room first, those that use the names of the line first,
until one fails. A survivor may be the same program in other words, so it is for a reader to judge.
"""

from __future__ import annotations

import ast
import contextlib
import os
import pickle
import random
import re
import resource
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import pytest

from .promises import ROOT, copy

ROOMS = ("diagnosis", "losses", "storage", "recording", "query")
TESTS = [f"tests/{name}" for name in (*ROOMS, "report", "doctor", "evaluation", "user_rules",
                                     "monitor", "importers", "explore")]
OPTIONS = ("-q", "-p", "no:cacheprovider", "--basetemp=pt", "-m", "not (browser or engine or slow)")
SLOW_IMPORTS = ("duckdb", "hypothesis", "numpy", "pandas", "plotly.graph_objects",
                "pyarrow.dataset", "pyarrow.parquet", "pydantic", "torch")
# Processor time that the tests of a mutant take at most, in its own room and in others.
SEED, SECONDS = 0, 30
PAIRS = [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot),
         (ast.In, ast.NotIn), (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.BitAnd, ast.BitOr),
         (ast.And, ast.Or)]
OTHER = {ast.Mod: ast.Mult} | dict(PAIRS) | {b: a for a, b in PAIRS}


def places(tree: ast.AST) -> Iterator[tuple[int, range]]:
    """What can be changed, by its number in the walk, with the lines of its statement (none if they
    run at import); no annotations, and nothing in texts."""
    lines, hints, inside = {}, set(), set()
    for node in ast.walk(tree):  # outer before inner
        body = getattr(node, "body", None)
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            parts = body if isinstance(body, list) else [body]
            inside |= {id(n) for part in parts for n in ast.walk(part)}
        elif isinstance(node, ast.stmt) and not isinstance(node, ast.ClassDef):
            end = body[0].lineno - 1 if body else node.end_lineno
            lines |= dict.fromkeys(map(id, ast.walk(node)), range(node.lineno, end + 1))
        for hint in (getattr(node, "annotation", None), getattr(node, "returns", None),
                     node if isinstance(node, ast.JoinedStr) else None):
            hints |= set(map(id, ast.walk(hint))) if hint else set()
    for number, node in enumerate(ast.walk(tree)):
        sign = node.ops[0] if isinstance(node, ast.Compare) else None
        sign = node.op if isinstance(node, ast.BinOp | ast.BoolOp) else sign
        if id(node) not in hints and (
            isinstance(node, ast.If | ast.IfExp) or type(sign) in OTHER
            or (isinstance(node, ast.Constant) and type(node.value) in (bool, int, float))
        ):
            yield number, lines.get(id(node), range(0)) if id(node) in inside else range(0)


def mutant(source: str, number: int) -> tuple[str, int, str]:
    """The changed source, the line, and the code there before and after."""
    node = list(ast.walk(ast.parse(source)))[number]
    spot = node.test if isinstance(node, ast.If | ast.IfExp) else node
    before = ast.get_source_segment(source, spot) or ""
    if spot is not node:
        spot = ast.copy_location(ast.UnaryOp(ast.Not(), spot), spot)
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    elif isinstance(node, ast.Compare):
        node.ops[0] = OTHER[type(node.ops[0])]()
    else:
        node.op = OTHER[type(node.op)]()
    after = ast.unparse(spot)
    lines = source.encode().splitlines(keepends=True)
    head = b"".join(lines[: spot.lineno - 1]) + lines[spot.lineno - 1][: spot.col_offset]
    rest = lines[spot.end_lineno - 1][spot.end_col_offset :] + b"".join(lines[spot.end_lineno :])
    text = after if isinstance(spot, ast.Constant) else f"({after})"
    return (head + text.encode() + rest).decode(), spot.lineno, f"{before} → {after}"


class Plugin:
    """Runs the tests in this order, or all; notes how long each takes, and which fail."""

    def __init__(self, order: list[str], switch: Callable[[str], object]) -> None:
        self.place, self.switch = {name: i for i, name in enumerate(order)}, switch
        self.seconds: dict[str, float] = {}
        self.failures: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.place:
            items[:] = sorted((item for item in items if item.nodeid in self.place),
                              key=lambda item: self.place[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> object:
        self.switch(item.nodeid)
        began = sum(os.times()[:4])
        result = yield
        self.seconds[item.nodeid] = sum(os.times()[:4]) - began
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failures += [report.nodeid] * report.failed


def in_a_child(folder: Path, limit: int, work: Callable[[], object]) -> object:
    """What `work` returns in a process of its own in the copy; "time" if it takes more processor
    time than `limit`, or ten times as long."""
    answer = folder.with_suffix(".answer")
    answer.unlink(missing_ok=True)
    if not (child := os.fork()):
        os.setsid()
        signal.alarm(10 * limit)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
        log = os.open(folder.with_suffix(".log"), os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(log, 1), os.dup2(log, 2)
        os.chdir(folder)
        sys.path[:] = [str(folder), *(p for p in sys.path if p not in ("", str(ROOT)))]
        for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
            del sys.modules[name]
        with contextlib.suppress(BaseException):
            answer.write_bytes(pickle.dumps(work()))
        os._exit(0)
    os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return pickle.loads(answer.read_bytes()) if answer.exists() else "time"


def measure(tests: list[str]) -> tuple[dict[str, float], dict[str, dict[int, list[str]]]]:
    """Seconds of each test that passes, and the tests of each line of each file."""
    meter = import_module("coverage").Coverage(
        data_file=None, source=[f"lldscope/{room}" for room in ROOMS])
    plugin = Plugin([], meter.switch_context)
    meter.start()
    pytest.main([*OPTIONS, *tests], plugins=[plugin])
    meter.stop()
    data = meter.get_data()
    return {name: s for name, s in plugin.seconds.items() if name not in plugin.failures}, {
        os.path.relpath(file): data.contexts_by_lineno(file) for file in data.measured_files()
    }


@cache
def words_of(test: str) -> frozenset[str]:
    """The words of a test's function."""
    file, _, name = test.partition("::")
    _, _, text = (ROOT / file).read_text("utf-8").partition(f"def {name}(")
    return frozenset(re.findall(r"\w+", text.partition("\ndef ")[0]))


def failure(tests: list[str]) -> str:
    """The first of the tests that fails, if one does."""
    plugin, files = Plugin(tests, str), {test.split("::")[0] for test in tests}
    code = pytest.main([*OPTIONS, "-x", *files], plugins=[plugin])
    return plugin.failures[0] if plugin.failures else "collection" if code else ""


def prepare(folder: Path) -> None:
    """Copy the checkout; processes started from now on import from there."""
    folder.mkdir()
    os.environ |= copy(folder) | {"XDG_CACHE_HOME": str(folder / "cache")}


def try_mutants(
    folder: Path, numbers: Iterable[int], seconds: dict[str, float],
    tests_of: dict[str, dict[int, list[str]]],
) -> None:
    """Print for each mutant the test that fails first."""
    prepare(folder)
    files = [f for room in ROOMS for f in sorted((ROOT / "lldscope" / room).rglob("*.py"))]
    sources = {str(file.relative_to(ROOT)): file.read_text("utf-8") for file in files}
    sites = [(f, *place) for f, text in sources.items() for place in places(ast.parse(text))]
    random.Random(SEED).shuffle(sites)
    kills: Counter[str] = Counter()
    for number in numbers:
        file, place, lines = sites[number]
        source, line, words = mutant(sources[file], place)
        (folder / file).write_text(source, "utf-8")
        os.utime(folder / file, (number, number))  # compiled anew, whatever the clock says
        of_file, room, killer = tests_of.get(file, {}), file.split("/")[1], ""
        groups = [of_file.get(n, ()) for n in lines or of_file] or [seconds]
        every = {test for group in groups for test in group} & seconds.keys()
        there = "".join(sources[file].splitlines(True)[line - 1 : (lines or [line])[-1]])
        names = {Path(file).stem, *re.findall(r"\w{6,}", there)}
        near = {test: len(names & words_of(test.split("[")[0])) for test in every}
        for same_room in (True, False):
            left, some = float(SECONDS), []
            for test in sorted(every, key=lambda t: (-kills[t], -near[t], seconds[t])):
                if (test.split("/")[1] == room) == same_room and seconds[test] < left:
                    some.append(test)
                    left -= seconds[test]
            if some and not killer:
                killer = in_a_child(folder, 40 + 4 * SECONDS, lambda: failure(some))  # noqa: B023
                kills[str(killer)] += 1
        (folder / file).write_text(sources[file], "utf-8")
        words = " ".join(words.split())
        print(f"{number} {file}:{line}: {words}: {killer or 'SURVIVES'} ({len(every)})", flush=True)


def main(folder: Path, numbers: list[int], tests: list[str]) -> None:
    for name in SLOW_IMPORTS:
        import_module(name)
    prepare(folder / "measured")
    seconds, tests_of = in_a_child(folder / "measured", 5000, lambda: measure(tests))
    n = os.cpu_count() or 1
    fork = get_context("fork")
    workers = [fork.Process(target=try_mutants,
                            args=(folder / str(i), numbers[i::n], seconds, tests_of))
               for i in range(n)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    spans = [part.partition("-") for part in sys.argv[1].split(",")]
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        main(Path(name), [n for a, _, b in spans for n in range(int(a), int(b or a) + 1)],
             sys.argv[2:] or TESTS)
