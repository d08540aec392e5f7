"""A stream on disk: folders d0/ … dT/ (BEIR), and stream.json with sizes, seed, origin, licence and every file's sha256.

Nothing in it depends on when or where it was made: the same command gives the same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptdsi.corpus.corpus import Corpus
from promptdsi.errors import DataError, PromptDSIError
from promptdsi.files import atomic_write, sha256_of, sync_directory
from promptdsi.progress import Progress, silent

FORMAT = 1
COLUMNS = ("documents", "train", "dev", "test", "pseudo")


@dataclass
class Stream:
    """Corpora in the order in which they arrive, and where they came from.

    `extra` holds corpora beside the stream, such as the `tune` documents of the paper's data sets.
    """

    name: str
    corpora: list[Corpus]
    split: dict[str, Any]
    origin: str
    licence: str
    extra: list[Corpus] = field(default_factory=list)

    def table(self) -> list[dict[str, Any]]:
        """Sizes per corpus, as in the paper's Table 1."""
        return [{"corpus": corpus.name, **corpus.counts()} for corpus in [*self.corpora, *self.extra]]

    def write(self, folder: str | Path, *, overwrite: bool = False, progress: Progress = silent) -> dict[str, Any]:
        """Write the stream whole or not at all and return what stream.json says.

        Writing the same stream again leaves the folder as it is; any other content is replaced only with `overwrite`.
        """
        folder = Path(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            building.chmod(0o755)
            manifest = self._write_into(building, progress)
            if folder.exists() and any(folder.iterdir()):
                if _same(folder, manifest):
                    return manifest
                if not (overwrite and (folder / "stream.json").exists()):
                    hint = "; --overwrite replaces it" if (folder / "stream.json").exists() else ""
                    raise DataError(f"exists and holds something else{hint}", path=folder)
                replaced = building.with_name(building.name + ".old")
                os.rename(folder, replaced)
                os.rename(building, folder)
                shutil.rmtree(replaced)
            else:
                os.replace(building, folder)
            sync_directory(folder.parent)
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
            "sha256": {file.relative_to(folder).as_posix(): sha256_of(file) for file in files},
        }
        with atomic_write(folder / "stream.json") as file:
            file.write((json.dumps(manifest, ensure_ascii=False, indent=2) + "\n").encode("utf-8"))
        return manifest


def _same(folder: Path, manifest: dict[str, Any]) -> bool:
    """Whether the folder already holds exactly this stream, by checksums of what is there now."""
    found = folder / "stream.json"
    if not found.is_file() or found.read_text("utf-8") != json.dumps(manifest, ensure_ascii=False, indent=2) + "\n":
        return False
    return all((folder / name).is_file() and sha256_of(folder / name) == digest for name, digest in manifest["sha256"].items())


def read_stream(folder: str | Path) -> list[Corpus]:
    """Read the corpora of a stream in order, after checking every file against stream.json."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    for name, digest in manifest["sha256"].items():
        file = folder / name
        # Pseudo-queries added later change queries and train judgements; documents and held-out judgements may not change.
        added_to = file.name == "queries.jsonl" or name.endswith("qrels/train.tsv")
        if not file.is_file() or (not added_to and sha256_of(file) != digest):
            raise DataError("is missing or differs from stream.json; build the stream again", path=file)
    return [Corpus.read(folder / entry["name"]) for entry in manifest["corpora"]]


def read_manifest(folder: Path) -> dict[str, Any]:
    """stream.json of a folder, checked as far as the readers rely on it."""
    path = folder / "stream.json"
    try:
        manifest = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DataError("is no stream: it has no stream.json", path=folder) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"is damaged ({error}); build the stream again", path=path) from None
    if not isinstance(manifest, dict) or not {"format", "corpora", "sha256"} <= manifest.keys():
        raise DataError("is damaged: it lacks format, corpora or sha256; build the stream again", path=path)
    if manifest["format"] != FORMAT:
        raise PromptDSIError(f"{path} has stream format {manifest['format']}; this release reads format {FORMAT}")
    return manifest


def totals(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The sum line under the table."""
    return {"corpus": "total", **{column: sum(row[column] for row in rows) for column in COLUMNS}}
