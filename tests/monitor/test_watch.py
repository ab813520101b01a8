"""`watch` and the follower behind it: runs in every state, on a terminal and in a log."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import time
from dataclasses import replace

import pytest
from made_up_runs import write_run, write_step
from recorded_steps import record_steps

import lldscope
from lldscope.cli.check import nagios_line
from lldscope.cli.watch import STATUS
from lldscope.monitor import follow
from lldscope.monitor.follow import Follower
from lldscope.storage import heartbeats


def watching(run, *arguments: object, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lldscope", "watch", str(run), "--interval", "0.2",
         *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )


def news(update) -> list[tuple[str, str]]:
    return [(e.alert.rule, e.alert.state) for e in update.events]


def kill(run) -> None:
    """Make a recorded run look like one whose process was killed."""
    info = json.loads((run / "run.json").read_text()) | {"status": "running"}
    (run / "run.json").write_text(json.dumps(info))
    heartbeats.write_heartbeat(run, 0, closed=False)
    beat = heartbeats.read_heartbeats(run)[0]
    dead = subprocess.Popen(["true"])
    dead.wait()
    (run / "heartbeat" / "r0.json").write_text(json.dumps(beat | {"pid": dead.pid}))


# -- states ----------------------------------------------------------------------------------------


def test_json_lines_have_the_documented_fields(tmp_path, lldscope_command):
    run = write_run(tmp_path / "run", 150, dies=True)
    out = lldscope_command("watch", run, "--json").stdout
    lines = [json.loads(text) for text in out.splitlines()]
    for line in lines:
        assert {"type", "schema", "time"} <= set(line)
    (status,) = [x for x in lines if x["type"] == "status"]
    assert set(STATUS) | {"type", "time"} == set(status)
    alert = next(x for x in lines if x["type"] == "alert" and x["rule"] == "lld-decay")
    fields = {"run", "id", "path", "verdict", "phase", "grade", "last_step", "rule", "severity",
              "state", "step", "value", "threshold", "link", "message", "meaning", "advice",
              "false_alarms", "episodes", "started", "ended"}
    assert fields <= set(alert)
    steps = lldscope.open_run(run).signals().set_index("step")["time"]
    assert alert["started"] == pytest.approx(steps[alert["step"]])


def test_it_waits_for_a_run_and_says_why(tmp_path, lldscope_command):
    (tmp_path / "empty").mkdir()
    brief = ("--timeout", 0.5, "--interval", 0.2)
    done = lldscope_command("watch", tmp_path / "empty", "--json", *brief)
    event = json.loads(done.stdout)
    assert (event["type"], "is empty" in event["reason"], done.stderr) == ("waiting", True, "")
    done = lldscope_command("watch", tmp_path / "none", *brief)
    assert (done.stdout, done.returncode) == ("", 13)
    assert done.stderr.count("waiting for") == done.stderr.count("does not exist") == 1


def test_a_run_that_goes_on_is_no_longer_stalled(tmp_path, lldscope_command):
    run = write_run(tmp_path / "run", 40)
    kill(run)
    follower = Follower(run)
    first = follower.poll()
    assert first.first
    assert ("stalled", "firing") in news(first)
    done = lldscope_command("check", run)
    assert (done.returncode, "is gone" in done.stdout) == (12, True)
    assert first.state.over
    with lldscope.Recorder(run, resume=True) as recorder:
        for step in range(30, 45):
            write_step(recorder, step, dies=False, at=time.time())
        recorder.flush()
        second = follower.poll()
        assert not second.first
        assert news(second) == [("stalled", "resolved")]
        (event,) = second.events
        assert event.ended >= event.started
        assert second.state.life == "live"
        assert second.state.last_step == 44
        assert news(follower.poll()) == []


def test_an_alarm_whose_steps_were_undone_is_resolved(tmp_path):
    run = write_run(tmp_path / "run", 110, dies=True)
    follower = Follower(run)
    assert ("lld-decay", "firing") in news(follower.poll())
    with lldscope.Recorder(run, resume=True) as recorder:  # back to step 50, before the decay
        for step in range(50, 60):
            write_step(recorder, step, dies=False, at=time.time())
        recorder.flush()
        assert ("lld-decay", "resolved") in news(follower.poll())


def test_a_deleted_run_is_gone_after_a_while(tmp_path, monkeypatch):
    run = tmp_path / "run"
    with lldscope.Recorder(run) as recorder:
        record_steps(recorder, range(30))
        recorder.flush()
        follower = Follower(run)
        before = follower.poll().state
        os.rename(run, tmp_path / "moved")
        assert follower.poll().state == before  # a file system may hiccup
        os.rename(tmp_path / "moved", run)
        assert follower.poll().state.life == "live"
        os.rename(run, tmp_path / "moved")
        follower.poll()
        monkeypatch.setattr(follow, "GONE_SECONDS", 0.0)
        update = follower.poll()
        os.rename(tmp_path / "moved", run)
    assert news(update) == [("stalled", "firing")]
    assert (update.state.verdict, update.state.over) == ("stalled", True)
    assert "its directory is gone" in update.state.reason


def test_another_run_in_the_same_place_starts_anew(tmp_path):
    run = write_run(tmp_path / "run", 110, dies=True)
    follower = Follower(run)
    assert ("lld-decay", "firing") in news(follower.poll())
    shutil.rmtree(run)
    write_run(run, 110, dies=True)
    assert {("lld-decay", "resolved"), ("lld-decay", "firing")} <= {*news(follower.poll())}
    shutil.rmtree(run)
    write_run(run, 40)
    update = follower.poll()
    assert ("lld-decay", "resolved") in news(update)
    assert update.state.verdict == "healthy"
    shutil.rmtree(run)
    write_run(run, 110, dies=True)
    assert ("lld-decay", "firing") in news(follower.poll())


# -- terminals and logs ----------------------------------------------------------------------------


def on_terminal(command: list[str], columns: int, **env: str) -> str:
    """What a command writes to a terminal of so many columns."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, {**os.environ, "TERM": "xterm-256color", **env})
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    output = b""
    with contextlib.suppress(OSError):  # Linux says EIO when the other side has gone
        while part := os.read(fd, 65536):
            output += part
    os.close(fd)
    os.waitpid(pid, 0)
    return output.decode()


@pytest.mark.parametrize(("columns", "plain"), [(80, {}), (60, {"NO_COLOR": "1"})])
def test_the_live_block_is_calm_and_fits(tmp_path, columns, plain):
    run = write_run(tmp_path / "run", 150, dies=True, ends="failed")
    command = [sys.executable, "-m", "lldscope", "watch", str(run), "--grace", "0"]
    screen = on_terminal(command, columns, COLUMNS=str(columns), LANG="C.UTF-8", **plain)
    assert "\x1b[2J" not in screen  # the screen is never cleared
    assert "▁" in screen
    assert "CRITICAL" in screen
    words = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen)
    assert max(len(text) for text in re.split(r"[\r\n]", words)) <= columns
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-7]", screen)) == (not plain)


def test_a_log_gets_plain_lines(tmp_path, lldscope_command):
    run = write_run(tmp_path / "run", 150, dies=True)
    done = lldscope_command("watch", run)
    out = done.stdout
    assert "\x1b" not in out + done.stderr
    assert out.splitlines()[0].startswith("CRITICAL  phase collapse")
    assert re.search(r"^◆ critical lld-collapse, step \d+( \(first at step \d+\))?: ", out, re.M)


# -- the monitoring plug-in's line -----------------------------------------------------------------


def test_nagios_gets_one_line(lldscope_command, tmp_path):
    for name, dies, code, word in (("well", False, 0, "OK"), ("ill", True, 2, "CRITICAL")):
        steps = 150 if dies else 20
        run = write_run(tmp_path / name, steps, dies=dies)
        done = lldscope_command("check", run, "--exit-style", "nagios")
        assert done.returncode == code
        (only,) = done.stdout.splitlines()
        assert only.startswith(f"LLDSCOPE {word} - {name} ")
        assert only.endswith(f", step {steps - 1}")
    lenient = lldscope_command("check", tmp_path / "none", "--exit-style", "nagios")
    assert lenient.returncode == 3
    assert lenient.stdout.startswith("LLDSCOPE UNKNOWN - ")
    assert lenient.stderr == ""


def test_text_from_a_run_cannot_add_performance_data(tmp_path):
    run = write_run(tmp_path / "a|b=1", 40)
    state = replace(Follower(run).poll().state, run="a|b=1\nc")
    only = nagios_line(state, 0)
    assert "|" not in only
    assert "\n" not in only
