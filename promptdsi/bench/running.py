"""Run cells: build the stream, learn D0 once or read it back, let the method learn corpus after corpus, keep every rank.

What is there is not run again, so an interrupted experiment goes on with the next cell.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import promptdsi
from promptdsi.bench.cells import D0, Cell, Results, digest, moved, pack
from promptdsi.bench.protocol import Protocol
from promptdsi.bench.written import FORMAT, D0Record, read_json
from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.generators import make_generator
from promptdsi.corpus.pseudo import QueryCache, generate_queries, with_queries
from promptdsi.corpus.sources import Request, build_stream, source_of
from promptdsi.corpus.streams import Stream, open_stream
from promptdsi.errors import DataError, PromptDSIError
from promptdsi.files import atomic_write, sha256_of
from promptdsi.methods import methods
from promptdsi.methods.dsi import DSIMethod
from promptdsi.methods.incdsi import IncDSI
from promptdsi.methods.method import Method
from promptdsi.methods.rows import RowsOnly
from promptdsi.methods.settings import RANGES
from promptdsi.model.devices import torch_device
from promptdsi.progress import Progress, silent
from promptdsi.training.encoding import EncodingCache, uncached_seconds, use_cache

RECORD = "record.json"
CODE = ("corpus", "model", "learning", "methods", "evaluation")  # what a figure depends on
Say = Callable[[str], None]


class Runner:
    """Holds what cells share: streams, and D0 checkpoints on disk."""

    def __init__(self, results: Results, *, offline: bool = False, progress: Progress = silent, say: Say = lambda line: None) -> None:
        self.results, self.offline, self.progress, self.say = results, offline, progress, say
        self._streams: dict[str, Stream] = {}
        self._known: tuple[str, EncodingCache] = ("", EncodingCache())  # what the encoder of the D0 with this checksum has encoded

    def run(self, cells: Iterable[Cell], *, fresh: bool = False, until: float | None = None) -> list[Path]:
        """Run what is missing (or all, with `fresh`), one JSON file each; begin none after `until`, by the monotonic clock."""
        written = []
        cells = list(cells)
        missing = {cell.key for cell in cells if fresh or self.results.read(cell.file) is None}
        self.check(cell for cell in cells if cell.key in missing)
        for number, cell in enumerate(cells, 1):
            if cell.key not in missing:
                continue
            if until is not None and time.monotonic() > until:
                self.say(f"time is up; {len(cells) - number + 1} cells wait")
                break
            self.say(f"cell {number} of {len(cells)}: {cell.label or cell.method}, seed {cell.seed} ({cell.file})")
            before, record = self.before(cell), self.record(cell)
            if before is not None:
                self.say(f"run again: {moved(before, record) or 'the recorded run was asked other queries'}")
            self.results.write(cell.file, record)
            written.append(self.results.path(cell.file))
        return written

    def before(self, cell: Cell) -> dict[str, Any] | None:
        """What was recorded of a cell that is to be run again; None where that cannot be read."""
        try:
            return self.results.read(cell.file)
        except DataError as error:
            self.say(f"{error}; it is replaced")
            return None

    def check(self, cells: Iterable[Cell]) -> None:
        """What a cell could miss hours later: the source of its stream, documents to search settings on."""
        cells = list(cells)
        for spec in (cell.d0.stream for cell in cells):
            if not self.built(spec):
                source_of(spec["source"])
        for stream in {digest(cell.d0.stream): cell.d0.stream for cell in cells if cell.search}.values():
            held_out(self.stream(stream, "dev"))

    def record(self, cell: Cell) -> dict[str, Any]:
        """Run one cell: everything the reports need, and nothing of the data but ranks.

        Where queries are encoded as they were after D0, cells share the vectors; seconds are those of a cell run alone all the same.
        """
        stream = self.stream(cell.d0.stream, cell.split)
        kind: Any = methods()[cell.method]
        known = {"seed": cell.seed, "offline": self.offline}
        has = kind().get_params()
        method: Method = kind.from_params(cell.params | {name: value for name, value in known.items() if name in has})
        protocol = Protocol(stream, cell.split, self.progress)
        d0 = self.d0(cell.d0) if isinstance(method, DSIMethod) else None  # outside: while D0 is learned its encoder changes
        with use_cache(self.known(d0[1]) if d0 and isinstance(method, DSIMethod) and method.encodes_as_d0 else None):
            said = self.begin(method, d0, cell, stream)
            return {"cell": cell.describe(), **versions(), "data": protocol.data(), **said, **protocol.run(method)}

    def known(self, checksum: str) -> EncodingCache:
        """What this D0 has encoded. That of another is let go: vectors of a large corpus are gigabytes."""
        if self._known[0] != checksum:
            self._known = (checksum, EncodingCache())
        return self._known[1]

    def begin(self, method: Method, d0: tuple[DSIMethod, str] | None, cell: Cell, stream: Stream) -> dict[str, Any]:
        """Give the method its D0, and search its settings where the cell asks for it: what that took, and gave."""
        said: dict[str, Any] = {"d0_sha256": None}
        started = uncached_seconds()
        if isinstance(method, DSIMethod) and d0 is not None:
            learned, said["d0_sha256"] = d0
            method.begin_from(learned, stream.corpora[0])
        else:
            method.fit(stream.corpora[0], progress=self.progress)
        said["fit_seconds"] = round(uncached_seconds() - started, 3)
        if cell.search:
            searching = uncached_seconds()
            assert isinstance(method, IncDSI), "only IncDSI has settings to search"
            fixed = {name: cell.params[name] for name in RANGES if name in cell.params}
            said["searched"] = method.search_settings(*held_out(stream), trials=cell.search, fixed=fixed, progress=self.progress)
            said["search_seconds"] = round(uncached_seconds() - searching, 3)
        return said

    def stream(self, spec: dict[str, Any], split: str) -> Stream:
        """The stream a setting describes. The judgements of test are opened only for a cell that is asked test queries; those of
        dev always, because settings are searched with them."""
        name = digest([spec, split])
        if name not in self._streams:
            folder = self.folder_of(spec)
            if not self.built(spec):
                self.build(spec).write(folder, progress=self.progress)
            self._streams[name] = open_stream(folder, splits=sorted({"train", "dev", split}))
        return self._streams[name]

    def folder_of(self, spec: dict[str, Any]) -> Path:
        return self.results.work / "streams" / digest(spec)

    def built(self, spec: dict[str, Any]) -> bool:
        return (self.folder_of(spec) / "stream.json").is_file()

    def build(self, spec: dict[str, Any]) -> Stream:
        options = {key: value for key, value in spec.items() if key not in ("source", "seed", "raw", "pseudo")}
        raw = Path(spec["raw"]) if "raw" in spec else None
        stream = build_stream(spec["source"], Request(seed=spec.get("seed", 0), raw=raw, offline=self.offline), **options)
        return self.with_pseudo(stream, dict(spec["pseudo"])) if "pseudo" in spec else stream

    def with_pseudo(self, stream: Stream, options: dict[str, Any]) -> Stream:
        """The stream with pseudo-queries of a generator; what it has written is kept, so that an interruption loses little."""
        name = options.pop("generator", "spans")
        runs_a_model = {} if name == "spans" else {"offline": self.offline, "device": torch_device("auto")}
        generator = make_generator(name, **options, **runs_a_model)
        cache = QueryCache(self.results.work, generator)

        def written(corpora: Iterable[Corpus]) -> list[Corpus]:
            return [with_queries(one, generate_queries(one, generator, cache, progress=self.progress)) for one in corpora]

        return replace(stream, corpora=written(stream.corpora), extra=written(stream.extra))

    def d0(self, d0: D0) -> tuple[DSIMethod, str]:
        """The D0 checkpoint and its checksum; learned from its seed where it is missing, and compared with what was recorded."""
        folder = self.results.work / d0.file
        if (folder / "method.json").is_file():
            kept = read_json(folder / RECORD, D0Record, advice=f"; delete {folder}, and D0 is learned again")
            if checksum(folder) != kept["sha256"]:
                raise DataError("is not the D0 its record tells of; delete the folder, and D0 is learned again", path=folder)
            found = RowsOnly.load(folder)
            found.offline = self.offline
            if self.results.read(d0.file) is None:  # learned for other results
                self.results.write(d0.file, kept)
            return found, kept["sha256"]
        self.say(f"learning D0 ({d0.file})")
        stream = self.stream(d0.stream, "dev")  # a checkpoint serves choices too: it is not asked test queries
        method = RowsOnly.from_params(d0.params | {"offline": self.offline})
        started = time.perf_counter()
        method.fit(stream.corpora[0], checkpoint=self.results.work / f"{d0.file}.training", progress=self.progress)
        seconds = time.perf_counter() - started
        method.save(folder)
        protocol = Protocol(stream, "dev", self.progress)
        log = method.logs_[0]
        record = {
            "cell": {"stream": d0.stream, "d0": d0.params},
            **versions(),
            "data": protocol.data(),
            "sha256": checksum(folder),
            "seconds": round(seconds, 1),
            "examples": log.examples,
            "steps": len(log.losses),
            "losses": [round(loss, 4) for loss in log.losses],
            "ranks": {"dev": {"0": [pack(protocol.query_ranks(method, 0))]}},
        }
        self._compare(d0, record)
        with atomic_write(folder / RECORD) as out:
            out.write(json.dumps({"format": FORMAT} | record).encode("utf-8"))
        self.results.write(d0.file, record)
        return method, record["sha256"]

    def _compare(self, d0: D0, record: dict[str, Any]) -> None:
        """A rebuilt checkpoint must rank as the recorded one did; how many ranks differ is said."""
        before = self.results.read(d0.file)
        if before is None:
            return
        found = moved(before, record)
        if found is None:
            raise PromptDSIError(f"{self.results.path(d0.file)} was made from other data; move it away to start anew")
        same = "the same weights" if before["sha256"] == record["sha256"] else "other weights"
        self.say(f"D0 was learned again: {same}; {found}")


def held_out(stream: Stream) -> tuple[Corpus, Corpus]:
    """D0, and documents of its kind that no stage trains on, for the search of settings."""
    tune = [corpus for corpus in stream.extra if corpus.name == "tune"]
    if not tune:
        raise PromptDSIError(f"stream {stream.name} has no tune documents to search settings on; give the stream `tune = N`")
    return stream.corpora[0], tune[0]


def checksum(folder: Path) -> str:
    """Of the weights of a saved method."""
    files = sorted(folder.glob("*.safetensors"))
    return hashlib.sha256("".join(f"{file.name} {sha256_of(file)}\n" for file in files).encode()).hexdigest()


def versions() -> dict[str, Any]:
    """Versions, and a checksum of the code figures depend on."""
    import torch
    import transformers

    root = Path(promptdsi.__file__).parent
    code = hashlib.sha256()
    for folder in CODE:
        for file in sorted((root / folder).rglob("*.py")):
            code.update(f"{file.relative_to(root).as_posix()} {sha256_of(file)}\n".encode())
    made = {"promptdsi": promptdsi.__version__, "code": code.hexdigest()[:16], "python": platform.python_version()}
    return {"versions": made | {"torch": torch.__version__, "transformers": transformers.__version__}}
