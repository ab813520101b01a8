"""The rooms: what each is for, which way they may depend on each other, and what a bare install
loads. CONTRIBUTING.md's picture is checked against the declaration here."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "transformers", "vllm", "deepspeed", "dash", "plotly", "pandas", "pyarrow")
PACKAGES = {
    "lldscope": "lldscope",
    "trainer": "lldscope_trainer",
    "dashboard": "lldscope_dashboard",
}

# Each room, a package or a module, may import those above it in its own column, and nothing else of
# the project: also where an import is only for annotations or inside a function.
LLDSCOPE = (
    "core",
    "losses",
    "storage",
    "recording",
    "doctor",
    "query",
    "diagnosis",
    "user_rules",
    "run",
    "runs",
    "importers",
    "monitor",
    "figures",
    "evaluation",
    "explore",
    "lint",
    "report",
    "cli",
    "integrations",
    "__init__",
    "__main__",
)
TRAINER = (
    "llds",
    "settings",
    "guard",
    "config",
    "data",
    "environment",
    "preflight",
    "policy",
    "rollout",
    "engines",
    "builtin",
    "optim",
    "algorithms",
    "task",
    "records",
    "probes",
    "checkpoint",
    "meter",
    "train",
    "blame",
    "loop",
    "display",
    "cli",
    "rescue",
    "__init__",
)
DASHBOARD = (
    "security",
    "figures",
    "data",
    "pages",
    "callbacks",
    "routes",
    "shared_answers",
    "app",
    "server",
    "cli",
    "__init__",
)
ORDER = {"lldscope": LLDSCOPE, "trainer": TRAINER, "dashboard": DASHBOARD}
# What of lldscope the other two may use; lldscope itself uses neither of them.
OPEN = {
    "lldscope": (),
    "trainer": ("__init__", "core", "losses", "storage", "recording"),
    "dashboard": tuple(room for room in LLDSCOPE if room not in ("losses", "integrations")),
}
WITH_TORCH = ("losses", "integrations")


@cache
def modules() -> dict[str, Path]:
    """Every module of the project by its installed name."""
    paths = {}
    for folder, package in PACKAGES.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join((package, *parts))
            paths[name.removesuffix(".__init__")] = path
    return paths


@cache
def imports(name: str) -> frozenset[str]:
    """Modules that a module imports anywhere in it, by their absolute names."""
    path = modules()[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            up = (
                package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            )
            base = ".".join([*up, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                names.add(full if full in modules() else base)
    return frozenset(names)


def place(name: str) -> tuple[str, str] | None:
    """(folder, room) of a module of the project."""
    package, _, rest = name.partition(".")
    for folder, members in PACKAGES.items():
        if package == members:
            return folder, rest.split(".")[0] or "__init__"
    return None


@pytest.mark.parametrize("folder", ORDER)
def test_each_room_imports_only_from_rooms_before_it(folder: str) -> None:
    order = ORDER[folder]
    for name in modules():
        here = place(name)
        assert here is not None
        if here[0] != folder:
            continue
        assert here[1] in order, f"{name}: declare the room {here[1]}"
        for other in imports(name):
            there = place(other)
            if there is None or there == here:
                continue
            if there[0] == folder:
                fine = order.index(there[1]) < order.index(here[1])
            else:
                fine = there[0] == "lldscope" and there[1] in OPEN[folder]
            assert fine, f"{name} imports {other}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    left = {name: {i for i in imports(name) if i in modules() and i != name} for name in modules()}
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"circles among {sorted(left)}"


def test_no_adapter_imports_from_another_trainers() -> None:
    def trainer_of(name: str) -> str:
        return name.removeprefix("lldscope.integrations").strip(".").split(".")[0]

    for name in modules():
        if name.startswith("lldscope.integrations.") and trainer_of(name) != "common":
            others = {i for i in imports(name) if i.startswith("lldscope.integrations.")}
            assert {trainer_of(i) for i in others} <= {trainer_of(name), "common"}, name


@pytest.mark.parametrize(
    ("folder", "others"), [("benchmarks", ("study", "tests")), ("study", ("tests",))]
)
def test_programs_import_no_tests(folder: str, others: tuple[str, ...]) -> None:
    helpers = {path.stem for path in (ROOT / "tests" / "helpers").glob("*.py")}
    for path in (ROOT / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            assert not {name.split(".")[0] for name in names} & {*others, *helpers}, path


def test_every_declared_room_is_there_and_says_what_it_is_for() -> None:
    for folder, order in ORDER.items():
        for room in order:
            path = ROOT / folder / room
            path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            assert path.is_file(), path
            if room != "__init__":
                assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_at_most_eight_modules_lie_directly_in_lldscope() -> None:
    assert len(list((ROOT / "lldscope").glob("*.py"))) <= 8


def test_the_analyzer_never_names_torch_or_dash() -> None:
    for name in modules():
        folder, room = place(name) or ("", "")
        if folder == "lldscope" and room not in WITH_TORCH:
            tops = {other.split(".")[0] for other in imports(name)}
            assert not tops & {"torch", "transformers", "vllm", "deepspeed", "dash", "plotly"}, name


def test_help_and_import_load_nothing_heavy() -> None:
    probe = f"""
import sys
import lldscope
from lldscope.cli import cli
for command in [], ["train"], ["dash"], ["retriever"], ["check"]:
    cli([*command, "--help"], standalone_mode=False)
    print(command, [m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert len(lines) == 5
    assert all(line.endswith("] []") for line in lines), lines


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_monitoring_alone_does_not_pull_torch_or_dash() -> None:
    text = " ".join(project()["project"]["dependencies"])
    assert not any(name in text for name in ("torch", "transformers", "dash", "plotly", "vllm"))


def test_every_package_is_installed_under_a_name_of_our_own() -> None:
    packages = {name for name, path in modules().items() if path.name == "__init__.py"}
    assert set(project()["tool"]["setuptools"]["packages"]) == packages
    assert all(name.split(".")[0].startswith("lldscope") for name in packages)


def test_the_drawn_tree_shows_every_room() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tree = next(block for block in text.split("```")[1::2] if "lldscope/  " in block)
    words = set(re.findall(r"[a-z_]+", tree))
    rooms = {room for order in ORDER.values() for room in order if not room.startswith("__")}
    assert rooms <= words, sorted(rooms - words)


# Words that say what happened to a thing and not what it is.
PARTICIPLES = {
    "asked", "chosen", "drawn", "found", "given", "gone", "got", "held", "kept", "known", "laid",
    "lost", "made", "owed", "own", "said", "seen", "sent", "shown", "spent", "taken", "told",
    "wanted", "written",
}


def local_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Functions, arguments and variables; not the fields of classes, which files and JSON have."""
    fields = {
        id(node.target if isinstance(node, ast.AnnAssign) else node)
        for cls in ast.walk(tree) if isinstance(cls, ast.ClassDef)
        for node in cls.body
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if id(node) not in fields:
                yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Store)
            and id(node) not in fields
        ):
            yield node.lineno, node.id


def test_names_are_nouns_and_verbs() -> None:
    """Also in tests: a participle alone leaves the reader to guess what the thing is."""
    bare = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for folder in ("lldscope", "trainer", "dashboard", "tests", "benchmarks", "study", "docs")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in local_names(ast.parse(path.read_text(encoding="utf-8")))
        if name.strip("_") in PARTICIPLES
    ]
    assert bare == []
