"""What is read out of a file: its text, and what it says about itself."""

from __future__ import annotations

import datetime
import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

PAGES = "pages"  # the metadata field that says where pages begin
MAX_CHARACTERS = 64 << 20  # of one document
MAX_UNPACKED_BYTES = 1 << 30  # of one archive
OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
JUNK_TITLES = re.compile(r"(microsoft word - .*|untitled.*|powerpoint presentation|slide 1|document\d*|unknown|none)", re.IGNORECASE)


class Extract(NamedTuple):
    """A file's text, title and metadata; `pages` are the positions at which its pages or slides begin, `notes` what was left out."""

    text: str
    title: str = ""
    metadata: Mapping[str, Any] = MappingProxyType({})
    pages: Sequence[int] = ()
    notes: Sequence[str] = ()


def joined_pages(texts: Sequence[str]) -> tuple[str, list[int]]:
    """Pages as one text, with an empty line between them, and where each begins.

    Examples
    --------
    >>> joined_pages(["one", "two"])
    ('one\\n\\ntwo', [0, 5])
    """
    starts, position = [], 0
    for text in texts:
        starts.append(position)
        position += len(text) + 2
    return "\n\n".join(texts), starts


def check_archive(contents: bytes) -> None:
    """Raise ValueError for an archive that unpacks to more than a document needs; none of its files is longer than it says."""
    if contents.startswith(OLD_OFFICE):
        raise ValueError("is encrypted, or of a format before 2007: remove its password, or save it in the new format")
    try:
        with zipfile.ZipFile(io.BytesIO(contents)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            if any(entry.header_offset < 0 for entry in archive.infolist()):
                raise ValueError("its start is missing")
    except (zipfile.BadZipFile, ValueError) as error:
        raise ValueError(f"is not a whole archive ({error})") from None
    if size > MAX_UNPACKED_BYTES:
        raise ValueError(f"unpacks to more than {MAX_UNPACKED_BYTES >> 30} GiB")


def properties(*, title: Any = "", author: Any = "", date: Any = "") -> tuple[str, dict[str, Any]]:
    """The title and metadata that a file's properties give; what is empty, no date or a program's default is left out."""
    name = " ".join(str(title or "").split())
    fields = {"author": " ".join(str(author or "").split()), "date": iso_date(date)}
    return "" if JUNK_TITLES.fullmatch(name) else name, {key: value for key, value in fields.items() if value}


def iso_date(value: Any) -> str:
    """A date as YYYY-MM-DD, or nothing.

    Examples
    --------
    >>> iso_date("D:20240131120000Z"), iso_date("2024-01-31T12:00:00Z"), iso_date("in spring")
    ('2024-01-31', '2024-01-31', '')
    """
    if isinstance(value, datetime.date):
        return value.isoformat()[:10]
    text = str(value or "").removeprefix("D:")
    if re.match(r"\d{8}", text):
        text = f"{text[:4]}-{text[4:6]}-{text[6:8]}"
    try:
        return datetime.date.fromisoformat(text[:10]).isoformat()
    except ValueError:
        return ""
