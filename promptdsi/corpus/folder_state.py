"""A folder as a source that is read again and again: which files it has, and which of them need not be read again.

Size, time of change and content hash of each file that was read are kept in `.promptdsi/files.json` inside the folder: a file that still
has the same size and time is not read again. A folder that cannot be written to is read whole each time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from promptdsi.corpus.confined import ConfinedReader
from promptdsi.corpus.corpus import Document, ReadNotes
from promptdsi.corpus.file_documents import read_file
from promptdsi.corpus.formats.folder import files_of
from promptdsi.errors import DataError
from promptdsi.files import atomic_write
from promptdsi.wording import siblings_of, suggest_path

STATE = Path(".promptdsi", "files.json")
SETTLED = 2.0  # seconds: a file changed more recently may change again within the resolution of its time
Stamp = tuple[int, int]  # size and time of change in nanoseconds


@dataclass
class FolderState:
    """The files of a folder by docid: those that are there, and the documents of those that were read because they may have changed."""

    folder: Path
    present: set[str] = field(default_factory=set)
    documents: dict[str, Document] = field(default_factory=dict)
    stamps: dict[str, tuple[Stamp, str]] = field(default_factory=dict)  # docid → size and time, content hash

    def save(self) -> None:
        """Remember what was read, for the next time; a folder that is read-only is read whole again."""
        path = self.folder / STATE
        files = {docid: [*stamp, content] for docid, (stamp, content) in sorted(self.stamps.items())}
        try:
            with atomic_write(path) as file:
                file.write(json.dumps({"files": files}, ensure_ascii=False).encode("utf-8"))
        except OSError:
            return


def scan(
    folder: Path, docid_of: Callable[[str], str], indexed: Mapping[str, str], content_hash: Callable[[Document], str], notes: ReadNotes
) -> FolderState:
    """Read the files of a folder that may differ from what is indexed (docid → content hash)."""
    if not folder.is_dir():
        hint = "" if folder.exists() else suggest_path(folder, siblings_of(folder))
        raise DataError(f"is no folder{hint}; nothing was deleted from the index on its account", path=folder)
    state, before, now = FolderState(folder), _load(folder), time.time_ns()
    with ConfinedReader() as reader:
        for file in files_of(folder, notes):
            path = file.relative_to(folder).as_posix()
            docid = docid_of(path)
            state.present.add(docid)
            try:
                status = file.stat()
                stamp = (status.st_size, status.st_mtime_ns)
                if docid in indexed and before.get(docid) == (stamp, indexed[docid]):
                    state.stamps[docid] = before[docid]
                    continue
                document, remarks = read_file(file, path, reader)
            except (ValueError, OSError) as error:
                reason = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
                notes.refuse(DataError(reason, path=file))
                continue
            for remark in remarks:
                notes.remark(f"{path}: {remark}")
            document = document._replace(docid=docid)
            content = content_hash(document)
            if now - stamp[1] > SETTLED * 1e9:
                state.stamps[docid] = stamp, content
            if indexed.get(docid) != content:
                state.documents[docid] = document
    for skipped in notes.skipped:  # what stands in a folder that cannot be listed is not gone
        if skipped.path.is_relative_to(folder):
            inside = docid_of(skipped.path.relative_to(folder).as_posix()) + "/"
            state.present |= {docid for docid in indexed if docid.startswith(inside)}
    return state


def _load(folder: Path) -> dict[str, tuple[Stamp, str]]:
    """What was remembered; nothing where that is unreadable, since it only saves time."""
    try:
        if os.path.islink(folder / STATE.parent) or os.path.islink(folder / STATE):
            return {}
        files = json.loads((folder / STATE).read_bytes())["files"]
        return {docid: ((int(size), int(changed)), str(content)) for docid, (size, changed, content) in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
