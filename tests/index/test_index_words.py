"""Words of an index: a change to one document moves no other's, purge leaves none of it, and no character is lost (R31, R32)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small

from promptdsi import Corpus, DataError, Document, Index, Judgement, Query
from promptdsi.corpus.corpus import whole_text
from promptdsi.corpus.split_words import split_words
from promptdsi.engine.postings import Terms, encode_term
from promptdsi.engine.words import K1, B
from promptdsi.index.manifest import Manifest

QUERY = "how does a telescope work"
MARK, SHARED = "zanzibarquartz", "quernstone"
SUBJECTS = ["kettle", "harbour", "glacier", "violin", "lantern", "orchard", "compass", "beehive", "viaduct", "tannery", "weathercock"]
SECRET = Document(
    "secret",
    " ".join(f"Cellar {number} of the {MARK}-{number} has a {SHARED} and dry barley." for number in range(12)),
    f"The naïveté of {MARK}",
)


def notes(name: str, count: int) -> list[Document]:
    """Documents of one passage each; some words are theirs alone, some are shared."""
    return [Document(f"{name}-{n}", f"The {SUBJECTS[n % 11]} of {name} stands near mill {name}{n}.") for n in range(count)]


def quick(folder: Path, corpus: Corpus, backbone: str, **changes: Any) -> Index:
    return small.create(folder, corpus, backbone, effort="quick", **changes)


def word_files(manifest: Manifest) -> list[str | None]:
    return [entry.words for entry in manifest.corpora]


def fusion(manifest: Manifest) -> list[Any]:
    """What words and rows are put together by; an index of few documents has no calibration."""
    return [manifest.metadata.get(name) for name in ("word_weight", "word_salt", "calibration")]


def word_counts(index: Index, manifest: Manifest) -> dict[tuple[int, str | None, int, bytes], int]:
    """How often each passage contains each term, from the files: by corpus, docid and number of the passage in its document."""
    counts = {}
    for entry in manifest.corpora:
        ids, postings = index.store.blobs.ids(entry.ids), index.store.blobs.words(str(entry.words))
        places = [(docid, number) for docid, passages in zip(ids.docids, ids.passages, strict=True) for number in range(passages)]
        for number, term in enumerate(postings.terms):
            for posting in range(postings.pointers[number], postings.pointers[number + 1]):
                counts[entry.since, *places[postings.passages[posting]], term] = int(postings.counts[posting])
    return counts


def frequencies(index: Index, manifest: Manifest) -> dict[bytes, float]:
    """What words are weighted by: how many passages have each term, and how many there were with how many words."""
    statistics = index.store.blobs.statistics(str(manifest.statistics))
    terms = zip(Terms(statistics.text, statistics.ends), statistics.frequencies.tolist(), strict=True)
    return {**dict(terms), b" passages": statistics.passages, b" average": statistics.average}


def word_scores(index: Index, query: str) -> dict[str, list[tuple[str, float]]]:
    """What the words of a query add to the score of each document but the secret one."""
    hits = index.search(query, k=100, explain=True)
    return {hit.docid: hit.why.words for hit in hits if hit.why is not None and hit.docid != SECRET.docid}


def test_no_change_to_other_documents_moves_a_word_an_idf_or_a_fusion_number(place: Path, corpora: list[Corpus]) -> None:
    index = Index.open(place, device="cpu")
    first = index.manifest
    old = {hit.docid: hit.score for hit in index.search(QUERY, k=100)}
    new = corpora[2].documents[0]
    changes: list[Callable[[], object]] = [
        lambda: index.add(corpora[2]),
        lambda: index.delete(new.docid),
        lambda: index.undelete(new.docid),
        lambda: index.add(Corpus([new._replace(text="Other words altogether about a telescope.")], name="replaced"), update=True),
        lambda: index.purge(new.docid),
        lambda: index.delete(corpora[2].documents[1].docid),
        lambda: index.purge(),
        lambda: index.rollback(2),
        lambda: index.add(corpora[3], fast=True),
        lambda: index.tune(),
    ]
    assert len(old) == 24 and None not in word_files(first) and first.metadata["calibration"]
    for number, change in enumerate(changes):
        change()
        manifest = index.manifest
        assert manifest.number == number + 3
        assert word_files(manifest)[:2] == word_files(first), manifest.kind  # the names are checksums
        assert manifest.statistics == first.statistics and fusion(manifest) == fusion(first), manifest.kind
        hits = index.search(QUERY, k=100)
        assert {hit.docid: hit.score for hit in hits if hit.docid in old} == old, manifest.kind
    assert index.verify().problems == []


def test_statistics_are_taken_anew_only_when_passages_have_doubled(tmp_path: Path, backbone: str) -> None:
    index = quick(tmp_path / "index", Corpus(notes("north", 6), name="d0"), backbone)
    first = index.manifest
    index.add(Corpus(notes("south", 5), name="d1"), fast=True)
    index.delete("north-0")
    assert index.manifest.statistics == first.statistics
    before = [word_scores(Index.open(tmp_path / "index", at=at, device="cpu"), "kettle mill south0") for at in (1, 2, 3)]
    words = word_files(index.manifest)
    index.add(Corpus(notes("east", 1), name="d2"), fast=True)  # the twelfth: what is deleted and not purged counts
    second = index.manifest
    assert second.statistics != first.statistics and frequencies(index, second)[b" passages"] == 12
    assert word_files(second)[:2] == words and second.metadata["word_weight"] == first.metadata["word_weight"]
    assert frequencies(index, second) == frequencies_of([*notes("north", 6), *notes("south", 5), *notes("east", 1)])
    after = [word_scores(Index.open(tmp_path / "index", at=at, device="cpu"), "kettle mill south0") for at in (1, 2, 3)]
    assert after == before  # earlier generations stay as they are
    index.rollback(3)
    assert index.manifest.statistics == first.statistics
    index.rollback(4)
    index.add(Corpus(notes("west", 11), name="d3"), fast=True)  # 23 of 24
    assert index.manifest.statistics == second.statistics
    index.add(Corpus(notes("up", 1), name="d4"), fast=True)
    assert index.manifest.statistics != second.statistics and index.verify().problems == []


def frequencies_of(documents: list[Document]) -> dict[bytes, float]:
    words = [split_words(whole_text(document)) for document in documents]
    counts = Counter(word.encode() for passage in words for word in set(passage))
    return {**counts, b" passages": len(words), b" average": sum(map(len, words)) / len(words)}


def purged_index(place: Path, backbone: str, store: str) -> Index:
    """The secret document is in D0 and, in other words, in a later corpus and in one that was rolled back."""
    others = [*notes("north", 5), Document("miller", f"A {SHARED} grinds barley, and a {SHARED} grinds rye.")]
    queries = [Query("q", f"who lost the {MARK}ring")]
    d0 = Corpus([others[0], SECRET, *others[1:]], queries, {"train": [Judgement("q", SECRET.docid)]}, name="d0")
    index = quick(place, d0, backbone, store=store)
    index.add(Corpus([*notes("south", 11), Document("baker", f"No {SHARED} is at the bakery.")], name="d1"), fast=True)
    index.add(Corpus([SECRET._replace(text=f"The {MARK}s were moved beside a {SHARED}.")], name="moved"), fast=True, update=True)
    index.add(Corpus([SECRET._replace(text=f"The {MARK}es were sold."), *notes("east", 1)], name="sold"), fast=True, update=True)
    index.rollback()
    return index


@pytest.mark.parametrize("store", ["text", "none"])
def test_purge_leaves_no_word_that_only_the_document_had_and_the_others_as_they_were(store: str, tmp_path: Path, backbone: str) -> None:
    place = tmp_path / "index"
    index = purged_index(place, backbone, store)
    salt = index.manifest.metadata["word_salt"]
    assert bool(salt) == (store == "none")
    history = index.log()
    assert len({manifest.statistics for manifest in history}) > 1 and history[0].corpora[0].row_count > 8, "doubled, and several passages"
    generations = [manifest.number for manifest in history]
    counts = {manifest.number: word_counts(index, manifest) for manifest in history}
    statistics = {manifest.number: frequencies(index, manifest) for manifest in history}
    everything = {key for by_place in counts.values() for key in by_place}
    remaining = {term for _, docid, _, term in everything if docid != SECRET.docid}
    erased = {term for *_, term in everything} - remaining
    planted = [MARK, f"{MARK}-3", f"{MARK}s", f"{MARK}es", f"{MARK}ring", "naïveté", "naivete", "cellar"]
    assert erased >= {encode_term(word, salt) for word in planted} and encode_term(SHARED, salt) in remaining
    assert any(erased & by_term.keys() for by_term in statistics.values())
    scores = [word_scores(Index.open(place, at=at, device="cpu"), f"{SHARED} barley mill") for at in generations]
    assert scores[-1]["miller"][0][0] == SHARED and scores[-1]["baker"]

    index.purge(SECRET.docid)
    assert [manifest.number for manifest in index.log()] == [*generations, generations[-1] + 1]
    for manifest in index.log():
        number = min(manifest.number, generations[-1])
        expected = {key: count for key, count in counts[number].items() if key[1] != SECRET.docid}
        assert word_counts(index, manifest) == expected
        left = {term: value for term, value in statistics[number].items() if term not in erased}
        assert frequencies(index, manifest) == left
        assert fusion(manifest) == fusion(history[0])
    content = small.contents(place)
    assert not [word for word in planted if encode_term(word, salt) in content or word.encode() in content.lower()]
    assert [word_scores(Index.open(place, at=at, device="cpu"), f"{SHARED} barley mill") for at in generations] == scores
    assert {hit.docid for hit in index.search(f"{MARK} {SHARED}", k=2)} == {"miller", "baker"}
    assert index.manifest.corpora[1].words == history[-1].corpora[1].words  # of a corpus the document was never in
    assert index.verify().problems == []


@pytest.mark.parametrize("blob", ["statistics", "its words", "words of another corpus"])
def test_damaged_words_do_not_become_the_truth(blob: str, tmp_path: Path, backbone: str) -> None:
    """Purge writes words and statistics anew: a flipped byte in what it reads must not get a right checksum."""
    place = tmp_path / "index"
    index = purged_index(place, backbone, "text")
    generation, manifest = index.generation, index.manifest
    names = {
        "statistics": manifest.statistics,
        "its words": manifest.corpora[0].words,
        "words of another corpus": manifest.corpora[1].words,
    }
    path = place / "blobs" / str(names[blob])
    content = path.read_bytes()
    word = b"north3" if blob == "its words" else b"south3"  # no other corpus has it
    path.write_bytes(content.replace(word, word[:-1] + b"s"))  # one bit: the arrays still fit together
    assert path.read_bytes() != content
    with pytest.raises(DataError, match="is damaged"):
        index.purge(SECRET.docid)
    path.write_bytes(content)
    assert Index.open(place, device="cpu").generation == generation


def test_scores_are_the_sum_of_rows_and_words_in_every_generation(tmp_path: Path, backbone: str) -> None:
    """Against float64, from the texts: the idf stays that of the first documents, the purged one included."""
    first = notes("north", 11)
    texts = {document.docid: document.text for document in [*first, *notes("south", 4)]}
    index = quick(tmp_path / "index", Corpus(first, name="d0"), backbone)
    index.add(Corpus(notes("south", 4), name="d1"))
    index.delete("north-2")
    index.purge("north-3")
    index.undelete("north-2")
    index.add(Corpus([Document("north-4", texts["north-4"], "Kettle")], name="d2"), update=True)
    statistics = [Counter(split_words(document.text)) for document in first]
    average = sum(words.total() for words in statistics) / len(first)
    for at in range(1, index.generation + 1):
        past = Index.open(tmp_path / "index", at=at, device="cpu")
        weight = past.manifest.metadata["word_weight"]
        for query in ("kettle north4 harbour", "mill mill south2 unseen", "the orchard of north"):
            words = Counter(split_words(query))
            seen = {word: sum(word in document for document in statistics) for word in words}
            idf = {word: math.log(1 + (len(first) - seen[word] + 0.5) / (seen[word] + 0.5)) for word in words}
            vector = past.opened.encoder.encode([query]).vectors[0].astype(np.float64)
            hits = past.search(query, k=100)
            assert len(hits) == len(past) > 9
            for hit in hits:
                document = past.get(hit.docid)
                counts = Counter(split_words(whole_text(document)))
                penalty = K1 * (1 - B + B * counts.total() / average)
                covered = sum(count * idf[word] * counts[word] / (counts[word] + penalty) for word, count in words.items())
                coverage = covered / sum(count * idf[word] for word, count in words.items())
                row = past.opened.table.vectors([past.opened.row_of[hit.docid]])[0].astype(np.float64)
                assert hit.score == pytest.approx((vector * row).sum() + weight * coverage, rel=3e-7, abs=1e-7)


ENDINGS = ["\r\n", " ", "\r\n\t", "\u2028", " \u200b😀🏳️‍🌈 ", "\n", "\u00a0", " — İﬁ½ﷺ ", '" ', "\x0b", " שלום עולם ", "\r"]
SENTENCES = [f"Keeper{n} of the {SUBJECTS[n % 11]} hides lantern{n} behind mill{n}{'.!?…;'[n % 5]}" for n in range(60)]
ENDLESS = "x" * 5000


def long_document() -> Document:
    """Sixty sentences between odd characters, without an empty line, and a word of 5,000 letters in their midst."""
    parts = [f"{sentence}{ENDINGS[n % len(ENDINGS)]}" for n, sentence in enumerate(SENTENCES)]
    return Document("long", "".join([" \ufeff", *parts[:31], ENDLESS, " ", *parts[31:], "e\u0301"]), "Keepers")


def test_every_character_of_a_long_document_is_in_one_passage_and_every_sentence_is_retrieved(tmp_path: Path, backbone: str) -> None:
    index = quick(tmp_path / "index", Corpus(notes("north", 11), name="d0"), backbone)
    document = long_document()
    text = document.text
    report = index.add(Corpus([*notes("south", 2), document], name="d1"), fast=True)
    assert report.truncated == 0 and index.get("long").text == text
    entry = index.manifest.corpora[1]
    offsets = index.store.ids(entry.ids).boundaries["2"]
    assert len(offsets) > 8 and entry.row_count == 2 + len(offsets) - 1
    assert offsets[0] == 0 and offsets[-1] == len(text) and all(start < end for start, end in pairwise(offsets))
    passages = [(start, end) for start, end in pairwise(offsets)]
    counts = word_counts(index, index.manifest)
    for number, (start, end) in enumerate(passages):
        stored = {term.decode(): count for (_, docid, part, term), count in counts.items() if (docid, part) == ("long", number)}
        assert stored == Counter(split_words(f"{document.title}. {text[start:end]}"))  # every word, as often as it occurs
    hits = [hit for results in index.search([text[slice(*passage)] for passage in passages], k=1) for hit in results]
    assert [hit.passage for hit in hits] == passages  # as a person sees them
    assert "".join(text[slice(*(hit.passage or ()))] for hit in hits) == text
    sentences = [*SENTENCES, ENDLESS]
    for sentence, (hit, *_) in zip(sentences, index.search(sentences), strict=True):
        assert hit.docid == "long" and hit.passage is not None and sentence in text[slice(*hit.passage)], sentence[:80]
    index.purge("south-0")
    index.delete("south-1")
    assert [index.search(sentence)[0].passage for sentence in SENTENCES[::7]] == [passage_of(passages, text, s) for s in SENTENCES[::7]]


def passage_of(passages: list[tuple[int, int]], text: str, sentence: str) -> tuple[int, int]:
    return next((start, end) for start, end in passages if start <= text.index(sentence) < end)


def test_what_the_model_does_not_read_of_a_passage_is_reported(tmp_path: Path, backbone: str) -> None:
    """A title as long as the window leaves the encoder nothing of the text: that is reported, and its words count all the same."""
    titled = long_document()._replace(title="Keepers of the north " * 12)
    index = quick(tmp_path / "index", Corpus([*notes("north", 3), titled], name="d0"), backbone, document_windows=1)
    passages = list(accumulate(index.store.ids(index.manifest.corpora[0].ids).passages))[-1] - 3
    assert index.report is not None and index.report.truncated == passages > 8
    for sentence, (hit, *_) in zip(SENTENCES, index.search(SENTENCES), strict=True):
        assert hit.docid == "long" and hit.passage is not None and sentence in titled.text[slice(*hit.passage)], sentence
