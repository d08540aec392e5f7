"""An index on a Ray cluster of two hosts with a network between them, token and TLS, as docs/cluster.md describes: see `ray_hosts`."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray_nodes  # noqa: F401  # before Ray, which reads its environment when it is imported: the other tests' nodes are on loopback
import sharded
from ray_hosts import ADDRESSES, Host, end, two_hosts

from promptdsi import Corpus

pytest.importorskip("ray", reason="the extra promptdsi[ray] is not installed")
pytestmark = [
    pytest.mark.alone,  # nodes that get no processor time are taken for lost
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*", "ignore::DeprecationWarning:ray.*", "ignore::ResourceWarning"),
]
ON = ["--on", f"ray://{ADDRESSES[0]}:6379?shards=3"]
JSON = ["--json", "--device", "cpu"]
# A little more patient than what docs/cluster.md offers: a silent host is taken for lost after some fifteen seconds, not after a minute.
HEALTH = {"RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "2000", "RAY_health_check_failure_threshold": "5"}


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with two_hosts(**HEALTH) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def place(corpora: list[Corpus], backbone: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with sharded.parts_of(9):
        return sharded.build(tmp_path_factory.mktemp("on-hosts") / "index", corpora, backbone)


def is_sentence(error: str) -> bool:
    return error.startswith("error: ") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("number", "options"),
    [(0, ["-k", "3", "--where", "color=green", "--where", "number>=1"]), (1, ["-k", "40", "--at", "2"])],
    ids=["on the head with a filter", "on the other host at an older generation"],
)
def test_a_search_on_either_host_prints_what_one_process_prints(
    place: Path, hosts: list[Host], run: Any, number: int, options: list[str]
) -> None:
    words = ["search", place, *sharded.QUERIES, *JSON, *options]
    far, local, newest = hosts[number].promptdsi(*words, *ON), run(*words), run("search", place, *sharded.QUERIES, *JSON, "-k", "40")
    assert (far.returncode, far.stdout, far.stderr) == (0, local.stdout, local.stderr)
    assert far.stdout.count("docid") > len(sharded.QUERIES) and far.stdout != newest.stdout


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"RAY_AUTH_TOKEN_PATH": ""}, "no authentication token was found"),
        ({"RAY_AUTH_TOKEN_PATH": "", "RAY_AUTH_TOKEN": "0" * 64}, "Authentication token is missing or incorrect"),
        ({"RAY_TLS_SERVER_CERT": "other.crt", "RAY_TLS_SERVER_KEY": "other.key"}, "the head refuses this machine's certificate"),
        ({"RAY_TLS_CA_CERT": "other.crt"}, "certificate verify failed"),
    ],
    ids=["no token", "another token", "certificate of another authority", "another authority"],
)
def test_a_client_without_the_secrets_is_refused(place: Path, hosts: list[Host], environment: dict[str, str], reason: str) -> None:
    stranger = {key: str(hosts[0].folder.parent / value) for key, value in environment.items() if value.startswith("other")}
    outcome = hosts[0].promptdsi("search", place, "tea", *JSON, *ON, **environment | stranger)
    lines = [line for line in outcome.stderr.splitlines() if "gcs_client.cc" not in line]  # Ray's own, of a token that is refused
    assert (outcome.returncode, outcome.stdout, len(lines)) == (1, "", 1), outcome.stderr
    assert lines[0].startswith("error: ") and reason in lines[0]


def test_shards_run_on_both_hosts_and_one_that_falls_silent_changes_no_answer(place: Path, hosts: list[Host], run: Any) -> None:
    query, options = "green tea leaves", ["-k", "40", *JSON]  # more than a shard has
    expected = run("search", place, query, *options).stdout
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    search = hosts[0].start(sys.executable, "-m", "promptdsi", "search", place, "-", *options, *ON, **pipes)
    guard = threading.Timer(120, end, [search])
    guard.start()
    try:
        search.stdin.write(f"{query}\n")
        search.stdin.flush()
        assert search.stdout.readline() == expected
        shards = [host.shard_count() for host in hosts]
        assert sum(shards) == 3 and all(shards)
        hosts[1].set_link("down")
        stdout, stderr = search.communicate(f"{query}\n")
    finally:
        guard.cancel()
        end(search)
    if search.returncode:  # 25 seconds were not enough to notice
        assert (search.returncode, stdout) == (1, "") and is_sentence(stderr) and "did not answer" in stderr
        again = hosts[0].promptdsi("search", place, query, *options, *ON)
        stdout, stderr = again.stdout, again.stderr
    assert stdout == expected, stderr
