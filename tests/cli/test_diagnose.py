"""`lldscope diagnose`: from a log to a verdict, with nothing to name."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import lldscope
from lldscope.core.errors import LldscopeError, UsageError
from lldscope.core.trainers import trainer_of
from lldscope.importers import addresses

ROOT = Path(__file__).parents[2]
VERL = {"reward": "critic/score/mean", "entropy": "actor/entropy", "grad_norm": "actor/grad_norm"}


@cache
def rows() -> list[dict[str, float]]:
    """The sample run that collapses, as its means."""
    with lldscope.open_run(ROOT / "sample_runs" / "grpo") as run:
        return run.signals()[["step", *VERL]].dropna().to_dict("records")


@pytest.fixture
def logs(tmp_path, monkeypatch) -> Path:
    """That run as a verl console, as JSON lines of one's own, and with TRL's names."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lines = [
        " - ".join([
            f"step:{r['step']}", *(f"{theirs}:{r[ours]!r}" for ours, theirs in VERL.items()),
            "timing_s/gen:60.0", "timing_s/update_actor:30.0",
        ])
        for r in rows()
    ]
    (tmp_path / "verl.log").write_text("Total training steps: 400\n" + "\n".join(lines) + "\n")
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    (tmp_path / "trl.json").write_text(json.dumps({"log_history": [
        row | {"frac_reward_zero_std": 0.25, "completions/mean_length": 40.0} for row in rows()
    ]}))
    (tmp_path / "mine.jsonl").write_text("".join(
        json.dumps({"it": r["step"], "points": r["reward"]}) + "\n" for r in rows()
    ))
    return tmp_path


@pytest.fixture
def diagnosed(lldscope_command) -> Callable[..., dict]:
    def run(*arguments: object, code: int = 11) -> dict:
        done = lldscope_command("diagnose", *arguments, "--json")
        assert done.returncode == code, done.stderr
        assert len(done.stdout) < 10_000
        return json.loads(done.stdout)

    return run


def test_a_log_of_verl_is_diagnosed_with_verls_own_names(logs, diagnosed):
    answer = diagnosed(logs / "verl.log")
    assert (answer["verdict"], answer["trainer"], answer["planned_steps"]) == (
        "critical", "verl", 400,
    )
    assert answer["change"] == {
        "setting": "actor_rollout_ref.actor.optim.lr", "value": None, "change": "halve it",
    }
    assert answer["record_next_time"][0] == "trainer.v1.trainer_mode=lldscope_sync"
    assert answer["onset"] <= min(ground["step"] for ground in answer["grounds"])
    after = answer["cost"]
    assert after["step"] <= min(ground["step"] for ground in answer["grounds"])
    assert after["steps"] == 1 + answer["last_step"] - after["step"]
    assert after["hours"] == pytest.approx(after["steps"] * 90 / 3600)
    assert any("re-score" in sentence for sentence in answer["not_in_this_log"])
    assert any("of the policy inside the updates" in s or "with loss_agg_mode" in s
               or "mean over the step's updates" in s for s in answer["numbers"])
    assert not [p for p in logs.iterdir() if p.is_dir() and p.name != "cache"]


def test_a_terminal_and_a_page_say_the_same(logs, lldscope_command):
    page = logs / "report.html"
    done = lldscope_command("diagnose", logs / "own.jsonl", "-o", page, "--fail-on", "warning")
    assert done.returncode == 11
    assert done.stdout.startswith("own.jsonl  CRITICAL  steps 0–129")
    assert "lldscope.Recorder(" in done.stdout
    assert "change first" not in done.stdout  # whose settings these are is not known
    assert "unknown" not in done.stdout  # the log has no times, and none are spoken of
    assert "<html" in page.read_text()


def test_a_metric_can_be_named_and_a_run_is_taken_as_it_is(logs, diagnosed, lldscope_command):
    unknown = lldscope_command("diagnose", logs / "mine.jsonl")
    assert (unknown.returncode, "--map reward=NAME" in unknown.stderr) == (1, True)
    answer = diagnosed(
        logs / "mine.jsonl", "--map", "reward=points", "--map", "step=it", "--fail-on", "critical",
        code=0,
    )
    assert (answer["verdict"], answer["last_step"]) == ("warning", 129)
    recorded = diagnosed(ROOT / "sample_runs" / "grpo")
    assert recorded["trainer"] == "lldscope"
    assert recorded["change"]["setting"] == "lr"
    assert float(recorded["change"]["value"]) > 0
    assert recorded["record_next_time"] == []


def test_an_alarm_that_fired_twice_has_one_first_step(logs, diagnosed, lldscope_command):
    reward = [0.1 if 40 <= s < 60 or s >= 100 else 0.6 + 0.02 * (s % 3) for s in range(130)]
    (logs / "trl.json").write_text(json.dumps([{"step": s, "reward": r}
                                               for s, r in enumerate(reward)]))
    answer = diagnosed(logs / "trl.json")
    crash = next(g for g in answer["grounds"] if g["rule"] == "reward-crash")
    assert 40 <= crash["step"] < 60
    assert crash["again"] >= 100
    first = min(ground["step"] for ground in answer["grounds"])
    assert answer["onset"] <= first == answer["cost"]["step"]
    text = lldscope_command("diagnose", logs / "trl.json").stdout
    assert f"reward-crash, step {crash['step']} and again {crash['again']}:" in text


def test_of_several_runs_each_has_a_line(tmp_path, lldscope_command):
    done = lldscope_command("diagnose", ROOT / "sample_runs", "--json")
    assert done.returncode == 11
    assert [(row["run"], row["verdict"]) for row in json.loads(done.stdout)] == [
        ("grpo", "critical"), ("grpo-llds", "healthy"), ("language-model", "critical"),
        ("language-model-llds", "healthy"), ("retriever-dies", "critical"),
    ]
    done = lldscope_command("diagnose", ROOT / "sample_runs", "--run", "grpo-llds", "--json")
    assert json.loads(done.stdout)["run"] == "grpo-llds"
    for name in "ab":
        shutil.copytree(ROOT / "tests/fixtures/tensorboard/plain", tmp_path / name)
    done = lldscope_command("diagnose", tmp_path)
    assert done.returncode == 11, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [
        ["a", "critical"], ["b", "critical"],
    ]
    done = lldscope_command("diagnose", tmp_path, "-o", tmp_path / "report.html")
    assert (done.returncode, "say which with --run: a, b" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("names", "trainer"),
    [
        (["reward", "completions/mean_length"], "trl"), (["train/rewards/acc/mean"], "trl"),
        (["actor/pg_loss", "critic/score/mean"], "verl"), (["actor/approxkl"], "roll"),
        (["env/all/reward/total"], "tinker"), (["reward", "mean_reward", "loss"], "other"),
        (["policy/policy_loss"], "skyrl"), (["ppo_actor/update/lr"], "areal"),
        (["completions/mean_length", "kl", "entropy/max", "entropy/mean"], "ms-swift"),
        (["completions/mean_length", "kl", "sampling/rollout_kl_k1/mean"], "unsloth"),
        (["mismatch_kl/mean", "entropy/max"], "prime-rl"),
        (["input", "output", "gts", "score"], "verl"),
    ],
)
def test_the_names_in_a_log_say_who_wrote_it(names, trainer):
    assert trainer_of(names).id == trainer


# -- addresses ------------------------------------------------------------------------------------


@pytest.fixture
def server(logs) -> Iterator[str]:
    """A web server on the loopback with the logs, and a few answers that are not to be trusted."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, directory=str(logs), **options)

        def do_GET(self):
            if self.path.startswith("/to/"):
                self.send_response(302)
                self.send_header("Location", {
                    "/to/log.jsonl": "/own.jsonl", "/to/file.jsonl": f"file://{logs}/own.jsonl",
                    "/to/itself.jsonl": "/to/itself.jsonl",
                }[self.path])
                self.end_headers()
            elif self.path == "/cut.jsonl":
                self.send_response(200)
                self.send_header("Content-Length", "5000")
                self.end_headers()
                self.wfile.write(b'{"step": 1}\n')
            else:
                super().do_GET()

        def log_message(self, *arguments): ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        thread = threading.Thread(target=web.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{web.server_port}"
        web.shutdown()


def test_a_file_at_an_address_is_diagnosed(logs, server, diagnosed):
    here = diagnosed(logs / "own.jsonl")
    there = diagnosed(f"{server}/own.jsonl?raw=1")
    assert there["grounds"] == here["grounds"]
    assert addresses.located(f"{server}/to/log.jsonl", logs / "f", None)[0].read_bytes() == (
        logs / "own.jsonl"
    ).read_bytes()


@pytest.mark.parametrize(
    "path", ["/nothing.jsonl", "/to/file.jsonl", "/to/itself.jsonl", "/cut.jsonl"]
)
def test_what_an_address_refuses_leaves_nothing(logs, server, path):
    with pytest.raises(LldscopeError, match="cannot be fetched"):
        addresses.located(server + path, logs / "f", None)
    assert not [p for p in (logs / "f").rglob("*") if p.is_file()]


def test_a_file_that_is_too_large_is_refused(logs, server, monkeypatch):
    monkeypatch.setattr(addresses, "MAX_BYTES", 100)
    with pytest.raises(LldscopeError, match="is larger than"):
        addresses.located(f"{server}/own.jsonl", logs / "f", None)
    assert not [p for p in (logs / "f").rglob("*") if p.is_file()]


@pytest.mark.parametrize("path", ["", "/", "/..", "/%2e%2e", "/.hidden", "/a%0ab"])
def test_an_address_without_a_file_is_refused(path, tmp_path):
    with pytest.raises(UsageError, match="name a file"):
        addresses.located(f"http://127.0.0.1:9{path}", tmp_path, None)
