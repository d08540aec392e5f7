"""An index on a Ray cluster: two nodes on the loopback address, the same docids and the same bits as one process, also after losses."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import served
import sharded
import small
from ray_nodes import Nodes, kill_shard, process_ids

from promptdsi import Corpus, DataError, Document, Index, PromptDSIError
from promptdsi.index.old_rows import RowsInShards
from promptdsi.index.results import SearchRequest
from promptdsi.index.store import Store

pytest.importorskip("ray", reason="the extra promptdsi[ray] is not installed")
pytestmark = [
    pytest.mark.alone,  # nodes that get no processor time are taken for lost
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*", "ignore::DeprecationWarning:ray.*", "ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    try:
        yield nodes
    finally:
        nodes.shut_down()


@pytest.fixture(scope="module")
def place(corpora: list[Corpus], backbone: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with sharded.parts_of(9):
        return sharded.build(tmp_path_factory.mktemp("on-ray") / "index", corpora, backbone, keep_queries=True, keep_probes=4)


@pytest.fixture(scope="module")
def on_cluster(place: Path, nodes: Nodes) -> Index:
    return Index.open(place, device="cpu", on=nodes.url)


REQUESTS = [
    SearchRequest(query, k, explain, where=where)
    for query, k, explain, where in zip(
        sharded.QUERIES * 2, [1, 3, 10, 40] * 3, [False] * 9 + [True] * 3, (sharded.FILTERS * 3)[: 2 * len(sharded.QUERIES)], strict=True
    )
]


def test_search_filters_ties_explanations_and_older_generations_are_those_of_one_process(place: Path, on_cluster: Index) -> None:
    local = Index.open(place, device="cpu")
    assert len(set(process_ids(on_cluster)) - {os.getpid()}) == 3
    assert on_cluster.search_batch(REQUESTS) == local.search_batch(REQUESTS)
    assert on_cluster.facets() == local.facets() and on_cluster.get("tie-3") == local.get("tie-3")
    past, expected = on_cluster.reopen(at=2), local.reopen(at=2)
    assert past.search(sharded.QUERIES, k=40) == expected.search(sharded.QUERIES, k=40) != local.search(sharded.QUERIES, k=40)
    with pytest.raises(PromptDSIError, match="is deleted"):
        on_cluster.get("tie-9")


def test_rows_alone_and_ranks_are_those_of_one_process(corpora: list[Corpus], backbone: str, nodes: Nodes, tmp_path: Path) -> None:
    path = sharded.build(tmp_path / "index", corpora, backbone, words=False)
    local, far = (Index.open(path, device="cpu", on=on) for on in (None, nodes.url))
    assert far.search_batch(REQUESTS) == local.search_batch(REQUESTS)
    vectors, queries = local.opened.encoder.encode(sharded.QUERIES).vectors, sharded.QUERIES
    rows = [list(range(0, 20, number + 1)) for number in range(len(queries))]
    ranks = [[each.tolist() for each in index.opened.passages.ranks(vectors, queries, rows, ("color=green",))] for index in (local, far)]
    assert ranks[0] == ranks[1]


def test_commands_print_the_same_on_a_cluster(place: Path, corpora: list[Corpus], nodes: Nodes, run: Any, tmp_path: Path) -> None:
    corpora[0].write(tmp_path / "d0")
    corpora[1].write(tmp_path / "d1")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "tea.txt").write_text("Green tea leaves.")
    paths = [small.copied(place, tmp_path / name / "index") for name in ("local", "far")]
    shards = Index.open(paths[1], device="cpu", on=nodes.url)  # kept for all commands: they start none of their own
    for words in (
        ["search", *sharded.QUERIES, "-k", "5", "--device", "cpu"],
        ["eval", tmp_path / "d0", "--split", "train", "--device", "cpu"],
        ["add", tmp_path / "d1", "--device", "cpu", "--keep-probes", "2"],
        ["sync", tmp_path / "notes", "--device", "cpu"],
        ["delete", "tie-1", "later-3"],
        ["undelete", "tie-1"],
        ["teach", "where do boats wait", "later-4"],
        ["purge", "later-3"],
    ):
        results = []
        for path, more in zip(paths, ([], ["--on", nodes.url]), strict=True):
            outcome = run(words[0], path, *words[1:], "--json", *more)
            assert outcome.returncode == 0, outcome.stderr
            lines = [json.loads(line) for line in outcome.stdout.splitlines()]
            results.append([{key: value for key, value in line.items() if key != "seconds"} for line in lines])
        assert results[0] == results[1] != []
    assert shards.refresh() and shards.generation == 11
    expected, hits = (Index.open(path, device="cpu").search(sharded.QUERIES, k=50) for path in paths)
    for one_process, cluster in zip(expected, hits, strict=True):
        assert {hit.docid: hit.score for hit in cluster} == pytest.approx({hit.docid: hit.score for hit in one_process}, rel=1e-5, abs=1e-6)
    assert shards.search(sharded.QUERIES, k=50) == hits and shards.verify().problems == []


def test_runs_of_an_experiment_on_nodes_are_those_of_this_process(nodes: Nodes, run: Any, tmp_path: Path) -> None:
    main = Path(__file__).parents[2] / "experiments" / "main.toml"
    ranks = []
    for name, more in (("here", []), ("nodes", ["--on", nodes.url])):
        common = ["--scale", "tiny", "--results", tmp_path / name, "--offline", "--json", "--only", "BM25", "--only", "Rows only"]
        outcome = run("bench", "run", main, *common, *more)
        assert outcome.returncode == 0, outcome.stderr
        assert json.loads(outcome.stdout)["runs"] == len(json.loads(outcome.stdout)["written"]) == 2
        ranks.append({path.name: json.loads(path.read_text())["ranks"] for path in (tmp_path / name / "runs").glob("*.json")})
    assert ranks[0] == ranks[1] and len(ranks[0]) == 3  # two runs and their D0


def test_shards_follow_new_generations_together(place: Path, on_cluster: Index) -> None:
    far, writer, processes = on_cluster, Index.open(place, device="cpu"), process_ids(on_cluster)
    before = far.search(sharded.QUERIES)
    writer.add(Corpus([Document("newest", sharded.TIED)], name="newest"), fast=True)
    assert far.search(sharded.QUERIES) == before  # an opened generation stays what it is
    writer.purge(["tie-5"])
    assert far.refresh() and far.generation == writer.generation
    assert far.search(sharded.QUERIES, k=40) == writer.search(sharded.QUERIES, k=40) != before
    assert far.delete("newest").number == far.generation  # written by this process, followed by the shards
    assert not far.search("newest", where="docid=newest")
    assert process_ids(far) == processes  # the same processes opened every generation


def test_a_shard_verifies_its_files_before_it_answers(place: Path, nodes: Nodes, tmp_path: Path) -> None:
    path = small.copied(place, tmp_path / "index")
    rows = path / "blobs" / Index.open(path, check=False).manifest.corpora[1].rows
    content = bytearray(rows.read_bytes())
    content[-1] ^= 1
    rows.write_bytes(content)
    with pytest.raises(DataError, match="is damaged") as error:
        Index.open(path, device="cpu", on=nodes.url.replace("shards=3", "shards=1"))
    assert error.value.path == rows


def test_a_server_says_which_shards_answer(place: Path, nodes: Nodes) -> None:
    with served.serving(place, on=nodes.url) as server:
        assert server.search("green tea leaves", k=3)["results"][0]["hits"] == [
            json.loads(json.dumps(hit.to_dict())) for hit in Index.open(place, device="cpu").search("green tea leaves", k=3)
        ]
        served.wait_until(lambda: "promptdsi_shards_ready 3.0" in server.client.get("/metrics").text)
        assert server.client.get("/readyz").status_code == 200
        os.kill(process_ids(server.app.state.service.live.newest)[0], signal.SIGKILL)
        served.wait_until(lambda: "1 of 3 shards do not answer" in server.client.get("/readyz").text)
        served.wait_until(lambda: server.client.get("/readyz").status_code == 200)


def search_during(index: Index, loss: Callable[[], None], recovered: Callable[[], bool], seconds: float) -> float:
    """Search while something is lost, and return how long the slowest answer took; every answer must be the right one."""
    expected, slowest = index.search_batch(REQUESTS[:4]), 0.0
    thread = threading.Timer(0.2, loss)
    thread.start()
    end = time.monotonic() + seconds
    while True:
        started = time.monotonic()
        try:
            assert index.search_batch(REQUESTS[:4]) == expected
        except PromptDSIError as error:
            assert "did not answer" in str(error)  # no answer is allowed, a wrong one or a part of one is not
        else:
            slowest = max(slowest, time.monotonic() - started)
            if not thread.is_alive() and recovered():
                return slowest
        assert time.monotonic() < end


def test_a_shard_killed_while_searching_adding_purging_or_following_changes_no_answer(
    on_cluster: Index, place: Path, corpora: list[Corpus], nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = process_ids(on_cluster)
    slowest = search_during(on_cluster, lambda: os.kill(before[0], signal.SIGKILL), lambda: process_ids(on_cluster)[0] != before[0], 60)
    assert process_ids(on_cluster)[1:] == before[1:]
    local, path = (small.copied(place, tmp_path / name) for name in ("local", "far"))
    far, writer = Index.open(path, device="cpu", on=nodes.url), Index.open(local, device="cpu")
    log_sum_exp, commit = RowsInShards.log_sum_exp, Store.commit

    def killed_before(method: Any, number: int) -> Any:
        def call(*arguments: Any) -> Any:
            monkeypatch.undo()  # once
            kill_shard(far, number)
            return method(*arguments)

        return call

    monkeypatch.setattr(RowsInShards, "log_sum_exp", killed_before(log_sum_exp, 1))
    assert far.add(corpora[1]).generation == writer.add(corpora[1]).generation
    far.search("tea")
    monkeypatch.setattr(Store, "commit", killed_before(commit, 2))
    assert far.purge(["later-4"]).number == writer.purge(["later-4"]).number
    for expected, hits in zip(writer.search(sharded.QUERIES, k=50), far.search(sharded.QUERIES, k=50), strict=True):
        assert {hit.docid: hit.score for hit in hits} == pytest.approx({hit.docid: hit.score for hit in expected}, rel=1e-5, abs=1e-6)
    Index.open(path, device="cpu").delete("tie-4")  # another process writes; the shards follow, one of them killed meanwhile
    kill_shard(far, 0)
    assert far.refresh() and far.search(sharded.QUERIES, k=50) == Index.open(path, device="cpu").search(sharded.QUERIES, k=50)
    assert far.verify().problems == []
    print(f"slowest answer with a shard killed: {slowest:.1f} s")


def test_a_node_lost_while_searching_and_adding_changes_no_answer(
    on_cluster: Index,
    place: Path,
    corpora: list[Corpus],
    nodes: Nodes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    import ray

    local, path = (small.copied(place, tmp_path / name) for name in ("local", "far"))
    far, log_sum_exp, lost = Index.open(path, device="cpu", on=nodes.url), RowsInShards.log_sum_exp, threading.Event()

    def waiting(*arguments: Any) -> Any:
        assert lost.wait(60)
        return log_sum_exp(*arguments)

    def lose() -> None:
        nodes.lose_one()
        lost.set()

    monkeypatch.setattr(RowsInShards, "log_sum_exp", waiting)
    adding = threading.Thread(target=far.add, args=[corpora[1]])
    adding.start()
    slowest = search_during(
        on_cluster, lose, lambda: sum(node["Alive"] for node in ray.nodes()) == 1 and all(on_cluster.opened.shards_ready()), 120
    )
    adding.join(60)
    assert capfd.readouterr().out == ""  # results go there, and nothing that Ray has to tell
    writer = Index.open(local, device="cpu")
    writer.add(corpora[1])
    assert far.generation == writer.generation
    for expected, hits in zip(writer.search(sharded.QUERIES, k=50), far.search(sharded.QUERIES, k=50), strict=True):
        assert {hit.docid: hit.score for hit in hits} == pytest.approx({hit.docid: hit.score for hit in expected}, rel=1e-5, abs=1e-6)
    print(f"slowest answer with a node lost: {slowest:.1f} s")
