"""Saving methods as safetensors and JSON, and assembling them again, from a folder or from the blobs of an index. No pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from promptdsi.aliases import METHOD_METADATA, SAVED_METHOD, renamed
from promptdsi.engine.postings import Postings, WordStatistics, statistics_from, to_tensors
from promptdsi.engine.quantized import mapped_tensors
from promptdsi.engine.words import WordTable
from promptdsi.errors import DataError
from promptdsi.files import atomic_write
from promptdsi.model.backbone import Backbone
from promptdsi.model.config import EncoderConfig, torch_device
from promptdsi.model.dsi import DSI
from promptdsi.model.encoder import encoder_from
from promptdsi.model.tokenizer import Tokenizer

FORMAT, EARLIEST_FORMAT = 3, 2


class SavedMethod(Protocol):
    """What storage needs of a method; see `VectorSearch`."""

    name: ClassVar[str]
    backbone: str
    device: str
    model_: DSI
    tokenizer_: Tokenizer
    words_: WordTable | None

    @property
    def row_width(self) -> int: ...
    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self: ...
    def get_params(self) -> dict[str, Any]: ...
    def start(self, backbone: Backbone) -> None: ...
    def metadata(self) -> dict[str, Any]: ...
    def tensors(self) -> dict[str, Tensor]: ...
    def load_metadata(self, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None: ...
    def load_words(self, metadata: dict[str, Any], words: SavedWords | None) -> None: ...


Kind = TypeVar("Kind", bound=SavedMethod)


class DocumentBlock(NamedTuple):
    """Documents that arrived together, and their rows (n, D)."""

    docids: Sequence[str]
    rows: Tensor


class SavedWords(NamedTuple):
    """The words of every corpus, and the statistics they are weighted by."""

    postings: Sequence[Postings]
    statistics: WordStatistics


class Learned(NamedTuple):
    """Everything a method has learned, apart from its parameters."""

    config: EncoderConfig
    encoder: dict[str, Tensor]
    tokenizer: str
    blocks: list[DocumentBlock]
    deleted: set[int]
    prompts: dict[str, Tensor]
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]
    words: SavedWords | None = None


def assemble(kind: type[Kind], params: Mapping[str, Any], learned: Learned) -> Kind:
    """A method as it was saved: frozen, ready to search and to train on the next corpus."""
    method = kind.from_params(params)
    metadata = renamed(learned.metadata, METHOD_METADATA)
    encoder = encoder_from(learned.config, learned.encoder)
    tokenizer = Tokenizer(learned.tokenizer, learned.config.pad_id, learned.config.vocabulary)
    method.start(Backbone(method.backbone, encoder, tokenizer, metadata.get("pooling", "mean")))
    device = torch.device(torch_device(method.device))
    rows = method.model_.rows
    rows.deleted, rows.width = set(learned.deleted), method.row_width
    for block in learned.blocks:
        rows.grow(block.docids, block.rows.to(device))
    rows.freeze()
    method.model_.strategy.load_state(learned.prompts)
    method.model_.to(device).eval()
    method.model_.encoder.freeze()
    method.load_metadata(metadata, {name: tensor.to(device) for name, tensor in learned.tensors.items()})
    method.load_words(metadata, learned.words)
    return method


def save_method(method: SavedMethod, folder: Path) -> None:
    """Weights first, the description last: a folder that has `method.json` is complete."""
    model = method.model_
    for name, tensors in (
        ("encoder", model.encoder.state_dict()),
        ("rows", {f"{number:06d}": block for number, block in enumerate(model.rows.blocks)}),
        ("prompts", model.strategy.state()),
        ("extra", method.tensors()),
    ):
        if name == "extra" and not tensors:
            continue
        with atomic_write(folder / f"{name}.safetensors") as file:
            file.write(to_bytes(tensors))
    if method.words_:
        with atomic_write(folder / "words.safetensors") as file:
            file.write(save_words(SavedWords(method.words_.parts, method.words_.statistics)))
    with atomic_write(folder / "tokenizer.json") as file:
        file.write(method.tokenizer_.json.encode("utf-8"))
    description: dict[str, Any] = {
        "format": FORMAT,
        "method": method.name,
        "params": method.get_params(),
        "encoder": model.encoder.config.to_json(),
        "docids": model.rows.docids,
        "deleted": sorted(model.rows.deleted),
        "metadata": method.metadata(),
    }
    with atomic_write(folder / "method.json") as file:
        file.write((json.dumps(description, ensure_ascii=False) + "\n").encode("utf-8"))


def load_method(kind: type[Kind], folder: Path, device: str | None = None) -> Kind:
    """A method as it was saved: the same scores. Formats of earlier releases are read through `promptdsi.aliases`."""
    from safetensors.torch import load_file

    path = folder / "method.json"
    if not path.is_file():
        raise DataError("holds no saved method", path=folder)
    saved = renamed(json.loads(path.read_text("utf-8")), SAVED_METHOD)
    if not EARLIEST_FORMAT <= saved["format"] <= FORMAT or saved["method"] != kind.name:
        raise DataError(f"holds a {saved['method']} of format {saved['format']}, expected {kind.name} of format {FORMAT}", path=path)
    docids = iter(saved["docids"])
    rows = [block for _, block in sorted(load_file(folder / "rows.safetensors").items())]
    learned = Learned(
        EncoderConfig(**saved["encoder"]),
        load_file(folder / "encoder.safetensors"),
        (folder / "tokenizer.json").read_text("utf-8"),
        [DocumentBlock([next(docids) for _ in range(len(block))], block) for block in rows],
        set(saved["deleted"]),
        load_file(folder / "prompts.safetensors"),
        saved["metadata"],
        load_file(folder / "extra.safetensors") if (folder / "extra.safetensors").is_file() else {},
        load_words(folder / "words.safetensors"),
    )
    return assemble(kind, saved["params"] | ({"device": device} if device else {}), learned)


def save_words(words: SavedWords) -> bytes:
    """Postings and statistics as one safetensors file."""
    from safetensors.numpy import save

    parts = {f"{number:06d}": to_tensors(part) for number, part in enumerate(words.postings)} | {"statistics": to_tensors(words.statistics)}
    return save({f"{part}.{name}": array for part, arrays in parts.items() for name, array in arrays.items()})


def load_words(path: Path) -> SavedWords | None:
    """What `save_words` wrote; None where there is no such file."""
    if not path.is_file():
        return None
    parts: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in mapped_tensors(path).items():
        part, _, inner = name.partition(".")
        parts.setdefault(part, {})[inner] = array
    statistics = statistics_from(parts.pop("statistics"))
    return SavedWords([Postings(**arrays) for _, arrays in sorted(parts.items())], statistics)


def to_bytes(tensors: dict[str, Tensor], *, metadata: dict[str, str] | None = None) -> bytes:
    """Tensors as a safetensors file: the same bytes for the same tensors."""
    from safetensors.torch import save

    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items() if tensor is not None}, metadata)
