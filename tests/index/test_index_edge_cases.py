"""What a strict reader broke once, so that it stays mended: purge of shared content, creates over the remains of others, odd input."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small
from faults import Died, Faults
from hypothesis import given
from hypothesis import strategies as st

from promptdsi import Corpus, DataError, Document, Index, PromptDSIError
from promptdsi.engine.postings import Postings
from promptdsi.errors import UsageError
from promptdsi.files import read_plain
from promptdsi.index import effort, update
from promptdsi.index.blobs import Ids
from promptdsi.index.purge import purge
from promptdsi.index.results import NoIndex
from promptdsi.index.sealed import sealed, unsealed
from promptdsi.index.search import find_words, snippet
from promptdsi.index.store import Store

X, Y = Document("x", "water about zanzibar", "X"), Document("y", "tea about y", "Y")


def corpus(*documents: Document, name: str) -> Corpus:
    return Corpus(list(documents), name=name)


@pytest.mark.parametrize("fast", [False, True])
def test_purging_the_dead_leaves_their_living_twins(fast: bool, place: Path, corpora: list[Corpus]) -> None:
    """Two corpora with the very same documents have blobs of their own."""
    index = Index.open(place, device="cpu")
    docids = [document.docid for document in corpora[2].documents]
    index.add(corpora[2], fast=fast)
    index.delete(docids)
    index.add(corpora[2], fast=fast, name="again")
    before = small.signature(index)
    index.purge()
    assert len(index) == 27 and small.signature(index) == before and index.verify().problems == []
    assert all(index.get(docid).text for docid in docids)


def test_purges_that_meet_each_other(place: Path) -> None:
    index = Index.open(place, device="cpu")
    index.add(corpus(X, Y, name="a"), fast=True)
    index.purge("x")
    index.delete("y")
    index.add(corpus(X, Y, name="b"), fast=True)
    index.delete("x")
    index.purge()
    assert Index.open(place, device="cpu").get("y") == Y and index.verify().problems == []
    assert b"zanzibar" not in b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file())


def test_purge_without_names_reaches_generations_that_were_rolled_back(place: Path) -> None:
    index = Index.open(place, device="cpu")
    index.add(corpus(X, Y, name="a"))
    index.rollback()
    index.add(corpus(X, name="b"))
    index.delete("x")
    index.purge()
    assert b"zanzibar" not in b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file())
    index.rollback(3)
    assert index.get("y") == Y  # its neighbour there was not deleted


def test_damage_does_not_become_the_truth(place: Path, corpora: list[Corpus]) -> None:
    """Purge and tune check what they read: a flipped byte must not get a new, right checksum."""
    index = Index.open(place, device="cpu")
    index.add(corpora[2], fast=True, keep_queries=True)
    entry = index.manifest.corpora[2]
    for name, act in (
        (entry.rows, lambda: purge(Store(place), [corpora[2].documents[0].docid])),
        (entry.ids, lambda: purge(Store(place), [corpora[2].documents[0].docid])),
        (entry.documents, lambda: effort.tune_added(Store(place), update.Options(device="cpu"))),
        (entry.queries, lambda: effort.tune_added(Store(place), update.Options(device="cpu"))),
    ):
        path = place / "blobs" / str(name)
        content = path.read_bytes()
        spoiled = bytearray(content)
        spoiled[-20] ^= 1
        path.write_bytes(bytes(spoiled))
        with pytest.raises(DataError, match="is damaged"):
            act()
        path.write_bytes(content)
    assert Store(place).current() == 3


def test_create_takes_nothing_for_its_own(place: Path, corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    (place / "CURRENT").unlink()
    with pytest.raises(DataError, match="exists and is no index"):
        small.create(place, corpora[0], backbone)
    assert len(list((place / "generations").iterdir())) == 2  # an index that lost CURRENT is not begun anew
    mine = tmp_path / "mine"
    for name in ("blobs", "generations", "records"):
        (mine / name).mkdir(parents=True)
    (mine / "blobs/thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match="exists and is no index"):
        small.create(mine, corpora[0], backbone)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(DataError, match="is a file"):
        small.create(file, corpora[0], backbone)
    assert (mine / "blobs/thesis.txt").exists()


def test_a_create_that_comes_second_finds_the_first(corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    """Another create ends between the first look and the lock."""
    place = tmp_path / "index"

    def other(work: object) -> None:
        small.create(place, corpora[1], backbone)

    with pytest.raises(DataError, match="is an index already"):
        small.create(place, corpora[0], backbone, on_start=other)
    assert len(Index.open(place, device="cpu")) == 3


def test_tune_skips_what_has_no_document_left(place: Path) -> None:
    index = Index.open(place, device="cpu")
    index.add(corpus(X, name="a"), fast=True)
    index.add(corpus(Y, name="b"), fast=True)
    index.delete("x")
    assert [report.corpus for report in index.tune()] == ["b"] and index.tune() == []


def test_a_bound_on_drift_is_kept_or_refused(corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    index = small.create(tmp_path / "index", corpora[0], backbone, keep_probes=2)
    for bound in (float("nan"), -0.1, 2.0):
        with pytest.raises(UsageError, match="expected a fall in Hits@10 between 0 and 1"):
            index.add(corpora[1], max_drift=bound)
    probed = {docid for probe in index.store.blobs.json(index.manifest.corpora[0].probes or "")["entries"] for docid in probe["docids"]}
    index.delete(sorted(probed))
    with pytest.raises(UsageError, match="no document of any probe query is left to measure with; the index is unchanged"):
        index.add(corpora[1], max_drift=0.5)
    assert index.generation == 2 and Store(tmp_path / "index").leftovers() == []
    bare = small.create(tmp_path / "bare", corpora[0], backbone)
    bare.add(corpora[1], fast=True)
    with pytest.raises(UsageError, match="needs probe queries"):
        bare.tune(max_drift=0.0)


def test_a_purge_that_was_cut_off_can_be_repeated(
    original: Path, corpora: list[Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, hidden = (document.docid for document in corpora[0].documents[:2])
    place = small.copied(original, tmp_path / "index")
    Index.open(place, device="cpu").delete(hidden)
    backup = small.copied(place, tmp_path / "kept")
    interruptions = 0
    for step in range(1, 80):
        small.copied(backup, place)
        with monkeypatch.context() as patch:
            Faults(at=step).install(patch)
            try:
                purge(Store(place), [victim])
                break
            except Died:
                pass
        if not Store(place).purge_pending(Store(place).manifest()):
            continue
        interruptions += 1
        assert any("a purge was interrupted" in problem for problem in Index.open(place, device="cpu").verify().problems)
        again = small.copied(place, tmp_path / "again")
        assert purge(Store(again), [victim]).number == 4  # the same command succeeds
        manifest = purge(Store(place))  # and what verify says to run erases nothing but what was asked for
        assert manifest.number == 4 and not Store(place).purge_pending(manifest)
        Index.open(place, device="cpu").undelete(hidden)
        for folder in (place, again):
            assert victim.encode() not in b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert interruptions > 3


def test_a_reader_between_current_and_a_purged_manifest_looks_again(
    place: Path, corpora: list[Corpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []

    def meanwhile(path: Path, most: int) -> bytes:
        if path.name == "000002.json" and not done:
            done.append(True)
            purge(Store(place), [corpora[0].documents[0].docid])
        return read_plain(path, most)

    monkeypatch.setattr("promptdsi.index.store.read_plain", meanwhile)
    assert Store(place).current() == 3 and done


def test_checkpoints_and_lost_folders(place: Path, corpora: list[Corpus]) -> None:
    (place / ".learning").mkdir()
    (place / ".learning/.checkpoint.safetensors.abc").write_text("weights")
    (place / "records").rmdir()  # copies lose empty folders
    index = Index.open(place, device="cpu")
    assert any(".checkpoint.safetensors.abc belongs to no generation" in problem for problem in index.verify().problems)
    index.delete(corpora[0].documents[0].docid)
    assert not (place / ".learning").exists() and index.verify().problems == []
    index.evaluate(corpora[1], record=True)
    assert index.verify().problems == []


@pytest.mark.alone
def test_many_corpora_are_cheap_and_need_few_files(place: Path) -> None:
    """A write reads one manifest, not all; a search holds few document files open."""
    import resource

    store = Store(place)
    manifest = store.manifest()
    for number in range(3, 123):  # as a hundred and twenty fast adds would leave it
        documents = [Document(f"many-{number}", f"water number {number}")]
        entry = replace(
            manifest.corpora[1],
            name=f"many {number}",
            since=number,
            count=1,
            passages=0,
            words=store.blobs.put_words(Postings.build([documents[0].text]), since=number),
            ids=store.blobs.put_json(Ids.of(documents, since=number)._asdict()),
            rows=store.blobs.put_rows(store.blobs.arrays(manifest.corpora[1].rows)["rows"][:1], since=number),
            documents=store.blobs.put_documents(enumerate(documents), since=number),
            queries=None,
        )
        manifest = replace(store.manifest(), number=number, parent=number - 1, corpora=(*manifest.corpora, entry))
        store.commit(manifest)
    index = Index.open(place, device="cpu")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files + 90, hard))
    try:
        assert len(index.search("water", k=1000)) == 144
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    started = time.perf_counter()
    index.delete("many-7")
    assert time.perf_counter() - started < 2 and index.verify().problems == []


def test_a_lying_configuration_allocates_nothing(place: Path) -> None:
    content = unsealed(place / "generations/000002.json")
    content["config"]["vocabulary"] = 10**10
    (place / "generations/000002.json").write_bytes(sealed(content))
    Store(place).point_to(2)
    with pytest.raises(DataError, match=r"is no manifest: config\.vocabulary is 10000000000, expected a whole number"):
        Index.open(place)


def test_python_refuses_what_files_do(place: Path, corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    index = Index.open(place, device="cpu")
    for documents, says in (
        ([Document("", "text")], "is blank"),
        ([Document("a\tb", "text")], "control character"),
        ([Document("a", "  ")], "is empty"),
        ([Document("a", "t"), Document("a", "u")], "stands twice"),
        ([Document("a", "nul \0 inside")], "NUL"),
        ([], "holds no document"),
    ):
        for act in (lambda collection: index.add(collection), lambda collection: small.create(tmp_path / "new", collection, backbone)):
            with pytest.raises(DataError, match=says):
                act(Corpus(documents, name="odd"))
    assert not (tmp_path / "new").exists()
    with pytest.raises(UsageError, match="promptdsi has no parameter 'fast'"):
        small.create(tmp_path / "new", corpora[0], backbone, fast=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'store'"):
        index.add(corpora[2], store="none")
    for nothing in ([], "", [""]):
        with pytest.raises(UsageError, match="no docid was given"):
            index.purge(nothing)
    with pytest.raises(PromptDSIError, match="batch_size=0 is less than 1"):
        small.create(tmp_path / "new", corpora[0], backbone, batch_size=0)


@given(st.text("abİßéA _1.", max_size=30), st.sets(st.text("abiß", min_size=1, max_size=2), max_size=3))
def test_words_are_found_where_they_stand(text: str, words: set[str]) -> None:
    expected = [(match.start(), match[0].lower()) for match in re.finditer(r"\w+", text) if match[0].lower() in words]
    assert sorted(find_words(text, words)) == expected


@pytest.mark.alone
def test_snippets_of_repetitive_texts_are_quick() -> None:
    started = time.perf_counter()
    assert snippet("b c " * 5000, "b c").startswith("b c")
    assert snippet("x " + "a" * 19_990, " ".join("a" * length for length in range(2, 90)))
    assert time.perf_counter() - started < 1


def test_odd_names_and_words_on_the_command_line(place: Path, run: Any, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"_id": "[/x]", "text": "water"}\n')
    assert run("add", "index", "x.jsonl", "--name", "[/bold]", "--seed", "3", "--offline", "--device", "cpu").returncode == 0
    for words in (["info", "index"], ["log", "index"]):
        assert "[/bold]" in run(*words).stdout
    assert "[/x]" in run("search", "index", "water", "-k", "50", "--device", "cpu", COLUMNS="12").stdout
    for setting, says in (
        ("seed=7", "seed has an option of its own, --seed"),
        ("store=none", "store has an option of its own, --store"),
        ("preset=paper", "preset has an option of its own"),
        ("=3", "expected KEY=VALUE"),
        ("pseudo_queries=-1", "pseudo_queries=-1 is less than 0"),
        ("document_windows=0", "document_windows=0 is less than 1"),
    ):
        outcome = run("create", "new", "x.jsonl", "--set", setting)
        assert outcome.returncode == 2 and says in outcome.stderr, outcome.stderr
    twice = run("create", "new", "x.jsonl", "--set", "fit_epochs=1", "--set", "fit_epochs.a=2")
    assert twice.returncode == 2 and "fit.epochs={'a': 2}: expected a whole number" in twice.stderr and not (tmp_path / "new").exists()
    long = run("search", "index", "water " * 100, "--device", "cpu")
    assert "1 query is longer than 24 tokens and was truncated" in long.stderr


def test_standard_input_is_answered_line_by_line_and_must_be_utf8(place: Path) -> None:
    words = [sys.executable, "-m", "promptdsi", "search", str(place), "-", "--json", "--device", "cpu"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin and process.stdout and process.stderr
        for query in (b"tea\n", b"bread\n"):
            process.stdin.write(query)
            process.stdin.flush()
            assert query.strip() in process.stdout.readline()  # before the next one is asked
        process.stdin.write(b"\xff\n")
        process.stdin.close()
        assert process.stderr.read().startswith(b"error: standard input: the line b'\\xff' is not UTF-8")
        assert process.wait() == 2


def test_a_lost_current_and_an_unfinished_create_differ(place: Path, tmp_path: Path) -> None:
    (place / "CURRENT").unlink()
    with pytest.raises(NoIndex, match="has lost its file CURRENT: restore it from a copy"):
        Index.open(place)
    (place / ".creating").write_text("x")
    with pytest.raises(NoIndex, match="was begun and not finished"):
        Index.open(place)
