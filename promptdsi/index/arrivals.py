"""What arrives at an index: whether a corpus can be learned, which of its documents are new, what it is called, and options."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from promptdsi.corpus.corpus import Corpus, check_characters, check_document
from promptdsi.errors import DataError, UsageError
from promptdsi.index.blobs import content_hash
from promptdsi.index.lookup import Lookup


def as_corpus(corpus: Corpus | str | Path | Callable[[], Corpus]) -> Corpus:
    """A corpus, the one at a path, or the one that a function reads."""
    if isinstance(corpus, str | Path):
        return Corpus.read(corpus)
    return corpus if isinstance(corpus, Corpus) else corpus()


def select_new(folder: Path, lookup: Lookup, corpus: Corpus, *, update: bool) -> tuple[Corpus, dict[str, int]]:
    """The documents that are new, and the numbers of those that are replaced. Same docid and content: nothing to do."""
    hashes = {document.docid: content_hash(document) for document in corpus.documents}
    live = lookup.live(list(hashes))
    changed = [docid for docid, content in hashes.items() if docid in live and live[docid][1] != content]
    if changed and not update:
        others = f" and {len(changed) - 1:,} others" if len(changed) > 1 else ""
        problem = f"the document {changed[0]!r}{others} of {corpus.name} is in the index with other content; replace it with --update"
        raise DataError(problem, path=folder)
    new = {docid for docid in hashes if docid not in live} | set(changed)
    return corpus.only(new), {docid: live[docid][0] for docid in changed}


def check_corpus(corpus: Corpus) -> None:
    """Refuse in Python what readers refuse in files."""
    seen: set[str] = set()
    for document in corpus.documents:
        try:
            check_document(document)
            check_characters([document.docid, document.title, document.text, document.metadata])
            if document.docid in seen:
                raise ValueError("its docid stands twice in the corpus")
        except ValueError as error:
            raise DataError(f"the document {document.docid!r:.80} cannot be learned: {error}", path=corpus.name) from None
        seen.add(document.docid)
    if not seen:
        raise DataError("holds no document", path=corpus.name)


def unique_name(name: str, names: Container[str]) -> str:
    """The name, or where it is taken the name with the first number that is free.

    Examples
    --------
    >>> unique_name("notes", {"notes", "notes 2"})
    'notes 3'
    """
    numbered = (f"{name} {number}" for number in itertools.count(2))
    return name if name not in names else next(free for free in numbered if free not in names)


def corpus_name(corpus: Corpus, given: str | None) -> str:
    """The name a corpus gets in the index."""
    name = given if given is not None else corpus.name
    if not name.strip() or len(name) > 200 or not name.isprintable():
        raise UsageError(f"a corpus needs a name of 1 to 200 printable characters, not {name[:50]!r}; give one with --name")
    return name


def check_dev_queries(corpus: Corpus, keep_probes: int) -> None:
    """Refuse to keep dev queries of a corpus that has none."""
    if keep_probes and not corpus.pairs("dev", kinds=("annotated",)):
        raise UsageError(f"--keep-probes {keep_probes} but {corpus.name} has no dev queries to keep")


def checked(options: Any, kind: Any) -> dict[str, Any]:
    """The options, none of which may be missing from the record of options `kind`."""
    if unknown := options.keys() - kind.__optional_keys__:
        raise TypeError(f"got an unexpected keyword argument {min(unknown)!r}; there are {', '.join(sorted(kind.__optional_keys__))}")
    return dict(options)
