"""Upgrade: words for an index that was made without, from the text it stores. Its rows stay as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from promptdsi.corpus.corpus import Document, whole_text
from promptdsi.engine.postings import Postings, WordStatistics
from promptdsi.errors import PromptDSIError, UsageError
from promptdsi.index.blobs import Ids
from promptdsi.index.manifest import Manifest
from promptdsi.index.method_io import training_blobs
from promptdsi.index.store import Store
from promptdsi.methods.options import merge_params
from promptdsi.training.fusion import DEFAULT_WEIGHT


def upgrade(store: Store) -> Manifest:
    """Add the words of every corpus, from the stored text, to an index that was made without; its rows stay as they are."""
    with store.writing():
        parent = store.ready(training_blobs)
        if parent.statistics:
            raise UsageError(f"{store.folder} has words already")
        if parent.store != "text" or not all(entry.documents for entry in parent.corpora):
            raise PromptDSIError(f"{store.folder} stores no text (--store {parent.store}) to take words from; create it anew")
        corpora, words = [], []
        for entry in parent.corpora:
            store.check(parent, entry.files("documents"))
            documents = dict(store.documents(entry))
            words.append(Postings.build(_stored_texts(store.ids(entry.ids), documents)))
            corpora.append(replace(entry, words=store.blobs.put_words(words[-1], since=entry.since, part=entry.part)))
        params = merge_params(parent.params, {"encoding": {"words": True}})
        metadata = parent.metadata | {"word_weight": DEFAULT_WEIGHT, "word_salt": ""}
        statistics = store.blobs.put_statistics(WordStatistics.of(*words[: len(parent.parts()[0])]))
        changes = {"params": params, "metadata": metadata, "statistics": statistics}
        return store.commit(parent.next("upgrade", corpora=tuple(corpora), **changes))


def _stored_texts(ids: Ids, documents: Mapping[int, Document]) -> Iterator[str]:
    """The text of each row from the stored documents: a whole document, or one of its passages; nothing where it was purged."""
    for position, passages in enumerate(ids.passages):
        document = documents.get(position)
        offsets = ids.boundaries.get(str(position), [0, len(document.text) if document else 0])
        for start, end in pairwise(offsets):
            yield whole_text(document._replace(text=document.text[start:end])) if document else ""
        assert passages == len(offsets) - 1
