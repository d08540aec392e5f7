"""Write an experiment's report: RESULTS/SCALE/NAME.md, NAME.tex and figures, from records alone; the same records give the same bytes.

A report is a file `reports/NAME.py` beside the experiment's TOML file, with a function `report(results: SystemResults)` that yields
headings, paragraphs, tables and figures in order. It may import its neighbours: `from ..helpers import …`, `from .other import …`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from promptdsi.bench.plan import Experiment, Setting
from promptdsi.bench.preflight import stream_folder
from promptdsi.bench.run_records import D0Record, RunRecord
from promptdsi.bench.runs import RunStore
from promptdsi.bench.schema import Params
from promptdsi.bench.system_results import SystemResults, collect_results
from promptdsi.bench.tables import Table, escape_latex
from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.streams import read_manifest
from promptdsi.errors import DataError, PromptDSIError
from promptdsi.evaluation.continual import RESAMPLES
from promptdsi.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMULAS = (
    "A_t is the mean over the corpora D1 to Dt as they stand after step t, without D0, each corpus counting the same (macro average)",
    "LA_t is the same mean with each corpus just after it was learned",
    "F_t is the mean over D0 to D(t−1) of the drop from the best earlier step i' ≥ i; D0 is in it, and it is negative where figures rose",
    "forgetting of D0 is P[0][0] − P[T][0]; the paper prints the opposite sign",
)


class Text(NamedTuple):
    """A paragraph or a list, as Markdown."""

    text: str


class Heading(NamedTuple):
    text: str


class Plot(NamedTuple):
    """A figure: the end of its file's name, its caption, the function that draws it, and matplotlib settings to draw and save it with."""

    name: str
    caption: str
    draw: Callable[[], Figure]
    style: Mapping[str, Any] = MappingProxyType({})


class Data(NamedTuple):
    """Content for other programs: the report's .json."""

    content: Params


Part = Text | Heading | Table | Plot | Data


def study_module(folder: Path, name: str) -> ModuleType:
    """A module of a study's folder, such as `reports.main`, imported from its path; studies do not see each other's modules."""
    package = f"promptdsi_study_{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]}"
    *parents, _ = [package, *name.split(".")]
    for depth in range(len(parents)):
        parent = ".".join(parents[: depth + 1])
        if parent not in sys.modules:
            module = ModuleType(parent)
            module.__path__ = [str(folder.resolve().joinpath(*parents[1 : depth + 1]))]
            sys.modules[parent] = module
    return importlib.import_module(f"{package}.{name}")


def load_report(experiment: Experiment) -> Callable[[SystemResults], Iterable[Part]]:
    """The `report` function of reports/NAME.py beside the experiment."""
    module = study_module(experiment.path.parent, f"reports.{experiment.report}")
    report = getattr(module, "report", None)
    if not callable(report):
        raise DataError("has no function `report(results)`", path=str(module.__file__))
    return report  # type: ignore[no-any-return]


def write_report(experiment: Experiment, store: RunStore, *, queries: bool = False) -> list[Path]:
    """Write the report and its figures; what has not run yet is shown as a dash and listed at the end.

    With `queries` it may show text of the data, read from the streams in the store's work folder: not for publication as it is.
    """
    report = load_report(experiment)
    results = collect_results(experiment, store)
    if queries:
        results = replace(results, queries={setting.name: d0_queries(setting, store) for setting, _ in results.settings()})
    parts = list(report(results))
    base = store.folder / experiment.scale / experiment.name
    texts = {".md": markdown(results, parts), ".tex": latex(results, parts)}
    for part in parts:
        if isinstance(part, Data):
            texts[".json"] = json.dumps(part.content, indent=1, ensure_ascii=False) + "\n"
    for suffix, text in texts.items():
        with atomic_write(base.with_suffix(suffix)) as out:
            out.write(text.encode("utf-8"))
    figures = [save_plot(part, base.parent / f"{experiment.name}-{part.name}") for part in parts if isinstance(part, Plot)]
    return [*(base.with_suffix(suffix) for suffix in texts), *chain.from_iterable(figures)]


def d0_queries(setting: Setting, store: RunStore) -> dict[str, str]:
    """The text of the queries of D0 by id, from the stream that the runs were made on."""
    folder = stream_folder(store, setting.d0.stream)
    name = read_manifest(folder)["corpora"][0]["name"]
    return {query.queryid: query.text for query in Corpus.read(folder / name, splits=()).queries}


def save_plot(plot: Plot, path: Path) -> list[Path]:
    """Draw a figure and write it as PNG and SVG, the same bytes each time, whatever the user's own matplotlib settings are."""
    try:
        import matplotlib
    except ImportError:
        raise PromptDSIError("figures need matplotlib: pip install 'promptdsi[bench]'") from None
    metadata: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
    written = []
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        style: Any = {"svg.hashsalt": "promptdsi", **plot.style}  # without a salt the names inside an SVG are random
        matplotlib.rcParams.update(style)
        figure = plot.draw()
        figure.draw_without_rendering()  # lays the panels out, once for both formats
        figure.set_layout_engine("none")
        for kind, fields in metadata.items():
            target = path.parent / f"{path.name}.{kind}"  # not with_suffix: a name may hold a dot
            with atomic_write(target) as out:
                figure.savefig(out, format=kind, dpi=200, metadata=fields)
            written.append(target)
    return written


def markdown(results: SystemResults, parts: Sequence[Part]) -> str:
    experiment = results.experiment
    top = [f"# {experiment.title}", *([f"{experiment.paper} of the paper."] if experiment.paper else []), experiment.about]
    body = []
    for part in parts:
        if isinstance(part, Table):
            body.append(f"**{part.title}**\n\n{part.markdown()}")
        elif isinstance(part, Plot):
            body.append(f"![{part.caption}]({experiment.name}-{part.name}.png)\n\n*{part.caption}*")
        elif not isinstance(part, Data):
            body.append(f"## {part.text}" if isinstance(part, Heading) else part.text)
    missing = ["## Not run yet", "not run yet: " + "; ".join(results.missing)] if results.missing else []
    return "\n\n".join(text.strip() for text in [*top, *body, *missing, *provenance(results)] if text) + "\n"


def latex(results: SystemResults, parts: Sequence[Part]) -> str:
    """Tables and figures for a paper's \\input, with their provenance in comments at the head."""
    experiment, tables = results.experiment, 0
    head = [f"{experiment.title}. Needs booktabs, amssymb, graphicx, longtable.", *filter(None, provenance(results))]
    written = [f"% {line.lstrip('# ')}".rstrip() for line in "\n\n".join(head).splitlines()] + [""]
    for part in parts:
        if isinstance(part, Table):
            tables += 1
            written.append(part.latex(f"tab:{experiment.name}-{tables}"))
        elif isinstance(part, Plot):
            file = f"{experiment.name}-{part.name}"
            lines = [r"\begin{figure}[t]", r"\centering", rf"\includegraphics[width=\linewidth]{{{file}.png}}"]
            lines += [rf"\caption{{{escape_latex(part.caption)}}}", rf"\label{{fig:{file}}}", r"\end{figure}", ""]
            written.append("\n".join(lines))
        elif isinstance(part, Heading):
            written.append(f"% {part.text}\n")
    return "\n".join(written)


def provenance(results: SystemResults) -> list[str]:
    """Where every number above comes from."""
    experiment = results.experiment
    records = [record for setting in experiment.settings for record in results.records(setting)]
    points = [
        f"runs: `{experiment.command('run')}`",
        f"this file: `{experiment.command('report')}`",
        *(f"{name}: {_distinct(records, name)}" for name in ("promptdsi", "code", "python", "torch", "transformers")),
        "parameters that are not named have the defaults of the method's class, which are the paper's",
    ]
    if experiment.points:
        points += [
            *FORMULAS,
            f"figures are per cent of the {experiment.split} queries; "
            f"intervals are 95 % percentile intervals over {RESAMPLES:,} bootstrap resamples "
            "of queries, the same draws for every system, so that differences are paired; where a system has several seeds it is their "
            "mean, and resamples draw seeds too (three are few); with one seed an interval is about that run",
            "± is the sample standard deviation (ddof = 1) over seeds of the continual stage; D0 is learned once and shared by all, "
            "except where several D0 checksums are given: then it was learned again from the same seed when the first was gone",
        ]
    settings = ("\n".join(_setting_provenance(results, setting)) for setting in experiment.settings)
    return ["## Where this comes from", "\n".join(f"- {point}" for point in points), *settings]


def _setting_provenance(results: SystemResults, setting: Setting) -> Iterator[str]:
    records = results.records(setting)
    if not records:
        return
    split = results.experiment.split
    data = next((record.data for record in records if split in record.data.queries), records[0].data)
    shown = split if split in data.queries else next(iter(data.queries))  # D0 alone is evaluated on the dev split
    yield f"### {setting.label}\n"
    yield f"- stream {data.stream}: `{json.dumps(setting.d0.stream, sort_keys=True)}`"
    yield f"- D0 learned with `{json.dumps(setting.d0.params, sort_keys=True)}`"
    yield "- documents: " + ", ".join(f"{corpus.corpus} {corpus.documents:,}" for corpus in data.corpora)
    yield f"- n of {shown} queries: " + ", ".join(f"{corpus.corpus} {getattr(corpus, shown):,}" for corpus in data.corpora)
    yield f"- checksums of {shown} queries: " + " ".join(f"`{checksum[:8]}`" for checksum in data.queries[shown])
    checksums = {record.sha256 if isinstance(record, D0Record) else record.d0_sha256 for record in records}
    yield "- D0 checksum: " + (", ".join(f"`{checksum[:12]}`" for checksum in sorted(filter(None, checksums))) or "none")
    if seeds := sorted({seed for result in results.of(setting) for seed in result.seeds}):
        yield "- seeds: " + ", ".join(str(seed) for seed in seeds)
    for result in results.of(setting):
        if result.records:
            params = {name: value for name, value in result.records[0].run.params.items() if setting.d0.params.get(name) != value}
            chosen = ", ".join(f"`{json.dumps(record.searched.chosen)}`" for record in result.records if record.searched)
            searched = f"; searched: {chosen}" if chosen else ""
            method, code = result.point.system.method, _distinct(result.records, "code")
            yield f"- {result.label}: {method} with `{json.dumps(params, sort_keys=True)}`{searched}; code {code}"


def _distinct(records: Sequence[RunRecord | D0Record], name: str) -> str:
    return ", ".join(sorted({record.versions[name] for record in records}))
