"""Queries a method keeps of earlier corpora, for those that rehearse. Rehearsal-free methods have none of this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from promptdsi.methods.dsi import DSIMethod
from promptdsi.training.examples import TrainingPair


@dataclass(kw_only=True)
class Remembering(DSIMethod):
    """Learned state: also `memory_`, queries with their documents."""

    memory_: list[TrainingPair] = field(init=False, repr=False, compare=False)

    def keep(self, asked: Sequence[TrainingPair]) -> None:
        # A new list each time: whoever holds the earlier one (a copy made before a failed `add`) keeps it as it was.
        self.memory_ = [*self.memory_, *asked]

    def extra_bytes(self) -> int:
        return super().extra_bytes() + sum(len(one.text.encode("utf-8")) + len(one.docid.encode("utf-8")) for one in self.memory_)

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {"memory": [list(one) for one in self.memory_]}

    def load_metadata(self, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().load_metadata(metadata, tensors)
        self.memory_ = [TrainingPair(*one) for one in metadata["memory"]]
