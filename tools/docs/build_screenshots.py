"""Pictures of the page's main views for the docs, taken from a real server over a copy of an index.

    python -m tools.docs.build_screenshots [INDEX]     # as `make demo` leaves it; writes docs/figures/page-*.png

Needs Chromium (`apt-get install chromium`) and Playwright's Python package, which `make test` installs.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, FilePayload, Page, ViewportSize, expect, sync_playwright

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "figures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DESK, PHONE = ViewportSize(width=1280, height=800), ViewportSize(width=390, height=844)
MOST_BYTES = 150_000  # a picture above this has no place in a repository
BATS, JET = "how do bats find their way in the dark", "why does the jet stream bend"
MARGIN = 24
NOTES = {
    "tide-mill.md": "# The Tide Mill\n\nA tide mill shuts its gates at high water and lets the pond run out through the wheel at "
    "low water. The miller worked by the moon, fifty minutes later every day, and slept when the sea allowed it.",
    "sourdough.md": "# Keeping a Sourdough Starter\n\nFlour and water left in a jar gather wild yeast and bacteria. Fed once a day, the "
    "starter doubles in some hours; in the refrigerator it sleeps, and a feed a week is enough.",
    "harbour-pilot.md": "# The Harbour Pilot\n\nBefore a large ship enters port a pilot climbs aboard from a small boat, by a rope ladder. "
    "The captain keeps command, but the pilot knows each bank, current and light.",
}


def main() -> int:
    source = Path(sys.argv[1] if len(sys.argv) > 1 else "promptdsi-demo/index")
    if not (source / "CURRENT").is_file():
        print(f"{source} is no index; `make demo` makes one", file=sys.stderr)
        return 2
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        print("there is no Chromium: apt-get install chromium", file=sys.stderr)
        return 2
    expect.set_options(timeout=120_000)  # milliseconds; opening, drawing the map and adding take some seconds each
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        index = shutil.copytree(source, Path(folder) / "demo")  # the page shows the folder's name
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        with served(index) as url, contextlib.closing(browser):
            take_all(browser, url)
    return 0


@contextlib.contextmanager
def served(index: Path) -> Iterator[str]:
    """`promptdsi serve` with leave to write; its address, token and all."""
    command = [sys.executable, "-m", "promptdsi", "serve", str(index), "--port", "0", "--allow-write"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        yield server.stderr.readline().partition(" on ")[2].split()[0]
    finally:
        server.terminate()
        server.wait()


def take_all(browser: Browser, url: str) -> None:
    """Every picture. Adding comes last: it changes the index."""
    with opened(browser, url, DESK) as page:
        search_for(page, BATS)
        take(page, "search", within=".hit")
        search_for(page, JET)
        page.get_by_test_id("why").first.click()
        expect(page.get_by_test_id("why-panel").first).to_contain_text("Similar documents")
        take(page, "why", within=".hit")
        page.get_by_test_id("tab-timeline").click()
        expect(page.locator(".generations")).to_be_visible()
        expect(page.locator(".chart svg")).to_be_visible()
        take(page, "timeline", within=".columns > div > *")
        page.get_by_test_id("tab-map").click()
        expect(page.locator(".map-columns")).to_be_visible()
        page.get_by_label("By topic").check(force=True)  # the radio button itself is invisible; its label is what one sees
        take(page, "map", top="#view-map", within=".map")
    with opened(browser, url, PHONE) as page:
        search_for(page, BATS)
        take(page, "phone", within=".hit")
    with opened(browser, url, DESK) as page:
        page.get_by_role("button", name="Use the dark theme").click()
        search_for(page, BATS)
        take(page, "dark", within=".hit")
    with opened(browser, url, DESK) as page:
        page.get_by_test_id("tab-add").click()
        files = [FilePayload(name=name, mimeType="text/markdown", buffer=text.encode()) for name, text in NOTES.items()]
        page.get_by_test_id("files").set_input_files(files)
        page.get_by_label("Name of this corpus").fill("notes")
        page.get_by_test_id("start-add").click()
        expect(page.get_by_test_id("report")).to_be_visible()
        take(page, "add", top="#view-add", within="#add-body > *")


@contextlib.contextmanager
def opened(browser: Browser, url: str, size: ViewportSize) -> Iterator[Page]:
    """The page with an index behind it, in a browser that has never seen it."""
    context = browser.new_context(viewport=size, color_scheme="light", reduced_motion="reduce", locale="en-GB", timezone_id="UTC")
    with contextlib.closing(context):
        page = context.new_page()
        page.goto(url)
        expect(page.locator("#size")).to_contain_text("documents")
        yield page


def search_for(page: Page, query: str) -> None:
    """Type a query and wait for its own answer: until then the hits of the query before it stand on the page."""
    with page.expect_response(lambda answer: query in (answer.request.post_data or "")):
        page.get_by_test_id("query").fill(query)
    expect(page.locator("body.searching")).to_have_count(0)


def take(page: Page, name: str, *, within: str, top: str = "body") -> None:
    """A picture from the top of one element to the end of the last of others that the window shows whole."""
    size = page.viewport_size
    assert size is not None
    page.mouse.move(0, 0)  # nothing looks as if somebody were pointing at it
    page.locator(top).evaluate(f"element => scrollTo(0, element.offsetTop - {MARGIN})")
    boxes = [box for each in page.locator(within).all() if (box := each.bounding_box())]
    end = max(end for box in boxes if (end := box["y"] + box["height"]) <= size["height"]) + MARGIN
    target = FIGURES / f"page-{name}.png"
    page.screenshot(path=target, clip={"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], end)})
    print(f"{target.name}: {target.stat().st_size / 1000:.0f} kB")
    if target.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{target} is larger than {MOST_BYTES // 1000} kB")


if __name__ == "__main__":
    sys.exit(main())
