"""Lines of a plain or gzipped file, read within bounds and decoded strictly, and what a reader noticed without stopping.

Line ends are LF or CRLF; a byte-order mark at the start is dropped. Bytes that are not UTF-8, NUL, lines longer than
`MAX_LINE_BYTES` and archives that unpack past `MAX_UNPACKED_BYTES` are errors with file and line.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple, TypeVar, cast

from promptdsi.errors import DataError

MAX_LINE_BYTES = 64 << 20
MAX_UNPACKED_BYTES = 64 << 30  # a gzip file may not unpack past this
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LISTED = 20  # how many skipped lines are listed in full; all are counted
Parsed = TypeVar("Parsed")


class ReadNotes:
    """Notes made while reading; with `skip` a bad record becomes a note instead of an error."""

    def __init__(self, *, skip: bool = False) -> None:
        self.skip = skip
        self.skipped: list[DataError] = []
        self.counts: Counter[str] = Counter()

    def refuse(self, error: DataError) -> None:
        """Raise the error, or note it if bad records are to be skipped."""
        if not self.skip:
            raise error
        self.skipped.append(error)

    def count(self, message: str, amount: int = 1) -> None:
        """Add to a counted note such as 'documents repeated with equal content, kept once'."""
        if amount:
            self.counts[message] += amount

    def sentences(self) -> list[str]:
        """All notes, ready to print."""
        lines = [f"{amount:,} {message}" for message, amount in sorted(self.counts.items())]
        if self.skipped:
            lines.append(f"{len(self.skipped):,} bad records skipped:")
            lines += [f"  {error}" for error in self.skipped[:LISTED]]
            if len(self.skipped) > LISTED:
                lines.append(f"  … and {len(self.skipped) - LISTED:,} more")
        return lines


class Line(NamedTuple):
    number: int  # from 1
    offset: int  # of the first byte, in the unpacked file
    raw: bytes  # without its line end


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading, unpacking it if its name ends in .gz."""
    return cast("IO[bytes]", gzip.open(path, "rb")) if path.suffix.lower() == ".gz" else path.open("rb")


def raw_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a file in constant memory."""
    bound = MAX_UNPACKED_BYTES if path.suffix.lower() == ".gz" else None
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


def decode(line: Line, path: Path) -> str:
    """Return the line as text, or raise an error with the byte offset."""
    try:
        text = line.raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = line.raw[error.start]
        raise DataError(f"not UTF-8: byte 0x{byte:02x} at byte offset {line.offset + error.start}", path=path, line=line.number) from None
    if "\x00" in text:
        raise DataError("holds a NUL byte", path=path, line=line.number, column=text.index("\x00") + 1)
    return text


def parse_lines(path: Path, notes: ReadNotes, parse: Callable[[Line], Parsed]) -> Iterator[tuple[int, Parsed]]:
    """Yield line number and record of each line that is not blank; a ValueError of `parse` is refused with file and line."""
    for line in raw_lines(path):
        if not line.raw or line.raw.isspace():
            continue
        try:
            record = parse(line)
        except (ValueError, DataError) as error:
            notes.refuse(error if isinstance(error, DataError) else DataError(str(error), path=path, line=line.number))
        else:
            yield line.number, record


def excerpt(text: str, length: int = 60) -> str:
    """The start of a line, safe to print."""
    return repr(text[:length] + ("…" if len(text) > length else ""))
