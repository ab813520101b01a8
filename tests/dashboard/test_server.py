"""What is served and to whom: tokens, hosts, the command, and what anybody can send."""

from __future__ import annotations

import copy
import json
import logging
import os
import random
import re
import shutil
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import lldscope_dashboard
import plotly
import pytest
from browsing import BEARER
from lldscope_dashboard import server
from lldscope_dashboard.app import make_app
from lldscope_dashboard.data.run_registry import Reading, RunRegistry
from lldscope_dashboard.pages.frame import address as address_of
from lldscope_dashboard.pages.router import page
from made_up_runs import write_run
from open_page import CALLBACKS, Open
from page_content import texts

import lldscope
from lldscope.core.errors import LldscopeError, RunNotFound, UsageError
from lldscope.monitor.follow import link_to
from lldscope.run import Run

PLOTLY = "/assets/plotly/plotly-basic.min.js"
TOKEN = "not-to-be-guessed"
MUTANTS = 30
WORDS: list[Any] = [
    None, True, -1, 0, 10**30, 1e308, float("nan"), "", "x", "\0", "../..", "\ud800", [], {},
    [[]], [None], {"a": 1}, "a" * 5000, [1, "2", None], {"x": ["step"], "zoom": [1]}, "note", "..",
    {"x": ["wall"], "zoom": ["a,b"]}, {"type": "chart", "index": "delta"}, [["dying"]],
]
ODD_NAMES = ("two\nlines", "cr\rx", "a/b\nc", "esc\x1b[31m", "a%2Fb", "a?b#c", "a\\x0ab")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "dying", 90, dies=True)
    write_run(root / "healthy", 30)
    return root


def client(root: Path, token: str | None = None) -> Any:
    app = make_app(RunRegistry(root))
    server.guard(app.server, "127.0.0.1", 8050, token)
    return app.server.test_client()


def questions(root: Path, address: str) -> list[dict[str, Any]]:
    """What a browser would ask on a page, once for each of the callbacks that the page has."""
    tab, requests = Open(root, address), []
    for call in tab.app._callback_list:
        with suppress(KeyError):  # its parts are of another page
            if not call["clientside_function"]:
                requests.append(tab.question(call))
    return requests


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a value with each of its keys."""
    if isinstance(value, dict):
        inside = list(value.items())
    else:
        inside = list(enumerate(value)) if isinstance(value, list) else []
    return [(value, key) for key, _ in inside] + [p for _, v in inside for p in places(v)]


def spoilt(question: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    question = json.loads(json.dumps(question))
    for _ in range(dice.randint(1, 3)):
        container, key = dice.choice(places(question))
        if dice.random() < 0.3:
            del container[key]
        else:
            container[key] = copy.deepcopy(dice.choice(WORDS))
    return question


def test_malformed_callbacks_get_a_sentence(root: Path, caplog: Any) -> None:
    """Questions of the real pages, spoilt by a generator; the seed is in the message."""
    browser = client(root)
    addresses = ["/", "/run/dying", "/compare?run=dying&run=healthy"]
    requests = [q for address in addresses for q in questions(root, address)]
    assert len({q["output"] for q in requests}) >= 5
    for question in requests:
        answer = browser.post(CALLBACKS, json=question)
        assert answer.status_code in (200, 204), (question["output"], answer.get_data(as_text=True))
    caplog.set_level(logging.CRITICAL)
    refused = 0
    for seed in range(MUTANTS):
        dice = random.Random(seed)
        question = spoilt(dice.choice(requests), dice)
        answer = browser.post(CALLBACKS, data=json.dumps(question), content_type="application/json")
        text = answer.get_data(as_text=True)
        assert answer.status_code in (200, 204, 400, 404, 500), (seed, answer.status_code, text)
        if answer.status_code >= 400:
            refused += 1
            assert text.count("\n") == 1, (seed, text)
            assert "Traceback" not in text
    assert refused > MUTANTS // 4


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"{", b"\xff", b"[" * 100_000, b"{}", b'{"output": []}',
     b'{"output": "of-a-version-before.children", "inputs": [], "changedPropIds": []}'],
)
def test_what_is_no_question_gets_a_sentence(root: Path, body: bytes, caplog: Any) -> None:
    answer = client(root).post(CALLBACKS, data=body, content_type="application/json")
    assert answer.status_code == 400
    assert answer.get_data(as_text=True).count("\n") == 1
    assert "ERROR" not in [record.levelname for record in caplog.records]


def test_a_fault_of_ours_inside_a_callback_is_logged_as_one(
    root: Path, monkeypatch: Any, caplog: Any
) -> None:
    browser = client(root)
    (request,) = [q for q in questions(root, "/") if q["output"].startswith("..rows.children")]

    def breaks(*arguments: Any) -> Any:
        return len(None)  # type: ignore[arg-type]

    monkeypatch.setattr("lldscope_dashboard.pages.list_page._sorted", breaks)
    answer = browser.post(CALLBACKS, json=request)
    assert answer.status_code == 500
    assert answer.get_data(as_text=True).count("\n") == 1
    assert [record.levelname for record in caplog.records].count("ERROR") == 1


def test_runs_of_any_name_have_their_pages(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 5)
    for name in ODD_NAMES:
        shutil.copytree(tmp_path / "run", tmp_path / "odd" / name)
    browser, registry = client(tmp_path / "odd"), RunRegistry(tmp_path / "odd")
    runs = str(page(registry, "/", ""))
    assert len(registry.names()) == len(ODD_NAMES)
    for name in registry.names():
        there = address_of("run", name)
        assert there in runs
        assert urlsplit(link_to("http://localhost", name, "lld-decay")).path == there
        assert browser.get(there).status_code == 200
        assert "Waiting for" not in str(page(registry, there, ""))
    for name in ODD_NAMES[:2]:
        assert browser.get(address_of("report", name)).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/run", "/run/", "/rules/no-such-rule", "/assets/no.js", "/assets/../app.py",
     "/_dash-component-suites/dash/no.js", "/_dash-component-suites/no/no.js", "/favicon.icon",
     "/%00", "/report/nothing"],
)
def test_what_is_not_there_is_404(root: Path, path: str) -> None:
    answer = client(root).get(path)
    assert answer.status_code == 404
    assert "Traceback" not in answer.get_data(as_text=True)


def test_a_run_that_is_deleted_while_a_page_reads_it_gives_words(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """At every third statement in turn."""
    run, ask = write_run(tmp_path / "one" / "dying", 10), Run._ask
    count = after = 0

    def answer(*arguments: Any) -> Any:
        nonlocal count
        if count == after:
            shutil.rmtree(tmp_path / "two")
        count += 1
        return ask(*arguments)

    monkeypatch.setattr(Run, "_ask", answer)
    for after in range(0, 40, 3):
        count = 0
        shutil.copytree(run, tmp_path / "two" / "dying")
        assert texts(page(RunRegistry(tmp_path / "two"), "/response/dying", "step=3&id=0"))
        if count <= after:
            break
        shutil.rmtree(tmp_path / "two", ignore_errors=True)
    assert 4 < after < 39, "the page was read to its end"


@pytest.mark.parametrize(
    ("error", "words"),
    [(FileNotFoundError(), "This page cannot be shown now"), (Reading("long"), "Loading this run"),
     (RunNotFound(), "Waiting for"), (LldscopeError("why"), "This run cannot be shown")],
)
def test_what_goes_wrong_while_a_page_is_made_is_said(
    root: Path, monkeypatch: Any, error: Exception, words: str
) -> None:
    monkeypatch.setattr(RunRegistry, "snapshot", Mock(side_effect=error))
    assert words in texts(page(RunRegistry(root), "/run/dying", ""))


def test_slow_clients_and_many_tabs_leave_a_page_its_time(address: str) -> None:
    """300 clients that never finish their question, and 20 that do not read their answer."""
    request = Request(f"{address}/run/dying", headers=BEARER)
    urlopen(request, timeout=120).read()
    host, port = address.removeprefix("http://").split(":")
    slow = []
    for n in range(320):
        one = socket.create_connection((host, int(port)), timeout=60)
        whole = f"GET /assets/plotly/plotly-basic.min.js HTTP/1.1\r\nHost: {host}\r\n"
        one.sendall(whole.encode() if n < 300 else f"{whole}\r\n".encode())
        slow.append(one)
    took: list[float] = []

    def look() -> None:
        for _ in range(5):
            began = time.monotonic()
            urlopen(request, timeout=120).read()
            took.append(time.monotonic() - began)

    tabs = [threading.Thread(target=look) for _ in range(8)]
    for tab in tabs:
        tab.start()
    for tab in tabs:
        tab.join()
    for one in slow:
        one.close()
    assert len(took) == 40, "every page was answered"


@pytest.mark.parametrize("path", ["/", "/_dash-layout", "/_dash-dependencies", "/assets/style.css"])
def test_with_token_every_request_needs_it(root: Path, path: str) -> None:
    visitor = client(root, TOKEN)
    assert visitor.get(path).status_code == 401
    assert visitor.get(f"{path}?token=wrong").status_code == 401
    response = visitor.get(f"{path}?token={TOKEN}")
    assert response.status_code == 200
    cookie = response.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert visitor.get(path).status_code == 200, "afterwards the cookie is enough"


def test_what_cannot_be_served_is_said_in_one_sentence(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("waitress.server.create_server", None)  # where it would serve and not end
    with pytest.raises(UsageError, match="Leave --no-token out"):
        server.serve(tmp_path, host="0.0.0.0")
    with pytest.raises(LldscopeError, match="no folder"):
        server.serve(tmp_path / "nope")
    with pytest.raises(UsageError, match="0 to 65535"):
        server.serve(tmp_path, port=70_000)
    with pytest.raises(UsageError, match="could be guessed"):
        server.serve(tmp_path, token="s3cret")


def test_a_folder_whose_name_is_not_utf_8_takes_no_page_down(tmp_path: Path) -> None:
    write_run(tmp_path / "good", 3)
    write_run(tmp_path / "bad", 3)
    (tmp_path / "bad").rename(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    assert list(RunRegistry(tmp_path).names()) == ["caf\\xe9", "good"]
    for path, phrase in (
        ("/", "/run/good"), ("/run/caf%5Cxe9", "is not UTF-8"), ("/run/caf%E9", "There is no run"),
        ("/compare?run=good&run=caf%5Cxe9", "is not UTF-8"),
    ):
        answer = client(tmp_path).get(path, headers={"Host": "localhost:8050"})
        assert answer.status_code == 200, path
        there, _, query = path.partition("?")
        assert phrase in texts(page(RunRegistry(tmp_path), there, query)), path


def test_the_first_answer_names_nothing_of_a_run_and_has_a_nonce_of_its_own(tmp_path: Path) -> None:
    with lldscope.Recorder(tmp_path / "evil", name="</script>evil") as recorder:
        recorder.step(step=0, n_responses=1, reward_sum=1.0)
    client = make_app(RunRegistry(tmp_path)).server.test_client()
    nonces = set()
    for _ in range(2):
        answer = client.get("/run/evil", headers={"Host": "127.0.0.1"})
        text = answer.get_data(as_text=True)
        assert "evil" not in text
        assert PLOTLY in text
        assert not re.search("https?://", text.replace("http://www.w3.org/2000/svg", ""))
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        (nonce,) = re.findall('<style nonce="([^"]+)">', text)
        assert f"'nonce-{nonce}'" in answer.headers["Content-Security-Policy"]
        nonces.add(nonce)
    assert len(nonces) == 2
    assert client.get("/nothing", headers={"Host": "127.0.0.1"}).status_code == 404


def test_the_bundle_is_of_the_release_that_dash_is_made_for() -> None:
    """After an update of the plotly package: npm pack plotly.js-basic-dist-min@RELEASE."""
    theirs = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    ours = Path(lldscope_dashboard.__file__).parent / PLOTLY.lstrip("/")
    matches = [
        re.search(r"plotly\.js .*?v([\d.]+)", file.read_text(encoding="utf-8")[:200])
        for file in (theirs, ours)
    ]
    releases = [match and match[1] for match in matches]
    assert releases[0] is not None
    assert releases[0] == releases[1]
    assert "Licensed under the MIT license" in ours.read_text(encoding="utf-8")[:200]
    assert "MIT" in (ours.parent / "LICENSE").read_text(encoding="utf-8")
