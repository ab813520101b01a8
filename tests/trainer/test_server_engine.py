"""The client of a vLLM server: what it asks, what it makes of answers, and a real server once."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from lldscope_trainer.config import TrainConfig
from lldscope_trainer.engines import server_client
from lldscope_trainer.engines.server_client import check_server
from lldscope_trainer.engines.server_engine import ServerEngine
from lldscope_trainer.policy.directory import model_directory
from lldscope_trainer.policy.model import load_policy
from lldscope_trainer.rollout.tokens import Sampling
from recorded_steps import wait_until
from safetensors.torch import load_file
from test_vllm import contexts, largest_gap

import lldscope
from lldscope.core.errors import LldscopeError, UsageError


class Http(ThreadingHTTPServer):
    request_queue_size = 256  # as vLLM's; five, the default, drops some of many that come at once


class FakeServer:
    """Speaks as vLLM does; a row is continued with its own tokens backwards. `says` replaces the
    answer to a path by (status, body)."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.says: dict[str, tuple[int, Any]] = {}
        self.weights: dict[str, torch.Tensor] = {}
        self.busy = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.answer(None)

            def do_POST(self) -> None:
                self.answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

            def answer(self, body: Any) -> None:
                outer.requests.append((self.path, body))
                status, message = outer.says.get(self.path) or outer.answer(self.path, body)
                data = json.dumps(message).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.http = Http(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "tiny", "max_model_len": 400}]}
        if path == "/collective_rpc":
            if body["method"] == "take_weights_from":
                (file,) = map(Path, body["args"])
                assert file.parent.stat().st_mode & 0o777 == 0o700
                self.file, self.weights = file, load_file(file)
            return 200, {"results": [None]}
        if path == "/reset_prefix_cache":
            self.busy -= 1
            return 200, {"success": self.busy < 0}
        ids = body["prompt"][::-1][: body["max_tokens"]]
        return 200, {
            "choices": [
                {
                    "token_ids": ids,
                    "logprobs": {"token_logprobs": [-float(i) for i in ids]},
                    "finish_reason": "length" if len(ids) == body["max_tokens"] else "stop",
                }
            ]
        }


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.http.shutdown()
    fake.http.server_close()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(server_client.time, "sleep", lambda seconds: None)


def config(server: FakeServer, **settings) -> TrainConfig:
    return TrainConfig(engine="server", engine_url=server.url, **settings)


def test_rows_come_back_in_order_each_with_its_limit_and_seed(server):
    engine = ServerEngine(config(server), 1)
    rows = [[i, i + 1, i + 2] for i in range(100)]
    limits = [i % 5 for i in range(100)]
    turns = engine.generate(rows, limits, 3, Sampling(top_p=0.9))
    for row, limit, turn in zip(rows, limits, turns, strict=True):
        assert turn.ids == row[::-1][:limit]
        assert turn.logps == [-float(i) for i in turn.ids]
        assert turn.truncated == (limit < 4)
    requests = [body for path, body in server.requests if path == "/v1/completions"]
    assert len(requests) == 80  # rows without room are not sent
    assert len({body["seed"] for body in requests}) == 80
    assert all(body["top_p"] == 0.9 and body["model"] == "tiny" for body in requests)
    engine.generate([[1]], [1], 0, Sampling(temperature=0))
    assert server.requests[-1][1]["temperature"] == 0
    engine.close()


def test_as_many_requests_are_in_flight_as_there_are_rows(server):
    """None is answered before all have come."""
    rows = 150
    together = threading.Barrier(rows)
    answer = server.answer

    def waiting(path, body):
        if path == "/v1/completions":
            together.wait(120)
        return answer(path, body)

    server.answer = waiting
    engine = ServerEngine(config(server), 1)
    turns = engine.generate([[i, i] for i in range(rows)], [1] * rows, 0, Sampling())
    assert [turn.ids for turn in turns] == [[i] for i in range(rows)]
    engine.close()


def test_requests_leave_files_to_open(monkeypatch):
    for soft, most in ((1024, 896), (100, 64), (resource.RLIM_INFINITY, 4096), (10**6, 4096)):
        monkeypatch.setattr(resource, "getrlimit", lambda which, n=soft: (n, n))
        assert server_client.most_at_once() == most


def test_weights_go_through_a_private_file_that_is_gone_afterwards(server):
    engine = ServerEngine(config(server), 1)
    head = torch.arange(6.0).reshape(2, 3)
    server.busy = 3
    engine.sync([("embed", head), ("norm", torch.ones(3, 2).T), ("head", head)])
    assert server.weights.keys() == {"embed", "norm"}  # tied ones go once
    assert torch.equal(server.weights["embed"], head)
    assert not server.file.parent.exists()
    assert [path for path, _ in server.requests][-4:] == ["/reset_prefix_cache"] * 4
    server.busy = 10**6
    with pytest.raises(LldscopeError, match="must serve this run alone"):
        engine.sync([("embed", head)])
    engine.close()


def error(status: int, message: str) -> tuple[int, Any]:
    return status, {"error": {"message": message}}


@pytest.mark.parametrize(
    ("path", "answer", "says"),
    [
        ("/v1/models", (200, {"hello": "world"}), "is no vLLM server"),
        ("/v1/models", (404, {}), "is no vLLM server"),
        ("/collective_rpc", (404, {"detail": "Not Found"}), "VLLM_SERVER_DEV_MODE=1"),
        (
            "/collective_rpc",
            error(500, "'CPUWorker' object has no attribute 'check_ready'"),
            "--worker-extension-cls lldscope_trainer.engines.vllm_worker.WeightSync",
        ),
        ("/collective_rpc", error(500, "start it with --no-such"), "start it with --no-such"),
    ],
)
def test_a_server_that_cannot_be_used_is_told_before_anything_is_written(
    server, path, answer, says
):
    server.says[path] = answer
    with pytest.raises(LldscopeError, match=says):
        check_server(config(server))


def test_a_server_that_is_too_small(server):
    with pytest.raises(UsageError, match="--max-model-len 500"):
        check_server(config(server, sequence_tokens=500))


def test_nobody_there():
    with socket.socket() as rows:
        rows.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{rows.getsockname()[1]}"
        with pytest.raises(LldscopeError, match=r"No vLLM server answers .*docs/engines\.md"):
            check_server(TrainConfig(engine="server", engine_url=url))
    with pytest.raises(UsageError, match="http://HOST:PORT"):
        check_server(TrainConfig(engine="server", engine_url="localhost:8000"))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (error(404, "The model `x` does not exist."), "with 404: The model `x` does not exist"),
        (error(500, "EngineCore encountered an issue."), "EngineCore encountered an issue"),
        ((200, {"choices": [{"finish_reason": "stop"}]}), "no token ids"),
    ],
)
def test_a_server_that_fails_during_a_run(server, answer, says):
    engine = ServerEngine(config(server), 1)
    server.says["/v1/completions"] = answer
    with pytest.raises(LldscopeError, match=says):
        engine.generate([[1]] * 3, [5] * 3, 0, Sampling())
    engine.close()


def command(port: int) -> list[str]:
    """The one of docs/engines.md for a machine without a GPU."""
    text = (Path(__file__).parents[2] / "docs" / "engines.md").read_text("utf-8")
    start = text.index("python -m vllm.entrypoints.openai.api_server")
    line = text[start : text.index("```", start)].replace("\\\n", " ")
    line = line.replace("MODEL", str(model_directory("tiny"))).replace("8123", str(port))
    return [sys.executable, *line.split()[1:]]


@pytest.fixture(scope="module")
def real_server(tmp_path_factory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    log = tmp_path_factory.mktemp("server") / "log"
    settings = {
        "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "TORCHDYNAMO_DISABLE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with log.open("w") as out:
        process = subprocess.Popen(
            command(port), env=os.environ | settings, stdout=out, stderr=out, start_new_session=True
        )

    def ready() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            return httpx2.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200
        except httpx2.HTTPError:
            return False

    try:
        wait_until(ready, 300)
        yield url
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.slow
@pytest.mark.engine("vllm")
def test_a_real_server(real_server, lldscope_command, tmp_path):
    policy = load_policy("tiny", torch.device("cpu"))
    engine = ServerEngine(TrainConfig(engine="server", engine_url=real_server), policy.eos_id)
    before = contexts(policy, 64)
    limits = [40 - i % 3 for i in range(64)]
    turns = engine.generate(before, limits, 5, Sampling())
    assert largest_gap(policy, before, turns) < 1e-4
    assert [t.ids for t in turns] == [t.ids for t in engine.generate(before, limits, 5, Sampling())]
    assert {policy.decode(t.ids[-1:]) for t in turns} >= {"</search>"}
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight += 0.05 * weight.abs().mean() * torch.randn(weight.shape)
    assert largest_gap(policy, before, engine.generate(before, limits, 5, Sampling())) > 1e-3
    engine.sync(policy.named_weights())
    assert largest_gap(policy, before, engine.generate(before, limits, 5, Sampling())) < 1e-4
    with pytest.raises(LldscopeError, match="another model"):
        engine.sync([("model.embed_tokens.weight", torch.zeros(3, 5))])
    engine.close()

    # The run starts from weights the server does not have now.
    run = tmp_path / "run"
    done = lldscope_command(
        "train", "tiny", "engine=server", f"engine_url={real_server}", "steps=2", "updates=2",
        "eval_questions=8", "--run", run,
    )
    assert done.returncode == 0, done.stderr
    signals = lldscope.open_run(run).signals()
    assert len(signals) == 2
    assert signals["engine_gap"].abs().max() < 1e-4
