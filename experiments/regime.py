"""How far rows can move in training, which decides what claims of the paper a run can test.

Adam divides a gradient by its root mean square: a row that has a gradient in a share f of the steps moves by about rate · √f in each of
them. So a row can move by τ = rate · steps · √(batch / documents). In the paper D0's rows move fourteen times as far as new ones.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from promptdsi.bench.plan import Setting
from promptdsi.bench.run_records import D0Record, RunRecord, default_params
from promptdsi.bench.system_results import SystemResults

TRAINED_ALIKE = ("S++", "L2P", "CODA", "Topic", "Rows only")  # their new rows have one rate and one number of steps
FACTOR = 3.0  # a ratio so many times the paper's, or its part, is another regime


HIGHEST_LOSS = 0.5  # of D0's last epoch: above it D0 is not learned as the paper's was


class Regime(NamedTuple):
    """τ of D0, and of the rows of a new corpus; the mean loss of D0's last epoch, 0 where it is not known."""

    d0: float
    new: float
    loss: float = 0.0

    @property
    def ratio(self) -> float:
        return self.new / self.d0

    @property
    def as_in_paper(self) -> bool:
        """Whether new rows move about as far beside D0's as in the paper, after D0 was learned.

        Examples
        --------
        >>> Regime(0.16, 0.10).as_in_paper, Regime(0.90, 0.075).as_in_paper, Regime(0.90, 0.075, loss=0.7).as_in_paper
        (False, True, False)
        """
        return self.moves_as_in_paper and self.loss < HIGHEST_LOSS

    @property
    def moves_as_in_paper(self) -> bool:
        return PAPER.ratio / FACTOR <= self.ratio <= PAPER.ratio * FACTOR

    def __str__(self) -> str:
        return f"τ {self.d0:.2g} on D0 and {self.new:.2g} on a new corpus, ratio {self.ratio:.2g}"


PAPER = Regime(0.96, 0.068)  # NQ320k, BERT


def tau(rate: float, steps: float, batch: int, documents: float) -> float:
    """How far a row can move.

    Examples
    --------
    >>> round(tau(1e-3, 665, 128, 2100), 2), round(tau(2e-3, 60, 128, 180), 2)
    (0.16, 0.1)
    """
    return rate * steps * math.sqrt(batch / documents)


def regime_of(results: SystemResults, setting: Setting) -> Regime | None:
    """The regime of a setting, from the records of its D0 and of a system that trains new rows; None while either has not run."""
    d0 = results.d0.get(setting.name)
    trained = [
        record
        for result in results.of(setting)
        if result.point.system.label in TRAINED_ALIKE
        for record in result.records
        if all(step.training_steps for step in record.steps)
    ]
    if d0 is None or not trained:
        return None
    params = default_params("rows") | d0.run.params
    return Regime(
        tau(params["fit.row_lr"], d0.steps, params["fit.batch_size"], d0.data.corpora[0].documents),
        _tau_of_new_corpora(trained[0]),
        last_loss(d0) or 0.0,
    )


def last_loss(d0: D0Record) -> float | None:
    """The mean loss of D0's last epoch, where it was recorded."""
    epochs = (default_params("rows") | d0.run.params)["fit.epochs"]
    return sum(last) / len(last) if (last := d0.losses[-max(1, d0.steps // epochs) :]) else None


def _tau_of_new_corpora(record: RunRecord) -> float:
    """The mean over the new corpora."""
    params = default_params(record.run.method) | record.run.params
    moves = [tau(params["add.row_lr"], step.training_steps, params["add.batch_size"], step.documents) for step in record.steps]
    return sum(moves) / len(moves)
