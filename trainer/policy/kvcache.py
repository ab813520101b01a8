"""A key-value cache for the sampler: preallocated (growing by concatenation copies the whole cache
at every token); it can drop finished rows and continue with selected rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer


class _Layer(DynamicLayer):
    """Keys and values of one attention layer, (rows, heads, capacity, head size)."""

    keys: Tensor
    values: Tensor

    def __init__(self, capacity: int, n_rows: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.n_rows = n_rows
        self.start = 0
        self.rows: Tensor | None = None
        self.positions: Tensor | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the new positions of the chosen rows; return all their positions so far."""
        # Under autocast rotary embeddings make keys float32, which attention rounds each time.
        key_states = key_states.to(value_states.dtype)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            # Not empty: where a mask hides a value, 0 times NaN would still be NaN.
            self.keys, self.values = (
                states.new_zeros((self.n_rows, states.shape[1], self.capacity, states.shape[3]))
                for states in (key_states, value_states)
            )
        end = self.start + key_states.shape[2]
        rows = slice(None) if self.rows is None else self.rows
        for states, new in ((self.keys, key_states), (self.values, value_states)):
            if self.positions is None:
                states[rows, :, self.start : end] = new
            else:
                assert self.rows is not None
                states[self.rows[:, None], :, self.positions] = new.transpose(1, 2)
        return self.keys[rows, :, :end], self.values[rows, :, :end]

    def get_seq_length(self) -> int:
        return self.start

    def keep(self, rows: Tensor) -> None:
        self.keys, self.values = self.keys[rows], self.values[rows]

    def copy(self, source: Tensor, to: Tensor, positions: Tensor) -> None:
        for states in (self.keys, self.values):
            states[to[:, None], :, positions] = states[source[:, None], :, positions]


class RowCache(Cache):
    """Cache of `n_layers` layers, with room for `capacity` positions of `n_rows` rows. `choose`
    names the rows of the next forward pass, which share the same positions; content beyond them is
    overwritten later."""

    def __init__(self, n_layers: int, capacity: int, n_rows: int) -> None:
        self._rows = [_Layer(capacity, n_rows) for _ in range(n_layers)]
        super().__init__(layers=list(self._rows))

    def choose(
        self, start: int, rows: Tensor | None = None, positions: Tensor | None = None
    ) -> None:
        """The next pass begins at position `start` of these rows, None for all of them; a choice of
        some rows copies their keys and values in every layer. With `positions` (rows, T) each row
        has its own positions, at most `start` + T − 1; the pass then needs a mask."""
        for layer in self._rows:
            layer.start, layer.rows, layer.positions = start, rows, positions

    def copy(self, source: Tensor, to: Tensor, positions: Tensor) -> None:
        """Copy positions (B, T) of rows `source` (B,) to rows `to` (B,)."""
        for layer in self._rows:
            layer.copy(source, to, positions)

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows, in this order."""
        for layer in self._rows:
            layer.keep(rows)


def bytes_per_token(model: Any) -> int:
    """Bytes of keys and values in all layers, for one row."""
    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    dtype = getattr(model, "compute_dtype", None) or next(model.parameters()).dtype
    return 2 * config.num_hidden_layers * heads * size * dtype.itemsize
