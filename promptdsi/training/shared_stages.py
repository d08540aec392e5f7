"""D0 trained by several processes: the first one leads (`learn_together`), the others help (`help_training`).

A helper reads no file and knows no docid: weights, settings and token ids of the queries come from the first process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from promptdsi.model.config import EncoderConfig
from promptdsi.model.dsi import DSI
from promptdsi.model.encoder import encoder_from
from promptdsi.model.path import Numbers, unit
from promptdsi.model.prompts import make_strategy
from promptdsi.model.tokenizer import TokenIds, Tokenizer
from promptdsi.progress import Progress, silent
from promptdsi.training.distributed import broadcast, gather, join, receive_work, team, work_alone
from promptdsi.training.encoding import autocast
from promptdsi.training.examples import Examples, Siblings
from promptdsi.training.sharded import FirstRows, ShardedRows, SharedVectors
from promptdsi.training.stages import RowOptions, norm_fixer, resume_from
from promptdsi.training.training import Group, Training, TrainingLog, train


class Stage(NamedTuple):
    """What the training loop needs of a stage."""

    step: Callable[[Numbers], Tensor]
    groups: list[Group]
    lengths: Sequence[int] | Numbers
    after_step: Callable[[], None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is trained: everything, rows or nothing; how, and whether checkpoints are saved."""

    learn: str
    options: Training
    limits: RowOptions
    seed: int
    first: str  # how the rows begin
    count: int  # of rows
    saves: bool

    def stage(self, model: DSI, examples: Examples, tokenizer: Tokenizer, rows: ShardedRows, progress: Progress) -> Stage:
        if self.learn == "everything":
            return self._everything(model, examples, tokenizer, rows)
        return self._rows(SharedVectors(model, examples, tokenizer, rows.world, progress), examples, rows, model.scale)

    def _everything(self, model: DSI, examples: Examples, tokenizer: Tokenizer, rows: ShardedRows) -> Stage:
        """As `learn_everything`: each process encodes its part of the batch and scores its share of the rows."""
        model.train()
        encoder = {f"encoder.{name}": weight for name, weight in model.encoder.named_parameters() if weight.requires_grad}

        def step(batch: Numbers) -> Tensor:
            tokens = tokenizer.pad([examples.ids[number] for number in rows.world.part(batch)], model.device)
            with autocast(model.device):
                vectors = model.unprompted(tokens)
            vectors = gather(vectors.float(), rows.world, len(batch))
            return rows.loss(examples, torch.from_numpy(rows.world.order(batch)), vectors, model.scale)

        options = self.options
        groups = [Group(encoder, options.lr, options.encoder_decay), Group({"rows": rows.parameter}, options.row_lr, options.row_decay)]
        return Stage(step, groups, examples.lengths)

    def _rows(self, vectors: SharedVectors, examples: Examples, rows: ShardedRows, scale: float) -> Stage:
        """As `learn_rows` without old rows: each process has a share of the queries' vectors too."""
        weight = self.limits.anchor_weight
        start = unit(rows.parameter.detach().clone()) if weight else None

        def step(batch: Numbers) -> Tensor:
            numbers = torch.from_numpy(batch)
            loss = rows.loss(examples, numbers, vectors.batch(numbers), scale)
            return loss if start is None else loss + weight * rows.distance_from(start)

        groups = [Group({"rows": rows.parameter}, self.options.row_lr, self.options.row_decay)]
        return Stage(step, groups, [1] * len(examples.ids), norm_fixer(rows.parameter, self.limits))


def learn_together(
    learn: str,
    model: DSI,
    examples: Examples | None,
    tokenizer: Tokenizer,
    options: Training,
    limits: RowOptions,
    *,
    first: FirstRows | None = None,
    begins: str = "",
    seed: int = 0,
    checkpoint: Path | None = None,
    what: str = "learning D0",
    progress: Progress = silent,
) -> TrainingLog:
    """Train the model's only block of rows, and the encoder where `learn` says so, together with the processes that wait for work.

    The rows begin as they are, or as `first` says. Then the model has none until they are trained, and afterwards maps them from a file
    in the folder of the checkpoint, where there is one.
    """
    world, block = team(), model.rows.blocks[0]
    source = first or FirstRows("rows", lambda low, high: block[low:high].detach().cpu())
    saves = checkpoint is not None
    work = Work(learn=learn, options=options, limits=limits, seed=seed, first=source.kind, count=len(block), saves=saves)
    broadcast(_packed(work, model, examples, tokenizer))
    rows = ShardedRows(source.share(model, examples, tokenizer, work.count, world, progress), work.count, world)
    log = TrainingLog()
    if learn != "nothing":
        assert examples is not None
        resume = resume_from(checkpoint, model, examples, limits if learn == "rows" else None, begins=begins)
        log = _train(work, model, examples, tokenizer, rows, what=what, progress=progress, **resume)
    if first is None:
        rows.collect(block.data)
    elif checkpoint is None:
        model.rows.replace_last(torch.empty(work.count, model.rows.width, device=model.device))
        rows.collect(model.rows.blocks[0].data)
    else:
        model.rows.replace_last(rows.collect_on_disk(checkpoint))
    return log


def _train(
    work: Work,
    model: DSI,
    examples: Examples,
    tokenizer: Tokenizer,
    rows: ShardedRows,
    *,
    progress: Progress = silent,
    **keywords: Any,
) -> TrainingLog:
    stage = work.stage(model, examples, tokenizer, rows, progress)
    keywords |= {"shared": rows.shared, "generator": torch.Generator().manual_seed(work.seed), "after_step": stage.after_step}
    log = train(stage.step, stage.groups, stage.lengths, work.options, seed=work.seed, progress=progress, **keywords)
    model.eval()
    return log


def help_training() -> None:
    """In a helper process of torchrun: train together with the first process whenever it does, until its work has ended."""
    world = join()
    while content := receive_work():
        work, model, examples, tokenizer = _unpacked(content)
        first = FirstRows(work.first)
        rows = ShardedRows(first.share(model, examples, tokenizer, work.count, world, silent), work.count, world)
        if examples is not None:
            # The folder of the checkpoint is the first process's: the others only send it their shares.
            _train(work, model, examples, tokenizer, rows, checkpoint=Path() if work.saves else None)
        rows.send()
    work_alone()


def _packed(work: Work, model: DSI, examples: Examples | None, tokenizer: Tokenizer) -> bytes:
    """All that a helper needs, as one safetensors file."""
    from safetensors.torch import save

    tensors = {f"encoder.{name}": weight.detach().cpu() for name, weight in model.encoder.state_dict().items()}
    if examples is not None:
        ids = TokenIds.packed(examples.ids)
        tensors |= {"ids": torch.from_numpy(ids.flat), "offsets": torch.from_numpy(ids.offsets), "targets": examples.targets.cpu()}
        if examples.siblings is not None:
            tensors |= {f"siblings.{name}": tensor.cpu() for name, tensor in examples.siblings._asdict().items()}
    settings = {"pooling": model.pooling, "normalize": model.normalize, "scale": model.scale, "int8": model.int8}
    plan = {name: value for name, value in vars(work.options).items() if name in Training.__dataclass_fields__}
    described = [asdict(work) | {"options": plan}, model.encoder.config.to_json(), settings, tokenizer.json, tokenizer.pad_id]
    return save(tensors, {"work": json.dumps([*described, model.device.type])})


def _unpacked(content: bytes) -> tuple[Work, DSI, Examples | None, Tokenizer]:
    from safetensors.torch import load

    size = int.from_bytes(content[:8], "little")  # of the header, which `load` leaves out
    work, config, settings, tokenizer, pad_id, device = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["work"])
    tensors = load(content)
    encoder = {name.removeprefix("encoder."): weight for name, weight in tensors.items() if name.startswith("encoder.")}
    model = DSI(encoder_from(EncoderConfig(**config), encoder), make_strategy("none"), **settings).to(device).eval()
    if work["learn"] != "everything":
        model.encoder.freeze()
    examples = None
    if work["learn"] != "nothing":
        siblings = {name: tensors[f"siblings.{name}"] for name in Siblings._fields if f"siblings.{name}" in tensors}
        ids = TokenIds(tensors["ids"].numpy(), tensors["offsets"].numpy())
        examples = Examples(ids, tensors["targets"], Siblings(**siblings) if siblings else None)
    parts = {"options": Training(**work["options"]), "limits": RowOptions(**work["limits"])}
    return Work(**work | parts), model, examples, Tokenizer(tokenizer, pad_id)
