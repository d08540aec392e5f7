"""Files of every kind become documents: text with its headings, title, author, date, folder, pages, and notes on what was left out."""

from __future__ import annotations

import csv
import datetime
import email.message
import gzip
import io
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from promptdsi import Corpus, DataError, Document
from promptdsi.corpus import ReadNotes
from promptdsi.corpus.confined import ConfinedReader, file_kinds
from promptdsi.corpus.file_documents import document_of
from promptdsi.index.search import page_at

FRENCH = "La crème brûlée était prête, déjà servie à l'hôtel où l'on dîne."
WHEN = datetime.datetime(2024, 1, 31, 12, tzinfo=datetime.UTC)


def pdf() -> bytes:
    """Three pages, the second without text."""
    from reportlab.pdfgen.canvas import Canvas

    stream = io.BytesIO()
    canvas = Canvas(stream, invariant=1)  # dated 2000-01-01
    canvas.setTitle("Yearly report")
    canvas.setAuthor("Ada Lovelace")
    for line in ("The mill ground barley.", "", "The harbour froze in March."):
        canvas.drawString(100, 700, line)
        canvas.showPage()
    canvas.save()
    return stream.getvalue()


def word() -> bytes:
    import docx

    file, stream = docx.Document(), io.BytesIO()
    facts = file.core_properties
    facts.title, facts.author, facts.created = "Lease of the mill", "Grace Hopper", WHEN
    file.add_paragraph("Of the mill at the weir:")
    file.add_heading("Rent", 1)
    file.add_paragraph("It is paid in spring.")
    file.add_paragraph("in coin", style="List Bullet")
    table = file.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "barley", "12 sacks"
    file.save(stream)
    return stream.getvalue()


def slides() -> bytes:
    import pptx
    from pptx.util import Inches

    file, stream = pptx.Presentation(), io.BytesIO()
    facts = file.core_properties
    facts.title, facts.author, facts.created = "PowerPoint Presentation", "Edsger Dijkstra", WHEN
    for title, body, remark in (("Locks", "They lift boats.", "Speak slowly."), ("Weirs", "They hold water.", "")):
        slide = file.slides.add_slide(file.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = title, body
        if remark:
            slide.notes_slide.notes_text_frame.text = remark
    slide.shapes.add_table(1, 2, Inches(1), Inches(1), Inches(4), Inches(1)).table.cell(0, 0).text = "height"
    file.save(stream)
    return stream.getvalue()


def book() -> bytes:
    container = '<container><rootfiles><rootfile full-path="OPS/book.opf"/></rootfiles></container>'
    package = """<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/">
        <metadata><dc:title>The Owl</dc:title><dc:creator>Mary Shelley</dc:creator><dc:date>1818-01-01</dc:date></metadata>
        <manifest><item id="a" href="first%20one.xhtml"/><item id="b" href="second.xhtml"/></manifest>
        <spine><itemref idref="b"/><itemref idref="a"/></spine></package>"""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("META-INF/container.xml", container)
        archive.writestr("OPS/book.opf", package)
        archive.writestr("OPS/first one.xhtml", "<h1>Day</h1><p>Owls sleep.</p>")
        archive.writestr("OPS/second.xhtml", "<h1>Night</h1><p>Owls hunt.</p>")
    return stream.getvalue()


def mail(body: str = "Bring 3 sacks, déjà vu.") -> bytes:
    message = email.message.EmailMessage()
    message["Subject"], message["From"], message["To"] = "Barley for Zoë", "Zoë Müller <zoe@example.org>", "ada@example.org"
    message["Date"] = WHEN
    message.set_content(body)
    message.add_alternative(f"<p>Not this: {body}</p>", subtype="html")
    message.add_attachment(b"\x00" * 10, maintype="image", subtype="png", filename="mill.png")
    return bytes(message)


def notebook() -> bytes:
    figure = {"data": {"image/png": "A" * 20_000_000, "text/plain": ["<Figure>"]}}  # as long as pictures in notebooks are
    cells: list[dict[str, Any]] = [
        {"cell_type": "markdown", "source": ["# Yields\n", "\n", "Sacks by year."]},
        {"cell_type": "code", "source": "print(12)", "outputs": [{"text": ["12\n"]}, figure]},
    ]
    return json.dumps({"cells": cells, "nbformat": 4}).encode()


def table() -> bytes:
    stream = io.StringIO()
    rows = [["name", "remark", ""], ["Ada", 'she said, \'tis "late"', "more"], ["Zoë", "two\nlines", ""]]
    csv.writer(stream, delimiter=";").writerows(rows)
    return stream.getvalue().encode()


PAGE = f"""<html><head><meta charset="latin-1"><title>Tea</title><meta name="author" content="Kakuzo">
    <meta name="date" content="1906-05-01T00:00"><style>p {{}}</style></head>
    <body><h1>Tea</h1><script>alert()</script><h2>Water</h2><p>{FRENCH} <a href="x">snake_case *</a></p></body></html>"""
MARKDOWN = """---
title: Canal locks
author: Ada
date: 2024-01-31
tags: [water, boats]
---
# Canal locks

They lift boats.
"""
RESTRUCTURED = "=====\nGuide\n=====\n\nWords.\n\nWater\n-----\n\nMore words.\n"
FILES = {
    "report.pdf": pdf,
    "lease.docx": word,
    "talk.pptx": slides,
    "owl.epub": book,
    "letters/2024/barley.eml": mail,
    "yields.ipynb": notebook,
    "people.csv": table,
    "tea.html": lambda: PAGE.encode("latin-1"),
    "locks.md": lambda: MARKDOWN.replace("\n", "\r\n").encode(),
    "guide.rst": lambda: RESTRUCTURED.encode(),
    "latin.txt": lambda: FRENCH.encode("latin-1"),
    "wide.txt": lambda: f"A title\r\n\r\n{FRENCH}".encode("utf-16"),
    "green_tea.txt.gz": lambda: gzip.compress(b"\xef\xbb\xbfBrew it cooler."),
}
EXPECTED = [
    Document(
        "report.pdf",
        "The mill ground barley.\n\n\n\nThe harbour froze in March.",
        "Yearly report",
        {"author": "Ada Lovelace", "date": "2000-01-01", "pages": [0, 25, 27]},
    ),
    Document(
        "lease.docx",
        "Of the mill at the weir:\n\n# Rent\n\nIt is paid in spring.\n\n* in coin\n\n|  |  |\n| --- | --- |\n| barley | 12 sacks |",
        "Lease of the mill",
        {"author": "Grace Hopper", "date": "2024-01-31"},
    ),
    Document(
        "talk.pptx",
        "## Locks\n\nThey lift boats.\n\nSpeak slowly.\n\n## Weirs\n\nThey hold water.\n\nheight |",
        "Locks",
        {"author": "Edsger Dijkstra", "date": "2024-01-31", "pages": [0, 43]},
    ),
    Document(
        "owl.epub",
        "# Night\n\nOwls hunt.\n\n# Day\n\nOwls sleep.",
        "The Owl",
        {"author": "Mary Shelley", "date": "1818-01-01", "pages": [0, 21]},
    ),
    Document(
        "letters/2024/barley.eml",
        "From: Zoë Müller <zoe@example.org>\nTo: ada@example.org\nDate: Wed, 31 Jan 2024 12:00:00 +0000\nAttachment: mill.png\n\n"
        "Bring 3 sacks, déjà vu.",
        "Barley for Zoë",
        {"author": "Zoë Müller <zoe@example.org>", "date": "2024-01-31", "folder": "letters/2024"},
    ),
    Document("yields.ipynb", "Sacks by year.\n\n```\nprint(12)\n```\n\n12\n\n\n<Figure>", "Yields"),
    Document("people.csv", 'name: Ada\nremark: she said, \'tis "late"\nmore\n\nname: Zoë\nremark: two\nlines', "people"),
    Document("tea.html", f"## Water\n\n{FRENCH} snake_case *", "Tea", {"author": "Kakuzo", "date": "1906-05-01"}),
    Document("locks.md", "They lift boats.", "Canal locks", {"author": "Ada", "date": "2024-01-31", "tags": ["water", "boats"]}),
    Document("guide.rst", "Words.\n\n## Water\n\n\nMore words.", "Guide"),
    Document("latin.txt", FRENCH, "latin"),
    Document("wide.txt", f"A title\n\n{FRENCH}", "A title"),
    Document("green_tea.txt.gz", "Brew it cooler.", "green tea"),
]


@pytest.fixture(scope="module")
def reader() -> Iterator[ConfinedReader]:
    with ConfinedReader() as reader:
        yield reader


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files") / "all kinds"
    for name, contents in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(contents())
    return folder


@pytest.fixture(scope="module")
def notes() -> ReadNotes:
    return ReadNotes()


@pytest.fixture(scope="module")
def corpus(folder: Path, notes: ReadNotes) -> Corpus:
    return Corpus.read(folder, notes=notes)


@pytest.mark.parametrize("expected", EXPECTED, ids=[document.docid for document in EXPECTED])
def test_a_file_of_each_kind_is_read(corpus: Corpus, expected: Document) -> None:
    document = next(document for document in corpus.documents if document.docid == expected.docid)
    assert (document.text, document.title, dict(document.metadata)) == (expected.text, expected.title, dict(expected.metadata))


def test_there_is_a_file_of_every_kind(corpus: Corpus) -> None:
    suffixes = {Path(name.removesuffix(".gz")).suffix for name in FILES}
    assert {kind.NAME for kind in file_kinds().values()} == {file_kinds()[suffix].NAME for suffix in suffixes}
    assert (len(corpus), corpus.name) == (len(FILES), "all kinds")


def test_files_come_in_the_order_of_their_paths(corpus: Corpus) -> None:
    assert [document.docid for document in corpus.documents] == [
        *sorted(set(FILES) - {"letters/2024/barley.eml"}),
        "letters/2024/barley.eml",
    ]


def test_a_place_in_the_text_tells_its_page(corpus: Corpus) -> None:
    for docid, words, page in [
        ("report.pdf", "harbour", 3),
        ("report.pdf", "The mill", 1),
        ("talk.pptx", "## Weirs", 2),
        ("owl.epub", "Day", 2),
    ]:
        document = next(document for document in corpus.documents if document.docid == docid)
        assert page_at(document.metadata, document.text.index(words)) == page
    assert page_at({}, 0) is None


def test_what_was_left_out_or_recognised_is_noted(corpus: Corpus, notes: ReadNotes) -> None:
    assert sorted(notes.remarks) == [
        "latin.txt: not UTF-8, read as cp1252",
        "letters/2024/barley.eml: 1 attachment not read (mill.png)",
        "report.pdf: 1 page without text",
        "wide.txt: not UTF-8, read as utf_16",
        "yields.ipynb: 1 image of output not read",
    ]
    assert notes.skipped == [] and notes.sentences() == notes.remarks


def test_a_document_from_bytes_is_the_one_from_disk(folder: Path, corpus: Corpus, reader: ConfinedReader) -> None:
    assert corpus.documents == [
        document_of((folder / document.docid).read_bytes(), document.docid, reader).document for document in corpus.documents
    ]


def test_a_corpus_of_files_can_be_kept_as_a_data_set(corpus: Corpus, tmp_path: Path) -> None:
    corpus.write(tmp_path / "copy")
    assert Corpus.read(tmp_path / "copy") == corpus


@pytest.mark.parametrize("name", ["report.pdf", "letters/2024/barley.eml", "latin.txt", "people.csv"])
def test_a_single_file_is_a_corpus(folder: Path, corpus: Corpus, name: str) -> None:
    single = Corpus.read(folder / name)
    in_folder = next(document for document in corpus.documents if document.docid == name)
    assert [(document.docid, document.text) for document in single.documents] == [(Path(name).name, in_folder.text)]


def test_a_single_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "x.pdf").write_bytes(b"no PDF")
    with pytest.raises(DataError, match=r"x\.pdf: holds no document: .*x\.pdf: is no PDF file"):
        Corpus.read(tmp_path / "x.pdf")
    with pytest.raises(DataError, match=r"x\.pdf: is no PDF file"):
        Corpus.read(tmp_path / "x.pdf", on_error="stop")


def test_hidden_files_and_links_are_not_read(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    for path in (folder / ".hidden/a.txt", folder / ".b.txt", folder / "c.txt", elsewhere / "d.txt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    os.symlink(elsewhere / "d.txt", folder / "file.txt")
    os.symlink(elsewhere, folder / "place")
    notes = ReadNotes()
    assert [document.docid for document in Corpus.read(folder, notes=notes).documents] == ["c.txt"]
    assert notes.sentences() == [f"1 linked {kind} was not followed (--follow-links)" for kind in ("file", "folder")]
    corpus = Corpus.read(folder, follow_links=True)
    assert [document.docid for document in corpus.documents] == ["c.txt", "file.txt", "place/d.txt"]


def test_links_that_lead_back_or_nowhere_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "folder/inner").mkdir(parents=True)
    (tmp_path / "a.txt").write_text("some words")
    os.symlink("..", tmp_path / "folder/inner/back")
    os.symlink("nowhere", tmp_path / "folder/broken.txt")
    os.symlink("loop.txt", tmp_path / "folder/loop.txt")
    os.symlink("../a.txt", tmp_path / "folder/only.txt")
    notes = ReadNotes()
    corpus = Corpus.read(tmp_path / "folder", follow_links=True, notes=notes)
    assert [document.docid for document in corpus.documents] == ["only.txt"]
    assert notes.sentences() == ["2 files are pipes, sockets, devices or broken links and were not read"]


def test_files_of_kinds_that_are_not_read_are_counted_by_suffix(tmp_path: Path) -> None:
    for name in ("a.txt", "b.JPG", "c.jpg", "d.doc", "e.xls", "README", "f.tar.gz"):
        (tmp_path / name).write_text("some words")
    notes = ReadNotes()
    assert len(Corpus.read(tmp_path, notes=notes)) == 1
    counts = "2 .jpg, 1 .doc, 1 .gz, 1 .xls, 1 without a suffix"
    assert notes.sentences() == [f"not read: {counts}; save .doc as .docx or PDF, .xls as .csv or PDF"]


@pytest.mark.parametrize(
    ("name", "contents", "reason"),
    [
        ("empty.txt", b" \n", "is empty"),
        ("empty.eml", b"Subject: nothing else\n\n", "holds no text"),
        ("broken.pdf", b"no PDF", "is no PDF file"),
    ],
)
def test_a_file_without_text_says_so_in_plain_words(reader: ConfinedReader, name: str, contents: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}$"):
        document_of(contents, name, reader)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Съешь же ещё этих мягких французских булок, да выпей чаю.", "cp1251"),
        ("今日は良い天気です。日本語の文章をここに書きます。", "shift_jis"),
        ("Příliš žluťoučký kůň úpěl ďábelské ódy.", "cp1250"),
        ("It’s “quoted” — déjà vu.", "cp1252"),
        ("café", "latin-1"),
        ("Größe", "utf-32"),
    ],
)
def test_other_encodings_are_recognised(reader: ConfinedReader, text: str, encoding: str) -> None:
    document, notes = document_of(text.encode(encoding), "a.txt", reader)
    assert document.text == text and notes[0].startswith("not UTF-8, read as ")
