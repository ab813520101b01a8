"""Files that were made to keep an importer busy for ever, or to fill the memory.

As a program it imports what standard input names, lines of a name and a path, into a folder, and
prints for each a line of JSON: seconds of processor time, the highest memory so far in MB, and what
was said.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import socket
import sqlite3
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

MB = 1 << 20
PEAK = re.compile(r"VmHWM:\s*(\d+) kB")  # getrusage() counts what the parent had
CASES: dict[str, Callable[[Path], Path]] = {}  # name → what makes it in a folder


def case(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    CASES[make.__name__] = make
    return make


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# -- one file each ---------------------------------------------------------------------------------

STEP = b'{"step": 1, "reward": 0.5}\n'
TRL = b"{'loss': 0.1, 'reward': 0.5, 'epoch': 0.02}\n"
VERL = b'{"input": "a", "output": "b", "score": 1, "step": 1, "gts": %s}\n'
TAGS = ["<search>" * 100_000, "<answer>" * 100_000, "<tool_call>" * 100_000, "\n" * 800_000 + "x",
        "user\n" + " \n" * 400_000 + "x", "My previous action is invalid. " * 30_000,
        "<information>" * 60_000]
ONES, SPANS = ",".join(["1"] * 120_000), '{"span_type": "assistant_text", "text": "a"},' * 119_999
ENDS = (b"step:1\n" + b" - a:1\n" * 19_999, b"| b: 1\n" * 19_999, b"{'a': 1,\n" * 19_999)

# Name of the case → name of the file and what makes its content.
FILES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "deep_json": ("a.jsonl", lambda: (
        STEP + b'{"step": 2, "a": ' + b'{"a":' * 900 + b"1" + b"}" * 901
        + b'\n{"step": 3, "a": ' + b"[" * MB + b"\n")),
    "deep_verl_rollout": ("1.jsonl", lambda: VERL % (b"[" * 900 + b"]" * 900) + VERL % b'["b"]'),
    "json_of_many_small_objects": (
        "a.jsonl", lambda: STEP + b'{"step": 2, "a": [' + b"{}," * (20 * MB) + b"1]}\n"),
    "name_that_is_no_number": ("a1²2.jsonl", lambda: STEP),
    "lone_surrogates": (
        "a.jsonl", lambda: b'{"step": 1, "reward": 0.5, "\\ud800": 1, "b": "\\udfff"}\n'),
    "steps_that_go_to_and_fro": (
        "a.jsonl", lambda: (b'{"step": 2, "reward": 1}\n' + STEP) * 50_000),
    "steps_without_end": (
        "a.jsonl", lambda: b"".join(b'{"step":%d,"reward":1}\n' % i for i in range(1_100_000))),
    "records_that_are_wrapped_without_end": ("train.log", lambda: (
        (line := b"step 1 | loss: 0.1 | reward: 0.5 | a name that goes on\n") + line.join(ENDS))),
    "half_printed_dictionaries": (
        "trl.log", lambda: TRL + (b"{'a': " * 170_000 + b"'epoch': {\n") * 20),
    "epochs_without_a_brace": (
        "trl.log", lambda: TRL + (b"{'a': " + b"'epoch': " * 100_000 + b"\n") * 20),
    "tags_that_never_close": ("1.jsonl", lambda: "\n".join(
        json.dumps({"input": "<search>", "output": t, "score": 1.0, "step": 1, "gts": "a"})
        for t in TAGS).encode()),
    "csv_with_a_quote_that_does_not_end": (
        "a.csv", lambda: b'step,reward\n1,0.5\n2,"' + b"x,y\n" * 250_000),
    "csv_of_very_many_columns": ("a.csv", lambda: (
        b"step," + b",".join(b"c%d" % i for i in range(300_000)) + b"\n1" + b",1" * 300_000)),
    "trainer_state_of_lists": (
        "trainer_state.json", lambda: b'{"log_history": [' + b"[]," * (15 * MB) + b"1]}"),
    "nemo_with_a_step_of_many_digits": (
        f"train_data_step{'9' * 200}.jsonl",
        lambda: b'{"token_ids": [1, 2], "token_loss_mask": [0, 1], "rewards": 1}\n'),
    "rollout_of_very_many_messages": ("rollouts.jsonl", lambda: (
        f'{{"step": 1, "token_ids": [{ONES}], "loss_mask": [{ONES}], "reward": 1, "spans": '
        f'[{SPANS}{SPANS[:44]}]}}\n').encode()),
    "events_and_zeros": ("events.out.tfevents.1.a", lambda: events(b"\1" + bytes(16 * MB))),
    "events_of_a_length_beyond_any_file": (
        "events.out.tfevents.1.a", lambda: events(framed((1 << 64) - 1) + b"ab")),
    "events_with_damage_everywhere": (
        "events.out.tfevents.1.a", lambda: events((framed(0) + crc(b"") + b"damage") * 30_000)),
}


def crc(data: bytes) -> bytes:
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    return struct.pack("<I", masked_crc32c(data))


def framed(length: int) -> bytes:
    number = struct.pack("<Q", length)
    return number + crc(number)


def events(rest: bytes) -> bytes:
    """An event file with its first record, and this after it."""
    data = b"\x09" + struct.pack("<d", 1.0) + b"\x1a\x0dbrain.Event:2"
    return framed(len(data)) + data + crc(data) + rest


for name, (file, content) in FILES.items():
    CASES[name] = lambda folder, f=file, make=content: put(folder / f, make())


@case
def gzip_of_one_long_line(folder: Path) -> Path:
    path = folder / "metrics.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(STEP)
        for _ in range(300):
            file.write(bytes(MB))
    return path


@case
def zstd_bomb(folder: Path) -> Path:
    path = folder / "metrics.jsonl.zst"
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        for i in range(300):
            file.write(b'{"step": 1, "reward": %d}\n' % i + b" " * MB)
    return path


@case
def notebook_that_is_damaged(folder: Path) -> Path:
    cell = b'{"outputs": [{"text": ["step:1 - critic/score/mean:0.5\\n", 1]}, 2, {"data": 3}]}'
    put(folder / "a.ipynb", b'{"cells": [' + b"[" * 99_999)
    put(folder / "c.ipynb", b'{"cells": [7]}')
    put(folder / "b.ipynb", b'{"cells": [' + cell + b"]}")
    return folder


# -- files that are no files -----------------------------------------------------------------------


@case
def pipes_and_sockets(folder: Path) -> Path:
    for name in ("train_data_step1.jsonl", "a.pt", "trainer_state.json", "a.csv"):
        os.mkfifo(folder / name)
    listening = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(folder)  # the address of a socket has 108 bytes
    listening.bind("socket.jsonl")
    os.chdir(here)
    put(folder / "metrics.jsonl", b'{"step": 1, "reward": 0.5}\n')
    return folder


@case
def a_device(folder: Path) -> Path:
    return Path("/dev/zero")


@case
def links_in_a_circle(folder: Path) -> Path:
    (folder / "loop").symlink_to(folder)
    (folder / "itself").symlink_to(folder / "itself")
    put(folder / "metrics.jsonl", b'{"step": 1, "reward": 0.5}\n')
    return folder


@case
def folders_in_folders(folder: Path) -> Path:
    here = os.getcwd()
    os.chdir(folder)
    for _ in range(600):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(here)
    put(folder / "metrics.jsonl", b'{"step": 1, "reward": 0.5}\n')
    return folder


@case
def more_files_than_a_run_has(folder: Path) -> Path:
    for i in range(101):
        first = put(folder / f"{i}" / "first", b"")
        for k in range(1000):  # further names of one file are as good as files, and faster
            os.link(first, first.with_name(f"{k}"))
    return folder


# -- databases -------------------------------------------------------------------------------------

MLFLOW = (
    "CREATE TABLE runs (run_uuid TEXT, name TEXT, lifecycle_stage TEXT);"
    "CREATE TABLE metrics "
    "(key TEXT, value REAL, timestamp INT, step INT, is_nan INT, run_uuid TEXT);"
    "INSERT INTO runs VALUES ('r', 'r', 'active');"
)


def database(path: Path, script: str) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.commit()
    connection.close()
    return path


METRIC = "INSERT INTO metrics VALUES ('reward', .5, 1, 1, 0, 'r');"
DATABASES = {
    "mlflow_with_rowids_far_apart": MLFLOW + "".join(
        "INSERT INTO metrics (rowid, key, value, step, is_nan, run_uuid) "
        f"VALUES ({i}, 'reward', .5, {s}, 0, 'r');"
        for s, i in enumerate((-(1 << 63), 20, 9 * 10**18, (1 << 63) - 1))
    ),
    "mlflow_whose_runs_do_not_end": MLFLOW + (
        "DROP TABLE runs; CREATE VIEW runs AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT "
        "i + 1 FROM n) SELECT i AS run_uuid, 'r' AS name, 'active' AS lifecycle_stage FROM n;"
    ) + METRIC,
    "mlflow_without_rowids": MLFLOW.replace(
        "is_nan INT, run_uuid TEXT);", "is_nan INT, run_uuid TEXT PRIMARY KEY) WITHOUT ROWID;"),
    "mlflow_without_runs": MLFLOW + METRIC + "DROP TABLE runs;",
}
for name, script in DATABASES.items():
    CASES[name] = lambda folder, s=script: database(folder / "mlflow.db", s)


@case
def mlflow_whose_schema_is_no_text(folder: Path) -> Path:
    path = database(folder / "mlflow.db", MLFLOW)
    real, damaged = b"value REAL, timestamp INT,", b"value CHECK \xff , timestamp,"
    path.write_bytes(path.read_bytes().replace(real, damaged))
    return path


@case
def database_beside_a_pipe(folder: Path) -> Path:
    path = database(folder / "mlflow.db", MLFLOW)
    os.mkfifo(folder / "mlflow.db-journal")
    return path


@case
def database_whose_pages_lead_back(folder: Path) -> Path:
    many = (
        "PRAGMA page_size = 512;"
        + MLFLOW
        + "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) "
        "INSERT INTO metrics SELECT 'reward', .5, 1, i, 0, 'r' FROM n;"
    )
    path = database(folder / "mlflow.db", many)
    data = bytearray(path.read_bytes())
    for page in range(512, len(data), 512):
        if data[page] == 0x05:  # an interior page of a table: all its children become the first
            n = struct.unpack_from(">H", data, page + 3)[0]
            cells = [struct.unpack_from(">H", data, page + 12 + 2 * i)[0] for i in range(n)]
            for cell in cells[1:]:
                data[page + cell : page + cell + 4] = data[page + cells[0] : page + cells[0] + 4]
    path.write_bytes(data)
    return path


# -- mutations of real files -----------------------------------------------------------------------


def mutated(data: bytes, seed: int) -> bytes:
    """A file with a few of its bytes changed, taken out, repeated, or cut."""
    dice = random.Random(seed)
    content = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        if not content:
            break
        at, size = dice.randrange(len(content)), dice.randint(1, 64)
        kind = dice.randrange(7)
        if kind == 0:
            content[at : at + size] = dice.randbytes(size)
        elif kind == 1:
            del content[at : at + size]
        elif kind == 2:
            content[at:at] = content[at : at + size] * dice.randint(1, 50)
        elif kind == 3:
            del content[at:]
        elif kind == 4:
            content[at : at + 1] = dice.choice(WORDS)
        elif kind == 5:
            number = content.find(b":", at)
            content[number + 1 : number + 2] = dice.choice(WORDS)
        else:
            content[at] ^= 1 << dice.randrange(8)
    return bytes(content)


WORDS = [
    b"null", b"true", b"-1", b"1e999", b"9" * 400, b"NaN", b"[]", b"{}", b'""', b"[[[[[[",
    b"{" * 300,
    b"\0", b"\xff\xfe", b'"\\ud800"', b"\r", b"\n", b"'", b'"', b"0.5", b"99999999999", b"\x1b[2J",
]


def messages_of(path: Path, run: Path) -> str:
    """What an import says; anything that is raised but an LldscopeError is a fault."""
    from lldscope.core.errors import LldscopeError
    from lldscope.importers.build import Import
    from lldscope.importers.source import ImportRequest

    try:
        outcome = Import([path], run, ImportRequest(), None).build(lambda n: None)
    except LldscopeError as error:
        return str(error)
    skipped = "; ".join(f"{n} × {why}" for why, n in outcome.findings.skipped.items())
    return f"{outcome.steps} steps. {skipped}"


def main() -> None:
    for line in sys.stdin:
        name, path = line.rstrip("\n").split("\t")
        began = time.process_time()
        try:
            text = messages_of(Path(path), Path(sys.argv[1]) / name)
        except BaseException as error:
            text = f"fault: {type(error).__name__}: {error}"
        seconds = time.process_time() - began
        peak = int(PEAK.search(Path("/proc/self/status").read_text(encoding="utf-8"))[1]) >> 10
        row = {"case": name, "seconds": seconds, "peak": peak, "said": text[:2000]}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
