"""Records of a text: the numbers of one step, on one line or several, in any layout.

A record begins with a dictionary, a table row, or a line that names its step. The following lines
belong to it while they can be nothing else: the rest of a wrapped line, or entries below each
other, nested or in a table of names and values. Names may have several words; a value may be a
fraction, a list, or have a unit. Text written by a model can look the same; `console` decides which
shapes of a file are its metrics.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ..core.terminal import ESCAPES
from ..storage.json_files import parse
from .mapping import meaning
from .metrics import StepReader, inner, numbers
from .progress_bar import Bars
from .reading import is_lost_to_rounding, number
from .source import Findings

MAX_TEXT = 1 << 20  # characters of a record that is wrapped
_LINES = 2000  # of such a record
_NAME = 100  # characters of a name, and …
_WORDS = 6  # … its words
_WRAPPED = 1 << 12  # characters of a line that is read again with its wrapped rest
_WIDE = 40  # characters of a line that may have been wrapped, at least
_MOST_NAMES = 10_000
_APART = 200  # lines that are no metrics, after which a record has ended

_NUM = (r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
        r"|[nN]a[nN]\b|[iI]nf(?:inity)?\b)")
_NUMBER = re.compile(_NUM)
_VALUE = re.compile(
    r"\s?[:=]\s{0,40}(?:\[(?P<list>[^\[\]]{0,100000})\]"
    r"|(?:['\"]?(?:np\.\w{1,12}|(?:torch\.)?tensor)\()?['\"]?(?P<num>" + _NUM + ")"
    r"(?:, (?:device|dtype|grad_fn)=[^)]{0,80})?['\")]{0,3}"
    r"(?:\s?/\s{0,4}(?P<of>\d[\d.]*))?(?:\s?(?:±|\+/-)\s?" + _NUM + ")?"
    r"(?P<unit>\s?%|[A-Za-zµ]{1,6}(?:/\w{1,12})?)?"
    r"(?:\s[A-Za-z]{1,12}(?:/[a-z]{1,12})?(?=\s*(?:[|,;)]|$)))?(?![\w:]|[-./]\d))"
)
_VERL = re.compile(r"(?:^|[^\w/])step:(\d{1,10})(?:(?=\s*-?\s*$)| - (?=[\w@./-]+:))")
_FRAGMENT = re.compile(r"\s*(?:-\s+)?[\w@./:+()-]+(?:\s+-\s+[\w@./:+()-]+)*\s*-?\s*")
_SLASHED = re.compile(r"\s*[a-z][\w@.-]*/[\w@./-]+:(?:np\.\w{1,12}\()?" + _NUM + r"\)?(?:\s|$)")
_WHOLE = re.compile(r":" + _NUM + r"\)?$")
_ENTRIES = re.compile(r"\s*-\s+|\s+-\s*")
_NUMPY = re.compile(r"\bnp\.\w+\(|\)")
_ENTRY = re.compile(r"'([^']{1,200})': (?:np\.\w+\()?'?([-+\w.]+)'?\)?")
_OPENS = re.compile(r"\{\s*(?:$|['\"][^'\"]{1,200}['\"]\s*:)")
_BEFORE = re.compile(  # what a dictionary is the step of: rollout 3: {…}
    r"(?<![\w./])(?!(?:rank|worker|gpu|pid|node|device|process|thread|line|id)\b)"
    r"([A-Za-z][\w-]{0,40})[\s:=#]{1,3}(\d{1,10})(?:\s?/\s?\d{1,10})?\]?\s*:?\s*$"
)
_STEP = re.compile(
    r"(?i)(?<![\w/.])(?<!per )(?:(?:global|train(?:ing)?|learning)[_ ])?"
    r"(?:step|iter(?:ation)?)\b[\s:=#\[(]{0,12}(\d{1,10})(?!\.?\d)(?:\s*(?:/|of)\s*(\d{1,10}))?"
)
_IN_EPOCH = re.compile(  # of an epoch: Epoch:[2/3](7/9751)
    r"(?i)\bepoch\W{0,3}(\d{1,6})\s*/\s*(\d{1,6})\W{1,4}(?:(?:step|iter|batch)\W{0,3})?"
    r"(\d{1,10})\s*/\s*(\d{1,10})"
)
_COUNT = re.compile(r"(?:^|\])\s*\[?(\d{1,10})/(\d{1,10})(?:\s*\||\])")  # without a word for it
_OTHER = re.compile(r"(?i)(?<![\w/.])(?:rollout|update|episode|round|batch|epoch)\b[\s:=#\[(]{0,4}"
                    r"(\d{1,10})(?!\.?\d)(?:\s*(?:/|of)\s*(\d{1,10}))?")
_BAR = re.compile(r"\d{1,3}%\|[^|\r]{0,300}\|\s*(\d{1,10})/(\d{1,10}) \[([^\]]{0,500})\]")
_MAY_BE_HEADER = re.compile(r"(?i)\b(?:step|iter|update|epoch)")
_BULLETS = re.compile(r"^[^\w({\['\"<]+")
_PLAIN = re.compile(r"[a-z][\w.@/-]*")
_RATE = re.compile(r"(?:it/s|s/it)\s*,\s*")
_RAY = re.compile(r"^\s*\([\w.:-]+ (?:pid|rank)=[^)]{1,80}\)\s?")
_LOGGER = re.compile(
    r"(?:\s*\[?\d{4}[-/]\d\d[-/]\d\d[T ,]\d\d:\d\d:\d\d[^\s\]]*\]?[\s|:-]*)?"
    r"(?:\s*\[?(?:INFO|DEBUG|WARNING|SUCCESS)\]?[\s|:-]+)?(?:\[?[\w./-]+\.py:\d+\]?[\s|:-]*)?"
)
_BARS = str.maketrans("│┃║┆¦", "|||||")
_RULE = re.compile(r"[\s|+=*#~_─━═┄┅┼┤├╪╇╋┏┓┗┛┡┩┳┻┬┴┌┐└┘╭╮╰╯╒╕╘╛╞╡:-]*")
_DECORATION = " \t=-#*~_[]<>()|:.!▶►•·—–─━═│┃"
_HEADING = re.compile(r"([^\W\d][\w .@/-]{0,60})(?::|/)")
_EPOCH = re.compile(r"(?i)\bepoch\W{0,3}(\d{1,6}\.\d{1,12})(?![\w.])")
_TOTAL = re.compile(rb"Total training steps: (\d{1,10})")
_DIGIT = re.compile(rb"\d")
_PLANNED = re.compile(r"max_steps['\"]: ['\"]\d{1,10}/(\d{1,10})")  # ms-swift's
_GAP = re.compile(r"[ \t]{2,}\.*[ \t]*|\.{3,}\s*|\t")
_STEPS = frozenset(("step", "steps", "iter", "iteration", "iterations", "global_step",
                    "train_step", "training_step"))
_STEP_CELLS = _STEPS | {"update", "epoch"}
_STATISTICS = frozenset(("mean", "avg", "average", "std", "min", "max", "median", "value"))


@dataclass
class Record:
    """The numbers of a step. Records that a program prints alike have the same `shape`."""

    shape: str
    values: dict[str, float]
    step: int | None = None
    total: int | None = None  # planned steps, where they stand beside it
    epoch: tuple[int, int] | None = None  # that a step is counted in, and how many there will be
    place: int = 0  # among the marks of the progress bars
    texts: int = 0  # values that are not numbers


def _numbers(entries: Iterable[tuple[str, str]], findings: Findings) -> dict[str, float]:
    """Names and numbers; entries without a number are counted."""
    values: dict[str, float] = {}
    for name, text in entries:
        if is_lost_to_rounding(name, text, findings):
            continue
        if (value := number(text)) is None:
            findings.skip("metrics whose value is not a number")
        elif name:
            values[name] = value
    return values


def verl_values(text: str, is_complete: bool, findings: Findings) -> dict[str, float]:
    """Names and numbers of `a/b:1 - c:2`."""
    text = _NUMPY.sub("", text) if "np." in text else text
    entries = text.strip().removeprefix("- ").split(" - ")
    if not is_complete and len(entries) > 1:
        entries.pop()  # its number may lack digits
        findings.skip("last metrics of a line that is half written")
    return _numbers((entry.rpartition(":")[::2] for entry in entries), findings)


def pairs(text: str, findings: Findings | None = None) -> tuple[dict[str, float], str]:
    """Names and numbers of `loss: 0.1 | reward mean = 3/4`, and the remaining text."""
    values: dict[str, float] = {}
    findings = Findings() if findings is None else findings
    rest, end = [], 0
    for match in _VALUE.finditer(text):
        before = text[end : match.start()]
        name = _name(before[-_NAME:], match[0].startswith("="))
        if not name:
            continue
        rest.append(before[: before.rindex(name)])
        end = match.end()
        if is_lost_to_rounding(name, match["num"] or "", findings):
            continue
        if (value := _value(match)) is not None:
            values[name] = value
    rest.append(text[end:])
    return values, " ".join(rest).strip(" \t'\"{}" + _DECORATION + ",;")


def _name(text: str, is_tight: bool) -> str:
    """The name at the end of a text: its last words, or the last one if `=` follows directly."""
    text = text.rstrip("'\" \t")
    if text.endswith(")"):
        text = text.rpartition("(")[0].rstrip()  # a unit
    text = re.split(r"[|,;(){}\[\]\t'\"•·▶►]|\s{2,}|\s-\s|^-\s", text)[-1].strip()
    words = text.split(" ")
    while len(words) > 1 and not words[0][:1].isalpha():
        words.pop(0)
    text = " ".join(words)
    text = words[-1] if is_tight or len(words) > _WORDS else text
    return text if text and text[0].isalpha() else ""


def _value(match: re.Match[str]) -> float | None:
    if (content := match["list"]) is not None:
        if _NUMBER.sub("", content).strip(" ,'\"\t"):
            return None
        items = [float(n.replace(",", "")) for n in re.split(r",\s*|\s+", re.sub(
            r"['\"]", "", content)) if n]
        return sum(items) / len(items) if items else None
    value = float(match["num"].replace(",", ""))
    if (of := match["of"]) is not None:
        return value / total if (total := number(of)) else None
    unit = (match["unit"] or "").strip()
    if unit == "%":
        return value / 100
    return None if unit else value


@dataclass
class _Open:
    """A record that may continue."""

    kind: str  # "verl", "dict" or "block"
    record: Record
    text: str = ""  # as far as it may be wrapped
    is_headed: bool = False  # by a line that names its step
    lines: int = 0
    apart: int = 0  # lines since the last that belonged to it
    headings: list[tuple[int, str]] = field(default_factory=list)  # indent and name


class Reader:
    """Takes the lines of a text in order and returns its records."""

    def __init__(self, findings: Findings, mark: bytes | None = None) -> None:
        """mark: text that the first line of each record contains, if all are verl's or
        dictionaries."""
        self._findings, self._mark = findings, mark
        self.bars = Bars()
        self._open: _Open | None = None
        self._header: list[str] | None = None  # the names of a table

    def records(self, lines: Iterable[tuple[bytes, bool]]) -> Iterator[Record]:
        for line, is_complete in lines:
            self.bars.saw(line)
            if self._mark is not None and self._open is None and self._mark not in line:
                continue
            if self._open is None and not _DIGIT.search(line) and b"{" not in line:
                if b":" not in line and b"|" not in line and b"te" not in line.lower():
                    continue
            elif total := _TOTAL.search(line):
                self._findings.planned_steps = int(total[1])
            for part in ESCAPES.sub("", line.decode("utf-8", "replace")).split("\r"):
                yield from self._line(part, is_complete)
        yield from self._verl_done()
        yield from self._close()

    def _close(self) -> Iterator[Record]:
        """Close the open record as it is."""
        was, self._open = self._open, None
        if was is None:
            return
        if was.kind == "dict":
            self._findings.skip("printed dictionaries that are cut")
        elif was.record.values:
            yield was.record

    def _record(
        self, shape: str, values: dict[str, float], step: int | None = None,
        total: int | None = None, epoch: tuple[int, int] | None = None,
    ) -> Record:
        return Record(shape, values, step, total, epoch, self.bars.mark())

    def _line(self, text: str, is_complete: bool) -> Iterator[Record]:
        text = text[ray.end() :] if (ray := _RAY.match(text)) else text
        if self._open and self._open.kind == "dict":
            if (records := self._more_of_dict(text)) is not None:
                yield from records
                return
            yield from self._close()
        if (verl := _VERL.search(text)) and int(verl[1]) < 2**31:
            yield from self._verl_done()
            yield from self._close()
            self._open = _Open("verl", self._record("verl", {}, int(verl[1])))
            yield from self._verl(text[verl.end() :], is_complete)
            return
        if self._open and self._open.kind == "verl":
            if self._is_rest_of_verl(text):
                yield from self._verl(text, is_complete)
                return
            yield from self._verl_done()
        if "{" in text and _OPENS.search(text):
            is_open = text.count("{") > text.count("}")
            record = self._record("dict", {}) if is_open else self._dictionary(text)
            if record is not None:
                above = self._open
                is_below = above is not None and above.is_headed and not above.apart
                if above and is_below and record.step is None and not above.record.values:
                    record.step, record.shape = above.record.step, f"dict {above.record.shape}"
                yield from self._close()
                if is_open:
                    self._open = _Open("dict", record, text)
                else:
                    yield record
                return
        if self._mark is None:
            yield from self._other(text.translate(_BARS))

    # -- dictionaries -----------------------------------------------------------------------------

    def _more_of_dict(self, text: str) -> list[Record] | None:
        """The records that a line completes; None if it does not belong to the dictionary."""
        was = self._open
        assert was is not None
        was.lines += 1
        if _OPENS.match(text.lstrip()) and not was.text.rstrip().endswith((":", "[", ",")):
            return None
        if not re.search(r"['\"\]}:]|^\s*[-+\d.eE]+,?\s*$", text) or _VERL.search(text):
            return None
        if "{" in text and _BEFORE.search(text.partition("{")[0]):
            return None
        if was.lines > _LINES or len(was.text) + len(text) > MAX_TEXT:
            return None
        was.text += text
        if was.text.count("{") > was.text.count("}"):
            return []
        self._open = None
        if (record := self._dictionary(was.text, was.record.place)) is None:
            return []
        if record.step is None:
            record.step, record.shape = was.record.step, was.record.shape
        return [record]

    def _dictionary(self, text: str, place: int | None = None) -> Record | None:
        """The record of a text with a dictionary; it has no step if none is in or before the
        dictionary."""
        begins, ends, nothing = text.find("{"), text.rfind("}"), Findings()
        if ends < begins:
            return None
        inside, before = text[begins : ends + 1], text[:begins]
        try:
            row = parse(inside.encode("utf-8", "replace"))
        except ValueError:
            row = _numbers(_ENTRY.findall(inside), nothing)
        if not isinstance(row, dict):
            return None
        shape, pair = "dict", StepReader().of(row)
        if pair is None and (match := _BEFORE.search(before)):
            shape, pair = f"dict {match[1].lower()}", ("", int(match[2]))
        elif pair is None and (match := _STEP.search(before)):
            pair = "", int(match[1])
        values = numbers(inner(row), nothing, {pair[0]} if pair else ())
        if not values or (pair and pair[1] >= 2**31):
            return None
        place = self.bars.mark() if place is None else place
        total = int(of[1]) if (of := _PLANNED.search(inside)) else None
        step, left_out = pair[1] if pair else None, nothing.skipped.total()
        return Record(shape, values, step, total, place=place, texts=left_out)

    # -- verl -------------------------------------------------------------------------------------

    def _verl(self, text: str, is_complete: bool) -> Iterator[Record]:
        was = self._open
        assert was is not None
        if text.startswith("- "):
            text = f" {text}"
        elif _SLASHED.match(text) and _WHOLE.search(was.text[-_NAME:].rstrip()):
            text = f" - {text.lstrip()}"
        was.text += text
        was.lines += 1
        if not is_complete or len(was.text) > MAX_TEXT or was.lines > _LINES:
            yield from self._verl_done(is_complete)

    def _verl_done(self, is_complete: bool = True) -> Iterator[Record]:
        was = self._open
        if was is None or was.kind != "verl":
            return
        self._open = None
        if not was.text.strip():  # step:12 may head a block, too
            was.record.shape = "block"
            self._open = _Open("block", was.record)
            return
        text = _ENTRIES.sub(" - ", was.text) if was.lines > 1 else was.text
        was.record.values = verl_values(text, is_complete, self._findings)
        if was.record.values:
            yield was.record
        else:
            self._findings.skip("metric lines without a metric")

    def _is_rest_of_verl(self, text: str) -> bool:
        """Whether a line continues a wrapped verl line or adds a metric."""
        assert self._open is not None
        if not text.strip() or not _FRAGMENT.fullmatch(text):
            return False
        before = self._open.text[-_NAME:].rstrip()
        if re.match(r"\s*-\s", text) or not before:
            return ":" in text and text.lstrip().startswith("-")
        if _WHOLE.search(before):  # but it may lack digits
            if _SLASHED.match(text):
                return True
            is_wide = len(before) >= _WIDE
            return is_wide and bool(re.match(r"[\d.eE+-]+\)?(?:\s+-\s|\s*$)", text))
        return True

    # -- everything else --------------------------------------------------------------------------

    def _other(self, text: str) -> Iterator[Record]:
        if "%|" in text:
            for bar in _BAR.finditer(text):
                yield from self._bar(bar)
            text = _BAR.sub("", text)
        if _RULE.fullmatch(text):
            return
        if (row := self._row(text)) is not None:
            yield from self._close()
            yield from row
            return
        text = text[logger.end() :] if (logger := _LOGGER.match(text)) else text
        block = self._open
        if block is not None and self._is_rest_of_line(block, text):
            return
        step = _step(text)
        if step is not None and step.is_entry:
            yield from self._add("step", float(step.number), text, step.total)
        elif step is not None and (record := self._headed(text, step)):
            yield from self._close()
            self._open = _Open("block", record, text if record.values else "", is_headed=True)
        elif (entries := self._entries(text)) is not None:
            for name, value in entries:
                yield from self._add(name, value, text)
        elif (epoch := _EPOCH.search(text)) and (values := pairs(text)[0]):
            yield from self._close()
            yield self._record("epoch", {**values, "epoch": float(epoch[1])})
        elif block is not None:
            block.apart, block.text = block.apart + 1, ""
            if block.apart > _APART:
                yield from self._close()

    def _bar(self, match: re.Match[str]) -> Iterator[Record]:
        """The entries behind a progress bar: loss=0.1, reward=0.5."""
        rate = _RATE.search(match[3])
        values = pairs(match[3][rate.end() :])[0] if rate else {}
        if values and int(match[1]) < 2**31:
            yield self._record("bar", values, int(match[1]), int(match[2]))

    def _row(self, text: str) -> list[Record] | None:
        """The records of a table row; empty for the header, None for another line."""
        if self._header is None and not _MAY_BE_HEADER.search(text):
            return None
        cells = _cells(text)
        if len(cells) > 2 and all(cell[:1].isalpha() or cell == "#" for cell in cells):
            names = [re.sub(r"\s*/\s*", "/", cell) for cell in cells]
            if not any(n.lower() in _STEP_CELLS for n in names) or not any(map(meaning, names)):
                return None
            self._header = names
            return []
        if self._header is None:
            return None
        if len(cells) != len(self._header):
            cells = text.split()
        if len(cells) != len(self._header):
            return None
        row = dict(zip(self._header, cells, strict=True))
        for name in sorted(row, key=lambda n: n.lower() not in _STEPS):
            step, _, total = row[name].replace(" ", "").partition("/")
            if name.lower() in _STEP_CELLS and step.isdecimal() and int(step) < 2**31:
                values = {n: v for n, cell in row.items()
                          if n != name and (v := number(cell.replace(",", ""))) is not None}
                of = int(total) if total.isdecimal() else None
                return [self._record("table", values, int(step), of)] if values else []
        return None

    def _headed(self, text: str, step: _Step) -> Record | None:
        """The record that begins at a line that names its step; None if the line is prose or the
        step is already open."""
        before, after = text[: step.begins], text[step.ends :]
        values = pairs(after, self._findings)[0] or _by_commas(after) or pairs(before)[0]
        block = self._open
        is_known = block and block.is_headed and block.record.step == step.number
        if not values and (is_known or len(re.findall(r"[^\W\d]{2,}", before + after)) > _WORDS):
            return None
        around = _NUMBER.sub("#", text[max(0, step.begins - 40) : step.ends].lower())
        shape = re.sub(r"\s+", " ", around)
        return self._record(shape, values, step.number, step.total, step.epoch)

    def _is_rest_of_line(self, block: _Open, text: str) -> bool:
        """Whether a line continues the wrapped line before it; then both are read again as one
        line, with or without a space between them."""
        before = block.text.rstrip()
        if not _WIDE <= len(before) <= _WRAPPED or _step(text):
            return False
        more = pairs(text)[0]
        tail = re.split(r"[|,;]", before)[-1].strip()
        is_cut = bool(tail) and not pairs(tail)[0]
        goes_on = bool(re.match(r"\s*[|,;]\s", text)) or bool(re.match(r"[\d.eE]", text))
        if not (more or goes_on) or not (is_cut or goes_on):
            return False
        choices = []
        for whole in (before + text, f"{before} {text}"):
            step = _step(whole)
            values = pairs(whole[step.ends :] if step else whole)[0]
            choices.append((sum(map(bool, map(meaning, values))), values, whole))
        n_signals, values, whole = max(choices, key=lambda choice: choice[0])
        apart = sum(map(bool, map(meaning, {**block.record.values, **more})))
        if n_signals < apart:
            return False
        block.record.values, block.text = values, whole
        return True

    def _entries(self, text: str) -> list[tuple[str, float | None]] | None:
        """Names and numbers of a line of entries; a heading has no number."""
        bare = _BULLETS.sub("", text.strip().strip("|").strip())
        if not bare or len(bare) > 4000:
            return None
        if "|" in text:
            cells = _cells(text)
            if len(cells) == 2 and not cells[1] and cells[0][:1].isalpha():
                return [(cells[0], None)]
            if len(cells) % 2 == 0 and all(cell[:1].isalpha() for cell in cells[::2]):
                values = [number(cell.replace(",", "")) for cell in cells[1::2]]
                if any(value is not None for value in values):
                    both = zip(cells[::2], values, strict=True)
                    return [(name, value) for name, value in both if value is not None]
        if heading := _HEADING.fullmatch(bare):
            return [(heading[1], None)]
        entries, rest = pairs(bare)
        if entries and not re.search(r"[^\W\d_]", rest):
            return list(entries.items())
        parts = _GAP.split(bare) if self._open else []
        if len(parts) == 2 and parts[0][:1].isalpha():
            value = number(parts[1].strip().replace(",", ""))
            return None if value is None else [(parts[0].rstrip(" :="), value)]
        return None

    def _add(
        self, name: str, value: float | None, text: str, total: int | None = None
    ) -> Iterator[Record]:
        """Add an entry to the open block, or begin a block with it if its name repeats (unless a
        step line began the block)."""
        block = self._open or _Open("block", self._record("block", {}))
        self._open = block
        indent = len(text) - len(text.lstrip(" \t|"))
        while block.headings and block.headings[-1][0] >= indent:
            block.headings.pop()
        if value is None:
            block.headings.append((indent, name.rstrip("/")))
            return
        above = [heading for _, heading in block.headings]
        if above and (all(map(_PLAIN.fullmatch, above)) or name.lower() in _STATISTICS):
            name = "/".join([*above, name])
        is_step = name.lower().replace(" ", "_").rpartition("/")[2] in _STEPS
        record = block.record
        if record.step is not None if is_step else name in record.values:
            if block.is_headed:
                return
            yield from self._close()
            block = _Open("block", self._record("block", {}), headings=block.headings)
            self._open, record = block, block.record
        block.apart, block.text = 0, ""
        if not is_step:
            if len(record.values) < _MOST_NAMES:
                record.values[name] = value
        elif value.is_integer() and 0 <= value < 2**31:
            record.step, record.total = int(value), total


@dataclass
class _Step:
    """The position of the step in a text, the step, and the planned number of steps."""

    begins: int
    ends: int
    number: int
    total: int | None
    epoch: tuple[int, int] | None = None
    is_entry: bool = False  # `step: 12`, which is one of the entries of a block


def _step(text: str) -> _Step | None:
    if match := _IN_EPOCH.search(text):
        epoch, epochs, step, planned = map(int, match.groups())
        return _Step(match.start(), match.end(), step, planned, (epoch, epochs))
    match = _STEP.search(text) or _COUNT.search(text) or _OTHER.search(text)
    if match is None or int(match[1]) >= 2**31:
        return None
    rest = (text[: match.start()] + text[match.end() :]).strip(_DECORATION + "'\",")
    is_entry = not rest and match.re is _STEP and re.search(r"[:=]", match[0]) is not None
    total = int(match[2]) if match[2] else None
    return _Step(match.start(), match.end(), int(match[1]), total, is_entry=is_entry)


def _cells(text: str) -> list[str]:
    """The cells of a row, for any separator."""
    stripped = text.strip()
    if "|" in stripped:
        return [cell.strip() for cell in stripped.strip("|").split("|")]
    if "\t" in stripped:
        return [cell.strip() for cell in stripped.split("\t")]
    cells = re.split(r"\s{2,}", stripped)
    return cells if len(cells) > 2 else [c.strip() for c in stripped.split(",")]


def _by_commas(text: str) -> dict[str, float]:
    """Names and numbers of `: Train loss 0.1, Total reward 0.5`."""
    values: dict[str, float] = {}
    if re.fullmatch(r"(?:\W{0,3}[A-Za-z][\w./-]{0,60} " + _NUM + r"){2,100}\s*", text[:4000]):
        text = re.sub(r"(?<=\d) (?=[A-Za-z])", ",", text)
    for part in re.split(r"[,|;]|\s-\s", text.lstrip(":- ")):
        if match := re.fullmatch(r"\s*([A-Za-z][\w ./-]{0,60}?)\s+(" + _NUM + r")\s*", part):
            values[match[1]] = float(match[2].replace(",", ""))
    return values
