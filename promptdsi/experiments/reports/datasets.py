"""Table 1: how many documents and queries each corpus of a stream has."""

from __future__ import annotations

from collections.abc import Iterator

from promptdsi.experiments.findings import Findings, Heading, Part, Text
from promptdsi.experiments.tables import Column, Line, Table, line

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
        lines = [_line(corpus) for corpus in stream]
        lines += [_line(whole, group="All corpora")]
        lines += [_line(corpus, group="Held out, not in the stream") for corpus in beside]
        columns = [Column("corpus", left=True), *(Column(title) for title in COUNTS.values())]
        yield Table(f"{setting.label}: sizes of stream {data['stream']}", columns, lines)
        unmade |= not whole["pseudo"]
    if unmade:
        yield Text(
            "Pseudo-queries are 0 where the stream brings none: they are made while learning, spans of each document's text, up to "
            "`pseudo_queries` each (below; 15 unless said)."
        )


def _line(counts: dict[str, int | str], group: str = "") -> Line:
    return line(str(counts["corpus"]), *(f"{counts[name]:,}" for name in COUNTS), group=group)
