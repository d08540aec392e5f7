"""For the tests: an index on a slice of the demo corpus, learned by a random encoder of a few thousand weights."""

from __future__ import annotations

import inspect
import re
import shutil
from pathlib import Path
from typing import Any

import tiny

from promptdsi import Corpus, Index
from promptdsi.aliases import METHOD_OPTIONS
from promptdsi.corpus.sources import Request, build_stream
from promptdsi.index.manifest import Manifest
from promptdsi.index.store import Store
from promptdsi.index.verb_options import CreateOptions
from promptdsi.methods import methods
from promptdsi.methods.options import flatten_params

PARAMS: dict[str, Any] = {
    "fit_epochs": 1,
    "add_epochs": 1,
    "pseudo_queries": 1,
    "max_tokens": 24,
    "document_tokens": 48,
    "batch_size": 32,
    "device": "cpu",
    "offline": True,
}
QUERIES = ["how does it work", "what is water made of", "when was it built"]


def stream() -> list[Corpus]:
    """Twenty-one documents and three later corpora of three."""
    return build_stream("demo", Request(), limit=30, new=3, share=0.1).corpora


def backbone(folder: Path, corpora: list[Corpus]) -> str:
    words = sorted({word for corpus in corpora for query in corpus.queries for word in re.findall(r"\w+", query.text.lower())})
    return str(tiny.backbone_folder(folder, words))


def create(folder: Path, corpus: Corpus, backbone: str, **changes: Any) -> Index:
    """An index; keywords that `Index.create` does not have are parameters of the method."""
    keywords = PARAMS | {"backbone": backbone} | changes
    arguments = inspect.signature(Index.create).parameters.keys() | CreateOptions.__optional_keys__
    params = {key: value for key, value in keywords.items() if key not in arguments}
    return Index.create(folder, corpus, params=params, **{key: value for key, value in keywords.items() if key in arguments})


def method(name: str, backbone: str, **changes: Any) -> Any:
    """An untrained method of small size; parameters that it does not have are left out."""
    kind: Any = methods()[name]
    options = flatten_params(kind().get_params())
    params = PARAMS | {"backbone": backbone, "fit.row_init": "document", "add.row_init": "document"} | changes
    return kind.from_params({key: value for key, value in params.items() if {key, *METHOD_OPTIONS.get(key, ())} & options.keys()})


def copied(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def signature(index: Index | Path, queries: list[str] = QUERIES) -> tuple[Any, ...]:
    """What a reader sees: every document with its score, for some queries."""
    opened = index if isinstance(index, Index) else Index.open(index, device="cpu")
    return tuple((hit.docid, round(hit.score, 5), hit.title) for hits in opened.search(queries, k=1000) for hit in hits)


def signatures(place: Path) -> dict[int, Any]:
    """What a reader sees in every generation that is not pruned."""
    numbers = [state.number for state in Store(place).log() if isinstance(state, Manifest)]
    return {number: signature(Index.open(place, at=number, device="cpu")) for number in numbers}


def contents(folder: Path) -> bytes:
    """Names and contents of all files below it."""
    return b"\n".join(path.name.encode() + path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
