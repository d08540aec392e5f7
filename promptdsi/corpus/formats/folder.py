"""A folder of text and Markdown files, each a document: docid = path inside the folder.

The title is a Markdown file's leading `# heading`, else the file's name in words. Hidden files and folders are ignored.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from promptdsi.corpus.corpus import SPLITS, Corpus, Document, ReadNotes, check_characters, check_document
from promptdsi.corpus.reading import MAX_LINE_BYTES, decode, raw_lines
from promptdsi.errors import DataError
from promptdsi.files import atomic_write

NAME = "folder"
MARKDOWN = (".md", ".markdown")
SUFFIXES = (".txt", ".text", *MARKDOWN)


def recognizes(path: Path) -> bool:
    return path.is_dir() and next(_files(path, ReadNotes()), None) is not None


def read(path: Path, notes: ReadNotes, *, max_unknown: int = 0, splits: Sequence[str] = SPLITS) -> Corpus:
    documents = []
    for file in _files(path, notes):
        try:
            documents.append(_document(file, file.relative_to(path).as_posix()))
        except DataError as error:
            notes.refuse(error)
        except OSError as error:
            notes.refuse(DataError(f"cannot be read: {error.strerror}", path=file))
    return Corpus(documents)


def write(corpus: Corpus, path: Path) -> None:
    if corpus.queries or corpus.qrels:
        raise ValueError("a folder of text files holds documents only; write a BEIR folder to keep the queries")
    for document in corpus.documents:
        contents = _contents(document)
        with atomic_write(path / document.docid) as file:
            file.write(contents)


def _files(folder: Path, notes: ReadNotes) -> Iterator[Path]:
    """Text files in the order of their paths, so that the same folder is always the same corpus."""
    for parent, folders, names in os.walk(folder, onerror=_refuse_folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.startswith("."):
                continue
            if _plain(name).endswith(SUFFIXES) and not stat.S_ISFIFO(Path(parent, name).lstat().st_mode):
                yield Path(parent, name)
            else:
                notes.count("files are neither text nor Markdown and were not read")


def _refuse_folder(error: OSError) -> None:
    raise DataError(f"cannot be read: {error.strerror}", path=error.filename)


def _plain(name: str) -> str:
    return name.lower().removesuffix(".gz")


def _document(file: Path, docid: str) -> Document:
    lines: list[str] = []
    size = 0
    for line in raw_lines(file):
        size += len(line.raw) + 1
        if size > MAX_LINE_BYTES:
            raise DataError(f"is longer than {MAX_LINE_BYTES >> 20} MiB; split it into documents", path=file)
        lines.append(decode(line, file))
    try:
        check_characters(docid)
        document = document_of(docid, "\n".join(lines))
        check_document(document)
    except ValueError as error:
        raise DataError(str(error), path=file) from None
    return document


def document_of(docid: str, contents: str) -> Document:
    """The document of one file: title and text.

    Examples
    --------
    >>> document_of("notes/tea.md", "# How to brew tea\\n\\nUse fresh water.\\n")
    Document(docid='notes/tea.md', text='Use fresh water.', title='How to brew tea', metadata=mappingproxy({}))
    """
    name = PurePosixPath(_plain(docid))
    body = contents.strip()
    if name.suffix in MARKDOWN and body.startswith("# "):
        heading, _, rest = body.partition("\n")
        if rest.strip():
            return Document(docid, rest.strip(), heading[2:].strip())
    return Document(docid, body, title_of(docid))


def title_of(docid: str) -> str:
    """A file's name in words: `notes/green_tea.txt` → `green tea`."""
    name = PurePosixPath(docid).name.removesuffix(".gz")
    return PurePosixPath(name).stem.replace("_", " ").replace("-", " ").strip()


def _contents(document: Document) -> bytes:
    check_document(document)
    check_characters((document.docid, document.title, document.text))
    path = PurePosixPath(document.docid)
    is_relative = not path.is_absolute() and ".." not in path.parts and not any(part.startswith(".") for part in path.parts)
    if not (is_relative and path.as_posix() == document.docid and path.suffix.lower() in SUFFIXES):
        raise ValueError(f"docid {document.docid!r} is not a relative path of a text file; write a BEIR folder to keep it")
    contents = document.text
    if document.title != title_of(document.docid) and path.suffix.lower() in MARKDOWN:
        contents = f"# {document.title}\n\n{document.text}"
    if document_of(document.docid, contents) != document or "\r" in contents or contents.startswith("\ufeff"):
        raise ValueError(
            f"document {document.docid!r} has a title, metadata or white space that a text file cannot hold; write a BEIR folder"
        )
    return contents.encode("utf-8") + b"\n"
