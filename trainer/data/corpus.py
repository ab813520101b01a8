"""Corpus files -> documents.

A corpus is JSON lines (`.jsonl`) or one JSON value (`.json`), either of them gzipped (`.gz`). A
document is written as Search-R1 and FlashRAG do, {id, contents: "\"Title\"\\nbody"}, or as
{title, text}; a JSON file holds a list of these, or maps titles to lists of sentences (HotpotQA).
JSON lines are streamed; a `.json` file is read whole.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from lldscope.core.errors import LldscopeError, UsageError


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
    """The document a decoded JSON value stands for.

    `default_id` is for a record without one; without it a checksum of the text serves, since
    Search-R1's web search server sends no ids. Raises ValueError naming the field at fault.
    """
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
    return Document(_valid(str(name)), title, text)


def read_corpus(path: Path) -> Iterator[Document]:
    """The documents of a corpus file, in order. Ids are strings; the row where there is none.

    Raises UsageError where there is no such file or its name says no format, LldscopeError naming
    file, line or row, and field where the content is wrong.
    """
    if is_lines(path):
        return (document for _, document in read_lines(path))
    return _read_json(path)


def is_lines(path: Path) -> bool:
    """Whether a corpus file is JSON lines. Raises UsageError as `read_corpus` does."""
    name = path.name.removesuffix(".gz")
    if not name.endswith((".jsonl", ".json")):
        raise UsageError(f"{path}: a corpus is a .jsonl or .json file, or one of these with .gz.")
    if not path.is_file():
        raise UsageError(f"{path}: there is no such corpus file.")
    return name.endswith(".jsonl")


def read_lines(path: Path) -> Iterator[tuple[int, Document]]:
    """(byte offset of its line, document) for each document of JSON lines; blank lines count
    for nothing. In a gzipped file the offset is that of the unpacked text."""
    number = offset = row = 0
    with _open(path) as file:
        while line := _read(file.readline, f"{path}, line {number + 1}"):
            number += 1
            if not line.isspace():
                try:
                    document = parse_document(decode(line.rstrip()), str(row))
                except ValueError as error:
                    raise LldscopeError(f"{path}, line {number}: {error}.") from None
                yield offset, document
                row += 1
            offset += len(line)


def decode(line: bytes) -> Any:
    """The JSON value of some bytes. Raises ValueError with a sentence for people."""
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("this is not UTF-8") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(f"this is not JSON ({error.msg}, {place}column {error.colno})") from None
    except RecursionError:
        raise ValueError("this JSON is nested too deeply") from None


def _read_json(path: Path) -> Iterator[Document]:
    with _open(path) as file:
        try:
            value = decode(_read(file.read, str(path)))
        except ValueError as error:
            hint = " One document a line? Name it .jsonl." if "Extra data" in str(error) else ""
            raise LldscopeError(f"{path}: {error}.{hint}") from None
    if isinstance(value, dict):
        for row, (title, sentences) in enumerate(value.items()):
            parts = [sentences] if isinstance(sentences, str) else sentences
            if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
                raise LldscopeError(f"{path}, title {title[:80]!r}: its sentences are not strings.")
            yield Document(str(row), _valid(title), _valid(" ".join(s.strip() for s in parts)))
        return
    if not isinstance(value, list):
        raise LldscopeError(f"{path}: expected a list of documents or titles with sentences.")
    for row, record in enumerate(value):
        try:
            yield parse_document(record, str(row))
        except ValueError as error:
            raise LldscopeError(f"{path}, row {row}: {error}.") from None


def _open(path: Path) -> BinaryIO:
    try:
        return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")
    except OSError as error:
        raise LldscopeError(f"{path}: {error.strerror or error}.") from None


def _read(call: Callable[[], bytes], where: str) -> bytes:
    try:
        return call()
    except (OSError, EOFError, zlib.error) as error:
        raise LldscopeError(f"{where}: cannot be read ({error}).") from None


def _string(record: dict[str, Any], field: str) -> str:
    value = record.get(field)
    if not isinstance(value, str):
        raise ValueError(f"field {field!r} must be a string, it is {_kind(value)}")
    return _valid(value)


def _valid(text: str) -> str:
    """The text with what UTF-8 cannot write (half a surrogate pair) replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _kind(value: Any) -> str:
    return "missing or null" if value is None else f"of type {type(value).__name__}"
