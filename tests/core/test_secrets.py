"""Credentials in a configuration: hidden where it is shown, and nothing else is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from lldscope_dashboard.app import make_app
from lldscope_dashboard.data.run_registry import RunRegistry
from made_up_runs import write_step

import lldscope
from lldscope.cli import cli
from lldscope.core import secrets

SECRET = "s3cr3t-Value-0123456789"
NAMES = (
    "api_key", "apiKey", "OPENAI_API_KEY", "hf_token", "token", "auth-token", "password",
    "db_passwd", "client_secret", "aws_secret_access_key", "private_key", "wandb.api_key",
    "credentials",
)
VALUES = (
    "postgres://me:{}@db/runs", "https://s3/x?X-Amz-Signature={}", "AKIAIOSFODNN7EXAMPLE",
    "hf_abcdefghijklmnopqrstuvwxyz", "sk-proj-abcdefghijklmnopqrst", "ghp_abcdefghijklmnopqrst",
    "-----BEGIN PRIVATE KEY-----abc", "eyJhbGciOi.eyJzdWIi.sig", "xoxb-1234567890123456789",
)
HARMLESS = {
    "max_tokens": 4096, "pad_token": "<pad>", "tokenizer": "Qwen/Qwen3", "num_tokens": 3,
    "token_budget": 2, "eos_token_id": 1, "llds_gate": "token", "loss_type": "token", "key": "lr",
    "url": "https://example.org/a?page=2", "keys": ["a"], "password": "", "token": None,
    "model": "sk-learn", "nested": {"deep": [1, {"lr": 1e-6}]}, "use_auth_token": False,
}


@pytest.mark.parametrize("name", NAMES)
def test_what_a_name_says_is_a_credential_is_hidden(name: str) -> None:
    for config in ({name: SECRET}, {"a": {name: SECRET}}, {"a": [{name: [SECRET]}]}):
        assert SECRET not in str(secrets.redact(config))
        assert secrets.holds(config)


@pytest.mark.parametrize("value", VALUES)
def test_what_looks_like_a_credential_is_hidden(value: str) -> None:
    text = value.format(SECRET)
    output = str(secrets.redact({"where": [f"see {text}"]}))
    assert secrets.HIDDEN in output
    assert SECRET not in output
    assert text not in output


def test_settings_of_a_training_are_shown() -> None:
    assert secrets.redact(HARMLESS) == HARMLESS
    assert not secrets.holds(HARMLESS)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for n in range(2):
        config = {"lr": n, "hub_token": SECRET + str(n), "db": f"postgres://me:{SECRET}@db"}
        with lldscope.Recorder(root / f"r{n}", config=config) as recorder:
            for step in range(12):
                write_step(recorder, step, dies=False, at=1.0e9 + step)
    return root


@pytest.mark.parametrize(
    "command", [["report", "{0}"], ["report", "{0}", "--format", "md"], ["diff", "{0}", "{1}"],
                ["diff", "{0}", "{1}", "--json"], ["compare", "{0}", "{1}", "--format", "html"]],
)
def test_no_command_shows_a_credential(root: Path, tmp_path, command) -> None:
    words = [word.format(root / "r0", root / "r1") for word in command]
    words += ["-o", str(tmp_path / "out")] if command[0] != "diff" else []
    done = CliRunner().invoke(cli, words)
    assert done.exit_code in (0, 10), done.output
    target = tmp_path / "out"
    text = done.output + (target.read_text("utf-8") if target.exists() else "")
    assert command[0] != "report" or "hidden" in text
    assert SECRET not in text


@pytest.mark.parametrize("path", ["/config/r0", "/", "/compare?run=r0&run=r1",
                                  "/run/r0", "/report/r0"])
def test_no_page_shows_a_credential(root: Path, path: str) -> None:
    answer = make_app(RunRegistry(root)).server.test_client().get(path)
    assert answer.status_code == 200
    assert SECRET not in answer.get_data(as_text=True)


def test_run_json_with_a_credential_is_for_its_user_only(root: Path, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        for name, config, mode in (("a", {"api_key": SECRET}, 0o600), ("b", {"lr": 1}, 0o644)):
            with lldscope.Recorder(tmp_path / name, config=config):
                assert (tmp_path / name / "run.json").stat().st_mode & 0o777 == mode
            assert (tmp_path / name / "run.json").stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)
