"""Shared fixtures: small corpora, a way to run the command line, a forbidden network; and tests that run alone."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

from promptdsi import Corpus, Document, Judgement, Query

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: a second thread only waits. Before anything imports torch

# A plain `make test` looks at a few dozen cases a property, the same each time; `make soak` at many thousands, new each time.
settings.register_profile(
    "promptdsi",
    max_examples=int(os.environ.get("PROMPTDSI_EXAMPLES", "30")),
    derandomize="PROMPTDSI_EXAMPLES" not in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("promptdsi")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Among several workers, run a test marked `alone` while no other test runs."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    folder = item.config._tmp_path_factory.getbasetemp().parent  # of this run; all workers share it
    with open(folder / "gate", "a") as gate, open(folder / "lock", "a") as lock:
        # Every test passes the gate first. One that waits for the lock keeps the gate closed, so that no other test starts.
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(lock, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        return (yield)


@pytest.fixture
def small() -> Corpus:
    """Three documents, four queries, all three splits."""
    documents = [
        Document("d1", "Tea is brewed with fresh water just off the boil.", "Tea", {"date": "2021-03-01", "domain": "kitchen"}),
        Document(
            "d2", "A lock lifts boats from one level of a canal to the next.", "Canal locks", {"date": "2020-01-01", "domain": "water"}
        ),
        Document("d3", "Owls hunt at night and fly without a sound.", "Owls", {"date": "2022-07-09", "domain": "wild"}),
    ]
    queries = [
        Query("q1", "how hot for tea"),
        Query("q2", "boat lift canal"),
        Query("q3", "silent bird"),
        Query("q4", "tea water", "pseudo"),
    ]
    qrels = {
        "train": [Judgement("q1", "d1"), Judgement("q4", "d1"), Judgement("q2", "d2")],
        "dev": [Judgement("q2", "d3", 0)],
        "test": [Judgement("q3", "d3")],
    }
    return Corpus(documents, queries, qrels, name="small")


class Outcome(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `promptdsi` as a user does, in an empty folder, and give what it printed and its exit code.

    In this process, because starting Python a hundred times would be most of the time the tests take; the packaging and
    interruption tests start real ones.
    """
    from promptdsi.cli.main import app

    def command(*words: str | Path, **environment: str) -> Outcome:
        stdout, stderr = io.StringIO(), io.StringIO()
        with monkeypatch.context() as patch, contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            patch.chdir(tmp_path)
            for name, value in environment.items():
                patch.setenv(name, value)
            try:
                app([str(word) for word in words], prog_name="promptdsi")
                code = 0
            except SystemExit as stop:
                code = int(stop.code or 0)
        return Outcome(code, stdout.getvalue(), stderr.getvalue())

    return command


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to open a socket fails the test."""

    def refuse(*arguments: object, **keywords: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(scope="session")
def corpora() -> list[Corpus]:
    import small as small_index

    return small_index.stream()


@pytest.fixture(scope="session")
def backbone(corpora: list[Corpus], tmp_path_factory: pytest.TempPathFactory) -> str:
    import small as small_index

    return small_index.backbone(tmp_path_factory.mktemp("backbone"), corpora)


@pytest.fixture(scope="session")
def original(corpora: list[Corpus], backbone: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with D0 and D1, not to be changed: tests copy it."""
    import small as small_index

    path = tmp_path_factory.mktemp("original") / "index"
    index = small_index.create(path, corpora[0], backbone, keep_queries=True)
    index.add(corpora[1])
    return path


@pytest.fixture
def place(original: Path, tmp_path: Path) -> Path:
    """A copy of the small index."""
    import small as small_index

    return small_index.copied(original, tmp_path / "index")


@pytest.fixture(scope="module")
def path(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the small index for the servers of a test file."""
    import small as small_index

    return small_index.copied(original, tmp_path_factory.mktemp("served") / "index")


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Any]:
    """A server nobody writes to."""
    import served

    with served.serving(path) as running:
        yield running


@pytest.fixture
def writable(place: Path) -> Iterator[Any]:
    """A server of a test's own, to write to."""
    import served

    with served.serving(place) as running:
        yield running
