"""Section 5.3: what must be stored beside encoder and rows; measured here, and the paper's counts from its formulas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from promptdsi.bench.plan import Setting
from promptdsi.bench.report import Heading, Part, Summary, Text
from promptdsi.bench.system_results import SystemResult, SystemResults
from promptdsi.bench.tables import Column, Table, row

from ..figures import legend_below, look_of, panels, plot
from ..shared import SYSTEM, count, size
from ..summaries import listed, tested

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STORING = ("IncDSI", "L2P", "S++", "CODA", "Topic")
WIDTH, NUMBER = 768, 4  # of the paper's backbones; bytes of a number
NQ, MS_MARCO, MS_MARCO_FULL = 108_617, 299_424, 8_800_000  # documents; the last as the paper rounds it


class MemorySum(NamedTuple):
    what: str
    formula: str
    bytes: int
    printed: str


def pool(prompts: int, length: int = 20) -> int:
    """Prompts and their keys, in bytes.

    Examples
    --------
    >>> pool(5)
    322560
    """
    return prompts * (length + 1) * WIDTH * NUMBER


def cache(documents: int) -> int:
    """IncDSI's mean query of every document, in bytes."""
    return documents * WIDTH * NUMBER


SUMS = (
    MemorySum("L2P, S++: pool and keys", "5 · (20 + 1) · 768 · 4 B", pool(5), "315 KiB"),
    MemorySum("largest Topic: pool and keys", "193 · (20 + 1) · 768 · 4 B", pool(193), "11.9 MiB"),
    MemorySum("IncDSI: mean queries, NQ320k", "108,617 · 768 · 4 B", cache(NQ), "318 MiB"),
    MemorySum("IncDSI: mean queries, MS MARCO 300k", "299,424 · 768 · 4 B", cache(MS_MARCO), "977 MiB (a slip: 877)"),
    MemorySum("IncDSI: mean queries, MS MARCO, all passages", "8,800,000 · 768 · 4 B", cache(MS_MARCO_FULL), "25 GiB"),
)


def report(results: SystemResults) -> Iterator[Part]:
    yield _summary(results)
    for setting, systems in results.settings():
        yield Heading(setting.label)
        yield _measured(setting, systems)
    yield Heading("The paper's counts")
    yield Table(
        "Memory by arithmetic: dimension 768, numbers of 4 bytes",
        [
            Column("what", left=True),
            Column("formula", left=True),
            Column("bytes"),
            Column("that is"),
            Column("the paper prints", left=True),
        ],
        [row(entry.what, entry.formula, f"{entry.bytes:,}", size(entry.bytes), entry.printed) for entry in SUMS],
    )
    yield _growth()
    yield Text("A Topic pool grows with the number of topics mined from D0, not with documents that arrive later.")


def _summary(results: SystemResults) -> Summary:
    """What each variant stores beside IncDSI's cache, measured in the first setting."""
    setting, systems = next(results.settings())
    stored = {
        result.label: (extra, extra / documents_of(result))
        for result in systems
        if result.label in STORING and (extra := result.mean_of(lambda record: record.extra_bytes)) is not None
    }
    pools = [f"{size(extra)} ({label})" for label, (extra, _) in stored.items() if label != "IncDSI"]
    cache_text = f", IncDSI's mean queries {size(stored['IncDSI'][0])}" if "IncDSI" in stored else ""
    grows = "What must be stored as documents grow (dimension 768): pools stay, a cache of mean queries grows"
    figure = plot("growth", f"{grows}; dots: NQ320k, MS MARCO 300k, all of MS MARCO; Topic with 193 topics", _draw)
    rows = [row(label, size(extra), f"{each:,.1f}") for label, (extra, each) in stored.items()]
    columns = [SYSTEM, Column("stored"), Column("bytes per document")]
    return Summary(
        tested(results),
        f"On {setting.label}, prompts and their keys take {listed(pools)}{cache_text}.",
        "Memory at the paper's size is arithmetic and was not measured.",
        figure,
        Table(f"What prompts and IncDSI store after the last corpus ({setting.label}, measured)", columns, rows),
    )


def _measured(setting: Setting, systems: Sequence[SystemResult]) -> Table:
    rows = []
    for result in systems:
        trained, extra = result.mean_of(lambda record: record.trained_parameters), result.mean_of(lambda record: record.extra_bytes)
        if trained is None or extra is None:
            rows.append(row(result.label, *[None] * 4, group=result.group))
            continue
        documents = documents_of(result)
        shown = (size(extra), f"{extra:,.0f}", f"{extra / documents:,.1f}", count(trained))
        rows.append(row(result.label, *shown, group=result.group))
    columns = [SYSTEM, Column("stored"), Column("bytes"), Column("bytes per document"), Column("trained parameters")]
    return Table(f"{setting.label}: stored beside encoder and rows after the last corpus, measured", columns, rows)


def documents_of(result: SystemResult) -> int:
    """Documents of the stream, with D0 and without held-out ones."""
    return sum(corpus.documents for corpus in result.records[0].data.corpora)


def _growth() -> Table:
    wholes = (NQ, MS_MARCO, MS_MARCO_FULL)
    rows = [
        row("IncDSI (one mean query per document)", *(size(cache(documents)) for documents in wholes), "linear"),
        row("L2P, S++ (M = 5)", *[size(pool(5))] * len(wholes), "constant"),
        row("Topic (M = 193)", *[size(pool(193))] * len(wholes), "constant"),
    ]
    columns = [Column("stored", left=True), *(Column(f"{number:,}", "documents") for number in wholes), Column("growth", left=True)]
    return Table("Growth with documents, by arithmetic", columns, rows)


def _draw() -> Figure:
    figure, axes = panels(1, 1, height=2.6, width=4.2)
    ax = axes[0, 0]
    wholes = (1_000, 10_000_000)
    for label, stored in (("IncDSI", [cache(n) for n in wholes]), ("Topic", [pool(193)] * 2), ("L2P", [pool(5)] * 2)):
        name = "L2P, S++" if label == "L2P" else label
        ax.plot(wholes, [number / 2**20 for number in stored], color=look_of(label).color, label=name)
    for documents in (NQ, MS_MARCO, MS_MARCO_FULL):
        ax.plot([documents], [cache(documents) / 2**20], color=look_of("IncDSI").color, marker=look_of("IncDSI").marker)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("documents")
    ax.set_ylabel("MiB")
    legend_below(figure, ax)
    return figure
