"""What the paper claims of its main tables and curves; verdicts.py judges it.

Claims of the other figures are in figure_claims.py, arithmetic in paper_sums.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from promptdsi.bench.system_results import Measure, SystemResult, on_d0, on_new
from promptdsi.evaluation.continual import Matrix
from promptdsi.methods import methods
from promptdsi.methods.dsi_method import DSIMethod
from promptdsi.methods.lora import LoRA
from promptdsi.methods.sequential import Sequential

from . import paper_sums
from .published import CONTROL
from .reports.curves import after
from .verdicts import Claim, Gap, about, gaps

# D0 counts as retained if forgetting is less than two points of Hits@10: twice what separates the frozen-encoder methods in the paper.
TOLERANCE = 0.02
D0, NEW = on_d0("Hits@10", "D0 H@10"), on_new("Hits@10", "A_T H@10")
FORGETTING = Measure("D0 H@10 forgetting", Matrix.d0_forgetting, "Hits@10")
LEARNED = Measure("LA_T H@10", Matrix.learning, "Hits@10", new=True)
FORGOTTEN = Measure("F_T H@10", Matrix.forgetting, "Hits@10", new=True)
VARIANTS = ("L2P", "S++", "CODA", "Topic")
# What separates prompts from these is not the rows: no prompt; no prompt, trained as prompts are; a prompt that never learns.
CONTROLS = (CONTROL, "Rows only, dropout as with prompts", "One random prompt, frozen")
WITHOUT_ROWS = ("Dense", "BM25")
WITH_QUERIES = "BM25 with train queries"  # the strongest that learns nothing: it indexes the queries rows learn from
LEARN_NOTHING = {"bm25", "dense"}
WITHIN = f"within {100 * TOLERANCE:.0f} points"


def continual(systems: Sequence[SystemResult]) -> list[SystemResult]:
    """Systems with rows that learn corpus after corpus without old data: what references are compared with."""
    return [system for system in systems if _is_dsi(system) and not system.reference]


def learning(systems: Sequence[SystemResult]) -> list[SystemResult]:
    """Systems that learn from queries, with rows or without, references too."""
    return [system for system in systems if system.point.system.method not in LEARN_NOTHING]


def frozen_encoder(system: SystemResult) -> bool:
    return _is_dsi(system) and not issubclass(methods()[system.point.system.method], Sequential | LoRA)


def prompted(systems: Sequence[SystemResult]) -> list[SystemResult]:
    """The paper's variants, as the paper has them."""
    return [system for system in systems if system.label in VARIANTS]


def by_label(systems: Sequence[SystemResult], *labels: str) -> list[SystemResult | str]:
    """Systems by label; a label alone is a system this scale does not plan."""
    planned = {system.label: system for system in systems}
    return [planned.get(label, label) for label in labels]


def _is_dsi(system: SystemResult) -> bool:
    return issubclass(methods()[system.point.system.method], DSIMethod)


def main_table(systems: Sequence[SystemResult]) -> list[Claim]:
    """Tables 2 and 3. Whether rows move as far as in the paper decides what separates prompts from IncDSI, and rows from DPR and Joint."""
    variants, incdsi, multi = prompted(systems), by_label(systems, "IncDSI"), by_label(systems, "Multi")
    learned = [system for system in learning(systems) if system.label != "Multi"]
    frozen = [system for system in continual(systems) if frozen_encoder(system)]
    forgetting = None if isinstance(incdsi[0], str) else incdsi[0].figures(FORGETTING)
    change = None if forgetting is None else -forgetting
    ours = [*incdsi, *variants]
    return [
        about("Methods with a frozen encoder retain D0 better than DSI++", gaps(frozen, by_label(systems, "DSI++"), D0)),
        about("DSI++ retains D0 better than Sequential", gaps(by_label(systems, "DSI++"), by_label(systems, "Sequential"), D0)),
        about("Multi is best on new corpora among all that learn", gaps(multi, learned, NEW)),
        about(f"IncDSI retains D0, {WITHIN}", [Gap("after the last corpus − before the first", change)], margin=TOLERANCE),
        *(
            about(f"Every PromptDSI variant is better on new corpora than {label}", gaps(variants, theirs, NEW), needs_regime=True)
            for label in ("IncDSI", "IncDSI*")
            for theirs in [by_label(systems, label)]
        ),
        about(
            f"Every PromptDSI variant retains D0 as IncDSI does, {WITHIN}", gaps(variants, incdsi, D0), margin=TOLERANCE, needs_regime=True
        ),
        *(
            about(f"IncDSI and every variant are better on new corpora than {label}", gaps(ours, theirs, NEW), needs_regime=True)
            for label in ("DPR", "Joint")
            for theirs in [by_label(systems, label)]
        ),
        *_not_in_the_paper(systems),
    ]


def _not_in_the_paper(systems: Sequence[SystemResult]) -> list[Claim]:
    """Controls, and systems that learn nothing."""
    variants, claims = prompted(systems), []
    for label in CONTROLS:
        control = by_label(systems, label)
        if label == CONTROL or not isinstance(control[0], str):
            claims.append((f"every variant is better on new corpora than “{label}”", gaps(variants, control, NEW)))
            claims.append((f"every variant retains D0 better than “{label}”", gaps(variants, control, D0)))
    for label in WITHOUT_ROWS:
        differences = gaps(continual(systems), by_label(systems, label), NEW)
        claims.append((f"every continual system is better on new corpora than {label}, which learns nothing", differences))
    multi = gaps(by_label(systems, "Multi"), by_label(systems, WITH_QUERIES), NEW)
    claims.append((f"Multi is better on new corpora than {WITH_QUERIES}, which learns nothing", multi))
    return [about(f"Not in the paper: {text}", differences, counted=False) for text, differences in claims]


def bert(systems: Sequence[SystemResult]) -> list[Claim]:
    """Table 2: also "Params."."""
    return [*main_table(systems), paper_sums.parameters("BERT")]


def sbert(systems: Sequence[SystemResult]) -> list[Claim]:
    """Table 3: also "Params."."""
    return [*main_table(systems), paper_sums.parameters("SBERT")]


def curves(systems: Sequence[SystemResult]) -> list[Claim]:
    """Figures 2 and 3."""
    variants, incdsi = prompted(systems), by_label(systems, "IncDSI")
    last = next((system.runs[0].last for system in systems if system.runs), 1)
    steps = [
        gap._replace(name=f"{gap.name}, t = {step}")
        for step in range(1, last + 1)
        for gap in gaps(variants, incdsi, after("A_t", "Hits@10", step))
    ]
    least = f"Every PromptDSI variant forgets as little as IncDSI, {WITHIN} of F_T"
    return [
        about("Every PromptDSI variant is above IncDSI in A_t, after every corpus", steps, needs_regime=True),
        about("Every PromptDSI variant is above IncDSI in LA_T", gaps(variants, incdsi, LEARNED), needs_regime=True),
        about(least, gaps(variants, incdsi, FORGOTTEN, sign=-1.0), margin=TOLERANCE, needs_regime=True),
    ]
