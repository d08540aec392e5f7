"""Measure whether people find what they look for: identifiers, paraphrases, long documents, and questions without an answer.

    python -m tools.bench.search_quality              # the demo corpus: writes docs/results/search-quality.{json,md,png}
    python -m tools.bench.search_quality --articles   # squadx, one document per article: docs/results/search-articles.{json,md}

Every index is created with `--effort normal` and otherwise as it comes. Identifiers are drawn at random and planted in 200 documents, one
each; a query is the identifier alone. Long documents are thirty notes of nine documents of a subject, with their titles as headings or
with empty lines between them, and no query to learn from; a query is a test query of one of the nine. Questions without an answer are
those of unanswerable.txt, 200 over twenty subjects that the demo corpus lacks (the first ten subjects of the file served to choose the
bound), and 350 train questions of squadx, of which some have an answer in the demo corpus. Articles of squadx are the paragraphs of one
title, joined; Reddit's have no title and are left out.
"""

from __future__ import annotations

import argparse
import random
import string
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from promptdsi import Corpus, Index
from promptdsi.corpus.corpus import Document, Judgement
from promptdsi.corpus.sources import Request, demo_corpus, squadx
from promptdsi.methods import methods
from tools import evidence

COMMAND = "python -m tools.bench.search_quality"
IDENTIFIERS, NOTES, PARTS, QUESTIONS, CHOSEN_WITH = 200, 30, 9, 350, 10
UNANSWERABLE = Path(__file__).with_name("unanswerable.txt")
Ranking = Callable[[Sequence[str], Sequence[str]], Sequence[int]]  # queries and the document each should retrieve → ranks


def demo() -> Corpus:
    return demo_corpus.build(Request()).corpus


def test_pairs(corpus: Corpus) -> list[tuple[str, str]]:
    return [(pair.query.text, pair.docid) for pair in corpus.pairs("test", kinds=("annotated",))]


# What is searched ---------------------------------------------------------------------------------------------------------


def identifier(draw: random.Random, kind: int) -> str:
    """An order number, a hexadecimal code, a path, a version, a part number, a host or a made-up name."""

    def some(letters: str, count: int) -> str:
        return "".join(draw.choice(letters) for _ in range(count))

    digits, upper, lower = string.digits, string.ascii_uppercase, string.ascii_lowercase
    kinds = [
        lambda: f"{some(upper, 3)}-{draw.randint(2015, 2029)}-{some(digits, 5)}",
        lambda: f"0x{some('0123456789ABCDEF', 8)}",
        lambda: f"etc/{some(lower, 5)}/{some(lower, 6)}.conf",
        lambda: f"v{draw.randint(0, 9)}.{draw.randint(0, 40)}.{draw.randint(0, 30)}-rc{draw.randint(1, 9)}",
        lambda: f"{some(digits, 1)}.{some(upper, 1)}{some(digits, 1)}/{some(upper, 1)}{some(digits, 2)}",
        lambda: f"{some(lower, 3)}-{some(lower, 2)}-{some(digits, 2)}",
        lambda: f"{some(upper, 1)}{some(lower, 4)}{draw.choice('aeiou')}{some(lower, 2)}",
    ]
    return kinds[kind % len(kinds)]()


def planted(corpus: Corpus) -> tuple[Corpus, list[tuple[str, str]]]:
    """The corpus with an identifier at the end of some documents, and each identifier with its document."""
    draw = random.Random(0)
    chosen = draw.sample(range(len(corpus)), IDENTIFIERS)
    pairs = {number: identifier(draw, position) for position, number in enumerate(chosen)}
    documents = [
        document._replace(text=f"{document.text} Reference: {pairs[number]}.") if number in pairs else document
        for number, document in enumerate(corpus.documents)
    ]
    return replace(corpus, documents=documents), [(text, documents[number].docid) for number, text in pairs.items()]


def joined(corpus: Corpus, *, headings: bool) -> tuple[Corpus, list[tuple[str, str]]]:
    """Thirty notes of nine documents of a subject, and the test queries of these with the note each should retrieve."""
    subjects: dict[str, list[Document]] = {}
    for document in corpus.documents:
        subjects.setdefault(document.metadata["subject"], []).append(document)
    groups = [
        (subject, documents[first : first + PARTS])
        for subject, documents in subjects.items()
        for first in range(0, len(documents) - PARTS + 1, PARTS)
    ]
    notes: list[Document] = []
    note_of: dict[str, str] = {}
    for number, (subject, documents) in enumerate(groups[:NOTES]):
        parts = [f"## {document.title}\n\n{document.text}" if headings else f"{document.title}\n{document.text}" for document in documents]
        notes.append(Document(f"note-{number:02d}", "\n\n".join(parts), f"Notes on {subject}"))
        note_of |= {document.docid: f"note-{number:02d}" for document in documents}
    pairs = [(text, note_of[docid]) for text, docid in test_pairs(corpus) if docid in note_of]
    return Corpus(notes, [], {}, name="notes"), pairs


def articles() -> tuple[Corpus, dict[str, tuple[str, int, int]]]:
    """squadx with the paragraphs of one title joined, and where each paragraph lies: its article, first character and end."""
    paragraphs = squadx.build(Request()).corpus
    by_title: dict[str, list[Document]] = {}
    for document in paragraphs.documents:
        if document.title:
            by_title.setdefault(f"{document.metadata['domain']} {document.title}", []).append(document)
    documents, places = [], {}
    for number, parts in enumerate(by_title.values()):
        docid, start = f"article-{number:04d}", 0
        for part in parts:
            places[part.docid] = (docid, start, start + len(part.text))
            start += len(part.text) + 2
        documents.append(Document(docid, "\n\n".join(part.text for part in parts), parts[0].title))
    qrels = {
        split: [Judgement(pair.query.queryid, places[pair.docid][0]) for pair in paragraphs.pairs(split) if pair.docid in places]
        for split in ("train", "dev")
    }
    with_judgement = {judgement.queryid for judgements in qrels.values() for judgement in judgements}
    queries = [query for query in paragraphs.queries if query.queryid in with_judgement]
    return Corpus(documents, queries, qrels, name="articles"), places


def unanswerable(*, chosen_with: bool) -> list[str]:
    """The questions of the subjects that were chosen with, or of the others."""
    subjects = [block.splitlines()[1:] for block in UNANSWERABLE.read_text("utf-8").strip().split("\n\n")]
    return [question for subject in (subjects[:CHOSEN_WITH] if chosen_with else subjects[CHOSEN_WITH:]) for question in subject]


# Systems ------------------------------------------------------------------------------------------------------------------


def ranking(method: Any) -> Ranking:
    return lambda queries, docids: method.ranks(list(queries), list(docids)).tolist()


def systems(corpus: Corpus, index: Index) -> dict[str, Ranking]:
    """Ours, its rows alone, and what people would use instead, by document."""
    kinds, passages = methods(), {"encoding": {"max_tokens": 64, "passage_tokens": 256}}
    others = {
        "dense, a vector per passage": kinds["dense"].from_params(passages),
        "dense, a vector per document": kinds["dense"].from_params({"encoding": {"max_tokens": 64}}),
        "hybrid": kinds["hybrid"](),
        "BM25": kinds["bm25"].from_params({"train_queries": True}),
    }
    for method in others.values():
        method.fit(corpus)
    method = index.opened.method
    rows = type(method).from_params(method.get_params() | {"device": "cpu"})
    vars(rows).update(vars(method))
    rows.words_ = None
    return {"ours": ranking(method), "ours, rows alone": ranking(rows), **{name: ranking(other) for name, other in others.items()}}


def shares(ranks: Iterable[int]) -> dict[str, float]:
    values = np.array(list(ranks))
    return {
        "first": 100 * float((values == 1).mean()),
        "in three": 100 * float((values <= 3).mean()),
        "in ten": 100 * float((values <= 10).mean()),
    }


def rows_of(what: str, pairs: Sequence[tuple[str, str]], compared: dict[str, Ranking]) -> list[dict[str, Any]]:
    queries, docids = [text for text, _ in pairs], [docid for _, docid in pairs]
    return [{"what": what, "queries": len(pairs), "system": name, **shares(rank(queries, docids))} for name, rank in compared.items()]


# Measurements -------------------------------------------------------------------------------------------------------------


def confidences(index: Index, queries: Sequence[str]) -> tuple[np.ndarray[Any, Any], list[str]]:
    """The confidence of each query's first hit, and its docid."""
    first = [hits[0] for hits in index.search(list(queries), k=2)]
    return np.array([hit.confidence for hit in first]), [hit.docid for hit in first]


def nothing(index: Index, corpus: Corpus) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """How many questions without an answer fall below the bound, and how many right first hits stay above it."""
    pairs = test_pairs(corpus)
    first_hits, docids = confidences(index, [text for text, _ in pairs])
    right = np.array([docid == docid_of_query for docid, (_, docid_of_query) in zip(docids, pairs, strict=True)])
    foreign = random.Random(0).sample([pair.query.text for pair in squadx.build(Request()).corpus.pairs("train")], QUESTIONS)
    sets = {"lacking subjects": confidences(index, unanswerable(chosen_with=False))[0], "squadx": confidences(index, foreign)[0]}
    calibration = index.opened.method.calibration_
    assert calibration is not None
    bound, at_95 = calibration.bound, float(np.quantile(first_hits[right], 0.05))
    facts: dict[str, Any] = {
        "bound": round(bound, 3),
        "right first hits above it, %": round(100 * float((first_hits[right] >= bound).mean()), 1),
    }
    for name, values in sets.items():
        facts[f"{name}: below it, % of {len(values)}"] = round(100 * float((values < bound).mean()), 1)
        facts[f"{name}: below the bound that exactly 95 % of right hits reach, %"] = round(100 * float((values < at_95).mean()), 1)
    unanswered = np.resize(sets["lacking subjects"], len(first_hits))  # it was fitted on as many queries with an answer as without
    error = calibration_error(np.concatenate([first_hits, unanswered]), np.concatenate([right, np.zeros(len(unanswered), bool)]))
    facts["calibration error on as many test queries as questions without an answer, %"] = round(100 * error, 1)
    return facts, {"right": first_hits[right], **sets}


def calibration_error(confidence: np.ndarray[Any, Any], right: np.ndarray[Any, Any], bins: int = 10) -> float:
    """The mean distance of confidence and share of right hits over bins of equal size, weighted by their size."""
    parts = np.array_split(np.argsort(confidence), bins)
    return float(sum(len(part) * abs(confidence[part].mean() - right[part].mean()) for part in parts) / len(confidence))


def draw_curve(values: dict[str, np.ndarray[Any, Any]], bound: float) -> None:
    """Right first hits that stay against questions without an answer that fall, for every bound."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    bounds = np.linspace(0, 1, 501)
    for (name, part), color in zip(((name, part) for name, part in values.items() if name != "right"), ("#332288", "#CC6677"), strict=True):
        fallen = [100 * float((part < at).mean()) for at in bounds]
        stayed = [100 * float((values["right"] >= at).mean()) for at in bounds]
        ax.plot(stayed, fallen, color=color, label=f"{name} ({len(part)} questions)")
        ax.plot(100 * float((values["right"] >= bound).mean()), 100 * float((part < bound).mean()), "o", color=color)
    ax.axvline(95, color="#777777", linewidth=0.8, linestyle=":")
    ax.axhline(90, color="#777777", linewidth=0.8, linestyle=":")
    ax.set(xlim=(70, 100.5), ylim=(40, 100.5), xlabel="right first hits above the bound, %", ylabel="unanswerable questions below it, %")
    ax.legend(loc="lower left", frameon=False)
    for kind in ("png", "svg"):
        figure.savefig(evidence.RESULTS / f"search-quality.{kind}", dpi=150, metadata={"Date": None} if kind == "svg" else None)


def measure_demo(folder: Path) -> None:
    corpus = demo()
    index = Index.create(folder / "demo", corpus, effort="normal", device="cpu")
    rows = rows_of("paraphrases", test_pairs(corpus), systems(corpus, index))
    with_identifiers, pairs = planted(corpus)
    other = Index.create(folder / "planted", with_identifiers, effort="normal", device="cpu")
    rows += rows_of("identifiers", pairs, systems(with_identifiers, other))
    for headings in (True, False):
        notes, note_pairs = joined(corpus, headings=headings)
        note_index = Index.create(folder / f"notes-{headings}", notes, effort="normal", device="cpu")
        what = f"long notes, {'headings' if headings else 'empty lines'} between the parts"
        rows += rows_of(what, note_pairs, systems(notes, note_index))
    facts, values = nothing(index, corpus)
    draw_curve(values, facts["bound"])
    alone = Index.create(folder / "documents", Corpus(corpus.documents, name="documents"), effort="normal", device="cpu")
    sections = {
        "Questions without an answer": facts,
        "The same, of an index that was given documents and no queries": nothing(alone, corpus)[0],
    }
    evidence.write("search-quality", "Finding what people look for", COMMAND, rows, **sections)


def measure_articles(folder: Path) -> None:
    corpus, places = articles()
    index = Index.create(folder / "articles", corpus, effort="normal", device="cpu")
    tests = [(pair.query.text, places[pair.docid]) for pair in squadx.build(Request()).corpus.pairs("test") if pair.docid in places]
    rows = rows_of("articles", [(text, place[0]) for text, place in tests], systems(corpus, index))
    inside = []
    for (_, (docid, start, end)), hits in zip(tests, index.search([text for text, _ in tests], k=1), strict=True):
        passage = hits[0].passage
        same = hits[0].docid == docid
        inside.append(same and (passage is None or (passage[0] < end and passage[1] > start)))
    facts: dict[str, Any] = {"articles": len(corpus), "passages": sum(entry.row_count for entry in index.manifest.corpora)}
    facts["first hit's passage overlaps the paragraph, %"] = round(100 * float(np.mean(inside)), 1)
    evidence.write("search-articles", "Long documents: articles of squadx", COMMAND + " --articles", rows, **facts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--articles", action="store_true")
    with tempfile.TemporaryDirectory() as folder:
        (measure_articles if parser.parse_args().articles else measure_demo)(Path(folder))


if __name__ == "__main__":
    main()
