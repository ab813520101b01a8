"""What `torch.save` wrote, as plain data: without torch, and without running what is in it.

Such a file is a zip with a pickle in it, which is a program for a stack machine. The machine here
knows how to build lists, dicts, tuples, texts and numbers, and turns a tensor of one dimension into
a list; it has no way to call anything. What is none of these becomes None, or the name of it.
Formats: PyTorch's `torch/serialization.py` (1.6 and later) and the opcodes of CPython's
`Lib/pickletools.py`, as far as protocol 2, which torch writes, uses them.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from struct import unpack_from
from typing import Any

import numpy as np

ZIP = b"PK\x03\x04"

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
_CONSTANTS: dict[int, Callable[[], Any]] = {
    ord("}"): dict, ord("]"): list, ord(")"): tuple,
    ord("N"): lambda: None, 0x88: lambda: True, 0x89: lambda: False,
}  # fmt: skip
_NUMBERS = {ord("J"): ("<i", 4), ord("K"): ("<B", 1), ord("M"): ("<H", 2), ord("G"): (">d", 8)}
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}


def load(path: Path) -> Any:
    """The object in a file. Raises ValueError if it is no such file, or damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = [n for n in archive.namelist() if n.endswith("/data.pkl")]
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise ValueError("its entries are compressed, and torch compresses none")
            folder = name.removesuffix("data.pkl") + "data/"
            return _built(archive.read(name), lambda told: _storage(archive, folder, told))
    except Exception as error:  # a damaged one fails in any way there is
        raise ValueError(f"{path} is no sound file of torch: {error}") from None


def _built(data: bytes, storage: Callable[[Any], Any]) -> Any:
    """What a pickle builds."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    at = 2  # after the protocol

    def since_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    while (op := data[at]) != ord("."):
        at += 1
        if op in _NUMBERS:
            code, size = _NUMBERS[op]
            stack.append(unpack_from(code, data, at)[0])
            at += size
        elif op in _CONSTANTS:
            stack.append(_CONSTANTS[op]())
        elif op == ord("q"):
            memo[data[at]] = stack[-1]
            at += 1
        elif op == ord("r"):
            memo[unpack_from("<I", data, at)[0]] = stack[-1]
            at += 4
        elif op == ord("h"):
            stack.append(memo[data[at]])
            at += 1
        elif op == ord("j"):
            stack.append(memo[unpack_from("<I", data, at)[0]])
            at += 4
        elif op == ord("X"):
            end = at + 4 + unpack_from("<I", data, at)[0]
            stack.append(data[at + 4 : end].decode("utf-8", "replace"))
            at = end
        elif op == 0x8A:  # a whole number of so many bytes
            end = at + 1 + data[at]
            stack.append(int.from_bytes(data[at + 1 : end], "little", signed=True))
            at = end
        elif op == ord("("):
            marks.append(len(stack))
        elif op == ord("t"):
            stack.append(tuple(since_mark()))
        elif op in _TUPLES:
            items = stack[-_TUPLES[op] :]
            del stack[-_TUPLES[op] :]
            stack.append(tuple(items))
        elif op in (ord("e"), ord("a")):
            items = since_mark() if op == ord("e") else [stack.pop()]
            if isinstance(stack[-1], list):
                stack[-1].extend(items)
        elif op in (ord("u"), ord("s")):
            items = since_mark() if op == ord("u") else [stack.pop(-2), stack.pop()]
            if isinstance(stack[-1], dict):
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif op == ord("c"):
            module, name = data[at : data.index(b"\n", data.index(b"\n", at) + 1)].split(b"\n")
            stack.append(f"{module.decode()} {name.decode()}")
            at += len(module) + len(name) + 2
        elif op in (ord("R"), 0x81):  # a call, which is not made
            told, called = stack.pop(), stack.pop()
            stack.append(_called(called, told))
        elif op == ord("b"):  # what an object that was not made would be filled with
            stack.pop()
        elif op == ord("Q"):
            stack.append(storage(stack.pop()))
        else:
            raise ValueError(f"opcode {op:#x} is not known")
    return stack[-1]


def _called(called: Any, told: Any) -> Any:
    if called == "collections OrderedDict":
        return {}
    if called != _TENSOR:
        return None
    values, offset, size, stride, *_ = told
    if isinstance(values, np.ndarray) and len(size) == 1 and stride == (1,) and offset >= 0:
        return values[offset : offset + size[0]].tolist()
    return None


def _storage(archive: zipfile.ZipFile, folder: str, told: Any) -> Any:
    """A storage: ("storage", its class, its key, where it lay, how many numbers)."""
    _, kind, key, *_ = told
    if kind not in _STORAGES:
        return None
    values = np.frombuffer(archive.read(f"{folder}{key}"), _STORAGES[kind])
    if kind == "torch BFloat16Storage":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values
