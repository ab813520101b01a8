"""The documents say what is so: examples run, generated pages are current, links lead somewhere."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from lldscope.cli import COMMANDS, cli

ROOT = Path(__file__).parent.parent
FILES = subprocess.run(
    ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.splitlines()
FILES = [f"/{name}" for name in FILES]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = sorted(p for p in ROOT.rglob("*.md") if not {".venv", ".envs", "runs"} & set(p.parts))


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


PYTHON_PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
EXAMPLES = [*blocks("python"), *blocks("python", PYTHON_PAGE)]


@pytest.mark.parametrize("code", EXAMPLES, ids=lambda code: code.split("\n")[2][:40])
def test_python_examples_run(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "sample_runs", tmp_path / "sample_runs")
    exec(compile(code, "example", "exec"), {})


@pytest.mark.parametrize("name", ["schema", "metrics"])
def test_generated_pages_are_current(name):
    make = runpy.run_path(str(ROOT / "docs" / "make.py"))
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert page.split("\n\n", 2)[2].strip() == make[name]().strip()


def test_settings_page_is_current(lldscope_command):
    output = lldscope_command("train", "--settings").stdout
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page.split("\n\n", 2)[2].strip() == output.strip()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files(document):
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), f"{document}: {target}"


def test_every_page_has_its_place_on_the_site():
    site = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    named = [page for section in site["project"]["nav"] for page in next(iter(section.values()))]
    pages = [str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted(pages)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    zensical = ROOT / ".envs" / "site" / "bin" / "zensical"
    if not zensical.exists():
        pytest.skip("zensical is not installed: make test-all")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    subprocess.run([zensical, "build", "--strict"], cwd=tmp_path, check=True)
    assert "retention" in (tmp_path / "build" / "site" / "search.json").read_text(encoding="utf-8")


def commands_in(text: str) -> list[list[str]]:
    """The lldscope lines of the shell blocks, as lists of arguments."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M)
    shell = "".join(body for language, body in fenced if language in ("", "sh"))
    lines = shell.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("lldscope ")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_in_the_documents_parse(document):
    """Each lldscope line is accepted by the parser; nothing is executed."""
    commands = commands_in(document.read_text(encoding="utf-8"))
    assert len(commands) > 8 or document != ROOT / "README.md"
    for name, *arguments in commands:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None, name
        command.make_context(name, arguments, resilient_parsing=False)


@pytest.mark.parametrize("document", ["importing.md", "post-mortem.md"])
@pytest.mark.slow
def test_commands_of_a_document_run(document, tmp_path, monkeypatch):
    """In a folder that has what they name; `check` ends with the verdict."""
    monkeypatch.chdir(tmp_path)
    fixtures = ROOT / "tests" / "fixtures" / "verl"
    (tmp_path / "train.log").symlink_to(fixtures / "console.log")
    (tmp_path / "rollouts").symlink_to(fixtures / "rollouts")
    (tmp_path / "metrics.csv").write_text("it,mean_r\n1,0.5\n2,0.25\n")
    row = '{"step": 1, "question": "who?", "text": "nobody", "reward": 0}\n'
    (tmp_path / "rollouts.jsonl").write_text(row)
    (tmp_path / "sample_runs").symlink_to(ROOT / "sample_runs")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "my-run").symlink_to(ROOT / "sample_runs" / "grpo")
    commands = commands_in((ROOT / "docs" / document).read_text(encoding="utf-8"))
    assert len(commands) >= 4
    for command in commands:
        done = CliRunner().invoke(cli, command)
        assert done.exit_code in ((10, 11, 13) if command[0] == "check" else (0,)), done.output


def test_every_command_has_help():
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert command.help, name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_paths_in_backticks_exist(document):
    """`lldscope/core/schema.py`, `core/schema.py` and `test_docs.py` are checked; paths that begin
    with a folder of another repository are not."""
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.S)
    folders = {part for file in FILES for part in file.split("/")[:-1]}
    folders -= {"trl", "verl"}  # other people's packages as well
    for path in re.findall(r"`((?:[\w.-]+/)*[a-z0-9_-]+\.(?:py|sql|css|js|md))`", text):
        if path.split("/")[0] in folders or path.startswith("test_"):
            assert any(file.endswith(f"/{path}") for file in FILES), f"{document.name}: {path}"


@pytest.mark.slow
def test_the_api_reference_is_made_from_the_docstrings(tmp_path):
    runpy.run_path(str(ROOT / "docs" / "make.py"))["write_api"](tmp_path)
    page = (tmp_path / "lldscope" / "integrations" / "trl.html").read_text("utf-8")
    assert "one line before" in page
