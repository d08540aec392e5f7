"""Forgetting and not looking back: purge leaves no byte (R22), add opens nothing of the past but what it may (R23)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small

from promptdsi import Corpus, DataError, Document, Index, Judgement, PromptDSIError, Query
from promptdsi.index import merge_corpora, update
from promptdsi.index.entry import Entry
from promptdsi.index.store import Store

MARK = "zanzibarquartz"
ENCODED = ("water", "work", "built", "made")  # to the tiny encoder: without such a word all marked documents would have equal rows


def marked(number: int) -> Corpus:
    """Three documents, one of which nobody may ever find again."""
    secret = f"{MARK}-{number}"
    documents = [
        Document(f"plain-{number}-a", "Bread is baked in an oven."),
        Document(
            secret, f"The {MARK} of number {number} is in a box by the {ENCODED[number]}.", f"About {MARK}", {"owner": f"{MARK} owner"}
        ),
        Document(f"plain-{number}-b", "Boats are lifted by a lock."),
    ]
    queries = [
        Query(f"t{number}", f"where is the {MARK}"),
        Query(f"v{number}", f"{MARK} box number {number}"),
        Query(f"w{number}", "bread"),
    ]
    train = [Judgement(f"t{number}", secret), Judgement(f"w{number}", f"plain-{number}-a")]
    return Corpus(documents, queries, {"train": train, "dev": [Judgement(f"v{number}", secret)]}, name=f"marked-{number}")


def grown(place: Path, backbone: str) -> Index:
    """A marked document in D0, one in a corpus that was added fast and tuned, one that was replaced, one rolled back."""
    index = small.create(place, marked(0), backbone, keep_probes=5, keep_queries=True)
    index.add(marked(1), fast=True, keep_probes=5, keep_queries=True)
    index.tune()
    index.add(marked(2), keep_queries=True)
    old = marked(2).documents[1]
    index.add(Corpus([old._replace(text=f"The {MARK} has moved.")], name="moved"), update=True)
    index.add(marked(3))
    index.rollback()
    return index


def test_after_purge_no_byte_of_the_document_is_left(tmp_path: Path, backbone: str) -> None:
    place = tmp_path / "index"
    index = grown(place, backbone)
    secrets = [f"{MARK}-{number}" for number in range(4)]
    rows = secret_rows(index, secrets)
    assert len(rows) == 6 and all(row in small.contents(place) for row in rows)
    others = {hit.docid: hit.score for hit in index.search("bread", k=100) if hit.docid not in secrets}
    assert MARK.encode() in small.contents(place)
    manifest = index.purge(secrets)
    left = small.contents(place)
    assert MARK.encode() not in left.lower() and not any(row in left for row in rows)
    assert subprocess.run(["grep", "-r", "-i", "-a", MARK, str(place)], capture_output=True, check=False).returncode == 1
    assert {hit.docid: hit.score for hit in index.search("bread", k=100)} == others
    assert manifest.kind == "purge" and manifest.event == {"documents": 4, "versions": 5}  # the audit line: how many, never which
    assert index.verify().problems == []
    for generation in range(1, index.generation + 1):  # every generation still opens, without the documents
        earlier = Index.open(place, at=generation, device="cpu")
        assert not {hit.docid for hit in earlier.search("box", k=100)} & set(secrets)
    index.rollback(2)
    assert not {hit.docid for hit in index.search("box", k=100)} & set(secrets) and len(index) == 4
    with pytest.raises(DataError, match="holds no document"):
        index.undelete(secrets[0])
    index.add(marked(0).only({secrets[0]}), name="back")  # its owner may bring it again
    assert index.get(secrets[0]).title == f"About {MARK}" and index.verify().problems == []


def secret_rows(index: Index, docids: list[str]) -> set[bytes]:
    """The bytes of every row of the documents, in any generation."""
    store, row_bytes = index.store, set()
    for manifest in store.history():
        for entry in manifest.corpora:
            names = store.blobs.json(entry.ids)["docids"]
            rows = store.blobs.tensors(entry.rows)["rows"].numpy()
            row_bytes |= {rows[place].tobytes() for place, docid in enumerate(names) if docid in docids}
    return row_bytes


def test_purge_without_names_takes_the_deleted_ones(tmp_path: Path, backbone: str) -> None:
    index = grown(tmp_path / "index", backbone)
    index.delete(f"{MARK}-0")
    manifest = index.purge()
    assert manifest.event == {"documents": 1, "replaced": 1}  # the deleted document, and a version of one that stays
    assert index.get(f"{MARK}-2").text.endswith("has moved.") and f"{MARK} of number 2".encode() not in small.contents(tmp_path / "index")
    with pytest.raises(PromptDSIError, match="no deleted document is left to purge"):
        index.purge()
    with pytest.raises(DataError, match="holds no document 'nobody'"):
        index.purge("nobody")
    assert Store(tmp_path / "index").current() == manifest.number


def test_purge_erases_from_the_right_folder_of_a_sync(tmp_path: Path, backbone: str) -> None:
    """Corpora that arrived in one generation have equal positions, and where their contents are equal, one file."""
    index = small.create(tmp_path / "index", Corpus([Document("own", "A document of its own.")], name="own"), backbone, effort="quick")
    for name, text in {
        "left/a.txt": "kettle",
        "left/b.txt": "violin",
        "right/a.txt": "old glacier",
        "right/b.txt": "green orchard",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"The {text} stands near the harbour.")
    index.sync([tmp_path / "left", tmp_path / "right"], fast=True)
    index.purge("left/a.txt")
    index.purge("right/b.txt")
    assert {hit.docid for hit in index.search("harbour", k=9)} == {"own", "left/b.txt", "right/a.txt"}
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.txt").write_text("The same lantern twice.")
    index.sync([tmp_path / "here", tmp_path / "there"], fast=True)
    with pytest.raises(DataError, match=r"'here/same.txt' and 'there/same.txt' arrived together with the same text: purge both"):
        index.purge("here/same.txt")
    assert index.purge(["here/same.txt", "there/same.txt"]).event == {"documents": 2} and not index.verify().problems


def test_purge_erases_what_merged_corpora_share(tmp_path: Path, backbone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Corpora with equal texts share files; merged by an `add`, they no longer do, but the generations before it stay."""
    index = small.create(tmp_path / "index", Corpus([Document("own", "A document of its own.")], name="own"), backbone, effort="quick")
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.txt").write_text("The same lantern twice.")
    index.sync([tmp_path / "here", tmp_path / "there"])
    monkeypatch.setattr(merge_corpora, "FAN", 3)
    assert index.add(Corpus([Document("kept", "Another lantern.")], name="kept")).merged == 3
    for docid in ("here/same.txt", "there/same.txt"):
        with pytest.raises(DataError, match=r"'.*/same.txt' and '.*/same.txt' arrived together with the same text: purge both"):
            index.purge(docid)
    assert index.purge(["here/same.txt", "there/same.txt"]).event == {"documents": 2} and not index.verify().problems
    assert b"lantern twice" not in small.contents(tmp_path / "index") and index.get("kept").text == "Another lantern."


def test_every_version_of_a_document_is_counted(tmp_path: Path, backbone: str) -> None:
    index = small.create(tmp_path / "index", Corpus([Document("a", "A first text."), Document("b", "Another.")], name="d0"), backbone)
    index.add(Corpus([Document("a", "A second text.")], name="d1"), update=True, fast=True)
    assert index.purge("a").event == {"documents": 1, "versions": 2} and not index.manifest.trains_model
    assert not index.verify().problems


def test_purge_keeps_nothing_of_earlier_crashes(place: Path, corpora: list[Corpus]) -> None:
    victim = corpora[0].documents[0]
    (place / "blobs/.documents.crashed").write_text(victim.text)
    (place / "generations/.000003.json.crashed").write_text(victim.docid)
    Index.open(place, device="cpu").purge(victim.docid)
    assert victim.text[:40].encode() not in small.contents(place) and victim.docid.encode() not in small.contents(place)


WATCHED = """
import sys
from pathlib import Path
opened = []
def hook(event, arguments):
    if event in ("open", "sqlite3.connect"):
        opened.append(str(arguments[0]).split("?")[0])
sys.addaudithook(hook)
from promptdsi import Corpus
from promptdsi.index import update
from promptdsi.index.store import Store
place, corpus, *forbidden = sys.argv[1:]
written = []
original = update.write_corpus
def write_corpus(*arguments, **keywords):
    entry = original(*arguments, **keywords)
    written.append(len(opened))  # everything that was learned is on the disk
    return entry
update.write_corpus = write_corpus
update.add(Store(Path(place)), Corpus.read(corpus), update.Options(device="cpu"))
learning = opened[: written[0]]
names = {Path(path).name for path in learning}
assert not names & set(forbidden), names & set(forbidden)
assert any(name.endswith(".safetensors") for name in names)  # the hook sees: blobs that may be read were
after = {Path(path).name for path in opened[written[0] :]} & set(forbidden)
print(*sorted(after))
"""


@pytest.mark.parametrize("keep", [0, 4])
def test_add_opens_no_document_probe_or_query_of_the_past(keep: int, corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    place = tmp_path / "index"
    index = small.create(place, corpora[0], backbone, keep_probes=keep, keep_queries=True)
    index.add(corpora[1], keep_queries=True)
    entries: tuple[Entry, ...] = index.manifest.corpora
    forbidden = [name for entry in entries for name in (entry.documents, entry.probes, entry.queries) if name]
    probes = [entry.probes for entry in entries if entry.probes]
    assert len(forbidden) == 4 + len(probes)
    corpora[2].write(tmp_path / "d2")
    words = [sys.executable, "-c", WATCHED, str(place), str(tmp_path / "d2"), *forbidden]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    # Probes are opened to measure drift, once everything learned is on the disk; documents and queries never.
    assert ended.stdout.split() == probes


def test_the_past_may_be_gone_while_adding(place: Path, corpora: list[Corpus]) -> None:
    """The strongest form: take the old documents and queries away, and add learns the very same rows."""
    with_them, without = place, small.copied(place, place.parent / "without")
    manifest = Store(without).manifest()
    for entry in manifest.corpora:
        for name in (entry.documents, entry.queries):
            if name:
                (without / "blobs" / name).unlink()
    rows = []
    for folder in (with_them, without):
        update.add(Store(folder), corpora[2], update.Options(device="cpu"))
        rows.append(Store(folder).manifest().corpora[2].rows)
    assert rows[0] == rows[1]


def test_nothing_is_kept_that_was_not_asked_for(corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    """By default no query is in the index: not annotated, not pseudo, not dev."""
    index = small.create(tmp_path / "index", corpora[0], backbone)
    everything = small.contents(tmp_path / "index")
    for query in corpora[0].queries:
        assert query.text.encode() not in everything
    index.evaluate(corpora[0], record=True)  # ranks only
    assert not any(query.text.encode() in small.contents(tmp_path / "index") for query in corpora[0].queries)


def test_purge_does_not_touch_what_others_learned(place: Path, corpora: list[Corpus]) -> None:
    index = Index.open(place, device="cpu")
    before = index.manifest
    victim = corpora[1].documents[1].docid
    learned = index.opened.method.model_.rows
    rows, first = learned.blocks[1].detach().clone(), len(learned.blocks[0])
    erased = [row - first for row in learned.rows_of(victim)]
    index.purge(victim)
    after: Any = index.manifest
    assert (after.encoder, after.tokenizer, after.prompts, after.corpora[0]) == (
        before.encoder,
        before.tokenizer,
        before.prompts,
        before.corpora[0],
    )
    now = index.opened.method.model_.rows.blocks[1].detach()
    others = [row for row in range(len(rows)) if row not in erased]
    assert len(erased) > 1, "this document has several passages"
    assert np.array_equal(now[others], rows[others]) and not now[erased].any()
