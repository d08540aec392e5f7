"""The page in a real browser: searching, and the explanation of a document's rank."""

from __future__ import annotations

import math
import re
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest
import served
import small
from browsing import (
    NOTHING,
    OTHER,
    QUERY,
    SCRIPT,
    Visitor,
    names,
    search_for,
    titles,
)
from playwright.sync_api import Locator, Route, expect

from promptdsi import Corpus, Document, Index

EARLIER = Path(__file__).parents[2] / "index/golden/format-1-rows/index"


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
    expect(page.locator(".hit .badge")).to_have_text([f"collection {hit.corpus}" for hit in expected])
    expect(page.locator(".hit .snippet")).to_have_text([hit.snippet for hit in expected])
    expect(page.locator("mark").first).to_have_text("water", ignore_case=True)
    expect(page.locator("#summary")).to_have_text("10 results.")


def widths(bars: Locator) -> list[float]:
    """The filled share of each bar."""
    script = "bars => bars.map(bar => bar.firstChild.getBoundingClientRect().width / bar.getBoundingClientRect().width)"
    return [float(width) for width in bars.evaluate_all(script)]


def test_bars_show_confidence_from_0_to_100_percent(server: served.Served, original: Path, visit: Visitor) -> None:
    page, index = visit(server), Index.open(original, device="cpu")
    for query in (QUERY, NOTHING):
        search_for(page, query)
        confidences = [hit.confidence or 0.0 for hit in index.search(query)]
        texts = ["< 1 %" if share < 0.01 else "> 99 %" if share > 0.99 else f"{100 * share:.0f} %" for share in confidences]
        expect(page.locator(".hit .score .figure")).to_have_text([f"{text} likely" for text in texts])
        assert widths(page.locator(".hit .bar")) == pytest.approx(confidences, abs=0.01)
    assert max(widths(page.locator(".hit .bar"))) < 0.1  # not relative to the best of them


def test_filters_narrow_the_hits_and_stand_in_the_address(place: Path, visit: Visitor) -> None:
    documents = [
        Document(
            f"n{n}",
            f"The mill of note {n} grinds barley with water.",
            f"Note {n}",
            {"author": ("Ada", "Grace")[n % 2], "year": 2020 + n % 3},
        )
        for n in range(6)
    ]
    Index.open(place).add(Corpus(documents, name="notes"), fast=True)
    with served.serving(place) as running:
        page = visit(running, "/?q=mill+of+barley")
        page.get_by_label("author").select_option("Ada")
        expect(titles(page)).to_have_count(3)
        assert parse_qs(urlsplit(page.url).query)["where"] == ["author=Ada"]
        page.get_by_label("year").select_option("2020")
        expect(titles(page)).to_have_text(["Note 0"])
        page.reload()
        expect(titles(page)).to_have_text(["Note 0"])
        expect(page.get_by_label("author")).to_have_value("Ada")
        page.go_back()
        expect(titles(page)).to_have_count(3)
        page.goto(f"{running.url}/?q=mill&where=author%3DAda&where=year%3D2020&where=docid%3Dn1")
        expect(page.locator("#results")).to_contain_text("No document fits these filters.")
        page.get_by_role("button", name="Search all documents").click()
        expect(titles(page)).to_have_count(10)
        expect(page.get_by_test_id("clear-filters")).to_be_hidden()
        expect(page.get_by_label("author")).to_have_value("")


def test_hits_of_a_query_about_nothing_are_called_the_nearest(server: served.Served, visit: Visitor) -> None:
    page = visit(server)
    search_for(page, NOTHING)
    expect(page.locator("#summary[role=status]")).to_have_text("10 results. Nothing certain; nearest:")
    expect(titles(page)).to_have_count(10)
    search_for(page, QUERY)
    expect(page.locator("#summary")).to_have_text("10 results.")


def test_an_index_of_an_earlier_release_shows_scores_and_no_bars(tmp_path: Path, visit: Visitor) -> None:
    """It has no calibration and no words."""
    index = Index.open(small.copied(EARLIER, tmp_path / "index"), device="cpu")
    expected = index.search(QUERY)
    assert expected[0].confidence is None
    with served.serving(tmp_path / "index") as running, visit.open:
        page = visit(running)
        search_for(page, QUERY)
        shown = [float(text.replace("score ", "").replace("−", "-")) for text in page.locator(".hit .score .figure").all_text_contents()]
        assert shown == pytest.approx([hit.score for hit in expected], abs=0.0006)
        expect(page.locator(".hit .bar")).to_have_count(0)
        page.get_by_test_id("why").first.click()
        expect(page.get_by_test_id("why-panel").first).to_contain_text("does not compare words. By meaning alone it would be first.")
        expect(page.get_by_test_id("why-panel").first.get_by_role("term").filter(has_text="words")).to_have_count(0)
        expect(page.locator(".origin .key")).to_have_count(0)


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
    expect(page.locator(".empty .lead")).to_have_text("Search 24 documents")
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


def test_a_document_opens_at_the_passage_of_the_hit(place: Path, visit: Visitor) -> None:
    """Positions count characters, of which a browser counts some twice; a document that was replaced has other passages."""
    paragraphs = [f"{SCRIPT} Paragraph {number} 🦉 is about the harbour and its boats. " * 3 for number in range(30)]
    paragraphs[20] = f"{SCRIPT} Only here 🦉 stands wolframite. " * 2
    document = Document("long", "\n\n".join(paragraphs), "Long")
    Index.open(place, device="cpu").add(Corpus([document], name="long"), fast=True)
    hit = Index.open(place, device="cpu").search("wolframite", k=1)[0]
    assert hit.docid == "long" and hit.passage and "wolframite" in hit.snippet
    with served.serving(place) as running, visit.open:
        page = visit(running)
        search_for(page, "wolframite")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        marked = page.get_by_role("dialog").get_by_test_id("passage")
        expect(marked).to_be_in_viewport()
        assert marked.evaluate("element => element.textContent") == document.text[slice(*hit.passage)]
        assert page.locator("#document .text").evaluate("element => element.textContent") == document.text
        expect(page.get_by_role("button", name="Close")).to_be_focused()
        page.keyboard.press("Escape")
        expect(titles(page).first).to_be_focused()
        changed = document._replace(text=f"Wolframite now comes first. {document.text}")
        Index.open(place, device="cpu").add(Corpus([changed], name="changed"), fast=True, update=True)
        served.wait_until(lambda: running.client.get("/api/index").json()["generation"] == 4)
        page.keyboard.press("Enter")
        expect(page.locator("#document .text")).to_contain_text("Wolframite now comes first.")
        expect(page.get_by_role("dialog").get_by_test_id("passage")).to_have_count(0)


def test_why_without_prompts_shows_the_nearest_query_and_neighbors(server: served.Served, original: Path, visit: Visitor) -> None:
    page = visit(server)
    search_for(page, QUERY)
    why = Index.open(original, device="cpu").search(QUERY, k=10, explain=True)[0].why
    assert why is not None and why.query
    page.get_by_test_id("why").first.click()
    panel = page.get_by_test_id("why-panel").first
    expect(panel.locator("q")).to_have_text(why.query)
    expect(panel.locator("ol.neighbors button")).to_have_text([neighbor.title for neighbor in why.neighbors])
    panel.locator("ol.neighbors button").first.click()
    expect(page.get_by_role("dialog", name=why.neighbors[0].title)).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_test_id("why").first.click()
    expect(panel).to_be_hidden()


def place(rank: int) -> str:
    return "first" if rank == 1 else f"number {rank}"


def percent(share: float) -> str:
    return f"{math.floor(100 * share + 0.5)} %"


def test_meaning_and_words_are_told_apart_beside_each_result_and_under_why(server: served.Served, original: Path, visit: Visitor) -> None:
    page = visit(server)
    search_for(page, query := "how does water work")
    for hit in Index.open(original, device="cpu").search(query, k=10, explain=True)[:4]:
        why, shown = hit.why, page.get_by_test_id("hit").nth(hit.rank - 1)
        assert why is not None and why.words and why.rank_by_words and 0 < why.learned < hit.score
        meaning, words = percent(why.learned / hit.score), percent(1 - why.learned / hit.score)
        expect(shown.get_by_test_id("origin")).to_have_text(f"meaning {meaning} words {words}")
        expect(shown.locator(".snippet mark")).to_have_text(
            [re.compile("water|work", re.IGNORECASE)] * shown.locator(".snippet mark").count()
        )
        shown.get_by_test_id("why").click()
        panel = shown.get_by_test_id("why-panel")
        expect(panel).to_contain_text(f"{meaning} of the score. By meaning alone it would be {place(why.rank_by_rows)}.")
        expect(panel).to_contain_text(f"{words} of the score. By words alone it would be {place(why.rank_by_words)}.")
        listed = panel.get_by_role("list", name="Words in common").get_by_role("listitem")
        expect(listed).to_have_text([f"{word} {percent(weight / hit.score)}" for word, weight in why.words])
    search_for(page, NOTHING)
    expect(page.get_by_test_id("origin").first).to_have_text("meaning 100 % words 0 %")
    page.get_by_test_id("why").first.click()
    expect(page.get_by_test_id("why-panel").first).to_contain_text("None of your words is in this passage.")


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
            assert why is not None and why.prompt is not None
            expect(panel).to_contain_text(f"Your words were read with prompt {why.prompt}.")
            expect(panel.get_by_role("list", name="Words of its topic").get_by_role("listitem")).to_have_text(why.topic)
            places = why.rank_without - hit.rank
            change = f"so the prompt {'lifts' if places > 0 else 'lowers'} it by {abs(places)} place" if places else "the same"
            expect(panel).to_contain_text(f"By meaning without it {place(why.rank_without)}, {change}")
        past = visit(running, f"/?q={quote(QUERY)}&at=1")
        past.get_by_test_id("why").first.click()
        expect(past.get_by_test_id("why-panel").first).to_contain_text("Similar documents")
        expect(past.get_by_test_id("why-panel").first.get_by_role("term").filter(has_text="Prompt")).to_have_count(0)  # there was none then
