"""What a hostile run, page, neighbour or statement must not get."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from lldscope_dashboard import server
from lldscope_dashboard.app import make_app
from lldscope_dashboard.data import run_registry as shelf
from lldscope_dashboard.data.run_summaries import RunSummaries
from lldscope_dashboard.pages.batch import batch
from lldscope_dashboard.pages.router import page
from lldscope_dashboard.pages.story import story

import lldscope
from lldscope.cli import cli
from lldscope.core.errors import LldscopeError
from lldscope.core.terminal import MOST_CHARACTERS, visible
from lldscope.figures.chart_figures import CHARTS, make_chart
from lldscope.figures.view import View
from lldscope.storage import json_files
from lldscope.storage.manifest import manifest_path

ROOT = Path(__file__).parent.parent

# -- code -----------------------------------------------------------------------------------------

_UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
# The command of --on-alert is the user's own shell line.
_SHELL = {ROOT / "lldscope/monitor/notify.py"}
_CALLS = {"eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load"}


def dangers(path: Path) -> Iterator[str]:
    """Pickle in any form, eval or exec, YAML that builds objects, a shell."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        yield from {name.split(".")[0] for name in modules} & _UNSAFE_MODULES
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        options = {k.arg: ast.unparse(k.value) for k in node.keywords}
        pickles, shell = (options.get(key, "False") != "False" for key in ("allow_pickle", "shell"))
        if (
            name in _CALLS
            or name.endswith(("read_pickle", "to_pickle"))
            or (name == "torch.load" and options.get("weights_only") != "True")
            or (name in ("np.load", "numpy.load") and pickles)
            or (shell and path not in _SHELL)
        ):
            yield ast.unparse(node)


def test_no_code_runs_what_it_reads():
    dangerous = {
        path: items
        for folder in ("lldscope", "trainer", "dashboard")
        for path in (ROOT / folder).rglob("*.py")
        if (items := [*dangers(path)])
    }
    assert dangerous == {}


# -- names ----------------------------------------------------------------------------------------


OUTSIDE = [
    ("steps", "../../secret.parquet"),
    ("steps", "/etc/passwd"),
    ("../steps", "a1-r0-000001.parquet"),
    ("/etc", "a1-r0-000001.parquet"),
    ("steps", "a1-r0-000001.parquet\0"),
    ("steps", "a1-r0-000001.parquet\n"),
    ("steps", "a9-r0-000001.parquet"),
    ("steps/../steps", "a1-r0-000001.parquet"),
]


def test_a_manifest_entry_cannot_leave_the_run(make_run, tmp_path):
    path = make_run(steps=range(3))
    before = lldscope.open_run(path).signals()
    with open(manifest_path(path, 1, 0), "ab") as manifest:
        manifest.write(json_files.with_checksum('{"time": "none"}'))
    (why,) = lldscope.open_run(path).damaged.values()
    assert why.startswith("1 line cannot be read (line 3: ")
    (tmp_path / "secret.parquet").write_bytes(next((path / "steps").glob("*.parquet")).read_bytes())
    with open(manifest_path(path, 1, 0), "ab") as manifest:
        for table, file in OUTSIDE:
            entry = {"file": file, "rows": 3, "bytes": 1, "steps": [0, 2]}
            line = json.dumps({"time": 1, "parts": {table: entry}})
            manifest.write(json_files.with_checksum(line))
    run = lldscope.open_run(path)
    message = f"{1 + len(OUTSIDE)} lines cannot be read (line 3: "
    assert run.damaged["manifest/a1-r0.jsonl"].startswith(message)
    assert run.signals().equals(before)


def test_pipes_and_devices_are_not_opened(make_run):
    """Whoever opened one of them would wait for good."""
    path = make_run(steps=range(3))
    (part,) = (path / "steps").glob("*.parquet")
    for file in (part, path / "events.jsonl", path / "heartbeat" / "r0.json", path / "run.json"):
        file.unlink(missing_ok=True)
        os.mkfifo(file)
    done = subprocess.run(
        [sys.executable, "-m", "lldscope", "check", path, "--json"],
        capture_output=True, text=True, timeout=100,
    )
    damaged = json.loads(done.stdout)["damaged"]
    names = {name for name, why in damaged.items() if "it is not a regular file" in why}
    assert {"events.jsonl", "heartbeat/r0.json", "run.json", f"steps/{part.name}"} <= names


def test_links_out_of_a_run_are_not_followed(make_run, tmp_path):
    path, other = make_run("mine", steps=range(3)), make_run("theirs", steps=range(3), seed=9)
    for name in ("steps", "events.jsonl", "heartbeat/r0.json"):
        target = path / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
        target.symlink_to(other / name)
    (other / "events.jsonl").write_text('{"kind": "theirs"}\n')
    run = lldscope.open_run(path)
    assert len(run.damaged) == 3
    assert set(run.damaged.values()) == {"it is a link that leads out of the run"}
    assert run.signals()["reward"].isna().all()
    assert run.events() == []
    assert run.heartbeats() == {}


def test_a_run_that_is_a_link_out_of_the_root_is_not_served(make_run, tmp_path):
    make_run("elsewhere/secret", steps=range(3))
    make_run("root/mine", steps=range(3))
    root = tmp_path / "root"
    (root / "link").symlink_to(tmp_path / "elsewhere" / "secret")
    (root / "group").symlink_to(tmp_path / "elsewhere")
    runs = shelf.RunRegistry(root)
    lines = {line.name: line for line in RunSummaries(runs).now(60.0)}
    assert lines["mine"].error is None
    for name in ("link", "group/secret"):
        assert "link to a folder outside" in lines[name].error
        with pytest.raises(LldscopeError, match="outside"):
            runs.snapshot(name)
    output = CliRunner().invoke(cli, ["runs", str(root), "--json"], catch_exceptions=False).output
    assert output.count("outside of") == 2
    assert lldscope.open_run(root / "link").signals()["step"].tolist() == [0, 1, 2], (
        "named, it opens"
    )


def test_names_in_addresses_cannot_leave_the_root(make_run, tmp_path):
    make_run("mine", steps=range(3))
    (tmp_path / "root").mkdir()
    runs = shelf.RunRegistry(tmp_path / "root")
    for name in ("../mine", "..", ".", "/etc", "%2e%2e/mine", "..%2fmine", "mine/../../mine",
                 "\0", "~"):
        for address, query in ((f"/run/{name}", ""), ("/compare", f"?run={name}")):
            text = json.dumps(page(runs, address, query), default=plain)
            assert "There is no run" in text, name
            assert "last step" not in text, name


# -- text of models -------------------------------------------------------------------------------

EVIL = {
    "script": "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "ansi": "\x1b[2J\x1b]0;title\x07\x1b[31mred\x9b1m",
    "bidi": "abc\u202edcba\u2066x\u200f\u061c",
    "null": "a\0b\x08\x7f",
    "half": "\ud83d",
    "newline": "one\r\nlldscope: all is well\u2028x",
    "long": "W" * 1_000_000,
}
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def plain(component: Any) -> Any:
    return component.to_plotly_json()


def strings(tree: Any) -> list[str]:
    """All texts of a page: children and titles, not ids and addresses."""
    if isinstance(tree, str):
        return [tree]
    if isinstance(tree, list | tuple):
        return [s for item in tree for s in strings(item)]
    if hasattr(tree, "to_plotly_json"):
        keys = ("children", "title", "label", "options", "alt")
        return [s for key in keys for s in strings(getattr(tree, key, None))]
    return strings(tree.get("label")) if isinstance(tree, dict) else []


@pytest.fixture(scope="module")
def evil_run(tmp_path_factory):
    """A run all of whose texts are evil."""
    text = " ".join(EVIL.values())
    path = tmp_path_factory.mktemp("runs") / "evil"
    value = text.encode("utf-8", "replace").decode()
    recorder = lldscope.Recorder(path, name=value, group=value, trainer=value)
    for step in range(3):
        recorder.responses(step=step, response_id=[0], text=[value], data_source=[value])
        recorder.step(step=step, n_responses=1, reward_sum=1.0)
    recorder.event(value, step=1, details=value)
    recorder.close("failed", value)
    beat = json.loads((path / "heartbeat" / "r0.json").read_text())
    beat["dropped"] = {text: 3}
    (path / "heartbeat" / "r0.json").write_text(json.dumps(beat))
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(info | {"name": text, "reason": text}))
    return path


def test_pages_show_evil_text_as_text(evil_run):
    path = evil_run
    runs = shelf.RunRegistry(path.parent)
    of_the_run = ("run", "config", "responses", "response")
    addresses = [("/", ""), ("/", "?by=group"), ("/compare", "?run=evil&average=group")]
    addresses += [(f"/{kind}/evil", "") for kind in of_the_run]
    addresses += [("/run/" + quote(EVIL["ansi"]), ""), ("/" + quote(EVIL["bidi"]), "")]
    evil = runs.snapshot("evil")
    pages = {address: page(runs, address, search) for address, search in addresses}
    pages |= {"its story": story(evil), "its batch": batch(evil, evil.state.last_step)}
    for address, content in pages.items():
        for text in strings(content):
            assert not _OBEYED.search(text), ascii(text[:200])
            assert len(text) < 3 * MOST_CHARACTERS + 2000
        body = json.dumps(content, default=plain)
        assert len(body) < 400_000, address
        assert "dangerously" not in body
        assert "srcDoc" not in body
    for chart in CHARTS:
        figure = json.dumps(make_chart(chart, runs.snapshot("evil").subject, View()))
        assert "<script" not in figure
        assert "<img" not in figure


TEXTS = "SELECT text, data_source FROM responses LIMIT 1"


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "{run}"], ["check", "{run}", "--json"],
        ["check", "{run}", "--exit-style", "nagios"],
        ["runs", "{root}"], ["runs", "{root}", "--json"],
        ["watch", "{run}", "--timeout", "0"], ["watch", "{run}", "--timeout", "0", "--json"],
        ["query", "{run}", TEXTS], ["query", "{run}", TEXTS, "--json"],
        ["query", "{run}", "SELECT error('\x1b[31m' || text) FROM responses"],
    ],
    ids=lambda a: " ".join(x for x in a if "{" not in x)[:30],
)
def test_terminals_are_told_nothing_that_they_obey(evil_run, arguments, lldscope_command):
    done = lldscope_command(*(a.format(run=evil_run, root=evil_run.parent) for a in arguments))
    output = done.stdout + done.stderr
    assert not _OBEYED.search(output.replace("\r\n", "\n")), ascii(_OBEYED.search(output))
    assert "\nlldscope: all is well" not in output


def test_visible_text_is_short_and_harmless():
    for text in EVIL.values():
        assert not _OBEYED.search(visible(text))
        assert len(visible(text)) <= MOST_CHARACTERS + 40
    assert visible("Δ of π – naïve 日本語") == "Δ of π – naïve 日本語"


# -- the server -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A client of the dashboard of a folder without runs."""
    app = make_app(shelf.RunRegistry(tmp_path_factory.mktemp("runs")))
    server.guard(app.server, "127.0.0.1", 8050, None)
    return app.server.test_client()


PATHS = ["/", "/run/x", "/_dash-layout", "/_dash-dependencies", "/assets/style.css", "/nothing"]


@pytest.mark.parametrize("path", PATHS)
def test_pages_of_other_origins_can_read_nothing(served, path):
    answer = served.get(
        path, headers={"Host": "localhost:8050", "Origin": "https://evil.example"}
    )
    headers = answer.headers
    assert not [name for name, _ in headers if name.lower().startswith("access-control-")]
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["X-Content-Type-Options"] == "nosniff"
    policy = dict(
        p.strip().partition(" ")[::2] for p in headers["Content-Security-Policy"].split(";")
    )
    assert policy["default-src"] == "'self'"
    assert policy["connect-src"] == "'self'"
    for directive in ("frame-ancestors", "object-src", "script-src-attr"):
        assert policy[directive] == "'none'"
    assert policy["form-action"] == policy["base-uri"] == "'self'"


@pytest.mark.parametrize(
    "name",
    ["evil.example", "evil.example:8050", "localhost.evil.example", "127.0.0.1.evil.example:8050",
     "localhost@evil.example", "[::1].evil.example", "0.0.0.0:8050", "", "localhost:8050:evil"],
)
@pytest.mark.parametrize("method", ["get", "post", "options"])
def test_names_that_were_rebound_to_this_machine_are_refused(served, name, method):
    answer = getattr(served, method)("/_dash-layout", headers={"Host": name})
    assert answer.status_code in (400, 403), answer.status_code
    assert b"props" not in answer.get_data()


@pytest.mark.parametrize(
    "path",
    ["/assets/../app.py", "/assets/..%2fapp.py", "/assets/%2e%2e/server.py", "/assets//etc/passwd",
     "/_dash-component-suites/dash/../../../etc/passwd", "/_dash-component-suites/os/path.py"],
)
def test_no_address_gives_a_file_of_the_machine(served, path):
    answer = served.get(path, headers={"Host": "localhost"})
    body = answer.get_data(as_text=True)
    assert "root:x:0" not in body
    assert "def serve" not in body
    assert "def make_app" not in body


def test_the_limits_of_the_server_are_those_of_the_docs(tmp_path, monkeypatch):
    settings: dict[str, Any] = {}

    def create_server(*arguments: Any, sockets: list[socket.socket], **options: Any) -> Any:
        settings.update(options)
        sockets[0].close()
        raise KeyboardInterrupt

    monkeypatch.setattr("waitress.server.create_server", create_server)
    with pytest.raises(KeyboardInterrupt):
        server.serve(tmp_path, port=0, token="x" * 20)
    names = ("threads", "connection_limit", "channel_timeout", "max_request_body_size")
    assert [settings[name] for name in names] == [8, 1000, 30, 1 << 20]
    text = " ".join((ROOT / "docs/security.md").read_text("utf-8").split())
    assert "one of eight threads" in text
    assert "a thousand connections are kept at most, idle ones for 30 seconds" in text
