"""Property: whatever bytes a stranger's file holds, its parser ends or says why, and raises nothing else (R34)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import forged
import pytest
from hostile_values import several
from hypothesis import given
from hypothesis import strategies as st
from parsers import ALLOWED, FILES, PLAIN, Parser, parsers

SEEDS = st.integers(0, 2**32)
EDITS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 8), st.binary(max_size=8)), max_size=4)
JSON_FILES = ("manifest", "record", "ids", "probes", "queries", "tokenizer")


@pytest.fixture(scope="module")
def every_parser() -> Iterator[dict[str, Parser]]:
    with parsers() as every:
        yield every


def sample(folder: Path, kind: str) -> bytes:
    """A file of an honest index, as its parser gets it."""
    manifest = forged.content(forged.current(folder))
    if kind == "manifest":
        return json.dumps(manifest).encode()
    if kind == "record":
        return json.dumps({"generation": 1, "corpus": "d0", "split": "test", "ranks": [1, 2]}).encode()
    if kind == "CURRENT":
        return (folder / "CURRENT").read_bytes()
    if kind in ("probes", "queries"):
        entry = {"text": "how", "docids": ["a"]} if kind == "probes" else {"text": "how", "docid": "a", "kind": "pseudo", "passage": 0}
        return json.dumps({"since": 1, "entries": [entry, entry]}).encode()
    entry = manifest["corpora"][0]
    name = {"header": entry["rows"], "words": entry["words"], "ids": entry["ids"], "documents": entry["documents"]} | manifest
    return (folder / "blobs" / name[kind]).read_bytes()


@pytest.mark.parametrize("kind", [*FILES, *PLAIN])
def test_an_honest_file_is_parsed(every_parser: dict[str, Parser], original: Path, kind: str) -> None:
    with pytest.raises(ALLOWED, match="do not belong together") if kind == "CURRENT" else nullcontext():
        every_parser[kind](sample(original, kind))


@pytest.mark.parametrize("kind", [*FILES, *PLAIN])
@given(edits=EDITS)
def test_bytes_of_any_kind(every_parser: dict[str, Parser], original: Path, kind: str, edits: list[tuple[float, int, bytes]]) -> None:
    raw = bytearray(sample(original, kind))
    for place, length, other in edits:
        start = int(place * len(raw))
        raw[start : start + length] = other
    parse(every_parser[kind], bytes(raw))


@pytest.mark.parametrize("kind", JSON_FILES)
@given(seed=SEEDS)
def test_json_with_other_values(every_parser: dict[str, Parser], original: Path, kind: str, seed: int) -> None:
    value = several(random.Random(seed))(json.loads(sample(original, kind)))
    parse(every_parser[kind], json.dumps(value).encode())


@pytest.mark.parametrize("kind", ["header", "words", "statistics"])
@given(seed=SEEDS)
def test_headers_with_other_values(every_parser: dict[str, Parser], original: Path, kind: str, seed: int) -> None:
    raw = sample(original, kind)
    first = 8 + int.from_bytes(raw[:8], "little")
    header = json.dumps(several(random.Random(seed))(json.loads(raw[8:first]))).encode()
    header += b" " * (-len(header) % 8)
    parse(every_parser[kind], len(header).to_bytes(8, "little") + header + raw[first:])


def parse(parser: Parser, raw: bytes) -> None:
    try:
        parser(raw)
    except ALLOWED as error:
        assert len(str(error)) < 5000
