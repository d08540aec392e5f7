"""Recorded evaluations of an index: ranks, no text, one file in `records/` for each."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from promptdsi.errors import DataError
from promptdsi.files import atomic_write
from promptdsi.index.file_checks import EVAL_RECORD
from promptdsi.index.results import EvalRecord
from promptdsi.index.sealed import FORMAT, sealed, unsealed
from promptdsi.index.store import Store


def write_record(store: Store, record: EvalRecord) -> Path:
    """Store the ranks of an evaluation; the same evaluation again replaces its record."""
    key = hashlib.sha256(f"{record.corpus}\0{record.split}".encode()).hexdigest()[:16]
    path = store.folder / "records" / f"{record.generation:06d}-{key}.json"
    with store.writing(), atomic_write(path) as file:
        file.write(sealed({"format": FORMAT} | record._asdict()))
    return path


def read_records(store: Store) -> list[EvalRecord]:
    """All records, by generation, corpus and split."""
    contents = [read_record(path) for path in (store.folder / "records").glob("*.json")]
    return sorted(EvalRecord(*(content[name] for name in EvalRecord._fields)) for content in contents)


def read_record(path: Path) -> dict[str, Any]:
    """The content of a recorded evaluation."""
    content = unsealed(path)
    try:
        EVAL_RECORD(content)
    except ValueError as error:
        raise DataError(f"is no recorded evaluation: {str(error).strip()}", path=path) from None
    return content
