"""The command line as a user meets it: output, exit codes, errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time

import pytest
from made_up_runs import write_run

import lldscope
from lldscope.cli.check import EXIT, NAGIOS, exit_code
from lldscope.core.terminal import age, plain, sparkline
from lldscope.monitor.health import check
from lldscope.storage import heartbeats


@pytest.fixture(scope="module")
def dying_run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "dying", 150, dies=True)


def test_check_prints_the_contract_and_exits_by_the_verdict(lldscope_command, dying_run):
    done = lldscope_command("check", dying_run, "--json")
    state = json.loads(done.stdout)
    assert done.returncode == 11
    assert state["verdict"] == "critical"
    assert state["phase"] == "collapse"
    assert state["evidence"] == "delta"
    fields = {"schema", "run", "verdict", "evidence", "phase", "phases", "alerts", "look_alikes"}
    assert fields | {"last_step"} <= set(state)
    assert all({"phase", "start_step", "end_step"} == set(p) for p in state["phases"])
    decay = next(a for a in state["alerts"] if a["rule"] == "lld-decay")
    assert {"rule", "severity", "state", "step", "message"} <= set(decay)
    assert 60 < decay["step"] < 120
    assert state["last_step"] == 149
    people = lldscope_command("check", dying_run)
    assert people.returncode == 11
    assert "CRITICAL" in people.stdout
    assert f"step {decay['step']}" in people.stdout
    assert "\x1b" not in people.stdout  # not a terminal: no colours, no animation


@pytest.mark.parametrize(("form", "with_cache"), [("", False), ("--json", True)])
def test_check_loads_no_library_for_tables(dying_run, tmp_path, form, with_cache):
    """pandas and pyarrow.compute take as long to load as a short run takes to judge."""
    where = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    words = [a for a in ("lldscope", "check", str(dying_run), form) if a]
    code = (
        "import sys; from lldscope.cli import main; from lldscope.query import contents\n"
        f"contents.CACHE_ROWS = {0 if with_cache else 2**40}; sys.argv = {words}\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 11, end.code\n"
        "print('LOADED', {'pandas', 'pyarrow.compute'} & set(sys.modules))"
    )
    for _ in range(1 + with_cache):  # from nothing, and from what was kept
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=where, timeout=60
        )
        assert done.stdout.splitlines()[-1] == "LOADED set()", done.stdout + done.stderr
    assert (tmp_path / "cache").exists() == with_cache


def test_what_a_terminal_cannot_show_is_escaped(lldscope_command, dying_run):
    """In JSON's way, so that JSON stays JSON."""
    western = {"env": {**os.environ, "PYTHONIOENCODING": "latin-1"}, "encoding": "latin-1"}
    done = lldscope_command("check", dying_run, "--json", **western)
    assert (done.returncode, done.stderr) == (11, "")
    assert any("Δ" in alert["message"] for alert in json.loads(done.stdout)["alerts"])


def test_a_false_decay_alarm_has_a_bound(lldscope_command, dying_run, tmp_path):
    run = shutil.copytree(dying_run, tmp_path / "run")
    state = json.loads(lldscope_command("check", run, "--json").stdout)
    assert state["arl"] == 2000
    assert state["false_alarm_bound"] == pytest.approx((state["last_step"] + 1) / 2000)
    text = lldscope_command("check", run).stdout
    assert f"at most {100 * state['false_alarm_bound']:.1f} % of runs of" in text
    info = json.loads((run / "run.json").read_text()) | {"planned_steps": 500}
    (run / "run.json").write_text(json.dumps(info))
    planned = json.loads(lldscope_command("check", run, "--json").stdout)
    assert (planned["arl"], planned["false_alarm_bound"]) == (10_000, 0.05)


@pytest.mark.parametrize(
    ("verdict", "fail_on", "style", "code"),
    [
        ("healthy", "warning", "lldscope", 0),
        ("warning", "warning", "lldscope", 10),
        ("warning", "critical", "lldscope", 0),
        ("critical", "critical", "lldscope", 11),
        ("stalled", "critical", "lldscope", 12),
        ("insufficient", "warning", "lldscope", 13),
        ("warning", "warning", "nagios", 1),
        ("critical", "warning", "nagios", 2),
        ("stalled", "warning", "nagios", 2),
        ("insufficient", "warning", "nagios", 3),
    ],
)
def test_exit_codes(verdict, fail_on, style, code):
    assert exit_code(verdict, fail_on, NAGIOS if style == "nagios" else EXIT) == code


def test_heartbeats_belong_to_their_attempt_whatever_the_clock_says(make_run):
    """A clock that was set back makes heartbeats look older than the start they come from, and
    a clock that was ahead makes those of the attempt before look newer."""
    path = make_run("resumed", steps=range(30))
    with lldscope.Recorder(path, resume=True, world_size=2) as recorder:
        recorder.step(step=30)
        time.sleep(0.5)
        info = json.loads((path / "run.json").read_text())
        info["attempts"][-1]["started"] = time.time() + 20
        (path / "run.json").write_text(json.dumps(info))
        heartbeats.write_heartbeat(path, 1, closed=False, attempt=1)
        ahead = heartbeats.read_heartbeats(path)[1] | {"pid": 2**22 + 1}
        (path / "heartbeat" / "r1.json").write_text(json.dumps(ahead | {"time": time.time() + 60}))
        assert check(lldscope.open_run(path)).life == "live"


def test_what_the_ranks_dropped_adds_up(tmp_path):
    for rank in (0, 1):
        with lldscope.Recorder(tmp_path / "r", rank=rank, world_size=2) as recorder:
            recorder.step(step=0, bogus=1)
    (count,) = check(lldscope.open_run(tmp_path / "r")).dropped.values()
    assert count == 2


ERRORS = [
    (("check", "{tmp}/newer"), 1, "Upgrade lldscope"),
    (("check", "{tmp}/foreign/x"), 1, "lldscope diagnose"),
    (("diagnose", "{tmp}/none.log"), 1, "does not exist"),
    (("diagnose", "{tmp}/binary"), 1, "none of the known formats"),
    (("diagnose", "{tmp}", "-o", "{tmp}/x.html"), 2, "say which with --run: newer, run"),
    (("report", "{tmp}/run", "-o", "{tmp}/none/x.html"), 1, "There is no folder"),
    (("query", "{tmp}/run", "DROP TABLE steps"), 2, "exactly one SELECT"),
    (("query", "{tmp}/run", "SELECT 1", "--json", "--csv"), 2, "Choose one"),
    (("schema", "--trainer", "trll"), 2, "The atlas knows no trll"),
    (("chekc",), 2, "Did you mean 'check'?"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "words"), ERRORS, ids=[" ".join(e[0]) for e in ERRORS]
)
def test_errors_are_a_sentence_and_an_exit_code(
    lldscope_command, make_run, tmp_path, arguments, code, words
):
    make_run("run", steps=range(3))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "x").write_text("")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "run.json").write_text('{"schema": 99}')
    before = sorted(tmp_path.rglob("*"))
    done = lldscope_command(*(a.format(tmp=tmp_path) for a in arguments), cwd=tmp_path)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_most_checks_cannot_judge_is_nowhere_called_healthy(lldscope_command, tmp_path):
    with lldscope.Recorder(tmp_path / "bare", trainer="mine") as recorder:
        for step in range(40):
            recorder.step(step=step)
            recorder.scalars(step=step, name=["reward"], value=[0.3 + step / 100])
    for command in ("runs", "check", "diagnose", "compare"):
        place = tmp_path if command == "runs" else tmp_path / "bare"
        arguments = (place,) if command != "compare" else (place, place)
        done = lldscope_command(command, *arguments)
        assert "healthy" not in done.stdout.lower(), done.stdout
        assert "no alarm" in done.stdout.lower(), done.stdout
        answer = json.loads(lldscope_command(command, *arguments, "--json").stdout)
        row = answer[0] if command == "runs" else answer.get("runs", [answer])[0]
        assert (row["verdict"], row["verdict_word"]) == ("healthy", "no alarm")
    line = lldscope_command("check", tmp_path / "bare", "--exit-style", "nagios").stdout
    assert line.startswith("LLDSCOPE OK - bare no alarm, step 39")


INTERRUPTED = """
import os, signal, threading
from lldscope import cli
from lldscope.run import Run

def pressed_meanwhile(self, *told, ask=Run.rows, **options):
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    return ask(self, *told, **options)

Run.rows = pressed_meanwhile
cli.main()
"""


def test_ctrl_c_in_the_middle_of_a_statement_ends_quietly(make_run):
    """This one keeps DuckDB busy for many seconds between two of its own looks for a Ctrl-C."""
    endless = "SELECT count(*) FROM range(10000000) a(i), range(10000) b(j) WHERE i * j % 7 = 3"
    command = [sys.executable, "-c", INTERRUPTED, "query", str(make_run()), endless]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stderr.strip()) == (130, "")


def test_query_tells_nan_from_null_and_lists_from_values(lldscope_command, make_run):
    path = make_run(steps=range(3))
    sql = (
        "SELECT 'NaN'::DOUBLE x, NULL::DOUBLE y, '-Infinity'::FLOAT z, list(step) l, "
        "['NaN'::FLOAT, NULL, 0.5] m, sum(step) s, 0.1::FLOAT f, 2.50 d, MAP {'a': 1} p, "
        "DATE '12000-01-01' t, INTERVAL 1 MONTH i, 1 AS x FROM steps"
    )
    result = lldscope_command("query", path, sql, "--json")
    assert json.loads(result.stdout) == {
        "x": "NaN", "y": None, "z": "-Infinity", "l": [0, 1, 2], "m": ["NaN", None, 0.5], "s": 3,
        "f": pytest.approx(0.1), "d": 2.5, "p": {"a": 1}, "t": "12000-01-01",
        "i": "1 month", "x_1": 1,
    }
    few = "SELECT 'NaN'::DOUBLE x, NULL::DOUBLE y, '-Infinity'::FLOAT z, [7] l, 0.1::FLOAT f"
    assert lldscope_command("query", path, few, "--csv").stdout == "x,y,z,l,f\nnan,,-inf,[7],0.1\n"
    assert lldscope_command("query", path, few).stdout.split() == [
        "x", "y", "z", "l", "f", "nan", "–", "-inf", "[7]", "0.1"
    ]
    none = lldscope_command("query", path, "SELECT step FROM steps WHERE step > 9", "--csv")
    assert none.stdout == "step\n"


def test_watch_until_firing_runs_the_hook_and_exits_by_severity(
    lldscope_command, dying_run, tmp_path
):
    out = tmp_path / "alert.jsonl"
    done = lldscope_command(
        "watch", dying_run, "--until", "firing", "--timeout", "30", "--on-alert", f"cat >> {out}"
    )
    assert done.returncode == 11
    assert "lld-decay" in done.stdout
    assert '"rule": "lld-collapse"' in out.read_text(encoding="utf-8")


def test_text_from_logs_is_made_safe_for_a_terminal():
    assert plain("a\x1b[31mred\x1b[0m\x1b]0;title\x07b") == "aredb"
    assert plain("x\u202ey\x00z\x9b\u0378") == "x�y�z��"
    assert plain("new\nline\ttab") == "new line tab"


def test_sparklines_and_ages():
    assert sparkline([0.0, 1.0]) == "▁█"
    assert sparkline([1.0, float("nan"), 1.0]) == "▄ ▄"
    assert sparkline([float("nan")]) == ""
    assert len(sparkline(list(range(1000)), 24)) <= 24
    assert [age(s) for s in (None, 3, 120, 7200, 1e6)] == ["–", "3 s", "2 min", "2 h", "12 d"]
