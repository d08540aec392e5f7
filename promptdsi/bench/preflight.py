"""What missing runs need, checked before anything long starts: raw files, generators, backbones, libraries, disk space."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from promptdsi.bench.run_records import D0, Run, default_params, digest, make_method
from promptdsi.bench.runs import RunStore
from promptdsi.bench.schema import Params
from promptdsi.bench.time_estimate import documents_of
from promptdsi.corpus.sources import Request, source_of
from promptdsi.errors import PromptDSIError
from promptdsi.methods import methods
from promptdsi.methods.dpr import DPR, ranking_loss
from promptdsi.methods.dsi_method import DSIMethod
from promptdsi.methods.promptdsi import PromptDSI
from promptdsi.model.backbone import backbone_folder
from promptdsi.model.families import read_config
from promptdsi.training.topics import check_engine

STREAM_BYTES = 20_000  # of a document on disk with its queries: a page of NQ320k, the longest we know
# Weights and both moments of AdamW, and the method after its last stage; twice, because the old files stay until the new ones are complete.
CHECKPOINT = 8


def check_runs(runs: Sequence[D0 | Run], store: RunStore, make_generator: Callable[[Params], object], *, offline: bool) -> None:
    """Raise one error that names everything the runs lack. Backbones and generators are fetched now, where that is allowed."""
    missing = [d0 for d0 in {run.d0.key: run.d0 for run in runs}.values() if not (store.work / d0.file / "method.json").is_file()]
    streams = {digest(run.d0.stream): run.d0.stream for run in runs}.values()
    unbuilt = [spec for spec in streams if not (stream_folder(store, spec) / "stream.json").is_file()]
    pseudo = {digest(spec["pseudo"]): spec["pseudo"] for spec in unbuilt if "pseudo" in spec}.values()
    errors = failures(
        [
            *(lambda spec=spec: check_source(spec) for spec in unbuilt),
            *(lambda spec=spec: make_generator(spec) for spec in pseudo),
            *(lambda name=name: read_config(backbone_folder(name, offline=offline, quiet=False)) for name in backbones_of(runs, missing)),
            *(lambda run=run: check_libraries(run) for run in runs if isinstance(run, Run)),
        ]
    )
    errors = errors or failures([lambda: check_space(bytes_needed(runs, missing, unbuilt, store, offline=offline), store.work)])
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise PromptDSIError("; ".join(dict.fromkeys(str(error) for error in errors)))


def failures(checks: Iterable[Callable[[], object]]) -> list[PromptDSIError]:
    """The errors of the checks that fail."""
    errors = []
    for check in checks:
        try:
            check()
        except PromptDSIError as error:
            errors.append(error)
    return errors


def stream_folder(store: RunStore, spec: Params) -> Path:
    return store.work / "streams" / digest(spec)


def check_source(spec: Params) -> None:
    """The source exists, and so do its raw files."""
    source, name = source_of(spec["source"])
    source.check(Request(name=name, raw=Path(spec["raw"]) if "raw" in spec else None))


def backbones_of(runs: Sequence[D0 | Run], missing: Sequence[D0]) -> list[str]:
    """The backbones that must be loaded: for D0s that are not learned yet, and for methods that do not start from a D0."""
    alone = [run for run in runs if isinstance(run, Run) and not issubclass(methods()[run.method], DSIMethod)]
    needed: list[D0 | Run] = [*missing, *alone]
    params = [default_params(run.method) | run.params for run in needed]
    return list(dict.fromkeys(of_run["backbone"] for of_run in params if "backbone" in of_run))


def check_libraries(run: Run) -> None:
    """The optional libraries of a run are installed."""
    method = make_method(run.method, run.params)
    if isinstance(method, DPR):
        ranking_loss()
    if isinstance(method, PromptDSI) and method.strategy().wants_topics:
        check_engine(method.topic_engine)


def bytes_needed(runs: Sequence[D0 | Run], missing: Sequence[D0], unbuilt: Sequence[Params], store: RunStore, *, offline: bool) -> int:
    """About how much missing runs write to the work folder: streams, D0s, and the largest checkpoint of a training."""
    sizes = {d0.key: weight_bytes(d0, store, offline=offline) for d0 in {run.d0.key: run.d0 for run in runs}.values()}
    streams = STREAM_BYTES * sum(map(documents_of, unbuilt))
    return streams + sum(sizes[d0.key] for d0 in missing) + CHECKPOINT * max(sizes.values(), default=0)


def weight_bytes(d0: D0, store: RunStore, *, offline: bool) -> int:
    """Of encoder and rows: of the D0 on disk, or of its backbone and one row per document."""
    if (folder := store.work / d0.file).is_dir():
        return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    backbone = backbone_folder((default_params(d0.method) | d0.params)["backbone"], offline=offline)
    encoder = sum(file.stat().st_size for file in backbone.glob("*.safetensors"))
    return encoder + 4 * read_config(backbone).width * documents_of(d0.stream)


def check_space(needed: int, folder: Path) -> None:
    there = next(parent for parent in (folder.resolve(), *folder.resolve().parents) if parent.exists())
    if needed > (free := shutil.disk_usage(there).free):
        raise PromptDSIError(
            f"the missing runs need about {needed / 1e9:.1f} GB in {folder}, and {free / 1e9:.1f} GB are free; "
            "make room, or name another folder with --work"
        )
