"""Broken input: each kind gives one clear sentence with file and line, exit code 1, and nothing is written (R10 to R14)."""

from __future__ import annotations

import contextlib
import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from faults import heeding

GOOD = b'{"_id": "d1", "title": "T", "text": "some text"}\n'
QUERY = b'{"_id": "q1", "text": "a query"}\n'


class Case(NamedTuple):
    name: str
    files: dict[str, bytes]
    place: str  # file:line the sentence must name
    says: str  # what it must say


CASES = [
    Case("cut-off JSON", {"corpus.jsonl": GOOD + b'{"_id": "d2", "text": "x"\n'}, "corpus.jsonl:2:26", "not JSON"),
    Case("not JSON at all", {"corpus.jsonl": b"hello there\n"}, "corpus.jsonl:1:1", "starts 'hello there'"),
    Case("a list, not an object", {"corpus.jsonl": GOOD + b"[1, 2]\n"}, "corpus.jsonl:2", "expected a JSON object"),
    Case("NaN", {"corpus.jsonl": b'{"_id": "d1", "text": "x", "year": NaN}\n'}, "corpus.jsonl:1", "NaN is not JSON"),
    Case("infinite number", {"corpus.jsonl": b'{"_id": "d1", "text": "x", "n": 1e999}\n'}, "corpus.jsonl:1", "'1e999' is too large"),
    Case(
        "nested deeply",
        {"corpus.jsonl": b'{"_id": "d1", "text": "x", "n": ' + b"[" * 990 + b"]" * 990 + b"}\n"},
        "corpus.jsonl:1",
        "nested too deeply",
    ),
    Case("nested without end", {"corpus.jsonl": b"[" * 100_000 + b"\n"}, "corpus.jsonl:1", "nested too deeply"),
    Case("endless number", {"corpus.jsonl": b'{"_id": "d1", "text": "x", "n": ' + b"9" * 5000 + b"}\n"}, "corpus.jsonl:1", "digits"),
    Case("no id", {"corpus.jsonl": GOOD + b'{"id": "d2", "text": "x"}\n'}, "corpus.jsonl:2", "no \"_id\"; the line has 'id', 'text'"),
    Case("blank id", {"corpus.jsonl": b'{"_id": "  ", "text": "x"}\n'}, "corpus.jsonl:1", "blank"),
    Case("id is a number", {"corpus.jsonl": b'{"_id": 7, "text": "x"}\n'}, "corpus.jsonl:1", '"_id" is a number'),
    Case("over-long id", {"corpus.jsonl": b'{"_id": "' + b"x" * 600 + b'", "text": "x"}\n'}, "corpus.jsonl:1", "600 characters"),
    Case("control character in id", {"corpus.jsonl": b'{"_id": "a\\tb", "text": "x"}\n'}, "corpus.jsonl:1", "control character U+0009"),
    Case("not UTF-8", {"corpus.jsonl": GOOD + b'{"_id": "d2", "text": "caf\xe9"}\n'}, "corpus.jsonl:2", "byte 0xe9 at byte offset 75"),
    Case("NUL byte", {"corpus.jsonl": b'{"_id": "d1", "text": "a\x00b"}\n'}, "corpus.jsonl:1:25", "NUL"),
    Case("escaped NUL", {"corpus.jsonl": b'{"_id": "d1", "text": "a\\u0000b"}\n'}, "corpus.jsonl:1", "NUL"),
    Case("lone surrogate", {"corpus.jsonl": b'{"_id": "d1", "text": "a\\ud800"}\n'}, "corpus.jsonl:1", "lone surrogate U+D800"),
    Case("empty text", {"corpus.jsonl": b'{"_id": "d1", "text": " \\n "}\n'}, "corpus.jsonl:1", '"text" is empty'),
    Case("text is null", {"corpus.jsonl": b'{"_id": "d1", "text": null}\n'}, "corpus.jsonl:1", '"text" is null'),
    Case("title is a list", {"corpus.jsonl": b'{"_id": "d1", "text": "x", "title": ["a"]}\n'}, "corpus.jsonl:1", '"title" is a list'),
    Case("id again, other content", {"corpus.jsonl": GOOD + b'{"_id": "d1", "text": "y"}\n'}, "corpus.jsonl:2", "other content"),
    Case("no document", {"corpus.jsonl": b"\n\n"}, "corpus", "holds no document"),
    Case("cut-off gzip", {"corpus.jsonl.gz": gzip.compress(GOOD * 50)[:-12]}, "corpus.jsonl.gz", "not a whole gzip file"),
    Case("gzip in name only", {"corpus.jsonl.gz": GOOD}, "corpus.jsonl.gz:1", "not a whole gzip file"),
    Case("plain and gz", {"corpus.jsonl": GOOD, "corpus.jsonl.gz": gzip.compress(GOOD)}, "corpus.jsonl", "keep one of the two"),
    Case(
        "query kind unknown",
        {"corpus.jsonl": GOOD, "queries.jsonl": b'{"_id": "q1", "text": "x", "kind": "guess"}\n'},
        "queries.jsonl:1",
        "'guess'",
    ),
    Case("empty query", {"corpus.jsonl": GOOD, "queries.jsonl": b'{"_id": "q1", "text": ""}\n'}, "queries.jsonl:1", "empty"),
    Case(
        "qrels of unknown document",
        {"corpus.jsonl": GOOD, "queries.jsonl": QUERY, "qrels/train.tsv": b"q1\td1\t1\nq1\td9\t1\n"},
        "train.tsv:2",
        "unknown document 'd9'; 1 such rows",
    ),
    Case(
        "qrels of unknown query",
        {"corpus.jsonl": GOOD, "qrels/test.tsv": b"query-id\tcorpus-id\tscore\nq8\td1\t1\n"},
        "test.tsv:2",
        "unknown query 'q8'",
    ),
    Case(
        "qrels with two cells",
        {"corpus.jsonl": GOOD, "queries.jsonl": QUERY, "qrels/train.tsv": b"q1\td1\n"},
        "train.tsv:1",
        "2 tab-separated cells",
    ),
    Case(
        "qrels score not a number",
        {"corpus.jsonl": GOOD, "queries.jsonl": QUERY, "qrels/dev.tsv": b"q1\td1\tyes\n"},
        "dev.tsv:1",
        "'yes' is not a whole",
    ),
    Case(
        "qrels contradict themselves",
        {"corpus.jsonl": GOOD, "queries.jsonl": QUERY, "qrels/dev.tsv": b"q1\td1\t1\nq1\td1\t0\n"},
        "dev.tsv:2",
        "judged 1 before",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_one_sentence_with_its_place_and_nothing_written(case: Case, run: Any, tmp_path: Path) -> None:
    for name, content in case.files.items():
        path = tmp_path / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    outcome = run("data", "corpus", "-o", "out", "--new", "0")
    assert outcome.returncode == 1, outcome.stderr
    assert outcome.stdout == ""
    lines = outcome.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), outcome.stderr
    assert case.place in lines[0]
    assert case.says in lines[0]
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_there_are_at_least_twenty_kinds() -> None:
    assert len(CASES) >= 20


@pytest.mark.parametrize(
    ("name", "content", "place", "says"),
    [
        ("pairs.tsv", b"only one cell\n", "pairs.tsv:1", "1 tab-separated cells"),
        ("pairs.tsv", b"query\ttext\nq\tt\textra\n", "pairs.tsv:2", "expected 2: query, text"),
        ("pairs.tsv", b"a query\t \n", "pairs.tsv:1", "empty"),
        ("pairs.tsv", b"q\td1\tone text\nq\td1\tother text\n", "pairs.tsv:2", "other content"),
        ("notes/empty.txt", b" \n", "empty.txt", "empty"),
        ("notes/nul.md", b"caf\x00\n", "nul.md", "NUL"),
        ("notes.pdf", b"%PDF", "notes.pdf", "is no PDF file"),
        ("notes.png", b"\x89PNG", "notes.png", "is no corpus"),
    ],
)
def test_broken_pairs_and_text_files(name: str, content: bytes, place: str, says: str, run: Any, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    outcome = run("data", name.split("/")[0], "-o", "out", "--new", "0", "--on-error", "stop")
    assert (outcome.returncode, outcome.stdout) == (1, "")
    assert place in outcome.stderr and says in outcome.stderr and len(outcome.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_bad_files_are_skipped_unless_none_is_left(run: Any, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/empty.txt").write_bytes(b" \n")
    outcome = run("data", "notes", "-o", "out", "--new", "0")
    assert outcome.returncode == 1 and outcome.stderr.endswith("error: notes: holds no document: notes/empty.txt: is empty\n")
    (tmp_path / "notes/latin.md").write_bytes(b"caf\xe9\n")
    outcome = run("data", "notes", "-o", "out", "--new", "0")
    assert outcome.returncode == 0 and "1 could not be read and was skipped:\n  notes/empty.txt: is empty\n" in outcome.stderr
    assert "latin.md: not UTF-8, read as cp1252" in outcome.stderr


def test_a_file_name_that_is_not_utf8(run: Any, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/notes/caf\xe9.txt")).write_text("coffee")
    outcome = run("data", "notes", "-o", "out", "--new", "0")
    assert outcome.returncode == 1 and "lone surrogate" in outcome.stderr and "Traceback" not in outcome.stderr


def test_skipping_works_for_whole_folders_and_says_why_when_nothing_is_left(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_bytes(GOOD + b'{"_id": "d2", "text": ""}\n')
    (folder / "queries.jsonl").write_bytes(QUERY)
    (folder / "qrels/train.tsv").write_bytes(b"q1\td1\t1\nq1\td2\t1\n")
    (folder / "qrels/validation.tsv").write_bytes(b"q1\td1\t1\n")
    outcome = run("data", "corpus", "-o", "out", "--new", "0", "--on-error", "skip")
    assert outcome.returncode == 0, outcome.stderr
    assert "1 could not be read and was skipped" in outcome.stderr and "1 judgement in train.tsv names unknown" in outcome.stderr
    assert "1 file in qrels is no split we know and was not read (validation.tsv)" in outcome.stderr
    (folder / "corpus.jsonl").write_bytes(b"nonsense\n")
    outcome = run("data", "corpus", "-o", "out2", "--new", "0", "--on-error", "skip")
    assert outcome.returncode == 1 and "corpus.jsonl:1:1: not JSON" in outcome.stderr and "holds no document" in outcome.stderr


def test_messages_stay_short_whatever_the_data(run: Any, tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"' + "k" * 300_000 + '": 1}\n')
    assert len(run("data", "c.jsonl", "-o", "out").stderr) < 500


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_says_so(number: signal.Signals, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "c.jsonl")  # a corpus that is never read to its end: the signal arrives in the middle of reading
    command = [sys.executable, "-m", "promptdsi", "data", "c.jsonl", "-o", "out"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, preexec_fn=heeding)
    with (tmp_path / "c.jsonl").open("w") as file:  # opened as soon as the command reads
        file.write('{"_id": "d", "text": "some words"}\n')
        file.flush()
        message = None
        while message is None:  # Python misses a signal between its last look and a read that waits, until the next one
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, message = process.communicate(timeout=10)
    assert process.returncode == 130 and message.strip() == "error: interrupted; run the same command again to go on"
    assert [path.name for path in tmp_path.iterdir()] == ["c.jsonl"]


def test_skip_counts_and_lists_what_it_skipped(run: Any, tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_bytes(
        GOOD + b"nonsense\n" + b'{"_id": "d2", "text": "\xff"}\n' + b'{"_id": "d3", "text": "fine"}\n' + GOOD
    )
    outcome = run("data", "c.jsonl", "-o", "out", "--new", "0", "--on-error", "skip")
    assert outcome.returncode == 0
    assert "2 could not be read and were skipped" in outcome.stderr
    assert "c.jsonl:2:1: not JSON" in outcome.stderr and "c.jsonl:3: not UTF-8" in outcome.stderr
    assert "1 document repeated with equal content, kept once" in outcome.stderr
    assert len((tmp_path / "out/d0/corpus.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "words",
    [
        ("data", "demo"),
        ("data", "demo", "-o", "x", "--new", "200"),
        ("data", "demo", "-o", "x", "--share", "0"),
        ("data", "demo", "-o", "x", "--by", "subject", "--new", "2"),
        ("data", "demo", "-o", "x", "--by", "subject", "--by-date", "arrives"),
        ("data", "nq320k", "-o", "x"),
        ("data", "msmarco300k", "-o", "x"),
        ("data", "irds:", "-o", "x"),
        ("data", "demo", "-o", "x", "--on-error", "panic"),
        ("data", "demo:more", "-o", "x"),
        ("data", "demo", "-o", "x", "--raw", "."),
        ("queries", ".", "-g", "crystal-ball"),
        ("queries", ".", "-g", "spans", "--model", "x"),
        ("no-such-command",),
    ],
)
def test_wrong_usage_is_exit_code_2(words: tuple[str, ...], run: Any, tmp_path: Path) -> None:
    outcome = run(*words)
    assert outcome.returncode == 2
    assert "Traceback" not in outcome.stderr and outcome.stderr.strip()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_path_names_the_sources(run: Any) -> None:
    outcome = run("data", "nowhere", "-o", "out")
    assert outcome.returncode == 1
    assert "neither a path nor one of the sources demo, irds, msmarco300k, nq320k, squadx" in outcome.stderr


def test_an_unwritable_place_is_one_sentence(run: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    outcome = run("data", "demo", "-o", "file/stream")
    assert outcome.returncode == 1
    assert "file" in outcome.stderr and len(outcome.stderr.strip().splitlines()) == 1
