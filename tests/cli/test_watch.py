"""`promptdsi sync --watch`, as a process: it brings the index in step by itself, outlasts another writer, and ends with Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import served
import small

from promptdsi import Corpus, Document, Index
from promptdsi.index.store import Store


def docids(path: Path) -> set[str]:
    return {hit.docid for hit in Index.open(path, device="cpu").search("harbour", k=100)}


def test_watching_brings_the_index_in_step(backbone: str, tmp_path: Path) -> None:
    path, folder = tmp_path / "index", tmp_path / "notes"
    small.create(path, Corpus([Document("own", "A document of its own.")], name="own"), backbone, effort="quick")
    folder.mkdir()
    (folder / "first.txt").write_text("The lantern stands near the harbour.")
    command = [sys.executable, "-m", "promptdsi", "sync", str(path), str(folder), "--watch", "--fast", "--device", "cpu"]
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background ignore Ctrl-C, and so would it
    try:
        watcher = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, handler)
    try:
        assert watcher.stderr is not None
        while "watching" not in (line := watcher.stderr.readline()):
            assert line, "it ended before it watched"
        with Store(path).writing():  # another writer: what changes meanwhile is learned after it
            (folder / "second.txt").write_text("The orchard lies behind the harbour.")
            (folder / "first.txt").unlink()
            while "trying again" not in (line := watcher.stderr.readline()):
                assert line, "it ended because another process wrote"
        served.wait_until(lambda: docids(path) == {"own", "notes/second.txt"})
        (folder / ".hidden.txt").write_text("Nobody sees this.")
        (folder / "third.txt").write_text("The violin is played near the harbour.")
        served.wait_until(lambda: docids(path) == {"own", "notes/second.txt", "notes/third.txt"})
        watcher.send_signal(signal.SIGINT)
        assert watcher.wait(30) == 0
    finally:
        watcher.kill()
        watcher.wait()
        watcher.stderr.close()
