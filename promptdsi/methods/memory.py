"""Queries a method keeps of earlier corpora, for those that rehearse. Rehearsal-free methods have none of this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from promptdsi.learning.examples import Asked
from promptdsi.methods.dsi import DSIMethod


@dataclass(kw_only=True)
class Remembering(DSIMethod):
    """Learned state: also `memory_`, queries with their documents."""

    memory_: list[Asked] = field(init=False, repr=False, compare=False)

    def keep(self, asked: Sequence[Asked]) -> None:
        # A new list each time: whoever holds the earlier one (a copy made before a failed `add`) keeps it as it was.
        self.memory_ = [*self.memory_, *asked]

    def extra_bytes(self) -> int:
        return super().extra_bytes() + sum(len(one.text.encode("utf-8")) + len(one.docid.encode("utf-8")) for one in self.memory_)

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"memory": [list(one) for one in self.memory_]}

    def restore(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().restore(facts, tensors)
        self.memory_ = [Asked(*one) for one in facts["memory"]]
