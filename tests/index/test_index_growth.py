"""How an index grows: what create, add and tune learn, keep, measure and refuse (R12, R15, R20, R21)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small

from promptdsi import Corpus, DataError, Document, Index, Judgement, PromptDSIError, Query
from promptdsi.errors import UsageError
from promptdsi.files import sha256_of
from promptdsi.index.store import Store
from promptdsi.methods.promptdsi import PromptDSI
from promptdsi.training.objectives import fitted_norms

QUERY = "how does a telescope work"


def checksums(place: Path) -> dict[str, str]:
    return {path.name: sha256_of(path) for path in (place / "blobs").iterdir()}


def docids(index: Index, query: str = QUERY) -> list[str]:
    return [hit.docid for hit in index.search(query, k=1000)]


def extra(*texts: str, name: str = "extra") -> Corpus:
    return Corpus([Document(f"{name}-{place}", text, f"Title {place}") for place, text in enumerate(texts)], name=name)


def test_adding_what_is_there_does_no_work_and_other_content_is_refused(place: Path, corpora: list[Corpus]) -> None:
    index = Index.open(place, device="cpu")
    report = index.add(corpora[1])
    assert (report.generation, report.added, report.unchanged) == (2, 0, 3) and index.generation == 2
    old = corpora[1].documents[0]
    changed = Corpus([old._replace(text="Entirely other words about a lighthouse."), Document("fresh", "A fresh document.")], name="news")
    with pytest.raises(
        DataError, match=rf"the document '{old.docid}' of news is in the index with other content; replace it with --update"
    ):
        index.add(changed)
    report = index.add(changed, update=True)
    assert (report.added, report.updated, len(index)) == (2, 1, 25)
    assert index.get(old.docid).text.startswith("Entirely other") and docids(index).count(old.docid) == 1
    assert Index.open(place, at=2, device="cpu").get(old.docid) == old
    index.delete(old.docid)
    assert old.docid not in docids(index)
    index.undelete(old.docid)  # the version that was there last
    assert index.get(old.docid).text.startswith("Entirely other")
    again = Corpus([changed.documents[0]._replace(metadata={"year": 1}), changed.documents[1]], name="again")
    assert index.add(again, update=True).updated == 1  # metadata is content too


def test_queries_are_counted_as_they_were_learned(tmp_path: Path, corpora: list[Corpus], backbone: str) -> None:
    index = small.create(tmp_path / "index", corpora[0], backbone, new_corpus_queries="gen")
    first = index.report
    assert first is not None and first.queries == len(corpora[0].pairs("train", kinds=("annotated",))) + index.manifest.corpora[0].row_count
    report = index.add(corpora[1])  # one span of each new passage, without the annotated queries
    assert report.queries == index.manifest.corpora[1].row_count > len(corpora[1])


def test_a_deleted_docid_may_be_added_again(place: Path, corpora: list[Corpus]) -> None:
    index = Index.open(place, device="cpu")
    victim = corpora[0].documents[0]
    index.delete(victim.docid)
    index.add(Corpus([victim._replace(text="Back again with other words.")], name="back"))
    assert index.get(victim.docid).text == "Back again with other words." and len(index) == 24
    assert next(hit for hit in index.search(QUERY, k=100) if hit.docid == victim.docid).corpus == "back"


def test_names_are_unique_and_may_be_given(place: Path) -> None:
    index = Index.open(place, device="cpu")
    with pytest.raises(UsageError, match="has a corpus named 'd1' already; give this one another name with --name"):
        index.add(extra("one", name="d1"))
    assert index.add(extra("one", name="d1"), name="other").corpus == "other"
    for bad in ("", "  ", "a\nb", "x" * 201):
        with pytest.raises(UsageError, match="needs a name"):
            index.add(extra("more words", name="e2"), name=bad)


def test_adding_changes_nothing_old(original: Path, corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    """Rows, encoder and, for S++ and CODA, earlier prompts are the same files with the same bytes (R20)."""
    for prompts in ("none", "s++", "coda", "l2p", "topic"):
        place = tmp_path / prompts.strip("+")
        options = {} if prompts == "none" else {"prompt_length": 4}
        index = small.create(place, corpora[0], backbone, prompts=prompts, prompt_options=options)
        index.add(corpora[1])
        before, first, hits = checksums(place), index.manifest, index.search(QUERY, k=24)
        index.add(corpora[2])
        after, second = checksums(place), index.manifest
        assert before.items() <= after.items()
        assert second.encoder == first.encoder and second.corpora[:2] == first.corpora
        prompt_blobs = {name: second.prompts[name] for name in first.prompts}
        assert (prompt_blobs == first.prompts) == (prompts in ("none", "s++", "coda"))
        assert Index.open(place, at=2, device="cpu").search(QUERY, k=24) == hits


def test_the_same_seed_gives_the_same_blobs(corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    digests = []
    for name in ("one", "two"):
        index = small.create(
            tmp_path / name, corpora[0], backbone, prompts="s++", prompt_options={"prompt_length": 4}, keep_probes=3, keep_queries=True
        )
        index.add(corpora[1])
        digests.append(checksums(tmp_path / name))
    assert digests[0] == digests[1]
    other = small.create(tmp_path / "other", corpora[0], backbone, seed=1)
    assert other.manifest.corpora[0].rows not in digests[0]


def test_fast_then_tune(place: Path, corpora: list[Corpus], backbone: str) -> None:
    index = small.create(place.parent / "fast", corpora[0], backbone, add_epochs=20, add_row_lr=0.05, keep_queries=True)
    report = index.add(corpora[1], fast=True, keep_queries=True)
    assert report.fast and report.unfindable == [] and index.manifest.corpora[1].fast
    method = index.opened.method
    documents, d0 = method.document_vectors(corpora[1]), method.model_.rows.blocks[0].detach()
    vectors = method.rows.row_norm_scale * fitted_norms(method.model_.rows, len(d0), documents, default=method.row_norm_) * documents
    np.testing.assert_allclose(method.model_.rows.blocks[1].detach(), vectors, rtol=1e-5, atol=1e-6)
    index.add(corpora[2])
    index.add(corpora[3], fast=True)
    victim = corpora[1].documents[0].docid
    index.delete(victim)
    index.add(Corpus([corpora[3].documents[1]._replace(text="changed words")], name="changed"), update=True)
    before = {entry.name: entry for entry in index.manifest.corpora}
    reports = index.tune()
    assert [(report.kind, report.corpus) for report in reports] == [("tune", "d1"), ("tune", "d3")]
    after = {entry.name: entry for entry in index.manifest.corpora}
    assert not any(entry.fast for entry in after.values()) and [*after] == [*before]
    assert after["d1"].rows != before["d1"].rows and after["d1"].ids == before["d1"].ids
    assert all(after[name] == before[name] for name in ("d0", "d2", "changed"))
    assert victim not in docids(index) and len(index) == 21 + 9 - 1 and index.tune() == []
    assert index.verify().problems == []
    trained = small.create(place.parent / "trained", corpora[0], backbone, add_epochs=20, add_row_lr=0.05)
    trained.add(corpora[1])
    lone = small.create(place.parent / "lone", corpora[0], backbone, add_epochs=20, add_row_lr=0.05)
    lone.add(corpora[1], fast=True, keep_queries=True)
    lone.tune()  # the queries were kept, so tuning later is the very training that add would have done, but for its seed
    ours, theirs = (variant.opened.method.model_.rows.blocks[1].detach() for variant in (lone, trained))
    assert float((ours - theirs).norm()) < 0.25 * float(theirs.norm()) and float((ours - theirs).norm()) < float((ours - vectors).norm())


@pytest.mark.parametrize("prompts", ["s++", "topic"])
def test_fast_and_tune_with_prompts(prompts: str, corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    index = small.create(tmp_path / "index", corpora[0], backbone, prompts=prompts, prompt_options={"prompt_length": 4})
    index.add(corpora[1], fast=True)
    assert len(index.search(QUERY, k=100)) == 24
    index.tune()
    assert index.manifest.prompts and len(index.search(QUERY, k=100)) == 24


@pytest.mark.parametrize("store", ["text", "title", "none"])
def test_what_is_stored_of_documents_is_the_owners_choice(store: str, corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    index = small.create(tmp_path / "index", corpora[0], backbone, store=store)
    index.add(corpora[1], fast=True)
    document = corpora[1].documents[0]
    stored, hit = index.get(document.docid), next(hit for hit in index.search(QUERY, k=100) if hit.docid == document.docid)
    assert (stored.title, stored.text) == (document.title if store != "none" else "", document.text if store == "text" else "")
    assert bool(hit.title) == (store != "none") and bool(hit.snippet) == (store == "text")
    everything = b"".join(path.read_bytes() for path in (tmp_path / "index").rglob("*") if path.is_file())
    assert (document.text[:40].encode() in everything) == (store == "text")
    assert (document.title.encode() in everything) == (store != "none")
    if store == "text":
        index.tune()
    else:
        with pytest.raises(PromptDSIError, match=rf"stores no text \(--store {store}\)"):
            index.tune()
    with pytest.raises(UsageError, match="store='all' is none of text, title, none"):
        small.create(tmp_path / "bad", corpora[0], backbone, store="all")


def test_drift_is_measured_on_probes_and_bounded(corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    index = small.create(tmp_path / "index", corpora[0], backbone, keep_probes=8)
    with pytest.raises(UsageError, match="extra has no dev queries to keep"):
        index.add(extra("words"), keep_probes=1)
    report = index.add(corpora[1], keep_probes=2)
    assert report.drift is not None and report.drift.n == 8 and report.probes == 2
    before = index.opened.method
    probes = [probe for corpus in index.manifest.corpora for probe in index.store.blobs.list(corpus.probes or "", "probes")]
    assert len(probes) == 10 and all(set(probe) == {"text", "docids"} for probe in probes)
    expected = np.mean([before.ranks([probe["text"]], probe["docids"])[0] <= 10 for probe in probes])
    again = index.add(corpora[2])
    assert again.drift is not None and again.drift.before == expected
    after = np.mean([index.opened.method.ranks([probe["text"]], probe["docids"])[0] <= 10 for probe in probes])
    assert again.drift.after == after and index.manifest.event["drift"]["fall"] == again.drift.fall
    # Forty copies of the queries themselves push every old document down.
    flood = Corpus(
        [Document(f"flood-{place}", probes[place % len(probes)]["text"]) for place in range(120)],
        [Query(f"f{place}", probes[place % len(probes)]["text"]) for place in range(120)],
        {"train": [Judgement(f"f{place}", f"flood-{place}") for place in range(120)]},
        name="flood",
    )
    generation, files = index.generation, checksums(tmp_path / "index")
    with pytest.raises(PromptDSIError, match=r"fall by 0\.\d+, more than --max-drift 0.01: it was not committed, the index is unchanged"):
        index.add(flood, max_drift=0.01)
    assert index.generation == generation and checksums(tmp_path / "index") == files
    assert index.add(flood, max_drift=1.0).drift is not None
    bare = small.create(tmp_path / "bare", corpora[0], backbone)
    with pytest.raises(UsageError, match="--max-drift needs probe queries"):
        bare.add(corpora[1], max_drift=0.1)


def test_what_is_learned_does_not_depend_on_probes(corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    rows = []
    for probes in (0, 5):
        index = small.create(tmp_path / str(probes), corpora[0], backbone, keep_probes=probes)
        index.add(corpora[1])
        rows.append([entry.rows for entry in index.manifest.corpora])
    assert rows[0] == rows[1]


def test_reports_name_documents_that_cannot_be_found(corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    index = small.create(tmp_path / "index", corpora[0], backbone)
    twins = Corpus([Document(f"twin-{place:02}", "the very same words") for place in range(14)], name="twins")
    report = index.add(twins)  # fourteen equal documents: ten at most are in the first ten
    assert len(report.unfindable) >= 4 and set(report.unfindable) <= {document.docid for document in twins.documents}


def test_topic_words_stand_in_three_documents_at_least(backbone: str, tmp_path: Path) -> None:
    documents = [Document(f"d{n}", f"bread flour oven yeast number secret{'abcdefghijklmnop'[n]} crust") for n in range(8)]
    documents += [Document(f"e{n}", f"planet orbit comet star number hidden{'abcdefghijklmnop'[n]} moon") for n in range(8)]
    index = small.create(tmp_path / "index", Corpus(documents), backbone, prompts="topic", prompt_options={"prompt_length": 4})
    words = {word for topic in index.manifest.metadata["topics"]["words"] for word in topic}
    assert words and not any(word.startswith(("secret", "hidden")) for word in words)
    assert "labels" not in index.manifest.metadata["topics"]


def test_a_folder_of_text_files_becomes_an_index(tmp_path: Path, backbone: str) -> None:
    (tmp_path / "notes").mkdir()
    for name, text in (("tea.txt", "Tea is brewed with water.\n"), ("locks.md", "# Canal locks\n\nA lock lifts boats.\n")):
        (tmp_path / "notes" / name).write_text(text)
    index = small.create(tmp_path / "index", Corpus.read(tmp_path / "notes"), backbone)
    assert index.report is not None and index.report.queries >= 2 and len(index.search("boats")) == 2


def test_wrong_parameters_are_said_before_anything_is_made(corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    for changes, says in (
        ({"prompts": "moon"}, "no prompt strategy 'moon'"),
        ({"method": "bm25"}, "an index cannot hold bm25: only promptdsi and rows"),
        ({"method": "incdsi"}, "an index cannot hold incdsi: only promptdsi and rows"),
        ({"method": "rehearsal"}, "an index cannot hold rehearsal: only promptdsi and rows"),
        ({"method": "magic"}, "no method 'magic'"),
        ({"preset": "worst"}, "no preset 'worst'; there are paper, rows, best"),
        ({"fit_epochs": "two"}, "fit.epochs='two': expected a whole number, such as 20"),
        ({"epochs": 3}, "promptdsi has no parameter 'epochs'"),
        ({"method": "rows", "prompts": "l2p"}, "the method rows has no prompts"),
    ):
        with pytest.raises(UsageError, match=says):
            small.create(tmp_path / "index", corpora[0], backbone, **changes)
        assert not (tmp_path / "index").exists() or not any((tmp_path / "index").iterdir())
    rows = small.create(tmp_path / "rows", corpora[0], backbone, method="rows")
    assert rows.manifest.method == "rows" and Index.open(tmp_path / "rows", device="cpu").search("tea")
    with pytest.raises(TypeError, match="unexpected keyword argument 'quick'"):
        rows.add(corpora[1], quick=True)  # type: ignore[call-arg]


def test_divergence_commits_nothing(place: Path, corpora: list[Corpus], monkeypatch: pytest.MonkeyPatch) -> None:
    """A NaN while learning stops it; no generation is made, and the message names the tensor (R15)."""
    original = PromptDSI.document_vectors

    def spoiled(self: PromptDSI, corpus: Corpus, **keywords: Any) -> Any:
        return original(self, corpus, **keywords) * float("nan")

    monkeypatch.setattr(PromptDSI, "document_vectors", spoiled)
    index = Index.open(place, device="cpu")
    for fast in (False, True):
        with pytest.raises(PromptDSIError, match=r"the loss is nan at step 1|not finite"):
            index.add(corpora[2], fast=fast)
    assert Store(place).current() == 2 and Store(place).leftovers() == []
