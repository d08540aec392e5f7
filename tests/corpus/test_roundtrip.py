"""Property: any corpus we write reads back equal, in every format that can hold it."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptdsi import Corpus, DataError, Document, Judgement, Query
from promptdsi.corpus.file_documents import title_of
from promptdsi.corpus.formats.pairs import queryid_of

# Everything a UTF-8 file can carry: no NUL, no lone surrogates. Line and paragraph separators, marks, emoji included.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=60)
FILLED = TEXT.filter(lambda text: bool(text) and not text.isspace())
ID = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40).filter(lambda text: bool(text.strip()))
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
METADATA = st.dictionaries(TEXT.filter(lambda name: name not in {"_id", "title", "text", "kind"}), VALUE, max_size=3)


@st.composite
def corpora(draw: st.DrawFn) -> Corpus:
    docids = draw(st.lists(ID, min_size=1, max_size=6, unique=True))
    queryids = draw(st.lists(ID, max_size=6, unique=True))
    documents = [Document(docid, draw(FILLED), draw(TEXT), draw(METADATA)) for docid in docids]
    queries = [Query(queryid, draw(FILLED), draw(st.sampled_from(["annotated", "pseudo"])), draw(METADATA)) for queryid in queryids]
    qrels: dict[str, list[Judgement]] = {}
    for split in ("train", "dev", "test") if queryids else ():
        pairs = st.tuples(st.sampled_from(queryids), st.sampled_from(docids))
        chosen = draw(st.lists(pairs, max_size=6, unique=True))
        if chosen:
            qrels[split] = [Judgement(queryid, docid, draw(st.integers(-2, 4))) for queryid, docid in chosen]
    return Corpus(documents, queries, qrels)


@given(corpora())
def test_beir_reads_back_equal(corpus: Corpus) -> None:
    with tempfile.TemporaryDirectory() as folder:
        corpus.write(folder)
        assert Corpus.read(folder) == corpus


@given(corpora())
def test_jsonl_reads_back_equal(corpus: Corpus) -> None:
    documents_only = Corpus(corpus.documents)
    with tempfile.TemporaryDirectory() as folder:
        documents_only.write(Path(folder) / "c.jsonl", format="jsonl")
        assert Corpus.read(Path(folder) / "c.jsonl") == documents_only


VALUE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\t\r\n"), max_size=40)


@given(
    st.dictionaries(
        ID, st.tuples(VALUE.filter(str.strip), VALUE, st.lists(VALUE.filter(str.strip), max_size=3, unique=True)), min_size=1, max_size=5
    )
)
def test_pairs_read_back_equal(rows: dict[str, tuple[str, str, list[str]]]) -> None:
    documents = [Document(docid, text, title) for docid, (text, title, _) in rows.items()]
    pairs = [(docid, query) for docid, (_, _, queries) in rows.items() for query in queries]
    queries = list({query: Query(queryid_of(query), query) for _, query in pairs}.values())
    qrels = {"train": [Judgement(queryid_of(query), docid) for docid, query in pairs]} if pairs else {}
    corpus = Corpus(documents, queries, qrels)
    with tempfile.TemporaryDirectory() as folder:
        corpus.write(Path(folder) / "c.tsv", format="pairs")
        assert Corpus.read(Path(folder) / "c.tsv") == corpus


LINE = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=40).map(str.strip).filter(bool)
TITLE = LINE.filter(lambda line: not line.endswith("#"))
MARKUP = re.compile(r"^(#|={3}|-{3})", re.MULTILINE)  # headings and front matter
NAME = st.text("abcdefghij0123456789_-", min_size=1, max_size=12).filter(lambda name: name.strip("-_ "))


@given(
    st.dictionaries(
        NAME, st.tuples(st.sampled_from([".md", ".txt"]), TITLE, st.lists(LINE, min_size=1, max_size=3)), min_size=1, max_size=5
    )
)
def test_text_files_read_back_equal(files: dict[str, tuple[str, str, list[str]]]) -> None:
    documents = []
    for name, (suffix, title, paragraphs) in sorted(files.items(), key=lambda item: item[0] + item[1][0]):
        docid, is_markdown = f"{name}{suffix}", suffix == ".md"
        text = ("\n\n" if is_markdown else "\n").join(paragraphs)  # a first line that stands alone would be the title
        documents.append(Document(docid, text, title if is_markdown else title_of(docid)))
    corpus = Corpus([document for document in documents if not MARKUP.search(document.text)] or [Document("a.txt", "x", "a")])
    with tempfile.TemporaryDirectory() as folder:
        corpus.write(folder, format="folder")
        assert Corpus.read(folder) == corpus


@pytest.mark.parametrize(("docid", "title"), [("a.txt", "First"), ("a.md", "First"), ("a.md", "a"), ("a.md", "Other")])
def test_a_first_line_that_stands_alone_is_the_title_unless_there_is_another(docid: str, title: str, tmp_path: Path) -> None:
    corpus = Corpus([Document(docid, "First\n\nSecond.", title)])
    corpus.write(tmp_path, format="folder")
    assert Corpus.read(tmp_path) == corpus


def test_a_gz_name_is_written_as_gzip_and_an_existing_corpus_is_not_written_over(tmp_path: Path) -> None:
    corpus = Corpus([Document("a", "x")])
    corpus.write(tmp_path / "c.jsonl.gz", format="jsonl")
    assert Corpus.read(tmp_path / "c.jsonl.gz") == corpus
    corpus.write(tmp_path / "c")
    with pytest.raises(DataError, match="holds a corpus already"):
        corpus.write(tmp_path / "c")


@pytest.mark.parametrize(
    ("corpus", "format", "says"),
    [
        (Corpus([Document("a", "x")], [Query("q", "y")]), "jsonl", "documents only"),
        (Corpus([Document("a", "tab\there")]), "pairs", "tab or line break"),
        (Corpus([Document("a", "x", "", {"year": 1})]), "pairs", "no metadata"),
        (Corpus([Document("a", "x")], [Query("q", "y", "pseudo")]), "pairs", "annotated train queries only"),
        (Corpus([Document("a", "x")], [Query("q", "y")], {"train": [Judgement("q", "a")]}), "pairs", "no query ids"),
        (Corpus([Document("a.txt", "x\r\ny", "a")]), "folder", "cannot hold"),
        (Corpus([Document("a", "x"), Document("a", "y")]), "beir", "docid 'a' stands twice"),
        (Corpus([Document("a", "x")], [], {"train": [Judgement("q", "a")]}), "beir", "unknown 'q'"),
        (Corpus([Document("../a.txt", "x", "a")]), "folder", "not a relative path"),
        (Corpus([Document("a.txt", "x", "another title")]), "folder", "cannot hold"),
        (Corpus([Document("a", "x")], [Query("q", "y")], {"later": [Judgement("q", "a")]}), "beir", "is not one of train, dev, test"),
        (Corpus([Document("a\tb", "x")]), "beir", "control character"),
        (Corpus([Document("a", "x", "", {"text": 1})]), "beir", "may not use the name 'text'"),
        (Corpus([Document("a", "x\ud800")]), "beir", "lone surrogate"),
        (Corpus([Document("a", "x", "", {"n": float("nan")})]), "beir", "JSON"),
    ],
)
def test_what_a_format_cannot_hold_is_refused(corpus: Corpus, format: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        corpus.write(tmp_path / "c", format=format)
    assert not (tmp_path / "c" / "corpus.jsonl").exists()
