"""Corpus files: their forms, and what is said about wrong ones."""

from __future__ import annotations

import json

import pytest
from lldscope_trainer.data.corpus import Document, contents, parse_document, read_corpus

from lldscope.core.errors import LldscopeError, UsageError

OSLO = Document("0", "Oslo", "Oslo is the capital of Norway.\nIt lies on a fjord.")
LIMA = Document("1", "Lima", "Lima is the capital of Peru.")


def lines(*records: object) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def documents(folder, data: bytes) -> list[Document]:
    (folder / "c.jsonl").write_bytes(data)
    return [document for _, document in read_corpus(folder / "c.jsonl")]


SEARCH_R1 = lines(*({"id": d.id, "contents": contents(d)} for d in (OSLO, LIMA)))
TITLE_TEXT = [{"title": d.title, "text": d.text} for d in (OSLO, LIMA)]


@pytest.mark.parametrize(
    "data",
    [
        SEARCH_R1,
        (b"\xef\xbb\xbf" + SEARCH_R1.replace(b"\n", b"\r\n\r\n")),
        (SEARCH_R1.rstrip(b"\n")),
        (lines(*TITLE_TEXT)),
    ],
)
def test_every_form_gives_the_same_documents(tmp_path, data):
    assert documents(tmp_path, data) == [OSLO, LIMA]


@pytest.mark.parametrize(
    ("first_line", "title"),
    [
        ('"Oslo"', "Oslo"),
        ("Oslo", "Oslo"),
        ('"', '"'),
        ('""', ""),
        ('"""Heroes"" (album)"', '""Heroes"" (album)'),  # as in the 2018 Wikipedia passages
    ],
)
def test_the_title_is_the_first_line_without_its_quotes(first_line, title):
    document = parse_document({"id": 7, "contents": f"{first_line}\nbody\nmore"})
    assert document == Document("7", title, "body\nmore")
    if first_line.startswith('"') and len(first_line) > 1:
        assert contents(document) == f"{first_line}\nbody\nmore"


def test_a_document_without_id_is_known_by_its_text():
    one, other = ({"contents": f'"Oslo"\n{text}'} for text in ("fjord", "harbour"))
    assert parse_document(one).id == parse_document(one).id != parse_document(other).id


def test_half_a_surrogate_pair_does_not_get_in(tmp_path):
    line = b'{"id": "\\ud800", "contents": "a\\udfff\\nb\\ud800"}\n'
    (document,) = documents(tmp_path, line)
    assert document == Document("?", "a?", "b?")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (SEARCH_R1 + b"{broken\n", "line 3: this is not JSON"),
        (b"{\n}\n", "line 1: this is not JSON (Expecting property name enclosed in "
         "double quotes, column 2)."),
        (b"\n" + SEARCH_R1 + b'\n"text"', "line 5: a document is an object"),
        (b"[" * 100_000, "line 1: this JSON is nested too deeply"),
        (lines({"id": 1, "body": "x"}), "line 1: there is neither a field 'contents'"),
        (lines({"text": "x"}), "line 1: field 'title' must be a string, it is missing"),
        (lines({"text": "x", "title": "t", "id": True}), "line 1: field 'id'"),
    ],
)
def test_a_wrong_file_is_named_with_place_and_field(tmp_path, data, message):
    with pytest.raises(LldscopeError) as caught:
        documents(tmp_path, data)
    assert message in str(caught.value)
    assert str(tmp_path / "c.jsonl") in str(caught.value)


@pytest.mark.parametrize("name", ["c.json", "c.jsonl.gz", "c", "missing.jsonl", "folder.jsonl"])
def test_what_cannot_be_a_corpus_is_a_usage_error(tmp_path, name):
    for there in ("c.json", "c.jsonl.gz", "c"):
        (tmp_path / there).write_bytes(SEARCH_R1)
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(UsageError):
        list(read_corpus(tmp_path / name))
