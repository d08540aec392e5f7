"""Run by test_resumed_training.py: D0 trained by some processes that are killed, and resumed by another number of them.

All processes are forked from this one, so that torch is imported once. None may pickle anything, and of several none may make a tensor of
all rows.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import small
import torch
import torch.distributed.distributed_c10d as c10d
from torch.utils._python_dispatch import TorchDispatchMode

from promptdsi.methods.options import merge_params
from promptdsi.methods.promptdsi import PRESETS, PromptDSI
from promptdsi.model.backbone import load_backbone
from promptdsi.training import checkpoint, distributed
from promptdsi.training.distributed import leading
from promptdsi.training.shared_stages import help_training

checkpoint.SECONDS_BETWEEN_CHECKPOINTS, checkpoint.MOST_TIME = 0.0, 1e9  # after every step, as if each took minutes
distributed.PIECE = 4
SMALL = {
    "encoding": {"dropout": 0.0, "max_tokens": 24, "document_tokens": 48, "document_windows": 1},
    "fit": {"epochs": 1, "batch_size": 16},
    "pseudo_queries": 2,
    "device": "cpu",
    "offline": True,
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper": ("paper", {}),  # random rows; encoder and rows train
    "rows": ("rows", {}),  # from vectors of documents
    "queries": ("rows", {"fit": {"row_init": "queries"}}),
    "best": ("best", {"encoding": {"passage_tokens": 16}, "fit": {"row_lr": 1e-2, "batch_size": 64}}),  # passages, and rows alone train
}
RUNS = [
    ("paper", 2, 1),
    ("rows", 1, 2),
    ("rows", 2, 3),
    ("queries", 2, 1),
    ("best", 2, 1),
    ("best", 1, 3),
]


CORPUS = small.stream()[0]


class AllRows(TorchDispatchMode):
    """Notes operations whose result is as large as all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.shape, self.seen = (0, 0), set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not func.is_view and result.shape == self.shape and result.is_floating_point():
            self.seen.add(str(func))
        return result


class Steps:
    """A progress that counts steps, and kills all processes half-way."""

    def __init__(self, kill: bool) -> None:
        self.kill, self.resumed = kill, 0

    @contextlib.contextmanager
    def __call__(self, what: str, *, total: int | None = None, unit: str = "") -> Iterator[Callable[[int], None]]:
        done: list[int] = []

        def advance(count: int) -> None:
            done.append(count)
            if unit == "steps" and self.kill and sum(done) > (total or 0) // 2:
                os.kill(os.getpid(), signal.SIGKILL)

        yield advance
        if unit == "steps":
            self.resumed = done[0]


def learn(case: str, backbone: str, folder: Path, output: Path, kill: bool) -> None:
    preset, changes = METHODS[case]
    corpus, steps, rows = CORPUS, Steps(kill), AllRows()
    method = PromptDSI.from_params(merge_params(PRESETS[preset], SMALL, changes, {"backbone": backbone}))
    method.start(load_backbone(backbone, offline=True))
    rows.shape = (len(method.passages(corpus).docids), method.row_width)
    with leading(), rows:
        method.fit(corpus, checkpoint=folder, progress=steps)
    norms = method.model_.rows.blocks[0].norm(dim=1).tolist()
    outcome = {"losses": method.logs_[0].losses, "norms": norms, "resumed": steps.resumed, "all_rows": sorted(rows.seen)}
    output.write_text(json.dumps(outcome))


def run_processes(size: int, work: Callable[[], None]) -> bool:
    """Do some work with processes of which the first one leads; whether all of them ended well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(size):
        if child := os.fork():
            children.append(child)
            continue
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(1)
        try:
            help_training() if rank else work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    codes = [os.waitpid(child, 0)[1] for child in children]  # helpers end by themselves when the first process is killed
    return not any(codes)


def forbid_pickle() -> None:
    def refuse(*arguments: Any, **keywords: Any) -> NoReturn:
        raise RuntimeError("pickled")

    for owner, names in ((pickle, ("dump", "dumps", "load", "loads")), (c10d, ("_pickler", "_unpickler")), (torch, ("save", "load"))):
        for name in names:
            setattr(owner, name, refuse)


def main(folder: Path, backbone: str) -> None:
    forbid_pickle()
    outcomes: dict[str, Any] = {}
    for case in METHODS:
        output = folder / f"{case}.json"
        assert run_processes(1, lambda: learn(case, backbone, folder / f"{case}-straight", output, kill=False)), case  # noqa: B023
        outcomes[case] = json.loads(output.read_text())
    for case, before, after in RUNS:
        place, output = folder / f"{case}-{before}-{after}", folder / f"{case}-{before}-{after}.json"
        assert not run_processes(before, lambda: learn(case, backbone, place, output, kill=True))  # noqa: B023
        assert (place / "checkpoint.safetensors").is_file() and not output.exists(), place
        assert run_processes(after, lambda: learn(case, backbone, place, output, kill=False)), output  # noqa: B023
        assert not place.exists(), "the folder of the checkpoint is left over"
        outcomes[f"{case} {before} {after}"] = json.loads(output.read_text())
    print(json.dumps(outcomes))
