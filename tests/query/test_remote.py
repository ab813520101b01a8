"""Runs on object storage and other file systems: the same answers as from a folder."""

from __future__ import annotations

import json
import re

import fsspec
import pandas as pd
import pytest
from recorded_steps import record_steps

import lldscope
from lldscope.core.errors import LldscopeError, RunNotFound
from lldscope.runs import find_runs
from lldscope.storage import json_files, layout
from lldscope.storage.url import Url, plain_errors

SECRET = "wJalrXUtnFEMI-verySecret"


@pytest.fixture(scope="module")
def s3():
    """An S3 server on this machine, started by the test; yields a file system and its address."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIAlldscopetest")
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        fs = fsspec.filesystem("s3")
        fs.mkdir("bucket")
        yield fs
    server.stop()


@pytest.fixture
def memory():
    fs = fsspec.filesystem("memory")
    yield fs
    fs.rm("/", recursive=True)


def same(a: lldscope.Run, b: lldscope.Run) -> None:
    pd.testing.assert_frame_equal(a.signals(), b.signals())
    pd.testing.assert_frame_equal(a.action_signals(), b.action_signals())
    count = "SELECT count(*) n, sum(n_tokens) t FROM actions"
    pd.testing.assert_frame_equal(a.sql(count), b.sql(count))
    assert a.damaged == b.damaged == {}


@pytest.mark.slow
def test_a_run_on_s3_answers_as_the_folder_does(s3, make_run, lldscope_command):
    path = make_run("seeds/one")
    s3.put(str(path.parent), "bucket/", recursive=True)
    with lldscope.open_run("s3://bucket/seeds/one") as run, lldscope.open_run(path) as here:
        same(run, here)
        copy = run.path
        assert copy.is_dir()
    assert not copy.exists(), "the copy goes when the run is closed"
    local = lldscope_command("check", path, "--json")
    done = lldscope_command("check", "s3://bucket/seeds/one", "--json")
    assert done.returncode == local.returncode, done.stderr
    actual, expected = json.loads(done.stdout), json.loads(local.stdout)
    assert actual["path"] == "s3://bucket/seeds/one"
    assert {k: actual[k] for k in ("verdict", "phases", "look_alikes")} == {
        k: expected[k] for k in ("verdict", "phases", "look_alikes")
    }
    listed = lldscope_command("runs", "s3://bucket", "--json")
    assert [row["run"] for row in json.loads(listed.stdout)] == ["seeds/one"]
    result = lldscope_command("query", "s3://bucket/seeds/one", "SELECT count(*) n FROM steps")
    assert result.stdout.split() == ["n", "30"]
    s3.rm("bucket/seeds/one/run.json")
    assert find_runs("s3://bucket") == [Url("s3://bucket/seeds/one")]
    with lldscope.open_run("s3://bucket/seeds/one") as run:
        assert list(run.damaged) == ["run.json"]
        assert run.name == "one"


def test_credentials_and_addresses_stay_secret(s3, lldscope_command):
    done = lldscope_command("check", "s3://bucket/nothing")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no run at s3://bucket/nothing" in done.stderr
    done = lldscope_command("runs", f"s3://user:{SECRET}@no-such-bucket/x?token={SECRET}")
    assert done.returncode == 1
    assert SECRET not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    url = Url(f"https://me:{SECRET}@host/folder/run?sig={SECRET}")
    assert str(url) == repr(url) == "https://host/folder/run"
    assert url.name == "run"
    with pytest.raises(LldscopeError) as raised, plain_errors(url):
        raise ValueError(f"cannot open {url.address}")
    assert SECRET not in str(raised.value)


def test_a_live_run_is_followed_from_afar(s3, tmp_path):
    path = tmp_path / "live"
    recorder = lldscope.Recorder(path)
    record_steps(recorder, range(3))
    recorder.flush()

    def upload() -> None:
        for file in path.rglob("*"):
            if file.is_file() and not file.name.endswith(json_files.IN_PROGRESS):
                s3.put_file(str(file), f"bucket/live/{file.relative_to(path)}")

    upload()
    with lldscope.open_run("s3://bucket/live") as run:
        assert len(run.signals()) == 3
        assert not run.refresh()
        record_steps(recorder, range(3, 5))
        recorder.flush()
        upload()
        assert run.refresh()
        assert len(run.signals()) == 5
        recorder.close()
        upload()
        assert run.refresh()
        assert run.info["status"] == "finished"
        with lldscope.open_run(path) as here:
            same(run, here)


def test_tables_that_signals_do_not_need_are_fetched_when_they_are_asked_for(memory, tmp_path):
    with lldscope.Recorder(tmp_path / "r") as recorder:
        record_steps(recorder, range(3))
        recorder.tokens(step=2, response_id=0, position=[0, 1], text=["a", "b"])
    memory.put(str(tmp_path / "r"), "/root/r", recursive=True)
    with lldscope.open_run("memory://root/r") as run:
        assert len(run.signals()) == 3
        assert not (run.path / "tokens").exists()
        assert (
            run.sql("SELECT string_agg(text, '' ORDER BY position) t FROM tokens")["t"][0] == "ab"
        )


def test_what_is_missing_or_damaged_afar_is_named_and_may_still_come(memory, make_run):
    path = make_run(steps=range(5))
    memory.put(str(path), "/root/r", recursive=True)
    part = next(p for p in layout.read_manifest(path).parts if p.table == "actions")
    content = memory.cat(f"/root/r/actions/{part.file}")
    memory.rm(f"/root/r/actions/{part.file}")
    with lldscope.open_run("memory://root/r") as run:
        assert run.damaged == {f"actions/{part.file}": "the file is missing"}
        assert run.signals()["correct_logp"].isna().all()
        memory.pipe(f"/root/r/actions/{part.file}", content)
        assert run.refresh()
        with lldscope.open_run(path) as here:
            same(run, here)
    memory.pipe(f"/root/r/actions/{part.file}", content[:-9] + b"x" * 9)
    with lldscope.open_run("memory://root/r") as run:
        assert list(run.damaged) == [f"actions/{part.file}"]


@pytest.mark.parametrize("content", [None, b'{"a": 1}'])
def test_a_run_afar_that_lost_its_run_json_opens_and_says_so(memory, make_run, content):
    """Like one in a folder (tests/query/test_runs.py)."""
    path = make_run("root/r", steps=range(5))
    memory.put(str(path), "/root/r", recursive=True)
    whole = memory.cat("/root/r/run.json")
    memory.rm("/root/r/run.json")
    memory.pipe("/root/other/manifest/notes.txt", b"x")
    (path / "run.json").unlink()
    if content is not None:
        memory.pipe("/root/r/run.json", content)
        (path / "run.json").write_bytes(content)
    assert find_runs("memory://root") == find_runs("memory://root/r") == [Url("memory://root/r")]
    with lldscope.open_run("memory://root/r") as run, lldscope.open_run(path) as here:
        assert list(run.damaged) == ["run.json"]
        message = here.damaged["run.json"].replace(str(path), "memory://root/r")
        assert run.damaged["run.json"] == message
        assert run.name == here.name == "r"
        pd.testing.assert_frame_equal(run.signals(), here.signals())
        assert len(run.signals()) == 5
        memory.pipe("/root/r/run.json", whole)
        assert run.refresh()
        assert run.damaged == {}
        memory.rm("/root/r/run.json")
        assert run.refresh()
        assert list(run.damaged) == ["run.json"]
    with pytest.raises(RunNotFound, match=r"at memory://root/other..*it is not a run"):
        lldscope.open_run("memory://root/other")


def test_names_from_afar_cannot_leave_the_copy(memory, make_run):
    path = make_run(steps=range(2))
    memory.put(str(path), "/root/r", recursive=True)
    memory.pipe("/root/r/manifest/..", b"x")
    memory.pipe("/root/r/heartbeat/..\\evil", b"x")
    with lldscope.open_run("memory://root/r") as run:
        inside = {p.relative_to(run.path).as_posix() for p in run.path.rglob("*") if p.is_file()}
        assert inside <= {p.relative_to(path).as_posix() for p in path.rglob("*")}
        assert set(run.path.parent.iterdir()) == {run.path}


def test_a_small_file_that_is_large_is_not_fetched(memory, make_run, monkeypatch):
    path = make_run(steps=range(2))
    memory.put(str(path), "/root/r", recursive=True)
    sizes = [p.stat().st_size for p in path.rglob("*.json*")]
    monkeypatch.setattr(json_files, "MAX_BYTES", 2 * max(sizes))
    memory.pipe("/root/r/events.jsonl", b"\n" * (2 * max(sizes) + 1))
    with lldscope.open_run("memory://root/r") as run:
        assert not (run.path / "events.jsonl").exists()
        assert len(run.signals()) == 2


@pytest.mark.parametrize(
    ("error", "words"),
    [(type("ConnectTimeout", (Exception,), {}), "its server cannot be reached. Check the address"),
     (type("ReadTimeoutError", (Exception,), {}), "its server does not answer. Check"),
     (type("Odd", (Exception,), {}), "Odd. Check"), (OSError(13, "secret"), "Permission denied.")],
)
def test_errors_of_a_store_are_told_in_our_words(error, words):
    with pytest.raises(LldscopeError, match=re.escape(words)) as failure, plain_errors(Url("x://y")):
        raise error
    assert "secret" not in str(failure.value)


# -- commands -------------------------------------------------------------------------------------


def test_commands_that_change_a_run_refuse_an_address(s3, make_run, lldscope_command):
    place = "s3://bucket/examined"
    path = make_run("examined", steps=range(1))
    s3.put(str(path), "bucket/", recursive=True)
    for command in (["compact"], ["annotate", "--name", "x"], ["acknowledge"], ["doctor"]):
        more = ["lld-decay"] if command == ["acknowledge"] else []
        done = lldscope_command(*command, place, *more)
        assert done.returncode == 2, done.stderr
        assert f"{place} is on an object store." in " ".join(done.stderr.split())
