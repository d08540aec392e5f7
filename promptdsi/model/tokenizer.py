"""Texts to token ids, in pieces and stored compactly, and ids to padded batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from promptdsi.model.tokenizer_checks import library_errors, load_tokenizer

if TYPE_CHECKING:
    import torch

    from promptdsi.model.encoder import Tokens

Ids = NDArray[np.int32]
# Texts tokenized at once, and their characters: the library's record of a token takes some 200 bytes, of which we keep four.
TEXTS_AT_ONCE, CHARACTERS_AT_ONCE = 4096, 4_000_000


class TokenIds(Sequence[Ids]):
    """Ids of many texts in one array, `flat`; those of text i are a view from `offsets[i]` to `offsets[i + 1]`."""

    def __init__(self, flat: Ids, offsets: NDArray[np.int64]) -> None:
        self.flat, self.offsets = flat, offsets

    @classmethod
    def packed(cls, texts: Iterable[Ids]) -> TokenIds:
        """From the ids of each text."""
        parts = list(texts)
        offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        return cls(np.concatenate([np.empty(0, np.int32), *parts]), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, number: int) -> Ids: ...
    @overload
    def __getitem__(self, number: slice) -> list[Ids]: ...
    def __getitem__(self, number: int | slice) -> Ids | list[Ids]:
        if isinstance(number, slice):
            return [self[position] for position in range(*number.indices(len(self)))]
        position = range(len(self))[number]  # which counts from the end too, and ends iteration
        return self.flat[self.offsets[position] : self.offsets[position + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text: (n,)."""
        return np.diff(self.offsets)


class Tokenized(NamedTuple):
    """Ids of each text, special tokens included, and whether it was truncated."""

    ids: Sequence[Ids]
    truncated: list[bool]


class Tokenizer:
    """A tokenizer from its `tokenizer.json`, which is also how an index stores it; ValueError unless it is of a kind we know.

    No token may have an id of `vocabulary` or more.
    """

    def __init__(self, json: str, pad_id: int, vocabulary: int | None = None) -> None:
        self.json, self.pad_id, self._fast = json, pad_id, load_tokenizer(json, vocabulary)
        self._fast.no_padding()

    def encode(self, texts: Sequence[str], *, max_tokens: int) -> Tokenized:
        """Ids of each text, truncated on the right to `max_tokens` including special tokens."""
        self._fast.enable_truncation(max_tokens)
        parts, truncated = [], []
        for piece in pieces(texts):
            encodings = self._encodings(piece)
            parts.append(TokenIds.packed(np.array(encoding.ids, dtype=np.int32) for encoding in encodings))
            truncated += [bool(encoding.overflowing) for encoding in encodings]
        lengths = np.concatenate([np.zeros(1, np.int64), *(part.lengths for part in parts)])
        return Tokenized(TokenIds(np.concatenate([np.empty(0, np.int32), *(part.flat for part in parts)]), lengths.cumsum()), truncated)

    def windows(self, texts: Sequence[str], *, size: int, most: int) -> tuple[list[list[Ids]], int]:
        """Each text as consecutive windows of `size` tokens, at most `most`; and how many texts were longer than that."""
        self._fast.enable_truncation(size)
        ids: list[list[Ids]] = []
        longer = 0
        for piece in pieces(texts):
            windows = [[encoding, *encoding.overflowing] for encoding in self._encodings(piece)]
            ids += [[np.array(window.ids, dtype=np.int32) for window in text[:most]] for text in windows]
            longer += sum(len(text) > most for text in windows)
        return ids, longer

    def token_starts(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """Where each token of each text begins, in characters; nothing is truncated, and special tokens do not count."""
        self._fast.no_truncation()
        encodings = (encoding for piece in pieces(texts) for encoding in self._encodings(piece, add_special_tokens=False))
        return [np.array([start for start, _ in encoding.offsets], dtype=np.int64) for encoding in encodings]

    def _encodings(self, texts: Sequence[str], **options: bool) -> list[Any]:
        with library_errors():
            return list(self._fast.encode_batch(list(texts), **options))

    def pad(self, ids: Sequence[Ids], device: torch.device | str = "cpu") -> Tokens:
        """One batch, padded on the right to its longest text."""
        import torch  # only here: the query engine tokenizes without it

        from promptdsi.model.encoder import Tokens

        lengths = np.array([len(text) for text in ids])
        longest = int(lengths.max())
        batch = np.full((len(ids), longest), self.pad_id, dtype=np.int64)  # (B, T)
        for row, text in zip(batch, ids, strict=True):
            row[: len(text)] = text
        mask = None if (lengths == longest).all() else torch.from_numpy(np.arange(longest) < lengths[:, None]).to(device)  # (B, T)
        return Tokens(torch.from_numpy(batch).to(device), mask)


def pieces(texts: Sequence[str]) -> Iterator[list[str]]:
    """All texts in order, in pieces of bounded size; a text longer than the bound is a piece by itself."""
    piece: list[str] = []
    characters = 0
    for text in texts:
        if piece and (len(piece) == TEXTS_AT_ONCE or characters + len(text) > CHARACTERS_AT_ONCE):
            yield piece
            piece, characters = [], 0
        piece.append(text)
        characters += len(text)
    if piece:
        yield piece


def lengths_of(ids: Sequence[Ids]) -> NDArray[np.int64]:
    """Tokens of each text: (n,)."""
    return ids.lengths if isinstance(ids, TokenIds) else np.array([len(text) for text in ids], dtype=np.int64)
