"""Question files and corpora: every form read alike, every bad row named; what a step draws."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lldscope_trainer.builtin.world import World
from lldscope_trainer.data.corpus import Document, contents, parse_document, read_corpus
from lldscope_trainer.data.datasets import Question, ShuffledQuestions, read_questions

from lldscope.core.errors import LldscopeError, UsageError

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "data.md").read_text("utf-8")
EXAMPLES = dict(re.findall(r"`(\S+)`:\n\n```json\n(.*?)```", PAGE, re.M | re.S))

ASKED = "Search before you answer. Question: "
EXPECTED = {
    "mix/search_r1.jsonl": [
        Question(text, golds, source, "0", ({"role": "user", "content": f"{ASKED}{text}\n"},))
        for text, golds, source in (
            ("which river flows through Riverton?", ("Blue River", "the Blue"), "nq"),
            ("Who built the Riverton mill?", ("Ada Miller",), "hotpotqa"),
        )
    ],
    "bamboogle/test.jsonl": [
        Question("Who ran Riverton when its mill was built?", ("Tom Baker",), "bamboogle",
                 "test_0"),
        Question("How long is the Blue River?", ("1,200 km", "1200 kilometres"), "bamboogle",
                 "test_1"),
    ],
    "own/questions.json": [
        Question("Where does the Blue River end?", ("Lake Marl",), "own",
                 "Where does the Blue River end?"),
        Question("Who painted the mill?", ("Eve Stone", "E. Stone"), "own",
                 "Who painted the mill?"),
    ],
}


def put(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# -- forms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPECTED)
def test_the_examples_of_the_page_are_read(name, tmp_path):
    assert set(EXAMPLES) == set(EXPECTED)
    assert read_questions([put(tmp_path / name, EXAMPLES[name])]) == EXPECTED[name]


@pytest.mark.parametrize(
    "form", ["list", "pretty list", "gzip", "byte order mark", "blank lines", "parquet"]
)
def test_the_form_of_a_file_is_known_by_its_content_and_not_by_its_name(form, tmp_path):
    rows = [json.loads(line) for line in EXAMPLES["mix/search_r1.jsonl"].splitlines()]
    path = put(tmp_path / "mix" / "some.file", {
        "list": f" \n{json.dumps(rows)}\n ",
        "pretty list": json.dumps(rows, indent=2),
        "gzip": gzip.compress(lines(rows).encode()),
        "byte order mark": "\ufeff" + lines(rows),
        "blank lines": "\r\n\n" + lines(rows).replace("\n", "\r\n \n"),
        "parquet": "",
    }[form])
    if form == "parquet":
        rows[1]["reward_model"]["ground_truth"]["target"] = ["Ada Miller"]  # a column has one type
        pq.write_table(pa.Table.from_pylist(rows), path)
    assert read_questions([path]) == EXPECTED["mix/search_r1.jsonl"]


VERL = {
    "data_source": "nq",
    "prompt": [{"role": "user", "content": "Who?"}],
    "reward_model": {"ground_truth": {"target": ["x"]}},
    "extra_info": {"index": 3},
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # Without a column for it, the question is the last message, and the prompt stays.
        ({}, ("Who?", ("x",), "3", True)),
        # A prompt that says no more than the question is none.
        ({"extra_info": {"index": 3, "question": "Who?"}}, ("Who?", ("x",), "3", False)),
        ({"question": "Who? "}, ("Who? ", ("x",), "3", False)),
        ({"question": "Who is it?"}, ("Who is it?", ("x",), "3", True)),
        ({"extra_info": {"index": "a7"}}, ("Who?", ("x",), "a7", True)),
        ({"extra_info": None}, ("Who?", ("x",), "Who?", True)),
        ({"extra_info": 5}, ("Who?", ("x",), "Who?", True)),
        # verl's generic form: the text is the list joined.
        (
            {"reward_model": {"ground_truth": "x, y"}, "extra_info": {"answer": ["x", "y"]}},
            ("Who?", ("x", "y"), "Who?", True),
        ),
        ({"reward_model": {"ground_truth": "x, y"}}, ("Who?", ("x, y",), "3", True)),
        ({"reward_model": {"ground_truth": ["x", "y"]}}, ("Who?", ("x", "y"), "3", True)),
    ],
)
def test_verl_rows(change, expected, tmp_path):
    (question,) = read_questions([put(tmp_path / "q.jsonl", lines([VERL | change]))])
    results = (question.text, question.golds, question.index, question.prompt is not None)
    assert results == expected
    assert question.data_source == "nq"


# -- errors ----------------------------------------------------------------------------------------

FLASH = {"id": "1", "question": "Who?", "golden_answers": ["x"]}


@pytest.mark.parametrize(
    ("good", "bad", "column", "results"),
    [
        (FLASH, {"id": "2", "golden_answers": ["x"]}, "question", "nothing"),
        (FLASH, FLASH | {"question": " \n"}, "question", "' \\n'"),
        (FLASH, FLASH | {"golden_answers": ["x", 7]}, "golden_answers[1]", "7"),
        (FLASH, FLASH | {"id": 1.5}, "id", "1.5"),
        (VERL, VERL | {"prompt": [{"role": "user"}]}, "prompt[0].content", "nothing"),
        (
            VERL,
            VERL | {"prompt": [{"role": "assistant", "content": "Hm"}]},
            "prompt",
            "[{'role': 'assistant', 'content': 'Hm'}]",
        ),
        (
            VERL,
            VERL | {"reward_model": {"ground_truth": {"target": None}}},
            "reward_model.ground_truth",
            "nothing",
        ),
    ],
)
def test_a_bad_row_is_named_with_its_column(good, bad, column, results, tmp_path):
    path = put(tmp_path / "q.jsonl", lines([good, bad]))
    with pytest.raises(UsageError) as error:
        read_questions([path])
    message = str(error.value)
    assert message.startswith(f"{path}, row 2, column {column}: found {results}. ")
    assert "\n" not in message


GOOD = lines([FLASH])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "holds no questions"),
        ("[]", "holds no questions"),
        ("question,answer\n", "neither Parquet nor JSON lines nor a JSON list starts with b'q"),
        (b"PAR1 and no more", "cannot be read after row 0"),
        (gzip.compress(GOOD.encode() * 99, mtime=0)[:-20], "cannot be read after row"),
        (GOOD + "{", "cannot be read after row 1: it is not JSON"),
        (GOOD.encode() + b'{"question": "\xff"}', "after row 1: it is not UTF-8"),
        (GOOD + '{"a": ' + "[" * 99_999, "after row 1: it is nested too deeply"),
        (f"[{GOOD}", "it is not JSON: Expecting ',' delimiter: line 2"),
        ('{"text": "x", "title": "y"}', "has the columns ['text', 'title']: expected prompt and"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_sentence(content, expected, tmp_path):
    path = put(tmp_path / "q.jsonl", content)
    with pytest.raises(UsageError, match=re.escape(expected)) as error:
        read_questions([path])
    assert str(path) in str(error.value)
    assert len(str(error.value)) < 500


# -- keys ------------------------------------------------------------------------------------------


def test_two_questions_with_one_key_are_refused_and_both_named(tmp_path):
    a = put(tmp_path / "a.jsonl", lines([VERL]))
    b = put(tmp_path / "b.jsonl", lines([VERL | {"extra_info": {"index": 4}},
                                         VERL | {"question": "Who is it?"}]))
    with pytest.raises(UsageError) as error:
        read_questions([a, b])
    message = str(error.value)
    assert f"{a}, row 1 and {b}, row 2" in message
    assert "data_source 'nq' and index '3'" in message


def test_a_repeated_row_is_dropped_and_sources_number_for_themselves(tmp_path):
    rows = [VERL, VERL, VERL | {"data_source": "hotpotqa", "question": "Who is it?"}]
    questions = read_questions([put(tmp_path / "q.jsonl", lines(rows))])
    assert [q.key for q in questions] == [("nq", "3"), ("hotpotqa", "3")]


# -- limits ----------------------------------------------------------------------------------------


def test_a_limit_holds_for_each_source_and_does_not_follow_the_order(tmp_path):
    rows = [
        {"id": f"{i}", "data_source": source, "question": f"{i}?", "answer": "x"}
        for source in ("a", "b", "c")
        for i in range(3 if source == "c" else 200)
    ]
    sample = read_questions([put(tmp_path / "q.jsonl", lines(rows))], limit=10)
    assert Counter(q.data_source for q in sample) == {"a": 10, "b": 10, "c": 3}
    assert max(int(q.index) for q in sample) > 100
    assert [int(q.index) for q in sample[:10]] == sorted(int(q.index) for q in sample[:10])
    random.Random(0).shuffle(rows)
    shuffled = read_questions([put(tmp_path / "q.jsonl", lines(rows))], limit=10)
    assert {q.key for q in shuffled} == {q.key for q in sample}
    everything = read_questions([tmp_path / "q.jsonl"], limit=1000)
    assert len(everything) == 403


# -- what a step draws -----------------------------------------------------------------------------


def made_up(n: int) -> list[Question]:
    return [Question(f"{i}?", ("x",), "made up", str(i)) for i in range(n)]


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 3))
def test_epochs_are_permutations_that_need_no_state(total, n, seed):
    questions, rng = made_up(total), random.Random(0)
    source = ShuffledQuestions(questions, seed=seed)
    if n > total:
        with pytest.raises(UsageError, match=f"takes {n} questions, the training data holds"):
            source.draw(0, n, rng)
        return
    steps = total // n
    for epoch in range(3):
        records = []
        for step in range(epoch * steps, (epoch + 1) * steps):
            batch = source.draw(step, n, rng)
            assert batch == ShuffledQuestions(questions, seed=seed).draw(step, n, rng)
            records += batch
        assert len(set(records)) == len(records) == steps * n
    assert rng.getstate() == random.Random(0).getstate()


def test_the_world_draws_from_the_steps_own_generator():
    source = World.real(two_hop=0.5)
    draws = source.draw(7, 6, random.Random(3))
    assert draws == source.questions(random.Random(3), 6, held_out=False)
    assert [q.key for q in draws] == [(q.data_source, q.text) for q in draws]
    assert source.held_out(9) == source.held_out(9)
    assert not set(source.held_out(99)) & set(source.draw(0, 99, random.Random(0)))


# -- corpora --------------------------------------------------------------------------------------

OSLO = Document("0", "Oslo", "Oslo is the capital of Norway.\nIt lies on a fjord.")
LIMA = Document("1", "Lima", "Lima is the capital of Peru.")


def documents(folder: Path, data: str | bytes) -> list[Document]:
    return [document for _, document in read_corpus(put(folder / "c.jsonl", data))]


SEARCH_R1 = lines([{"id": d.id, "contents": contents(d)} for d in (OSLO, LIMA)]).encode()
TITLE_TEXT = [{"title": d.title, "text": d.text} for d in (OSLO, LIMA)]


@pytest.mark.parametrize(
    "data",
    [
        SEARCH_R1,
        b"\xef\xbb\xbf" + SEARCH_R1.replace(b"\n", b"\r\n\r\n"),
        SEARCH_R1.rstrip(b"\n"),
        lines(TITLE_TEXT),
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
        (SEARCH_R1 + b"{broken\n", "line 3: it is not JSON"),
        (b"{\n}\n", "line 1: it is not JSON: Expecting property name enclosed in "
         "double quotes: line 1 column 2"),
        (b"\n" + SEARCH_R1 + b'\n"text"', "line 5: a document is an object"),
        (b"[" * 100_000, "line 1: it is nested too deeply"),
        (lines([{"id": 1, "body": "x"}]), "line 1: there is neither a field 'contents'"),
        (lines([{"text": "x"}]), "line 1: field 'title' must be a string, it is missing"),
        (lines([{"text": "x", "title": "t", "id": True}]), "line 1: field 'id'"),
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
