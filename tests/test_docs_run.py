"""Every command and code block of the README, the docs and the tutorial is executed, page by page, from top to bottom.

A block `sh` is run line by line and `python` as a whole, in a folder with some notes, a stream and, unless the page creates it, an index
`my-index`. Of a block `console` (setting up, or hours of work) it is checked that its commands and options exist; `json` and `toml` are
parsed. `<!-- not run: reason -->` on the line before excepts a block.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import served
import small

from promptdsi import Index
from promptdsi.cli.main import BENCH, COMMANDS, app, flattened

ROOT = Path(__file__).parent.parent
GENERATED = {"cli.md", "http.md", "REPRODUCTION.md", "LOG.md"}
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name not in GENERATED)]
FENCE = re.compile(r"^(?P<before>[^\n]*)\n```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: .+ -->")
ADDRESS = re.compile(r"(?:localhost|127\.0\.0\.1):8000")
LANGUAGES = {"sh", "python", "console", "json", "toml", "text", "ini", "http", "bibtex", "mermaid"}
NOTES = {
    "house/keys.md": "# Keys\n\nThe neighbour at number 12 has the spare key. Ring twice.",
    "house/heating.md": "---\ndate: 2023-11-02\n---\n# Heating\n\nThe boiler needs a pressure of 1.5 bar. Bleed the radiators in October.",
    "house/bins.md": "# Bins\n\nPaper is collected on the first Monday of a month, glass never: there is a container by the bridge.",
    "house/garden.md": "# Garden\n\nPrune the apple tree in February, before the buds open. Tomatoes want a sunny wall.",
    "work/INV-2023-00417.txt": "Invoice INV-2023-00417 for repairing the roof, 840 euros, due on 30 November.",
    "work/meeting.md": "# Meeting on the archive\n\nThe scanned letters move to the new server in spring; older backups stay on tape.",
    "work/server.md": "# Server\n\nThe host web-eu-07 restarts every Sunday at four. Its certificate is renewed by a timer.",
    "work/budget.csv": "item,amount\nroof,840\nheating,1200\n",
    "travel/lisbon.md": "# Lisbon\n\nTram 28 climbs from the river to the castle. Custard tarts are best while they are warm.",
    "travel/trains.md": "# Night trains\n\nThe sleeper to Vienna leaves at nine in the evening. Book the lower berth early.",
    "travel/packing.txt": "Packing list: passport, adapter, rain jacket, a book, medicine.",
}
NEW_NOTES = {
    "wifi.md": "# Wireless network\n\nThe password of the guest network is on the back of the router.",
    "bread.md": "# Bread\n\nKnead for ten minutes, let it rise overnight in the fridge, bake at 230 degrees.",
    "car.md": "# Car\n\nWinter tyres go on in October. The spare wheel is under the floor of the boot.",
}


class Block(NamedTuple):
    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = "\n" + page.read_text("utf-8")
    matches = [match for match in FENCE.finditer(text) if not NOT_RUN.fullmatch(match["before"].strip())]
    return [Block(match["language"], match["text"], text.count("\n", 0, match.start("text"))) for match in matches]


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader has: notes of several kinds, new ones, a stream, and an index of the notes."""
    from reportlab.pdfgen.canvas import Canvas

    folder = tmp_path_factory.mktemp("kit")
    for top, files in (("notes", NOTES), ("new-notes", NEW_NOTES)):
        for name, text in files.items():
            path = folder / top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    pdf = Canvas(str(folder / "notes" / "manual.pdf"))
    for page in ("Dishwasher, model DW-450. Salt goes into the left compartment.", "Error E24 means that the drain is blocked."):
        pdf.drawString(72, 720, page)
        pdf.showPage()
    pdf.save()
    for corpus in small.stream():
        corpus.write(folder / "stream" / corpus.name)
    Index.create(folder / "my-index", folder / "notes", effort="quick", device="cpu", offline=True)
    return folder


class Reader:
    """Follows a page: runs its blocks in a folder, in this process, as `promptdsi` would run them."""

    def __init__(self, folder: Path, context: contextlib.ExitStack) -> None:
        self.folder, self.context, self.address, self.names = folder, context, "127.0.0.1:8000", dict[str, Any]()

    def follow(self, block: Block) -> None:
        text = ADDRESS.sub(lambda _: self.address, block.text)
        if block.language == "sh":
            for line in text.replace("\\\n", " ").splitlines():
                if words := shlex.split(line, comments=True):
                    self.command(line, words)
        elif block.language == "python":
            exec(compile(text, "<docs>", "exec"), self.names)
        elif block.language == "console":
            check_console(text)
        elif block.language in ("json", "toml"):
            (json if block.language == "json" else tomllib).loads(text)

    def command(self, line: str, words: list[str]) -> None:
        if words[0] != "promptdsi":
            outcome = subprocess.run(["bash", "-ec", line], cwd=self.folder, capture_output=True, text=True, timeout=60, check=False)
            assert outcome.returncode == 0, f"{line}\n{outcome.stdout}{outcome.stderr}"
        elif words[1] == "serve":
            self.serve(words[2:])
        else:
            self.promptdsi(line, words[1:])

    def promptdsi(self, line: str, words: list[str]) -> None:
        target = None
        if ">" in words:
            words, target = words[: words.index(">")], self.folder / words[-1]
        with contextlib.ExitStack() as stack:
            if target:
                stack.enter_context(contextlib.redirect_stdout(stack.enter_context(target.open("w"))))
            try:
                app(words, prog_name="promptdsi")
            except SystemExit as stop:
                assert not stop.code, f"{line} ended with {stop.code}"

    def serve(self, words: list[str]) -> None:
        if "--port" in words:
            del words[words.index("--port") : words.index("--port") + 2]
        _, url = self.context.enter_context(served.process(self.folder / words[0], *words[1:]))
        self.address = url.removeprefix("http://").rstrip("/")
        import httpx

        with httpx.Client(base_url=url) as client:
            served.ready(client)


def check_console(text: str) -> None:
    """Commands that are not run here exist, with these options."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for target in (word for before, word in itertools.pairwise(words) if before == "make" and "=" not in word):
            assert target in targets, line
        if words[:1] == ["promptdsi"]:
            command = BENCH[words[2]] if words[1] == "bench" else COMMANDS.get(words[1])
            assert command is not None, line
            assert not {word.split("=")[0] for word in words if word.startswith("--")} - options_of(command), line


def options_of(command: Any) -> set[str]:
    import inspect

    names = {"--help"}
    for name, parameter in inspect.signature(flattened(command)).parameters.items():
        declared = [
            given for option in getattr(parameter.annotation, "__metadata__", ()) for given in getattr(option, "param_decls", ()) or ()
        ]
        names |= {part for given in declared for part in given.split("/")} or {f"--{name.replace('_', '-')}"}
    return names


def creates(page_blocks: list[Block]) -> bool:
    return any(re.search(r"promptdsi create my-index|Index\.create\(\s*\"my-index\"", block.text) for block in page_blocks)


@pytest.fixture
def folder(kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(kit, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def reader(folder: Path) -> Iterator[Reader]:
    with contextlib.ExitStack() as context:
        yield Reader(folder, context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_blocks_of_a_page_run(page: Path, request: pytest.FixtureRequest) -> None:
    page_blocks = blocks(page)
    assert not {block.language for block in page_blocks} - LANGUAGES, "every block names its language"
    if not any(block.language in ("sh", "python") for block in page_blocks):
        for block in page_blocks:
            if block.language == "console":
                check_console(block.text)
        return
    reader = request.getfixturevalue("reader")
    if creates(page_blocks):
        shutil.rmtree(reader.folder / "my-index")
    for block in page_blocks:
        try:
            reader.follow(block)
        except Exception as error:
            raise AssertionError(f"{page.name}, block at line {block.line}: {error}") from error


def test_the_tutorial_runs(folder: Path) -> None:
    notebook = json.loads((ROOT / "docs/tutorial.ipynb").read_text("utf-8"))
    shutil.rmtree(folder / "my-index")
    names: dict[str, Any] = {}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 5 and not any(cell["outputs"] for cell in cells)
    for cell in cells:
        exec(compile("".join(cell["source"]), "tutorial", "exec"), names)
