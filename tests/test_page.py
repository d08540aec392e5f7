"""The page in a real browser against the real server: searching, explaining, travelling in time, writing, and nothing that a
document holds ever runs.

Chromium comes with the system (`apt-get install chromium`). Without it these tests are skipped, except where CI or
PROMPTDSI_NEED_BROWSER=1 says that they must run.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import psutil
import pytest
import served
import small
from playwright.sync_api import Browser, ConsoleMessage, FilePayload, Locator, Page, Request, Route, WebError, expect, sync_playwright

from promptdsi import Corpus, Document, Index, Judgement, Query
from promptdsi.serving.tokens import Access

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUERY, OTHER = small.QUERIES[1], small.QUERIES[2]
TOKEN = f"/#token={served.WRITE}"
VIEWS = {"search": [".hit"], "timeline": [".generations", ".series .mark"], "map": [".map"], "add": [".add"]}
SCRIPT, IMAGE, VECTOR, LINK = (
    "<script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    '"><svg onload=window.hacked=1>',
    "javascript:window.hacked=1",
)
HOSTILE = (SCRIPT, IMAGE, VECTOR, LINK)
LONG = "W" * 300


class Visitor:
    """Opens the page, each time in a browser that has never seen it, and writes down whatever the browser complains of."""

    def __init__(self, browser: Browser) -> None:
        self.browser, self.open, self.complaints = browser, contextlib.ExitStack(), list[str]()

    def __call__(self, server: served.Served, address: str = "/", *, failures: Sequence[int] = (), **options: Any) -> Page:
        """The page at an address. `failures` are the statuses that requests of this test end with on purpose."""
        context = self.open.enter_context(contextlib.closing(self.browser.new_context(reduced_motion="reduce", **options)))
        expected = tuple(f"Failed to load resource: the server responded with a status of {status} " for status in failures)

        def said(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning") and not message.text.startswith(expected):
                self.complaints.append(f"console: {message.text}")

        def broke(error: WebError) -> None:
            self.complaints.append(f"error: {error.error}")

        def asked(request: Request) -> None:
            if not request.url.startswith((f"{server.url}/", "data:")):
                self.complaints.append(f"another host: {request.url}")

        context.on("console", said)
        context.on("weberror", broke)
        context.on("request", asked)
        page = context.new_page()
        page.goto(server.url + address)
        return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        missing = "there is no Chromium to look at the page with: apt-get install chromium"
        if os.environ.get("CI") or os.environ.get("PROMPTDSI_NEED_BROWSER") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    expect.set_options(timeout=20_000)  # milliseconds: slack for a busy machine
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
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
    """A server nobody writes to, with recorded evaluations."""
    path = small.copied(original, tmp_path_factory.mktemp("page") / "index")
    for at in (1, 2):
        for corpus in corpora[:at]:
            Index.open(path, at=at, device="cpu").evaluate(corpus, keep=True)
    with served.serving(path) as running:
        yield running


@pytest.fixture
def writable(place: Path) -> Iterator[served.Served]:
    with served.serving(place) as running:
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
    judged = [Judgement(query.queryid, document.docid) for query, document in zip(queries, documents, strict=True)]
    corpus = Corpus(documents, queries, {"train": judged, "test": judged}, name=IMAGE)
    folder = tmp_path_factory.mktemp("hostile")
    index = small.create(folder / IMAGE, corpus, small.backbone(folder / "backbone", [corpus]), keep_queries=True)
    index.evaluate(corpus, keep=True)
    with served.serving(folder / IMAGE) as running:
        yield running


def ask(page: Page, query: str) -> None:
    """Type a query and wait for its own answer."""
    with page.expect_response(lambda answer: json.dumps(query) in (answer.request.post_data or "")):
        page.get_by_test_id("query").fill(query)
    expect(page.locator("body.searching")).to_have_count(0)


def titles(page: Page) -> Locator:
    return page.locator(".hit .title")


def names(index: Index, query: str, k: int = 10) -> list[str]:
    return [hit.title or hit.docid for hit in index.search(query, k=k)]


def file(name: str, content: str) -> FilePayload:
    return FilePayload(name=name, mimeType="application/octet-stream", buffer=content.encode())


def jsonl(documents: Sequence[Document]) -> str:
    return "".join(json.dumps({"_id": one.docid, "title": one.title, "text": one.text}) + "\n" for one in documents)


def show_tab(page: Page, tab: str) -> None:
    page.get_by_test_id(f"tab-{tab}").click()
    filled(page, tab)


def filled(page: Page, tab: str) -> None:
    """Wait until a view shows what it has to show: nothing will move by itself any more."""
    expect(page.locator("#size")).to_contain_text("generation")
    for part in VIEWS[tab]:
        expect(page.locator(part).first).to_be_visible()


def test_a_complaint_of_the_browser_would_be_noticed(server: served.Served, visit: Visitor) -> None:
    page = visit(server)
    page.evaluate("""() => {
        document.body.append(Object.assign(document.createElement("script"), {textContent: "window.hacked = 1"}));
        document.body.append(Object.assign(document.createElement("img"), {src: "http://example.invalid/picture.png"}));
        console.warn("something odd");
        setTimeout(() => { throw new Error("thrown"); });
    }""")
    page.wait_for_timeout(200)
    for part in ("script-src", "img-src", "another host: http://example.invalid", "console: something odd", "error: thrown"):
        assert part in "\n".join(visit.complaints)
    assert page.evaluate("window.hacked") is None
    visit.complaints.clear()


# Searching ----------------------------------------------------------------------------------------------------------------


def test_typing_shows_hits_as_the_index_ranks_them(server: served.Served, original: Path, visit: Visitor) -> None:
    page = visit(server)
    page.keyboard.type(QUERY)  # the box has focus from the start
    expected = Index.open(original, device="cpu").search(QUERY, k=10)
    expect(titles(page)).to_have_text([hit.title or hit.docid for hit in expected])
    expect(page.locator(".hit .docid")).to_have_text([hit.docid for hit in expected])
    expect(page.locator(".hit .badge")).to_have_text([f"{hit.corpus} generation {hit.since}" for hit in expected])
    shown = [float(text.replace("score ", "").replace("−", "-")) for text in page.locator(".hit .score .figure").all_text_contents()]
    assert shown == pytest.approx([hit.score for hit in expected], abs=0.0006)
    expect(page.locator("mark").first).to_have_text("water", ignore_case=True)
    expect(page.locator("#summary")).to_have_text("10 hits, generation 2.")


def test_more_hits_come_on_request(server: served.Served, original: Path, visit: Visitor) -> None:
    page = visit(server)
    ask(page, QUERY)
    page.get_by_role("button", name="Show more").click()
    expect(titles(page)).to_have_text(names(Index.open(original, device="cpu"), QUERY, 50))
    expect(titles(page).nth(10)).to_be_focused()


def test_the_address_holds_the_query_and_the_back_button_brings_it_back(server: served.Served, original: Path, visit: Visitor) -> None:
    index = Index.open(original, device="cpu")
    page = visit(server)
    ask(page, QUERY)
    assert parse_qs(urlsplit(page.url).query) == {"q": [QUERY]}
    page.get_by_test_id("query").press("Escape")
    expect(page.locator(".empty .lead")).to_have_text("24 documents can be found here.")
    ask(page, OTHER)
    page.go_back()
    expect(page.get_by_test_id("query")).to_have_value(QUERY)
    expect(titles(page)).to_have_text(names(index, QUERY))
    linked = visit(server, f"/?q={quote(OTHER)}&at=1")
    expect(titles(linked)).to_have_text(names(Index.open(original, at=1, device="cpu"), OTHER))
    expect(linked).to_have_title(f"{OTHER} – index")


def test_a_late_answer_never_covers_a_newer_one(server: served.Served, original: Path, visit: Visitor) -> None:
    page = visit(server)
    held: list[Route] = []
    page.route("**/api/search", lambda route: held.append(route) if QUERY in (route.request.post_data or "") else route.continue_())
    with page.expect_request("**/api/search"):
        page.get_by_test_id("query").fill(QUERY)
    ask(page, OTHER)
    expected = names(Index.open(original, device="cpu"), OTHER)
    expect(titles(page)).to_have_text(expected)
    held[0].continue_()
    page.wait_for_timeout(300)
    expect(titles(page)).to_have_text(expected)


def test_a_document_opens_whole(server: served.Served, corpora: list[Corpus], visit: Visitor) -> None:
    page = visit(server)
    ask(page, QUERY)
    known = {document.title: document for corpus in corpora for document in corpus.documents}[titles(page).first.inner_text()]
    titles(page).first.click()
    dialog = page.get_by_role("dialog", name=known.title)
    expect(dialog.locator(".text")).to_have_text(known.text)
    expect(dialog.locator("dd")).to_have_text([str(value) for value in known.metadata.values()])
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_be_hidden()


# Why ----------------------------------------------------------------------------------------------------------------------


def test_why_without_prompts_shows_the_nearest_query_and_neighbours(server: served.Served, original: Path, visit: Visitor) -> None:
    page = visit(server)
    ask(page, QUERY)
    why = Index.open(original, device="cpu").search(QUERY, k=10, explain=True)[0].why
    assert why is not None and why.query
    page.get_by_test_id("why").first.click()
    panel = page.get_by_test_id("why-panel").first
    expect(panel).to_contain_text("This index uses no prompts")
    expect(panel.locator("q")).to_have_text(why.query)
    expect(panel.locator("ol.neighbours button")).to_have_text([one.title for one in why.neighbours])
    panel.locator("ol.neighbours button").first.click()
    expect(page.get_by_role("dialog", name=why.neighbours[0].title)).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_test_id("why").first.click()
    expect(panel).to_be_hidden()


def test_why_with_prompts_shows_which_its_topic_and_the_rank_without_it(
    corpora: list[Corpus], backbone: str, tmp_path: Path, visit: Visitor
) -> None:
    index = small.create(tmp_path / "index", corpora[0], backbone, prompts="topic")
    index.add(corpora[1])
    with served.serving(tmp_path / "index") as running, visit.open:
        page = visit(running)
        ask(page, QUERY)
        for hit in index.search(QUERY, k=10, explain=True):
            page.get_by_test_id("why").nth(hit.rank - 1).click()
            panel, why = page.get_by_test_id("why-panel").nth(hit.rank - 1), hit.why
            assert why is not None and why.prompt is not None and why.similarity is not None
            expect(panel).to_contain_text(f"Number {why.prompt}, whose key is nearest to the query")
            shown = panel.locator("dd").first.locator(".figure").inner_text()
            assert float(shown.replace("similarity ", "").replace("−", "-")) == pytest.approx(why.similarity, abs=0.0006)
            expect(panel.locator(".words li")).to_have_text(why.topic)
            places = why.rank_without - hit.rank
            moved = f"so the prompt {'lifts' if places > 0 else 'lowers'} it by {abs(places)} place" if places else "the same"
            expect(panel).to_contain_text(f"Rank {why.rank_without}, {moved}")
        past = visit(running, f"/?q={quote(QUERY)}&at=1")
        past.get_by_test_id("why").first.click()
        expect(past.get_by_test_id("why-panel").first).to_contain_text("None was taken")  # there was none before the first addition


# Generations --------------------------------------------------------------------------------------------------------------


def test_the_past_can_be_searched_and_left_again(server: served.Served, original: Path, visit: Visitor) -> None:
    page = visit(server, TOKEN)
    ask(page, QUERY)
    expect(page.get_by_test_id("delete")).to_have_count(10)
    show_tab(page, "timeline")
    page.get_by_test_id("generation").first.click()
    expect(page.get_by_test_id("as-of")).to_contain_text("Searching as of generation 1; the index is now at 2.")
    show_tab(page, "search")
    expect(titles(page)).to_have_text(names(Index.open(original, at=1, device="cpu"), QUERY))
    expect(page.locator(".hit .badge")).to_have_text(["d0 generation 1"] * 10)
    expect(page.get_by_test_id("delete")).to_have_count(0)
    assert parse_qs(urlsplit(page.url).query)["at"] == ["1"]
    page.get_by_test_id("back-to-now").click()
    expect(page.get_by_test_id("as-of")).to_be_hidden()
    expect(titles(page)).to_have_text(names(Index.open(original, device="cpu"), QUERY))
    expect(page.get_by_test_id("delete")).to_have_count(10)
    assert "at" not in parse_qs(urlsplit(page.url).query)


def test_the_timeline_tells_every_kind_of_change(writable: served.Served, place: Path, corpora: list[Corpus], visit: Visitor) -> None:
    index = Index.open(place, device="cpu")
    first, second = (document.docid for document in corpora[0].documents[:2])
    index.add(corpora[2], fast=True)
    index.tune()
    index.delete([first, second])
    index.undelete(second)
    index.purge()
    known = corpora[1].documents[0]
    index.add(Corpus([known._replace(text=known.text + " And more."), *corpora[3].documents], name="corrected"), update=True)
    index.rollback(7)
    page = visit(writable, "/?tab=timeline")
    said = page.get_by_test_id("generation")
    expect(said).to_have_text(
        [
            re.compile(f"^Generation {number}{kind}{what}.*{documents} documents")
            for number, kind, what, documents in (
                (1, "create", "d0 21 added", 20),  # one of them has been erased from every generation by now
                (2, "add", "d1 3 added", 23),
                (3, "add", "d2 3 added", 26),
                (4, "tune", "rows trained", 26),
                (5, "delete", "2 deleted", 25),
                (6, "undelete", "1 shown again", 26),
                (7, "purge", "1 erased", 26),
                (8, "add", r"corrected 4 added \(1 replaced\)", 29),
                (9, "rollback", "equal to generation 7", 26),
            )
        ]
    )
    expect(said.last).to_have_attribute("aria-current", "true")
    expect(said.last).to_be_in_viewport()  # the newest is at the foot, and shown first


def test_retention_is_drawn_and_told_as_a_table(server: served.Served, visit: Visitor) -> None:
    page = visit(server, "/?tab=timeline")
    records = served_records(server)
    assert [(one["generation"], one["corpus"]) for one in records] == [(1, "d0"), (2, "d0"), (2, "d1")]
    for metric, label in (("hits10", "Hits@10"), ("hits1", "Hits@1")):
        page.get_by_text(label, exact=True).first.click()
        marks = page.locator(".series .mark")
        expect(marks).to_have_count(3)
        told = {mark.get_attribute("aria-label") for mark in marks.all()}
        assert told == {
            f"{one['corpus']}, generation {one['generation']}: {label} {one[metric] * 100:.1f} % of {one['n']} queries" for one in records
        }
    page.get_by_text("The same as a table").click()
    expect(page.locator("#retention tbody tr")).to_have_count(2)


def served_records(server: served.Served) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.client.get("/api/retention").json()["records"]
    return sorted(found, key=lambda one: (one["generation"], one["corpus"]))


def test_another_writers_generation_is_noticed_and_nothing_moves_under_the_readers_eyes(
    writable: served.Served, place: Path, visit: Visitor
) -> None:
    page, other = visit(writable), visit(writable, "/?tab=timeline")
    ask(page, QUERY)
    before = titles(page).all_inner_texts()
    other.get_by_test_id("generation").first.focus()
    Index.open(place, device="cpu").delete(page.locator(".hit .docid").first.inner_text())
    expect(page.locator("#size")).to_have_text("23 documents · generation 3")
    expect(page.locator("#live")).to_have_text("The index is now at generation 3.")
    assert titles(page).all_inner_texts() == before
    page.get_by_role("button", name="Search again").click()
    expect(titles(page).first).to_have_text(before[1])
    expect(other.get_by_test_id("generation")).to_have_count(3)
    expect(other.get_by_test_id("generation").first).to_be_focused()


# Writing ------------------------------------------------------------------------------------------------------------------


def test_json_lines_are_added_with_progress_that_a_reload_finds_again(
    writable: served.Served, corpora: list[Corpus], visit: Visitor
) -> None:
    page = visit(writable, f"/?tab=add#token={served.WRITE}")
    page.get_by_test_id("files").set_input_files(file("news.jsonl", jsonl(corpora[2].documents)))
    expect(page.locator(".add")).to_contain_text("3 documents in news.jsonl")
    expect(page.get_by_label("Name of the corpus")).to_have_value("news")
    page.get_by_test_id("start-add").click()
    expect(page.get_by_role("progressbar", name="Adding news")).to_be_visible()
    with held_worker():
        page.reload()
        expect(page.get_by_role("progressbar", name="Adding news")).to_be_visible()
        expect(page.get_by_test_id("progress")).to_be_in_viewport(ratio=1)
    report = page.get_by_test_id("report")
    expect(report).to_contain_text("news is in the index")
    expect(report.locator("dd").first).to_have_text("3")  # the generation
    expect(page.locator("#size")).to_have_text("27 documents · generation 3")
    ask(page, corpora[2].documents[0].title)
    page.get_by_role("button", name="Show more").click()
    added = page.locator(".hit", has_text=corpora[2].documents[0].docid)
    expect(added.locator(".badge")).to_have_text("news generation 3")


@contextlib.contextmanager
def held_worker() -> Iterator[None]:
    """The process that learns, stopped for a while: whatever happens meanwhile happens during a job."""
    end = time.monotonic() + 20
    while not (workers := [one for one in psutil.Process().children() if "promptdsi.serving.worker" in " ".join(one.cmdline())]):
        assert time.monotonic() < end
    workers[0].suspend()
    try:
        yield
    finally:
        workers[0].resume()


def test_text_files_are_added_with_their_names_and_headings(writable: served.Served, visit: Visitor) -> None:
    page = visit(writable, f"/?tab=add#token={served.WRITE}")
    page.get_by_test_id("files").set_input_files(
        [
            file("tea.txt", "Green tea wants water of 75 degrees."),
            file("canal.md", "# Canal locks\n\nA lock lifts boats from level to level."),
        ]
    )
    expect(page.locator(".add")).to_contain_text("2 documents in 2 files")
    page.get_by_label("Name of the corpus").fill("notes")
    page.get_by_label("Without training now (fast)").check()
    page.get_by_test_id("start-add").click()
    expect(page.get_by_test_id("report")).to_contain_text("notes is in the index")
    expect(page.get_by_test_id("report")).to_contain_text("The rows are not trained yet")
    expect(page.get_by_test_id("report")).to_be_in_viewport(ratio=1)
    expect(page.get_by_test_id("start-add")).to_be_disabled()  # nothing is left to send
    found = writable.client.get("/api/documents/canal.md").json()
    assert (found["title"], found["corpus"]) == ("Canal locks", "notes")
    assert writable.client.get("/api/documents/tea.txt").json()["title"] == ""


def test_a_mistake_in_a_file_is_shown_with_its_line_and_nothing_is_added(server: served.Served, visit: Visitor) -> None:
    page = visit(server, f"/?tab=add#token={served.WRITE}", failures=[422])
    page.get_by_test_id("files").set_input_files(file("broken.jsonl", '{"_id": "x", "text": "one"}\n{"_id": "y"\n'))
    page.get_by_test_id("start-add").click()
    expect(page.get_by_test_id("error")).to_contain_text("Line 2, column")
    expect(page.get_by_test_id("error")).to_contain_text("Nothing was added.")
    page.get_by_test_id("files").set_input_files(file("picture.png", "no text"))
    expect(page.get_by_test_id("error")).to_have_text("The file picture.png is neither .jsonl nor text.Files end in .jsonl, .txt or .md.")
    expect(page.get_by_test_id("start-add")).to_be_disabled()
    assert server.client.get("/api/jobs").json() == {"jobs": []}


def test_hits_that_come_before_anything_is_known_of_the_index_can_be_deleted_too(server: served.Served, visit: Visitor) -> None:
    page = visit(server, f"/?q={quote(QUERY)}")
    held: list[Route] = []
    page.route("**/api/index", lambda route: held.append(route))  # Playwright takes no built-in method
    page.reload()
    expect(titles(page)).to_have_count(10)
    expect(page.get_by_test_id("delete")).to_have_count(0)
    held[0].continue_()
    expect(page.get_by_test_id("delete")).to_have_count(10)


def test_deleting_and_undoing_by_keyboard_alone(writable: served.Served, visit: Visitor) -> None:
    page = visit(writable, TOKEN)
    page.keyboard.type(QUERY)
    expect(titles(page)).to_have_count(10)
    before = titles(page).all_inner_texts()
    for key in ("ArrowDown", "ArrowDown", "Tab", "Tab"):
        page.keyboard.press(key)
    expect(page.get_by_role("button", name=f"Delete {before[1]}")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("undo")).to_be_focused()
    expect(page.locator(".toast")).to_contain_text(f"Deleted {before[1]}.")
    expect(titles(page).nth(1)).to_have_text(before[2])
    expect(page.locator("#size")).to_have_text("23 documents · generation 3")
    page.keyboard.press("Enter")
    expect(titles(page)).to_have_text(before)
    expect(page.locator("#size")).to_have_text("24 documents · generation 4")
    expect(page.get_by_test_id("query")).to_be_focused()
    expect(page.locator("#live")).to_have_text(f"{before[1]} is back.")


def test_a_server_that_only_reads_offers_no_writing(place: Path, visit: Visitor) -> None:
    with served.serving(place, access=Access()) as running, visit.open:
        page = visit(running)
        ask(page, QUERY)
        expect(page.get_by_test_id("delete")).to_have_count(0)
        page.get_by_test_id("tab-add").click()
        expect(page.locator("#add-body")).to_contain_text("This server only reads.")


# Hostile text -------------------------------------------------------------------------------------------------------------


def unharmed(page: Page) -> None:
    assert page.evaluate("window.hacked") is None
    assert page.locator("main :is(script, img, iframe, a), main [onload], main [onerror], main [onclick]").count() == 0


def test_text_of_documents_is_shown_and_never_run(hostile: served.Served, visit: Visitor) -> None:
    page = visit(hostile)
    expect(page.locator("h1")).to_have_text(IMAGE)
    expect(page.locator(".corpora th[scope=row]")).to_have_text(IMAGE)
    ask(page, f"{SCRIPT} water {VECTOR}")
    expect(page).to_have_title(f"{SCRIPT} water {VECTOR} – {IMAGE}")
    assert set(titles(page).all_inner_texts()) == {*(f"{text} title" for text in HOSTILE), LONG}
    for text in HOSTILE:
        hit = page.locator(".hit").filter(has=page.locator(".title", has_text=text))
        expect(hit.locator(".docid")).to_have_text(f"{text} {LINK}")
        expect(hit.locator(".snippet")).to_contain_text(IMAGE)
        hit.get_by_test_id("why").click()
        expect(hit.locator("q")).to_have_text(f"{text} title water")
        hit.locator(".title").click()
        dialog = page.get_by_role("dialog", name=f"{text} title")
        expect(dialog.locator(".text")).to_have_text(f"{text} water {IMAGE} tea {VECTOR}")
        expect(dialog.locator("dt")).to_have_text([IMAGE, "onclick"])
        expect(dialog.locator("dd")).to_have_text([text, json.dumps([SCRIPT])])
        page.keyboard.press("Escape")
    expect(page.locator(".why-panel .neighbours").first).to_contain_text("title")
    unharmed(page)


def test_text_of_documents_is_not_run_by_the_other_views_either(hostile: served.Served, visit: Visitor) -> None:
    page = visit(hostile, f"/?q={quote(VECTOR)}#token={served.WRITE}", failures=[409])
    show_tab(page, "map")
    page.get_by_test_id("map").focus()
    seen = set()
    for key in ("ArrowRight", "ArrowLeft", "ArrowUp", "ArrowLeft", "ArrowDown", "ArrowRight") * 3:
        page.keyboard.press(key)
        seen.add(page.locator(".map .tip").inner_text())
    assert {f"{text} title · {IMAGE}" for text in HOSTILE} <= seen
    expect(page.locator(".legend .name")).to_have_text(IMAGE)
    unharmed(page)
    show_tab(page, "timeline")
    expect(page.locator(".generations .what")).to_contain_text(IMAGE)
    expect(page.locator(".ends title")).to_have_text(IMAGE)
    unharmed(page)
    show_tab(page, "add")
    page.get_by_test_id("files").set_input_files(file(f"{IMAGE}.txt", SCRIPT))
    expect(page.locator(".add")).to_contain_text(f"1 document in {IMAGE}.txt")
    page.get_by_label("Name of the corpus").fill(IMAGE)  # which is taken
    page.get_by_test_id("start-add").click()
    expect(page.get_by_test_id("error")).to_contain_text(f"There is a corpus named '{IMAGE}' already.")
    unharmed(page)


# Keyboard and accessibility -----------------------------------------------------------------------------------------------

# An element itself shows focus by its outline; a hidden radio or file input by its frame's, a point of the chart by its edge.
SHOWS_FOCUS = """() => {
    const focused = document.activeElement;
    const frames = [focused, focused.closest("fieldset, .drop")].filter(Boolean).map((element) => getComputedStyle(element));
    const outlined = frames.some((style) => style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2);
    return focused.matches(":focus-visible") && (outlined || focused.matches(".mark") && parseFloat(frames[0].strokeWidth) >= 2);
}"""
# Everything that can be reached by Tab: of radio buttons with one name, the chosen one.
REACHABLE = """() => [...document.querySelectorAll("a, button, input, summary, [tabindex='0']")]
    .filter((element) => element.checkVisibility() && !element.disabled && !(element.type === "radio" && !element.checked)).length"""
IS_NEW = """() => {
    const fresh = !document.activeElement.dataset.reached && document.activeElement !== document.body;
    if (fresh) document.activeElement.dataset.reached = "yes";
    return fresh;
}"""


def press_until(page: Page, key: str, target: Locator) -> None:
    """Press a key until something has focus, and see that focus can be seen all the way."""
    for _ in range(60):
        page.keyboard.press(key)
        assert page.evaluate(SHOWS_FOCUS), page.evaluate("document.activeElement.outerHTML")
        if target.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"{key} never reaches {target}")


def test_everything_can_be_done_by_keyboard(server: served.Served, visit: Visitor) -> None:
    page = visit(server, TOKEN)
    expect(page.get_by_test_id("query")).to_be_focused()
    page.keyboard.type(QUERY)
    expect(titles(page)).to_have_count(10)
    page.keyboard.press("ArrowDown")
    expect(titles(page).first).to_be_focused()
    assert page.evaluate(SHOWS_FOCUS)
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Close")).to_be_focused()
    expect(dialog.locator(".text")).not_to_be_empty()
    page.keyboard.press("Escape")
    expect(titles(page).first).to_be_focused()
    press_until(page, "Tab", page.get_by_test_id("why").first)
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("why-panel").first).to_contain_text("Neighbours")
    press_until(page, "Shift+Tab", page.get_by_test_id("tab-map"))
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("map")).to_be_visible()
    press_until(page, "Tab", page.get_by_test_id("map"))
    seen = set()
    for key in ("ArrowRight", "ArrowUp", "ArrowLeft", "ArrowDown"):
        page.keyboard.press(key)
        seen.add(page.locator("#live").inner_text())
    assert len(seen) > 2
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("heading")).to_have_text(page.locator("#live").inner_text().rpartition(", ")[0])
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("map")).to_be_focused()
    press_until(page, "Tab", page.get_by_label("By corpus"))
    page.keyboard.press("ArrowRight")
    expect(page.get_by_label("By topic")).to_be_checked()
    expect(page.get_by_label("By topic")).to_be_focused()
    press_until(page, "Shift+Tab", page.get_by_test_id("theme"))
    page.keyboard.press("Enter")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.keyboard.press("/")
    expect(page.get_by_test_id("query")).to_be_focused()


@pytest.mark.parametrize("tab", VIEWS)
def test_tab_reaches_everything_and_gets_out_again(server: served.Served, visit: Visitor, tab: str) -> None:
    page = visit(server, f"/?q={quote(QUERY)}&tab={tab}#token={served.WRITE}")
    filled(page, tab)
    press_until(page, "Shift+Tab", page.get_by_role("link", name="Skip to the content"))
    reachable, reached = page.evaluate(REACHABLE), 0
    while page.evaluate(IS_NEW):
        assert page.evaluate(SHOWS_FOCUS), page.evaluate("document.activeElement.outerHTML")
        reached += 1
        page.keyboard.press("Tab")
    assert reached == reachable > 5


CONTROLS = {"button", "link", "textbox", "searchbox", "checkbox", "radio", "application", "progressbar", "dialog", "img"}
LANDMARKS = {"banner", "search", "navigation", "main", "contentinfo"}


def accessible(page: Page) -> list[dict[str, Any]]:
    """Chromium's own accessibility tree, as screen readers are told it: role, name and level of each node."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    return [
        {
            "role": node["role"]["value"],
            "name": node.get("name", {}).get("value", ""),
            "level": next((one["value"]["value"] for one in node.get("properties", []) if one["name"] == "level"), None),
        }
        for node in nodes
        if not node["ignored"]
    ]


def check_accessible(page: Page, landmarks: set[str] = LANDMARKS) -> None:
    nodes = accessible(page)
    unnamed = [node for node in nodes if node["role"] in CONTROLS and not node["name"].strip()]
    assert unnamed == []
    assert landmarks <= {node["role"] for node in nodes}
    levels = [node["level"] for node in nodes if node["role"] == "heading"]
    assert levels[0] == min(levels) and levels.count(1) <= 1
    assert all(below - above <= 1 for above, below in itertools.pairwise(levels)), levels
    labels = page.locator("input").evaluate_all("inputs => inputs.map((input) => input.labels.length)")
    assert all(labels), labels  # a placeholder names an input too, until somebody types
    ids = page.locator("[id]").evaluate_all("elements => elements.map((element) => element.id)")
    assert len(ids) == len(set(ids))


def test_screen_readers_get_names_headings_and_landmarks(server: served.Served, visit: Visitor) -> None:
    page = visit(server, failures=[401])
    assert page.locator("html").get_attribute("lang") == "en"
    ask(page, QUERY)
    page.get_by_test_id("why").first.click()
    expect(page.get_by_test_id("why-panel").first).to_contain_text("Neighbours")
    check_accessible(page)
    titles(page).first.click()
    expect(page.get_by_role("dialog").locator(".text")).not_to_be_empty()
    check_accessible(page, set())  # the rest is inert meanwhile
    page.keyboard.press("Escape")
    for tab in ("timeline", "map", "add"):
        show_tab(page, tab)
        check_accessible(page)
    page.get_by_test_id("files").set_input_files(file("tea.txt", "Tea"))
    page.get_by_test_id("start-add").click()
    expect(page.get_by_label("Token", exact=True)).to_be_focused()
    check_accessible(page)


# Text against what is behind it, as WCAG 2 counts it; a canvas and things that are disabled apart.
FAINT = """() => {
    const pen = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
    const painted = (colours) => {
        for (const colour of colours) { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); }
        return [...pen.getImageData(0, 0, 1, 1).data];
    };
    const light = (colours) => {
        const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        const [r, g, b] = painted(colours).map((part) => linear(part / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const faint = [];
    for (const element of document.querySelectorAll("body *")) {
        const own = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
        if (!own || !element.checkVisibility() || element.closest(":disabled, .unseen")) continue;
        const style = getComputedStyle(element);
        const behind = [];
        for (let each = element; each; each = each.parentElement) behind.unshift(getComputedStyle(each).backgroundColor);
        const ink = element instanceof SVGElement ? style.fill : style.color;
        const [darker, lighter] = [light([...behind, ink]), light(behind)].sort((one, other) => one - other);
        const contrast = (lighter + 0.05) / (darker + 0.05);
        if (contrast < 4.5) faint.push(`${contrast.toFixed(2)} ${element.outerHTML.slice(0, 120)}`);
    }
    return faint;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_themes(server: served.Served, visit: Visitor, scheme: str) -> None:
    page = visit(server, f"/?q={quote(QUERY)}&at=1", color_scheme=scheme)
    filled(page, "search")
    page.get_by_test_id("why").first.click()
    expect(page.get_by_test_id("why-panel").first).to_contain_text("Neighbours")
    for tab in VIEWS:
        show_tab(page, tab)
        assert page.evaluate(FAINT) == []


# Tokens -------------------------------------------------------------------------------------------------------------------


def test_a_token_is_asked_for_and_kept_in_this_tab_only(locked: served.Served, visit: Visitor) -> None:
    page = visit(locked, f"/?q={quote(QUERY)}", failures=[401, 403])
    expect(page.get_by_role("heading", name="A token is needed")).to_be_visible()
    expect(page.get_by_label("Token", exact=True)).to_be_focused()
    assert titles(page).count() == 0
    page.keyboard.type("a-token-that-is-wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Another token is needed: the token is wrong")).to_be_visible()
    page.get_by_label("Token", exact=True).fill(served.READ)
    page.get_by_role("button", name="Use token").click()
    expect(titles(page)).to_have_count(10)
    expect(page.locator("#token-form")).to_be_hidden()
    page.reload()
    expect(titles(page)).to_have_count(10)
    assert served.READ not in page.url + page.evaluate("JSON.stringify({...localStorage}) + document.cookie")
    page.get_by_test_id("delete").first.click()
    expect(page.get_by_role("heading", name="Another token is needed: this token may read, not write")).to_be_visible()
    page.get_by_label("Token", exact=True).fill(served.WRITE)
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("undo")).to_be_visible()


def test_a_token_leaves_the_address_bar_at_once(locked: served.Served, visit: Visitor) -> None:
    page = visit(locked, f"/?q={quote(QUERY)}#token={served.READ}")
    expect(titles(page)).to_have_count(10)
    assert page.url == f"{locked.url}/?q={quote(QUERY)}"
    assert served.READ not in page.evaluate("JSON.stringify({...localStorage}) + document.cookie + document.documentElement.outerHTML")
    page.get_by_test_id("tab-timeline").click()
    page.go_back()
    assert served.READ not in page.url


def test_who_has_no_token_can_go_on_reading(server: served.Served, visit: Visitor) -> None:
    page = visit(server, failures=[401])
    ask(page, QUERY)
    before = titles(page).all_inner_texts()
    page.get_by_test_id("delete").first.click()
    expect(page.get_by_role("heading", name="A token is needed")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#token-form")).to_be_hidden()
    expect(page.get_by_test_id("error")).to_contain_text("This needs a token.")
    expect(page.locator(".leaving")).to_have_count(0)
    assert titles(page).all_inner_texts() == before
    ask(page, OTHER)


# Looks --------------------------------------------------------------------------------------------------------------------


def test_the_theme_follows_the_system_until_the_reader_chooses_and_is_remembered(server: served.Served, visit: Visitor) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light, dark = visit(server, color_scheme="light"), visit(server, color_scheme="dark")
    assert light.evaluate(ground) != (night := dark.evaluate(ground))
    light.get_by_role("button", name="Use the dark theme").click()
    assert light.evaluate(ground) == night
    light.reload()
    assert light.evaluate(ground) == night
    light.get_by_role("button", name="Use the light theme").click()
    assert light.evaluate(ground) != night
    assert dark.evaluate(ground) == night


def test_nothing_is_wider_than_a_phone(server: served.Served, hostile: served.Served, visit: Visitor) -> None:
    fits = "element => element.scrollWidth <= element.clientWidth"
    for running in (server, hostile):  # the second has a title of three hundred letters and no space
        page = visit(running, f"/?q={quote(QUERY)}", failures=[401], viewport={"width": 360, "height": 740})
        filled(page, "search")
        page.get_by_test_id("why").last.click()
        expect(page.get_by_test_id("why-panel").last).to_contain_text("Neighbours")
        for tab in VIEWS:
            show_tab(page, tab)
            assert page.locator("html").evaluate(fits), tab
        show_tab(page, "search")
        titles(page).last.click()
        expect(page.get_by_role("dialog").locator(".text")).not_to_be_empty()
        assert page.get_by_role("dialog").evaluate(fits)
        page.keyboard.press("Escape")
        page.get_by_test_id("delete").last.click()
        expect(page.get_by_label("Token", exact=True)).to_be_visible()
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator(".toast")).to_be_in_viewport(ratio=1)
        assert page.locator("html").evaluate(fits)
