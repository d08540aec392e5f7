"""Run by test_distributed.py, alone and under torchrun: twenty steps of D0 training on the demo corpus, dropout 0."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from promptdsi.corpus.sources import Request, build_stream
from promptdsi.methods.options import merge_params
from promptdsi.methods.promptdsi import PRESETS, PromptDSI
from promptdsi.model.backbone import load_backbone
from promptdsi.training import stages, training
from promptdsi.training.distributed import World, join, leading
from promptdsi.training.examples import tokenize_pairs, training_pairs_of
from promptdsi.training.shared_stages import help_training, learn_together

STEPS, BATCH = 20, 15  # an odd batch: the processes' parts differ in size


def main(output: Path, backbone: str) -> None:
    world = join()
    first: dict[str, torch.Tensor] = {}
    check = training._check_finite

    def watch(tensors: dict[str, torch.Tensor], kind: str, number: int, world: World) -> None:
        if kind == "gradient" and number == 0:
            first.update({name: tensor.clone() for name, tensor in tensors.items()})
        check(tensors, kind, number, world)

    training._check_finite = watch
    if world.rank:
        help_training()
    else:
        with leading():
            first |= lead(backbone, world)
    save_file(first, output / f"{world.size}-{world.rank}.safetensors")


def lead(backbone: str, world: World) -> dict[str, torch.Tensor]:
    corpus = build_stream("demo", Request()).corpora[0]
    changes = {"encoding": {"dropout": 0.0, "document_tokens": 48, "max_tokens": 32}, "fit": {"row_init": "random", "batch_size": BATCH}}
    method = PromptDSI.from_params(merge_params(PRESETS["rows"], changes, {"device": "cpu"}))
    method.start(load_backbone(backbone, offline=True))
    method.model_.rows.grow([d.docid for d in corpus.documents], method.initial_rows(corpus, "random", norm=1.0))
    pairs = training_pairs_of(corpus, pseudo=0, seed=0)[: (STEPS - 1) * BATCH + 1]  # a batch of one: a process has nothing to encode
    examples = tokenize_pairs(pairs, method.model_.rows, method.tokenizer_, max_tokens=32)
    options = training.Training(epochs=1, batch_size=BATCH, lr=5e-5, row_lr=1e-3, row_decay=0.0)
    if world.size > 1:
        log = learn_together("everything", method.model_, examples, method.tokenizer_, options, stages.RowOptions())
    else:
        log = stages.learn_everything(method.model_, examples, method.tokenizer_, options)
    losses = torch.tensor(log.losses, dtype=torch.float64)
    return {"losses": losses, "learned_rows": method.model_.rows.blocks[0].detach().clone()}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
