"""Manifests as files: stored against earlier ones, few and small; any sequence of changes reads back as it was written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import forged
import hypothesis.strategies as st
import pytest
import small
from hypothesis import given

from promptdsi import DataError, Index, PromptDSIError
from promptdsi.index.deltas import bases
from promptdsi.index.entry import Entry
from promptdsi.index.manifest import Manifest, PrunedGeneration
from promptdsi.index.manifest_files import ManifestFiles
from promptdsi.index.store import Store

ACTIONS = ["add", "add two", "merge", "replace", "delete", "undelete", "rollback", "purge", "prune"]
OTHER = f"{0:064x}.sqlite"  # a file that no index has
MOST_BYTES = 6_000  # of a generation's manifest, on average


def entry(number: int) -> Entry:
    """A corpus of three documents whose blobs are only names."""
    names = {part: f"{number:062x}{kind}" for kind, part in (("0a", "rows"), ("0b", "ids"), ("0c", "words"), ("0d", "documents"))}
    kinds = {"rows": "safetensors", "ids": "json", "words": "safetensors", "documents": "sqlite"}
    return Entry(f"corpus {number}", 1, 3, **{part: f"{name}.{kinds[part]}" for part, name in names.items()})


def grown(manifest: Manifest, *entries: Entry) -> Manifest:
    names = {name: 100 for new in entries for name in new.blobs()}
    return replace(manifest, corpora=(*manifest.corpora, *entries), sizes={**manifest.sizes, **names})


def equal(manifest: Manifest, expected: Manifest) -> bool:
    return all(getattr(manifest, field.name) == getattr(expected, field.name) for field in fields(Manifest) if field.name != "sizes")


class Model:
    """An index without blobs: what every generation should be, and the files they are read from."""

    def __init__(self, folder: Path, first: Manifest) -> None:
        self.files, self.states = ManifestFiles(folder / "generations"), dict[int, Manifest]()
        self.current = self.counter = 0
        self.commit(replace(first, number=1, parent=None, tombstones=(), retired=()))

    @property
    def newest(self) -> Manifest:
        return self.states[self.current]

    def commit(self, manifest: Manifest, without: tuple[int, ...] = ()) -> None:
        self.files.write(manifest, without=without)
        self.states[manifest.number] = manifest
        self.current = manifest.number

    def act(self, action: str, choice: int) -> None:
        self.counter += 1
        newest, total = self.newest, sum(each.count for each in self.newest.corpora)
        new = newest.next(action, event={})
        if action.startswith("add") or (action == "merge" and len(newest.corpora) < 3):
            self.commit(grown(new, *(entry(10 * self.current + number) for number in range(1 + (action == "add two")))))
        elif action == "merge":
            *others, first, last = newest.corpora
            files = [(name, covered.start) for name, covered in first.document_files]
            files += [(name, first.count + covered.start) for name, covered in last.document_files]
            merged = replace(entry(10 * self.current), count=first.count + last.count, documents=tuple(files))
            self.commit(grown(replace(new, corpora=tuple(others)), merged))
        elif action == "replace":
            place = choice % len(newest.corpora)
            rows = f"{self.counter:062x}0e.safetensors"
            corpora = [replace(each, rows=rows) if number == place else each for number, each in enumerate(newest.corpora)]
            self.commit(replace(new, corpora=tuple(corpora), sizes={**newest.sizes, rows: 7}))
        elif action == "delete":
            self.commit(replace(new, tombstones=tuple(sorted({*newest.tombstones, choice % total}))))
        elif action == "undelete":
            self.commit(replace(new, tombstones=newest.tombstones[1:]))
        elif action == "rollback":
            target = sorted(self.states)[choice % len(self.states)]
            self.commit(replace(self.states[target], number=self.current + 1, parent=self.current, kind="rollback", event={"to": target}))
        elif action == "purge":
            self.purge(choice)
        else:
            self.prune(choice)

    def purge(self, choice: int) -> None:
        """Rename the ids of a corpus and hide its first document, in every generation; file by file, and each can be read meanwhile."""
        old = self.newest.corpora[choice % len(self.newest.corpora)].ids
        new = f"{self.counter:062x}0f.json"
        changed = {number: self._purged(state, old, new) for number, state in self.states.items()}
        for number, state in changed.items():
            mixed = self.files.read(number)
            assert [each.name for each in mixed.corpora] == [each.name for each in state.corpora]
            self.files.write(state, states=changed)
        self.states = changed

    @staticmethod
    def _purged(state: Manifest, old: str, new: str) -> Manifest:
        renamed = replace(state.renamed({old: new}), sizes={**state.sizes, new: 5})
        hidden = {first for each, first in zip(renamed.corpora, renamed.firsts(), strict=True) if each.ids == new}
        return replace(renamed, tombstones=tuple(sorted({*renamed.tombstones, *hidden})))

    def prune(self, choice: int) -> None:
        """Drop half of the generations."""
        pruned = tuple(number for number in self.states if number != self.current and (number + choice) % 2)
        self.commit(self.newest.next("prune", pruned=pruned), without=pruned)
        left = {number: state for number, state in self.states.items() if number not in pruned}
        for number, state in left.items():
            if not set(pruned).isdisjoint(bases(number)):
                self.files.write(state, states=self.states, without=pruned)
        for number in reversed(pruned):
            self.files.prune(self.states[number], self.current)
        self.states = left

    def check(self) -> None:
        log = self.files.log(self.current)
        assert [state.number for state in log] == list(range(1, self.current + 1))
        assert {state.number for state in log if isinstance(state, PrunedGeneration)} == set(
            range(1, self.current + 1)
        ) - self.states.keys()
        for number, expected in self.states.items():
            state = log[number - 1]
            assert isinstance(state, Manifest) and equal(state, expected) and equal(self.files.read(number), expected)
            assert all(state.sizes[name] == expected.sizes[name] for name in state.blobs())


@given(actions=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1000)), max_size=40))
def test_any_sequence_of_changes_is_read_as_it_was_written(
    actions: list[tuple[str, int]], original: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = Model(tmp_path_factory.mktemp("manifests"), Store(original).manifest(1))
    for action, choice in actions:
        model.act(action, choice)
    model.check()


def test_many_generations_take_few_bytes_and_few_files(original: Path, tmp_path: Path) -> None:
    """With one document each, and deletions among them; 1,000 are measured by `tools/bench/generations.py`."""
    model, opened = Model(tmp_path, Store(original).manifest(1)), list[Path]()
    for number in range(2, 65):
        model.act("delete" if number % 5 == 0 else "add", number)
    model.check()
    sizes = [path.stat().st_size for path in (tmp_path / "generations").iterdir()]
    assert len(sizes) == 64 and sum(sizes) < 64 * MOST_BYTES
    content = model.files.content
    model.files.content = lambda number: [opened.append(model.files.path(number)), content(number)][1]  # type: ignore[assignment, func-returns-value]
    model.files.read(63)  # 111111 in binary
    assert [int(path.stem) for path in opened] == [63, 62, 60, 56, 48, 32]


@pytest.mark.parametrize(
    ("documents", "says"),
    [
        ({}, "documents is an object"),
        ([["x", 1]], "documents.0.name is 'x'"),
        ([[OTHER, -1]], "documents.0.position is -1"),
        ([[OTHER, 0, 2]], "documents.0 is a list, expected a list of 2"),
        ([], "files of documents do not follow each other"),
        ([[OTHER, 1]], "files of documents do not follow each other"),
        ([[OTHER, 0], [OTHER, 2], [OTHER, 1]], "files of documents do not follow each other"),
        ([[OTHER, 0], [OTHER, 10**6]], "files of documents do not follow each other"),
        ([[OTHER, 0], [OTHER, 1]], "sizes has none of 0000"),
    ],
)
def test_wrong_files_of_documents_are_one_sentence(documents: Any, says: str, original: Path, tmp_path: Path) -> None:
    place = small.copied(original, tmp_path / "index")
    forged.in_full(place)
    forged.manifest(place, lambda content: content["corpora"][0].update({"documents": documents}))
    with pytest.raises(DataError, match=says):
        Index.open(place)


@pytest.fixture
def chained(original: Path, tmp_path: Path) -> Path:
    """An index of seven generations: the newest is stored against 6, that against 4."""
    place = small.copied(original, tmp_path / "index")
    index = Index.open(place, device="cpu")
    docids = [hit.docid for hit in index.search("water", k=5)]
    for docid in docids:
        index.delete(docid)
    assert index.generation == 7 and forged.content(forged.current(place))["base"] == 6
    return place


FORGED: dict[str, tuple[int, Callable[[Any], object], str]] = {
    "itself as base": (7, lambda content: content.update(base=7), "base is 7, which generation 7 is not stored against"),
    "a later base": (6, lambda content: content.update(base=7), "base is 7, which generation 6 is not stored against"),
    "a base of another chain": (7, lambda content: content.update(base=5), "base is 5, which generation 7 is not stored against"),
    "no number as base": (7, lambda content: content.update(base="6"), "base is '6', expected a whole number"),
    "another time": (7, lambda content: content.update(base_time="2020"), "of another index, or another copy"),
    "more corpora than there are": (7, lambda content: content["corpora"].update(keep=9), "corpora.keep is 9, and generation 6 has 2"),
    "a corpus replaced that is not": (7, lambda content: content["corpora"].update(replaced={"5": {}}), "corpora.replaced"),
    "documents of no corpus": (7, lambda content: content.update(deleted={"9": {"added": [1], "removed": []}}), "deleted.9 is of a corpus"),
    "documents that do not exist": (
        7,
        lambda content: content["deleted"].update({"0": {"added": [10**6], "removed": []}}),
        "do not ascend|exist",
    ),
    "a blob without a size": (6, lambda content: content.update(encoder="0" * 64 + ".safetensors"), "sizes has none of 000"),
    "a prune of what is to come": (7, lambda content: content.update(pruned=[8]), "a later generation is pruned"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_chain_is_one_sentence(chained: Path, name: str) -> None:
    number, change, says = FORGED[name]
    forged.manifest(chained, change, chained / f"generations/{number:06d}.json")
    with pytest.raises(DataError, match=says):
        Index.open(chained, device="cpu")


def test_a_base_that_says_it_was_pruned_is_one_sentence(chained: Path) -> None:
    def prune(content: Any) -> Any:
        step = {name: content[name] for name in ("number", "parent", "kind", "time", "event", "format", "written_by")}
        return step | {"documents": 3, "pruned_by": 7}

    forged.manifest(chained, prune, chained / "generations/000006.json")
    with pytest.raises(DataError, match=r"000007.json: is stored against generation 6, which was pruned"):
        Index.open(chained, device="cpu")
    with pytest.raises(
        PromptDSIError, match=r"generation 6 \(made by `delete` on .*\) was pruned; `promptdsi log` lists those that are left"
    ):
        Store(chained).manifest(6)


def test_a_flipped_byte_in_any_file_of_a_chain_is_named(chained: Path) -> None:
    for number in (7, 6, 4):
        path = chained / f"generations/{number:06d}.json"
        raw = path.read_bytes()
        path.write_bytes(raw.replace(b'"number":', b'"numbeR":', 1))
        with pytest.raises(DataError, match=rf"{number:06d}.json"):
            Index.open(chained, device="cpu")
        path.write_bytes(raw)
    assert Index.open(chained, device="cpu").verify().problems == []


def test_files_of_two_histories_do_not_mix(chained: Path, original: Path, tmp_path: Path) -> None:
    """A copy of a base from another index, whole in itself, is not taken for the one that was there."""
    path = chained / "generations/000004.json"
    content = forged.content(path) | {"time": "2001-01-01T00:00:00+00:00"}
    forged.replace(path, forged.seal(json.dumps(content).encode()))
    with pytest.raises(DataError, match="generation 4 is of 2001-01-01"):
        Index.open(chained, device="cpu")
