"""A key-value cache for the sampler: preallocated, because growing by concatenation copies the
whole cache at every token, and able to drop finished rows."""

from __future__ import annotations

from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer

_BLOCK = 128
"""Positions by which the buffers grow."""


class _Layer(DynamicLayer):
    """Keys and values of one attention layer, (rows, heads, capacity, head size)."""

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._length = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the new positions; return everything written so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys = key_states.new_empty((*key_states.shape[:2], 0, key_states.shape[3]))
            self.values = value_states.new_empty(
                (*value_states.shape[:2], 0, value_states.shape[3])
            )
        end = self._length + key_states.shape[2]
        if end > self.keys.shape[2]:
            self.keys, self.values = _grow(self.keys, end), _grow(self.values, end)
        self.keys[:, :, self._length : end] = key_states
        self.values[:, :, self._length : end] = value_states
        self._length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        return self._length

    def keep(self, rows: Tensor) -> None:
        self.keys, self.values = self.keys[rows], self.values[rows]


class RowCache(Cache):
    """Cache of `n_layers` layers in which all rows are at the same position."""

    def __init__(self, n_layers: int) -> None:
        self._rows = [_Layer() for _ in range(n_layers)]
        super().__init__(layers=list(self._rows))

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows, in this order."""
        for layer in self._rows:
            layer.keep(rows)


def _grow(buffer: Tensor, length: int) -> Tensor:
    capacity = -(-length // _BLOCK) * _BLOCK
    grown = buffer.new_empty((*buffer.shape[:2], capacity, buffer.shape[3]))
    grown[:, :, : buffer.shape[2]] = buffer
    return grown
