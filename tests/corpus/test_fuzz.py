"""Property: arbitrary bytes give a corpus or a clear error that names the file; never any other exception."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptdsi import Corpus, DataError
from promptdsi.corpus.confined import ConfinedReader, file_kinds
from promptdsi.corpus.file_documents import document_of

# Bytes that look like our files reach deeper than plain noise does.
FRAGMENTS = st.sampled_from(
    [
        *(b'{"_id": ', b'"d1"', b', "text": ', b'"x"', b"}", b"[", b"null", b"NaN", b"1e999", b"-0", b"\\u0000", b"\\ud83d"),
        *(b"\n", b"\t", b"\r\n", b"\xef\xbb\xbf", b"# T\n", b"query-id\tcorpus-id\tscore\n", b"q1\td1\t1\n"),
        *(b'{"_id": "d1", "text": "x"}\n', b'{"_id": "q1", "text": "y"}\n'),
    ]
)
BYTES = st.binary(max_size=200) | st.lists(FRAGMENTS | st.binary(max_size=8), max_size=30).map(b"".join)
GOOD = b'{"_id": "d1", "text": "x"}\n'
QUERY = b'{"_id": "q1", "text": "y"}\n'


def reads_or_complains(path: Path, on_error: str = "stop") -> None:
    try:
        corpus = Corpus.read(path, on_error=on_error)
    except DataError as error:
        assert str(path) in str(error) or path.name in str(error.path)
        assert "\n" not in str(error) and len(str(error)) < 2000
    else:
        assert corpus.documents
        with tempfile.TemporaryDirectory() as folder:  # what could be read can be written, and reads back equal
            corpus.write(folder)
            assert Corpus.read(folder) == corpus


@given(st.sampled_from(["c.jsonl", "c.jsonl.gz", "c.tsv", "c.tsv.gz"]), BYTES, st.sampled_from(["stop", "skip"]), st.booleans())
def test_lone_files(name: str, content: bytes, on_error: str, packed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(gzip.compress(content) if packed and name.endswith(".gz") else content)
        reads_or_complains(path, on_error)


@given(st.sampled_from(["corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/test.tsv"]), BYTES, st.sampled_from(["stop", "skip"]))
def test_one_bad_file_in_a_folder(name: str, content: bytes, on_error: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "c"
        (root / "qrels").mkdir(parents=True)
        (root / "corpus.jsonl").write_bytes(GOOD)
        (root / "queries.jsonl").write_bytes(QUERY)
        (root / name).write_bytes(content)
        reads_or_complains(root, on_error)


@given(st.sampled_from(["a.txt", "b.md"]), BYTES)
def test_text_files(name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "c"
        root.mkdir()
        (root / name).write_bytes(content)
        reads_or_complains(root)


@pytest.fixture(scope="module")
def reader() -> Iterator[ConfinedReader]:
    with ConfinedReader() as reader:
        yield reader


LOOKS = st.sampled_from([b"%PDF-1.4\n", b"PK\x03\x04", b"---\n", b"<p>", b"Subject: x\n", b'{"cells": [', b"a,b\n", b"===\nA\n===\n", b""])


@given(st.sampled_from(sorted(file_kinds())), LOOKS, BYTES)
def test_files_of_every_kind(reader: ConfinedReader, suffix: str, start: bytes, content: bytes) -> None:
    try:
        document = document_of(start + content, f"a{suffix}", reader).document
    except ValueError as error:
        assert 0 < len(str(error)) < 400 and "\n" not in str(error) and "crashed" not in str(error)
    else:
        assert document.text.strip() and document.title
