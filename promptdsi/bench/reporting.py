"""Write an experiment's report: RESULTS/SCALE/NAME.md, NAME.tex and figures, from cells alone; the same cells give the same bytes.

A kind of report is one file in `reports/` with a NAME and a function `parts(findings)`; nothing else lists it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from promptdsi.bench import reports
from promptdsi.bench.cells import Results
from promptdsi.bench.figures import save
from promptdsi.bench.findings import Data, Findings, Heading, Part, Plot, command, gather
from promptdsi.bench.plan import Experiment, Setting
from promptdsi.bench.tables import Table, escape
from promptdsi.discovery import modules_of
from promptdsi.evaluation.continual import RESAMPLES
from promptdsi.files import atomic_write

FORMULAS = (
    "A_t is the mean over the corpora D1 to Dt as they stand after step t, without D0, each corpus counting the same (macro average)",
    "LA_t is the same mean with each corpus just after it was learned",
    "F_t is the mean over D0 to D(t−1) of the fall from the best earlier step i' ≥ i; D0 is in it, and it is negative where figures rose",
    "forgetting of D0 is P[0][0] − P[T][0]; the paper prints the opposite sign",
)


def write_report(experiment: Experiment, results: Results) -> list[Path]:
    """Write the report and its figures; what has not run yet is shown as a dash and listed at the end."""
    findings = gather(experiment, results)
    parts = list(modules_of(reports)[experiment.report].parts(findings))
    base = results.folder / experiment.scale / experiment.name
    written = [_write(base.with_suffix(".md"), markdown(findings, parts)), _write(base.with_suffix(".tex"), latex(findings, parts))]
    for part in parts:
        if isinstance(part, Data):
            written.append(_write(base.with_suffix(".json"), json.dumps(part.content, indent=1, ensure_ascii=False) + "\n"))
        if isinstance(part, Plot):
            written += save(part.draw, base.parent / file_of(experiment, part))
    return written


def _write(path: Path, text: str) -> Path:
    with atomic_write(path) as out:
        out.write(text.encode("utf-8"))
    return path


def file_of(experiment: Experiment, plot: Plot) -> str:
    return f"{experiment.name}-{plot.name}"


def markdown(findings: Findings, parts: Sequence[Part]) -> str:
    experiment = findings.experiment
    top = [f"# {experiment.title}", *([f"{experiment.paper} of the paper."] if experiment.paper else []), experiment.about]
    body = [_markdown(experiment, part) for part in parts]
    lacking = ["## Not run yet", "not run yet: " + "; ".join(findings.missing)] if findings.missing else []
    return "\n\n".join(text.strip() for text in [*top, *body, *lacking, *provenance(findings)] if text) + "\n"


def _markdown(experiment: Experiment, part: Part) -> str:
    if isinstance(part, Table):
        return f"**{part.title}**\n\n{part.markdown()}"
    if isinstance(part, Data):
        return ""
    if isinstance(part, Plot):
        return f"![{part.caption}]({file_of(experiment, part)}.png)\n\n*{part.caption}*"
    return f"## {part.text}" if isinstance(part, Heading) else part.text


def latex(findings: Findings, parts: Sequence[Part]) -> str:
    """Tables and figures to be taken into a paper with \\input, where they come from in comments at the head."""
    experiment, tables = findings.experiment, 0
    head = [f"{experiment.title}. Needs booktabs, amssymb, graphicx, longtable.", *filter(None, provenance(findings))]
    written = [f"% {line.lstrip('# ')}".rstrip() for line in "\n\n".join(head).splitlines()] + [""]
    for part in parts:
        if isinstance(part, Table):
            tables += 1
            written.append(part.latex(f"tab:{experiment.name}-{tables}"))
        elif isinstance(part, Plot):
            file = file_of(experiment, part)
            lines = [r"\begin{figure}[t]", r"\centering", rf"\includegraphics[width=\linewidth]{{{file}.png}}"]
            lines += [rf"\caption{{{escape(part.caption)}}}", rf"\label{{fig:{file}}}", r"\end{figure}", ""]
            written.append("\n".join(lines))
        elif isinstance(part, Heading):
            written.append(f"% {part.text}\n")
    return "\n".join(written)


def provenance(findings: Findings) -> list[str]:
    """Where every figure above comes from."""
    experiment = findings.experiment
    records = [record for setting in experiment.settings for record in findings.records(setting)]
    points = [
        f"cells: `{command(experiment, 'run')}`",
        f"this file: `{command(experiment, 'report')}`",
        *(f"{name}: {_distinct(records, name)}" for name in ("promptdsi", "code", "python", "torch", "transformers")),
        "keywords that are not named have the defaults of the method's class, which are the paper's",
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
    return ["## Where this comes from", _list(points), *(_of_setting(findings, setting) for setting in experiment.settings)]


def _of_setting(findings: Findings, setting: Setting) -> str:
    records = findings.records(setting)
    if not records:
        return ""
    asked = findings.experiment.split
    data = next((record["data"] for record in records if asked in record["data"]["queries"]), records[0]["data"])
    split = asked if asked in data["queries"] else next(iter(data["queries"]))  # D0 alone is asked dev queries
    sums = data["queries"][split]
    corpora = data["sizes"][: len(sums) or None]
    points = [
        f"stream {data['stream']}: `{json.dumps(setting.d0.stream, sort_keys=True)}`",
        f"D0 learned with `{json.dumps(setting.d0.params, sort_keys=True)}`",
        "documents: " + ", ".join(f"{one['corpus']} {one['documents']:,}" for one in corpora),
        f"n of {split} queries: " + ", ".join(f"{one['corpus']} {one[split]:,}" for one in corpora),
        f"checksums of {split} queries: " + " ".join(f"`{one[:8]}`" for one in sums),
        "D0 checksum: " + (", ".join(f"`{one}`" for one in d0_checksums(records)) or "none"),
    ]
    if seeds := sorted({seed for one in findings.of(setting) for seed in one.seeds}):
        points.append("seeds: " + ", ".join(str(seed) for seed in seeds))
    points += _settings_of(findings, setting)
    return f"### {setting.label}\n\n{_list(points)}"


def _settings_of(findings: Findings, setting: Setting) -> list[str]:
    """How each system learned the new corpora: its keywords beside D0's, what a search chose, and the code it ran with."""
    said = []
    for one in findings.of(setting):
        if not one.records:
            continue
        own = {name: value for name, value in one.records[0]["cell"]["params"].items() if setting.d0.params.get(name) != value}
        searched = [record["searched"]["chosen"] for record in one.records if record.get("searched")]
        chosen = "; searched: " + ", ".join(f"`{json.dumps(each)}`" for each in searched) if searched else ""
        code = _distinct(one.records, "code")
        said.append(f"{one.label}: {one.point.system.method} with `{json.dumps(own, sort_keys=True)}`{chosen}; code {code}")
    return said


def d0_checksums(records: Sequence[dict[str, Any]]) -> list[str]:
    """The D0 checkpoints cells began from: one, unless it was learned again when it was gone."""
    return sorted({found[:12] for record in records if (found := record.get("d0_sha256") or record.get("sha256"))})


def _distinct(records: Sequence[dict[str, Any]], name: str) -> str:
    return ", ".join(sorted({str(record["versions"][name]) for record in records}))


def _list(points: Sequence[str]) -> str:
    return "\n".join(f"- {point}" for point in points)
