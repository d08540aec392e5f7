"""A folder of files, each a document: docid = path inside the folder. A single file is a corpus of one document.

Which kinds of files are read, file_kinds/ says. Hidden files and folders are ignored, and links are not followed unless asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from promptdsi.corpus.confined import ConfinedReader
from promptdsi.corpus.corpus import SPLITS, Corpus, Document, ReadNotes, check_characters, check_document
from promptdsi.corpus.file_documents import document_of, is_readable, read_file
from promptdsi.corpus.file_kinds import markdown, text
from promptdsi.corpus.reading import BYTE_ORDER_MARK
from promptdsi.errors import DataError
from promptdsi.files import atomic_write

NAME = "folder"
WRITTEN = (*text.SUFFIXES, *markdown.SUFFIXES)  # kinds that are written too


def recognizes(path: Path) -> bool:
    return next(files_of(path, ReadNotes(skip=True, follow_links=True)), None) is not None


def read(path: Path, notes: ReadNotes, *, max_unknown: int = 0, splits: Sequence[str] = SPLITS) -> Corpus:
    root = path if path.is_dir() else path.parent
    documents = []
    with ConfinedReader() as reader:
        for file in files_of(path, notes):
            docid = file.relative_to(root).as_posix()
            try:
                document, remarks = read_file(file, docid, reader)
                documents.append(document)
                for remark in remarks:
                    notes.remark(f"{docid}: {remark}")
            except ValueError as error:
                notes.refuse(DataError(str(error), path=file))
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


def files_of(path: Path, notes: ReadNotes) -> Iterator[Path]:
    """The files that are read, in the order of their paths, so that the same folder is always the same corpus."""
    if not path.is_dir():
        if path.is_file() and is_readable(path.name):
            yield path
        return
    visited: set[str] = set()  # a link may lead back
    for parent, folders, names in os.walk(path, onerror=lambda error: _refuse_folder(error, path, notes), followlinks=notes.follow_links):
        if (real_parent := os.path.realpath(parent)) in visited:
            folders.clear()
            continue
        visited.add(real_parent)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        notes.count(
            "linked folders were not followed (--follow-links)",
            0 if notes.follow_links else sum(map(os.path.islink, (Path(parent, name) for name in folders))),
        )
        for name in sorted(names):
            if name.startswith("."):
                continue
            file = Path(parent, name)
            if os.path.islink(file) and not notes.follow_links:
                notes.count("linked files were not followed (--follow-links)")
            elif not is_readable(name):
                notes.unread.note(name)
            elif not os.path.isfile(file):
                notes.count("files are pipes, sockets, devices or broken links and were not read")
            else:
                yield file


def _refuse_folder(error: OSError, path: Path, notes: ReadNotes) -> None:
    problem = DataError(f"cannot be read: {error.strerror}", path=error.filename)
    if Path(error.filename) == path:
        raise problem
    notes.refuse(problem)


def _contents(document: Document) -> bytes:
    check_document(document)
    check_characters((document.docid, document.title, document.text))
    path = PurePosixPath(document.docid)
    is_relative = not path.is_absolute() and ".." not in path.parts and not any(part.startswith(".") for part in path.parts)
    if not (is_relative and path.as_posix() == document.docid and path.suffix.lower() in WRITTEN):
        raise ValueError(f"docid {document.docid!r} is not a relative path of a text file; write a BEIR folder to keep it")
    for heading in ("", f"# {document.title}\n\n" if path.suffix.lower() in markdown.SUFFIXES else ""):
        contents = (heading + document.text).encode("utf-8")
        if document_of(contents, document.docid, ConfinedReader()).document == document and not contents.startswith(BYTE_ORDER_MARK):
            return contents + b"\n"
    raise ValueError(f"document {document.docid!r} has a title, metadata or white space that a text file cannot hold; write a BEIR folder")
