"""Run what is missing: build the stream, learn D0 once or read its checkpoint, add corpus after corpus, record every rank.

A run that is recorded is not made again, and a run that is killed goes on from its last stage: an interrupted experiment continues.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import promptdsi
from promptdsi.bench.preflight import check_runs, stream_folder
from promptdsi.bench.protocol import Protocol
from promptdsi.bench.run_records import D0, D0Record, Run, RunRecord, SearchRecord, digest, make_method
from promptdsi.bench.runs import RunStore, compare_ranks
from promptdsi.bench.schema import Params, Split, read_json
from promptdsi.bench.unfinished import RunStart, Stages, UnfinishedRun
from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.generators import Generator, make_generator, options_of
from promptdsi.corpus.pseudo import QueryCache, generate_queries, with_queries
from promptdsi.corpus.sources import Request, build_stream
from promptdsi.corpus.streams import Stream, open_stream
from promptdsi.errors import DataError, PromptDSIError
from promptdsi.files import sha256_of
from promptdsi.methods.base import Method
from promptdsi.methods.dsi_method import DSIMethod
from promptdsi.methods.incdsi import RANGES, IncDSI
from promptdsi.methods.rows_only import RowsOnly
from promptdsi.model.config import torch_device
from promptdsi.progress import Progress, silent
from promptdsi.training.encoding import EncodingCache, uncached_seconds, use_cache

RECORD = "record.json"
CODE = ("corpus", "model", "training", "methods", "evaluation")  # the packages that numbers depend on
Notify = Callable[[str], None]


class D0Checkpoint(NamedTuple):
    method: DSIMethod
    sha256: str


class Runner:
    """Holds what runs share: streams, and D0 checkpoints on disk."""

    def __init__(self, store: RunStore, *, offline: bool = False, progress: Progress = silent, notify: Notify = lambda line: None) -> None:
        self.store, self.offline, self.progress, self.notify = store, offline, progress, notify
        self._streams: dict[str, Stream] = {}
        self._generator: tuple[str, Generator | None] = ("", None)  # of the specification with this name
        self._cache: tuple[str, EncodingCache] = ("", EncodingCache())  # of the encoder with this name

    def run(self, runs: Iterable[Run], *, fresh: bool = False, until: float | None = None) -> list[Path]:
        """Make the missing runs (or all, with `fresh`), one JSON file each; start none after `until`, by the monotonic clock."""
        written = []
        runs = list(runs)
        missing = {run.key for run in runs if fresh or self.store.run(run) is None}
        self.check([run for run in runs if run.key in missing])
        for number, run in enumerate(runs, 1):
            if run.key not in missing:
                continue
            if until is not None and time.monotonic() > until:
                self.notify(f"time is up; {len(runs) - number + 1} runs are left")
                break
            self.notify(f"run {number} of {len(runs)}: {run.label or run.method}, seed {run.seed} ({run.file})")
            before = None
            try:
                before = self.store.run(run)
            except DataError as error:
                self.notify(f"{error}; it is replaced")
            record = self.record(run)
            if before is not None:
                self.notify(f"run again: {compare_ranks(before, record) or 'the recorded run was evaluated on other queries'}")
            written.append(self.store.write(record))
            self.unfinished(run).remove()
        return written

    def check(self, runs: Sequence[D0 | Run]) -> None:
        """Check first what a run could miss hours later: see `preflight`; and documents to search settings on."""
        check_runs(runs, self.store, self.generator, offline=self.offline)
        for run in runs:
            if isinstance(run, Run) and run.search:
                search_corpora(self.stream(run.d0.stream, "dev"))

    def record(self, run: Run) -> RunRecord:
        """Make one run. Its record holds everything reports need, and nothing of the data but ranks.

        Where texts are encoded as they were after D0, runs share the vectors, and the topics of D0; the seconds are those of a run made
        alone all the same.
        """
        stream = self.stream(run.d0.stream, run.split)
        method = make_method(run.method, run.params, seed=run.seed, offline=self.offline)
        protocol = Protocol(stream, run.split, self.progress)
        d0 = self.d0(run.d0) if isinstance(method, DSIMethod) else None  # outside the cache: while D0 is learned its encoder changes
        encoder = d0.sha256 if d0 else str(getattr(method, "backbone", ""))  # systems without a D0 use the backbone as it comes
        if encoder != self._cache[0]:  # vectors of another encoder are dropped: those of a large corpus are gigabytes
            self._cache = (encoder, EncodingCache())
        origin, data = versions(), protocol.data()
        unfinished = self.unfinished(run, [origin, data.model_dump(), encoder])
        frozen = getattr(method, "encodes_as_d0", False)
        if (loaded := unfinished.load(type(method))) is not None:
            method, stages = loaded
            self.notify(f"it goes on after step {max(map(int, stages.ranks))}")
        else:
            with use_cache(self._cache[1] if frozen or d0 else None):  # until the first new corpus every encoder is D0's
                stages = Stages(start=self.start(method, d0, run, stream, unfinished.training))
        with use_cache(self._cache[1] if frozen else None):
            return RunRecord(run=run, versions=origin, data=data, **protocol.run(method, stages, unfinished))

    def unfinished(self, run: Run, identity: Any = None) -> UnfinishedRun:
        return UnfinishedRun(self.store.work / f"{run.file}.unfinished", identity)

    def start(self, method: Method, d0: D0Checkpoint | None, run: Run, stream: Stream, checkpoint: Path) -> RunStart:
        """Give the method its D0, and search its settings where the run does."""
        started, seconds_before = uncached_seconds(), 0.0
        if isinstance(method, DSIMethod) and d0 is not None:
            method.begin_from(d0.method, stream.corpora[0])
        else:
            method.fit(stream.corpora[0], checkpoint=checkpoint, progress=self.progress)
            seconds_before = sum(log.seconds_before for log in getattr(method, "logs_", ()))
        start = RunStart(d0_sha256=d0.sha256 if d0 else None, fit_seconds=round(seconds_before + uncached_seconds() - started, 3))
        if run.search:
            started = uncached_seconds()
            assert isinstance(method, IncDSI), "only IncDSI has settings to search"
            fixed = {name: run.params[f"add.{name}"] for name in RANGES if f"add.{name}" in run.params}
            searched = method.search_settings(*search_corpora(stream), trials=run.search, fixed=fixed, progress=self.progress)
            start.searched, start.search_seconds = SearchRecord(**searched), round(uncached_seconds() - started, 3)
        return start

    def stream(self, spec: Params, split: Split) -> Stream:
        """The stream a setting describes. The judgements of test are opened only for a run that is evaluated on the test split;
        those of dev always, because settings are searched with them."""
        name = digest([spec, split])
        if name not in self._streams:
            folder = stream_folder(self.store, spec)
            if not (folder / "stream.json").is_file():
                self.build(spec).write(folder, progress=self.progress)
            self._streams[name] = open_stream(folder, splits=sorted({"train", "dev", split}))
        return self._streams[name]

    def build(self, spec: Params) -> Stream:
        """The stream, with pseudo-queries where it names a generator; each is cached, so that an interruption loses little."""
        options = {key: value for key, value in spec.items() if key not in ("source", "seed", "raw", "pseudo")}
        raw = Path(spec["raw"]) if "raw" in spec else None
        request = Request(seed=spec.get("seed", 0), raw=raw, offline=self.offline)
        stream = build_stream(spec["source"], request, **options)
        for sentence in request.notes.sentences():
            self.notify(sentence)
        if "pseudo" not in spec:
            return stream
        generator = self.generator(spec["pseudo"])
        cache = QueryCache(self.store.work, generator)

        def extend(corpora: Iterable[Corpus]) -> list[Corpus]:
            return [with_queries(corpus, generate_queries(corpus, generator, cache, progress=self.progress)) for corpus in corpora]

        return replace(stream, corpora=extend(stream.corpora), extra=extend(stream.extra))

    def generator(self, spec: Params) -> Generator:
        """The generator that a stream names, loaded; the last one is kept, because the next stream may name it again."""
        if self._generator[0] != digest(spec):
            name, options = spec.get("generator", "spans"), {key: value for key, value in spec.items() if key != "generator"}
            machine = {} if "device" not in options_of(name) else {"offline": self.offline, "device": torch_device("auto")}
            generator = make_generator(name, **options, **machine)
            generator.load()
            self._generator = (digest(spec), generator)
        assert self._generator[1] is not None
        return self._generator[1]

    def d0(self, d0: D0) -> D0Checkpoint:
        """The D0 checkpoint; learned from its seed where it is missing, and compared with what was recorded."""
        folder = self.store.work / d0.file
        if (folder / "method.json").is_file():
            record = read_json(folder / RECORD, D0Record, advice=f"; delete {folder}, and D0 is learned again")
            if checksum(folder) != record.sha256:
                raise DataError("is not the D0 its record describes; delete the folder, and D0 is learned again", path=folder)
            method = RowsOnly.load(folder)
            method.offline = self.offline
            if self.store.d0(d0) is None:  # learned for other results
                self.store.write(record)
            return D0Checkpoint(method, record.sha256)
        self.check([d0])
        self.notify(f"learning D0 ({d0.file})")
        method = RowsOnly.from_params(d0.params | {"offline": self.offline})
        record = self.learn_d0(d0, method, folder)
        if (before := self.store.d0(d0)) is not None:  # learned again, it must rank as the recorded one did
            difference = compare_ranks(before, record)
            if difference is None:
                raise PromptDSIError(f"{self.store.path(d0.file)} was made from other data; move it away to start anew")
            same = "the same weights" if before.sha256 == record.sha256 else "other weights"
            self.notify(f"D0 was learned again: {same}; {difference}")
        self.store.write(record, folder / RECORD)
        self.store.write(record)
        return D0Checkpoint(method, record.sha256)

    def learn_d0(self, d0: D0, method: RowsOnly, folder: Path) -> D0Record:
        stream = self.stream(d0.stream, "dev")  # a checkpoint serves choices too: it is not evaluated on the test split
        started = time.perf_counter()
        method.fit(stream.corpora[0], checkpoint=self.store.work / f"{d0.file}.training", progress=self.progress)
        seconds = round(method.logs_[0].seconds_before + time.perf_counter() - started, 1)
        method.save(folder)
        protocol, log = Protocol(stream, "dev", self.progress), method.logs_[0]
        return D0Record(
            run=d0,
            versions=versions(),
            data=protocol.data(),
            sha256=checksum(folder),
            seconds=seconds,
            examples=log.examples,
            steps=len(log.losses),
            losses=[round(loss, 4) for loss in log.losses],
            ranks={"dev": {"0": [protocol.ranks(method, 0)]}},
        )


def search_corpora(stream: Stream) -> tuple[Corpus, Corpus]:
    """D0, and held-out documents on which settings are searched."""
    tune = [corpus for corpus in stream.extra if corpus.name == "tune"]
    if not tune:
        raise PromptDSIError(f"stream {stream.name} has no tune documents to search settings on; give the stream `tune = N`")
    return stream.corpora[0], tune[0]


def checksum(folder: Path) -> str:
    """Of the weights of a saved method."""
    files = sorted(folder.glob("*.safetensors"))
    return hashlib.sha256("".join(f"{file.name} {sha256_of(file)}\n" for file in files).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Versions, and a checksum of the code that numbers depend on."""
    import torch
    import transformers

    root = Path(promptdsi.__file__).parent
    code = hashlib.sha256()
    for folder in CODE:
        for file in sorted((root / folder).rglob("*.py")):
            code.update(f"{file.relative_to(root).as_posix()} {sha256_of(file)}\n".encode())
    ours = {"promptdsi": promptdsi.__version__, "code": code.hexdigest()[:16], "python": platform.python_version()}
    return ours | {"torch": torch.__version__, "transformers": transformers.__version__}
