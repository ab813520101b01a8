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
_KEYS = (
    str,
    int,
    float,
    type(None),
)  # hashing tuples that share parts can take for ever


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
            return _build(archive.read(name), lambda pid: _storage(archive, folder, pid))
    except Exception as error:  # a damaged file fails in any way there is
        raise ValueError(f"{path} is not a valid file of torch.save: {error}") from None


def _build(data: bytes, storage: Callable[[Any], Any]) -> Any:
    """What a pickle builds; `storage` resolves persistent ids."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def pop_since(start: int) -> list[Any]:
        items = stack[start:]
        del stack[start:]
        return items

    argument: Any
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        name = opcode.name
        if count > MAX_OPCODES:
            raise ValueError(f"it has more than {MAX_OPCODES:,} opcodes")
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
                stack[-1].update((k, v) for k, v in pairs if isinstance(k, _KEYS))
        elif name in ("REDUCE", "NEWOBJ"):  # a call, which is not made
            arguments, function = stack.pop(), stack.pop()
            stack.append(_result(function, arguments))
        elif name == "BUILD":  # the state of an object that was not made
            stack.pop()
        elif name == "BINPERSID":
            stack.append(storage(stack.pop()))
        elif name not in ("PROTO", "STOP"):
            raise ValueError(f"the opcode {name} is not one that torch writes")
    return stack[-1]


def _result(function: Any, arguments: Any) -> Any:
    """The value in place of a call's result: a tensor's numbers, an empty dict, or None."""
    if function == "collections OrderedDict":
        return {}
    if function != _TENSOR:
        return None
    values, offset, size, stride, *_ = arguments
    if isinstance(values, np.ndarray) and len(size) == 1 and stride == (1,) and offset >= 0:
        return values[offset : offset + size[0]].tolist()
    return None


def _storage(archive: zipfile.ZipFile, folder: str, pid: Any) -> Any:
    """A storage by its persistent id: ("storage", class, key, device, number of elements)."""
    _, kind, key, *_ = pid
    if kind not in _STORAGES:
        return None
    values = np.frombuffer(archive.read(f"{folder}{key}"), _STORAGES[kind])
    if kind == "torch BFloat16Storage":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values
