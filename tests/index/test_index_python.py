"""The index in Python: paths as corpora, readable objects, typed options, search for servers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import small

import promptdsi
from promptdsi import Corpus, Index


def test_the_package_shows_what_there_is() -> None:
    assert {"Corpus", "Hit", "Index", "UsageError"} <= set(dir(promptdsi))
    assert all(getattr(promptdsi, name) is not None for name in dir(promptdsi))


def test_a_path_is_a_corpus(backbone: str, tmp_path: Path) -> None:
    for folder in ("notes", "more"):
        (tmp_path / folder).mkdir()
        for n in range(3):
            (tmp_path / folder / f"{folder}-{n}.txt").write_text(f"The {folder} of mill {n} stand near the harbour.")
    index = small.create(tmp_path / "index", tmp_path / "notes", backbone, effort="quick")  # type: ignore[arg-type]
    index.add(tmp_path / "more", fast=True)
    assert len(index) == 6 and repr(index) == f"Index({str(tmp_path / 'index')!r}, generation 2, 6 documents)"
    assert repr(Corpus.read(tmp_path / "more")) == "Corpus('more', 3 documents, 0 queries)"


def test_hits_become_dictionaries_and_searches_await(place: Path) -> None:
    index = Index.open(place)
    hits = index.search("what is water made of", k=3, explain=True)
    assert asyncio.run(index.asearch("what is water made of", k=3, explain=True)) == hits
    assert json.loads(json.dumps(hits[0].to_dict()))["docid"] == hits[0].docid


def test_many_searches_await_at_once_and_an_index_is_opened_meanwhile(place: Path) -> None:
    index = Index.open(place, check=False)  # its files are opened by the first search
    queries = [f"{word} number {number}" for number, word in enumerate(["water", "tea", "sound", "light"] * 25)]

    async def search_all() -> list[Any]:
        return await asyncio.gather(*(index.asearch(query, k=5) for query in queries))

    assert asyncio.run(search_all()) == [index.search(query, k=5) for query in queries]


@pytest.mark.parametrize("call", [lambda index: index.search("water", limit=3), lambda index: index.tune(k=3)])
def test_an_unknown_option_is_an_error(place: Path, call: object) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        call(Index.open(place))  # type: ignore[operator]
