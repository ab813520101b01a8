"""Files of questions -> questions: Search-R1 and verl, FlashRAG, and plain question and answer.

A file is Parquet, JSON lines or a JSON list, gzipped or not: its first bytes say which, whatever
its name. Memory holds one row of JSON lines, one batch of Parquet rows, or a whole JSON list. The
columns of the first row decide how the rows are read (docs/data.md). Every row is checked; the
error names the file, the row (from 1), the column, what was found and what was expected. What the
files say is other people's text and is treated as text only.
"""

from __future__ import annotations

import gzip
import io
import random
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from lldscope.core.errors import UsageError

from .corpus import decode

Place = tuple[Path, int]
"""A file and a row of it."""

COLUMNS = frozenset(
    {"data_source", "prompt", "reward_model", "extra_info", "id", "question"}
    | {"golden_answers", "answer", "answers", "answer_aliases"}
)
"""What is read; other columns are ignored."""

Row = dict[str, Any]

LONGEST = 2**24
"""Bytes of the longest line that is read."""
_CHUNK = 2**16
_BATCH = 512
_BOM = b"\xef\xbb\xbf"
_UNREADABLE = (OSError, EOFError, zlib.error, pa.ArrowException, ValueError, OverflowError)


@dataclass(frozen=True)
class Question:
    """A question and the answers that count as right.

    `index` is unique within `data_source`. `prompt` has the messages ({"role", "content"}) a data
    set gives; None leaves the wording to the environment.
    """

    text: str
    golds: tuple[str, ...]
    data_source: str
    index: str
    prompt: tuple[dict[str, str], ...] | None = field(default=None, hash=False)

    @property
    def key(self) -> tuple[str, str]:
        """What tells one question from another: the group key of its rollouts."""
        return self.data_source, self.index


def read_questions(paths: Sequence[str | Path], *, limit: int = 0) -> list[Question]:
    """The questions of all the files: by data source, in the order of the rows.

    With a `limit`, that many of each data source: those whose index hashes lowest, so the choice
    depends neither on the order of the rows nor on the run's seed, and a file sorted by topic is
    not represented by its first topic. Every row is read and checked all the same; only the
    chosen ones stay in memory.

    A file without a column `data_source` is named after its folder; of several files of one folder
    each is FOLDER/FILE. A row that repeats another is dropped. Raises UsageError for what cannot be
    read, for a bad row, and for two different questions with the same (data_source, index), if both
    were chosen.
    """
    by_source: dict[str, dict[str, tuple[Question, Place]]] = {}
    files = [Path(path) for path in paths]
    folders = Counter(path.parent for path in {path.resolve() for path in files})
    for path in files:
        alone = folders[path.resolve().parent] == 1
        for place, question in iterate_questions(path, alone=alone):
            mine = by_source.setdefault(question.data_source, {})
            other, first = mine.setdefault(question.index, (question, place))
            if other != question:
                raise UsageError(
                    f"{_where(first)} and {_where(place)} are different questions with the same "
                    f"data_source {shorten(question.data_source)} and index "
                    f"{shorten(question.index)}: give one of them another index"
                )
            if limit and len(mine) >= 2 * limit:
                _keep_lowest(mine, limit)
    for mine in by_source.values():
        if limit:
            _keep_lowest(mine, limit)
    return [question for mine in by_source.values() for question, _ in mine.values()]


def iterate_questions(path: Path, *, alone: bool = True) -> Iterator[tuple[Place, Question]]:
    """The questions of one file with their places, as they are read. `alone`: no other file of its
    folder is read, so the folder's name is enough for a data source. Raises UsageError."""
    file = path.resolve()
    source = file.parent.name if alone else f"{file.parent.name}/{file.name.partition('.')[0]}"
    layout: Callable[[_Cells], Question] | None = None
    for number, row in read_rows(path, COLUMNS):
        layout = layout or _layout(path, row)
        yield (path, number), layout(_Cells((path, number), row, source))
    if layout is None:
        raise UsageError(f"{path} holds no questions")


def _keep_lowest(questions: dict[str, tuple[Question, Place]], n: int) -> None:
    """Keep the `n` questions whose indices hash lowest, in their order."""
    by_hash = sorted(questions, key=lambda index: blake2b(index.encode(), digest_size=8).digest())
    for index in by_hash[n:]:
        del questions[index]


def _where(place: Place) -> str:
    return f"{place[0]}, row {place[1]}"


class _Cells:
    """The cells of one row, each checked as it is taken. Dots lead into nested objects."""

    def __init__(self, place: Place, row: Row, source: str) -> None:
        self._place = place
        self._row = row
        self._source = source

    def bad(self, column: str, value: Any, expected: str) -> UsageError:
        what = "nothing" if value is None else shorten(value)
        return UsageError(
            f"{_where(self._place)}, column {column}: found {what}, expected {expected}"
        )

    def get(self, column: str) -> Any:
        """The cell, None where there is none."""
        value: Any = self._row
        path: list[str] = []
        for name in column.split("."):
            if value is None:
                return None
            if not isinstance(value, dict):
                raise self.bad(".".join(path), value, f"an object with {name}")
            value = value.get(name)
            path.append(name)
        return value

    def text(self, column: str) -> str:
        return self._text(column, self.get(column))

    def _text(self, column: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise self.bad(column, value, "text")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.bad(column, value, "text without lone surrogates") from None
        return value

    def texts(self, column: str) -> tuple[str, ...]:
        """One text or a list of them, at least one."""
        value = self.get(column)
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list) or not value:
            raise self.bad(column, value, "text or a list of at least one text")
        return tuple(self._text(f"{column}[{i}]", v) for i, v in enumerate(value))

    def data_source(self) -> str:
        if self.get("data_source") is not None:
            return self.text("data_source")
        return self._text("data_source", self._source)

    def index(self, column: str, text: str) -> str:
        """A number or text, else the question itself."""
        value = self.get(column)
        if value is None:
            return text
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            raise self.bad(column, value, "text or a whole number")
        return self._text(column, value)

    def messages(self) -> tuple[dict[str, str], ...]:
        """The column `prompt`: chat messages, the last one the user's."""
        value = self.get("prompt")
        if not isinstance(value, list) or not value:
            raise self.bad("prompt", value, "a list of messages, {role, content} each")
        messages = []
        for i, message in enumerate(value):
            if not isinstance(message, dict):
                raise self.bad(f"prompt[{i}]", message, "a message, {role, content}")
            messages.append({name: self._text(f"prompt[{i}].{name}", message.get(name))
                             for name in ("role", "content")})
        if messages[-1]["role"] != "user":
            raise self.bad(f"prompt[{i}].role", messages[-1]["role"], "user in the last message")
        return tuple(messages)


def _layout(path: Path, row: Row) -> Callable[[_Cells], Question]:
    """How to read the rows of a file whose first row is this one."""
    if "reward_model" in row:
        return _verl
    if "question" in row:
        for answers in ("golden_answers", "answers", "answer"):
            if answers in row:
                return lambda cells: _question_and_answers(cells, answers)
    raise UsageError(
        f"{path} has the columns {shorten(sorted(row), 200)}: expected prompt and reward_model "
        "(Search-R1, verl), or question and golden_answers (FlashRAG), answers or answer"
    )


def _verl(cells: _Cells) -> Question:
    """Search-R1's and verl's form. The question in plain words comes from a column `question` or
    from `extra_info.question`; a prompt that says only that is no prompt. Without these two it is
    the last message."""
    messages = cells.messages()
    key = next((c for c in ("question", "extra_info.question") if cells.get(c) is not None), None)
    text = cells.text(key) if key else messages[-1]["content"]
    bare = key and len(messages) == 1 and messages[0]["content"].strip() == text.strip()
    # A ground truth that is one text may be a list joined with commas; extra_info.answer has it.
    golds = "reward_model.ground_truth"
    truth = cells.get(golds)
    if isinstance(truth, dict):
        golds += ".target"
    elif isinstance(truth, str) and isinstance(cells.get("extra_info.answer"), list):
        golds = "extra_info.answer"
    return Question(
        text,
        cells.texts(golds),
        cells.data_source(),
        cells.index("extra_info.index", text),
        None if bare else messages,
    )


def _question_and_answers(cells: _Cells, answers: str) -> Question:
    """FlashRAG's form and the plain one; MuSiQue's `answer_aliases` are answers, too."""
    text = cells.text("question")
    golds = cells.texts(answers)
    if cells.get("answer_aliases"):
        golds += cells.texts("answer_aliases")
    return Question(text, golds, cells.data_source(), cells.index("id", text))


class ShuffledQuestions:
    """A list of questions, in a new order each epoch, `n` per step.

    What a step gets depends on (seed, step, n) alone, so a resumed run needs no state and `rng` is
    not touched. Questions left over at the end of an epoch are dropped, as verl's loader does:
    carried over, one could meet itself in a batch. The next epoch's order has them elsewhere.
    """

    def __init__(self, questions: Sequence[Question], *, seed: int) -> None:
        self._questions = list(questions)
        self._seed = seed
        self._epoch = -1
        self._order: list[int] = []

    def __len__(self) -> int:
        return len(self._questions)

    def draw(self, step: int, n: int, rng: random.Random) -> list[Question]:
        """The step's `n` questions. Raises UsageError if there are fewer than `n` in all."""
        steps = len(self._questions) // n
        if steps == 0:
            raise UsageError(
                f"a step takes {n} questions, the training data holds {len(self._questions)}: "
                "lower prompts or name more data"
            )
        epoch, batch = divmod(step, steps)
        if epoch != self._epoch:
            self._order = list(range(len(self._questions)))
            random.Random(f"{self._seed}|epoch {epoch}").shuffle(self._order)
            self._epoch = epoch
        return [self._questions[i] for i in self._order[batch * n : (batch + 1) * n]]


def read_rows(path: Path, columns: Collection[str]) -> Iterator[tuple[int, Row]]:
    """(row number from 1, row) of a file, blank lines of JSON lines counted but left out.

    Of a Parquet file only `columns` are read, all if it has none of them. Raises UsageError for a
    file that cannot be read, naming it and the row.
    """
    number = 0
    try:
        with path.open("rb") as file:
            for number, row in _rows(file, columns):
                if not isinstance(row, dict):
                    raise UsageError(
                        f"{path}, row {number}: found {shorten(row)}, expected an object"
                    )
                yield number, row
    except FileNotFoundError:
        raise UsageError(f"There is no file {path}") from None
    except _UNREADABLE as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise UsageError(f"{path} cannot be read after row {number}: {reason}") from None


def shorten(value: object, limit: int = 80) -> str:
    """A value for an error message: escaped, and cut where it is long."""
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "…"


def _rows(file: BinaryIO, columns: Collection[str]) -> Iterator[tuple[int, Any]]:
    """Raises ValueError, in words, for what is no row or none of the three kinds."""
    head = file.read(4)
    file.seek(0)
    if head == b"PAR1":
        return enumerate(_parquet_rows(file, columns), 1)
    is_gzip = head[:2] == b"\x1f\x8b"
    stream = cast(io.BufferedReader, gzip.GzipFile(fileobj=file) if is_gzip else file)
    start = stream.peek(_CHUNK).removeprefix(_BOM).lstrip()
    if start.startswith(b"["):
        return enumerate(decode(stream.read()), 1)
    if start.startswith(b"{") or not start:
        return _line_rows(stream)
    raise ValueError(
        f"neither Parquet nor JSON lines nor a JSON list starts with {shorten(start[:20])}"
    )


def _parquet_rows(file: BinaryIO, columns: Collection[str]) -> Iterator[Any]:
    parquet = pq.ParquetFile(file)
    names = parquet.schema_arrow.names
    selection = [name for name in names if name in columns] or names
    for batch in parquet.iter_batches(_BATCH, columns=selection):
        yield from batch.to_pylist()


def _line_rows(stream: BinaryIO) -> Iterator[tuple[int, Any]]:
    number = 0
    while line := stream.readline(LONGEST + 1):
        number += 1
        if len(line) > LONGEST:
            raise ValueError(f"the next one is longer than {LONGEST} bytes")
        if not line.isspace():
            yield number, decode(line)
