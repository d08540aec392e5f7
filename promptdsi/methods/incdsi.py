"""IncDSI: a frozen model, and for each new document the row that solves a convex problem; no gradient descent.

The row's own queries must prefer it to every present row by one margin, and no present document's mean query may prefer it by
another. That needs one cached mean query vector per document seen so far, so it is not rehearsal-free.

method = IncDSI().fit(d0).add(d1)
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from promptdsi.corpus.corpus import Corpus
from promptdsi.methods.dsi_method import DSIMethod, Pairs
from promptdsi.progress import Progress, silent
from promptdsi.training.convex import ConvexSettings, solve_rows
from promptdsi.training.encoding import mean_by_position
from promptdsi.training.training import TrainingLog

OLD_WEIGHT = 5.0  # β of the harmonic mean: retaining the old counts most
RANGES = {"weight": (0.05, 0.95), "margin_new": (0.0, 8.0), "margin_old": (0.0, 8.0), "ridge": (1e-10, 1e-3)}


class TrialScore(NamedTuple):
    """MRR@10 of dev queries of the held-out and of the old documents, and their weighted harmonic mean."""

    new: float
    old: float
    both: float


def sample_settings(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Values of `RANGES`, spread over them, the ridge by its logarithm.

    The paper's search is Bayesian with 30 trials; a scrambled Sobol sequence of as many covers four dimensions evenly, needs no
    further library and gives the same settings again for the same seed.
    """
    samples = []
    for point in torch.quasirandom.SobolEngine(len(RANGES), scramble=True, seed=seed).draw(count).double().tolist():
        values = {name: low + share * (high - low) for share, (name, (low, high)) in zip(point, RANGES.items(), strict=True)}
        low, high = (math.log(edge) for edge in RANGES["ridge"])
        samples.append(values | {"ridge": math.exp(low + point[3] * (high - low))})
    return samples


class Trial:
    """Dev queries of old and held-out documents. Old rows never change, so how many are ahead of an old target is counted once."""

    def __init__(self, method: DSIMethod, old: Corpus, tune: Corpus) -> None:
        self.rows = rows = method.model_.rows
        self.old, targets = _dev_queries(method, old, rows.row_of)
        self.new, self.positions = _dev_queries(method, tune, {document.docid: row for row, document in enumerate(tune.documents)})
        self.target_scores = rows.target_scores(self.old, targets)  # (n, 1)
        self.ahead = rows.count_above(self.old, self.target_scores)

    def evaluate(self, rows: Tensor) -> TrialScore:
        """How well old and held-out documents are retrieved with these rows (k, D) for the latter."""
        if not torch.isfinite(rows).all():
            return TrialScore(0.0, 0.0, 0.0)
        old = mrr(1 + self.ahead + (self.old @ rows.T > self.target_scores).sum(1))
        scores = self.new @ rows.T  # (m, k)
        targets = scores.gather(1, self.positions[:, None])
        new = mrr(1 + (scores > targets).sum(1) + self.rows.count_above(self.new, targets))
        weight = OLD_WEIGHT**2
        return TrialScore(new, old, (1 + weight) * new * old / (weight * new + old) if new and old else 0.0)


def mrr(ranks: Tensor) -> float:
    """MRR@10.

    Examples
    --------
    >>> mrr(torch.tensor([1, 4, 11]))
    0.4166666666666667
    """
    return float(torch.where(ranks <= 10, 1 / ranks.double(), 0.0).mean())


def _dev_queries(method: DSIMethod, corpus: Corpus, row_of: dict[str, int]) -> tuple[Tensor, Tensor]:
    pairs = corpus.pairs("dev", kinds=("annotated",))
    vectors = method.encode([pair.query.text for pair in pairs])
    return vectors, torch.tensor([row_of[pair.docid] for pair in pairs], device=vectors.device)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Many small products in sequence: threads would spend their time waiting for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, kw_only=True)
class ConvexOptions(ConvexSettings):
    """The convex problem that a new row solves, and how it is solved. Margins are in the units of training scores."""

    constraints: str = "mean"  # of a new document's queries; or each: every query is a constraint
    passes: int = 1
    row_init: str = "random"


@dataclass(kw_only=True)
class IncDSI(DSIMethod):
    """Learned state: also `means_`, the mean query vector of each row's document (N, D)."""

    name: ClassVar[str] = "incdsi"
    rehearsal_free: ClassVar[bool] = False

    add_options: ConvexOptions = ConvexOptions()

    means_: Tensor = field(init=False, repr=False, compare=False)

    def prepare(self, corpus: Corpus, pairs: Pairs | None) -> None:
        """Cache the mean query vector of every document of D0."""
        pairs = self.training_pairs(corpus) if pairs is None else pairs
        self.means_ = self.mean_queries(corpus, pairs, self.encode([pair.text for pair in pairs]))

    def add(self, corpus: Corpus, *, pairs: Pairs | None = None, checkpoint: Path | None = None, progress: Progress = silent) -> Self:
        pairs = self.training_pairs(corpus, new=True) if pairs is None else pairs
        vectors = self.encode([pair.text for pair in pairs], progress=progress)
        start = self.initial_rows(corpus, self.add_options.row_init, norm=self.row_norm_, pairs=pairs, progress=progress)
        rows = self.solve(vectors, self.positions(corpus, pairs), start, self.add_options, progress)
        self.model_.rows.grow([document.docid for document in corpus.documents], rows)
        self.model_.rows.freeze()
        self.means_ = torch.cat([self.means_, self.mean_queries(corpus, pairs, vectors)])
        self.logs_.append(TrainingLog())
        return self

    def solve(self, vectors: Tensor, targets: Tensor, start: Tensor, options: ConvexOptions, progress: Progress = silent) -> Tensor:
        """Rows (k, D) of new documents, one after the other; `targets` (n,) is the document of each query vector (n, D)."""
        scale, count = self.encoding.scale, len(start)
        present = torch.cat([block.detach() for block in self.model_.rows.blocks])
        deleted = torch.zeros(len(present), dtype=torch.bool, device=present.device)
        deleted[sorted(self.model_.rows.deleted)] = True
        if options.constraints == "each":
            queries = [scale * vectors[targets == number] for number in range(count)]
        else:
            queries = list(scale * mean_by_position(vectors, targets, count)[:, None])  # (1, D) each
        keywords: dict[str, Any] = {"start": start, "deleted": deleted, "passes": options.passes}
        with one_thread(), progress("solving rows", total=options.passes * count, unit="documents") as advance:
            return solve_rows(present, scale * self.means_, queries, options, advance=advance, **keywords)

    def search_settings(
        self, old: Corpus, tune: Corpus, *, trials: int, fixed: dict[str, float] | None = None, progress: Progress = silent
    ) -> dict[str, Any]:
        """Choose weight, margins and ridge, except those `fixed`, on held-out documents; old dev queries weigh most."""
        pairs = self.training_pairs(tune, new=True)
        vectors, targets = self.encode([pair.text for pair in pairs]), self.positions(tune, pairs)
        start = self.initial_rows(tune, self.add_options.row_init, norm=self.row_norm_, pairs=pairs)
        trial = Trial(self, old, tune)
        tried = []
        with progress("searching settings", total=trials, unit="settings") as advance:
            for settings in sample_settings(trials, seed=self.seed):
                settings |= fixed or {}
                rows = self.solve(vectors, targets, start, replace(self.add_options, **settings))
                tried.append((settings, trial.evaluate(rows)))
                advance(1)
        chosen = max(tried, key=lambda trial: trial[1].both)[0]  # the first of equals
        self.add_options = replace(self.add_options, **chosen)
        return {"chosen": chosen, "tried": [{**settings, **score._asdict()} for settings, score in tried]}

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
