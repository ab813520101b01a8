"""Random changes to a room of the product, and the tests that fail.

    python -m tests.mutants ROOM [NUMBER [SEED]]

Each mutant changes one comparison, operator, number or condition of lldscope/ROOM, in a copy of the
checkout. First the room's own tests run; tests/ANOTHER of NEXT runs where they all passed. Prints a
line for each mutant: how many tests failed and, where it is one alone, which; then the shares. A
survivor may be the same program in other words, so it is for a reader to judge.
"""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .promises import ROOT, copy

SECONDS = 400  # that the tests may take; a mutant that makes them wait counts as killed
NEXT = {
    "losses": "trainer", "storage": "recording", "recording": "trainer", "query": "report",
    "diagnosis": "report",
}
OTHER = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
}


def places(tree: ast.AST) -> Iterator[tuple[int, ast.AST]]:
    """What can be changed, by its number in the walk; no annotations, and nothing in texts."""
    hints = {
        id(n)
        for node in ast.walk(tree)
        for hint in (getattr(node, "annotation", None), getattr(node, "returns", None),
                     node if isinstance(node, ast.JoinedStr) else None) if hint
        for n in ast.walk(hint)
    }
    for number, node in enumerate(ast.walk(tree)):
        if id(node) not in hints and (
            (isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER)
            or (isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OTHER)
            or (isinstance(node, ast.Constant) and type(node.value) in (bool, int, float))
            or isinstance(node, ast.If | ast.IfExp)
        ):
            yield number, node


def changed(source: str, number: int) -> tuple[str, int, str, str]:
    """The mutant's source, the line, and the code there before and after."""
    node = list(ast.walk(ast.parse(source)))[number]
    branches = isinstance(node, ast.If | ast.IfExp)
    spot = node.test if branches else node
    before = ast.get_source_segment(source, spot) or ""
    if branches:
        spot = ast.copy_location(ast.UnaryOp(ast.Not(), spot), spot)
    elif isinstance(node, ast.Compare):
        node.ops[0] = OTHER[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp | ast.BoolOp):
        node.op = OTHER[type(node.op)]()
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    after = ast.unparse(spot)
    lines = source.encode().splitlines(keepends=True)
    first, last = spot.lineno - 1, spot.end_lineno - 1
    head = b"".join(lines[:first]) + lines[first][: spot.col_offset]
    rest = lines[last][spot.end_col_offset :] + b"".join(lines[last + 1 :])
    text = after if isinstance(spot, ast.Constant) else f"({after})"
    return (head + text.encode() + rest).decode(), spot.lineno, before, after


def failures(folder: Path, env: dict[str, str], tests: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--maxfail=2",
               "-m", "not (browser or engine or slow)", tests]
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return ["does not end", "in time"]
    names = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
    return names or (["collection", "fails"] if done.returncode else [])


def main(room: str, number: int = 20, seed: int = 0) -> None:
    files = sorted((ROOT / "lldscope" / room).rglob("*.py"))
    sources = {file: file.read_text("utf-8") for file in files}
    sites = [(file, n) for file in files for n, _ in places(ast.parse(sources[file]))]
    alone = survivors = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        env = copy(folder)
        for file, place in random.Random(seed).sample(sites, number):
            there = folder / file.relative_to(ROOT)
            source, line, before, after = changed(sources[file], place)
            there.write_text(source, "utf-8")
            tests = (f"tests/{each}" for each in (room, NEXT[room]))
            failed = next(filter(None, (failures(folder, env, each) for each in tests)), [])
            there.write_text(sources[file], "utf-8")
            alone += len(failed) == 1
            survivors += not failed
            result = ("SURVIVES", f"killed by {''.join(failed)} alone", "killed")[len(failed)]
            print(f"{there.relative_to(folder)}:{line}: {before} → {after}: {result}", flush=True)
    dead = number - survivors
    print(f"{room}: {number} of {len(sites)} mutants, {dead} killed, {alone} by one test")


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    main(sys.argv[1], *map(int, sys.argv[2:]))
