"""Where streams come from. A new source is one file here with a NAME and `build(request)`; nothing else lists it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from promptdsi.corpus.corpus import Corpus, ReadNotes
from promptdsi.corpus.splitting import keep_values, sample, split_at_random, split_by_date, split_by_value
from promptdsi.corpus.streams import Stream
from promptdsi.discovery import modules_of
from promptdsi.errors import DataError, UsageError
from promptdsi.progress import Progress, silent

DEFAULT_NEW, DEFAULT_SHARE = 5, 0.02  # 90 % + 5 × 2 %, as in the paper


@dataclass(frozen=True)
class Request:
    """Options of a source. `name` is the text after the colon (`irds:ID`), or the path."""

    name: str = ""
    raw: Path | None = None
    seed: int = 0
    chunk: int = 2000
    max_words: int = 4096
    offline: bool = False
    quiet: bool = True
    on_error: str | None = None
    follow_links: bool = False
    max_unknown: int = 0
    notes: ReadNotes = field(default_factory=ReadNotes)
    progress: Progress = silent


class SourceData(NamedTuple):
    """A corpus before it is split into a stream, with its origin.

    `default_stream` is the usual split of this source (the paper's construction, the demo's arrivals), if it has one.
    """

    corpus: Corpus
    origin: str
    licence: str
    default_stream: Stream | None = None


class Source(NamedTuple):
    """How to build a corpus: a module of this folder, or `path` for the user's own documents.

    `check` raises an error where `build` would miss a file; it reads none.
    """

    name: str
    build: Callable[[Request], SourceData]
    check: Callable[[Request], object] = lambda request: None


def source_names() -> list[str]:
    """The names of all sources."""
    return list(modules_of(sys.modules[__name__]))


def source_of(text: str) -> tuple[Source, str]:
    """The source that a command-line argument names, and the text after the colon or the path."""
    head, _, rest = text.partition(":")
    if module := modules_of(sys.modules[__name__]).get(head):
        return Source(head, module.build, getattr(module, "check", lambda request: None)), rest
    if not Path(text).exists():
        raise DataError(f"is neither a path nor one of the sources {', '.join(source_names())}", path=text)
    return Source("path", read_path), text


def read_path(request: Request) -> SourceData:
    """The user's own documents: any path that `Corpus.read` takes."""
    path = Path(request.name)
    corpus = Corpus.read(
        path, on_error=request.on_error, follow_links=request.follow_links, max_unknown=request.max_unknown, notes=request.notes
    )
    # The name, not the path: a stream must not depend on where its source stood.
    return SourceData(corpus, origin=f"the corpus {path.name}", licence="as the source's")


def build_stream(
    text: str,
    request: Request,
    *,
    new: int | None = None,
    share: float | None = None,
    limit: int | None = None,
    by: str | None = None,
    by_date: str | None = None,
    keep: Mapping[str, Sequence[str]] | None = None,
    tune: int = 0,
) -> Stream:
    """Build a stream. Without options a source gives its default stream, if it has one.

    `keep` restricts documents to those with one of the given values of a metadata field. `tune` documents outside the sample of `limit`
    become an extra corpus, for the search of hyper-parameters.
    """
    if by and by_date:
        raise UsageError("--by and --by-date exclude each other")
    if by and (new is not None or share is not None):
        raise UsageError("--by makes one corpus per value; --new and --share have no meaning with it")
    source, rest = source_of(text)
    if rest and source.name not in ("path", "irds"):
        raise UsageError(f"{source.name} takes nothing after a colon")
    if request.raw is not None and source.name not in ("nq320k", "msmarco300k"):
        raise UsageError(f"--raw has no meaning for {source.name}")
    data = source.build(replace(request, name=rest))
    plain = not tune and all(option is None for option in (new, share, limit, by, by_date, keep))
    if data.default_stream is not None and plain:
        return data.default_stream
    corpus, extra = sampled(data.corpus, keep=keep, limit=limit, tune=tune, seed=request.seed)
    new, share = DEFAULT_NEW if new is None else new, DEFAULT_SHARE if share is None else share
    rule: dict[str, Any] = {"limit": limit, "seed": request.seed} | ({"keep": dict(keep)} if keep else {})
    if by:
        corpora = split_by_value(corpus, by)
        rule |= {"by": by, "values": [str(part.documents[0].metadata[by]) for part in corpora]}
    elif by_date:
        corpora = split_by_date(corpus, by_date, new=new, share=share)
        rule |= {"by_date": by_date, "new": new, "share": share}
    else:
        corpora = split_at_random(corpus, new=new, share=share, seed=request.seed)
        rule |= {"new": new, "share": share}
    return Stream(corpus.name, corpora, rule | malformed_lines(request.notes), data.origin, data.licence, extra)


def sampled(
    corpus: Corpus, *, keep: Mapping[str, Sequence[str]] | None, limit: int | None, tune: int, seed: int
) -> tuple[Corpus, list[Corpus]]:
    """The documents of a stream, and the extra corpus of `tune` documents if one is wanted."""
    for name, values in (keep or {}).items():
        corpus = keep_values(corpus, name, values)
    size = len(corpus) if limit is None else limit
    if tune and len(corpus) < size + tune:
        raise UsageError(f"{tune} documents beside a sample of {size:,} were asked for, but there are only {len(corpus):,}")
    extra = [sample(corpus, tune, seed=seed, after=size, name="tune")] if tune else []
    return corpus if limit is None else sample(corpus, limit, seed=seed), extra


MALFORMED = "malformed lines of the raw files were skipped"


def malformed_lines(notes: ReadNotes) -> dict[str, int]:
    """How many lines of the raw files were skipped, as stream.json states it; nothing where there were none."""
    count = notes.counts[MALFORMED] + len(notes.skipped)
    return {"malformed_lines": count} if count else {}
