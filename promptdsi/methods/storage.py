"""Save and load a learned method: safetensors for weights, JSON for the rest; no pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from promptdsi.corpus.generators.sampling import torch_device
from promptdsi.errors import DataError
from promptdsi.files import atomic_write
from promptdsi.learning.topics import Topics
from promptdsi.learning.training import TrainingLog
from promptdsi.model.backbone import Backbone, encoder_from
from promptdsi.model.encoder import EncoderConfig
from promptdsi.model.tokens import Tokenizer

if TYPE_CHECKING:
    from promptdsi.methods.promptdsi import PromptDSI

Kind = TypeVar("Kind", bound="PromptDSI")
FORMAT = 1


def save_method(method: PromptDSI, folder: Path) -> None:
    """Weights first, the description last: a folder that has `method.json` has everything."""
    model = method.model_
    _save(folder / "encoder.safetensors", model.encoder.state_dict())
    _save(folder / "rows.safetensors", {f"{number:06d}": block for number, block in enumerate(model.rows.blocks)})
    _save(folder / "prompts.safetensors", {name: tensor for name, tensor in model.strategy.state().items() if tensor is not None})
    with atomic_write(folder / "tokenizer.json") as file:
        file.write(method.tokenizer_.json.encode("utf-8"))
    description: dict[str, Any] = {
        "format": FORMAT,
        "method": method.name,
        "params": method.get_params(),
        "encoder": model.encoder.config.to_json(),
        "docids": model.rows.docids,
        "dead": sorted(model.rows.dead),
        "row_length": method.row_length_,
        "corpora": len(method.logs_),
        "topics": {"words": method.topics_.words, "labels": method.topics_.labels.tolist()} if method.topics_ else None,
    }
    with atomic_write(folder / "method.json") as file:
        file.write((json.dumps(description, ensure_ascii=False) + "\n").encode("utf-8"))


def load_method(kind: type[Kind], folder: Path, device_name: str | None = None) -> Kind:
    """A method as it was saved: the same scores."""
    from safetensors.torch import load_file

    path = folder / "method.json"
    if not path.is_file():
        raise DataError("holds no saved method", path=folder)
    description = json.loads(path.read_text("utf-8"))
    if description["format"] != FORMAT or description["method"] != kind.name:
        raise DataError(
            f"holds a {description['method']} of format {description['format']}, expected {kind.name} of format {FORMAT}", path=path
        )
    params: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in description["params"].items()}
    method = kind(**(params | ({"device": device_name} if device_name else {})))
    encoder = encoder_from(EncoderConfig(**description["encoder"]), load_file(folder / "encoder.safetensors"))
    tokenizer = Tokenizer((folder / "tokenizer.json").read_text("utf-8"), encoder.config.pad_id)
    method._start(Backbone(method.backbone, encoder, tokenizer, method.pooling))
    device = torch.device(torch_device(method.device))
    docids = iter(description["docids"])
    rows = method.model_.rows
    rows.dead = set(description["dead"])
    for _, block in sorted(load_file(folder / "rows.safetensors").items()):
        rows.grow([next(docids) for _ in range(len(block))], block.to(device))
    rows.freeze()
    method.model_.strategy.load_state(load_file(folder / "prompts.safetensors"))
    method.model_.to(device)
    method.model_.encoder.freeze()
    method.row_length_ = description["row_length"]
    if topics := description["topics"]:
        method.topics_ = Topics(np.array(topics["labels"], dtype=np.int64), topics["words"])
    method.logs_ = [TrainingLog() for _ in range(description["corpora"])]
    return method


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save

    with atomic_write(path) as file:
        file.write(save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}))
