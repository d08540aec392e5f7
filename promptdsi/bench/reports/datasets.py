"""Table 1: how many documents and queries each corpus of a stream has."""

from __future__ import annotations

from collections.abc import Iterator

from promptdsi.bench.findings import Findings, Heading, Part, Text
from promptdsi.bench.plan import Setting
from promptdsi.bench.tables import Column, Line, Table, line
from promptdsi.methods.dsi import DSIMethod

NAME = "datasets"
COUNTS = {"documents": "documents", "train": "train queries", "dev": "dev queries", "test": "test queries", "pseudo": "pseudo-queries"}


def parts(findings: Findings) -> Iterator[Part]:
    unmade = False
    for setting in findings.experiment.settings:
        yield Heading(setting.label)
        if setting.name not in findings.d0:
            yield Text("D0 has not been learned here yet, so the sizes are not recorded: –")
            continue
        data = findings.d0[setting.name]["data"]
        stream = data["sizes"][: len(next(iter(data["queries"].values())))]
        beside = data["sizes"][len(stream) :]
        whole = {"corpus": "total", **{name: sum(corpus[name] for corpus in stream) for name in COUNTS}}
        made = "" if whole["pseudo"] else _made(setting)
        lines = [_line(corpus, made) for corpus in stream]
        lines += [_line(whole, made, group="All corpora")]
        lines += [_line(corpus, made, group="Held out, not in the stream") for corpus in beside]
        columns = [Column("corpus", left=True), *(Column(title) for title in COUNTS.values())]
        yield Table(f"{setting.label}: sizes of stream {data['stream']}", columns, lines)
        unmade |= bool(made)
    if unmade:
        yield Text(
            "Where a stream brings no pseudo-queries, learning makes them: spans of each document's own text, at most so many of each "
            "(`pseudo_queries`), drawn with the seed. The paper's are written by docT5query, up to 15 of each document."
        )


def _made(setting: Setting) -> str:
    """How many pseudo-queries learning makes where the stream brings none."""
    return f"up to {setting.d0.params.get('pseudo_queries', DSIMethod.pseudo_queries)} per document"


def _line(counts: dict[str, int | str], made: str, group: str = "") -> Line:
    """A corpus; `made` says instead of a nought what learning makes."""
    shown = [made if made and name == "pseudo" else f"{counts[name]:,}" for name in COUNTS]
    return line(str(counts["corpus"]), *shown, group=group)
