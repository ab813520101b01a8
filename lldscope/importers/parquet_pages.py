"""What the pages of a Parquet file say that they unpack to.

Arrow gives a page the memory that its header asks for, whatever the file's footer declares, so the
headers are looked at first. They are structs of Thrift's compact protocol; only the two sizes of
`PageHeader` matter. Formats: apache/parquet-format's `parquet.thrift`, apache/thrift's
`doc/specs/thrift-compact-protocol.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

_HEADER = 1 << 16  # bytes of a header at most; it may hold the smallest and the largest value
_DEPTH = 8
_TRUE, _FALSE, _I8, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_UNPACKED, _PACKED = 2, 3  # fields of PageHeader


def unpacked_sizes(file: BinaryIO, column: Any) -> Iterator[int]:
    """What each page of a column chunk (`pyarrow.parquet.ColumnChunkMetaData`) unpacks to.

    Raises ValueError where there is no header of a page.
    """
    starts = [column.data_page_offset, column.dictionary_page_offset or column.data_page_offset]
    at = min(starts)
    end = at + column.total_compressed_size
    while at < end:
        file.seek(at)
        header = _Reader(file.read(_HEADER))
        sizes = header.numbers()
        unpacked, packed = sizes.get(_UNPACKED, -1), sizes.get(_PACKED, -1)
        if unpacked < 0 or packed < 0:
            raise ValueError("a page without its sizes")
        yield unpacked
        at += header.at + packed


class _Reader:
    """Reads one struct; `at` is where it ends."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def numbers(self) -> dict[int, int]:
        """The whole numbers of a struct by field; all else is skipped."""
        found: dict[int, int] = {}
        for field, kind in self._fields():
            if kind in (_I16, _I32, _I64):
                found[field] = self._zigzag()
            else:
                self._skip(kind, 0)
        return found

    def _fields(self) -> Iterator[tuple[int, int]]:
        field = 0
        while byte := self._byte():
            field = field + (byte >> 4) if byte >> 4 else self._zigzag()
            yield field, byte & 15

    def _skip(self, kind: int, depth: int, in_list: bool = False) -> None:
        if depth > _DEPTH:
            raise ValueError("a header that is nested too deep")
        if kind in (_TRUE, _FALSE, _I8):
            self.at += 1 if in_list or kind == _I8 else 0
        elif kind in (_I16, _I32, _I64):
            self._varint()
        elif kind == _DOUBLE:
            self.at += 8
        elif kind == _BINARY:
            size = self._varint()
            self.at += size
        elif kind in (_LIST, _SET):
            head = self._byte()
            for _ in range(self._varint() if head >> 4 == 15 else head >> 4):
                self._skip(head & 15, depth + 1, in_list=True)
        elif kind == _STRUCT:
            for _, inside in self._fields():
                self._skip(inside, depth + 1)
        else:  # a map is in no page's header
            raise ValueError("a header of another kind")

    def _byte(self) -> int:
        if self.at >= len(self._data):
            raise ValueError("a header that does not end")
        self.at += 1
        return self._data[self.at - 1]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number of more than ten bytes")

    def _zigzag(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
