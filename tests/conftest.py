"""What tests share: small corpora, a way to run the command line, and a network that is not there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from promptdsi import Corpus, Document, Judgement, Query

# A plain `make test` looks at a few dozen cases a property, the same each time; `make soak` at many thousands, new each time.
settings.register_profile(
    "promptdsi",
    max_examples=int(os.environ.get("PROMPTDSI_EXAMPLES", "60")),
    derandomize="PROMPTDSI_EXAMPLES" not in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("promptdsi")


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


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Run `promptdsi` as a user does, in an empty folder, and give what it printed and its exit code."""

    def command(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, "-m", "promptdsi", *map(str, words)]
        return subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, env=os.environ | environment, check=False)

    return command


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to open a socket fails the test."""

    def refuse(*arguments: object, **keywords: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
