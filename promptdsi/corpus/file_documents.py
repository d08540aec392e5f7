"""Files to documents: the one function by which command line, page and API read a file, whatever its kind."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from promptdsi.corpus.confined import ConfinedReader, file_kinds
from promptdsi.corpus.corpus import RESERVED_FIELDS, Document, check_characters, check_document
from promptdsi.corpus.extract import PAGES, Extract
from promptdsi.corpus.passages import HEADING

MAX_FILE_BYTES = 256 << 20
IN_PROCESS = ("text", "markdown")  # kinds whose readers take no more than the file's own size
LONGEST_TITLE = 80  # characters of a first line that can be a title
NO_TITLE = re.compile(r"[.:;,!?|]$|^[-*>#|`]")


class FileDocument(NamedTuple):
    """The document of a file, and what its reader left out."""

    document: Document
    notes: list[str]


def suffix_of(name: str) -> str:
    """The suffix that tells what kind of file this is: that of the packed file for .gz, if it is text."""
    path = PurePosixPath(name.lower())
    return PurePosixPath(path.stem).suffix if path.suffix == ".gz" else path.suffix


def is_readable(name: str) -> bool:
    """Whether files of this name are read."""
    kind = file_kinds().get(suffix_of(name))
    return kind is not None and (not name.lower().endswith(".gz") or kind.NAME in IN_PROCESS)


def document_of(contents: bytes, docid: str, reader: ConfinedReader, *, max_bytes: int | None = None) -> FileDocument:
    """The document of one file; ValueError says why it cannot be read. The docid is its path, which tells what kind of file it is."""
    if not is_readable(docid):
        raise ValueError(f"is no kind of file that is read: {', '.join(sorted(file_kinds()))}")
    max_bytes = max_bytes or MAX_FILE_BYTES
    if len(contents) > max_bytes:
        raise ValueError(f"is larger than {max_bytes >> 20} MiB; split it into documents")
    suffix = suffix_of(docid)
    kind = file_kinds()[suffix]
    if docid.lower().endswith(".gz"):
        contents = _unpacked(contents, max_bytes)
    extract: Extract = kind.extract(contents) if kind.NAME in IN_PROCESS else reader.extract(suffix, contents)
    text, title = _text_and_title(extract, docid, named=kind.NAME == "markdown")
    if not text.strip():
        raise ValueError("holds no text" if contents.strip() else "is empty")
    metadata = {name: value for name, value in extract.metadata.items() if name not in RESERVED_FIELDS}
    if isinstance(metadata.get(PAGES), list):  # front matter's own list would be taken for where pages begin
        del metadata[PAGES]
    folder = PurePosixPath(docid).parent.as_posix()
    if folder != ".":
        metadata.setdefault("folder", folder)
    if len(extract.pages) > 1:
        stripped = len(extract.text) - len(extract.text.lstrip())
        metadata[PAGES] = [max(0, start - stripped) for start in extract.pages]
    document = Document(docid, text, title, metadata) if metadata else Document(docid, text, title)
    check_characters(document)
    check_document(document)
    return FileDocument(document, list(extract.notes))


def _unpacked(contents: bytes, max_bytes: int) -> bytes:
    try:
        with gzip.open(io.BytesIO(contents)) as file:
            unpacked = file.read(max_bytes + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"is not a whole gzip file ({error})") from None
    if len(unpacked) > max_bytes:
        raise ValueError(f"unpacks to more than {max_bytes >> 20} MiB; split it into documents")
    return unpacked


def _text_and_title(extract: Extract, docid: str, *, named: bool) -> tuple[str, str]:
    """The text, and the title: front matter's (`named`), the leading heading, the properties', a first line that stands alone, the name.

    A heading that is the title stands in the text no more, unless positions in the text have a meaning.
    """
    text = extract.text.strip()
    match = HEADING.match(text)
    heading = (match["marked"] or match["underlined"]).strip() if match else ""
    title = extract.title.strip() if named else ""
    rest = text[match.end() :].strip() if match and not extract.pages else ""
    if rest and heading.casefold() in ("", title.casefold() or heading.casefold()):
        return rest, title or heading
    first, _, following = text.partition("\n")
    alone = following.startswith("\n") and len(first) <= LONGEST_TITLE and not NO_TITLE.search(first.strip())
    return text, title or extract.title.strip() or (heading if extract.pages else "") or (first.strip() if alone else "") or title_of(docid)


def title_of(docid: str) -> str:
    """A file's name in words: `notes/green_tea.txt` → `green tea`."""
    name = PurePosixPath(docid).name.removesuffix(".gz")
    return PurePosixPath(name).stem.replace("_", " ").replace("-", " ").strip()


def read_file(path: Path, docid: str, reader: ConfinedReader) -> FileDocument:
    """The document of a file on disk."""
    with path.open("rb") as file:
        return document_of(file.read(MAX_FILE_BYTES + 1), docid, reader)
