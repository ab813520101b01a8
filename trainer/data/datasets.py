"""Files of questions: Search-R1 and verl, FlashRAG, and plain question and answer.

A file is Parquet, JSON lines or a JSON list, gzipped or not; its first bytes decide, not its name.
Memory holds one row of JSON lines, one batch of Parquet rows, or a whole JSON list. The columns of
a row determine its format (docs/data.md). Every row is checked; an error names the file, the row
(from 1), the column, the value, and the expected form. The content is untrusted and treated as text
only.
"""

from __future__ import annotations

import codecs
import gzip
import io
import random
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import AliasChoices, AliasPath, BaseModel, Field, ValidationError, field_validator
from pydantic.functional_validators import AfterValidator, BeforeValidator

from lldscope.core.errors import UsageError

from .corpus import decode

ANSWERS = ("golden_answers", "answers", "answer")
COLUMNS = frozenset(
    {"data_source", "prompt", "reward_model", "extra_info", "id", "question", "answer_aliases"}
    | {*ANSWERS}
)
"""The columns that are read; others are ignored."""

_BATCH = 512
_UNREADABLE = (OSError, EOFError, zlib.error, pa.ArrowException, ValueError, OverflowError)


@dataclass(frozen=True)
class Question:
    """A question and its accepted answers. `index` is unique within `data_source`. `prompt` has the
    messages ({"role", "content"}) of the data set; None leaves the wording to the environment."""

    text: str
    golds: tuple[str, ...]
    data_source: str
    index: str
    prompt: tuple[dict[str, str], ...] | None = field(default=None, hash=False)

    @property
    def key(self) -> tuple[str, str]:
        """The identity of a question: the group key of its rollouts."""
        return self.data_source, self.index


def read_questions(paths: Sequence[str | Path], *, limit: int = 0) -> list[Question]:
    """The questions of all the files: by data source, in the order of the rows.

    With a `limit`, that many of each data source: those whose index hashes lowest, so the choice
    depends neither on the order of the rows nor on the run's seed, and a file sorted by topic is
    not represented by its first topic.

    A file without a column `data_source` is named after its folder; of several files of one folder
    each is FOLDER/FILE. A row that repeats another is dropped. Raises UsageError for what cannot be
    read, for a bad row, and for two different questions with the same (data_source, index).
    """
    by_source: dict[str, dict[str, tuple[Question, str]]] = {}
    files = [Path(path) for path in paths]
    folders = Counter(path.parent for path in {path.resolve() for path in files})
    for path in files:
        file = path.resolve()
        source = file.parent.name
        if folders[file.parent] > 1:
            source += f"/{file.name.partition('.')[0]}"
        where = ""
        for number, row in _read_rows(path):
            if not where:
                _check_columns(path, row)
            where = f"{path}, row {number}"
            question = _question(where, row, source)
            mine = by_source.setdefault(question.data_source, {})
            other, first = mine.setdefault(question.index, (question, where))
            if other != question:
                raise UsageError(
                    f"{first} and {where} are different questions with the same "
                    f"data_source {shorten(question.data_source)} and index "
                    f"{shorten(question.index)}: give one of them another index"
                )
        if not where:
            raise UsageError(f"{path} holds no questions")
    for mine in by_source.values():
        by_hash = sorted(mine, key=lambda index: blake2b(index.encode(), digest_size=8).digest())
        for index in by_hash[limit:] if limit else ():
            del mine[index]
    return [question for mine in by_source.values() for question, _ in mine.values()]


def _check_columns(path: Path, row: dict[str, Any]) -> None:
    if "reward_model" not in row and not ("question" in row and row.keys() & {*ANSWERS}):
        raise UsageError(
            f"{path} has the columns {shorten(sorted(row), 200)}: expected prompt and reward_model "
            "(Search-R1, verl), or question and golden_answers (FlashRAG), answers or answer"
        )


def _question(where: str, row: dict[str, Any], source: str) -> Question:
    """The question of a row; `source` is its data source if the row names none."""
    form = Verl if "reward_model" in row else Plain
    if row.get("data_source") is None:
        row = row | {"data_source": source}
    try:
        return form.model_validate(row).read()
    except ValidationError as error:
        first = error.errors()[0]
        column = "".join(f"[{x}]" if isinstance(x, int) else f".{x}" for x in first["loc"])[1:]
        missing = first["input"] is None or first["type"] == "missing"
        what = "nothing" if missing else shorten(first["input"])
        raise UsageError(f"{where}, column {column}: found {what}. {first['msg']}") from None


def _check_text(text: str) -> str:
    if not text.strip():
        raise ValueError("text that is not blank is expected")
    return text


Text = Annotated[str, AfterValidator(_check_text)]
Texts = Annotated[
    list[Text], Field(min_length=1),
    BeforeValidator(lambda v: [v] if isinstance(v, str) else v),
]
"""One text or a list of them."""
Index = Annotated[Text, BeforeValidator(lambda v: str(v) if type(v) is int else v)]


class Plain(BaseModel):
    """FlashRAG's form and the plain one; MuSiQue's `answer_aliases` are answers, too."""

    data_source: Text
    question: Text
    answers: Texts = Field(validation_alias=AliasChoices(*ANSWERS))
    answer_aliases: list[Text] | None = None
    id: Index | None = None

    def read(self) -> Question:
        golds = (*self.answers, *(self.answer_aliases or ()))
        return Question(self.question, golds, self.data_source, self.id or self.question)


class Message(BaseModel):
    role: Text
    content: Text


class Verl(BaseModel):
    """Search-R1's and verl's form. The question in plain words comes from a column `question` or
    from `extra_info.question`; a prompt that says only that is no prompt. Without these two it is
    the last message."""

    data_source: Text
    prompt: list[Message] = Field(min_length=1)
    question: Text | None = Field(
        None, validation_alias=AliasChoices("question", AliasPath("extra_info", "question"))
    )
    golds: Annotated[
        Texts, BeforeValidator(lambda v: v.get("target") if isinstance(v, dict) else v)
    ] = Field(validation_alias=AliasPath("reward_model", "ground_truth"))
    answer: Annotated[
        list[Text] | None, BeforeValidator(lambda v: v if isinstance(v, list) else None)
    ] = Field(None, validation_alias=AliasPath("extra_info", "answer"))
    index: Index | None = Field(None, validation_alias=AliasPath("extra_info", "index"))

    @field_validator("prompt")
    @classmethod
    def _ends_with_the_users(cls, messages: list[Message]) -> list[Message]:
        if messages[-1].role != "user":
            raise ValueError("the last message must be the user's")
        return messages

    def read(self) -> Question:
        messages = tuple(message.model_dump() for message in self.prompt)
        text = self.question or messages[-1]["content"]
        bare = self.question and [m["content"].strip() for m in messages] == [text.strip()]
        golds = self.golds
        if len(golds) == 1 and self.answer:  # which may be the list, joined with commas
            golds = self.answer
        return Question(
            text, tuple(golds), self.data_source, self.index or text, None if bare else messages
        )


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

    def draw(self, step: int, n: int, rng: random.Random) -> list[Question]:
        """The step's `n` questions. Raises UsageError if there are fewer than `n`."""
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


def _read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row number from 1, row) of a file; blank lines of JSON lines are counted but left out.
    Raises UsageError with file and row if it cannot be read."""
    number = 0
    try:
        with path.open("rb") as file:
            for number, row in _rows(file):
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
    """A value for an error message: escaped and shortened."""
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "…"


def _rows(file: BinaryIO) -> Iterator[tuple[int, Any]]:
    """The rows of a file. Raises ValueError, in words, for a malformed row or an unknown
    container."""
    head = file.read(4)
    file.seek(0)
    if head == b"PAR1":
        return enumerate(_parquet_rows(file), 1)
    is_gzip = head[:2] == b"\x1f\x8b"
    stream = cast(io.BufferedReader, gzip.GzipFile(fileobj=file) if is_gzip else file)
    start = stream.peek(2**16).removeprefix(codecs.BOM_UTF8).lstrip()
    if start.startswith(b"["):
        return enumerate(decode(stream.read()), 1)
    if start.startswith(b"{") or not start:
        lines = enumerate(stream, 1)
        return ((number, decode(line)) for number, line in lines if not line.isspace())
    raise ValueError(
        f"neither Parquet nor JSON lines nor a JSON list starts with {shorten(start[:20])}"
    )


def _parquet_rows(file: BinaryIO) -> Iterator[Any]:
    parquet = pq.ParquetFile(file)
    names = parquet.schema_arrow.names
    for batch in parquet.iter_batches(_BATCH, columns=[n for n in names if n in COLUMNS] or names):
        yield from batch.to_pylist()
