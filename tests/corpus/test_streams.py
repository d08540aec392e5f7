"""Streams: the three ways to cut, the file that proves them, and that the same command gives the same bytes."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptdsi import Corpus, DataError, Document, Judgement, PromptDSIError, Query
from promptdsi.corpus.sources import Request, build_stream
from promptdsi.corpus.splitting import sample, split_at_random, split_by_date, split_by_value
from promptdsi.corpus.streams import open_stream
from promptdsi.errors import UsageError


def numbered(count: int) -> Corpus:
    documents = [Document(f"d{i}", f"text {i}", "", {"year": str(1900 + i), "kind": "ab"[i % 2]}) for i in range(count)]
    queries = [Query(f"q{i}", f"query {i}") for i in range(count)]
    return Corpus(documents, queries, {"train": [Judgement(f"q{i}", f"d{i}") for i in range(count)]})


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@given(st.integers(20, 200), st.integers(0, 5), st.floats(0.05, 0.15), st.integers(0, 5))
def test_a_random_split_is_a_partition_of_the_promised_sizes(count: int, new: int, share: float, seed: int) -> None:
    corpus = numbered(count)
    parts = split_at_random(corpus, new=new, share=share, seed=seed)
    assert [len(part) for part in parts[1:]] == [round(share * count)] * new
    documents = [document for part in parts for document in part.documents]
    assert sorted(documents) == sorted(corpus.documents)
    for part in parts:
        docids = {document.docid for document in part.documents}
        assert {judgement.docid for judgement in part.qrels.get("train", [])} == docids
        assert [query.queryid for query in part.queries] == [f"q{document.docid[1:]}" for document in part.documents]


def test_the_split_follows_the_seed_and_not_the_order_of_the_input() -> None:
    corpus = numbered(100)
    mixed = Corpus(corpus.documents[::-1], corpus.queries, corpus.qrels)

    def groups(source: Corpus, seed: int) -> list[set[str]]:
        return [{document.docid for document in part.documents} for part in split_at_random(source, new=3, share=0.1, seed=seed)]

    assert groups(corpus, 0) == groups(mixed, 0)
    assert groups(corpus, 0) != groups(corpus, 1)


def test_by_date_the_oldest_are_d0_and_the_newest_come_last() -> None:
    parts = split_by_date(numbered(20), "year", new=2, share=0.2)
    assert [sorted(int(d.metadata["year"]) for d in part.documents) for part in parts] == [
        list(range(1900, 1912)),
        list(range(1912, 1916)),
        list(range(1916, 1920)),
    ]


def test_iso_times_with_zones_are_compared_as_moments() -> None:
    documents = [
        Document("late", "x", "", {"at": "2024-01-01T01:00:00+00:00"}),
        Document("early", "x", "", {"at": "2024-01-01T01:30:00+02:00"}),
    ]
    parts = split_by_date(Corpus(documents), "at", new=1, share=0.5)
    assert [part.documents[0].docid for part in parts] == ["early", "late"]


def test_by_value_one_corpus_per_value_in_order_of_appearance() -> None:
    parts = split_by_value(numbered(6), "kind")
    assert [[document.docid for document in part.documents] for part in parts] == [["d0", "d2", "d4"], ["d1", "d3", "d5"]]


@pytest.mark.parametrize(
    ("field", "says"),
    [("missing", "document 'd0' has no field 'missing'; its fields are: kind, year"), ("kind", "expected a date like")],
)
def test_a_field_that_cannot_split_is_refused(field: str, says: str) -> None:
    with pytest.raises(PromptDSIError, match=says):
        split_by_date(numbered(20), field, new=1, share=0.5)


def test_a_query_with_documents_in_two_corpora_goes_to_the_later_one() -> None:
    corpus = Corpus(
        [Document("a", "x", "", {"when": "1"}), Document("b", "y", "", {"when": "2"})],
        [Query("both", "x or y")],
        {"train": [Judgement("both", "a"), Judgement("both", "b")]},
    )
    first, second = split_by_value(corpus, "when")
    assert (first.queries, first.qrels) == ([], {})
    assert second.qrels == {"train": [Judgement("both", "b")]}


def test_limit_takes_a_seeded_sample_with_its_queries() -> None:
    corpus = numbered(50)
    chosen = sample(corpus, 10, seed=3)
    assert len(chosen) == len(chosen.queries) == len(chosen.qrels["train"]) == 10
    assert chosen == sample(corpus, 10, seed=3) != sample(corpus, 10, seed=4)
    assert sample(corpus, 99, seed=0) == corpus


def test_the_same_command_gives_the_same_bytes_and_says_so(run: Any, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        assert run("data", "demo", "-o", folder, "--new", "3", "--share", "0.05", "--seed", "7").returncode == 0
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    before = tree(tmp_path / "one")
    assert run("data", "demo", "-o", "one", "--new", "3", "--share", "0.05", "--seed", "7").returncode == 0
    assert tree(tmp_path / "one") == before
    manifest = json.loads((tmp_path / "one/stream.json").read_text())
    assert set(manifest["sha256"]) == set(before) - {"stream.json"}
    assert [entry["documents"] for entry in manifest["corpora"]] == [298, 18, 18, 18]


def test_another_stream_is_replaced_only_with_overwrite(run: Any, tmp_path: Path) -> None:
    assert run("data", "demo", "-o", "s").returncode == 0
    refused = run("data", "demo", "-o", "s", "--seed", "1", "--new", "1")
    assert refused.returncode == 1 and "--overwrite replaces it" in refused.stderr
    assert run("data", "demo", "-o", "s", "--seed", "1", "--new", "1", "--overwrite").returncode == 0
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["d0", "d1", "stream.json"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    assert run("data", "demo", "-o", "mine", "--overwrite").returncode == 1
    assert (tmp_path / "mine/thesis.txt").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "s"]


def test_overwriting_never_deletes_what_is_not_ours(run: Any, tmp_path: Path) -> None:
    run("data", "demo", "-o", "s")
    (tmp_path / "s/thesis.txt").write_text("years of work")
    refused = run("data", "demo", "-o", "s", "--new", "1", "--overwrite")
    assert refused.returncode == 1 and "s/thesis.txt: is not part of the stream" in refused.stderr
    assert (tmp_path / "s/thesis.txt").exists() and (tmp_path / "s/d4/corpus.jsonl").exists()


def test_pseudo_queries_added_since_survive_the_same_command(run: Any, tmp_path: Path) -> None:
    assert run("data", "demo", "-o", "s").returncode == 0
    assert run("queries", "s/d1").returncode == 0
    before = tree(tmp_path / "s")
    assert run("data", "demo", "-o", "s").returncode == 0
    assert tree(tmp_path / "s") == before
    assert open_stream(tmp_path / "s").corpora[1].counts()["pseudo"] == 100
    queries = (tmp_path / "s/d1/queries.jsonl").read_text()
    (tmp_path / "s/d1/queries.jsonl").write_text(queries.replace("why", "how", 1))  # an old query changed, not added
    with pytest.raises(DataError, match=r"d1/queries\.jsonl: is missing or differs"):
        open_stream(tmp_path / "s")


@pytest.mark.parametrize("call", ["rename", "fsync", "mkstemp"])
def test_a_failure_at_any_step_leaves_the_old_stream_whole(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The k-th rename, sync or new file fails, for every k: the folder holds the old stream or the new one, nothing else."""
    import os
    import tempfile

    old, new = (build_stream("demo", Request(), limit=30, new=1, share=0.2 + 0.1 * n) for n in range(2))
    target = tmp_path / "s"
    old.write(target)
    states = [tree(target)]
    new.write(tmp_path / "other")
    states.append(tree(tmp_path / "other"))
    module: Any = tempfile if call == "mkstemp" else os
    real = getattr(module, call)
    for fatal in range(1, 100):
        count = itertools.count(1)

        def faulty(*arguments: Any, fatal: int = fatal, count: Any = count, **keywords: Any) -> Any:
            if next(count) == fatal:
                raise OSError(28, "No space left on device")
            return real(*arguments, **keywords)

        monkeypatch.setattr(module, call, faulty)
        try:
            new.write(target, overwrite=True)
            finished = True
        except OSError:
            finished = False
        monkeypatch.setattr(module, call, real)
        assert tree(target) in states
        assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "s"]
        if finished and next(count) <= fatal:  # the fault was never reached
            assert tree(target) == states[1] and fatal > 1
            return
        if tree(target) == states[1]:
            old.write(target, overwrite=True)
    pytest.fail("never ran through")


def test_what_a_killed_process_left_is_removed_and_an_old_stream_moved_back(tmp_path: Path) -> None:
    stream = build_stream("demo", Request(), limit=30, new=1, share=0.2)
    stream.write(tmp_path / "s")
    deleted = 2**22 + 1  # no such process
    (tmp_path / "s").rename(tmp_path / f".s.building-{deleted}.old")
    (tmp_path / f".s.building-{deleted}").mkdir()
    (tmp_path / f".s.building-{deleted}/d0").mkdir()
    stream.write(tmp_path / "s")
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_link_and_the_current_folder_are_fine_as_output(run: Any, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert run("data", "demo", "-o", "link").returncode == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real/stream.json").is_file()


@pytest.mark.parametrize(
    "content", ['{"format": 1, "corpora": [3], "sha256": {}, "bytes": {}}', '{"format": 1, "corpora": [], "sha256": [], "bytes": {}}', "3"]
)
def test_a_strange_stream_json_is_one_error(content: str, tmp_path: Path) -> None:
    (tmp_path / "stream.json").write_text(content)
    with pytest.raises(DataError, match="is damaged"):
        open_stream(tmp_path)


def test_new_zero_makes_all_of_it_d0(run: Any, tmp_path: Path) -> None:
    assert run("data", "demo", "-o", "s", "--new", "0").returncode == 0
    assert [len(corpus) for corpus in open_stream(tmp_path / "s").corpora] == [352]


def test_a_changed_file_is_found_when_a_stream_is_read(run: Any, tmp_path: Path) -> None:
    run("data", "demo", "-o", "s")
    assert [len(corpus) for corpus in open_stream(tmp_path / "s").corpora] == [270, 20, 20, 22, 20]
    with (tmp_path / "s/d2/qrels/test.tsv").open("a") as file:
        file.write("\n")
    with pytest.raises(DataError, match=r"d2/qrels/test.tsv: is missing or differs"):
        open_stream(tmp_path / "s")
    (tmp_path / "s/stream.json").write_text('{"format": 99}')
    with pytest.raises(PromptDSIError, match="format 99; this release reads format 1"):
        open_stream(tmp_path / "s")
    (tmp_path / "s/stream.json").write_text("[1")
    with pytest.raises(DataError, match="is damaged"):
        open_stream(tmp_path / "s")


def test_the_table_is_printed_and_json_is_one_object(run: Any) -> None:
    shown = run("data", "demo", "-o", "s")
    assert "train queries" in shown.stdout and "d4" in shown.stdout and "total" in shown.stdout
    assert json.loads(run("data", "demo", "-o", "s", "--json", "--quiet").stdout)["name"] == "demo"
    assert run("data", "demo", "-o", "s", "--json", "--quiet").stderr == ""


def test_a_stream_keeps_the_documents_with_some_values_of_a_field() -> None:
    stream = build_stream("demo", Request(), keep={"subject": ["cooking", "weather"]}, new=2, share=0.1)
    documents = [document for corpus in stream.corpora for document in corpus.documents]
    assert {document.metadata["subject"] for document in documents} == {"cooking", "weather"}
    assert stream.split["keep"] == {"subject": ["cooking", "weather"]}
    assert {pair.docid for corpus in stream.corpora for pair in corpus.pairs("test")} <= {document.docid for document in documents}
    with pytest.raises(UsageError, match="no document has 'subject' among nothing"):
        build_stream("demo", Request(), keep={"subject": ["nothing"]})
