"""IncDSI: a frozen model, and for each new document the row that solves a convex problem; no gradient descent.

The row's own queries must prefer it to every present row by one margin, and no present document's mean query may prefer it by
another. That needs one cached mean query vector per document seen so far, so it is not rehearsal-free.

method = IncDSI().fit(d0).add(d1)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.dsi import DSIMethod
from promptdsi.methods.settings import Trial, best_of, drawn
from promptdsi.progress import Progress, silent
from promptdsi.training.convex import RowSolver, Settings, checked
from promptdsi.training.encoding import query_vectors
from promptdsi.training.examples import mean_by_row
from promptdsi.training.training import TrainingLog


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Many small products one after the other: threads would spend their time waiting for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, kw_only=True)
class ConvexOptions:
    """The convex problem that a new row solves, and how it is solved. Margins are in the units of training scores."""

    weight: float = 0.5  # λ: of the new document's queries; 1 − λ of the old ones'
    margin_new: float = 1.0
    margin_old: float = 1.0
    ridge: float = 1e-6
    constraints: str = "mean"  # of a new document's queries; or each: every query is a constraint
    passes: int = 1
    row_init: str = "random"


@dataclass(kw_only=True)
class IncDSI(DSIMethod):
    """Margins are in the units of training scores, scale · query · row. Learned state: also `means_`, one per row (N, D)."""

    name: ClassVar[str] = "incdsi"
    rehearsal_free: ClassVar[bool] = False
    choices: ClassVar[dict[str, tuple[str, ...]]] = DSIMethod.choices | {"add.constraints": ("mean", "each")}
    least: ClassVar[dict[str, float]] = DSIMethod.least | {"add.passes": 1}

    add_options: ConvexOptions = ConvexOptions()

    means_: Tensor = field(init=False, repr=False, compare=False)

    @property
    def settings(self) -> Settings:
        options = self.add_options
        return checked(Settings(options.weight, options.margin_new, options.margin_old, options.ridge))

    def prepare(self, corpus: Corpus) -> None:
        """Cache the mean query vector of every document of D0."""
        vectors, targets = self._vectors(corpus, new=False)
        self.means_ = mean_by_row(vectors, targets, 0, len(corpus))

    def add(self, corpus: Corpus, *, progress: Progress = silent) -> Self:
        vectors, targets = self._vectors(corpus, new=True, progress=progress)
        start = self.row_start(corpus, self.add_options.row_init, length=self.row_length_, progress=progress)
        rows = self.solve(vectors, targets, start, self.settings, progress)
        self.model_.rows.grow([document.docid for document in corpus.documents], rows)
        self.model_.rows.freeze()
        self.means_ = torch.cat([self.means_, mean_by_row(vectors, targets, 0, len(corpus))])
        self.logs_.append(TrainingLog())
        return self

    def solve(self, vectors: Tensor, targets: Tensor, start: Tensor, settings: Settings, progress: Progress = silent) -> Tensor:
        """Rows (k, D) of new documents, one after the other; `targets` (n,) says whose query each vector (n, D) is."""
        present = torch.cat([block.detach() for block in self.model_.rows.blocks])
        means = mean_by_row(vectors, targets, 0, len(start))
        queries: Sequence[Tensor] = [means[number : number + 1] for number in range(len(start))]
        if self.add_options.constraints == "each":
            queries = [vectors[targets == number] for number in range(len(start))]
        scaled = [self.encoding.scale * each for each in queries]
        deleted = torch.zeros(len(present), dtype=torch.bool, device=present.device)
        deleted[sorted(self.model_.rows.deleted)] = True
        solver = RowSolver(present, self.encoding.scale * self.means_, settings, deleted=deleted)
        with one_thread(), progress("solving rows", total=self.add_options.passes * len(start), unit="documents") as advance:
            rows = solver.add_all(scaled, start, advance=advance)
            for _ in range(self.add_options.passes - 1):
                rows = solver.again(advance=advance)
        return rows.to(present)

    def search_settings(
        self, old: Corpus, tune: Corpus, *, trials: int, fixed: dict[str, float] | None = None, progress: Progress = silent
    ) -> dict[str, Any]:
        """Choose weight, margins and ridge, but for `fixed` ones, on documents no stage trains on; old dev queries weigh most."""
        vectors, targets = self._vectors(tune, new=True)
        start = self.row_start(tune, self.add_options.row_init, length=self.row_length_)
        trial = Trial(self, old, tune)
        tried = []
        with progress("searching settings", total=trials, unit="settings") as advance:
            for settings in (one._replace(**(fixed or {})) for one in drawn(trials, seed=self.seed)):
                tried.append((settings, trial.value(self.solve(vectors, targets, start, settings))))
                advance(1)
        chosen = best_of(tried)
        self.add_options = replace(self.add_options, **chosen._asdict())
        return {"chosen": chosen._asdict(), "tried": [{**one._asdict(), **value._asdict()} for one, value in tried]}

    def _vectors(self, corpus: Corpus, *, new: bool, progress: Progress = silent) -> tuple[Tensor, Tensor]:
        """Vectors of a corpus's queries (n, D), and the place of each one's document in the corpus (n,)."""
        asked = self.training_pairs(corpus, new=new)
        place = {document.docid: number for number, document in enumerate(corpus.documents)}
        ids = self.tokenizer_.encode([one.text for one in asked], max_tokens=self.encoding.max_tokens).ids
        vectors = query_vectors(self.model_, ids, self.tokenizer_, progress=progress)
        return vectors, torch.tensor([place[one.docid] for one in asked], device=vectors.device)

    @property
    def encodes_as_d0(self) -> bool:
        return True

    def extra_bytes(self) -> int:
        return 4 * self.means_.numel()

    def tensors(self) -> dict[str, Tensor]:
        return {"means": self.means_}

    def load_metadata(self, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().load_metadata(metadata, tensors)
        self.means_ = tensors["means"]
