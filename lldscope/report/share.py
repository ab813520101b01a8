"""A run as a folder to publish: a Hugging Face dataset that is itself a run, and in `space/` a
static Space that shows its post-mortem.

Credentials are hidden. Notes and facts about the machines are left out, and so are the texts of
questions and responses, unless they are asked for. The report is made from the copy, so it cannot
say more than the copy.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..core.errors import LldscopeError, UsageError
from ..core.safe_text import in_one_line
from ..core.schema import TABLES
from ..core.secrets import redact
from ..explore.export import export_run
from ..runs import open_run
from ..storage import heartbeats, json_files, layout
from ..storage.compaction import BadPart, row_groups
from ..storage.events import read_journals
from ..storage.manifest import MANIFEST_DIR, commit
from ..storage.notes import about
from ..storage.part import Owner, Part, write_part
from .analysis import post_mortem
from .document import document
from .html import html
from .markdown import markdown

_FIELDS = (
    "schema", "id", "group", "created", "trainer", "config", "correct_rule", "world_size", "status",
    "reason", "ended", "planned_steps",
)
TEXTS = {"responses": ("text", "question", "golden"), "tokens": ("text", "token_id")}
REPOSITORY = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}", re.ASCII)
SPACE = "space"  # folder of the Space inside the dataset's folder
_TABLES = """
## Tables

`datasets.load_dataset(…, "signals")` reads one; `lldscope diagnose hf://datasets/…` reads the
whole as a run. What the columns are: `lldscope schema`.

| table | rows |
| --- | --: |
"""


@dataclass
class Shared:
    """What was written: rows by table, and damaged files, which are left out → why."""

    rows: dict[str, int] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)


def share(run: Path, folder: Path, texts: bool) -> Shared:
    """Write the folder, complete or not at all. Raises UsageError if there is something in it."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty; nothing is overwritten. Choose another folder.")
    if folder.resolve().is_relative_to(run.resolve()):
        raise UsageError(f"{folder} is inside the run. Choose another folder.")
    new = folder.absolute().with_name(f".{folder.name}.{os.getpid()}{json_files.IN_PROGRESS}")
    try:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        shared = _copy(run, new, texts)
        _describe(new, shared)
        os.replace(new, folder)
    except OSError as error:
        raise LldscopeError(f"{folder} cannot be written ({error.strerror or error}).") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return shared


def _copy(run: Path, new: Path, texts: bool) -> Shared:
    """The run, with one part for each recorder and table."""
    shared = Shared()
    info = layout.read_run(run, shared.damaged)
    manifest = layout.read_manifest(run)
    shared.damaged |= manifest.damaged
    lines = read_journals(run, shared.damaged)
    parts: dict[Owner, dict[str, list[Part]]] = defaultdict(lambda: defaultdict(list))
    for part in manifest.parts:
        parts[part.name.owner][part.table].append(part)
    for owner, tables in parts.items():
        merged = (_merged(run, new, t, group, texts, shared) for t, group in tables.items())
        (new / MANIFEST_DIR).mkdir(exist_ok=True)
        commit(new, owner, [part for part in merged if part], closed=True)
    for file in (layout.EVENTS_FILE, layout.ALERTS_FILE):
        for line in lines[file]:
            json_files.append_line(new / file, redact(line))
    for rank in {owner.rank for owner in parts}:
        (new / heartbeats.HEARTBEAT_DIR).mkdir(exist_ok=True)
        beat = json_files.to_json({"time": time.time(), "closed": True, "dropped": {}})
        (new / heartbeats.file_of(rank)).write_text(beat, encoding="utf-8")
    layout.write_run(new, redact(_described(info, about(lines[layout.NOTES_FILE]), run)))
    return shared


def _described(info: dict[str, Any], notes: dict[str, Any], run: Path) -> dict[str, Any]:
    """The fields of run.json about the run, without those about the machine; of a failure only the
    error."""
    about_run = {name: info.get(name) for name in _FIELDS}
    about_run["name"] = notes.get("name") or info.get("name") or run.resolve().name
    about_run["attempts"] = [
        {name: attempt.get(name) for name in ("attempt", "started", "world_size", "ended")}
        for attempt in info.get("attempts") or ()
    ]
    if imported := info.get("imported"):
        about_run["imported"] = {name: imported.get(name) for name in ("counted", "trainer")}
    if about_run["status"] == "running":
        about_run |= {"status": "stopped", "reason": "it was shared while it was running"}
    if about_run["reason"]:
        about_run["reason"] = str(about_run["reason"]).strip().rpartition("\n")[2]
    return about_run


def _merged(
    run: Path, new: Path, table: str, group: list[Part], texts: bool, shared: Shared
) -> Part | None:
    """The rows of a recorder's parts as one part; without those that cannot be read."""
    group = sorted(group, key=lambda part: part.name.first)
    while group:
        names = [part.name for part in group]
        removed_before = max(name.kept_from for name in names)
        name = replace(names[0], last=names[-1].last, kept_from=removed_before)
        rows = row_groups(run, group)
        try:
            part = write_part(new, table, name, rows if texts else _without_texts(table, rows))
        except BadPart as error:
            shared.damaged[error.part.place] = str(error)
            group.remove(error.part)
            continue
        shared.rows[table] = shared.rows.get(table, 0) + (part.rows if part else 0)
        return part
    return None


def _without_texts(table: str, batches: Iterator[pa.Table]) -> Iterator[pa.Table]:
    for rows in batches:
        for name in TEXTS.get(table, ()):
            column = rows.schema.get_field_index(name)
            kind = rows.schema.field(column)
            rows = rows.set_column(column, kind, pa.nulls(len(rows), kind.type))
        yield rows


def _describe(new: Path, shared: Shared) -> None:
    """The signals as one file, the card, and the Space."""
    with open_run(new) as run:
        (signals,) = export_run(run, new.parent / f"{new.name}.signals", "parquet", ["signals"])
        facts = post_mortem(run)
        name = in_one_line(run.name)
    os.replace(signals["file"], new / "signals.parquet")
    Path(signals["file"]).parent.rmdir()
    content = document(replace(facts, run=replace(facts.run, place=name)))
    rows = {"signals": signals["rows"]} | {table: n for table, n in shared.rows.items() if n}
    files = {table: sorted(p.relative_to(new).as_posix() for p in new.glob(f"{table}/*.parquet"))
             for table in shared.rows} | {"signals": ["signals.parquet"]}
    configs = "".join(
        f"- config_name: {table}\n  data_files: {json_files.to_json(files[table])}\n"
        for table in rows
    )
    title = json_files.to_json(name[:90])  # JSON is YAML
    listed = "".join(f"| {table} | {rows[table]:,} |\n" for table in rows)
    _write(new / "README.md", f"pretty_name: {title}\ntags: [lldscope, grpo]\nconfigs:\n{configs}",
           markdown(content) + _TABLES + listed)
    (new / SPACE).mkdir()
    _write(new / SPACE / "README.md", f"title: {title}\nsdk: static\n", "")
    (new / SPACE / "index.html").write_text(html(content), encoding="utf-8")


def _write(card: Path, metadata: str, text: str) -> None:
    card.write_text(f"---\n{metadata}---\n\n{text}", encoding="utf-8")


def push(folder: Path, name: str) -> list[str]:
    """Upload the dataset and the Space, each private if it is new; returns their addresses."""
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError:
        raise LldscopeError(
            "--push needs the package huggingface_hub: pip install 'lldscope[remote]'"
        ) from None
    api, places = HfApi(), []
    ours = [f"{place}/*" for place in (MANIFEST_DIR, heartbeats.HEARTBEAT_DIR, *TABLES)]
    kinds: dict[str, tuple[Path, str, dict[str, Any]]] = {
        "dataset": (folder, layout.RUN_FILE, {}),
        "space": (folder / SPACE, "index.html", {"space_sdk": "static"}),
    }
    try:
        for kind, (source, mark, options) in kinds.items():
            where = api.create_repo(name, repo_type=kind, private=True, exist_ok=True, **options)
            there = {*api.list_repo_files(name, repo_type=kind)} - {".gitattributes", "README.md"}
            if there and mark not in there:
                raise ValueError(f"the {kind} {name} holds something else; name a new one")
            api.upload_folder(
                folder_path=source, repo_id=name, repo_type=kind, commit_message="A run",
                ignore_patterns=f"{SPACE}/*", delete_patterns=ours,
            )
            places.append(str(where))
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        raise LldscopeError(
            f"{folder} is written and was not uploaded whole: {in_one_line(str(error))}"
        ) from None
    return places
