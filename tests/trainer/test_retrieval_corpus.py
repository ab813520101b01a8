"""Corpus files: their forms, and what is said about wrong ones."""

from __future__ import annotations

import gzip
import json

import pytest
from lldscope_trainer.data.corpus import Document, contents, parse_document, read_corpus

from lldscope.core.errors import LldscopeError, UsageError

OSLO = Document("0", "Oslo", "Oslo is the capital of Norway.\nIt lies on a fjord.")
LIMA = Document("1", "Lima", "Lima is the capital of Peru.")


def lines(*records: object) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


SEARCH_R1 = lines(*({"id": d.id, "contents": contents(d)} for d in (OSLO, LIMA)))
TITLE_TEXT = [{"title": d.title, "text": d.text} for d in (OSLO, LIMA)]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("c.jsonl", SEARCH_R1),
        ("c.jsonl.gz", gzip.compress(SEARCH_R1, mtime=0)),
        ("c.jsonl", b"\xef\xbb\xbf" + SEARCH_R1.replace(b"\n", b"\r\n\r\n")),
        ("c.jsonl", SEARCH_R1.rstrip(b"\n")),
        ("c.jsonl", lines(*TITLE_TEXT)),
        ("c.json", json.dumps(TITLE_TEXT, indent=1).encode()),
        ("c.json.gz", gzip.compress(json.dumps(TITLE_TEXT).encode(), mtime=0)),
        ("c.json", json.dumps({"Oslo": OSLO.text, "Lima": [LIMA.text]}).encode()),
        ("c.json", json.dumps({"Oslo": [OSLO.text], "Lima": ["Lima is the capital ", " of Peru."]})
         .encode()),
    ],
)
def test_every_form_gives_the_same_documents(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    assert list(read_corpus(tmp_path / name)) == [OSLO, LIMA]


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
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": "\\ud800", "contents": "a\\udfff\\nb\\ud800"}\n')
    (document,) = read_corpus(path)
    assert document == Document("?", "a?", "b?")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("c.jsonl", SEARCH_R1 + b"{broken\n", "line 3: this is not JSON"),
        ("c.jsonl", b"{\n}\n", "line 1: this is not JSON (Expecting property name enclosed in "
         "double quotes, column 2)."),
        ("c.jsonl", b"\n" + SEARCH_R1 + b'\n"text"', "line 5: a document is an object"),
        ("c.jsonl", b"\xff\xfe{}\n", "line 1: this is not UTF-8"),
        ("c.jsonl", b"[" * 100_000, "line 1: this JSON is nested too deeply"),
        ("c.jsonl", lines({"id": 1, "body": "x"}), "line 1: there is neither a field 'contents'"),
        ("c.jsonl", lines({"contents": 5}), "line 1: field 'contents' must be a string"),
        ("c.jsonl", lines({"text": "x"}), "line 1: field 'title' must be a string, it is missing"),
        ("c.jsonl", lines({"text": "x", "title": "t", "id": 1.5}), "line 1: field 'id'"),
        ("c.jsonl", lines({"text": "x", "title": "t", "id": True}), "line 1: field 'id'"),
        ("c.jsonl.gz", b"no gzip", "line 1: cannot be read"),
        ("c.jsonl.gz", gzip.compress(SEARCH_R1, mtime=0)[:-9], "cannot be read"),
        ("c.json.gz", gzip.compress(b"[]" * 999, mtime=0)[:20], "cannot be read"),
        ("c.json", SEARCH_R1, "Name it .jsonl"),
        ("c.json", b'[\n{"title": }]', "this is not JSON (Expecting value, line 2, column 11)"),
        ("c.json", b"7", "expected a list of documents"),
        ("c.json", json.dumps([TITLE_TEXT[0], {"title": None, "text": ""}]).encode(),
         "row 1: field 'title'"),
        ("c.json", b'{"Oslo": ["a", 5]}', "title 'Oslo': its sentences"),
        ("c.json", b'{"Oslo": null}', "title 'Oslo': its sentences"),
    ],
)
def test_a_wrong_file_is_named_with_place_and_field(tmp_path, name, data, message):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(LldscopeError) as caught:
        list(read_corpus(path))
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["c.txt", "c.gz", "c", "missing.jsonl", "folder.json"])
def test_what_cannot_be_a_corpus_is_a_usage_error(tmp_path, name):
    for there in ("c.txt", "c.gz", "c"):
        (tmp_path / there).write_bytes(SEARCH_R1)
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(UsageError):
        list(read_corpus(tmp_path / name))
