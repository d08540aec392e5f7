"""What a run that is not recorded yet has done: its method after the last complete stage, and the checkpoint of the one that trains.

WORK/promptdsi-s++-0-1a2b3c4d5e6f.unfinished/{stages.json, step-2/, training/}

A run that is killed goes on from here, with the figures of one that was not. The folder is removed when the record is written.
"""

from __future__ import annotations

import copy
import shutil
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from promptdsi.bench.run_records import SearchRecord, StepRecord, digest
from promptdsi.files import atomic_write
from promptdsi.methods.base import Method
from promptdsi.training import checkpoint


class RunStart(BaseModel):
    """How a run began: the fields of its record that are known before the first new corpus."""

    d0_sha256: str | None
    fit_seconds: float
    searched: SearchRecord | None = None
    search_seconds: float = 0.0


class Stages(BaseModel):
    """The stages that are complete: ranks after each, by step and corpus, and what each `add` cost."""

    start: RunStart
    steps: list[StepRecord] = []
    ranks: dict[str, list[list[Any]]] = {}


class SavedStages(BaseModel):
    identity: str
    step: int
    stages: Stages


class UnfinishedRun:
    """Stages of one run in one folder. `identity` is all that its figures depend on: stages of anything else are not used.

    Stages that together took less than a minute are not saved: they are sooner done again.
    """

    def __init__(self, folder: Path, identity: Any) -> None:
        self.folder, self.identity = folder, digest(identity)
        self.training = folder / "training"
        self._saved = time.monotonic()

    def load(self, kind: type[Method]) -> tuple[Method, Stages] | None:
        """The method after its last saved stage, and the stages up to it."""
        try:
            saved = SavedStages.model_validate_json((self.folder / "stages.json").read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
        if saved.identity != self.identity:
            return None
        # A copy in memory: the files are replaced by those of the next stage, and products of unaligned weights may round otherwise.
        return copy.deepcopy(kind.load(self.folder / f"step-{saved.step}")), saved.stages

    def save(self, method: Method, stages: Stages) -> None:
        """Save a complete stage: the method first, then the line that says so; then what was saved before is removed."""
        if time.monotonic() - self._saved < checkpoint.SECONDS_BETWEEN_CHECKPOINTS:
            return
        step = max(map(int, stages.ranks))
        shutil.rmtree(self.folder / f"step-{step}", ignore_errors=True)  # of a save that was killed, or of a run with other code
        method.save(self.folder / f"step-{step}")
        with atomic_write(self.folder / "stages.json") as file:
            file.write(SavedStages(identity=self.identity, step=step, stages=stages).model_dump_json().encode("utf-8"))
        for folder in self.folder.glob("step-*"):
            if folder.name != f"step-{step}":
                shutil.rmtree(folder)
        self._saved = time.monotonic()

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
