"""Write an experiment's report: RESULTS/SCALE/NAME.md, .tex, .json and figures, from records alone; the same records give the same bytes.

A report is a file `reports/NAME.py` beside the experiment's TOML file, with a function `report(results: SystemResults)` that yields
a summary, then headings, paragraphs, tables and figures in order. It may import its neighbours: `from ..helpers import …`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from promptdsi.bench.plan import Experiment, Setting
from promptdsi.bench.preflight import stream_folder
from promptdsi.bench.provenance import provenance, query_counts, system_params
from promptdsi.bench.runs import RunStore
from promptdsi.bench.schema import Params
from promptdsi.bench.system_results import SystemResults, collect_results
from promptdsi.bench.tables import Table, escape_latex
from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.streams import read_manifest
from promptdsi.errors import DataError, PromptDSIError
from promptdsi.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUMMARY_ROWS = 10
FEW_QUERIES = 200  # with fewer, an interval is some fourteen points wide, and no figure is marked as the best


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
    """Content for other programs: keys of the report's .json."""

    content: Params


class Attached(NamedTuple):
    """A table that the .json and the .tex hold and the page does not: few read it."""

    table: Table


class Summary(NamedTuple):
    """What a report begins with: a sentence each for what was tested, what resulted and what was not shown; a figure, a short table."""

    tested: str
    result: str
    limits: str
    figure: Plot
    table: Table

    @property
    def sentences(self) -> dict[str, str]:
        return {"Tested": self.tested, "Result": self.result, "Not shown": self.limits}


Part = Summary | Text | Heading | Table | Plot | Data | Attached


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
    load_report(experiment)  # a report that is wrong is named before records are read
    results = collect_results(experiment, store)
    if queries:
        results = replace(results, queries={setting.name: d0_queries(setting, store) for setting, _ in results.settings()})
    parts = report_parts(experiment, results)
    base = store.folder / experiment.scale / experiment.name
    texts = {".md": markdown(results, parts), ".tex": latex(results, parts), ".json": as_json(results, parts)}
    for suffix, text in texts.items():
        with atomic_write(base.with_suffix(suffix)) as out:
            out.write(text.encode("utf-8"))
    figures = [save_plot(part, base.parent / f"{experiment.name}-{part.name}") for part in flat(parts) if isinstance(part, Plot)]
    return [*(base.with_suffix(suffix) for suffix in texts), *chain.from_iterable(figures)]


def report_parts(experiment: Experiment, results: SystemResults) -> list[Part]:
    """The parts of a report. With few queries nothing in them is marked as the best."""
    parts = list(load_report(experiment)(results))
    for part in parts:
        if isinstance(part, Summary) and len(part.table.rows) > SUMMARY_ROWS:
            raise ValueError(f"{part.table.title}: the table of a summary has {len(part.table.rows)} rows, at most {SUMMARY_ROWS} are read")
    return [_without_marks(part) for part in parts] if few_queries(results) else parts


def few_queries(results: SystemResults) -> bool:
    return any(count < FEW_QUERIES for counts in query_counts(results).values() for count in counts)


def _without_marks(part: Part) -> Part:
    if isinstance(part, Summary):
        return part._replace(table=part.table.unmarked())
    return part.unmarked() if isinstance(part, Table) else Attached(part.table.unmarked()) if isinstance(part, Attached) else part


def flat(parts: Iterable[Part]) -> list[Part]:
    """The parts, with the figure and the table of a summary among them."""
    return list(chain.from_iterable((part, part.figure, part.table) if isinstance(part, Summary) else (part,) for part in parts))


def as_json(results: SystemResults, parts: Sequence[Part]) -> str:
    """All tables, those the page leaves out too, and the parameters of every system."""
    experiment = results.experiment
    content: Params = {"title": experiment.title, "scale": experiment.scale, "split": experiment.split}
    tables = [part.table if isinstance(part, Attached) else part for part in flat(parts) if isinstance(part, Table | Attached)]
    for part in parts:
        if isinstance(part, Summary):
            content["summary"] = part.sentences
        elif isinstance(part, Data):
            content |= part.content
    content |= {"tables": [table.content() for table in tables], "systems": system_params(results), "missing": list(results.missing)}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


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
    paper = [f"{experiment.paper} of the paper."] if experiment.paper else []
    how_to_read = [*paper, experiment.about]
    summary = [part for part in parts if isinstance(part, Summary)]
    body = ["## Details", *how_to_read] if summary else how_to_read
    top = [f"# {experiment.title}", *(f"**{name}:** {text}" for part in summary for name, text in _escaped(part).items())]
    top += [_part_markdown(experiment, each) for part in summary for each in (part.figure, part.table)]
    body += [_part_markdown(experiment, part) for part in parts]
    missing = ["## Not run yet", "not run yet: " + "; ".join(results.missing)] if results.missing else []
    return "\n\n".join(text.strip() for text in [*top, *body, *missing, *provenance(results)] if text) + "\n"


def _escaped(summary: Summary) -> dict[str, str]:
    """Sentences keep their code marks; an asterisk is part of a system's name."""
    return {name: text.replace("*", "\\*") for name, text in summary.sentences.items()}


def _part_markdown(experiment: Experiment, part: Part) -> str:
    """A part on the page; empty for what stands elsewhere."""
    if isinstance(part, Table):
        return f"**{part.title}**\n\n{part.markdown()}"
    if isinstance(part, Plot):
        return f"![{part.caption}]({experiment.name}-{part.name}.png)\n\n*{part.caption}*"
    if isinstance(part, Heading):
        return f"## {part.text}"
    return part.text if isinstance(part, Text) else ""


def latex(results: SystemResults, parts: Sequence[Part]) -> str:
    """Tables and figures for a paper's \\input, with their provenance in comments at the head."""
    experiment, tables = results.experiment, 0
    head = [f"{experiment.title}. Needs booktabs, amssymb, graphicx, longtable.", *filter(None, provenance(results))]
    written = [f"% {line.lstrip('# ')}".rstrip() for line in "\n\n".join(head).splitlines()] + [""]
    for part in flat(parts):
        if isinstance(part, Table | Attached):
            tables += 1
            table = part.table if isinstance(part, Attached) else part
            written.append(table.latex(f"tab:{experiment.name}-{tables}"))
        elif isinstance(part, Plot):
            file = f"{experiment.name}-{part.name}"
            lines = [r"\begin{figure}[t]", r"\centering", rf"\includegraphics[width=\linewidth]{{{file}.png}}"]
            lines += [rf"\caption{{{escape_latex(part.caption)}}}", rf"\label{{fig:{file}}}", r"\end{figure}", ""]
            written.append("\n".join(lines))
        elif isinstance(part, Heading):
            written.append(f"% {part.text}\n")
    return "\n".join(written)
