"""The page in a real browser: by keyboard alone, for screen readers, in both themes, on a phone."""

from __future__ import annotations

import itertools
from typing import Any
from urllib.parse import quote

import pytest
import served
from browsing import (
    QUERY,
    TOKEN,
    VIEWS,
    Visitor,
    file,
    filled,
    open_menu,
    search_for,
    show_tab,
    titles,
)
from playwright.sync_api import Locator, Page, expect

# An element itself shows focus by its outline; a hidden radio or file input by its frame's, a point of the chart by its edge.
SHOWS_FOCUS = """() => {
    const focused = document.activeElement;
    const frames = [focused, focused.closest("fieldset, .drop")].filter(Boolean).map((element) => getComputedStyle(element));
    const outlined = frames.some((style) => style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2);
    return focused.matches(":focus-visible") && (outlined || focused.matches(".mark") && parseFloat(frames[0].strokeWidth) >= 2);
}"""
# Everything that can be reached by Tab: of radio buttons with one name, the chosen one.
REACHABLE = """() => [...document.querySelectorAll("a, button, select, input, summary, [tabindex='0']")]
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
    expect(page.get_by_test_id("why-panel").first).to_contain_text("Similar documents")
    menu, delete = page.get_by_test_id("menu").first, page.get_by_test_id("delete").first
    press_until(page, "Tab", menu)
    expect(delete).to_be_hidden()
    page.keyboard.press("Enter")
    press_until(page, "Tab", delete)
    page.keyboard.press("Escape")
    expect(menu).to_be_focused()
    expect(delete).to_be_hidden()
    press_until(page, "Shift+Tab", page.get_by_test_id("tab-versions"))
    page.keyboard.press("Enter")
    press_until(page, "Tab", page.get_by_test_id("go-back"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("go-back")).to_be_focused()
    press_until(page, "Tab", page.get_by_role("radio", name="In the first ten"))
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="First", exact=True)).to_be_checked()
    expect(page.get_by_role("radio", name="First", exact=True)).to_be_focused()
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


CONTROLS = {"button", "link", "textbox", "searchbox", "checkbox", "radio", "application", "progressbar", "dialog", "img", "combobox"}
LANDMARKS = {"banner", "search", "navigation", "main", "contentinfo"}


def accessible(page: Page) -> list[dict[str, Any]]:
    """Chromium's own accessibility tree, as screen readers get it: role, name and level of each node."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    return [
        {
            "role": node["role"]["value"],
            "name": node.get("name", {}).get("value", ""),
            "level": next((item["value"]["value"] for item in node.get("properties", []) if item["name"] == "level"), None),
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
    assert all(labels), labels  # a placeholder names an input too, until something is typed
    ids = page.locator("[id]").evaluate_all("elements => elements.map((element) => element.id)")
    assert len(ids) == len(set(ids))


def test_screen_readers_get_names_headings_and_landmarks(server: served.Served, visit: Visitor) -> None:
    page = visit(server, failures=[401])
    assert page.locator("html").get_attribute("lang") == "en"
    search_for(page, QUERY)
    page.get_by_test_id("why").first.click()
    expect(page.get_by_test_id("why-panel").first).to_contain_text("Similar documents")
    check_accessible(page)
    titles(page).first.click()
    expect(page.get_by_role("dialog").locator(".text")).not_to_be_empty()
    check_accessible(page, set())  # the rest is inert meanwhile
    page.keyboard.press("Escape")
    for tab in ("versions", "add"):
        show_tab(page, tab)
        check_accessible(page)
    page.get_by_test_id("files").set_input_files(file("tea.jsonl", '{"_id": "tea", "text": "Tea"}'))
    page.get_by_test_id("start-add").click()
    expect(page.get_by_label("Token", exact=True)).to_be_focused()
    check_accessible(page)


# Text against what is behind it, as WCAG 2 counts it; things that are disabled apart.
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
    expect(page.get_by_test_id("why-panel").first).to_contain_text("Similar documents")
    for tab in VIEWS:
        show_tab(page, tab)
        assert page.evaluate(FAINT) == []


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
        expect(page.get_by_test_id("why-panel").last).to_contain_text("Similar documents")
        for tab in VIEWS:
            show_tab(page, tab)
            assert page.locator("html").evaluate(fits), tab
        show_tab(page, "search")
        titles(page).last.click()
        expect(page.get_by_role("dialog").locator(".text")).not_to_be_empty()
        assert page.get_by_role("dialog").evaluate(fits)
        page.keyboard.press("Escape")
        open_menu(page, -1).click()
        expect(page.get_by_label("Token", exact=True)).to_be_visible()
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator(".toast")).to_be_in_viewport(ratio=1)
        assert page.locator("html").evaluate(fits)
