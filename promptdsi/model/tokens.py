"""Tokenising, the only place that does: texts to arrays of ids, long documents to windows, arrays to padded batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from promptdsi.model.encoder import Tokens

Ids = NDArray[np.int32]


class Tokenised(NamedTuple):
    """Ids per text, special tokens included, and how many texts were longer than the model may see."""

    ids: list[Ids]
    cut: int


class Tokenizer:
    """A tokeniser from its `tokenizer.json`, which is also how an index stores it."""

    def __init__(self, json: str, pad_id: int) -> None:
        from tokenizers import Tokenizer as Fast

        self.json = json
        self.pad_id = pad_id
        self._fast = Fast.from_str(json)
        self._fast.no_padding()

    def encode(self, texts: Sequence[str], *, max_tokens: int) -> Tokenised:
        """Each text cut on the right to `max_tokens`, special tokens counted."""
        self._fast.enable_truncation(max_tokens)
        found = self._fast.encode_batch(list(texts))
        return Tokenised([np.array(one.ids, dtype=np.int32) for one in found], sum(bool(one.overflowing) for one in found))

    def windows(self, texts: Sequence[str], *, size: int, most: int) -> tuple[list[list[Ids]], int]:
        """Each text in consecutive windows of `size` tokens, at most `most`; and how many texts were longer than that."""
        self._fast.enable_truncation(size)
        found = self._fast.encode_batch(list(texts))
        windows = [[one, *one.overflowing] for one in found]
        ids = [[np.array(window.ids, dtype=np.int32) for window in text[:most]] for text in windows]
        return ids, sum(len(text) > most for text in windows)

    def pad(self, ids: Sequence[Ids], device: torch.device | str = "cpu") -> Tokens:
        """One batch, padded on the right to its longest text."""
        import torch  # only here: the query engine tokenises without it

        from promptdsi.model.encoder import Tokens

        lengths = np.array([len(one) for one in ids])
        longest = int(lengths.max())
        batch = np.full((len(ids), longest), self.pad_id, dtype=np.int64)  # (B, T)
        for row, one in zip(batch, ids, strict=True):
            row[: len(one)] = one
        if (lengths == longest).all():
            return Tokens(torch.from_numpy(batch).to(device))
        mask = np.arange(longest) < lengths[:, None]  # (B, T)
        return Tokens(torch.from_numpy(batch).to(device), torch.from_numpy(mask).to(device))
