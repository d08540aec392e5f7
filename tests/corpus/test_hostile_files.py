"""Hostile and broken files harm nobody: each is read or skipped with a reason, in bounded time and memory, and every other file is read."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from promptdsi import Corpus
from promptdsi.corpus import ReadNotes, file_documents
from promptdsi.corpus.confined import ConfinedReader
from promptdsi.corpus.extract import OLD_OFFICE

UNPRIVILEGED = 65534
LAUGHS = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))
ENTITIES = f'<!DOCTYPE r [<!ENTITY a0 "ha">{LAUGHS}<!ENTITY secret SYSTEM "file:///etc/passwd">]>'
CONTAINER = '<container><rootfile full-path="book.opf"/></container>'
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
BUTTERFLY = "&a11;&secret;"


def zipped(files: dict[str, str | bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, contents in files.items():
            archive.writestr(name, contents)
    return stream.getvalue()


def bomb(name: str, files: dict[str, str | bytes]) -> bytes:
    """An archive of 3 MB whose file `name` unpacks to 3 GiB."""
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(bytes(16 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    stream = io.BytesIO(zipped(files))
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr(name, block * 192 + zlib.compressobj(wbits=-15).flush())
        entry = archive.getinfo(name)
        entry.compress_type, entry.file_size = zipfile.ZIP_DEFLATED, 192 * (16 << 20)
    return stream.getvalue()


def locked() -> bytes:
    """An archive that says its files are encrypted."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in ("META-INF/container.xml", "word/document.xml", "[Content_Types].xml"):
            archive.writestr(name, "secret")
            archive.getinfo(name).flag_bits |= 1
    contents = stream.getvalue()
    return contents.replace(b"PK\x03\x04\x14\x00\x00", b"PK\x03\x04\x14\x00\x01")


def book(chapter: str | bytes, *, href: str = "a.xhtml", declaration: str = "", title: str = "T") -> dict[str, str | bytes]:
    package = f"""{declaration}<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/">
        <metadata><dc:title>{title}</dc:title></metadata><manifest><item id="a" href="{href}"/><item id="b" href="b.xhtml"/></manifest>
        <spine><itemref idref="a"/><itemref idref="b"/></spine></package>"""
    return {"META-INF/container.xml": CONTAINER, "book.opf": package, "a.xhtml": chapter, "b.xhtml": "<p>the end</p>"}


def word(text: str, declaration: str = "") -> dict[str, str | bytes]:
    body = f"<w:body><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:body>"
    return {"word/document.xml": f'{declaration}<w:document xmlns:w="{WORD}">{body}</w:document>'}


def pdf(*lines: str) -> bytes:
    from reportlab.pdfgen.canvas import Canvas

    stream = io.BytesIO()
    canvas = Canvas(stream)
    for line in lines:
        canvas.drawString(100, 700, line)
        canvas.showPage()
    canvas.save()
    return stream.getvalue()


def encrypted_pdf() -> bytes:
    import pypdf

    writer, stream = pypdf.PdfWriter(clone_from=io.BytesIO(pdf("hidden"))), io.BytesIO()
    writer.encrypt("password", algorithm="RC4-128")
    writer.write(stream)
    return stream.getvalue()


def scan() -> bytes:
    from reportlab.pdfgen.canvas import Canvas

    stream = io.BytesIO()
    canvas = Canvas(stream)
    canvas.rect(10, 10, 300, 300, fill=1)
    canvas.save()
    return stream.getvalue()


def slides() -> bytes:
    import pptx

    stream = io.BytesIO()
    pptx.Presentation().save(stream)
    return stream.getvalue()


def mail(content_type: str, body: bytes, subject: bytes = b"Hello") -> bytes:
    return b"Subject: " + subject + b"\r\nContent-Type: " + content_type.encode() + b"\r\n\r\n" + body


def cells(*values: object) -> bytes:
    return json.dumps({"cells": values}).encode()


def front(fields: str) -> bytes:
    return f"---\n{fields}\n---\nplain words\n".encode()


ALIASES = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12))
ATTACHMENTS = b"".join(b"--x\r\nContent-Disposition: attachment; filename=f%d\r\n\r\nz\r\n" % n for n in range(1000))
NESTED_MAIL = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (n, n) for n in range(1500))


class Case(NamedTuple):
    name: str
    contents: bytes
    reason: str = ""  # what the skipped file's sentence must say
    text: str = ""  # what must stand in the text of a file that is read


CASES = [
    Case("cut.pdf", pdf("first words", "more words")[:-900], "is no PDF file"),
    Case("page.pdf", pdf("first words", "more words").replace(b"/Type /Page\n", b"/Type /Pale\n", 1), text="more words"),
    Case("half.pdf", pdf("first words", "more words")[:300], "is no PDF file"),
    Case("encrypted.pdf", encrypted_pdf(), "is encrypted: remove its password first"),
    Case("text.pdf", b"only some text", "is no PDF file"),
    Case("scan.pdf", scan(), "holds no text; if it is a scan"),
    Case("empty.pdf", b"", "is no PDF file"),
    Case("bomb.docx", bomb("docProps/core.xml", word("words")), "unpacks to more than 1 GiB"),
    Case(
        "bomb.epub",
        bomb("a.xhtml", {name: part for name, part in book("").items() if name != "a.xhtml"}),
        "unpacks to more than 1 GiB",
    ),
    Case("bomb.pptx", bomb("_rels/.rels", {"[Content_Types].xml": "<Types/>"}), "unpacks to more than 1 GiB"),
    Case("laughs.docx", zipped(word(BUTTERFLY, ENTITIES)), "is broken or not what its name says"),
    Case("laughs.epub", zipped(book("<p>x</p>", declaration=ENTITIES, title=BUTTERFLY)), "is no EPUB book"),
    Case("laughs.xhtml", f"{ENTITIES}<html><body>plain words {BUTTERFLY}</body></html>".encode(), text="plain words"),
    Case("laughs.md", front(f"a0: &a0 ha\n{ALIASES}"), text="plain words"),
    Case("tags.md", front("when: !!timestamp never\nsize: !!int ''\nyes: !!bool maybe"), text="plain words"),
    Case("python.md", front("a: !!python/object/apply:os.system ['touch harm']"), text="plain words"),
    Case("numbers.md", front(f"a: 0x{'f' * 50_000}\nb: .nan\nc: .inf"), text="plain words"),
    Case("nested.md", front("a: " + "[" * 20_000), text="plain words"),
    Case("lists.md", front("a: " + "[" * 150 + "]" * 150), text="plain words"),
    Case("pages.md", front("pages: [first, last]\ntext: no\n_id: 7"), text="plain words"),
    Case("unnamed.md", front("1: 2"), text="plain words"),
    Case("nested.html", b"<p>top</p>" + b"<div>" * 5000 + b"bottom" + b"</div>" * 5000 + b"<p>after</p>", text="top\nbottom\nafter"),
    Case("charset.html", "<meta charset=utf-8><p>déjà vu, crème brûlée</p>".encode("latin-1"), text="déjà vu, crème brûlée"),
    Case("no-charset.html", "<meta charset=klingon><p>déjà vu, crème brûlée</p>".encode("latin-1"), text="déjà vu"),
    Case("nul.html", b"<p>a\x00b</p>", "is no text: it holds NUL bytes"),
    Case("unclosed.html", b"<p>words <b <i <table><tr><td>cell</p></html>more", text="more"),
    Case("nested.ipynb", b'{"cells": ' + b"[" * 100_000, "is nested too deeply"),
    Case("types.ipynb", cells("text", 5), "is broken or not what its name says"),
    Case("sources.ipynb", cells({"source": [1, None]}), "is broken or not what its name says"),
    Case("outputs.ipynb", cells({"source": "x", "outputs": 5}), "is broken or not what its name says"),
    Case("no-cells.ipynb", b'{"cells": {}}', "is no notebook"),
    Case("cut.ipynb", cells({"source": "x"})[:-5], "is no notebook"),
    Case("surrogate.ipynb", b'{"cells": [{"cell_type": "markdown", "source": "a \\ud800 b"}]}', "holds the lone surrogate U+D800"),
    Case("nul.ipynb", b'{"cells": [{"cell_type": "markdown", "source": "a \\u0000 b"}]}', "holds a NUL character"),
    Case("traversal.epub", zipped(book("<p>x</p>", href="../../../../../../etc/passwd")), text="the end"),
    Case("absolute.epub", zipped(book("<p>x</p>", href="/etc/passwd")), text="the end"),
    Case("no-book.epub", zipped({"mimetype": "application/epub+zip"}), "is no EPUB book"),
    Case("no-document.docx", zipped({"a.txt": "x"}), "is broken or not what its name says"),
    Case("no-zip.docx", b"only some text", "is not a whole archive"),
    Case("cut.pptx", slides()[:-100], "is not a whole archive"),
    Case("begins-late.epub", zipped(book("<p>x</p>"))[100:], "is not a whole archive"),
    Case("encrypted.docx", OLD_OFFICE + bytes(1000), "is encrypted, or of a format before 2007"),
    Case("no-slides.pptx", slides(), "holds no text"),
    Case("locked.docx", locked(), "password required"),
    Case("locked.epub", locked(), "password required"),
    Case("locked.pptx", locked(), "password required"),
    Case("field.csv", b"name,remark\nAda," + b"x" * 2_000_000, text="remark: xxx"),
    Case("quotes.csv", b"name,remark\n" + b'"x ' * 100_000, text="x"),
    Case("doubled.csv", b"name,remark\n" + b'a,"b"\n' * 20_000 + b'Ada,"said ""a, b"" twice"\n', text='remark: said "a, b" twice'),
    Case("ragged.csv", b"a,b\n1\n1,2,3,4\n,,,\n", text="a: 1\nb: 2\n3\n4"),
    Case("nul.csv", b"a,b\n1,\x00\n", "holds NUL bytes"),
    Case("nul.txt", b"a\x00b", "is no text: it holds NUL bytes"),
    Case("noise.txt", random.Random(0).randbytes(1 << 20), "no other encoding fits"),
    Case("nonce.txt", "one \ufffe\uffff two".encode(), text="one \ufffe\uffff two"),
    Case("surrogate.txt", "one \ud800 two".encode("utf-8", "surrogatepass"), ""),
    Case("empty.txt", b"", "is empty"),
    Case("spaces.md", b" \n\t\n", "is empty"),
    Case("empty.eml", b"", "is no e-mail"),
    Case("no-header.eml", b"\n\nonly some text", "is no e-mail"),
    Case("charset.eml", mail('text/plain; charset="klingon"', "déjà vu, crème brûlée".encode("latin-1")), text="déjà vu, crème brûlée"),
    Case("ascii.eml", mail("text/plain; charset=us-ascii", "déjà vu".encode()), text="déjà vu"),
    Case("header.eml", mail("text/plain", b"words", b"=?klingon?b?!!!?= \xff\xfe =?utf-8?q?=ff?="), text="words"),
    Case("base64.eml", mail("text/plain\r\nContent-Transfer-Encoding: base64", b"!!!not base64!!!"), ""),
    Case("attachments.eml", mail("multipart/mixed; boundary=x", ATTACHMENTS + b"--x--"), text="Attachment: f999"),
    Case("nested.eml", b"Subject: x\r\n" + NESTED_MAIL, "is nested too deeply"),
    Case("cut.txt.gz", gzip.compress(b"words" * 100)[:-9], "is not a whole gzip file"),
    Case("no-gzip.md.gz", b"only some text", "is not a whole gzip file"),
    Case("adorned.rst", b"=" * 100_000 + b"\n" + b"-" * 100_000 + b"\n" + b"=x" * 50_000, ""),
]


GOOD = {
    "a.txt": b"good words",
    "z.md": b"good words",
    "x.pdf/inner.txt": b"good words",
    "good.pdf": pdf("good words"),
    "z.html": b"good words",
}
REFUSED_NAMES = [b"new\nline.txt", b"caf\xe9.txt"]


class Outcome(NamedTuple):
    texts: dict[str, str]  # by docid
    metadata: dict[str, str]
    reasons: dict[str, str]  # of skipped files, by name
    notes: ReadNotes
    seconds: float


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A folder of all hostile files and some good ones, read at once."""
    folder = tmp_path_factory.mktemp("hostile") / "files"
    for name, contents in (GOOD | {case.name: case.contents for case in CASES}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(contents)
    for raw_name in REFUSED_NAMES:
        Path(os.fsdecode(os.fsencode(folder) + b"/" + raw_name)).write_text("words")
    os.mkfifo(folder / "pipe.txt")
    notes = ReadNotes()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(folder / "socket.txt"))  # an address may not be long
        start = time.monotonic()
        corpus = Corpus.read(folder, notes=notes)
        seconds = time.monotonic() - start
    texts = {document.docid: document.text for document in corpus.documents}
    metadata = {document.docid: json.dumps(dict(document.metadata), allow_nan=False) for document in corpus.documents}
    return Outcome(texts, metadata, {error.path.name: error.problem for error in notes.skipped}, notes, seconds)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_hostile_file_is_read_or_skipped_with_a_reason(case: Case, outcome: Outcome) -> None:
    text, reason = outcome.texts.get(case.name, ""), outcome.reasons.get(case.name, "")
    assert bool(text) != bool(reason) and bool(reason) == bool(case.reason), (text[:100], reason)
    assert case.reason in reason and len(reason) < 400 and "\n" not in reason
    assert case.text in text and "root:" not in text


def test_every_good_file_beside_them_is_read(outcome: Outcome) -> None:
    assert {name: outcome.texts.get(name) for name in GOOD} == dict.fromkeys(GOOD, "good words")
    assert len(CASES) >= 30 and len(outcome.texts) + len(outcome.reasons) == len(GOOD) + len(CASES) + len(REFUSED_NAMES)
    assert outcome.seconds < 60


def test_files_that_are_no_files_are_not_opened(outcome: Outcome) -> None:
    assert outcome.notes.counts == {"files are pipes, sockets, devices or broken links and were not read": 2}  # the pipe and the socket


def test_names_that_cannot_be_ids_are_refused(outcome: Outcome) -> None:
    reasons = [outcome.reasons[os.fsdecode(name)] for name in REFUSED_NAMES]
    assert "control character U+000A" in reasons[0] and "lone surrogate" in reasons[1]


def test_missing_chapters_are_noted(outcome: Outcome) -> None:
    assert "traversal.epub: 1 chapter is missing" in outcome.notes.remarks


def test_a_list_of_pages_in_front_matter_is_not_taken_for_ours(outcome: Outcome) -> None:
    assert outcome.metadata["pages.md"] == "{}"


@pytest.fixture
def ordinary_user() -> Iterator[None]:
    """Not root, who may read everything."""
    user = os.geteuid()
    os.seteuid(user or UNPRIVILEGED)
    yield
    os.seteuid(user)


def test_what_may_not_be_read_is_skipped(outcome: Outcome, ordinary_user: None) -> None:  # all kinds are imported by then
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in ("a.txt", "b.txt", "closed/c.txt"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("words")
        (folder / "a.txt").chmod(0)
        (folder / "closed").chmod(0)
        notes = ReadNotes()
        documents = Corpus.read(folder, notes=notes).documents
        (folder / "closed").chmod(0o700)
    assert [document.docid for document in documents] == ["b.txt"]
    assert [error.problem for error in notes.skipped] == ["cannot be read: Permission denied"] * 2


def test_a_path_longer_than_the_system_allows_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good.txt").write_text("words")
    monkeypatch.chdir(tmp_path)
    for _ in range(20):
        os.mkdir("x" * 250)
        os.chdir("x" * 250)
    Path("deep.txt").write_text("words")
    os.chdir(tmp_path)
    notes = ReadNotes()
    assert [document.docid for document in Corpus.read(tmp_path, notes=notes).documents] == ["good.txt"]
    assert [error.problem for error in notes.skipped] == ["cannot be read: File name too long"]


def test_files_larger_than_the_bound_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_documents, "MAX_FILE_BYTES", 1 << 20)
    (tmp_path / "a.txt").write_bytes(b"x" * (1 << 20))
    (tmp_path / "b.txt").write_bytes(b"x" * (1 << 20) + b"y")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(bytes(100 << 20), 1))
    notes = ReadNotes()
    assert [document.docid for document in Corpus.read(tmp_path, notes=notes).documents] == ["a.txt"]
    assert [error.problem.split(";")[0] for error in notes.skipped] == ["is larger than 1 MiB", "unpacks to more than 1 MiB"]


def test_a_reader_that_takes_too_long_is_ended_and_works_again() -> None:
    with ConfinedReader() as reader:
        assert reader.extract(".csv", b"words").text == "words"
        child_of(reader).send_signal(signal.SIGSTOP)  # too slow on any machine
        reader.seconds = 1
        start = time.monotonic()
        with pytest.raises(ValueError, match="takes more than 1 s to read"):
            reader.extract(".csv", b"words")
        assert time.monotonic() - start < 5
        reader.seconds = 60
        assert reader.extract(".html", b"<p>words</p>").text == "words"


def crash(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    child.send_signal(number)
    child.send_signal(signal.SIGCONT)  # a process that is stopped takes no other signal but SIGKILL


def test_a_reader_whose_child_crashes_works_again() -> None:
    with ConfinedReader() as reader:
        for number in (signal.SIGKILL, signal.SIGSEGV):
            assert reader.extract(".csv", b"words").text == "words"
            child = child_of(reader)
            child.send_signal(signal.SIGSTOP)  # it reads until the other signal comes
            timer = threading.Timer(0.3, crash, [child, number])
            timer.start()
            with pytest.raises(ValueError, match="its reader crashed on it"):
                reader.extract(".csv", b"words")
            timer.join()
            assert child.poll() is not None
        assert reader.extract(".csv", b"words").text == "words"
        child_of(reader).kill()  # between two files
        child_of(reader).wait()
        assert reader.extract(".csv", b"words").text == "words"


def test_an_interruption_of_the_terminal_does_not_end_the_child() -> None:
    with ConfinedReader() as reader:
        reader.extract(".csv", b"words")
        child = child_of(reader)
        child.send_signal(signal.SIGINT)  # reaches all processes of a terminal; the parent ends its child when it ends
        assert reader.extract(".csv", b"words").text == "words" and child_of(reader) is child
    assert child.poll() is not None


def child_of(reader: ConfinedReader) -> subprocess.Popen[bytes]:
    assert reader._child is not None
    return reader._child


def test_nothing_in_the_working_directory_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json.py", "csv.py", "bs4.py", "lxml.py"):
        (tmp_path / name).write_text("raise SystemExit")
    (tmp_path / "a.html").write_text("<p>words</p>")
    monkeypatch.chdir(tmp_path)
    assert Corpus.read(".").documents[0].text == "words"


@pytest.mark.parametrize(
    ("harm", "says"),
    [("pathlib.Path('a').write_text('harm')", "File too large"), ("bytearray(3 << 30)", "MemoryError")],
    ids=["files", "memory"],
)
def test_the_child_can_neither_write_files_nor_fill_the_memory(harm: str, says: str, tmp_path: Path) -> None:
    program = f"import pathlib; from promptdsi.corpus.confined import confine; confine(); {harm}"
    process = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert says in process.stderr and not [path for path in tmp_path.iterdir() if path.stat().st_size]


def test_what_parsers_print_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with ConfinedReader() as reader:
        reader.extract(".html", b"http://example.org/")  # the parser warns of it
    assert capfd.readouterr() == ("", "")
