"""Importers of the stores that metric loggers write, on files the loggers themselves wrote
(tests/fixtures/make_stores.py), and on damaged copies of them."""

from __future__ import annotations

import gzip
import json
import math
import os
import shutil
import sqlite3
import struct
import sys
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from fixtures.make_stores import BEGAN, STARTS, values
from fixtures.make_stores import time as moment

from lldscope import open_run
from lldscope.core.errors import LldscopeError, UsageError
from lldscope.importers.addresses import located
from lldscope.importers.build import Import
from lldscope.importers.detect import Source, sources
from lldscope.importers.metrics import Metrics, logger_calls
from lldscope.importers.reading import seconds_of
from lldscope.importers.rows import Candidate
from lldscope.importers.source import NO_NUMBER, Findings, ImportRequest
from lldscope.importers.sqlite import MLFLOW, TRACKIO
from lldscope.importers.tensorboard import TensorBoard
from lldscope.importers.wandb_offline import WandbOffline

FIXTURES = Path(__file__).parents[1] / "fixtures"
HERE = Path(os.environ.get("LLDSCOPE_STORES") or FIXTURES)
PLAIN = sorted((HERE / "tensorboard/plain").iterdir())
TENSORS = sorted((HERE / "tensorboard/tensors").iterdir())
OFFLINE = HERE / "wandb/run-m4d3up.wandb"
HISTORY = HERE / "wandb/made-up_0.runhistory.parquet"
UNFINISHED = "records that were not finished"
REST = "bytes after the last whole record"
DAMAGED = "bytes between damaged records"


@pytest.fixture
def mlflow_db(tmp_path):
    return unpacked("mlflow/mlflow.db", tmp_path)


@pytest.fixture
def trackio_db(tmp_path):
    return unpacked("trackio/made-up.db", tmp_path)


def unpacked(name: str, folder: Path) -> Path:
    path = folder / Path(name).name
    path.write_bytes(gzip.decompress((HERE / f"{name}.gz").read_bytes()))
    return path


def read(source: Source, *paths: Path, run: str | None = None):
    """{(attempt, step): values}, the rows, and what was passed over."""
    findings = Findings(request=ImportRequest(run=run))
    rows = list(source.read(paths, findings))
    together: dict[tuple[int, int], dict[str, float]] = {}
    largest = {sys.float_info.max: math.inf, -sys.float_info.max: -math.inf}  # MLflow's
    for row in rows:
        row_values = {name: largest.get(value, value) for name, value in row.values.items()}
        together.setdefault((row.attempt, row.step), {}).update(row_values)
    return together, rows, findings


def logs(*starts: range) -> dict[tuple[int, int], dict[str, float]]:
    """What the fixture's run logged."""
    return {
        (start + 1, step): values(step, start)
        for start, steps in enumerate(starts)
        for step in steps
    }


def same(a, b) -> bool:
    """Equal, NaN to NaN."""
    return a.keys() == b.keys() and all(
        a[k].keys() == b[k].keys()
        and np.array_equal([a[k][n] for n in a[k]], [b[k][n] for n in a[k]], equal_nan=True)
        for k in a
    )


# -- files that the tools wrote -------------------------------------------------------------------


def test_each_path_is_claimed_by_one_source(mlflow_db, trackio_db):
    """Whichever order they are asked in."""
    texts = [p for name in ("verl", "trl", "text") for p in (FIXTURES / name).rglob("*.*")]
    kinds = dict.fromkeys(p for p in texts if p.suffix != ".py" and p.is_file()) | {
        **dict.fromkeys([*PLAIN, *TENSORS], "tensorboard"),
        OFFLINE: "wandb",
        HISTORY: "metrics",
        mlflow_db: "mlflow",
        trackio_db: "trackio",
    }
    for path, kind in kinds.items():
        file = Candidate(path)
        (claim,) = (source.name for source in sources() if source.looks_like(file))
        assert claim == (kind or claim), path


def test_tensorboard_of_torch_with_a_resume():
    actual, rows, findings = read(TensorBoard(), *reversed(PLAIN))
    assert same(actual, logs(*STARTS))
    assert [row.time for row in rows] == [
        moment(step, start) for start, steps in enumerate(STARTS) for step in steps
    ]
    assert not findings.skipped


def test_tensorboard_of_tensorflow_2_tag_by_tag():
    actual, _, findings = read(TensorBoard(), *TENSORS)
    assert same(actual, logs(range(12)))  # the text and the histogram are no scalars
    assert not findings.skipped


@pytest.mark.parametrize(("source", "path"), [(WandbOffline(), OFFLINE), (Metrics(), HISTORY)])
def test_wandb_run(source, path):
    expected = logs(range(12))
    if path == HISTORY:
        del expected[1, 3]["train/entropy"]  # not logged there: absent, not 0
    actual, rows, findings = read(source, path)
    assert same(actual, expected)
    assert all(BEGAN <= row.time < BEGAN + 1e8 for row in rows)
    texts, tables = 12, 12 if path == OFFLINE else 0
    assert findings.skipped == {NO_NUMBER: texts + tables}


def test_mlflow_and_trackio(mlflow_db, trackio_db):
    for source, path in ((MLFLOW, mlflow_db), (TRACKIO, trackio_db)):
        assert same(read(source, path, run="first")[0], logs(*STARTS))
        assert same(read(source, path, run="second")[0], logs(STARTS[0]))
        with pytest.raises(UsageError, match="holds 2 runs; say which with --run: first, second"):
            read(source, path)
        with pytest.raises(UsageError, match=r"no run called third\. It holds: first, second"):
            read(source, path, run="third")


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "America/St_Johns"])
def test_a_date_without_a_zone_is_in_utc_wherever_it_is_read(zone, monkeypatch):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        dates = ("2026-11-21T19:44:36", "2026-11-21T19:44:36+00:00", "2026-11-22T01:29:36+05:45")
        assert {seconds_of(date) for date in dates} == {1_795_290_276.0}
        assert seconds_of("yesterday") is None
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_trainers_own_step_is_taken_where_the_logger_counts_its_calls():
    """As Hugging Face's W&B callback logs: two calls a step, and the step among the values."""
    findings = Findings()
    calls = [
        ({"a": {"b": 2.0, "c": "no"}, "d": {"_type": "histogram"}}, 16, None),
        ({"train/global_step": 5, "x": True, "_wandb": {"a": 1}}, 17, None),
        ({"a": {"b": 3.0}}, 18, None),
        ({"table": {"_type": "table"}, "_step": 19}, 19, None),
    ]
    assert [(r.step, r.values) for r in logger_calls(calls, findings)] == [
        (16, {"a/b": 2.0}),
        (5, {"train/global_step": 5.0}),
        (5, {"a/b": 3.0}),
    ]
    assert findings.skipped == {NO_NUMBER: 3}
    steps = (None, "x", 1.5, -1, math.nan, math.inf, 2**31, 10**400)
    assert not [*logger_calls([({"a": 1.0}, step, None) for step in steps], findings)]
    assert findings.skipped["rows without a step"] == 8


def test_files_of_several_runs_are_not_mixed(tmp_path):
    for source, name, path in (
        (TensorBoard(), "{}/" + PLAIN[0].name, PLAIN[0]),
        (WandbOffline(), "run-{}.wandb", OFFLINE),
        (Metrics(), "who_what_{}_0.runhistory.parquet", HISTORY),
    ):
        copies = [tmp_path / source.name / name.format(run) for run in ("a", "b")]
        for copy in copies:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
        with pytest.raises(UsageError, match="holds 2 runs; say which with --run: ") as error:
            read(source, *copies)
        name = str(error.value).rpartition(", ")[2].removesuffix(".")
        assert same(read(source, *copies, run=name)[0], read(source, path)[0])


# -- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "path"), [(TensorBoard(), PLAIN[0]), (WandbOffline(), OFFLINE)])
def test_a_file_cut_anywhere_gives_a_beginning_of_the_run(source, path, tmp_path):
    """As while the run is alive: never a wrong number, and the cut record is counted."""
    data, whole = path.read_bytes(), read(source, path)[0]
    file, counted = tmp_path / path.name, 0
    for end in range(8, len(data), 97):
        file.write_bytes(data[:end])
        actual, _, findings = read(source, file)
        assert list(actual) == list(whole)[: len(actual)]
        for key, row in actual.items():
            assert same({0: row}, {0: {n: whole[key][n] for n in row}})
        counted += bool(findings.skipped.keys() & {UNFINISHED, REST})
    assert counted > len(data) / 97 * 0.8


def test_wandb_goes_on_at_the_next_block(tmp_path):
    """Three blocks of made records; a flip in the first costs what is left of that block only."""
    file, step = tmp_path / "run.wandb", 128  # every step is a varint of two bytes
    data = bytearray(b":W&B\xe1\xbe\0")
    whole = []
    while len(data) < 3 << 15:
        item = bytes([0x12, 1]) + b"x" + bytes([0x82, 0x01, 3]) + b"0.5"
        number = bytes([step & 127 | 128, step >> 7])
        record = bytes([0x0A, len(item)]) + item + bytes([0x12, 3, 0x08]) + number
        record = bytes([0x12, len(record)]) + record
        room = (1 << 15) - len(data) % (1 << 15)
        pieces = [record] if len(record) + 7 <= room else [record[: room - 7], record[room - 7 :]]
        for n, piece in enumerate(pieces):
            kind = 1 if len(pieces) == 1 else (2, 4)[n]
            data += struct.pack("<IHB", zlib.crc32(bytes([kind]) + piece), len(piece), kind) + piece
        whole.append(step)
        step += 1
    file.write_bytes(data)
    _, rows, findings = read(WandbOffline(), file)
    assert [row.step for row in rows] == whole
    assert not findings.skipped
    data[100] ^= 1
    file.write_bytes(data)
    _, rows, findings = read(WandbOffline(), file)
    assert 0.6 * len(whole) < len(rows) < 0.7 * len(whole)
    assert findings.skipped[DAMAGED] == pytest.approx(1 << 15, abs=150)


def followed(path: Path, run: Path, spec: ImportRequest, *changes) -> dict[tuple[int, int], dict]:
    """The means in a run that followed a source through some changes of it."""
    task = Import([path], run, spec, None)
    task.build(lambda n: None, live=True)
    left = list(changes)

    def stop(seconds):
        if left:
            left.pop(0)()
            return False
        return True

    task.follow(stop, lambda outcome: None)
    task.close("the test is over")
    actual: dict[tuple[int, int], dict[str, float]] = {}
    with open_run(run) as reader:
        rows = reader.sql("SELECT attempt, step, name, value FROM all_scalars")
    for attempt, step, name, value in rows.itertuples(index=False):
        assert name not in actual.setdefault((attempt, step), {}), "told twice"
        actual[attempt, step][name] = value
    return actual


def in_the_run(logged_values):
    """The fixture's values under the names that a run has them by."""
    ours = {"train/reward": "reward", "train/entropy": "entropy", "train/grad_norm": "grad_norm"}
    return {
        k: {ours.get(name, name): v for name, v in row.items()} for k, row in logged_values.items()
    }


def test_a_growing_event_file_is_followed_within_a_step(tmp_path):
    """It stands in the middle of a step at every look."""
    file, data = tmp_path / PLAIN[0].name, PLAIN[0].read_bytes()
    ends = [len(data) * part // 7 for part in (2, 3, 4, 5, 7)]
    file.write_bytes(data[: ends[0]])
    grow = [lambda end=end: file.write_bytes(data[:end]) for end in ends[1:]]
    actual = followed(file, tmp_path / "run", ImportRequest(), *grow)
    assert same(actual, in_the_run(logs(STARTS[0])))


def test_what_a_database_has_in_its_wal_is_followed(trackio_db, tmp_path):
    writer = sqlite3.connect(trackio_db, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    (run_id,) = writer.execute("SELECT run_id FROM metrics WHERE run_name = 'second'").fetchone()

    def write() -> None:
        writer.execute(
            "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) "
            "VALUES (?, '2026-01-01T00:00:00+00:00', 'second', 10, ?)",
            (run_id, '{"train/reward": "NaN"}'),
        )

    actual = followed(trackio_db, tmp_path / "run", ImportRequest(run="second"), write)
    writer.close()
    assert same(actual, in_the_run({**logs(STARTS[0]), (1, 10): {"train/reward": math.nan}}))


@pytest.mark.parametrize("name", ["mlflow", "trackio"])
def test_a_database_with_a_damaged_page_is_named(name, mlflow_db, trackio_db):
    """Every leaf page that holds metrics, one after the other."""
    path, source = {"mlflow": (mlflow_db, MLFLOW), "trackio": (trackio_db, TRACKIO)}[name]
    data, whole, damaged = path.read_bytes(), logs(*STARTS), 0
    for page in range(512, len(data), 512):
        if data[page] != 0x0D or b"train/grad_norm" not in data[page : page + 512]:
            continue
        path.write_bytes(data[:page] + b"\xff" * 8 + data[page + 8 :])
        actual, _, findings = read(source, path, run="first")
        gap = sum(map(len, whole.values())) - sum(len(row) for row in actual.values())
        assert (gap > 0) <= findings.skipped["databases that cannot be read to their end"]
        assert all(str(path) in note for note in findings.notes)
        for (_, step), row in actual.items():  # with its last step, a start may go unseen
            logged_then = [
                (n, str(v)) for (_, s), r in whole.items() if s == step for n, v in r.items()
            ]
            assert {(n, str(v)) for n, v in row.items()} <= set(logged_then)
        damaged += gap > 0
    assert damaged > 3


# -- addresses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "outcome"),
    [
        ("trackio://made-up/first", ("made-up.db", 12)),
        ("trackio://made.-up/second", ("made-up.db", 10)),  # Trackio leaves the dot out
        ("trackio://other", "There is no project other in .* which has: made-up"),
        ("trackio://../made-up", "write trackio://PROJECT or PROJECT/RUN"),
        ("mlflow://made-up/second", ("mlflow.db", 10)),
        ("mlflow://made-up", "holds 2 runs; say which with --run: first, second"),
        ("mlflow://made-up/third", "holds no run called third"),
        ("mlflow://other/first", "does not exist, or holds no runs"),
        ("mlflow://a/b/c", "write mlflow://EXPERIMENT"),
    ],
)
def test_what_a_tracker_has_on_this_machine(
    address, outcome, mlflow_db, trackio_db, tmp_path, monkeypatch
):
    monkeypatch.setenv("TRACKIO_DIR", str(trackio_db.parent))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{mlflow_db}")
    if isinstance(outcome, str):
        with pytest.raises(LldscopeError, match=outcome):
            located(address, tmp_path / "fetched", None)
        return
    path, run = located(address, tmp_path / "fetched", None)
    task = Import([path], tmp_path / "run", ImportRequest(run=run), None)
    with open_run(task.build(lambda n: None).run) as imported:
        assert (path.name, len(imported.signals())) == outcome


EXPERIMENT = {"experiments": [{"experiment_id": "1"}]}
RUNS = {"runs": [{"info": {"run_id": "r", "run_name": "../../x"},
                  "data": {"metrics": [{"key": "reward"}]}}]}
POINT = {"value": 0.5, "timestamp": 1, "step": 2}


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([EXPERIMENT, RUNS, {"metrics": [POINT]}], None),
        ([EXPERIMENT, RUNS, {"metrics": [POINT | {"step": 10**30, "value": "Infinity"}]}], None),
        ([[]], "did not give the run"),
        ([{"experiments": [{}]}], "did not give the run"),
        ([EXPERIMENT, {"runs": [7]}], "did not give the run"),
        ([EXPERIMENT, RUNS, {"metrics": [POINT | {"value": "half"}]}], "did not give the run"),
        ([EXPERIMENT, RUNS, {"metrics": [POINT | {"timestamp": None}]}], "did not give the run"),
        ([{}], "does not exist, or holds no runs"),
        ([302], "did not give the run: HTTP Error 302"),
        ([b"{"], "did not give the run"),
    ],
)
def test_what_a_server_says_is_not_believed(answers, why, tmp_path, monkeypatch):
    tokens = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers[len(tokens)]
            tokens.append(self.headers.get("Authorization"))
            self.send_response(answer if isinstance(answer, int) else 200)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            if not isinstance(answer, int):
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *arguments: object) -> None: ...

    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        for uri, source in (("", f"{address}/e/"), (f"http://{address}", "e/")):
            tokens.clear()
            monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
            if why is None:
                path, run = located(f"mlflow://{source}r", tmp_path, None)
                assert (run, path.parent.parent) == ("r", tmp_path)
            else:
                with pytest.raises(LldscopeError, match=why):
                    located(f"mlflow://{source}r", tmp_path, None)
            assert {*tokens} == {"Bearer secret" if uri else None}  # only to the server of the user
        server.shutdown()
