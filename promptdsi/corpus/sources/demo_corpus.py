"""demo: the embedded demo corpus, written for this project: short documents over sixteen subjects, six queries each.

It arrives as D0 and four later corpora; the third is about a subject that D0 does not contain.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.sources import Request, SourceData
from promptdsi.corpus.splitting import split_by_value
from promptdsi.corpus.streams import Stream

NAME = "demo"
ORIGIN = "the demo corpus inside the promptdsi package"
LICENCE = "Apache-2.0"


def build(request: Request) -> SourceData:
    with resources.as_file(resources.files("promptdsi.corpus") / "demo") as folder:
        corpus = Corpus.read(Path(folder), name=NAME)
    stream = Stream(NAME, split_by_value(corpus, "arrives"), {"by": "arrives"}, ORIGIN, LICENCE)
    return SourceData(corpus, ORIGIN, LICENCE, default_stream=stream)
