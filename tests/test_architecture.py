"""The directions in which the parts may depend on each other, and what a bare install loads."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "transformers", "vllm", "deepspeed", "dash", "plotly", "pandas", "pyarrow")

# Adapters to other people's trainers are loaded by those who use them, and by nothing else here.
ADAPTERS = ROOT / "lldscope" / "integrations"

# package folder → what of the project's own packages its modules may import
ALLOWED = {
    "lldscope": {"lldscope"},
    "trainer": {"lldscope", "lldscope.errors"},
    "dashboard": {"lldscope", "lldscope_dashboard"},
}
OWN = {"lldscope", "lldscope_trainer", "lldscope_dashboard", "trainer", "dashboard"}


def imports(path: Path) -> set[str]:
    """Absolute imports of a module, with the submodule where one is named."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("folder", ALLOWED)
def test_data_flows_one_way(folder):
    for path in (ROOT / folder).rglob("*.py"):
        for name in imports(path):
            if name.split(".")[0] not in OWN:
                continue
            allowed = ALLOWED[folder]
            fine = name in allowed if folder == "trainer" else name.split(".")[0] in allowed
            if ADAPTERS in path.parents:
                # one place for the losses
                fine = fine or name in ("lldscope_trainer.llds", "lldscope_trainer.objectives")
            assert fine, f"{path.relative_to(ROOT)} imports {name}"


def test_the_analyzer_never_names_torch_or_dash():
    for path in (ROOT / "lldscope").rglob("*.py"):
        if ADAPTERS in path.parents:
            continue
        assert "integrations" not in path.read_text(encoding="utf-8"), path
        tops = {name.split(".")[0] for name in imports(path)}
        assert not tops & {"torch", "transformers", "vllm", "deepspeed", "dash", "plotly"}, path


@pytest.mark.parametrize(
    "code",
    [
        "import lldscope",
        "from lldscope.cli import cli; cli(['--help'], standalone_mode=False)",
        "from lldscope.cli import cli; cli(['train', '--help'], standalone_mode=False)",
        "from lldscope.cli import cli; cli(['dash', '--help'], standalone_mode=False)",
        "from lldscope.cli import cli; cli(['retriever', '--help'], standalone_mode=False)",
        "from lldscope.cli import cli; cli(['check', '--help'], standalone_mode=False)",
    ],
)
def test_help_and_import_load_nothing_heavy(code):
    probe = (
        f"{code}\nimport sys\nprint(*[m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == ""


def test_monitoring_alone_does_not_pull_torch_or_dash():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = " ".join(project["dependencies"])
    assert not any(name in named for name in ("torch", "transformers", "dash", "plotly", "vllm"))


def test_installed_names_do_not_collide_with_other_peoples_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["setuptools"]["packages"]
    assert all(name.split(".")[0].startswith("lldscope") for name in packages)
