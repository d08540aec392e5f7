"""Commands that write, and servers, on an index from somebody else (R34): one sentence, nothing outside the index is touched.

The cases of `test_strangers.py` are met by reading; these took more than that, or were found in numbers behind a right header.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forged
import httpx
import numpy as np
import pytest
import served
import small
from onlooker import Look, Onlooker

from promptdsi import Corpus, DataError, Index
from promptdsi.index import strangers
from promptdsi.model.tokenizer_checks import check_tokenizer

CPU = ("--device", "cpu", "--threads", "1")
LARGEST, SMALLEST = np.iinfo(np.int64).max, np.iinfo(np.int64).min
ESCAPE = "\x1b]0;owned\x07\x1b[31m\x9b0m\u202e"


@pytest.fixture(scope="module")
def onlooker() -> Iterator[Onlooker]:
    with Onlooker() as running:
        yield running


@pytest.fixture(scope="module")
def everything(corpora: list[Corpus], backbone: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with passages, probes, queries, a corpus that is not trained and a deleted document."""
    path = tmp_path_factory.mktemp("everything") / "index"
    index = small.create(path, corpora[0], backbone, keep_probes=2, keep_queries=True, **{"encoding.passage_tokens": 32})
    index.add(corpora[1], fast=True, keep_queries=True)
    index.delete(corpora[0].documents[0].docid)
    forged.in_full(path)
    corpora[2].write(path.parent / "d2")
    return path


@pytest.fixture
def forgery(everything: Path, tmp_path: Path) -> Path:
    return forged.copied(everything, tmp_path / "index")


@pytest.fixture
def every_command(everything: Path, onlooker: Onlooker, corpora: list[Corpus], tmp_path: Path) -> Callable[[Path], dict[str, Look]]:
    """Run every command on copies of an index; each ends with an answer or a sentence, in bounds."""
    docid, corpus = corpora[0].documents[1].docid, str(everything.parent / "d2")
    commands: dict[str, list[str]] = {
        **{"search": ["water", "how does it work", "--explain", "--where", "arrives!=d9", *CPU], "get": [docid], "delete": [docid]},
        **{
            "add": [corpus, *CPU],
            "purge": [],
            "rollback": [],
            "teach": ["how is tea made", docid],
            "tune": [*CPU],
            "verify": [],
            "log": [],
        },
        "export": ["--to", "beir", "--output", str(tmp_path / "export")],
    }

    def run(folder: Path) -> dict[str, Look]:
        looks = {}
        for number, (name, words) in enumerate(commands.items()):
            copy = forged.copied(folder, tmp_path / f"copy-{number}")
            looks[name] = onlooker.look([name, str(copy), *words])[0]
        assert {look.outcome for look in looks.values()} <= {"answer", "sentence"}, looks
        return looks

    return run


def first(folder: Path, part: str) -> str:
    return str(forged.content(forged.current(folder))["corpora"][0][part])


def words(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: forged.tensors(folder, first(folder, "words"), **changes) and None


def statistics(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: forged.tensors(folder, forged.content(forged.current(folder))["statistics"], **changes) and None


def rows(value: float) -> Callable[[Path], None]:
    """Numbers that are none in every row of the first corpus, and no codes, so that a search computes with them."""

    def change(folder: Path) -> None:
        forged.tensors(folder, first(folder, "rows"), rows=lambda rows: np.full_like(rows, value))

    return change


def overflowing(numbers: Any) -> None:
    """Steps that all seem positive, subtracted in 64 bits, and lead where they should: a copy in C would write beside its array."""
    numbers[1], numbers[2] = LARGEST, -2


def entries(part: str, *removed: str) -> Callable[[Path], None]:
    """Stored queries without some of their fields."""
    left = lambda entry: {key: value for key, value in entry.items() if key not in removed}  # noqa: E731
    change = lambda value: value.update(entries=list(map(left, value["entries"])))  # noqa: E731
    return lambda folder: forged.json_blob(folder, first(folder, part), change) and None


def fewer_docids(value: Any) -> None:
    value["docids"], value["marks"] = value["docids"][:3], value["marks"][: 3 * 64]


def metadata(text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for entry in forged.content(forged.current(folder))["corpora"]:
            forged.database(folder, entry["documents"], f"UPDATE documents SET metadata = '{text}'")

    return change


def manifest(change: forged.Change) -> Callable[[Path], None]:
    return lambda folder: forged.manifest(folder, change)


HOSTILE: dict[str, tuple[Callable[[Path], None], str, str]] = {  # the change, a command that refuses it, and what that says
    "words that overflow": (words(ends=overflowing), "search", "word postings that do not fit together"),
    "postings that overflow": (words(pointers=overflowing), "search", "word postings that do not fit together"),
    "pointers backwards": (words(pointers=lambda numbers: numbers[::-1]), "search", "word postings that do not fit together"),
    "no pointers": (words(pointers=np.zeros(0, np.int64)), "search", "word postings that do not fit together"),
    "passages that do not exist": (words(passages=lambda numbers: numbers + 10**6), "search", "passages that do not exist"),
    "words that occur zero times": (words(counts=lambda counts: counts * 0), "search", "count less than nothing"),
    "texts shorter than nothing": (words(lengths=lambda lengths: -lengths - 100), "search", "count less than nothing"),
    "an average of nothing": (statistics(average=np.array([5e-324])), "search", "word statistics that do not fit together"),
    "an average that is no number": (statistics(average=np.array([np.nan])), "search", "word statistics that do not fit together"),
    "an average of three numbers": (statistics(average=np.ones(3)), "purge", "word statistics of another type"),
    "infinitely many passages": (statistics(passages=np.array([np.inf])), "purge", "word statistics that do not fit together"),
    "words more frequent than passages": (statistics(frequencies=lambda f: f + 10**9), "search", "more passages than there are"),
    "rows that are no numbers": (rows(np.nan), "verify", "rows hold NaN or Inf"),
    "rows without end": (rows(np.inf), "verify", "rows hold NaN or Inf"),
    "the largest rows": (rows(3e38), "verify", "are not those of the rows"),
    "queries of no document": (entries("queries", "docid"), "purge", "has no 'docid'"),
    "queries of no kind": (entries("queries", "kind"), "export", "has no 'kind'"),
    "probes of no documents": (entries("probes", "docids"), "add", "has no 'docids'"),
    "fewer docids than documents": (
        lambda folder: forged.json_blob(folder, first(folder, "ids"), fewer_docids) and None,
        "delete",
        "3 docids",
    ),
    "a lone surrogate in metadata": (metadata('{"a": "\\ud800"}'), "get", "lone surrogate"),
    "a lone surrogate as a name": (manifest(lambda content: content["metadata"].update({"\ud800": 1})), "delete", "lone surrogate"),
    "an encoder that is rows": (
        manifest(lambda content: content.update(encoder=content["corpora"][0]["rows"])),
        "purge",
        "a blob is named as two parts",
    ),
    "deleted documents that do not exist": (manifest(lambda content: content.update(tombstones=[10**6])), "delete", "that do not exist"),
    "parameters that allocate": (manifest(lambda content: content["params"].update(stand_ins=10**9)), "add", "stand_ins"),
    "text without documents": (
        manifest(lambda content: [entry.update(documents=None) for entry in content["corpora"]] and None),
        "tune",
        "",
    ),
    "numbers without end in metadata": (metadata('{"arrives": 1e999, "b": NaN, "c": ' + "9" * 4000 + "}"), "search", ""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_every_command_answers_or_says_why_not(forgery: Path, every_command: Callable[[Path], dict[str, Look]], name: str) -> None:
    change, command, says = HOSTILE[name]
    change(forgery)
    looks = every_command(forgery)
    if says:
        assert looks[command].outcome == "sentence" and says in looks[command].says, looks[command]


def test_an_honest_index_is_answered_by_every_command(forgery: Path, every_command: Callable[[Path], dict[str, Look]]) -> None:
    assert {look.outcome for look in every_command(forgery).values()} == {"answer"}


def test_nothing_of_an_index_reaches_the_terminal_as_a_command(
    forgery: Path, every_command: Callable[[Path], dict[str, Look]], corpora: list[Corpus]
) -> None:
    """The onlooker fails a command that prints a control character."""

    def change(content: Any) -> None:
        content.update(kind=ESCAPE, time=ESCAPE, written_by=ESCAPE, event={"corpus": ESCAPE, "folders": [ESCAPE]})
        content["params"].update(backbone=ESCAPE)
        for number, entry in enumerate(content["corpora"]):
            entry.update(name=f"{ESCAPE}{number}", source=f"/{ESCAPE}", prefix=ESCAPE)

    forged.manifest(forgery, change)
    codes = ", ".join(str(ord(character)) for character in ESCAPE)
    for entry in forged.content(forged.current(forgery))["corpora"]:
        script = f"UPDATE documents SET title = char({codes}), text = char({codes}), metadata = json_object(char({codes}), char({codes}))"
        forged.database(forgery, entry["documents"], script)
    forged.json_blob(
        forgery, first(forgery, "ids"), lambda value: value.update(docids=[f"{ESCAPE}{n}" for n in range(len(value["docids"]))])
    )
    looks = every_command(forgery)
    assert looks["search"].outcome == looks["log"].outcome == "answer"


@pytest.mark.parametrize("name", [".learning", "blobs", "records"])
def test_a_link_to_a_folder_outside_removes_nothing_there(forgery: Path, corpora: list[Corpus], name: str) -> None:
    """A writer removes what an interrupted one left, which lay behind the link."""
    outside = forgery.parent / "outside"
    outside.mkdir()
    (outside / "letter.txt").write_text("Dear Ada")
    if (forgery / name).exists():
        (forgery / name).rename(forgery.parent / "moved")
    (forgery / name).symlink_to(outside)
    with pytest.raises(DataError, match="holds links"):
        Index.open(forgery, check=False).delete(corpora[0].documents[1].docid)
    assert [path.name for path in outside.iterdir()] == ["letter.txt"]


def test_a_lock_that_is_somebodys_file_is_not_emptied(forgery: Path, corpora: list[Corpus]) -> None:
    letter = forgery.parent / "letter.txt"
    letter.write_text("Dear Ada, this is longer than the number of a process.")
    (forgery / "lock").unlink(missing_ok=True)
    os.link(letter, forgery / "lock")
    with pytest.raises(DataError, match="holds something else than the number of a process"):
        Index.open(forgery).delete(corpora[0].documents[1].docid)
    assert letter.read_text().startswith("Dear Ada")


def test_a_hole_does_not_raise_the_bounds_of_the_child(forgery: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (forgery / "blobs" / "hole").touch()
    os.truncate(forgery / "blobs" / "hole", 1 << 40)
    bounds: dict[str, Any] = {}

    def run(command: list[str], *, timeout: float, **options: Any) -> subprocess.CompletedProcess[bytes]:
        bounds.update(json.loads(command[-1]), timeout=timeout)
        return subprocess.CompletedProcess(command, 0, b'{"checks": []}')

    monkeypatch.setattr(subprocess, "run", run)
    strangers.screen(forgery)
    assert bounds["timeout"] < strangers.SECONDS + 10 and bounds["memory"] < strangers.MEMORY + (100 << 20)


BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}


def charsmap(size: int, longest: int) -> dict[str, Any]:
    raw = size.to_bytes(4, "little") + bytes(4096) + b"a\0" + b"b" * longest + b"\0"
    return {"normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(raw).decode()}}


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES, BYTES]}}, "pretokenizers has a part twice"),  # each doubles a text
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Sequence", "pretokenizers": [BYTES]}]}}, "kind 'Sequence'"),
        ({"normalizer": {"type": "Sequence", "normalizers": [BERT] * 8}}, "normalizers has a part twice"),
        ({"normalizer": {"type": "Sequence", "normalizers": [BERT] * 9}}, "expected a list of at most 8"),
        (  # of a text in windows, the library makes all combinations
            {"post_processor": {"type": "TemplateProcessing", "single": [TEXT, TEXT], "pair": [], "special_tokens": {}}},
            "post_processor.single has a text twice",
        ),
        (charsmap(0xFFFFFFFC, 4), "says another size than it has"),  # the library sets 4 GiB aside, and ends the process if it cannot
        (charsmap(4095, 4), "says another size than it has"),
        (charsmap(4096, 65), "lets a character become more than 64 bytes"),  # two thousand of these in a query were gigabytes
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "?"}}, "is no base64"),
    ],
)
def test_tokenizers_that_multiply_a_text_are_refused(parts: dict[str, Any], says: str) -> None:
    model = {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": {"a": 0}}
    check_tokenizer(json.dumps({"model": model, **charsmap(4096, 64)}), 1)
    with pytest.raises(ValueError, match=says):
        check_tokenizer(json.dumps({"model": model, **parts}), 1)


def record_without_ranks(folder: Path) -> None:
    content = {"format": 3, "generation": 1, "corpus": "d0", "split": "test", "ranks": []}
    (folder / "records" / f"000001-{'0' * 16}.json").write_bytes(forged.seal(json.dumps(content).encode()))


@pytest.mark.parametrize(
    ("change", "path", "status"),
    [
        (rows(np.nan), "/api/search?q=water&explain=true", 503),
        (metadata('{"a": NaN, "b": [Infinity]}'), "/api/documents/DOCID", 200),
        (metadata('{"a": "\\ud800"}'), "/api/documents/DOCID", 503),
        (record_without_ranks, "/api/retention", 503),
        (words(pointers=overflowing), "/api/index", 503),
    ],
    ids=["rows", "numbers", "surrogates", "records", "words"],
)
def test_a_server_of_a_hostile_index_says_so(
    forgery: Path, corpora: list[Corpus], change: Callable[[Path], None], path: str, status: int
) -> None:
    change(forgery)
    with served.serving(forgery) as running:
        answer = running.client.get(path.replace("DOCID", corpora[0].documents[1].docid))
        assert answer.status_code == status, answer.text
        assert status == 200 or answer.json()["error"]["code"] != "internal"
        assert httpx.get(f"{running.url}/healthz").status_code == 200


def test_an_assistant_gets_a_sentence(forgery: Path) -> None:
    mcp = pytest.importorskip("promptdsi.serving.mcp")
    rows(np.nan)(forgery)
    with pytest.raises(Exception, match="is inconsistent"):
        asyncio.run(mcp.create_server(forgery, device="cpu").call_tool("search", {"query": "water"}))
