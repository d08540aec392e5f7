"""A stream on disk: BEIR folders d0/ … dT/, and stream.json with sizes, seed, origin, licence and the sha256 of every file.

The same command gives the same bytes, at any time and place.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptdsi.corpus.corpus import SPLITS, Corpus
from promptdsi.errors import DataError, PromptDSIError
from promptdsi.files import atomic_write, sha256_of, sync
from promptdsi.progress import Progress, silent

FORMAT = 1
CACHE_FOLDER = ".promptdsi"  # inside a corpus folder: pseudo-queries already generated
COLUMNS = ("documents", "train", "dev", "test", "pseudo")


@dataclass
class Stream:
    """Corpora in order of arrival, and their origin.

    `extra` holds corpora that are not part of the stream, such as the `tune` documents of the paper's data sets.
    """

    name: str
    corpora: list[Corpus]
    split: dict[str, Any]
    origin: str
    licence: str
    extra: list[Corpus] = field(default_factory=list)
    sizes: list[dict[str, Any]] | None = None  # from stream.json, where some splits were not read

    def table(self) -> list[dict[str, Any]]:
        """Sizes per corpus, as in the paper's Table 1."""
        return self.sizes or [{"corpus": corpus.name, **corpus.counts()} for corpus in [*self.corpora, *self.extra]]

    def write(self, folder: str | Path, *, overwrite: bool = False, progress: Progress = silent) -> dict[str, Any]:
        """Write the stream completely or not at all and return the content of stream.json.

        If the folder holds the same stream it stays as it is, with pseudo-queries added since. Another stream is replaced
        only with `overwrite`, and only if the folder holds nothing else.
        """
        folder = Path(folder).resolve()
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        building = folder.parent / f".{folder.name}.building-{os.getpid()}"
        building.mkdir()
        try:
            manifest = self._write_into(building, progress)
            path = folder / "stream.json"
            if path.is_file() and path.read_bytes() == (building / "stream.json").read_bytes() and not any(_changed(folder, manifest)):
                return manifest
            check_replaceable(folder, overwrite=overwrite)
            _swap(building, folder)
            return manifest
        finally:
            shutil.rmtree(building, ignore_errors=True)

    def _write_into(self, folder: Path, progress: Progress) -> dict[str, Any]:
        everything = [*self.corpora, *self.extra]
        with progress("writing", total=len(everything), unit="corpora") as advance:
            for corpus in everything:
                corpus.write(folder / corpus.name)
                advance(1)
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "name": self.name,
            "origin": self.origin,
            "licence": self.licence,
            "split": self.split,
            "corpora": [{"name": corpus.name, **corpus.counts()} for corpus in self.corpora],
            "extra": [{"name": corpus.name, **corpus.counts()} for corpus in self.extra],
            "bytes": {file.relative_to(folder).as_posix(): file.stat().st_size for file in files},
            "sha256": {file.relative_to(folder).as_posix(): sha256_of(file) for file in files},
        }
        with atomic_write(folder / "stream.json") as file:
            file.write((json.dumps(manifest, ensure_ascii=False, indent=2) + "\n").encode("utf-8"))
        return manifest


def check_replaceable(folder: Path, *, overwrite: bool) -> None:
    """Raise DataError unless the folder is empty, or holds nothing but a stream that may be overwritten."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not folder.is_dir() or not (folder / "stream.json").is_file():
        raise DataError("exists and is no stream; choose another folder", path=folder)
    if not overwrite:
        raise DataError("holds another stream, or this one changed; --overwrite replaces it", path=folder)
    ours = {"stream.json", *read_manifest(folder)["sha256"]}
    for file in folder.rglob("*"):
        name = file.relative_to(folder)
        made_by_us = name.as_posix() in ours or CACHE_FOLDER in name.parts or name.name in ("queries.jsonl", "train.tsv")
        if not file.is_dir() and not made_by_us:
            raise DataError("is not part of the stream; nothing is replaced while it stands there", path=file)


def _swap(building: Path, folder: Path) -> None:
    """Move a finished folder to its final path. An existing folder is kept under another name until that has succeeded."""
    backup = building.with_name(building.name + ".old")
    if folder.exists():
        os.rename(folder, backup)
    try:
        os.rename(building, folder)
    except BaseException:
        if backup.exists():
            os.rename(backup, folder)
        raise
    try:
        sync(folder.parent)
    finally:
        shutil.rmtree(backup, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left beside the folder; a stream they were replacing is restored."""
    for leftover in folder.parent.glob(f".{folder.name}.building-*"):
        number = leftover.name.rsplit("-", 1)[1].removesuffix(".old")
        if number.isdecimal() and not Path(f"/proc/{number}").exists() and Path("/proc/self").exists():
            if leftover.name.endswith(".old") and not folder.exists():
                os.rename(leftover, folder)
            else:
                shutil.rmtree(leftover, ignore_errors=True)


def _changed(folder: Path, manifest: dict[str, Any], splits: Sequence[str] = SPLITS) -> Iterator[Path]:
    """Files that differ from stream.json. Queries and train judgements may have grown: their first bytes must be the same."""
    for name, digest in manifest["sha256"].items():
        file = folder / name
        if file.parent.name == "qrels" and file.stem not in splits:
            continue
        size = manifest["bytes"][name]
        grows = file.name == "queries.jsonl" or name.endswith("qrels/train.tsv")
        if not file.is_file() or (file.stat().st_size < size if grows else file.stat().st_size != size):
            yield file
        else:
            if _sha256_of_start(file, size) != digest:
                yield file


def _sha256_of_start(file: Path, size: int) -> str:
    """The checksum of a file's first bytes, read piece by piece: the pages of NQ320k are gigabytes."""
    checksum = hashlib.sha256()
    with file.open("rb") as content:
        while size and (piece := content.read(min(size, 1 << 20))):
            checksum.update(piece)
            size -= len(piece)
    return checksum.hexdigest()


def open_stream(folder: Path, *, splits: Sequence[str] = SPLITS) -> Stream:
    """Read a stream after checking its files against stream.json; judgements of other splits are neither opened nor checked."""
    manifest = read_manifest(folder)
    for file in _changed(folder, manifest, splits):
        raise DataError("is missing or differs from stream.json; build the stream again", path=file)
    entries = {key: list(manifest.get(key, ())) for key in ("corpora", "extra")}
    corpora, extra = ([Corpus.read(folder / entry["name"], splits=splits) for entry in entries[key]] for key in ("corpora", "extra"))
    sizes = [{"corpus": entry["name"], **{column: entry[column] for column in COLUMNS}} for entry in entries["corpora"] + entries["extra"]]
    return Stream(manifest["name"], corpora, manifest["split"], manifest["origin"], manifest["licence"], extra, sizes)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read stream.json and check the fields that the readers use."""
    path = folder / "stream.json"
    try:
        manifest = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DataError("is no stream: it has no stream.json", path=folder) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"is damaged ({error}); build the stream again", path=path) from None
    if isinstance(manifest, dict) and manifest.get("format", FORMAT) != FORMAT:
        raise PromptDSIError(f"{path} has stream format {manifest['format']}; this release reads format {FORMAT}")
    try:
        valid = all(isinstance(entry["name"], str) for entry in manifest["corpora"])
        valid &= all(isinstance(digest, str) and isinstance(manifest["bytes"][name], int) for name, digest in manifest["sha256"].items())
    except (KeyError, TypeError, AttributeError):
        valid = False
    if not valid:
        raise DataError("is damaged: corpora, bytes or sha256 are not as we write them; build the stream again", path=path)
    return dict(manifest)


def totals(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row of sums under the table."""
    return {"corpus": "total", **{column: sum(row[column] for row in rows) for column in COLUMNS}}
