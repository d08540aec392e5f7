"""Where streams come from. A new source is one file here with a NAME and `build(request)`; nothing else lists it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.sources.source import Material, Request
from promptdsi.corpus.splitting import sample, split_at_random, split_by_date, split_by_value
from promptdsi.corpus.streams import Stream
from promptdsi.discovery import modules_of
from promptdsi.errors import DataError, UsageError

__all__ = ["Material", "Request", "Source", "build_stream", "names", "source_of"]

DEFAULT_NEW, DEFAULT_SHARE = 5, 0.02  # 90 % + 5 × 2 %, as in the paper


class Source(Protocol):
    NAME: str

    def build(self, request: Request) -> Material: ...


def names() -> list[str]:
    """The sources that have a name of their own."""
    return [name for name in modules_of(sys.modules[__name__]) if name != "files"]


def source_of(text: str) -> tuple[Source, str]:
    """The source a command-line word names, and the rest of the word: a path, or what stands after the colon."""
    sources = modules_of(sys.modules[__name__])
    head, _, rest = text.partition(":")
    if head in sources and head != "files":
        return cast("Source", sources[head]), rest
    if not Path(text).exists():
        raise DataError(f"is neither a path nor one of the sources {', '.join(names())}", path=text)
    return cast("Source", sources["files"]), text


def build_stream(
    text: str,
    request: Request,
    *,
    new: int | None = None,
    share: float | None = None,
    limit: int | None = None,
    by: str | None = None,
    by_date: str | None = None,
    tune: int = 0,
) -> Stream:
    """Build the stream a user asked for. Without any option a source gives its own stream where it has one.

    `tune` documents that `limit` left out stand beside the stream, for searches of settings (the paper's data has such too).
    """
    if by and by_date:
        raise UsageError("--by and --by-date exclude each other")
    if by and (new is not None or share is not None):
        raise UsageError("--by makes one corpus per value; --new and --share have no meaning with it")
    source, rest = source_of(text)
    if rest and source.NAME not in ("files", "irds"):
        raise UsageError(f"{source.NAME} takes nothing after a colon")
    if request.raw is not None and source.NAME not in ("nq320k", "msmarco300k"):
        raise UsageError(f"--raw has no meaning for {source.NAME}")
    material = source.build(replace(request, name=rest))
    if material.own_stream is not None and all(option is None for option in (new, share, limit, by, by_date)):
        return material.own_stream
    corpus, extra = material.corpus, []
    if tune:
        extra = [beside(corpus, limit or len(corpus), tune, seed=request.seed)]
    if limit is not None:
        corpus = sample(corpus, limit, seed=request.seed)
    new, share = DEFAULT_NEW if new is None else new, DEFAULT_SHARE if share is None else share
    rule: dict[str, Any] = {"limit": limit, "seed": request.seed}
    if by:
        corpora = split_by_value(corpus, by)
        rule |= {"by": by, "values": [str(part.documents[0].metadata[by]) for part in corpora]}
    elif by_date:
        corpora = split_by_date(corpus, by_date, new=new, share=share)
        rule |= {"by_date": by_date, "new": new, "share": share}
    else:
        corpora = split_at_random(corpus, new=new, share=share, seed=request.seed)
        rule |= {"new": new, "share": share}
    return Stream(corpus.name, corpora, rule, material.origin, material.licence, extra)


def beside(corpus: Corpus, limit: int, tune: int, *, seed: int) -> Corpus:
    """`tune` documents that a sample of `limit` does not hold, called `tune`."""
    if len(corpus) < limit + tune:
        raise UsageError(f"{tune} documents beside a sample of {limit:,} were asked for, but there are only {len(corpus):,}")
    taken = {document.docid for document in sample(corpus, limit, seed=seed).documents}
    others = sample(corpus, limit + tune, seed=seed)
    found = others.only({document.docid for document in others.documents} - taken)
    found.name = "tune"
    return found
