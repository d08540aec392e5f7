"""The page in a real browser: searching, and the explanation of a document's rank."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest
import served
import small
from browsing import (
    OTHER,
    QUERY,
    Visitor,
    names,
    search_for,
    titles,
)
from playwright.sync_api import Route, expect

from promptdsi import Corpus, Index


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
    search_for(page, QUERY)
    page.get_by_role("button", name="Show more").click()
    expect(titles(page)).to_have_text(names(Index.open(original, device="cpu"), QUERY, 50))
    expect(titles(page).nth(10)).to_be_focused()


def test_the_address_holds_the_query_and_the_back_button_brings_it_back(server: served.Served, original: Path, visit: Visitor) -> None:
    index = Index.open(original, device="cpu")
    page = visit(server)
    search_for(page, QUERY)
    assert parse_qs(urlsplit(page.url).query) == {"q": [QUERY]}
    page.get_by_test_id("query").press("Escape")
    expect(page.locator(".empty .lead")).to_have_text("24 documents can be found here.")
    search_for(page, OTHER)
    page.go_back()
    expect(page.get_by_test_id("query")).to_have_value(QUERY)
    expect(titles(page)).to_have_text(names(index, QUERY))
    linked = visit(server, f"/?q={quote(OTHER)}&at=1")
    expect(titles(linked)).to_have_text(names(Index.open(original, at=1, device="cpu"), OTHER))
    expect(linked).to_have_title(f"{OTHER} – index")


def test_a_late_answer_never_covers_a_newer_one(server: served.Served, original: Path, visit: Visitor) -> None:
    page = visit(server)
    paused: list[Route] = []
    page.route("**/api/search", lambda route: paused.append(route) if QUERY in (route.request.post_data or "") else route.continue_())
    with page.expect_request("**/api/search"):
        page.get_by_test_id("query").fill(QUERY)
    search_for(page, OTHER)
    expected = names(Index.open(original, device="cpu"), OTHER)
    expect(titles(page)).to_have_text(expected)
    paused[0].continue_()
    page.wait_for_timeout(300)
    expect(titles(page)).to_have_text(expected)


def test_a_late_answer_does_not_take_focus_from_the_list(server: served.Served, original: Path, visit: Visitor) -> None:
    page = visit(server)
    search_for(page, OTHER)
    expect(titles(page)).to_have_count(10)
    paused: list[Route] = []
    page.route("**/api/search", lambda route: paused.append(route))  # Playwright takes no built-in method
    with page.expect_request("**/api/search"):
        page.get_by_test_id("query").fill(QUERY)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(titles(page).nth(1)).to_be_focused()
    paused[0].continue_()
    expect(titles(page)).to_have_text(names(Index.open(original, device="cpu"), QUERY))
    expect(titles(page).nth(1)).to_be_focused()


def test_a_document_opens_whole(server: served.Served, corpora: list[Corpus], visit: Visitor) -> None:
    page = visit(server)
    search_for(page, QUERY)
    expected = {document.title: document for corpus in corpora for document in corpus.documents}[titles(page).first.inner_text()]
    titles(page).first.click()
    dialog = page.get_by_role("dialog", name=expected.title)
    expect(dialog.locator(".text")).to_have_text(expected.text)
    expect(dialog.locator("dd")).to_have_text([str(value) for value in expected.metadata.values()])
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_be_hidden()


def test_why_without_prompts_shows_the_nearest_query_and_neighbors(server: served.Served, original: Path, visit: Visitor) -> None:
    page = visit(server)
    search_for(page, QUERY)
    why = Index.open(original, device="cpu").search(QUERY, k=10, explain=True)[0].why
    assert why is not None and why.query
    page.get_by_test_id("why").first.click()
    panel = page.get_by_test_id("why-panel").first
    expect(panel).to_contain_text("This index uses no prompts")
    expect(panel.locator("q")).to_have_text(why.query)
    expect(panel.locator("ol.neighbors button")).to_have_text([neighbor.title for neighbor in why.neighbors])
    panel.locator("ol.neighbors button").first.click()
    expect(page.get_by_role("dialog", name=why.neighbors[0].title)).to_be_visible()
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
        search_for(page, QUERY)
        for hit in index.search(QUERY, k=10, explain=True):
            page.get_by_test_id("why").nth(hit.rank - 1).click()
            panel, why = page.get_by_test_id("why-panel").nth(hit.rank - 1), hit.why
            assert why is not None and why.prompt is not None and why.similarity is not None
            expect(panel).to_contain_text(f"Number {why.prompt}, whose key is most similar to the query")
            shown = panel.locator("dd").first.locator(".figure").inner_text()
            assert float(shown.replace("similarity ", "").replace("−", "-")) == pytest.approx(why.similarity, abs=0.0006)
            expect(panel.locator(".words li")).to_have_text(why.topic)
            places = why.rank_without - hit.rank
            change = f"so the prompt {'lifts' if places > 0 else 'lowers'} it by {abs(places)} place" if places else "the same"
            expect(panel).to_contain_text(f"Rank {why.rank_without}, {change}")
        past = visit(running, f"/?q={quote(QUERY)}&at=1")
        past.get_by_test_id("why").first.click()
        expect(past.get_by_test_id("why-panel").first).to_contain_text("No prompt was selected")  # there was none before the first addition
