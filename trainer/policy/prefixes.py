"""The tokens that rows of a pass begin with in common, computed once: `shared_prefixes=true`.

The rows of a group share their prompt, and many share the first query and its documents. Under
causal attention the hidden state of a token depends on the tokens up to it alone, so rows that
begin with the same tokens have the same states there: the rows are a tree, and each node is
computed once. The gradient of a shared node is the sum of its rows' gradients, as without sharing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def tree_hidden(model: Any, ids: Tensor, where: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For the tokens at the places `where` (n,) of the flattened rows `ids` (B, T), of which m are
    different nodes: the decoder's final hidden states before them (m, H), the tokens themselves
    (m,), and which of the m each of the n is."""
    n_columns = ids.shape[1]
    row, column = np.divmod(where.cpu().numpy(), n_columns)
    lengths = np.zeros(len(ids), np.int64)
    np.maximum.at(lengths, row, column + 1)  # behind its last action token nothing is needed
    table = ids.cpu().numpy()
    paths, tokens, depths = _nodes([line[:n] for line, n in zip(table, lengths, strict=True)])
    sees = np.zeros((len(tokens), len(tokens)), bool)
    for path in paths:
        sees[np.ix_(path, path)] = np.tri(len(path), dtype=bool)

    def tensor(values: Any) -> Tensor:
        return torch.from_numpy(np.asarray(values)).to(ids.device)

    hidden = model.get_decoder()(
        input_ids=tensor(tokens)[None], position_ids=tensor(depths)[None],
        attention_mask=tensor(sees)[None, None], use_cache=False,
    ).last_hidden_state[0]  # (nodes, H)
    ends = np.array([paths[r][c] for r, c in zip(row, column, strict=True)], np.int64)
    nodes, first, back = np.unique(ends, return_index=True, return_inverse=True)
    before = [paths[r][c - 1] for r, c in zip(row[first], column[first], strict=True)]
    return hidden[tensor(np.array(before, np.int64))], tensor(tokens[nodes]), tensor(back)


def _nodes(rows: Sequence[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """The tree of some rows of tokens: each row's path of node numbers, and each node's token and
    depth. Rows are added in their alphabetical order, where neighbours share most."""
    paths: list[np.ndarray] = [np.zeros(0, np.int64)] * len(rows)
    tokens: list[int] = []
    depths: list[int] = []
    last = last_path = np.zeros(0, np.int64)
    for number in sorted(range(len(rows)), key=lambda i: rows[i].tolist()):
        row = rows[number]
        both = min(len(row), len(last))
        apart = np.flatnonzero(row[:both] != last[:both])
        shared = int(apart[0]) if len(apart) else both
        new = np.arange(len(tokens), len(tokens) + len(row) - shared)
        tokens += row[shared:].tolist()
        depths += range(shared, len(row))
        last, last_path = row, np.concatenate([last_path[:shared], new])
        paths[number] = last_path
    return paths, np.array(tokens, np.int64), np.array(depths, np.int64)
