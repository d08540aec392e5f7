"""Readers: what they accept, what they say about it, and the bounds they keep."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest

from promptdsi import Corpus, DataError, Document
from promptdsi.corpus import ReadNotes, reading


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_byte_order_mark_crlf_blank_lines_and_no_last_newline_are_fine(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbf{"_id": "a", "text": "one"}\r\n\r\n{"_id": "b", "text": "two", "title": null}'
    corpus = Corpus.read(write(tmp_path / "c.jsonl", content))
    assert corpus.documents == [Document("a", "one"), Document("b", "two")]


def test_any_more_fields_are_metadata(tmp_path: Path) -> None:
    corpus = Corpus.read(write(tmp_path / "c.jsonl", b'{"_id": "a", "text": "one", "year": 1999, "tags": ["x"]}\n'))
    assert corpus.documents[0].metadata == {"year": 1999, "tags": ["x"]}


def test_gz_beside_any_file_works(small: Corpus, tmp_path: Path) -> None:
    small.write(tmp_path / "c")
    for file in [path for path in (tmp_path / "c").rglob("*") if path.is_file()]:
        file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert Corpus.read(tmp_path / "c") == small


def test_qrels_header_is_detected_not_assumed(tmp_path: Path) -> None:
    write(tmp_path / "c/corpus.jsonl", b'{"_id": "d", "text": "x"}\n')
    write(tmp_path / "c/queries.jsonl", b'{"_id": "q", "text": "x"}\n')
    for header in (b"", b"query-id\tcorpus-id\tscore\n", b"qid\tdocid\trelevance\n"):
        write(tmp_path / "c/qrels/test.tsv", header + b"q\td\t1\n")
        assert Corpus.read(tmp_path / "c").counts()["test"] == 1


def test_unknown_judgements_up_to_the_bound_are_left_out_and_counted(tmp_path: Path) -> None:
    write(tmp_path / "c/corpus.jsonl", b'{"_id": "d", "text": "x"}\n')
    write(tmp_path / "c/queries.jsonl", b'{"_id": "q", "text": "x"}\n')
    write(tmp_path / "c/qrels/train.tsv", b"q\td\t1\nq\tzz\t1\nyy\td\t1\n")
    notes = ReadNotes()
    assert len(Corpus.read(tmp_path / "c", max_unknown=2, notes=notes).qrels["train"]) == 1
    assert any("2 judgements in train.tsv name unknown" in sentence for sentence in notes.sentences())
    with pytest.raises(DataError, match=r"2 such rows \('zz', 'yy'\), 1 allowed"):
        Corpus.read(tmp_path / "c", max_unknown=1)


def test_queries_in_train_and_test_are_noted(tmp_path: Path) -> None:
    write(tmp_path / "c/corpus.jsonl", b'{"_id": "d", "text": "x"}\n')
    write(tmp_path / "c/queries.jsonl", b'{"_id": "q", "text": "x"}\n{"_id": "r", "text": "y"}\n')
    write(tmp_path / "c/qrels/train.tsv", b"q\td\t1\n")
    write(tmp_path / "c/qrels/test.tsv", b"q\td\t1\n")
    notes = ReadNotes()
    Corpus.read(tmp_path / "c", notes=notes)
    assert notes.counts["queries have no judgement and serve nothing"] == 1
    assert any("judged in train and in test" in sentence for sentence in notes.sentences())


def test_a_gz_that_unpacks_past_the_bound_stops_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_UNPACKED_BYTES", 1000)
    path = write(tmp_path / "c.jsonl.gz", gzip.compress(b'{"_id": "d", "text": "x"}\n' * 10_000))
    with pytest.raises(DataError, match="unpacks to more than 1,000 bytes"):
        Corpus.read(path)


def test_an_endless_line_stops_at_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_LINE_BYTES", 1 << 20)
    bomb = write(tmp_path / "c.jsonl.gz", gzip.compress(b" " * (50 << 20)))
    tracemalloc.start()
    with pytest.raises(DataError, match="longer than 1 MiB"):
        Corpus.read(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_streaming_documents_keeps_none_of_them(tmp_path: Path) -> None:
    text = "word " * 400
    path = write(tmp_path / "c.jsonl", b"".join(reading.document_line(Document(f"d{i}", f"{i} {text}")) for i in range(5000)))
    tracemalloc.start()
    count = sum(1 for _ in reading.documents(path, ReadNotes()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 5000
    assert peak < path.stat().st_size / 4  # ids and hashes only, not ten megabytes of text


def test_pairs_without_header_two_and_three_cells(tmp_path: Path) -> None:
    two = Corpus.read(write(tmp_path / "two.tsv", b"who\tthe text\nwhat\tthe text\n\tanother text\n"))
    assert [document.text for document in two.documents] == ["the text", "another text"]
    assert [pair.query.text for pair in two.pairs("train")] == ["who", "what"]
    three = Corpus.read(write(tmp_path / "three.tsv", b"who\td1\tthe text\n"))
    assert three.documents == [Document("d1", "the text")]


def test_a_folder_of_text_files(tmp_path: Path) -> None:
    write(tmp_path / "notes/b/green_tea.txt", b"Brew it cooler.\n")
    write(tmp_path / "notes/a.md", b"# All about A\r\n\r\nA is the first letter.\r\n")
    write(tmp_path / "notes/c.md.gz", gzip.compress(b"no heading here"))
    write(tmp_path / "notes/picture.png", b"\x89PNG")
    write(tmp_path / "notes/.hidden.txt", b"secret")
    notes = ReadNotes()
    corpus = Corpus.read(tmp_path / "notes", notes=notes)
    assert corpus.documents == [
        Document("a.md", "A is the first letter.", "All about A"),
        Document("c.md.gz", "no heading here", "c"),
        Document("b/green_tea.txt", "Brew it cooler.", "green tea", {"folder": "b"}),
    ]
    assert notes.sentences() == ["not read: 1 .png"]


def test_pairs_give_one_pair_per_relevant_document(small: Corpus) -> None:
    assert [(pair.query.queryid, pair.docid) for pair in small.pairs("train")] == [("q1", "d1"), ("q4", "d1"), ("q2", "d2")]
    assert [pair.query.queryid for pair in small.pairs("train", kinds=("pseudo",))] == ["q4"]
    assert small.pairs("dev") == []  # judged 0: not relevant
    assert small.counts() == {"documents": 3, "train": 2, "dev": 0, "test": 1, "pseudo": 1}


def test_on_error_takes_two_words(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected 'stop' or 'skip'"):
        Corpus.read(tmp_path, on_error="ignore")


def test_a_path_that_does_not_exist_suggests_a_similar_one(tmp_path: Path) -> None:
    write(tmp_path / "notes/a.txt", b"some words")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"nots: does not exist; did you mean '.*/notes'\?$"):
        Corpus.read(tmp_path / "nots")
    with pytest.raises(DataError, match=r"does not exist$"):
        Corpus.read(tmp_path / "something else")
    with pytest.raises(DataError, match=r"empty: the folder is empty$"):
        Corpus.read(tmp_path / "empty")
