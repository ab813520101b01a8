"""What `torch.save` wrote, as plain data: without torch, and without unpickling anything.

Such a file is a zip with a pickle in it, which is a program for a stack machine. The standard
library's `pickletools.genops` decodes its opcodes without running them; the machine here builds
lists, dicts, tuples, texts and numbers from them, and turns a tensor of one dimension into a list.
It cannot call anything: the result of a call is None. `torch.load(weights_only=True)` would need
torch, which an analyzer alone does not install, and is an unpickler all the same.
Format: PyTorch's `torch/serialization.py` (1.6 and later).
"""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ZIP = b"PK\x03\x04"
MAX_PICKLE = 256 << 20  # bytes; the numbers of tensors lie outside of the pickle
MAX_OPCODES = 20_000_000
MAX_CONTAINERS = 2_000_000
MAX_NUMBERS = 50_000_000  # of all tensors together, as Python's own
MAX_STORAGES = 1 << 30  # bytes of the storages that are referred to

# Class of a storage → its numbers; bfloat16 is the upper half of a float32.
_STORAGES = {
    "torch DoubleStorage": "<f8",
    "torch FloatStorage": "<f4",
    "torch HalfStorage": "<f2",
    "torch BFloat16Storage": "<u2",
    "torch LongStorage": "<i8",
    "torch IntStorage": "<i4",
    "torch ShortStorage": "<i2",
    "torch CharStorage": "<i1",
    "torch ByteStorage": "<u1",
    "torch BoolStorage": "?",
}
_TENSOR = "torch._utils _rebuild_tensor_v2"
_VALUES: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple,
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
}  # fmt: skip
_ARGUMENTS = ("BININT", "BININT1", "BININT2", "BINFLOAT", "BINUNICODE", "LONG1", "GLOBAL")
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_CONTAINERS = frozenset(("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "MARK", *_TUPLES))
_DISTINCT = 1 << 60  # integers below it have hashes of their own


def load(path: Path) -> Any:
    """The object in a file. Raises ValueError if it is no such file, or damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = [n for n in archive.namelist() if n.endswith("/data.pkl")]
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise ValueError("its entries are compressed, and torch compresses none")
            if archive.getinfo(name).file_size > MAX_PICKLE:
                raise ValueError(f"its pickle is larger than {MAX_PICKLE >> 20} MiB")
            folder = name.removesuffix("data.pkl") + "data/"
            return _build(archive.read(name), _Storages(archive, folder))
    except Exception as error:  # a damaged file fails in any way there is
        raise ValueError(f"{path} is not a valid file of torch.save: {error}") from None


def _build(data: bytes, storages: _Storages) -> Any:
    """What a pickle builds."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    containers = 0

    def pop_since(start: int) -> list[Any]:
        items = stack[start:]
        del stack[start:]
        return items

    argument: Any
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        name = opcode.name
        if count > MAX_OPCODES:
            raise ValueError(f"it has more than {MAX_OPCODES:,} opcodes")
        containers += name in _CONTAINERS
        if containers > MAX_CONTAINERS:
            raise ValueError(f"it has more than {MAX_CONTAINERS:,} lists, dicts and tuples")
        if name in _ARGUMENTS:
            stack.append(argument)
        elif name in _VALUES:
            stack.append(_VALUES[name]())
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "MARK":
            marks.append(len(stack))
        elif name == "TUPLE":
            stack.append(tuple(pop_since(marks.pop())))
        elif name in _TUPLES:
            stack.append(tuple(pop_since(len(stack) - _TUPLES[name])))
        elif name in ("APPENDS", "APPEND"):
            items = pop_since(marks.pop() if name == "APPENDS" else len(stack) - 1)
            if isinstance(stack[-1], list):
                stack[-1].extend(items)
        elif name in ("SETITEMS", "SETITEM"):
            items = pop_since(marks.pop() if name == "SETITEMS" else len(stack) - 2)
            if isinstance(stack[-1], dict):
                pairs = zip(items[::2], items[1::2], strict=True)
                stack[-1].update((k, v) for k, v in pairs if _is_key(k))
        elif name in ("REDUCE", "NEWOBJ"):  # a call, which is not made
            arguments, function = stack.pop(), stack.pop()
            stack.append(_result(function, arguments, storages))
        elif name == "BUILD":  # the state of an object that was not made
            stack.pop()
        elif name == "BINPERSID":
            stack.append(storages.of(stack.pop()))
        elif name not in ("PROTO", "STOP"):
            raise ValueError(f"the opcode {name} is not one that torch writes")
    return stack[-1]


def _is_key(value: Any) -> bool:
    """Whether a dict may have it as a key: hashing tuples that share parts can take for ever, and
    so can a dict of large integers that were chosen to have the same hash."""
    return isinstance(value, str) or (type(value) is int and abs(value) < _DISTINCT)


def _result(function: Any, arguments: Any, storages: _Storages) -> Any:
    """The value in place of a call's result: a tensor's numbers, an empty dict, or None."""
    if function == "collections OrderedDict":
        return {}
    if function != _TENSOR:
        return None
    values, offset, size, stride, *_ = arguments
    if isinstance(values, np.ndarray) and len(size) == 1 and stride == (1,) and offset >= 0:
        return storages.numbers(values[offset : offset + size[0]])
    return None


class _Storages:
    """The numbers of a file's tensors. A pickle may refer to the same ones any number of times."""

    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        self._archive, self._folder = archive, folder
        self._read: dict[tuple[str, str], np.ndarray] = {}
        self._bytes = self._given = 0

    def of(self, pid: Any) -> np.ndarray | None:
        """By its persistent id: ("storage", class, key, device, number of elements)."""
        _, kind, key, *_ = pid
        if not (isinstance(kind, str) and isinstance(key, str) and kind in _STORAGES):
            return None
        if (kind, key) not in self._read:
            entry = self._archive.getinfo(f"{self._folder}{key}")
            self._bytes += entry.file_size
            if self._bytes > MAX_STORAGES:
                raise ValueError(f"its tensors are larger than {MAX_STORAGES >> 30} GiB")
            values = np.frombuffer(self._archive.read(entry), _STORAGES[kind])
            if kind == "torch BFloat16Storage":
                values = (values.astype(np.uint32) << 16).view(np.float32)
            self._read[kind, key] = values
        return self._read[kind, key]

    def numbers(self, values: np.ndarray) -> list[Any]:
        self._given += len(values)
        if self._given > MAX_NUMBERS:
            raise ValueError(f"its tensors have more than {MAX_NUMBERS:,} numbers")
        return values.tolist()
