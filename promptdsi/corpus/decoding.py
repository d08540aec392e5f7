"""Bytes to text: UTF-8 where it is, else the encoding that fits best, which is said."""

from __future__ import annotations

import contextlib

from promptdsi.corpus.extract import MAX_CHARACTERS

LOOKED_AT = 1 << 18  # bytes that the encoding is told by: enough, and bounded in time
WESTERN = "cp1252"  # by far the most frequent one that is not Unicode: taken wherever it fits, as its neighbours fit short texts too
LATIN = ("iso-8859-1", "latin-1", "latin1")  # names under which it is meant, as browsers have it


def decode_text(contents: bytes) -> tuple[str, list[str]]:
    """The text of a file, with line feeds at its line ends, and a note where it is not UTF-8; ValueError where it is no text."""
    notes: list[str] = []
    try:
        text = contents.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text, encoding = _guess(contents, error)
        notes.append(f"not UTF-8, read as {encoding}")
    if "\x00" in text:
        raise ValueError("is no text: it holds NUL bytes")
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"holds more than {MAX_CHARACTERS >> 20} million characters; split it into documents")
    return text.replace("\r\n", "\n").replace("\r", "\n"), notes


def decode_named(contents: bytes, encoding: str) -> tuple[str, list[str]]:
    """The text of contents that name their encoding; as `decode_text` where that is Unicode, or not true."""
    encoding = WESTERN if encoding.lower() in LATIN else encoding
    if not encoding.lower().startswith("utf"):
        with contextlib.suppress(ValueError, LookupError):
            return contents.decode(encoding).replace("\r\n", "\n").replace("\r", "\n"), []
    return decode_text(contents)


def _guess(contents: bytes, error: UnicodeDecodeError) -> tuple[str, str]:
    from charset_normalizer import from_bytes

    start = 0 if contents[:2] in (b"\xff\xfe", b"\xfe\xff") else max(0, error.start - LOOKED_AT // 2)
    start -= start % 4  # two or four bytes may be a character
    encodings = [name for match in from_bytes(contents[start : start + LOOKED_AT]) for name in match.could_be_from_charset]
    for encoding in sorted(encodings, key=WESTERN.__ne__):
        with contextlib.suppress(UnicodeDecodeError, LookupError):
            return contents.decode(encoding), encoding
    raise ValueError(f"not UTF-8: byte 0x{contents[error.start]:02x} at byte offset {error.start}, and no other encoding fits")
