"""docs/REPRODUCTION.md: every table and figure of the paper beside what the recorded runs say, with a verdict by rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from promptdsi.bench.plan import Experiment, Setting, read_experiment
from promptdsi.bench.provenance import query_counts
from promptdsi.bench.report import FEW_QUERIES
from promptdsi.bench.runs import RunStore
from promptdsi.bench.system_results import SystemResult, SystemResults, collect_results
from promptdsi.bench.tables import escape_markdown

from . import figure_claims, paper_claims
from . import reproduction_values as values
from .published import BERT, SBERT, SPEED_UP, TWO_PASSES, Published
from .regime import PAPER, regime_of
from .reproduction_text import COMMENT, FIGURE, RULES, WHEN
from .summaries import counts_in_words, listed, lowest, with_verdicts
from .verdicts import HOLDS, NOT_PLANNED, NOT_RUN, NOT_SHOWN, REFUTED, SHOWN, UNTESTABLE, VERIFIED, VERIFIED_IN_PART, Claim, Rule, judge

FOLDER, SCALE = Path(__file__).resolve().parent, "squadx"


class Unmeasured(NamedTuple):
    """A figure of the paper for which there is no run here: its line of the overview."""

    name: str
    what: str
    paper: str
    ours: str
    verdict: str


class Item(NamedTuple):
    """A table or figure of the paper, and how ours is read from the runs."""

    name: str
    what: str
    experiment: str
    setting: str
    paper: str
    ours: Callable[[SystemResults, Setting], str]
    rule: Rule
    full: dict[str, Published] | None = None  # the published table, by data set, where every system of it is shown
    note: str = ""


class Answer(NamedTuple):
    """An item with what the runs say of it."""

    item: Item
    experiment: Experiment
    run: str
    ours: str
    claims: list[Claim]
    table: str = ""
    queries: Mapping[str, tuple[int, int]] = MappingProxyType({})  # by setting: of D0, of the new corpora


def printed(tables: dict[str, Published]) -> str:
    of_data = []
    for data, table in tables.items():
        figures = [f"{label} {table[label][values.HITS_ON_D0]} / {table[label][values.HITS_ON_NEW]}" for label in values.KEY_SYSTEMS]
        of_data.append(f"{data}, D0 / A_5 H@10: {'; '.join(figures)}")
    return f"{'. '.join(of_data)}. All systems: below"


DATA = "NQ320k 108,617 documents, 7,736 test queries; MS MARCO 300k 299,424 and 4,842; up to 15 generated queries of each document"
MINED = "Figure 5: 80 (BERT), 91 (SBERT) on NQ320k; Figure 6: 182, 193 on MS MARCO 300k"
STORED_BYTES = "315 KiB, 11.9 MiB; IncDSI 318 MiB on NQ320k, 977 MiB on MS MARCO 300k"
TWO = "two passes D0 / A_5 H@10, speed-up of one: " + "; ".join(
    f"{label} {figures[0]} / {figures[2]}, {SPEED_UP[label]}×" for label, figures in TWO_PASSES.items()
)
FIGURE_1 = Unmeasured(
    "Figure 1",
    "the two ways to choose prompts, drawn",
    "a drawing",
    "drawn too, and step by step: [model.md](model.md#the-path-of-a-query); as code `DSI.forward` in `promptdsi/model/dsi.py`",
    SHOWN,
)
FIGURE_3 = Unmeasured(
    "Figure 3",
    "the same on MS MARCO 300k",
    "curves of MS MARCO 300k, without figures",
    "nothing: there is one data set here; `promptdsi bench run experiments/curves.toml --scale paper --setting ms-bert` would run it",
    NOT_RUN,
)
HALVES = "That the upper half is BERT and the lower SBERT is our reading: the text names one panel, and we have no copy of the drawing."
EXAMPLES = (
    "Queries are shown for the demo corpus alone, which was written for this project. Those of squadx are downloaded and not ours to "
    "commit: its records hold terms of topics and no query ([research.md](research.md#runs)). Topics are k-means clusters, a quarter "
    "of the root of D0's documents and at least four, so that the smaller corpus has fewer; the paper's BERTopic finds their number itself."
)
ITEMS: tuple[Item | Unmeasured, ...] = (
    FIGURE_1,
    Item("Table 1", "the data", "datasets", "minilm", DATA, values.sizes, figure_claims.data),
    Item("Table 2", "all systems, BERT", "main", "minilm", printed(BERT), values.scores, paper_claims.bert, full=BERT),
    Item(
        "Figure 2",
        "continual indexing, A_t, LA_t, F_t",
        "curves",
        "minilm",
        "curves of NQ320k, without figures",
        values.ends,
        paper_claims.curves,
    ),
    FIGURE_3,
    Item("Table 3", "all systems, SBERT", "main", "mpnet", printed(SBERT), values.scores, paper_claims.sbert, full=SBERT),
    Item("Table 4", "one pass or two", "passes", "minilm", TWO, values.two_passes, figure_claims.one_pass),
    Item(
        "Figure 4, top",
        "use of the pools, BERT",
        "utilisation",
        "minilm",
        "bars without figures",
        values.in_use,
        figure_claims.pool_use,
        note=HALVES,
    ),
    Item(
        "Figure 4, bottom",
        "use of the pools, SBERT",
        "utilisation",
        "mpnet",
        "Topic over 60 %, over 30 % frequent",
        values.in_use,
        figure_claims.pool_use_in_figures,
        note=HALVES,
    ),
    Item(
        "Table 5",
        "queries and the topics they select",
        "topics",
        "demo",
        "26 queries, eight topics",
        values.mined,
        figure_claims.example_queries,
        note=EXAMPLES,
    ),
    Item("Figures 5, 6", "topics", "topics", "minilm", MINED, values.mined, figure_claims.topics),
    Item("Figure 7", "which layers to prompt", "layers", "minilm", "layer 2 of 12 (SBERT)", values.layer, figure_claims.prompted_layers),
    Item("Memory", "what must be stored", "memory", "minilm", STORED_BYTES, values.bytes_stored, figure_claims.stored_memory),
)


def answer(item: Item, store: RunStore) -> Answer:
    """What the runs say of an item; without any run its claims are not run."""
    experiment = read_experiment(FOLDER / f"{item.experiment}.toml", SCALE, store)
    setting = next(setting for setting in experiment.settings if setting.name == item.setting)
    recorded = [run for run in experiment.runs if store.path(run.file).is_file()]
    if recorded or (not experiment.points and any(store.path(each.d0.file).is_file() for each in experiment.settings)):
        results = collect_results(experiment, store)
    else:
        results = SystemResults(experiment, tuple(SystemResult(point, ()) for point in experiment.points))
    systems = results.of(setting)
    seeds = sorted({seed for system in systems for seed in system.seeds})
    runs = sum(len(system.records) for system in systems), sum(len(system.point.runs) for system in systems)
    queries = {label: counts for label, counts in query_counts(results).items() if label == setting.label}
    run = f"{SCALE}, {setting.label}" + (f"; seeds {', '.join(map(str, seeds))}; {runs[0]} of {runs[1]} runs" if seeds else "")
    claims = judge(item.rule(systems), regime_of(results, setting))
    table = "" if item.full is None else values.full_table(item.full, systems)
    return Answer(item, experiment, run, item.ours(results, setting) or NOT_RUN, claims, table, queries)


def overall(claims: Sequence[Claim]) -> str:
    """The worst of an item's claims, and how many have which verdict."""
    arithmetic = [claim.verdict for claim in claims if claim.verdict in (VERIFIED, VERIFIED_IN_PART)]
    verdicts = [claim.verdict for claim in claims if claim.counted and claim.verdict not in (VERIFIED, VERIFIED_IN_PART)]
    if not verdicts:
        return f"**{arithmetic[0]}**"
    worst = next(word for word in (REFUTED, NOT_SHOWN, UNTESTABLE, HOLDS, SHOWN, NOT_RUN, NOT_PLANNED) if word in verdicts)
    counted = ", ".join(f"{word} {verdicts.count(word)}" for word in WHEN if word in verdicts)
    return f"**{worst}**" + (f" ({counted})" if len(verdicts) > 1 else "") + (f"; {arithmetic[0]}" if arithmetic else "")


def overview(answers: Sequence[Answer | Unmeasured]) -> str:
    lines = ["| of the paper | what | the paper | ours | verdict |", "|" + "---|" * 5]
    for item in answers:
        if isinstance(item, Unmeasured):
            columns = [item.name, item.what, item.paper, item.ours, f"**{item.verdict}**"]
        else:
            columns = [item.item.name, item.item.what, *map(escape_markdown, (item.item.paper, item.ours)), overall(item.claims)]
        lines.append("| " + " | ".join(columns) + " |")
    return "\n".join(lines)


def summary(answers: Sequence[Answer | Unmeasured]) -> str:
    """Three sentences, a figure and a short table, as every report begins."""
    measured = [item for item in answers if isinstance(item, Answer)]
    verdicts = [claim.verdict for item in measured for claim in item.claims if claim.counted]
    compared = with_verdicts(verdicts)
    untested = verdicts.count(UNTESTABLE)
    refuted = [claim for item in measured for claim in item.claims if claim.counted and claim.gaps and claim.verdict == REFUTED]
    reasons = "; ".join(f"“{claim.text}”, {lowest(claim)}" for claim in refuted)
    scale = f"{len(answers)} tables and figures of the paper and {len(verdicts)} claims of it at the scale `{SCALE}`"
    regime = f"{untested} claims need new rows that move {PAPER.ratio:.2f} times as far as D0's, and here they move further"
    reason = f"Whether prompts are better than IncDSI cannot be told here: {regime}"
    limits = reason if untested else "No claim is left out because of the regime"
    queries = {label: counts for item in measured for label, counts in item.queries.items() if min(counts) >= FEW_QUERIES}
    sentences = {
        "Tested": f"n = {counts_in_words(queries, 'test') or 'nothing'}: {scale}.",
        "Result": f"Of the claims that compare systems {listed(compared)}; refuted: {reasons or 'none'}.",
        "Not shown": f"{limits}; the paper's figures cannot be reached, because data and scale are others.",
    }
    lines = ["| verdict | claims of the paper | when |", "|---|--:|---|"]
    lines += [f"| {verdict} | {verdicts.count(verdict)} | {when} |" for verdict, when in WHEN.items()]
    return "\n\n".join([*(f"**{name}:** {text}" for name, text in sentences.items()), FIGURE, "\n".join(lines)])


def claim_by_claim(item: Answer, reports: Path) -> str:
    report = reports / f"{item.item.experiment}.md"
    link = f" Report: [{report.name}](results/{SCALE}/{report.name})." if report.is_file() else ""
    claims = ["| claim | verdict | evidence |", "|---|---|---|"]
    claims += [f"| {escape_markdown(claim.text)} | {claim.verdict} | {escape_markdown(claim.evidence)} |" for claim in item.claims]
    command = f" Command: `{item.experiment.command('run')}`, then `report`."
    texts = [f"### {item.item.name}: {item.item.what}", f"{item.run}.{link}{command}", item.item.note, "\n".join(claims), item.table]
    return "\n\n".join(text for text in texts if text)


def page(store: RunStore) -> str:
    answers = [answer(item, store) if isinstance(item, Item) else item for item in ITEMS]
    reports = FOLDER.parent / "docs" / "results" / SCALE
    measured = [claim_by_claim(item, reports) for item in answers if isinstance(item, Answer)]
    head = ["# Reproduction", COMMENT, summary(answers)]
    results = "Commands read and write `results/`; with `--results docs/results` they take the runs this page is made from."
    texts = [*head, "## Overview", overview(answers), RULES, "## Claim by claim", results, *measured]
    return "\n\n".join(text.strip() for text in texts) + "\n"
