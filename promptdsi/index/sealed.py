"""Sealed files: JSON whose last field is the sha256 of the bytes before it, so that each file shows its own damage."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from promptdsi.checks import check_depth, parse_json
from promptdsi.errors import DataError
from promptdsi.files import read_plain
from promptdsi.index.file_checks import MOST_MANIFEST, MOST_MANIFEST_MEMORY

# 3 had every manifest in full; 2 had no passages and no words; 1 had other names too, which `promptdsi.aliases` lists
FORMAT = 4
HEAD, TAIL = b'{"content":', len(b',"sha256":"') + 64 + len(b'"}\n')


def sealed(value: dict[str, Any]) -> bytes:
    """JSON whose last field is the sha256 of the bytes before it.

    Examples
    --------
    >>> sealed({"ranks": [1]})[:25]
    b'{"content":{"ranks":[1]},'
    """
    body = HEAD + json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8")
    return body + b',"sha256":"%s"}\n' % hashlib.sha256(body).hexdigest().encode()


def unsealed(path: Path) -> dict[str, Any]:
    """The content of a sealed file; DataError if a byte of it has changed or a newer release wrote it."""
    try:
        raw = read_plain(path, MOST_MANIFEST)
    except FileNotFoundError:
        raise DataError("is missing; restore it from a copy", path=path) from None
    body, seal = raw[:-TAIL], raw[-TAIL:]
    try:
        content = parse_json(raw, most=MOST_MANIFEST_MEMORY)["content"]
        check_depth(content)
        newer = type(content.get("format", 0)) is int and content.get("format", 0) > FORMAT
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError("is damaged (not readable as JSON); restore it from a copy", path=path) from None
    if newer:
        release = str(content.get("written_by"))[:50]
        raise DataError(
            f"was written by promptdsi {release} in format {content['format']}, "
            f"this release reads up to format {FORMAT}: install promptdsi {release} or newer",
            path=path,
        )
    if not body.startswith(HEAD) or seal != b',"sha256":"%s"}\n' % hashlib.sha256(body).hexdigest().encode():
        raise DataError("is damaged (sha256 differs); restore it from a copy", path=path)
    return dict(content)
