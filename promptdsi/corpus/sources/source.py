"""What a source is: a module with a NAME and `build(request)`, which gives a corpus, or a whole stream of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.notes import ReadNotes
from promptdsi.corpus.streams import Stream
from promptdsi.progress import Progress, silent


@dataclass(frozen=True)
class Request:
    """What the user asked of a source. `name` is what stood after a colon (`irds:ID`) or the path."""

    name: str = ""
    raw: Path | None = None
    seed: int = 0
    chunk: int = 2000
    max_words: int = 4096
    offline: bool = False
    quiet: bool = True
    on_error: str = "stop"
    max_unknown: int = 0
    notes: ReadNotes = field(default_factory=ReadNotes)
    progress: Progress = silent


class Material(NamedTuple):
    """A corpus not yet cut into a stream, with its origin.

    `own_stream` is the split this source is known by (the demo's arrivals, the paper's construction); it is used unless the
    user asks for another.
    """

    corpus: Corpus
    origin: str
    licence: str
    own_stream: Stream | None = None
