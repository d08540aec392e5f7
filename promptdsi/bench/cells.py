"""A cell: one method with one seed on one stream. What it is made of names its file, so that experiments share cells.

RESULTS/cells/promptdsi-s++-0-1a2b3c4d5e6f.json
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from promptdsi.aliases import METHOD_OPTIONS, RETIRED_OPTIONS
from promptdsi.bench.written import FORMAT, CellRecord, Choices, D0Record, read_json
from promptdsi.errors import DataError, UsageError
from promptdsi.evaluation.continual import Matrix
from promptdsi.evaluation.metrics import QueryRanks
from promptdsi.files import atomic_write
from promptdsi.methods import methods
from promptdsi.methods.options import flatten_params
from promptdsi.methods.promptdsi import PRESETS, PromptDSI
from promptdsi.model.prompts import make_strategy

# Fields of shared records that these methods do not use: no part of what names a record.
NOT_RECORDED = {
    "dense": ("pooling", "normalise", "scale", "dropout"),
    "dpr": ("fit_row_lr", "fit_schedule", "fit_row_start", "encoder_decay", "row_decay"),
}
DAMAGED = "; delete it and run the experiment again"


@dataclass(frozen=True)
class D0:
    """How D0 is learned, once for all methods: a stream, and keywords of `promptdsi` without prompts."""

    stream: dict[str, Any]
    params: dict[str, Any]

    @property
    def key(self) -> str:
        return digest([self.stream, self.params])

    @property
    def file(self) -> str:
        return f"d0-{self.key}"


@dataclass(frozen=True)
class Cell:
    """One run. `params` are the method's keywords that differ from its defaults; D0's are among them."""

    d0: D0
    method: str
    params: dict[str, Any]
    seed: int
    search: int = 0  # settings tried on documents held out, before the run (IncDSI)
    split: str = "test"  # whose queries are asked; a cell that serves a choice is asked dev queries, and no others
    label: str = field(default="", compare=False)

    @property
    def key(self) -> str:
        asked = [] if self.split == "test" else [self.split]
        return digest([self.d0.stream, self.d0.params, self.method, self.params, self.seed, self.search, *asked])

    @property
    def file(self) -> str:
        prompts = self.params.get("prompts", PromptDSI.prompts)
        variant = f"-{prompts}" if self.method == PromptDSI.name else ""
        return f"{self.method.replace('*', '-star')}{variant}-{self.seed}-{self.key}"

    def describe(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "params": self.params,
            "seed": self.seed,
            "search": self.search,
            "split": self.split,
            "stream": self.d0.stream,
            "d0": self.d0.params,
        }


def digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def keywords(method: str, *given: dict[str, Any]) -> dict[str, Any]:
    """The keywords of a method that differ from its defaults; what is given later is stronger, and may name a preset.

    Only what differs: an option that a later release adds with a neutral default leaves the name of a cell as it was.
    """
    known = options_of(method)
    wanted: dict[str, Any] = {}
    for part in given:
        preset = part.get("preset")
        if preset is not None and preset not in PRESETS:
            raise UsageError(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
        base = recorded_params(PRESETS[preset]) if preset else {}
        wanted |= {name: value for name, value in base.items() if name in known}
        wanted |= {name: value for name, value in part.items() if name != "preset"}
    if unknown := [name for name in wanted if name not in known]:
        raise UsageError(f"{method} has no option {unknown[0]!r}; it has {', '.join(known)}")
    if wanted.get("prompt_options"):
        usual = make_strategy(wanted.get("prompts", known["prompts"])).get_params()
        given_options = {name: plain(value) for name, value in wanted["prompt_options"].items()}
        wanted["prompt_options"] = {
            name: value for name, value in given_options.items() if name not in usual or value != plain(usual[name])
        }
    return {name: plain(value) for name, value in sorted(wanted.items()) if plain(value) != plain(known[name])}


def options_of(method: str) -> dict[str, Any]:
    """The options of a method and their defaults, under the flat names that records are written with."""
    if method not in methods():
        raise UsageError(f"no method {method!r}; there are {', '.join(methods())}")
    kind = methods()[method]
    options = {name: value for name, value in recorded_params(kind().get_params()).items() if name not in NOT_RECORDED.get(method, ())}
    return options | (RETIRED_OPTIONS if issubclass(kind, PromptDSI) else {})


def recorded_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Nested parameters under the flat names that records are written with.

    Examples
    --------
    >>> recorded_params({"fit": {"epochs": 3, "batch_size": 8}, "add": {"batch_size": 8}, "seed": 0})
    {'fit_epochs': 3, 'batch_size': 8, 'seed': 0}
    """
    names = {paths[0]: name for name, paths in METHOD_OPTIONS.items()}
    return {names.get(path, path): value for path, value in flatten_params(params).items() if path in names or "." not in path}


def plain(value: Any) -> Any:
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def pack(query_ranks: list[QueryRanks]) -> list[Any]:
    """Ranks as they are written: a number for the usual query with one answer."""
    return [
        q.ranks[0] if len(q.ranks) == 1 and q.gains[0] == 1 else [list(pair) for pair in zip(q.ranks, q.gains, strict=True)]
        for q in query_ranks
    ]


def unpack(written: list[Any]) -> list[QueryRanks]:
    return [QueryRanks([one], [1.0]) if isinstance(one, int) else QueryRanks([r for r, _ in one], [g for _, g in one]) for one in written]


def matrix_of(record: dict[str, Any], split: str) -> Matrix:
    """P[t][i] of a cell's record."""
    return Matrix({int(step): [unpack(corpus) for corpus in corpora] for step, corpora in record["ranks"][split].items()})


class Moved(NamedTuple):
    """How two runs of one thing differ: ranks that are not the same, of how many."""

    ranks: int
    of: int

    def __str__(self) -> str:
        return f"{self.ranks:,} of {self.of:,} ranks differ from the recorded ones"


def moved(before: dict[str, Any], now: dict[str, Any]) -> Moved | None:
    """Compare the ranks of two records of a cell, or of a D0: on another processor a few may differ. None if they are of other data."""
    splits = [split for split in now["ranks"] if split in before["ranks"]]  # early cells were asked dev queries beside test queries
    if not splits or any(before["data"]["queries"][split] != now["data"]["queries"][split] for split in splits):
        return None
    was, are = ([corpus for split in splits for step in one["ranks"][split].values() for corpus in step] for one in (before, now))
    pairs = [pair for old, new in zip(was, are, strict=True) for pair in zip(old, new, strict=True)]
    return Moved(sum(one != other for one, other in pairs), len(pairs))


def file_of(described: dict[str, Any]) -> str:
    """The name of the file a described run, or a D0, is kept in."""
    d0 = D0(described["stream"], described["d0"])
    own = {name: described[name] for name in ("method", "params", "seed", "search", "split") if name in described}
    return Cell(d0, **own).file if own else d0.file


class Results:
    """The folder that holds cells and what is made from them."""

    def __init__(self, folder: Path, work: Path | None = None) -> None:
        self.folder, self.work = folder, work or folder / ".work"

    def path(self, file: str) -> Path:
        return self.folder / "cells" / f"{file}.json"

    def read(self, file: str) -> dict[str, Any] | None:
        """A cell's record, or None while it is not there."""
        path = self.path(file)
        if not path.is_file():
            return None
        record = read_json(path, D0Record if file.startswith("d0-") else CellRecord, advice=DAMAGED)
        if (own := file_of(record["cell"])) != file:
            raise DataError(f"holds the run {own}{DAMAGED}", path=path)
        return record

    def choices(self, scale: str, experiment: str) -> dict[str, Any]:
        """The dial values an experiment chose, by system: what its report wrote."""
        path = self.folder / scale / f"{experiment}.json"
        if not path.is_file():
            raise DataError(f"is not there: run and report {experiment}.toml first, which chooses the dials", path=path)
        return dict(read_json(path, Choices, advice=f"; report {experiment}.toml again")["chosen"])

    def write(self, file: str, record: dict[str, Any]) -> None:
        """One line per key: differences between two versions can be read."""
        lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in ({"format": FORMAT} | record).items()]
        with atomic_write(self.path(file)) as out:
            out.write(("{\n" + ",\n".join(lines) + "\n}\n").encode("utf-8"))
