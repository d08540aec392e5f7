"""Corrections: a document learns a query that should have retrieved it. No other document's row or words change by a bit.

The document is replaced as by an update, in a small corpus of its own: its words now include the query's, and the row of the passage that
fits the query best is turned towards the query, only as far as it takes to come first and never further than `FURTHEST`. So every earlier
file stays as it is, and `rollback` undoes it.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from promptdsi.corpus.split_words import split_words
from promptdsi.engine.words import WordTable
from promptdsi.errors import PromptDSIError, UsageError
from promptdsi.index.arrivals import unique_name
from promptdsi.index.blobs import Ids
from promptdsi.index.entry import Arrival, Entry
from promptdsi.index.generation import Generation, Opening
from promptdsi.index.manifest import Manifest
from promptdsi.index.method_io import model_blobs
from promptdsi.index.results import Taught, TeachReport
from promptdsi.index.shards import Cluster
from promptdsi.index.store import Store
from promptdsi.model.path import Floats, unit

TURNS = (0.25, 0.35, 0.5, 0.8)  # how far towards the query a row is turned, in parts of it: the first that suffices (LOG.md has how chosen)
FURTHEST = TURNS[-1]
MARGIN = 0.02  # by which a taught document should lead
Correction = tuple[str, str]  # a query, and the docid of the document it should retrieve
NUMBERS = re.compile(r"( \d+)+$")  # that `unique_name` put behind a name


class TaughtRows(NamedTuple):
    """The rows of a taught document, and the words that each of its passages gained."""

    rows: Floats
    words: list[list[str]]


class Lesson(NamedTuple):
    """A document with its rows, and the queries it learns."""

    number: int  # of the document, over all corpora
    rows: range
    queries: list[int]


def teach(
    store: Store, corrections: Sequence[Correction], opening: Opening, *, max_drift: float | None = None, cluster: Cluster | None = None
) -> TeachReport:
    """Let documents learn queries, all in one generation."""
    for query, docid in corrections:
        if not query.strip() or not docid:
            raise UsageError("a correction is a query and the docid of the document it should retrieve")
    if not corrections:
        raise UsageError("no correction was given")
    with store.writing():
        parent = store.ready(Manifest.blobs if cluster is None else model_blobs)
        with parent.as_data_error(store.folder):
            manifest, report = _learn(store, parent, corrections, opening, cluster)
        if max_drift is not None and report.fall > max_drift:
            store.clean()
            raise PromptDSIError(
                f"these corrections let Hits@10 on {report.probes} probe queries fall by {report.fall:.3f}, "
                f"more than --max-drift {max_drift}: they were not committed"
            )
        return replace(report, generation=store.commit(manifest).number)


def _learn(
    store: Store, parent: Manifest, corrections: Sequence[Correction], opening: Opening, cluster: Cluster | None
) -> tuple[Manifest, TeachReport]:
    """The next generation, its blobs written, and what it changes."""

    def opened(manifest: Manifest) -> Generation:
        return cluster.generation(manifest) if cluster else Generation(store, manifest, opening._replace(check=False))

    before = opened(parent)
    lessons = _lessons(before, corrections)
    encoded = before.encoder.encode([query for query, _ in corrections]).vectors
    learned = [
        _turned(before, lesson, [corrections[number][0] for number in lesson.queries], encoded[lesson.queries]) for lesson in lessons
    ]
    entries = _entries(before, lessons, learned)
    tombstones = tuple(sorted({*parent.tombstones, *(lesson.number for lesson in lessons)}))
    manifest = parent.next("teach", corpora=(*parent.corpora, *entries), tombstones=tombstones, event={"corrections": len(corrections)})
    return manifest, _report(before, opened(manifest), corrections)


def count_taught(store: Store, manifest: Manifest, numbers: Collection[int]) -> int:
    """How many of these documents have learned corrections: those of a corpus that `teach` made."""
    firsts = manifest.firsts()
    places = [(number, bisect.bisect_right(firsts, number) - 1) for number in numbers]
    since = [manifest.corpora[corpus].arrival_of(number - firsts[corpus]).since for number, corpus in places]
    kinds = {number: store.manifests.content(number)["kind"] for number in set(since)}
    return sum(kinds[number] == "teach" for number in since)


def _lessons(generation: Generation, corrections: Sequence[Correction]) -> list[Lesson]:
    """The corrections by document, in the order of documents."""
    queries: dict[str, list[int]] = {}
    for number, (_, docid) in enumerate(corrections):
        generation.get(docid)  # raises where there is no such document
        queries.setdefault(docid, []).append(number)
    lessons = []
    for place, numbers in zip(generation.passages.locate(list(queries)), queries.values(), strict=True):
        assert place is not None
        entry, _, position = generation.corpus_of(place.document)
        offsets = _ids(generation, entry).boundaries.get(str(position), [0, 0])
        lessons.append(Lesson(place.document, range(place.row, place.row + len(offsets) - 1), numbers))
    return sorted(lessons)


def _ids(generation: Generation, entry: Entry) -> Ids:
    _verify(generation, entry.ids)
    return generation.store.ids(entry.ids)


def _verify(generation: Generation, name: str) -> None:
    """Verify a blob that is read here although the shards have its corpus: otherwise everything was verified before."""
    if generation.processes is not None:
        generation.store.check(generation.manifest, {name})


def _turned(generation: Generation, lesson: Lesson, queries: Sequence[str], vectors: Floats) -> TaughtRows:
    """The rows of a document that learned its queries, and the words that each of its passages gained."""
    numbers = list(lesson.rows)
    before = generation.passages.row_vectors(numbers)
    rows, added = before.copy(), [list[str]() for _ in numbers]
    scores = generation.passages.scores(vectors, queries, [numbers] * len(queries))
    passages = [int(np.argmax(each)) for each in scores]
    for query, passage in zip(queries, passages, strict=True):
        added[passage] += split_words(query)
    new_words = _words_of(generation, [lesson], [added])
    for query, vector, passage in zip(queries, vectors, passages, strict=True):
        score_by_words = float(new_words.query(query).scores([passage])[0]) if new_words else 0.0
        rival = _best_other(generation, lesson, vector, query)
        norm, turned = np.linalg.norm(before[passage]), rows[passage]
        for turn in TURNS:
            turned = norm * unit(unit(rows[passage]) + np.float32(turn) * unit(vector))
            if float(turned @ vector) + score_by_words >= rival + MARGIN:
                break
        rows[passage] = _within(before[passage], turned)
    return TaughtRows(rows, added)


def _words_of(generation: Generation, lessons: Sequence[Lesson], added: Sequence[list[list[str]]]) -> WordTable | None:
    """The words of taught documents of one corpus, with those that their passages gained."""
    manifest, number = generation.manifest, generation.corpus_of(lessons[0].number)[1]
    name = manifest.corpora[number].words
    if name is None or manifest.statistics is None:
        return None
    _verify(generation, name)
    first = sum(entry.row_count for entry in manifest.corpora[:number])
    passages = [row - first for lesson in lessons for row in lesson.rows]
    weight, salt = manifest.metadata["word_weight"], manifest.metadata.get("word_salt", "")
    postings = generation.store.blobs.words(name).extended(passages, [words for each in added for words in each], salt)
    return WordTable([postings], generation.store.blobs.statistics(manifest.statistics), weight=weight, salt=salt)


def _within(first: Floats, turned: Floats) -> Floats:
    """A row that many queries turned, no further from where it was than one may turn it."""
    least = 1 / np.sqrt(1 + FURTHEST**2)  # the cosine of a turn by FURTHEST at a right angle
    cosine = float(unit(first) @ unit(turned))
    if cosine >= least:
        return turned
    orthogonal = unit(unit(turned) - cosine * unit(first))
    return np.asarray(np.linalg.norm(first) * (least * unit(first) + np.sqrt(1 - least**2) * orthogonal), np.float32)


def _best_other(generation: Generation, lesson: Lesson, vector: Floats, query: str) -> float:
    best = generation.passages.top_k(vector[None], [query], 2)[0]
    pairs = zip(best.passages, best.scores, strict=True)
    return max((score for passage, score in pairs if passage.document != lesson.number), default=-np.inf)


def _entries(generation: Generation, lessons: Sequence[Lesson], learned: Sequence[TaughtRows]) -> list[Entry]:
    """The taught documents as corpora: one for each they came from, so that a folder's documents stay that folder's."""
    groups: dict[tuple[int, Arrival], list[int]] = {}
    for place, lesson in enumerate(lessons):
        entry, corpus, position = generation.corpus_of(lesson.number)
        groups.setdefault((corpus, entry.arrival_of(position)), []).append(place)
    entries: list[Entry] = []
    for (number, arrival), places in groups.items():
        names = generation.manifest.names | {entry.name for entry in entries}
        base = NUMBERS.sub("", arrival.name)  # of a corpus that was taught before: names must not grow with every lesson
        arrival = arrival._replace(name=unique_name(base if base in names else arrival.name, names))
        entries.append(_entry(generation, number, arrival, [lessons[place] for place in places], [learned[place] for place in places]))
    return entries


def _entry(generation: Generation, number: int, arrival: Arrival, lessons: Sequence[Lesson], learned: Sequence[TaughtRows]) -> Entry:
    """Taught documents of one corpus as a corpus of their own, under the name and folder of `arrival`; its blobs are written."""
    manifest, blobs, since = generation.manifest, generation.store.blobs, generation.manifest.number + 1
    origin = manifest.corpora[number]
    ids, positions = _ids(generation, origin), [generation.corpus_of(lesson.number)[2] for lesson in lessons]
    marks = "".join(ids.content_hash(position) for position in positions)
    offsets = {str(new): ids.boundaries[str(old)] for new, old in enumerate(positions) if str(old) in ids.boundaries}
    rows = np.concatenate([each.rows for each in learned])
    parts: dict[str, Any] = {"rows": blobs.put_rows(rows, since=since)}
    parts["ids"] = blobs.put_json(Ids(since, [ids.docids[position] for position in positions], marks, offsets)._asdict())
    if words := _words_of(generation, lessons, [each.words for each in learned]):
        parts["words"] = blobs.put_words(words.parts[0], since=since)
    if origin.documents is not None:
        for name, covered in origin.document_files:
            if any(position in covered for position in positions):
                _verify(generation, name)
        stored = [(new, generation.document(lesson.number)) for new, lesson in enumerate(lessons)]
        parts["documents"] = blobs.put_documents(
            ((new, document) for new, document in stored if document), since=since, store=manifest.store
        )
    passages = len(rows) if len(rows) > len(lessons) else 0
    return Entry(arrival.name, since, len(lessons), passages=passages, source=arrival.source, prefix=arrival.prefix, **parts)


def _report(before: Generation, after: Generation, corrections: Sequence[Correction]) -> TeachReport:
    """Where each document stood and stands for its query, and what that did to the probe queries that are stored."""
    taught = [Taught(query, docid, _rank(before, query, {docid}), _rank(after, query, {docid})) for query, docid in corrections]
    probes = [
        (probe["text"], {docid for docid in probe["docids"] if before.live_row(docid) is not None})
        for entry in before.manifest.corpora
        if entry.probes
        for probe in _probes(before, entry.probes)
    ]
    probes = [(query, docids) for query, docids in probes if docids]
    hits = [sum(_rank(generation, query, docids) <= 10 for query, docids in probes) for generation in (before, after)]
    return TeachReport(before.manifest.number, taught, len(probes), (hits[0] - hits[1]) / len(probes) if probes else 0.0)


def _probes(generation: Generation, name: str) -> list[dict[str, Any]]:
    _verify(generation, name)
    return generation.store.blobs.list(name, "probes")


def _rank(generation: Generation, query: str, docids: set[str]) -> int:
    vectors = generation.encoder.encode([query]).vectors
    rows = [place.row for place in generation.passages.locate(sorted(docids)) if place]
    return int(min(generation.passages.ranks(vectors, [query], [rows])[0]))
