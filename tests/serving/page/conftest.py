"""The browser and the servers of the page's tests.

Chromium comes with the system (`apt-get install chromium`). Without it these tests are skipped, except where CI or
PROMPTDSI_NEED_BROWSER=1 says that they must run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import served
import small
from browsing import (
    HOSTILE,
    IMAGE,
    LINK,
    LONG,
    SCRIPT,
    VECTOR,
    Visitor,
)
from playwright.sync_api import Browser, expect, sync_playwright

from promptdsi import Corpus, Document, Index, Judgement, Query
from promptdsi.serving.access import Access

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        missing = "there is no Chromium to look at the page with: apt-get install chromium"
        if os.environ.get("CI") or os.environ.get("PROMPTDSI_NEED_BROWSER") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    expect.set_options(timeout=60_000)  # milliseconds: slack for a busy machine
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visitor]:
    """Comes after the server among a test's arguments, so that pages close while it still answers."""
    visitor = Visitor(browser)
    with visitor.open:
        yield visitor
    assert visitor.complaints == []


@pytest.fixture(scope="module")
def server(original: Path, corpora: list[Corpus], tmp_path_factory: pytest.TempPathFactory) -> Iterator[served.Served]:
    """A read-only server with recorded evaluations."""
    path = small.copied(original, tmp_path_factory.mktemp("page") / "index")
    for at in (1, 2):
        for corpus in corpora[:at]:
            Index.open(path, at=at, device="cpu").evaluate(corpus, record=True)
    with served.serving(path) as running:
        yield running


@pytest.fixture
def locked(place: Path) -> Iterator[served.Served]:
    """A server that wants a token for reading too."""
    with served.serving(place, access=Access(read=served.READ, write=served.WRITE, allow_write=True)) as running:
        yield running


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[served.Served]:
    """An index whose every text wants to run: names, titles, texts, docids, metadata, kept queries, its own folder."""
    documents = [
        Document(f"{text} {LINK}", f"{text} water {IMAGE} tea {VECTOR}", f"{text} title", {IMAGE: text, "onclick": [SCRIPT]})
        for text in HOSTILE
    ]
    documents.append(Document(LONG, f"{LONG} water", LONG))
    queries = [Query(f"q{place}", f"{document.title} water") for place, document in enumerate(documents)]
    query_ranks = [Judgement(query.queryid, document.docid) for query, document in zip(queries, documents, strict=True)]
    corpus = Corpus(documents, queries, {"train": query_ranks, "test": query_ranks}, name=IMAGE)
    folder = tmp_path_factory.mktemp("hostile")
    index = small.create(folder / IMAGE, corpus, small.backbone(folder / "backbone", [corpus]), keep_queries=True)
    index.evaluate(corpus, record=True)
    with served.serving(folder / IMAGE) as running:
        yield running
