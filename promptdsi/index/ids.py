"""The `ids` blob of a corpus: the docid of each row and the sha256 of its content, so that learning needs no document."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from promptdsi.corpus.records import Document

MARK = 64  # characters of a sha256
ERASED = "0" * MARK


class Ids(NamedTuple):
    """By place in the corpus: docids, None where the document was purged, and the content marks, all in one string.

    `since`, the generation the corpus arrived in, makes the blobs of two corpora differ even where their documents are the
    same: what is erased from one must stay in the other.
    """

    since: int
    docids: list[str | None]
    marks: str

    @classmethod
    def of(cls, documents: Sequence[Document], *, since: int) -> Ids:
        return cls(since, [document.docid for document in documents], "".join(content_of(document) for document in documents))

    @classmethod
    def from_json(cls, value: Any) -> Ids:
        return cls(value["since"], value["docids"], value["marks"])

    def to_json(self) -> dict[str, Any]:
        return self._asdict()

    def mark(self, place: int) -> str:
        return self.marks[MARK * place : MARK * (place + 1)]

    def without(self, places: set[int]) -> Ids:
        """The same with some documents' marks erased; the others keep their places."""
        kept = [ERASED if place in places else self.mark(place) for place in range(len(self.docids))]
        return Ids(self.since, [None if place in places else docid for place, docid in enumerate(self.docids)], "".join(kept))


def content_of(document: Document) -> str:
    """What makes two documents of one docid equal: title, text and metadata."""
    metadata = json.dumps(dict(document.metadata), ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(f"{document.title}\0{document.text}\0{metadata}".encode()).hexdigest()
