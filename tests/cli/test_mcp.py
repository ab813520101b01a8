"""`lldscope mcp`, asked by the official client over stdio."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

mcp = pytest.importorskip("mcp")

ROOT = Path(__file__).parents[2]
MOST = 60_000  # characters of an answer


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """Questions to one server over a folder with a run and a log: (tool, arguments) → (answer, or
    the error's text)."""
    root = tmp_path_factory.mktemp("root")
    shutil.copytree(ROOT / "sample_runs" / "grpo", root / "grpo")
    rows = [{"step": s, "mean_reward": 0.5 if s < 60 else 0.01} for s in range(120)]
    (root / "log.json").write_text(json.dumps(rows))
    (root.parent / "secret.json").write_text(json.dumps(rows))
    (root / "link.json").symlink_to(root.parent / "secret.json")
    server = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "lldscope", "mcp", str(root)],
        env=os.environ | {"XDG_CACHE_HOME": str(root.parent / "cache")},
    )

    async def answers_of(questions: list[tuple[str, dict]]) -> list[Any]:
        async with mcp.Client(server) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            assert tools == {"runs", "diagnose", "check", "signals", "responses"}
            return [await client.call_tool(name, arguments) for name, arguments in questions]

    def ask(*questions: tuple[str, dict]) -> list[Any]:
        answers = []
        for result in asyncio.run(answers_of(list(questions))):
            (content,) = result.content
            assert len(content.text) < MOST
            answers.append(content.text if result.is_error else json.loads(content.text))
        return answers

    return ask


def test_an_agent_finds_reads_and_diagnoses(ask):
    runs, log, run, state, signals, responses = ask(
        ("runs", {}), ("diagnose", {"source": "log.json"}), ("diagnose", {"source": "grpo"}),
        ("check", {"run": "grpo"}),
        ("signals", {"run": "grpo", "names": ["reward", "delta_correct"], "first": 10}),
        ("responses", {"run": "grpo", "step": 60, "correct": True}),
    )
    assert [row["path"] for row in runs["runs"]] == ["grpo"]
    assert (log["verdict"], log["grounds"][0]["step"]) == ("critical", pytest.approx(66, abs=4))
    assert run["verdict"] == state["verdict"] == "critical"
    assert run["cause"] == state["cause"]
    assert "lld-collapse" in {alert["rule"] for alert in state["alerts"]}
    assert signals["columns"] == ["step", "reward", "delta_correct"]
    assert [row[0] for row in signals["rows"]] == list(range(10, 130))
    deltas = [r["delta"] for r in responses["responses"] if r["delta"] is not None]
    assert deltas == sorted(deltas)
    assert all(r["correct"] and r["step"] == 60 for r in responses["responses"])


def test_wrong_questions_get_sentences_and_nothing_outside_of_the_root_is_read(ask):
    sources = ["../secret.json", "link.json", "/etc/passwd", "nothing", "https://a/b.json", "a\0b"]
    *outside, no_signal, no_run = ask(
        *(("diagnose", {"source": source}) for source in sources),
        ("signals", {"run": "grpo", "names": ["reward; DROP TABLE steps"]}),
        ("check", {"run": "log.json"}),
    )
    assert all("There is nothing called" in error for error in outside)
    assert "There is no signal" in no_signal
    assert "log.json" in no_run
    assert not [error for error in (*outside, no_signal, no_run) if "Traceback" in error]
