"""`lldscope demo` and `lldscope train` as a new user meets them: real training, a few steps."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from recorded_steps import wait_until

import lldscope
from lldscope.cli import demo
from lldscope.core.errors import LldscopeError
from lldscope.storage import heartbeats, layout

SHORT = ("steps=3", "prompts=2", "group_size=4", "updates=2", "eval_questions=4")


def steps_recorded(run: Path) -> int:
    return sum(p.rows for p in layout.read_manifest(run).parts if p.table == "steps")


@pytest.mark.slow
def test_demo_trains_both_beside_an_earlier_one_and_says_how_it_went(lldscope_command, tmp_path):
    (tmp_path / "demo-1" / "grpo").mkdir(parents=True)  # of an earlier demo
    done = lldscope_command("demo", "--root", tmp_path, "--no-dash", *SHORT)
    assert done.returncode == 0, done.stderr
    assert not any((tmp_path / "demo-1" / "grpo").iterdir())
    for name in ("grpo", "cured"):
        run = lldscope.open_run(tmp_path / "demo-2" / name)
        assert run.info["status"] == "finished"
        assert run.signals().dropna(subset="time")["step"].tolist() == [0, 1, 2]
        assert run.info["config"]["llds"] == ("action" if name == "cured" else "off")
        assert f"{name:10} reward (ten-step mean)" in done.stderr
    grpo, cured = (lldscope.open_run(tmp_path / "demo-2" / n) for n in ("grpo", "cured"))
    # the same seed: before the first update the two cannot differ
    first = "SELECT reward, text FROM responses WHERE step = 0 ORDER BY response_id"
    assert grpo.sql(first).equals(cured.sql(first))


@pytest.mark.slow
def test_ctrl_c_stops_the_demo(tmp_path):
    command = [sys.executable, "-m", "lldscope", "demo", "--root", str(tmp_path), "--no-dash",
               "steps=500", *SHORT[1:]]
    demo = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    runs = [tmp_path / "demo-1" / name for name in ("grpo", "cured")]
    wait_until(lambda: all((r / "run.json").exists() and steps_recorded(r) > 1 for r in runs))
    demo.send_signal(signal.SIGINT)
    _, err = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert "Traceback" not in err
    for run in runs:
        assert layout.read_run(run)["status"] == "stopped"
        assert heartbeats.read_heartbeats(run)[0]["closed"]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_ended_ends_its_trainings(tmp_path, end):
    training = "import os, time; print(os.getpid(), flush=True); time.sleep(300)"
    code = f"""
from lldscope.cli import demo
demo.LLDSCOPE = ({sys.executable!r}, "-c", {training!r})
demo.demo.main(["--no-dash", "--root", {str(tmp_path)!r}])
"""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    logs = [tmp_path / "demo-1" / f"{name}.log" for name in demo.ARMS]
    wait_until(lambda: all(log.exists() and log.read_text().endswith("\n") for log in logs))
    process.send_signal(end)
    process.communicate(timeout=60)
    assert process.returncode == 128 + end
    for log in logs:
        with pytest.raises(ProcessLookupError):
            os.kill(int(log.read_text().split()[0]), 0)


def test_a_busy_port_is_said_before_anything_is_trained(lldscope_command, tmp_path):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        done = lldscope_command("demo", "--root", tmp_path, "--port", str(port))
    assert done.returncode == 1
    assert f"Port {port} is in use" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_the_dashboard_nothing_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == "plotly" else name)
    with pytest.raises(LldscopeError, match=r"The demo needs plotly: pip install 'lldscope\["):
        demo.demo.main(["--root", str(tmp_path)], standalone_mode=False)
    assert list(tmp_path.iterdir()) == []


def test_the_demo_does_not_stay_without_its_dashboard(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "ARMS", {})
    monkeypatch.setattr(demo, "LLDSCOPE", (sys.executable, "-c", "raise SystemExit('no room')"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(LldscopeError, match=r"The dashboard ended; .*dashboard\.log: no room"):
        demo.demo.main(["--root", str(tmp_path), "--port", str(port)], standalone_mode=False)
