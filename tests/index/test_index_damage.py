"""Damage, foreign files and other releases: a clear error that names the file, never wrong results (R4, R6, R24)."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small

from promptdsi import Corpus, DataError, Index, PromptDSIError
from promptdsi.aliases import MANIFEST
from promptdsi.errors import UsageError
from promptdsi.index.manifest import Manifest
from promptdsi.index.results import NoIndex
from promptdsi.index.sealed import FORMAT, sealed, unsealed
from promptdsi.index.store import Store
from promptdsi.methods.saving import to_bytes

GOLDEN = Path(__file__).parent / "golden"


def data_files(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*") if path.is_file() and path.name != "lock")


def test_a_flipped_byte_in_any_file_is_found_and_named(place: Path, corpora: list[Corpus], run: Any) -> None:
    index = Index.open(place, device="cpu")
    index.evaluate(corpora[0], record=True)
    expected = small.signature(index)
    files = data_files(place)
    assert {path.parent.name for path in files} == {"index", "blobs", "generations", "records"}
    rng = random.Random(0)
    for path in files:
        content = path.read_bytes()
        for place_of in {0, len(content) - 1, *(rng.randrange(len(content)) for _ in range(4))}:
            spoiled = bytearray(content)
            spoiled[place_of] ^= 1 << rng.randrange(8)
            path.write_bytes(bytes(spoiled))
            names = {path.name} if path.name != "000002.json" else {path.name, "CURRENT"}
            problem = problem_of(place)
            if problem is None:  # not needed by the current generation: verify finds it
                assert small.signature(place) == expected
                problem = "; ".join(Index.open(place, device="cpu").verify().problems)
            assert any(name in problem for name in names), f"{path.name} byte {place_of}: {problem}"
        path.write_bytes(content)
    path = files[0]
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    outcome = run("search", place, "tea", "--device", "cpu")
    assert outcome.returncode == 1 and outcome.stderr.startswith("error: ") and "Traceback" not in outcome.stderr


def problem_of(place: Path) -> str | None:
    try:
        small.signature(place)
    except PromptDSIError as error:
        return str(error)
    return None


def test_a_missing_or_cut_file_is_found_and_named(place: Path, corpora: list[Corpus]) -> None:
    for path in data_files(place):
        content = path.read_bytes()
        for change in ("missing", "cut", "longer", "empty"):
            if change == "missing":
                path.unlink()
            else:
                path.write_bytes({"cut": content[:-1], "longer": content + b"\0", "empty": b""}[change])
            problem = problem_of(place)
            try:
                problems = Index.open(place, device="cpu").verify().problems
            except PromptDSIError as error:
                problems = [str(error)]
            assert problems and path.name in "; ".join([problem or "", *problems]), f"{path.name} {change}: {problems}"
            path.write_bytes(content)
    assert Index.open(place, device="cpu").verify().problems == []


def test_verify_sees_what_checksums_cannot(place: Path, corpora: list[Corpus]) -> None:
    """Files that are whole but wrong: each problem is put there with a right checksum."""
    store = Store(place)
    manifest = store.manifest()
    entry = manifest.corpora[0]
    rows = store.blobs.tensors(entry.rows)["rows"].clone()
    ids = store.blobs.json(entry.ids)

    def with_entry(**changes: Any) -> Manifest:
        import dataclasses

        return dataclasses.replace(manifest, corpora=(dataclasses.replace(entry, **changes), *manifest.corpora[1:]))

    spoiled = rows.clone()
    spoiled[3, 2] = float("nan")
    twice = ids | {"docids": [ids["docids"][1], *ids["docids"][1:]]}
    cases = {
        "rows hold NaN or Inf": with_entry(rows=store.blobs.put(to_bytes({"rows": spoiled}), "safetensors")),
        "rows are not 73 × 16 numbers": with_entry(rows=store.blobs.put(to_bytes({"rows": rows[:-1]}), "safetensors")),
        "stand for more than one document": with_entry(ids=store.blobs.put_json(twice)),
        "20 docids for 21 documents": with_entry(
            ids=store.blobs.put_json(ids | {"docids": ids["docids"][1:], "marks": ids["marks"][64:]}),
        ),
        "the stored documents are not those of the rows": with_entry(documents=manifest.corpora[1].documents),
        "documents are deleted that do not exist": replace(manifest, tombstones=(99,)),
    }
    for says, wrong in cases.items():
        store.commit(wrong)
        assert says in "; ".join(_verify(store)), says
        problem_of(place)  # raises nothing that is not an error for a person
    store.write_manifest(manifest)  # the last one cannot be read, and so nothing can be committed after it
    store.point_to(manifest.number)
    stray = store.blobs.put(b"nobody's", "json")
    (place / "blobs/.documents.x1y2").write_text("half a file")
    (place / "generations/000003.json").write_text("never committed")
    for name in (stray, ".documents.x1y2", "000003.json"):
        assert any(f"{name} belongs to no generation" in problem for problem in _verify(store)), name
    (place / "notes.txt").write_text("mine")
    assert any("notes.txt is no part of an index" in problem for problem in _verify(store))
    (place / ".gitattributes").write_text("mine too")
    Index.open(place, device="cpu").delete(corpora[0].documents[0].docid)
    assert (place / ".gitattributes").exists()
    assert _verify(store) == [f"{place / 'notes.txt'} is no part of an index"]


def _verify(store: Store) -> list[str]:
    from promptdsi.index.verify import verify

    return verify(store).problems


def test_symlinks_and_paths_that_lead_out_are_refused(place: Path, tmp_path: Path) -> None:
    store = Store(place)
    manifest = store.manifest()
    for inside in (manifest.encoder, manifest.corpora[0].ids):
        path = place / "blobs" / inside
        moved = tmp_path / inside
        path.rename(moved)
        path.symlink_to(moved)
        with pytest.raises(DataError, match="is a link; an index holds its own files only"):
            Index.open(place)
        path.unlink()
        moved.rename(path)
    for folder in ("blobs", "generations"):
        (place / folder).rename(tmp_path / folder)
        (place / folder).symlink_to(tmp_path / folder)
        with pytest.raises(DataError, match="links"):
            Index.open(place)
        (place / folder).unlink()
        (tmp_path / folder).rename(place / folder)
    secret = tmp_path / "secret.json"
    secret.write_text('{"docids": [], "marks": ""}')
    content = unsealed(place / "generations/000002.json")
    for name in ("../../secret.json", str(secret), "x.json", "a" * 64 + ".pkl"):
        wrong = json.loads(json.dumps(content))
        wrong["corpora"][0]["ids"] = name
        wrong["sizes"][name] = 1
        (place / "generations/000002.json").write_bytes(sealed(wrong))
        store.point_to(2)
        with pytest.raises(DataError, match="which is no blob's name"):
            Index.open(place)
    (place / "generations/000002.json").write_bytes(sealed(content))
    store.point_to(2)
    (place / "CURRENT").rename(tmp_path / "CURRENT")
    (place / "CURRENT").symlink_to(tmp_path / "CURRENT")
    with pytest.raises(DataError, match="links"):
        Index.open(place)


def test_a_lying_header_is_refused_before_memory_is_used(place: Path) -> None:
    """A blob that says it holds a petabyte, with a right checksum."""
    store = Store(place)
    manifest = store.manifest()
    header = json.dumps({"rows": {"dtype": "F32", "shape": [10**9, 10**6], "data_offsets": [0, 4 * 10**15]}}).encode()
    for raw in (len(header).to_bytes(8, "little") + header + b"\0" * 64, (2**62).to_bytes(8, "little") + header, b"\0" * 4):
        name = store.blobs.put(raw, "safetensors")
        content = unsealed(place / "generations/000002.json")
        content["corpora"][0]["rows"] = name
        content["sizes"] |= {name: len(raw)}
        (place / "generations/000002.json").write_bytes(sealed(content))
        store.point_to(2)
        with pytest.raises(DataError, match="is damaged"):
            Index.open(place)
        store.commit(manifest)


def test_a_newer_format_says_which_release_reads_it(place: Path, run: Any) -> None:
    content = unsealed(place / "generations/000002.json") | {"format": FORMAT + 1, "written_by": "7.1.0", "unheard_of": True}
    (place / "generations/000002.json").write_bytes(sealed(content))
    Store(place).point_to(2)
    outcome = run("info", place)
    assert outcome.returncode == 1
    assert "was written by promptdsi 7.1.0 in format 5" in outcome.stderr and "install promptdsi 7.1.0 or newer" in outcome.stderr


@pytest.mark.parametrize("golden", sorted(path.name for path in GOLDEN.iterdir() if path.is_dir()))
def test_indexes_of_earlier_releases_open(golden: str, tmp_path: Path) -> None:
    """Made once with `tools/docs/build_golden.py` and never again: what was written then must be read now, with the same answers."""
    place = small.copied(GOLDEN / golden / "index", tmp_path / "index")
    expected = json.loads((GOLDEN / golden / "expected.json").read_text("utf-8"))
    old = unsealed(place / "generations/000001.json")
    assert old["format"] == int(golden.split("-")[1])
    first = Index.open(place, at=1, device="cpu").manifest
    if old["format"] == 1:  # the file has the old names, the manifest that is read the new ones
        assert all(getattr(first, new) == old[name] for name, new in MANIFEST.items())
        assert first.params["encoding"]["normalize"] == old["params"]["normalise"] and "stand_ins" not in first.params
    index = Index.open(place, device="cpu")
    assert index.verify().problems == []
    for query, hits in expected["searches"].items():
        results = index.search(query, k=len(hits))
        assert [hit.docid for hit in results] == [hit["docid"] for hit in hits]
        assert [hit.score for hit in results] == pytest.approx([hit["score"] for hit in hits], rel=1e-4)
        assert [(hit.title, hit.corpus, hit.since) for hit in results] == [(hit["title"], hit["corpus"], hit["since"]) for hit in hits]
    assert [manifest.kind for manifest in index.log()] == expected["kinds"]
    more = Corpus.read(GOLDEN / golden / "more.jsonl")
    if index.opened.method.retired:  # made with an option that was removed: rows cannot be trained as the earlier ones were
        with pytest.raises(PromptDSIError, match="made with stand_ins=16, which was removed"):
            index.add(more, name="more")
    index.add(more, name="more", fast=bool(index.opened.method.retired))  # and learning goes on
    assert index.get(more.documents[0].docid) == more.documents[0]
    assert index.info().format == FORMAT and not set(MANIFEST) & unsealed(place / f"generations/{index.generation:06d}.json").keys()
    generations = {path.name: path.read_bytes() for path in (GOLDEN / golden / "index/generations").iterdir()}
    assert generations.items() <= {path.name: path.read_bytes() for path in (place / "generations").iterdir()}.items()  # as they were
    if old["format"] >= 3:
        assert index.verify().problems == []
        return
    title = more.documents[0].title
    by_rows = next(hit for hit in index.search(title, k=100) if hit.docid == more.documents[0].docid)
    index.upgrade()  # words count now, though nothing was trained
    assert index.search(title)[0].docid == more.documents[0].docid and index.search(title)[0].score > by_rows.score
    assert index.verify().problems == [] and index.manifest.corpora[0].rows == first.corpora[0].rows
    with pytest.raises(UsageError, match="has words already"):
        index.upgrade()


def test_nothing_is_unpickled_and_no_socket_is_opened(place: Path, corpora: list[Corpus]) -> None:
    """In a process of its own, under an audit hook, offline by the environment (R24, R25)."""
    corpora[2].write(place.parent / "d2")
    program = (
        "import sys\n"
        "seen = []\n"
        "def hook(event, arguments):\n"
        "    if event == 'pickle.find_class' or event.startswith('socket.') and 'promptdsi.index.index' in sys.modules:\n"
        "        seen.append((event, arguments[:2]))\n"
        "from promptdsi import Corpus, Index\n"
        "import promptdsi.index.index\n"
        "sys.addaudithook(hook)\n"
        "place, d2 = sys.argv[1:]\n"
        "index = Index.open(place, device='cpu')\n"
        "index.add(Corpus.read(d2))\n"
        "index.search('tea', explain=True)\n"
        "index.purge(index.search('tea', k=1)[0].docid)\n"
        "index.verify()\n"
        "assert not seen, seen\n"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    words = [sys.executable, "-c", program, str(place), str(place.parent / "d2")]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_create_offline_opens_no_socket(tmp_path: Path, corpora: list[Corpus], backbone: str, no_network: None) -> None:
    small.create(tmp_path / "index", corpora[0], backbone).add(corpora[1])
    with pytest.raises(PromptDSIError, match="not in the Hugging Face cache and we are offline"):
        small.create(tmp_path / "hub", corpora[0], "nobody/no-such-model")
    assert not (tmp_path / "hub").exists()


def test_a_lost_current_is_said(place: Path) -> None:
    (place / "CURRENT").unlink()
    with pytest.raises(NoIndex, match="has lost its file CURRENT: restore it from a copy"):
        Index.open(place)
