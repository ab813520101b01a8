"""Damage to the files of a run, drawn at random, and what must hold whatever was done.

Every face is asked after each blow. None may crash; and if a number differs from the undamaged
run's, `damaged` must say that something is wrong.
"""

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
from click.testing import CliRunner
from lldscope_dashboard.data.run_registry import RunRegistry
from lldscope_dashboard.pages.router import page

import lldscope
from lldscope.cli import cli
from lldscope.core.errors import LldscopeError
from lldscope.monitor.health import check
from lldscope.storage import json_files
from lldscope.storage.manifest import manifest_path

Blow = Callable[[random.Random, Path], str]

ODD_VALUES = [
    None, True, -1, 0.5, 1e308, 10**40, 2**40, "", "x" * 5000, "\x1b[2J\u202e\0", [], {}, [[]],
    "<script>", float("nan"), float("inf"), "\ud800",
]
ODD_TEXTS = [
    b"", b"\0" * 64, b"{", b"[]", b"null", b"7", b'"x"', b"\xff\xfe{}", b"[" * 100_000, b"{}" * 9,
    b'{"schema": ', b"1" * 6000, b'{"a": "\\ud800"}', b"\n" * 1000, b'{"time": NaN}', b"PAR1PAR1",
]


def _files(run: Path, kind: str) -> list[Path]:
    patterns = {
        "part": "*/*.parquet",
        "small": "run.json manifest/*.jsonl heartbeat/*.json *.jsonl",
        "any": "run.json manifest/*.jsonl heartbeat/*.json *.jsonl */*.parquet",
    }
    paths = (p for pattern in patterns[kind].split() for p in run.glob(pattern))
    # An earlier blow may have put a pipe there, a link to a device, or a terabyte of nothing.
    return sorted(
        p for p in paths if p.is_file() and not p.is_symlink() and p.stat().st_size < 2**30
    )


def truncate(rng: random.Random, run: Path) -> str:
    path = rng.choice(_files(run, "any"))
    size = rng.randrange(path.stat().st_size)
    if rng.random() < 0.3 and path.suffix == ".jsonl":  # between two lines
        size = path.read_bytes().rfind(b"\n", 0, size) + 1
    os.truncate(path, size)
    return f"truncate {path.relative_to(run)} to {size}"


def zero(rng: random.Random, run: Path) -> str:
    path = rng.choice(_files(run, "any"))
    content = bytearray(path.read_bytes())
    start = rng.choice([0, rng.randrange(len(content))])
    end = rng.choice([len(content), min(len(content), start + rng.randrange(1, 200))])
    content[start:end] = bytes(end - start)
    path.write_bytes(content)
    return f"zero {path.relative_to(run)} {start}:{end}"


def flip_bits(rng: random.Random, run: Path) -> str:
    path = rng.choice(_files(run, rng.choice(["part", "small"])))
    content = bytearray(path.read_bytes())
    places = [rng.randrange(len(content)) for _ in range(rng.choice([1, 1, 1, 4, 40]))]
    for place in places:
        content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"flip {path.relative_to(run)} at {places}"


def swap(rng: random.Random, run: Path) -> str:
    """Two files of a kind take each other's place, or the same stretch of their content does."""
    kind = rng.choice(["part", "small"])
    a, b = rng.choice(_files(run, kind)), rng.choice(_files(run, kind))
    one, two = a.read_bytes(), b.read_bytes()
    if rng.random() < 0.5:
        cut = rng.randrange(min(len(one), len(two)))
        one, two = one[:cut] + two[cut:], two[:cut] + one[cut:]
    a.write_bytes(two)
    b.write_bytes(one)
    return f"swap {a.relative_to(run)} and {b.relative_to(run)}"


def other_run(rng: random.Random, run: Path) -> str:
    """A file of another run lies in place of one of ours."""
    path = rng.choice(_files(run, "any"))
    shutil.copyfile(run.parent.with_name("other") / path.relative_to(run), path)
    return f"another run's {path.relative_to(run)}"


def garble(rng: random.Random, run: Path) -> str:
    path = rng.choice(_files(run, "any"))
    path.write_bytes(rng.choice([*ODD_TEXTS, rng.randbytes(300)]))
    return f"garble {path.relative_to(run)}"


def wrong_types(rng: random.Random, run: Path) -> str:
    """A value somewhere in a JSON file is of another kind; the line's checksum goes with it."""
    path = rng.choice(_files(run, "small"))
    lines = path.read_bytes().split(b"\n") if path.suffix == ".jsonl" else [path.read_bytes()]
    index = rng.choice([i for i, line in enumerate(lines) if line])
    value = json.loads(lines[index])
    value.pop("crc", None)
    detail = _mutate(rng, value)
    text = json.dumps(value)
    lines[index] = text.encode()
    if path.suffix == ".jsonl" and rng.random() < 0.5:
        with contextlib.suppress(ValueError, AttributeError):
            lines[index] = json_files.with_checksum(text).rstrip(b"\n")
    path.write_bytes(b"\n".join(lines))
    return f"types {path.relative_to(run)} {detail}"


def _mutate(rng: random.Random, value: Any) -> str:
    key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
    if isinstance(value[key], dict | list) and value[key] and rng.random() < 0.7:
        return f"{key}.{_mutate(rng, value[key])}"
    value[key] = rng.choice(ODD_VALUES)
    return f"{key} = {str(value[key])[:20]!r}"


def replace(rng: random.Random, run: Path) -> str:
    """Something that is no file, or a link out of the run, where a file should be."""
    path = rng.choice(_files(run, "any"))
    content = path.read_bytes()
    path.unlink()
    kind = rng.choice(["gone", "pipe", "folder", "link out", "link in", "link to itself", "device"])
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
        (path / "x").write_bytes(content)
    elif kind == "link out":
        outside = run.parent / "outside"
        outside.write_bytes(content)
        path.symlink_to(outside)
    elif kind == "link in":
        (path.parent / "elsewhere").write_bytes(content)
        path.symlink_to("elsewhere")
    elif kind == "link to itself":
        path.symlink_to(path.name)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    return f"{kind} for {path.relative_to(run)}"


def replace_folder(rng: random.Random, run: Path) -> str:
    path = rng.choice(sorted(p for p in run.iterdir() if p.is_dir()))
    kind = rng.choice(["file", "link out", "gone"])
    moved = run.parent / "folder-outside"
    path.rename(moved)
    if kind == "file":
        path.write_bytes(b"?")
    elif kind == "link out":
        path.symlink_to(moved)
    return f"{kind} for folder {path.relative_to(run)}"


def huge(rng: random.Random, run: Path) -> str:
    path = rng.choice(_files(run, "any"))
    os.truncate(path, 2**40)  # sparse: takes no space
    return f"huge {path.relative_to(run)}"


def huge_claims(rng: random.Random, run: Path) -> str:
    """A manifest line, sound in form, that claims what cannot be."""
    entry = {"file": "a1-r0-000901.parquet", "rows": 2**40, "bytes": 2**40, "steps": [0, 2**31 - 1]}
    entry |= rng.choice([{}, {"crc": 1}, {"rows": 2**80}, {"steps": [0, 2**40]}, {"bytes": 1}])
    table = rng.choice(["steps", "actions", "tokens", "../steps", "nothing", "", "x" * 4000])
    line = json_files.with_checksum(json.dumps({"time": 1, "parts": {table: entry}}))
    with open(manifest_path(run, 1, 0), "ab") as file:
        file.write(line)
    return f"claims {table[:20]} {entry}"


def foreign(rng: random.Random, run: Path) -> str:
    """Files that belong to nobody: they do not count."""
    name = rng.choice(["a1-r0-000999.parquet", "x.parquet.inprogress", "\x1b[31m", "..hidden"])
    folder = rng.choice([".", "steps", "manifest", "heartbeat"])
    (run / folder / name).write_bytes(rng.choice(ODD_TEXTS))
    if folder in ("manifest", "heartbeat"):
        odd = rng.choice(["a1-r0.jsonl~", "a-r.jsonl", "r.json", "rx.json", "r99999999999999.json"])
        (run / folder / odd).write_bytes(rng.choice(ODD_TEXTS))
    return f"foreign {folder}/{name!r}"


BLOWS: list[Blow] = [
    truncate, zero, flip_bits, swap, other_run, garble, wrong_types, replace, replace_folder, huge,
    huge_claims, foreign,
]


def answers(run: lldscope.Run) -> dict[str, Any]:
    """The numbers a person acts on."""
    state = check(run)
    return {
        "signals": run.signals(),
        "action_signals": run.action_signals(),
        "alerts": [(a.rule, a.episodes) for a in state.alerts if a.rule != "stalled"],
        "phases": state.phases,
        "rows": run.sql(
            "SELECT count(*) n, sum(n_tokens) tokens, sum(logp_post_sum) post FROM all_actions"
        ),
    }


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(a[k].equals(b[k]) if isinstance(a[k], pd.DataFrame) else a[k] == b[k] for k in a)


def strike(run: Path, rng: random.Random, truth: dict[str, Any]) -> str:
    """Damage a run once or twice, ask for its numbers, and ask one of the faces."""
    changes = []
    for _ in range(rng.choice([1, 1, 2])):
        with contextlib.suppress(OSError, ValueError, IndexError, TypeError, AttributeError):
            # a second blow may find nothing that it could strike
            changes.append(rng.choice(BLOWS)(rng, run))
    what = "; ".join(changes)
    try:
        ask(run, truth)
        rng.choice(FACES)(run)
    except BaseException as error:
        error.add_note(f"after: {what}")
        raise
    return what


def ask(run: Path, truth: dict[str, Any]) -> None:
    """A run that opens gives the numbers it would give unharmed, or says what is wrong."""
    try:
        with lldscope.open_run(run) as reader:
            result = answers(reader)
            assert same(result, truth) or reader.damaged, "other numbers without a word"
            reader.refresh()
            json_files.to_json(check(reader).to_dict()).encode()
    except LldscopeError:
        pass  # one sentence, as the faces below show it


def _pages(run: Path) -> None:
    shelf = RunRegistry(run.parent)
    for path, search in (("/", ""), (f"/run/{run.name}", ""), ("/compare", f"?run={run.name}")):
        json.dumps(page(shelf, path, search), default=lambda c: c.to_plotly_json())


def _command(*arguments: Any) -> None:
    """As `lldscope.cli.main` runs it: what it answers with a sentence is fine, the rest is not."""
    arguments = tuple(map(str, arguments))
    with mock.patch("signal.signal"), mock.patch("lldscope.monitor.follow.GONE_SECONDS", 0.0):
        done = CliRunner().invoke(cli, arguments)
    if isinstance(done.exception, SystemExit | LldscopeError | OSError):
        return
    if done.exception is not None:
        raise done.exception


FACES: list[Callable[[Path], None]] = [
    _pages,
    lambda run: _command("check", run),
    lambda run: _command("check", run, "--json"),
    lambda run: _command("check", run, "--exit-style", "nagios"),
    lambda run: _command("runs", run.parent),
    lambda run: _command("watch", run, "--timeout", 0),
    lambda run: _command("watch", run, "--timeout", 0, "--json"),
    lambda run: _command("query", run, "SELECT * FROM signals"),
    lambda run: _command("export", run, "--to", run.parent / "exported"),
    lambda run: _command("doctor", run),
]
