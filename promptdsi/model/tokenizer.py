"""Tokenizing, in this module only: texts to arrays of ids, long documents to windows, arrays to padded batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from promptdsi.model.encoder import Tokens

Ids = NDArray[np.int32]


class Tokenized(NamedTuple):
    """Ids of each text, special tokens included, and whether it was truncated."""

    ids: list[Ids]
    truncated: list[bool]


class Tokenizer:
    """A tokenizer from its `tokenizer.json`, which is also how an index stores it."""

    def __init__(self, json: str, pad_id: int) -> None:
        from tokenizers import Tokenizer as FastTokenizer

        self.json = json
        self.pad_id = pad_id
        self._fast = FastTokenizer.from_str(json)
        self._fast.no_padding()

    def encode(self, texts: Sequence[str], *, max_tokens: int) -> Tokenized:
        """Ids of each text, truncated on the right to `max_tokens` including special tokens."""
        self._fast.enable_truncation(max_tokens)
        encodings = self._fast.encode_batch(list(texts))
        ids = [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]
        return Tokenized(ids, [bool(encoding.overflowing) for encoding in encodings])

    def windows(self, texts: Sequence[str], *, size: int, most: int) -> tuple[list[list[Ids]], int]:
        """Each text as consecutive windows of `size` tokens, at most `most`; and how many texts were longer than that."""
        self._fast.enable_truncation(size)
        windows = [[encoding, *encoding.overflowing] for encoding in self._fast.encode_batch(list(texts))]
        ids = [[np.array(window.ids, dtype=np.int32) for window in text[:most]] for text in windows]
        return ids, sum(len(text) > most for text in windows)

    def pad(self, ids: Sequence[Ids], device: torch.device | str = "cpu") -> Tokens:
        """One batch, padded on the right to its longest text."""
        import torch  # only here: the query engine tokenizes without it

        from promptdsi.model.encoder import Tokens

        lengths = np.array([len(text) for text in ids])
        longest = int(lengths.max())
        batch = np.full((len(ids), longest), self.pad_id, dtype=np.int64)  # (B, T)
        for row, text in zip(batch, ids, strict=True):
            row[: len(text)] = text
        if (lengths == longest).all():
            return Tokens(torch.from_numpy(batch).to(device))
        mask = np.arange(longest) < lengths[:, None]  # (B, T)
        return Tokens(torch.from_numpy(batch).to(device), torch.from_numpy(mask).to(device))
