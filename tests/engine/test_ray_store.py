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

from promptdsi import Corpus, DataError, Document, Index, PromptDSIError
from promptdsi.index.results import SearchRequest

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # no reports; loopback only
pytest.importorskip("ray", reason="the extra promptdsi[ray] is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:ray.*", "ignore::DeprecationWarning:ray.*", "ignore::ResourceWarning")
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}


class Nodes:
    """Two nodes of a cluster, of which the second can be lost."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster()
        self._add(include_dashboard=False)
        self.second = self._add()
        self.url = f"ray://{self.cluster.address}?shards=3"

    def _add(self, **options: Any) -> Any:
        """Start a node. Ray gives it thirty seconds, which on a busy machine may not be enough the first time."""
        for _ in range(3):
            try:
                return self.cluster.add_node(**NODE, **options)
            except Exception as error:
                problem = error
        raise problem

    def lose_one(self) -> None:
        self.cluster.remove_node(self.second, allow_graceful=False)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    import ray

    nodes = Nodes()
    try:
        yield nodes
    finally:
        ray.shutdown()
        nodes.cluster.shutdown()


@pytest.fixture(scope="module")
def place(corpora: list[Corpus], backbone: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sharded.build(tmp_path_factory.mktemp("on-ray") / "index", corpora, backbone, keep_queries=True)


@pytest.fixture(scope="module")
def on_cluster(place: Path, nodes: Nodes) -> Index:
    return Index.open(place, device="cpu", on=nodes.url)


def process_ids(index: Index) -> list[int]:
    import ray

    return ray.get([actor.process_id.remote() for actor in index.opened.passages.shards.actors])  # type: ignore[attr-defined]


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


def test_commands_print_the_same_on_a_cluster(place: Path, corpora: list[Corpus], nodes: Nodes, run: Any, tmp_path: Path) -> None:
    corpora[0].write(tmp_path / "d0")
    for words in (["search", place, *sharded.QUERIES, "-k", "5"], ["eval", place, tmp_path / "d0", "--split", "train"]):
        local, far = (run(*words, "--json", "--device", "cpu", *more) for more in ([], ["--on", nodes.url]))
        assert far.returncode == 0, far.stderr
        assert far.stdout == local.stdout != ""


def test_shards_follow_new_generations_together(place: Path, on_cluster: Index) -> None:
    far, writer = on_cluster, Index.open(place, device="cpu")
    before = far.search(sharded.QUERIES)
    writer.add(Corpus([Document("newest", sharded.TIED)], name="newest"), fast=True)
    assert far.search(sharded.QUERIES) == before  # an opened generation stays what it is
    writer.purge(["tie-5"])
    assert far.refresh() and far.generation == writer.generation
    assert far.search(sharded.QUERIES, k=40) == writer.search(sharded.QUERIES, k=40) != before
    assert far.delete("newest").number == far.generation  # written by this process, followed by the shards
    assert not far.search("newest", where="docid=newest")


def test_a_shard_verifies_its_files_before_it_answers(place: Path, nodes: Nodes, tmp_path: Path) -> None:
    path = small.copied(place, tmp_path / "index")
    rows = path / "blobs" / Index.open(path, check=False).manifest.corpora[1].rows
    content = bytearray(rows.read_bytes())
    content[-1] ^= 1
    rows.write_bytes(content)
    with pytest.raises(DataError, match="is damaged") as error:
        Index.open(path, device="cpu", on=nodes.url.replace("shards=3", "shards=1"))
    assert error.value.path == rows


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


def test_a_killed_shard_and_a_lost_node_give_no_wrong_answer(on_cluster: Index, nodes: Nodes, capfd: pytest.CaptureFixture[str]) -> None:
    before = process_ids(on_cluster)
    shard = search_during(on_cluster, lambda: os.kill(before[0], signal.SIGKILL), lambda: process_ids(on_cluster)[0] != before[0], 120)
    after = process_ids(on_cluster)
    assert after[1:] == before[1:]
    import ray

    node = search_during(
        on_cluster, nodes.lose_one, lambda: sum(entry["Alive"] for entry in ray.nodes()) == 1 and all(on_cluster.opened.shards_ready()), 180
    )
    assert set(process_ids(on_cluster)) != set(after)
    assert capfd.readouterr().out == ""  # results go there, and nothing that Ray has to tell
    print(f"slowest answer: {shard:.1f} s with a shard killed, {node:.1f} s with a node lost")
