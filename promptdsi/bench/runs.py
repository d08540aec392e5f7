"""Runs on disk: the folder of their records, and the ranks in a record.

RESULTS/runs/promptdsi-s++-0-1a2b3c4d5e6f.json
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

from promptdsi.bench.run_records import D0, D0Record, Run, RunRecord
from promptdsi.bench.schema import ChoiceRecord, Params, Split, read_json
from promptdsi.errors import DataError
from promptdsi.evaluation.continual import Matrix
from promptdsi.evaluation.evaluate import QueryRanks
from promptdsi.files import atomic_write

DAMAGED = "; delete it and run the experiment again"


def pack_ranks(query_ranks: Sequence[QueryRanks]) -> list[Any]:
    """Ranks as a record stores them: a number where a query has one relevant document of gain 1."""
    return [
        query.ranks[0] if len(query.ranks) == 1 and query.gains[0] == 1 else list(zip(query.ranks, query.gains, strict=True))
        for query in query_ranks
    ]


def unpack_ranks(packed: Sequence[Any]) -> list[QueryRanks]:
    return [
        QueryRanks([ranks], [1.0]) if isinstance(ranks, int) else QueryRanks([rank for rank, _ in ranks], [gain for _, gain in ranks])
        for ranks in packed
    ]


def matrix_of(record: RunRecord, split: Split) -> Matrix:
    """P[t][i] of a run."""
    return Matrix({int(step): [unpack_ranks(corpus) for corpus in corpora] for step, corpora in record.ranks[split].items()})


class RankDifference(NamedTuple):
    """How two executions of one run differ: ranks that are not the same, of how many."""

    ranks: int
    of: int

    def __str__(self) -> str:
        return f"{self.ranks:,} of {self.of:,} ranks differ from the recorded ones"


def compare_ranks(before: RunRecord | D0Record, now: RunRecord | D0Record) -> RankDifference | None:
    """Compare two records of one run: on another processor a few ranks may differ. None if they are of other data."""
    splits = [split for split in now.ranks if split in before.ranks]  # early runs were evaluated on dev beside test
    if not splits or any(before.data.queries[split] != now.data.queries[split] for split in splits):
        return None
    old, new = ([corpus for split in splits for step in record.ranks[split].values() for corpus in step] for record in (before, now))
    pairs = [pair for corpora in zip(old, new, strict=True) for pair in zip(*corpora, strict=True)]
    return RankDifference(sum(before != after for before, after in pairs), len(pairs))


class RunStore:
    """The folder of records and reports; `work` holds what can be built again (streams, D0 checkpoints)."""

    def __init__(self, folder: Path, work: Path | None = None) -> None:
        self.folder, self.work = folder, work or folder / ".work"

    def path(self, file: str) -> Path:
        path = self.folder / "runs" / f"{file}.json"
        return path if path.is_file() else self.old_files.get(file, path)

    @cached_property
    def old_files(self) -> dict[str, Path]:
        """Records of release 0.1 lie in `cells/`, named by a hash of their old description."""
        paths = sorted((self.folder / "cells").glob("*.json"))
        return {read_record(path).run.file: path for path in paths}

    def files(self) -> list[str]:
        return sorted({path.stem for path in (self.folder / "runs").glob("*.json")} | set(self.old_files))

    def read(self, file: str) -> RunRecord | D0Record | None:
        """A record, or None while the run has not been made."""
        path = self.path(file)
        if not path.is_file():
            return None
        record = read_record(path)
        if (actual := record.run.file) != file:
            raise DataError(f"holds the run {actual}{DAMAGED}", path=path)
        return record

    def run(self, run: Run) -> RunRecord | None:
        return cast("RunRecord | None", self.read(run.file))

    def d0(self, d0: D0) -> D0Record | None:
        return cast("D0Record | None", self.read(d0.file))

    def choices(self, scale: str, experiment: str) -> Params:
        """The parameter values an experiment chose, by system: what its report wrote."""
        path = self.folder / scale / f"{experiment}.json"
        if not path.is_file():
            raise DataError(f"is not there: run and report {experiment}.toml first, which chooses the parameters", path=path)
        return read_json(path, ChoiceRecord, advice=f"; report {experiment}.toml again").chosen

    def write(self, record: RunRecord | D0Record, path: Path | None = None) -> Path:
        """Write a record with one line per key, so that differences between two versions can be read."""
        path = path or self.folder / "runs" / f"{record.run.file}.json"
        content = record.model_dump(mode="json", exclude_none=True)
        lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items()]
        with atomic_write(path) as out:
            out.write(("{\n" + ",\n".join(lines) + "\n}\n").encode("utf-8"))
        return path


def read_record(path: Path) -> RunRecord | D0Record:
    if path.stem.startswith("d0-"):
        return read_json(path, D0Record, advice=DAMAGED)
    return read_json(path, RunRecord, advice=DAMAGED)
