"""Notifications: what is sent, how often, what a dead server costs, and that no address is told."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from base64 import b64encode
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from unittest.mock import Mock

import pytest
from made_up_runs import write_run, write_step
from recorded_steps import wait_until
from test_watch import watching

import lldscope
from lldscope.diagnosis.rule import Alert
from lldscope.monitor import notify
from lldscope.monitor.follow import AlertEvent, Follower
from lldscope.monitor.headline import Headline
from lldscope.monitor.health import RunState
from lldscope.monitor.notify import VARIABLE, Command, Notifier, Service, Undeliverable

SECRET = "s3cr3t-t0ken"


class Server:
    """A web server that keeps what it is sent; `answers` are statuses to give, then 200."""

    def __init__(self) -> None:
        self.posts: list[dict] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.answers: list[int] = []
        self.seconds = 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(outer.seconds)
                outer.paths.append(self.path)
                outer.headers.append(dict(self.headers))
                outer.posts.append(json.loads(body))
                status = outer.answers.pop(0) if outer.answers else 200
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def alerts(self) -> list[tuple[str, str]]:
        return [(post["alert"]["rule"], post["alert"]["state"]) for post in self.posts]


@pytest.fixture
def server():
    instance = Server()
    yield instance
    instance.http.shutdown()
    instance.http.server_close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(notify, "RETRY_AFTER", (0.05, 0.1))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def event(rule: str = "lld-decay", state: str = "firing", **others: object) -> AlertEvent:
    resolved = state == "resolved"
    run = RunState(
        run="mine", id="abc", path="/r/mine", verdict="warning", evidence="delta", phase="decay",
        phases=(), alerts=(), pending=(), look_alikes={}, look_alike_evidence={}, last_step=99,
        life="live", over=False, reason=None, last_row_age_seconds=1.0, arl=2000.0,
        false_alarm_bound=None, damaged={}, dropped={}, headline=Headline("It falls", "look"),
        silenced={},
    )
    alert = Alert(
        rule=rule, severity="warning", state=state, step=91, value=2631.7, threshold=None,
        message="correct responses lose likelihood", meaning="The updates …", evidence="Δ",
        advice="Save a checkpoint.", false_alarms="one in 2000 steps",
        episodes=((91, 120 if resolved else None),),
    )
    whole = AlertEvent(1.7e9, run, alert, 1.7e9, 1.7e9 + 30 if resolved else None)
    for name, value in others.items():
        if name == "time":
            whole = replace(whole, time=value)
        elif hasattr(run, name):
            whole = replace(whole, state=replace(whole.state, **{name: value}))
        else:
            whole = replace(whole, alert=replace(whole.alert, **{name: value}))
    return whole


def url(server: Server, path: str = f"/{SECRET}") -> str:
    return f"http://127.0.0.1:{server.port}{path}"


# -- webhooks --------------------------------------------------------------------------------------


def test_a_webhook_gets_the_alarm(server):
    address = f"http://me:p%40ss@127.0.0.1:{server.port}/{SECRET}?key=a%26b"
    Service(address, 1).deliver(event(value=float("inf")))
    (post,) = server.posts
    assert post["title"] == "warning: lld-decay in run mine"
    assert "Save a checkpoint." in post["message"]
    assert post["type"] == "warning"
    assert post["alert"] == json.loads(json.dumps({**event().to_dict(), "value": "Infinity"}))
    assert server.paths == [f"/{SECRET}?key=a%26b"]
    assert server.headers[0]["Content-Type"] == "application/json"
    assert server.headers[0]["User-Agent"].startswith("lldscope/")
    assert server.headers[0]["Authorization"] == f"Basic {b64encode(b'me:p@ss').decode()}"


def test_an_event_has_the_same_id_however_often_it_is_sent(server, tmp_path):
    """Of two deliveries the first counts as failed, because the answer comes late."""
    server.answers = [503, 503, 200]
    out = tmp_path / "events"
    with Notifier([url(server)], f"cat >> {out}", repeat=60) as notifier:
        notifier.send([event()])
    assert len(server.posts) == 3
    ids = {post["alert"]["event_id"] for post in server.posts}
    assert ids == {json.loads(out.read_text())["event_id"]} == {event(time=1.8e9).event_id}
    stall = {"rule": "stalled", "episodes": ((91, None),)}
    others = [
        event(state="resolved"), event(rule="kl-surge"), event(severity="critical"),
        event(episodes=((91, 95), (99, None))), event(id="another run"),
        event(**stall, value=130.0), event(**stall, value=131.0),
    ]
    assert len({event().event_id, *(other.event_id for other in others)}) == 1 + len(others)


@pytest.mark.parametrize(("answers", "tries"), [([503, 404], 3), ([503] * 9, 3)])
def test_what_fails_is_sent_again(server, capsys, answers, tries):
    server.answers = list(answers)
    channel = Service(url(server), 1)
    channel.enqueue(event())
    channel.close(time.monotonic())
    assert len(server.posts) == tries
    message = capsys.readouterr().err
    assert ("lld-decay was not delivered" in message) == (len(answers) > tries)
    assert ("1 changes in all" in message) == (len(answers) > tries)
    assert SECRET not in message


def test_no_redirect_is_followed(server):
    server.answers = [307]
    with pytest.raises(Undeliverable):
        Service(url(server), 1).deliver(event())
    assert server.paths == [f"/{SECRET}"]


def test_a_dead_server_delays_nothing(server, capsys, monkeypatch):
    monkeypatch.setattr(notify, "FLUSH_SECONDS", 0.2)
    server.seconds = 1.0
    channel = Service(url(server), 1)
    start = time.monotonic()
    for number in range(200):
        channel.enqueue(event(step=number))
    channel.close(time.monotonic())
    assert time.monotonic() - start < 60  # and not the 200 s of 200 answers
    assert re.search("(199|200) changes in all were not delivered", capsys.readouterr().err)


# -- how often -------------------------------------------------------------------------------------


def test_once_per_change_then_every_repeat_until_resolved(server, tmp_path, monkeypatch):
    out, clock = tmp_path / "told", count()
    with Notifier([url(server)], f"cat >> {out}", repeat=4) as notifier:
        monkeypatch.setattr(notify, "time", Mock(monotonic=lambda: next(clock), time=time.time))
        notifier.send([event(), event(rule="note", severity="info")])
        for tick in range(20):
            notifier.send([], silenced={"lld-decay"} if tick > 8 else ())
        notifier.send([event(rule="kl-surge")], silenced={"kl-surge", "lld-decay"})
        notifier.send([event(state="resolved")])
        for _ in range(9):
            notifier.send([])
    # Of severity info, or acknowledged: told to nobody.
    assert server.alerts == [("lld-decay", "firing")] * 3 + [("lld-decay", "resolved")]
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["state"] for line in lines] == ["firing", "resolved"]  # commands: changes only


# -- commands --------------------------------------------------------------------------------------


def test_a_command_reads_the_alarm_and_does_not_see_the_addresses(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv(VARIABLE, f"https://example.org/{SECRET}")
    out = tmp_path / "out"
    Command(f"cat > {out}; env; echo said").deliver(event())
    assert json.loads(out.read_text())["rule"] == "lld-decay"
    captured = capfd.readouterr()
    assert captured.out == ""  # stdout is for data
    assert "said" in captured.err
    assert SECRET not in captured.err


def test_a_command_that_fails_or_never_ends(tmp_path, monkeypatch):
    with pytest.raises(Undeliverable, match="exit code 3"):
        Command("exit 3").deliver(event())
    Command("exec true").deliver(event())  # it may ignore its input
    monkeypatch.setattr(notify, "COMMAND_SECONDS", 0.5)
    mark = tmp_path / "pid"
    with pytest.raises(Undeliverable, match="not finished after"):
        Command(f"sleep 60 & echo $! > {mark}; wait").deliver(event())
    child = int(mark.read_text())

    def is_gone() -> bool:  # or a zombie that nobody has waited for
        try:
            with open(f"/proc/{child}/stat") as stat:
                return stat.read().rsplit(")", 1)[1].split()[0] == "Z"
        except FileNotFoundError:
            return True

    wait_until(is_gone, 10)


# -- services through apprise ----------------------------------------------------------------------


def test_other_schemes_go_through_apprise(server):
    service = Service(f"json://127.0.0.1:{server.port}/{SECRET}", 1)
    service.deliver(event(state="resolved"))
    assert server.posts[0]["type"] == "success"
    server.answers = [500]
    with pytest.raises(Undeliverable, match="apprise could not deliver it"):
        service.deliver(event())


@pytest.mark.parametrize(
    "address",
    ["slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#alarms",
     "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js",
     "https://discord.com/api/webhooks/4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js",
     "mailto://user:pass@example.org?to=me@example.org"],
)
def test_the_documented_addresses_are_understood(address):
    assert Service(address, 1).name.startswith("notification address 1")


# -- the whole way ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_live_run_tells_of_each_change_once(server, tmp_path, lldscope_command):
    """From before the run is there, through decay and collapse."""
    run, events = tmp_path / "run", []
    follower = Follower(run)
    assert follower.poll() is None
    with lldscope.Recorder(run) as recorder, Notifier([url(server)]) as notifier:
        for step in range(150):
            write_step(recorder, step, dies=True, at=time.time())
            if step % 5 == 4:
                recorder.flush()
                events += (update := follower.poll()).events
                notifier.send(update.events)
    changes = [(e.alert.rule, e.alert.state, e.alert.severity) for e in events]
    assert len(changes) == len({*changes}), "an alarm that gets worse is told of again"
    assert server.alerts == [change[:2] for change in changes if change[2] != "info"]
    assert {("lld-decay", "firing"), ("lld-collapse", "firing")} <= {*server.alerts}
    # A watch that is started tells what still fires, of the same run and start, and no more.
    before = {(a["id"], a["rule"]): a["started"] for a in (post["alert"] for post in server.posts)}
    server.posts.clear()
    assert lldscope_command("watch", run, "--notify", url(server)).returncode == 11
    assert {state for _, state in server.alerts} == {"firing"}
    after = {(a["id"], a["rule"]): a["started"] for a in (post["alert"] for post in server.posts)}
    assert after.items() <= before.items()


@pytest.mark.slow
def test_a_terminated_watch_still_delivers(server, tmp_path):
    server.seconds = 0.5
    run = tmp_path / "run"
    with lldscope.Recorder(run) as recorder:
        for step in range(150):
            write_step(recorder, step, dies=True, at=time.time())
        recorder.flush()
        watcher = watching(run, "--json", "--notify", url(server))
        wait_until(lambda: bool(server.posts))
        watcher.send_signal(signal.SIGTERM)
        out, err = watcher.communicate(timeout=30)
    assert watcher.returncode == 128 + signal.SIGTERM
    firing = [line for line in map(json.loads, out.splitlines()) if line["type"] == "alert"]
    alarms = [a for a in firing if a["severity"] != "info" and a["state"] == "firing"]
    assert len(server.posts) == len(alarms) > 1
    assert "Traceback" not in err


SENT = [
    f"http://127.0.0.1:1/{SECRET}",
    f"http://user:{SECRET}@127.0.0.1:1/?token={SECRET}",
    f"http://{SECRET}.invalid/x",
    f"http://127.0.0.1:1/{SECRET} {SECRET}",
    f"http://127.0.0.1:1/{SECRET}é",
    f"https://127.0.0.1:1/{SECRET}",
    f"json://127.0.0.1:1/{SECRET}",
    f"jsons://user:{SECRET}@127.0.0.1:1/x",
    f"mailto://user:{SECRET}@localhost:1?from=a@example.org&to=b@example.org&mode=insecure",
]
REFUSED = [
    f"http://[{SECRET}/x",
    f"http://127.0.0.1:{SECRET}/x",
    f"http:///{SECRET}",
    f"{SECRET}",
    f"{SECRET}://x/y",
    f"gopher://{SECRET}",
    f"file:///{SECRET}",
    f"slack://{SECRET}",
]


@pytest.mark.slow
def test_no_address_that_fails_is_ever_printed(tmp_path):
    """Not in messages, not in the data, not in what `ps` shows of the command that is run."""
    run = write_run(tmp_path / "run", 150, dies=True)
    hook = "tr '\\0' ' ' < /proc/$$/environ; tr '\\0' ' ' < /proc/$$/cmdline"
    code = (
        "import lldscope.monitor.notify as n, sys; n.RETRY_AFTER = (0.05,)\n"
        "from lldscope.cli import main; main()"
    )
    options = [word for address in SENT for word in ("--notify", address)]
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code, "watch", str(run), "--json", *options,
         "--on-alert", hook],
        capture_output=True, text=True, timeout=120,
        env={**os.environ, VARIABLE: f"http://127.0.0.1:1/{SECRET}"},
    )
    assert time.monotonic() - start < 45  # the command's minute is not waited for a mail server
    assert done.returncode == 11, done.stderr
    assert "PATH=" in done.stderr  # the hook has shown its environment
    for number in range(1, len(SENT) + 1):
        assert f"notification address {number} (" in done.stderr, done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_no_address_that_is_refused_is_ever_printed(tmp_path, monkeypatch, lldscope_command):
    for address in REFUSED:
        monkeypatch.setenv(VARIABLE, address)
        done = lldscope_command("watch", tmp_path)
        assert (done.returncode, "otification address 1" in done.stderr) == (2, True)
        assert SECRET not in done.stdout + done.stderr
