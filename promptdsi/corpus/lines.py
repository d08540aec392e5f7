"""Raw lines of a plain or gzipped file with their places, within bounds, and strict decoding of one line.

Line ends are LF or CRLF; a byte-order mark at the start is dropped. Nothing is guessed: bytes that are not UTF-8, NUL,
endless lines and archives that unpack without end are errors that name their place.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, cast

from promptdsi.errors import DataError

MAX_LINE_BYTES = 64 << 20
MAX_UNPACKED_BYTES = 64 << 30  # a gzip file may not unpack past this
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Line(NamedTuple):
    number: int  # from 1
    offset: int  # of the first byte, in the unpacked file
    raw: bytes  # without its line end


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading, unpacking it if its name ends in .gz."""
    return cast("IO[bytes]", gzip.open(path, "rb")) if path.suffix.lower() == ".gz" else path.open("rb")


def raw_lines(path: Path, *, max_unpacked: int | None = None) -> Iterator[Line]:
    """Yield the lines of a file in constant memory."""
    bound = (MAX_UNPACKED_BYTES if max_unpacked is None else max_unpacked) if path.suffix.lower() == ".gz" else None
    number = offset = 0
    try:
        with open_bytes(path) as file:
            while raw := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(raw) > MAX_LINE_BYTES:
                    raise DataError(f"the line is longer than {MAX_LINE_BYTES >> 20} MiB", path=path, line=number)
                start, offset = offset, offset + len(raw)
                if bound is not None and offset > bound:
                    raise DataError(f"unpacks to more than {bound:,} bytes; unpack it yourself if this is right", path=path, line=number)
                if number == 1 and raw.startswith(BYTE_ORDER_MARK):
                    raw, start = raw[len(BYTE_ORDER_MARK) :], len(BYTE_ORDER_MARK)
                yield Line(number, start, raw.rstrip(b"\r\n"))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"is not a whole gzip file ({error})", path=path, line=number + 1) from None


def decoded(line: Line, path: Path) -> str:
    """The line as text, or an error with the byte offset."""
    try:
        text = line.raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = line.raw[error.start]
        raise DataError(f"not UTF-8: byte 0x{byte:02x} at byte offset {line.offset + error.start}", path=path, line=line.number) from None
    if "\x00" in text:
        raise DataError("holds a NUL byte", path=path, line=line.number, column=text.index("\x00") + 1)
    return text


def excerpt(text: str, length: int = 60) -> str:
    """The start of a line, safe to print."""
    shown = text[:length] + ("…" if len(text) > length else "")
    return repr(shown)
