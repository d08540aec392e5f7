"""The manifests of an index: `generations/NNNNNN.json`, each in full or against an earlier one (`index/deltas.py`)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from promptdsi.errors import DataError, UsageError
from promptdsi.files import atomic_write, read_plain
from promptdsi.index.deltas import (
    bases,
    check_whole,
    not_a_manifest,
    pruned_content,
    read_content,
    to_content,
    to_manifest,
    to_pruned,
)
from promptdsi.index.file_checks import MOST_MANIFEST
from promptdsi.index.manifest import Manifest, PrunedGeneration
from promptdsi.index.sealed import sealed

NUMBER = re.compile(r"[0-9]{6,8}")
ATTEMPTS = 5  # to read a manifest while a prune rewrites what it is stored against


class ManifestFiles:
    """The `generations/` folder of an index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.json"

    def numbers(self) -> list[int]:
        """Every generation that has a file, committed or not, in order."""
        names = [path.stem for path in self.folder.glob("*.json")] if self.folder.is_dir() else []
        return sorted(int(name) for name in names if NUMBER.fullmatch(name))

    def content(self, number: int) -> dict[str, Any]:
        """What the file of a generation says by itself."""
        content = read_content(self.path(number))
        if content["number"] != number:
            raise DataError(f"is the manifest of generation {content['number']}; restore it from a copy", path=self.path(number))
        return content

    def is_pruned(self, number: int) -> bool:
        return "pruned_by" in self.content(number)

    def read(self, number: int) -> Manifest:
        """A generation, from its file and those it is stored against; UsageError if it was pruned."""
        return self.read_chain(number)[number]

    def read_chain(self, number: int) -> dict[int, Manifest]:
        """A generation and all those it is stored against."""
        for _ in range(ATTEMPTS):
            chain, size, content = list[dict[str, Any]](), 0, self.content(number)
            while content is not None and "pruned_by" not in content:
                chain.append(content)
                size += self.path(content["number"]).stat().st_size
                if size > MOST_MANIFEST:
                    raise DataError(f"and those it is stored against hold more than {MOST_MANIFEST:,} bytes", path=self.path(number))
                content = self.content(content["base"]) if "base" in content else None  # type: ignore[assignment]
            if content is None:
                states = self._resolve(chain)
                check_whole(states[number], self.path(number))
                return states
            if not chain:
                when = f"made by `{content['kind']}` on {content['time']}"
                left = "`promptdsi log` lists those that are left"
                raise UsageError(f"{self.folder.parent}: generation {number} ({when}) was pruned; {left}")
        raise DataError(
            f"is stored against generation {content['number']}, which was pruned; restore both from a copy", path=self.path(number)
        )

    def _resolve(self, chain: list[dict[str, Any]]) -> dict[int, Manifest]:
        states, sizes = dict[int, Manifest](), dict[str, int]()
        for content in reversed(chain):
            states[content["number"]] = self._state(content, states.get(content.get("base", 0)), sizes)
        return states

    def _state(self, content: dict[str, Any], base: Manifest | None, sizes: dict[str, int]) -> Manifest:
        try:
            return to_manifest(content, base, sizes)
        except ValueError as error:
            raise not_a_manifest(self.path(content["number"]), error) from None

    def log(self, last: int) -> list[Manifest | PrunedGeneration]:
        """All generations up to a number, oldest first. They share one table of sizes; that their parts fit together is not checked."""
        generations: dict[int, Manifest | PrunedGeneration] = {}
        sizes: dict[str, int] = {}
        for number in range(1, last + 1):
            generations[number] = self.follow(number, generations, sizes)
        return list(generations.values())

    def follow(self, number: int, earlier: Mapping[int, Manifest | PrunedGeneration], sizes: dict[str, int]) -> Manifest | PrunedGeneration:
        """A generation, from its file and those that were read before it, with which it shares `sizes`."""
        content = self.content(number)
        if "pruned_by" in content:
            return to_pruned(content)
        base = earlier.get(content["base"]) if "base" in content else None
        if isinstance(base, Manifest) or "base" not in content:
            return self._state(content, base if isinstance(base, Manifest) else None, sizes)
        try:
            return self.read(number)  # its base could not be read, or a prune came between
        except UsageError:
            return to_pruned(self.content(number))

    def write(self, manifest: Manifest, *, states: Mapping[int, Manifest] | None = None, without: Collection[int] = ()) -> None:
        """Write a manifest against the nearest base that is not pruned, nor among `without`; a file that would not change stays.

        `states` are generations that need not be read.
        """
        number = next((base for base in bases(manifest.number) if base not in without and not self._lacks(base, states)), None)
        base = None if number is None else (states or {}).get(number) or self.read(number)
        self._put(manifest.number, to_content(manifest, base))

    def _lacks(self, number: int, states: Mapping[int, Manifest] | None) -> bool:
        return number not in states if states is not None else self.is_pruned(number)

    def prune(self, manifest: Manifest, by: int) -> None:
        """Leave of a generation only when and how it was made."""
        self._put(manifest.number, pruned_content(manifest, by))

    def _put(self, number: int, content: dict[str, Any]) -> None:
        path, raw = self.path(number), sealed(content)
        if not path.is_file() or read_plain(path, MOST_MANIFEST) != raw:
            with atomic_write(path) as file:
                file.write(raw)
