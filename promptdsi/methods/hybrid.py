"""Hybrid: the backbone as it is, with words beside it in one score, and nothing is trained. What every learned index has to beat.

    method = Hybrid().fit(d0).add(d1)

It scores as an index does: the best passage of each document by cosine + weight · coverage (`engine/words.py`), with the words of
annotated train queries among those of their documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from promptdsi.methods.dense import Dense
from promptdsi.methods.options import Encoding


@dataclass(kw_only=True)
class Hybrid(Dense):
    """`encoding.passage_tokens` as in the recommended preset; the weight of words is `encoding.word_weight`, 0 as 1."""

    name: ClassVar[str] = "hybrid"
    rehearsal_free: ClassVar[bool] = True

    encoding: Encoding = Encoding(max_tokens=64, passage_tokens=256, words=True, word_weight=1.0)

    def extra_bytes(self) -> int:
        """The words of every passage: without them no search finds old documents by their words."""
        return sum(array.nbytes for part in self.words_.parts for array in part) if self.words_ else 0
