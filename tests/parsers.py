"""Every parser of a stranger's files, as a function of bytes that ends or raises one of `ALLOWED`: for hypothesis and for atheris.

The parsers that read a file get one in a folder of their own, in memory where the system has that.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import forged

from promptdsi.checks import check_depth, parse_json
from promptdsi.engine.quantized import mapped_tensors
from promptdsi.errors import PromptDSIError
from promptdsi.index.blobs import Blobs
from promptdsi.index.deltas import read_content
from promptdsi.index.documents import Documents
from promptdsi.index.eval_records import read_record
from promptdsi.index.file_checks import LISTS, check_ids
from promptdsi.index.store import Store
from promptdsi.model.tokenizer_checks import load_tokenizer

ALLOWED = (ValueError, PromptDSIError)
MEMORY = Path("/dev/shm")
DOCUMENTS = 50  # that a database of documents may hold
Parser = Callable[[bytes], object]


@contextmanager
def parsers() -> Iterator[dict[str, Parser]]:
    """The parsers by name."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        folder = Path(name)
        yield {kind: _file_parser(folder / kind, parse) for kind, parse in FILES.items()} | dict(PLAIN)


def _file_parser(path: Path, parse: Callable[[Path], object]) -> Parser:
    def parse_bytes(raw: bytes) -> object:
        path.write_bytes(forged.seal(raw) if path.name in SEALED else raw)
        return parse(path)

    return parse_bytes


def _documents(path: Path) -> object:
    opened = Documents(path, range(DOCUMENTS))
    try:
        return [opened.metadata(), opened.titles(), *opened]
    finally:
        opened.close()


def _tokenizer(raw: bytes) -> object:
    tokenizer = load_tokenizer(raw.decode("utf-8"), 1000)
    try:
        return tokenizer.encode("how does it work 東京 \u2581 \U0001f600").ids
    except Exception as error:  # the library knows no other
        raise ValueError(str(error)) from None


def _current(path: Path) -> object:
    """`CURRENT` of an index without manifests."""
    (path.parent / "index").mkdir(exist_ok=True)
    path.replace(path.parent / "index" / "CURRENT")
    return Store(path.parent / "index").current()


def _as_blob(path: Path) -> str:
    """Give a file a blob's name."""
    name = f"{'0' * 64}.safetensors"
    path.replace(path.with_name(name))
    return name


def _checked(check: Callable[[object], None]) -> Parser:
    def parse(raw: bytes) -> object:
        value = parse_json(raw)
        check_depth(value)
        check(value)
        return value

    return parse


SEALED = ("manifest", "record")
FILES: dict[str, Callable[[Path], object]] = {
    "manifest": read_content,
    "record": read_record,
    "header": mapped_tensors,
    "words": lambda path: Blobs(path.parent).words(_as_blob(path)),
    "statistics": lambda path: Blobs(path.parent).statistics(_as_blob(path)),
    "documents": _documents,
    "CURRENT": _current,
}
PLAIN: dict[str, Parser] = {
    "ids": _checked(check_ids),
    "probes": _checked(LISTS["probes"]),
    "queries": _checked(LISTS["queries"]),
    "tokenizer": _tokenizer,
}
