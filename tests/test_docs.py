"""The documents say what is so: examples run, generated pages are current, links lead somewhere."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import click
import pytest

from lldscope.cli import COMMANDS, cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = sorted(p for p in ROOT.rglob("*.md") if not {".venv", "runs"} & set(p.parts))


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.split("\n")[2][:40])
def test_python_examples_run(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "sample_runs", tmp_path / "sample_runs")
    exec(compile(code, "README.md", "exec"), {})


def test_schema_page_is_current(lldscope_command):
    made = lldscope_command("schema", "--markdown").stdout
    page = (ROOT / "docs" / "schema.md").read_text(encoding="utf-8")
    assert page.split("\n\n", 2)[2].strip() == made.strip()


def test_settings_page_is_current(lldscope_command):
    made = lldscope_command("train", "--settings").stdout
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page.split("\n\n", 2)[2].strip() == made.strip()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files(document):
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), f"{document}: {target}"


def test_commands_in_the_readme_parse():
    """Each lldscope line of the README is accepted by the parser; nothing is executed."""
    lines = "".join(blocks("sh")).replace("\\\n", " ").splitlines()
    commands = [line for line in lines if line.startswith("lldscope ")]
    assert len(commands) > 8
    for line in commands:
        name, *arguments = shlex.split(line, comments=True)[1:]
        command = cli.get_command(click.Context(cli), name)
        assert command is not None, line
        command.make_context(name, arguments, resilient_parsing=False)


def test_every_command_has_help():
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert command.help, name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.name}"


def test_the_tree_in_the_readme_is_the_tree():
    named = re.findall(r"([a-z_]+\.py)", README.split("## The tree")[1])
    for name in named:
        assert list(ROOT.glob(f"*/{name}")), name
