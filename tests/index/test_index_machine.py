"""A state machine: any sequence of commands, crashes included, agrees with a plain dictionary."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
import small
import tiny
from faults import Died, Faults
from hypothesis import HealthCheck, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from promptdsi import Corpus, Document, Index, PromptDSIError
from promptdsi.index.purge import purge

NAMES = [f"doc {letter}" for letter in "abcdefgh"]
WORDS = ["tea", "water", "bread", "boat", "lock", "owl"]
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
batches = st.dictionaries(st.sampled_from(NAMES), texts, min_size=1, max_size=4)


class State:
    """What the index should hold: living texts, deleted texts (the last of each docid), and what was erased from history."""

    def __init__(self, live: dict[str, str], hidden: dict[str, str]) -> None:
        self.live, self.hidden = dict(live), dict(hidden)
        self.unsure: set[str] = set()  # docids some version of which a purge has erased: not tracked here

    def copy(self) -> State:
        state = State(self.live, self.hidden)
        state.unsure = set(self.unsure)
        return state


class IndexMachine(RuleBasedStateMachine):
    backbone: ClassVar[str]
    generations = Bundle("generations")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.place = self.folder / "index"
        self.history: list[State] = []
        self.pruned: set[int] = set()
        self.corpora = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def corpus(self, batch: dict[str, str]) -> Corpus:
        self.corpora += 1
        return Corpus([Document(docid, text) for docid, text in batch.items()], name=f"corpus {self.corpora}")

    @property
    def state(self) -> State:
        return self.history[-1]

    def moved(self, state: State) -> int:
        self.history.append(state)
        assert self.index.generation == len(self.history)
        return len(self.history)

    @initialize(target=generations, batch=batches)
    def create(self, batch: dict[str, str]) -> int:
        self.index = small.create(self.place, self.corpus(batch), self.backbone, fit_epochs=0, add_epochs=1)
        return self.moved(State(batch, {}))

    @rule(target=generations, batch=batches, update=st.booleans(), fast=st.booleans())
    def add(self, batch: dict[str, str], update: bool, fast: bool) -> Any:
        changed = {docid for docid, text in batch.items() if self.state.live.get(docid, text) != text}
        new = {docid: text for docid, text in batch.items() if self.state.live.get(docid) != text}
        if changed and not update:
            with pytest.raises(PromptDSIError, match="with other content"):
                self.index.add(self.corpus(batch), fast=fast)
            return multiple()
        report = self.index.add(self.corpus(batch), update=update, fast=fast)
        assert (report.added, report.updated, report.unchanged) == (len(new), len(changed), len(batch) - len(new))
        if not new:
            return multiple()
        state = self.state.copy()
        state.live |= new
        for docid in new:
            state.hidden.pop(docid, None)
        return self.moved(state)

    @rule(target=generations)
    def tune(self) -> Any:
        return multiple(*(self._tuned() for _ in self.index.tune()))

    def _tuned(self) -> int:
        self.history.append(self.state.copy())
        return len(self.history)

    @rule(target=generations, docids=st.sets(st.sampled_from(NAMES), min_size=1, max_size=2))
    def delete(self, docids: set[str]) -> Any:
        documents = self.state.live.keys() | self.state.hidden.keys()
        if not docids <= documents or not docids & self.state.live.keys():
            with pytest.raises(PromptDSIError, match=r"holds no document|deleted already"):
                self.index.delete(sorted(docids))
            return multiple()
        self.index.delete(sorted(docids))
        state = self.state.copy()
        state.hidden |= {docid: state.live.pop(docid) for docid in docids if docid in state.live}
        return self.moved(state)

    @rule(target=generations, docid=st.sampled_from(NAMES))
    def undelete(self, docid: str) -> Any:
        if docid not in self.state.hidden:
            with pytest.raises(PromptDSIError, match=r"holds no document|is not deleted"):
                self.index.undelete(docid)
            return multiple()
        self.index.undelete(docid)
        state = self.state.copy()
        state.live[docid] = state.hidden.pop(docid)
        return self.moved(state)

    @rule(target=generations, to=generations)
    def rollback(self, to: int) -> Any:
        if self.history[to - 1].unsure:
            return multiple()
        if to in self.pruned:
            with pytest.raises(PromptDSIError, match="was pruned"):
                self.index.rollback(to)
            return multiple()
        if to == len(self.history):
            with pytest.raises(PromptDSIError, match="nothing to go back to"):
                self.index.rollback(to)
            return multiple()
        self.index.rollback(to)
        return self.moved(self.history[to - 1].copy())

    @rule(target=generations, docid=st.sampled_from(NAMES))
    def purge(self, docid: str) -> Any:
        if self._unsure(docid):
            return multiple()
        if not any(docid in state.live or docid in state.hidden for state in self.history):
            with pytest.raises(PromptDSIError, match="holds no document"):
                self.index.purge(docid)
            return multiple()
        self.index.purge(docid)
        self._erased([docid])
        state = self.state.copy()
        return self.moved(state)

    @rule(target=generations)
    def purge_deleted(self) -> Any:
        """Erases deleted documents from every generation, and versions that were replaced; look_back then skips those."""
        if not self.state.hidden and not self._replaced():
            with pytest.raises(PromptDSIError, match="no deleted document is left to purge"):
                self.index.purge()
            return multiple()
        self.index.purge()
        self._erased(list(self.state.hidden))
        for state in self.history:
            state.unsure |= {docid for docid, text in self.state.live.items() if state.live.get(docid, text) != text}
            state.unsure |= {docid for docid in self.state.live if docid in state.hidden}
        return self.moved(self.state.copy())

    def _replaced(self) -> bool:
        """Whether a dead version of a living document is on the disk, by what the index itself says."""
        manifest = self.index.manifest
        deleted = zip(manifest.corpora, manifest.deleted_positions(), strict=True)
        return any(self.index.store.ids(entry.ids).docids[place] is not None for entry, positions in deleted for place in positions)

    @rule(target=generations, docid=st.sampled_from(NAMES), step=st.integers(1, 40))
    def crash_while_purging(self, docid: str, step: int) -> Any:
        if not any(docid in state.live or docid in state.hidden for state in self.history) or self._unsure(docid):
            return multiple()
        with pytest.MonkeyPatch.context() as patch:
            Faults(at=step).install(patch)
            with contextlib.suppress(Died):
                self.index.purge(docid)
        self.index = Index.open(self.place, device="cpu")
        if self.index.generation == len(self.history):
            return multiple()
        if self.index.store.purge_pending(self.index.store.manifest()):
            purge(self.index.store, [docid])  # the same command again completes it, and makes no generation of its own
        self._erased([docid])
        self.index = Index.open(self.place, device="cpu")
        return self.moved(self.state.copy())

    def _unsure(self, docid: str) -> bool:
        return any(docid in state.unsure for state in self.history)

    def _erased(self, docids: Iterable[str]) -> None:
        for docid in docids:
            for state in self.history:
                state.live.pop(docid, None)
                state.hidden.pop(docid, None)

    @rule(target=generations, keep=st.integers(1, 4), merge=st.booleans(), step=st.none() | st.integers(1, 40))
    def prune(self, keep: int, merge: bool, step: int | None) -> Any:
        """Dropped, killed half-way or not: what is left is as it was, and the rest says that it was pruned."""
        before = len(self.history)
        expected = self.index.prune(keep=keep, merge=merge, dry_run=True)
        with pytest.MonkeyPatch.context() as patch:
            Faults(at=step).install(patch)
            with contextlib.suppress(Died):
                self.index.prune(keep=keep, merge=merge)
        self.index = Index.open(self.place, device="cpu")
        if self.index.generation == before:
            return multiple()
        self.index.store.finish(self.index.store.manifest())  # what the next writer does first
        self.pruned |= set(expected.pruned)
        for number in expected.pruned:
            self.history[number - 1] = State({}, {})
        return self.moved(self.state.copy())

    @rule(at=generations)
    def tag(self, at: int) -> None:
        if at not in self.pruned:
            assert self.index.tag(f"at-{at}", at) == at
            assert Index.open(self.place, at=f"at-{at}", device="cpu").generation == at

    @rule()
    def reopen(self) -> None:
        self.index = Index.open(self.place, device="cpu")

    @rule(target=generations, batch=batches, step=st.integers(1, 40))
    def crash_while_adding(self, batch: dict[str, str], step: int) -> Any:
        corpus = self.corpus(batch)
        new = {docid: text for docid, text in batch.items() if self.state.live.get(docid) != text}
        with pytest.MonkeyPatch.context() as patch:
            Faults(at=step).install(patch)
            with contextlib.suppress(Died):
                self.index.add(corpus, update=True)
        self.index = Index.open(self.place, device="cpu")
        if self.index.generation == len(self.history):
            return multiple()
        state = self.state.copy()
        state.live |= new
        for docid in new:
            state.hidden.pop(docid, None)
        return self.moved(state)

    @invariant()
    def agrees(self) -> None:
        if not self.history:
            return
        assert {hit.docid for hit in self.index.search("tea water", k=100)} == self.state.live.keys()
        assert len(self.index) == len(self.state.live)
        for docid, text in self.state.live.items():
            assert self.index.get(docid).text == text

    @rule(at=generations)
    def look_back(self, at: int) -> None:
        if at in self.pruned:
            with pytest.raises(PromptDSIError, match="was pruned"):
                Index.open(self.place, at=at, device="cpu")
            return
        earlier = Index.open(self.place, at=at, device="cpu")
        state = self.history[at - 1]
        seen = {docid: earlier.get(docid).text for docid in (hit.docid for hit in earlier.search("bread", k=100))}
        assert {docid: text for docid, text in seen.items() if docid not in state.unsure} == {
            docid: text for docid, text in state.live.items() if docid not in state.unsure
        }

    @rule()
    def verify(self) -> None:
        problems = self.index.verify().problems
        assert all("belongs to no generation" in problem for problem in problems), problems


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
def test_any_sequence_of_commands_agrees_with_a_dictionary(tmp_path: Path) -> None:
    IndexMachine.backbone = str(tiny.backbone_folder(tmp_path / "backbone", [*WORDS, "doc"]))
    examples = settings.default.max_examples if settings.default else 30
    IndexMachine.TestCase.settings = settings(
        max_examples=max(12, examples // 2), stateful_step_count=14, suppress_health_check=list(HealthCheck)
    )
    IndexMachine.TestCase().runTest()
