"""What a fuzzer guided by coverage calls with bytes, and what must hold whatever they are.

tests/test_fuzz_corpus.py runs the inputs that it kept. Each target raises where something is wrong.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile_files
from recorded_steps import record_steps

import lldscope
from lldscope.core.errors import LldscopeError
from lldscope.doctor.checks import examine
from lldscope.query.sandbox import bounded, confine
from lldscope.query.statement import insist_on_select
from lldscope.storage import json_files, layout

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "cases" / "fuzz"
SECRET = "the secret of somebody else"

# The first byte of an input chooses the name of the file that holds the rest.
NAMES = [
    "metrics.jsonl", "trl.log", "a.csv", "trainer_state.json", "1.jsonl", "rollouts.json",
    "train_data_step1.jsonl", "completions_00001.parquet", "run-a.wandb", "mlflow.db",
    "events.out.tfevents.1.a", "a.runhistory.parquet", "metrics.jsonl.gz", "a.pt", "a.ipynb",
    "trackio.db",
]
SMALL_FILES = [
    "run.json", "manifest/a1-r0.jsonl", "heartbeat/r0.json", "events.jsonl", "notes.jsonl",
]


class Importers:
    """An import ends with a sentence, and the run that it made is whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, data: bytes) -> None:
        place = self._folder / "import"
        shutil.rmtree(place, ignore_errors=True)
        name = NAMES[data[0] % len(NAMES)] if data else "a"
        path = hostile_files.put(place / name, data[1:])
        text = hostile_files.messages_of(path, place / "run")
        assert text
        if (place / "run").exists():
            manifest = layout.read_manifest(place / "run")
            assert manifest.damaged == {}, manifest.damaged
            assert layout.read_run(place / "run")["status"]


class Manifest:
    """A run whose small file is replaced is read or refused, and no row is missed without a word.

    If the first byte is odd, each line gets the checksum that it should have.
    """

    def __init__(self, folder: Path) -> None:
        self._unharmed, self._run = folder / "unharmed", folder / "harmed"
        with lldscope.Recorder(self._unharmed) as recorder:
            for step in range(3):
                record_steps(recorder, range(step, step + 1), groups=1)
                recorder.event("lr change", step=step, lr=0.1)
                recorder.flush()
        self._truth, _ = self._read(self._unharmed)

    @staticmethod
    def _read(path: Path) -> tuple[list[Any], list[Any]]:
        """The parts that count, and what is reported of everything else."""
        listed = layout.read_manifest(path)
        parts = sorted((part.table, part.file, part.rows) for part in listed.parts)
        return parts, [*listed.damaged, *examine(path).findings]

    def __call__(self, data: bytes) -> None:
        shutil.rmtree(self._run, ignore_errors=True)
        shutil.copytree(self._unharmed, self._run)
        first = data[0] if data else 0
        name, content = SMALL_FILES[(first >> 1) % len(SMALL_FILES)], data[1:]
        if first & 1 and name.endswith(".jsonl"):
            content = b"".join(map(_sealed, content.splitlines()))
        hostile_files.put(self._run / name, content)
        try:
            parts, reports = self._read(self._run)
        except LldscopeError:
            return
        is_forged = bool(first & 1) or not name.startswith("manifest/")
        assert is_forged or parts == self._truth or reports, "wrong without a word"


def _sealed(line: bytes) -> bytes:
    try:
        value = json_files.parse(line)
    except ValueError:
        return line + b"\n"
    if isinstance(value, dict):
        value.pop("crc", None)
    try:
        return json_files.with_checksum(json_files.to_json(value))
    except (ValueError, TypeError):
        return line + b"\n"


class Sql:
    """A statement that is let through changes nothing and reads nothing but the run."""

    def __init__(self, folder: Path) -> None:
        import duckdb

        self._duckdb, self._folder = duckdb, folder
        folder.mkdir(exist_ok=True)
        (folder / "secret.csv").write_text(f"a\n{SECRET}\n")
        (folder / "run").mkdir()
        (folder / "run" / "steps.csv").write_text("step\n1\n")
        self._db = duckdb.connect()
        self._db.execute("CREATE TABLE steps AS SELECT range AS step, 'a' AS text FROM range(3)")
        confine(self._db, folder / "run")
        self._before = self._state()

    def _state(self) -> Any:
        files = {p: p.read_bytes() for p in self._folder.rglob("*") if p.is_file()}
        tables = self._db.execute("SELECT table_name, column_count FROM duckdb_tables()").fetchall()
        return files, tables, self._db.execute("FROM steps").fetchall()

    def __call__(self, data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape").replace("{}", str(self._folder))
        try:
            insist_on_select(self._db, text)
            with bounded(self._db, 2.0):
                answer = repr(self._db.execute(text).fetchmany(9))
        except LldscopeError as error:
            answer = str(error)
        except self._duckdb.Error as error:
            answer = str(error)
        assert SECRET not in answer, "it reads what is not the run's"
        assert self._state() == self._before, "it changes something"


TARGETS: dict[str, Callable[[Path], Any]] = {
    "importers": Importers, "manifest": Manifest, "sql": Sql,
}
