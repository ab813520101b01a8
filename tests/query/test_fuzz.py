"""Whatever lies in a run directory: no face crashes, and no number is wrong without a word."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import pytest
from click.testing import CliRunner
from lldscope_dashboard.data.run_registry import RunRegistry
from lldscope_dashboard.pages.router import page
from recorded_steps import record_steps

import lldscope
from lldscope.cli import cli
from lldscope.core.errors import LldscopeError
from lldscope.monitor.health import check
from lldscope.recording import writer
from lldscope.storage import json_files
from lldscope.storage.manifest import manifest_path

SEED = 20251204
EACH = 2  # times each kind of damage is done
SMALL = ("run.json", "manifest/*.jsonl", "heartbeat/*.json", "*.jsonl")
ODD_VALUES = [
    None, True, -1, 0.5, 1e308, 10**40, 2**40, "", "x" * 5000, "\x1b[2J\u202e\0", [], {}, [[]],
    "<script>", float("nan"), float("inf"), "\ud800",
]
ODD_TEXTS = [
    b"", b"\0" * 64, b"{", b"[]", b"null", b"7", b'"x"', b"\xff\xfe{}", b"[" * 100_000, b"{}" * 9,
    b'{"schema": ', b"1" * 6000, b'{"a": "\\ud800"}', b"\n" * 1000, b'{"time": NaN}', b"PAR1PAR1",
]


def one_of(rng: random.Random, run: Path, *patterns: str) -> Path:
    paths = sorted(p for pattern in patterns for p in run.glob(pattern))
    # An earlier blow may have put a pipe there, or a link to a device.
    return rng.choice([p for p in paths if p.is_file() and not p.is_symlink()])


def truncate(rng: random.Random, run: Path) -> None:
    path = one_of(rng, run, *SMALL, "*/*.parquet")
    size = rng.randrange(path.stat().st_size)
    if rng.random() < 0.3 and path.suffix == ".jsonl":  # between two lines
        size = path.read_bytes().rfind(b"\n", 0, size) + 1
    os.truncate(path, size)


def flip_bits(rng: random.Random, run: Path) -> None:
    path = one_of(rng, run, *rng.choice([SMALL, ("*/*.parquet",)]))
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 1, 4, 40])):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def other_content(rng: random.Random, run: Path) -> None:
    """Of another run, zeros, or what no program wrote."""
    path = one_of(rng, run, *SMALL, "*/*.parquet")
    theirs = (run.parent.with_name("other") / path.relative_to(run)).read_bytes()
    path.write_bytes(rng.choice([theirs, bytes(path.stat().st_size), rng.choice(ODD_TEXTS)]))


def wrong_types(rng: random.Random, run: Path) -> None:
    """A value somewhere in a JSON file is of another kind; the line's checksum goes with it."""
    path = one_of(rng, run, *SMALL)
    lines = path.read_bytes().split(b"\n") if path.suffix == ".jsonl" else [path.read_bytes()]
    index = rng.choice([i for i, line in enumerate(lines) if line])
    value = json.loads(lines[index])
    value.pop("crc", None)
    inside, key = value, rng.choice(list(value))
    while isinstance(inside[key], dict | list) and inside[key] and rng.random() < 0.7:
        inside = inside[key]
        key = rng.choice(list(inside)) if isinstance(inside, dict) else rng.randrange(len(inside))
    inside[key] = rng.choice(ODD_VALUES)
    lines[index] = json.dumps(value).encode()
    if path.suffix == ".jsonl" and rng.random() < 0.5:
        lines[index] = json_files.with_checksum(json.dumps(value)).rstrip(b"\n")
    path.write_bytes(b"\n".join(lines))


def no_file(rng: random.Random, run: Path) -> None:
    """Something that is no file, or a link out of the run, where a file should be."""
    path = one_of(rng, run, *SMALL, "*/*.parquet")
    outside = shutil.copy(path, run.parent / "outside")
    path.unlink()
    rng.choice([
        lambda: None, lambda: os.mkfifo(path), path.mkdir, lambda: path.symlink_to(outside),
        lambda: path.symlink_to(path.name), lambda: path.symlink_to("/dev/zero"),
    ])()


def huge_claims(rng: random.Random, run: Path) -> None:
    """A manifest line, sound in form, that claims what cannot be."""
    entry = {"file": "a1-r0-000901.parquet", "rows": 2**40, "bytes": 2**40, "steps": [0, 2**31 - 1]}
    entry |= rng.choice([{}, {"crc": 1}, {"rows": 2**80}, {"steps": [0, 2**40]}, {"bytes": 1}])
    table = rng.choice(["steps", "actions", "tokens", "../steps", "nothing", "", "x" * 4000])
    with open(manifest_path(run, 1, 0), "ab") as file:
        file.write(json_files.with_checksum(json.dumps({"time": 1, "parts": {table: entry}})))


def answers(run: lldscope.Run) -> list[Any]:
    """The numbers a person acts on."""
    state = check(run)
    return [
        [(a.rule, a.episodes) for a in state.alerts if a.rule != "stalled"], state.phases,
        run.signals(), run.action_signals(),
        run.sql("SELECT count(*) n, sum(n_tokens) tokens, sum(logp_post_sum) p FROM all_actions"),
    ]


def ask(run: Path, truth: list[Any]) -> None:
    """A run that opens gives the numbers it would give unharmed, or says what is wrong."""
    with contextlib.suppress(LldscopeError), lldscope.open_run(run) as reader:
        same = all(a.equals(b) if isinstance(a, pd.DataFrame) else a == b
                   for a, b in zip(answers(reader), truth, strict=True))
        assert same or reader.damaged, "other numbers without a word"
        reader.refresh()
        json_files.to_json(check(reader).to_dict()).encode()


def show(run: Path, face: str) -> None:
    """As a page or a command shows it: an answer with a sentence is fine, the rest is not."""
    if face.startswith("/"):
        content = page(RunRegistry(run.parent), *face.format(name=run.name).split(" "))
        json.dumps(content, default=lambda c: c.to_plotly_json())
        return
    words = [word.format(run=run, root=run.parent) for word in face.split(" ")]
    with mock.patch("signal.signal"), mock.patch("lldscope.monitor.follow.GONE_SECONDS", 0.0):
        error = CliRunner().invoke(cli, words).exception
    if error is not None and not isinstance(error, SystemExit | LldscopeError | OSError):
        raise error


FACES = [
    "/ ", "/run/{name} ", "/compare ?run={name}", "check {run}", "check {run} --json",
    "check {run} --exit-style nagios", "runs {root}", "watch {run} --timeout 0",
    "watch {run} --timeout 0 --json", "doctor {run}", "export {run} --to {root}/exported",
]


def record(path: Path, seed: int) -> Path:
    """Two attempts of two ranks, in several parts, with events."""
    for start in (0, 6):
        first = lldscope.Recorder(path, resume=start > 0, world_size=2)
        second = lldscope.Recorder(path, rank=1, resume=True, attempt=first.attempt)
        with first, second:
            for step in range(start, start + 8):
                record_steps(first, range(step, step + 1), seed=seed, groups=2)
                record_steps(second, range(step, step + 1), seed=seed + 100, groups=2)
                if step % 3 == 0:
                    first.event("lr change", step=step, lr=0.1)
                    first.flush()
    return path


@pytest.fixture(scope="session")
def unharmed(tmp_path_factory):
    root = tmp_path_factory.mktemp("unharmed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "CLOSE_MERGE_BYTES", -1)  # keep the parts apart
        record(root / "runs" / "run", 1)
        record(root / "other", 2)
    with lldscope.open_run(root / "runs" / "run") as run:
        return root, answers(run)


BLOWS: list[Callable[[random.Random, Path], None]] = [
    truncate, flip_bits, other_content, wrong_types, no_file, huge_claims,
]


@pytest.mark.parametrize("number", range(EACH))
@pytest.mark.parametrize("blow", BLOWS, ids=lambda b: b.__name__)
@pytest.mark.slow
def test_damage_breaks_nothing_and_is_said(unharmed, tmp_path, blow, number):
    root, truth = unharmed
    shutil.copytree(root, tmp_path / "x")
    run, rng = tmp_path / "x" / "runs" / "run", random.Random(f"{SEED} {blow.__name__} {number}")
    blow(rng, run)
    if number % 2:
        with contextlib.suppress(OSError, ValueError, IndexError, TypeError, AttributeError):
            rng.choice(BLOWS)(rng, run)  # may find nothing that it could strike
    ask(run, truth)
    for face in rng.sample(FACES, 3):
        show(run, face)


def test_the_fuzzer_knows_wrong_numbers_when_it_sees_them(unharmed, tmp_path, monkeypatch):
    """If readers named no damage, the fuzzer would say so."""
    root, truth = unharmed
    shutil.copytree(root, tmp_path / "x")
    run = tmp_path / "x" / "runs" / "run"
    for part in (run / "steps").glob("*.parquet"):  # one alone may hold superseded rows only
        part.unlink()
    monkeypatch.setattr(lldscope.Run, "damaged", {})
    with pytest.raises(AssertionError, match="without a word"):
        ask(run, truth)
