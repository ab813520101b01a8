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


QUESTIONS = [
    ("runs", {}), ("diagnose", {"source": "log.json"}), ("diagnose", {"source": "grpo"}),
    ("check", {"run": "grpo"}),
    ("signals", {"run": "grpo", "names": ["reward", "delta_correct"], "first": 10}),
    ("responses", {"run": "grpo", "step": 60, "correct": True}),
]
OUTSIDE = ["../secret.json", "link.json", "/etc/passwd", "nothing", "https://a/b.json", "a\0b"]
WRONG = [
    *(("diagnose", {"source": source}) for source in OUTSIDE),
    ("signals", {"run": "grpo", "names": ["reward; DROP TABLE steps"]}),
    ("check", {"run": "log.json"}),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> list[Any]:
    """What one server over a folder with a run and a log says to all questions; errors as text."""
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

    async def ask() -> list[Any]:
        async with mcp.Client(server) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            assert tools == {"runs", "diagnose", "check", "signals", "responses"}
            return [await client.call_tool(*question) for question in (*QUESTIONS, *WRONG)]

    results = asyncio.run(ask())
    texts = [content.text for result in results for content in result.content]
    assert len(texts) == len(results)
    assert max(map(len, texts)) < MOST
    return [
        text if result.is_error else json.loads(text)
        for result, text in zip(results, texts, strict=True)
    ]


def test_an_agent_finds_reads_and_diagnoses(answers):
    runs, log, run, state, signals, responses = answers[: len(QUESTIONS)]
    assert [row["path"] for row in runs["runs"]] == ["grpo"]
    assert (log["verdict"], log["grounds"][0]["step"]) == ("critical", pytest.approx(66, abs=4))
    assert run["verdict"] == state["verdict"] == "critical"
    assert run["cause"] == state["cause"]
    assert "lld-collapse" in {alert["rule"] for alert in state["alerts"]}
    assert signals["columns"] == ["step", "reward", "delta_correct"]
    assert [row[0] for row in signals["rows"]] == list(range(10, 131))
    deltas = [r["delta"] for r in responses["responses"] if r["delta"] is not None]
    assert deltas == sorted(deltas)
    assert all(r["correct"] and r["step"] == 60 for r in responses["responses"])


def test_wrong_questions_get_sentences_and_nothing_outside_of_the_root_is_read(answers):
    errors = answers[len(QUESTIONS) :]
    *outside, no_signal, no_run = errors
    assert all("There is nothing called" in error for error in outside)
    assert "There is no signal" in no_signal
    assert "log.json" in no_run
    assert not [error for error in errors if "Traceback" in error]
