"""Corpus files -> documents.

A corpus is JSON lines. A document is written as Search-R1 and FlashRAG do,
{id, contents: "\"Title\"\\nbody"}, or as {title, text}.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lldscope.core.errors import LldscopeError, UsageError
from lldscope.storage import json_files


@dataclass(frozen=True)
class Document:
    """One retrievable passage. `id` is a number in the built-in world, else a string."""

    id: int | str
    title: str
    text: str


def contents(document: Document) -> str:
    """A document as Search-R1 exchanges it: the title in quotes on the first line, then the text
    (search_r1/search/retrieval_server.py)."""
    return f'"{document.title}"\n{document.text}'


def parse_document(record: Any, default_id: str | None = None) -> Document:
    """The document of a decoded JSON value. `default_id` is for a record without an id; without a
    default, a checksum of the text is used, since Search-R1's web search server sends no ids.
    Raises ValueError naming the wrong field."""
    if not isinstance(record, dict):
        raise ValueError(f"a document is an object, this is {_kind(record)}")
    if "contents" in record:
        first, _, text = _string(record, "contents").partition("\n")
        title = first[1:-1] if len(first) > 1 and first[0] == first[-1] == '"' else first
    elif "text" in record:
        title, text = _string(record, "title"), _string(record, "text")
    else:
        raise ValueError("there is neither a field 'contents' nor 'title' and 'text'")
    name = record.get("id", default_id)
    if name is None:
        name = f"{zlib.crc32(f'{title}|{text}'.encode()):08x}"
    if isinstance(name, bool) or not isinstance(name, int | str):
        raise ValueError(f"field 'id' must be a string or an integer, it is {_kind(name)}")
    return Document(str(name), title, text)


def check_corpus(path: Path) -> None:
    """Raise UsageError unless the file exists and is named as JSON lines."""
    if path.suffix != ".jsonl":
        raise UsageError(f"{path}: a corpus is a .jsonl file, one document a line.")
    if not path.is_file():
        raise UsageError(f"{path}: there is no such corpus file.")


def read_corpus(path: Path) -> Iterator[tuple[int, Document]]:
    """(byte offset of the line, document) for each document of a corpus, in order, without blank
    lines. Ids are strings, by default the row number. Raises UsageError like `check_corpus`, and
    LldscopeError with file, line and field for wrong content."""
    check_corpus(path)
    offset = row = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.isspace():
                    try:
                        document = parse_document(decode(line.rstrip()), str(row))
                    except ValueError as error:
                        raise LldscopeError(f"{path}, line {number}: {error}.") from None
                    yield offset, document
                    row += 1
                offset += len(line)
    except OSError as error:
        raise LldscopeError(f"{path}: {error.strerror or error}.") from None


def decode(line: bytes) -> Any:
    """The JSON value of some bytes, as `json_files.parse` reads it, after a byte order mark."""
    return json_files.parse(line.removeprefix(codecs.BOM_UTF8))


def _string(record: dict[str, Any], field: str) -> str:
    value = record.get(field)
    if not isinstance(value, str):
        raise ValueError(f"field {field!r} must be a string, it is {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    return "missing or null" if value is None else f"of type {type(value).__name__}"
