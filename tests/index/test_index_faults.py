"""Durability: whatever happens to a writer, readers find the old generation or the new one, whole (R1, R2, R3, R7, R8, R9)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import small
from faults import Died, Faults, PowerLoss, heeding

from promptdsi import Corpus, DataError, Document, Index, PromptDSIError
from promptdsi.index import merge_corpora
from promptdsi.index.lock import writing
from promptdsi.index.results import Busy, NoIndex
from promptdsi.index.store import Store

ROOT = Path(__file__).parents[2]


def change(what: str, place: Path, corpora: list[Corpus], backbone: str) -> None:
    """One writing command on the small index."""
    first = corpora[0].documents[0].docid
    if what == "create":
        small.create(place, corpora[0], backbone, prompts="s++", prompt_options={"prompt_length": 4})
        return
    index = Index.open(place, device="cpu")
    actions: dict[str, Callable[[], object]] = {
        "add": lambda: index.add(corpora[2]),
        "delete": lambda: index.delete(first),
        "purge": lambda: index.purge(first),
        "rollback": lambda: index.rollback(1),
        "teach": lambda: index.teach([("a query of somebody", first)]),
        "sync": lambda: index.sync(notes(place.parent / "notes")),
    }
    actions[what]()


def notes(folder: Path) -> Path:
    """Two files that no index holds yet."""
    folder.mkdir(exist_ok=True)
    for name, text in (("oven.md", "# Oven\n\nBread is baked in an oven."), ("lock.txt", "Boats are lifted by a lock.")):
        (folder / name).write_text(text)
    return folder


def begin(what: str, original: Path, place: Path) -> None:
    """The place as it is before the command: nothing for create, the small index for all others."""
    shutil.rmtree(place, ignore_errors=True)
    if what != "create":
        small.copied(original, place)


def outcome(place: Path) -> tuple[object, ...]:
    try:
        return (Store(place).current(), *small.signature(place))
    except NoIndex:
        return ("nothing",)


@pytest.mark.parametrize("what", ["create", "add", "delete", "purge", "rollback", "teach", "sync"])
def test_killed_at_any_step_leaves_the_old_or_the_new(
    what: str, original: Path, corpora: list[Corpus], backbone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "index"
    begin(what, original, place)
    before = outcome(place)
    with monkeypatch.context() as patch:
        counted = Faults().install(patch)
        change(what, place, corpora, backbone)
    after = outcome(place)
    assert before != after and counted.count >= 6
    seen = set()
    for step in range(1, counted.count + 1):
        begin(what, original, place)
        with monkeypatch.context() as patch:
            Faults(at=step).install(patch)
            with pytest.raises(Died):
                change(what, place, corpora, backbone)
        result = outcome(place)
        assert result in (before, after), f"neither old nor new after dying at {counted.log[step - 1]} ({step})"
        seen.add(result == after)
        if result == before:  # the same command again succeeds, over whatever was left
            change(what, place, corpora, backbone)
            assert outcome(place) == after
        elif what in ("purge", "create"):  # the next writer completes what was promised, and takes leftovers away
            Index.open(place, device="cpu").delete(corpora[0].documents[1].docid)
        assert Index.open(place, device="cpu").verify().problems == []
    assert seen == {False, True}  # deaths fell on both sides of the commit


@pytest.mark.parametrize("what", ["teach", "add"])  # documents move with the one, and stay in their files with the other
def test_killed_while_small_corpora_are_merged_leaves_the_change_or_the_merged(
    what: str, original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is committed comes before what is merged: each is there whole or not at all."""
    start, place = small.copied(original, tmp_path / "start"), tmp_path / "index"
    index = Index.open(start, device="cpu")
    for name in ("tides", "kilns"):
        index.add(Corpus([Document(name, f"A short note on {name} and water.")], name=name))
    outcomes, counts = [], []

    def act() -> None:
        index = Index.open(place, device="cpu")
        if what == "add":
            index.add(Corpus([Document("looms", "A short note on looms and water.")], name="looms"))
        else:
            index.teach([("a query of somebody", "tides")])

    for fan in (100, 3):  # a third small corpus comes, and with the lower number all three are merged
        monkeypatch.setattr(merge_corpora, "FAN", fan)
        begin("teach", start, place)
        with monkeypatch.context() as patch:
            counted = Faults().install(patch)
            act()
        outcomes.append(outcome(place))
        counts.append(counted.count)
    changed, merged = outcomes
    assert merged[0] == int(str(changed[0])) + 1 and counts[1] > counts[0] + 6
    seen = set()
    for step in range(counts[0], counts[1] + 1):
        begin("teach", start, place)
        with monkeypatch.context() as patch:
            Faults(at=step).install(patch)
            with pytest.raises(Died):
                act()
        result = outcome(place)
        assert result in (changed, merged), f"neither changed nor merged after dying at {counted.log[step - 1]} ({step})"
        seen.add(result == merged)
        Index.open(place, device="cpu").delete("kilns")  # the next writer takes leftovers away
        assert Index.open(place, device="cpu").verify().problems == []
    assert seen == {False, True}


@pytest.mark.parametrize("what", ["create", "add", "purge", "teach", "sync"])
def test_power_loss_keeps_what_was_reported_done(
    what: str, original: Path, corpora: list[Corpus], backbone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "index"
    begin(what, original, place)
    before = outcome(place)
    with monkeypatch.context() as patch:
        power = PowerLoss(place).install(patch)
        change(what, place, corpora, backbone)
    after = outcome(place)
    assert isinstance(power, PowerLoss)
    power.lose()
    assert outcome(place) == after
    assert Index.open(place, device="cpu").verify().problems == []
    for step in range(1, power.count + 1, 1 if what == "add" else 3):
        begin(what, original, place)
        with monkeypatch.context() as patch:
            again = PowerLoss(place, at=step)
            again.install(patch)
            with pytest.raises(Died):
                change(what, place, corpora, backbone)
        again.lose()
        assert outcome(place) in (before, after), power.log[step - 1]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
def test_a_failing_disk_is_said_and_harms_nothing(
    error: int, original: Path, corpora: list[Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = small.copied(original, tmp_path / "index")
    before = outcome(place)
    with monkeypatch.context() as patch:
        counted = Faults().install(patch)
        change("add", small.copied(original, tmp_path / "other"), corpora, "")
    for step in range(1, counted.count + 1, 1 if error == errno.ENOSPC else 5):
        small.copied(original, place)
        with monkeypatch.context() as patch:
            Faults(at=step, error=error).install(patch)
            try:
                change("add", place, corpora, "")
            except OSError as stopped:
                assert stopped.errno == error and str(place) in str(stopped.filename), counted.log[step - 1]
            else:  # only what comes behind the commit may fail unnoticed, and nothing does
                pytest.fail(f"{counted.log[step - 1]} failed and nobody said so")
        committed = Store(place).current() == 3
        assert outcome(place) == before or committed
        if not committed:
            change("add", place, corpora, "")
        assert Index.open(place, device="cpu").verify().problems == []  # leftovers are gone with the next write


def test_a_full_disk_on_the_command_line_is_one_sentence(place: Path, corpora: list[Corpus], run: object, monkeypatch: object) -> None:
    assert isinstance(monkeypatch, pytest.MonkeyPatch)
    corpora[2].write(place.parent / "d2")
    with monkeypatch.context() as patch:
        Faults(at=3, error=errno.ENOSPC).install(patch)
        outcome = run("add", place, place.parent / "d2", "--quiet", "--device", "cpu")  # type: ignore[operator]
    assert outcome.returncode == 1 and "No space left on device" in outcome.stderr
    assert str(place) in outcome.stderr and len(outcome.stderr.splitlines()) == 1


def test_a_real_limit_on_file_size_is_survived(place: Path, corpora: list[Corpus]) -> None:
    """The kernel itself refuses the write here, in another process."""
    corpora[2].write(place.parent / "d2")
    before = small.signature(place)
    program = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from promptdsi.cli.main import app\n"
        "import promptdsi.index.index\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))\n"
        "app(sys.argv[1:])\n"
    )
    words = ["add", str(place), str(place.parent / "d2"), "--quiet", "--device", "cpu"]
    ended = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and ended.stderr.startswith("error: ") and "Traceback" not in ended.stderr
    assert small.signature(place) == before


def test_real_kills_at_random_times() -> None:
    """Ten SIGKILLs during add; `make soak` does a hundred."""
    ended = subprocess.run(
        [sys.executable, "-m", "tools.soak.soak_kills", "--kills", "10", "--print"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["kills"] == 10 and report["neither"] == 0 and report["old"] + report["new"] == 10


def interrupted(words: list[str], number: int, begun: str) -> tuple[int, str]:
    """Run a command, send it a signal a second after it said that it began; its exit code and what it said."""
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=heeding) as process:
        assert process.stderr is not None
        assert begun in process.stderr.readline()
        time.sleep(1.0)
        process.send_signal(number)
        output = process.stderr.read()
        # Python ends itself with SIGINT, which a shell also shows as 130, if the signal hit while it was executing a string
        # (an import that builds a dataclass is enough).
        code = process.wait(timeout=30)
        return 130 if code == -signal.SIGINT else code, output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_add_leaves_the_index_as_it_was(number: int, place: Path, corpora: list[Corpus], backbone: str) -> None:
    slow = place.parent / "slow"
    small.create(slow, corpora[0], backbone, add_epochs=100_000)
    before = small.signature(slow)
    corpora[2].write(place.parent / "d2")
    words = [sys.executable, "-m", "promptdsi", "add", str(slow), str(place.parent / "d2"), "--device", "cpu", "--threads", "1"]
    code, output = interrupted(words, number, "learning 3 documents")
    assert code == 130 and output.strip().endswith(f"error: interrupted; {slow} is unchanged; run the same command again")
    assert small.signature(slow) == before and Store(slow).leftovers() == []


def test_an_interrupted_create_goes_on_from_its_checkpoint(tmp_path: Path, corpora: list[Corpus], backbone: str) -> None:
    steps: list[int] = []

    @contextlib.contextmanager
    def progress(what: str, **keywords: object) -> Iterator[Callable[[int], None]]:
        def advance(amount: int) -> None:
            if what == "learning D0":
                steps.append(amount)
                if sum(steps) == 5 and len(steps) > 1:
                    os.kill(os.getpid(), signal.SIGINT)

        yield advance

    longer = {"fit_epochs": 6, "effort": "full", "progress": progress}
    with pytest.raises(KeyboardInterrupt, match="answers already, but is not fully trained; run the same command again to go on"):
        small.create(tmp_path / "index", corpora[0], backbone, **longer)
    assert (tmp_path / "index/.learning/checkpoint.safetensors").is_file()
    untrained = Index.open(tmp_path / "index", device="cpu")
    assert untrained.generation == 1 and untrained.manifest.corpora[0].fast and len(untrained.search("what is water made of")) == 10
    with pytest.raises(DataError, match="is an index already"):  # of other documents
        small.create(tmp_path / "index", corpora[1], backbone, **longer)
    steps.clear()
    index = small.create(tmp_path / "index", corpora[0], backbone, **longer)
    assert steps[0] == 5 and not (tmp_path / "index/.learning").exists()
    reference = small.create(tmp_path / "whole", corpora[0], backbone, fit_epochs=6, effort="full")
    assert index.manifest.blobs() == reference.manifest.blobs()  # as if it had never been interrupted


def test_one_writer_at_a_time_and_the_holder_is_named(place: Path, corpora: list[Corpus]) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom promptdsi.index.store import writing\n"
        "with writing(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", program, str(place)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    try:
        with pytest.raises(Busy, match=rf"process {holder.pid} is writing to this index"):
            Index.open(place, device="cpu").delete(corpora[0].documents[0].docid)
        assert small.signature(place)  # readers need no lock
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    Index.open(place, device="cpu").delete(corpora[0].documents[0].docid)  # a dead holder blocks nobody


def test_a_lock_holder_that_wrote_nonsense_does_not_matter(place: Path) -> None:
    (place / "lock").write_bytes(b"\xff\xfe not a pid")
    with writing(place), pytest.raises(Busy, match="process"), writing(place):
        pass
    assert (place / "lock").read_bytes() == b""


def test_a_reader_sees_one_generation_while_others_are_made(place: Path, corpora: list[Corpus]) -> None:
    reader = Index.open(place, device="cpu")
    before = small.signature(reader)
    purged = corpora[0].documents[1].docid
    before = tuple(entry for entry in before if entry[0] != purged)
    wrong: list[object] = []
    stop = threading.Event()

    def rank_queries() -> None:
        # A purge erases the document's text under a reader's feet, which is its point; everything else stays.
        while not stop.is_set():
            if tuple(entry for entry in small.signature(reader) if entry[0] != purged) != before:
                wrong.append("changed")

    thread = threading.Thread(target=rank_queries)
    thread.start()
    writer = Index.open(place, device="cpu")
    writer.add(corpora[2])
    writer.delete(purged)
    writer.purge()
    time.sleep(0.1)
    stop.set()
    thread.join()
    assert not wrong
    assert reader.refresh() and reader.generation == 5 and small.signature(reader) == small.signature(place)


def test_a_folder_that_cannot_be_written_can_be_searched(place: Path, corpora: list[Corpus]) -> None:
    for path in [place, *place.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert small.signature(place)
        if os.geteuid():  # root may write anywhere
            with pytest.raises((OSError, PromptDSIError)):
                Index.open(place, device="cpu").add(corpora[2])
    finally:
        for path in [place, *place.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_errors_of_a_place_that_is_no_index(tmp_path: Path, corpora: list[Corpus], backbone: str) -> None:
    with pytest.raises(NoIndex, match="no index is here; make one with"):
        Index.open(tmp_path / "nowhere")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("x")
    with pytest.raises(DataError, match="exists and is no index"):
        small.create(tmp_path / "mine", corpora[0], backbone)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
