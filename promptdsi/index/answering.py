"""What answers the queries of a generation: its rows as a table, and its encoder.

`onnx` runs the encoder without torch, on the processor; `int8` is the same with products of small whole numbers; `torch` runs the
model that learning uses, on any device. Rows are scanned by the processor in all of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from promptdsi.engine.encoder import Layers, QueryEncoder
from promptdsi.engine.selection import KNOWN, Chosen, Floats, Pool
from promptdsi.engine.session import cores
from promptdsi.engine.table import Block, Table, joined
from promptdsi.errors import DataError, UsageError
from promptdsi.index.manifest import Manifest
from promptdsi.index.rows import get_rows
from promptdsi.index.store import Store
from promptdsi.model.config import NO_PROMPT, PROMPT_LAYERS, EncoderConfig, check_weights
from promptdsi.model.tokens import Tokenizer

if TYPE_CHECKING:
    from promptdsi.methods.promptdsi import PromptDSI

ENGINES = ("auto", "onnx", "int8", "torch")
# Generations of one index have the same encoder: it is built once for all that are open.
_layers: weakref.WeakValueDictionary[tuple[Any, ...], Layers] = weakref.WeakValueDictionary()


class Encoder(Protocol):
    """Queries to vectors."""

    def encode(self, queries: Sequence[str], *, prompted: bool = True) -> Floats:
        """Query vectors, ready to be scored: (n, D)."""

    def choose(self, query: str) -> Chosen | None:
        """What the strategy chooses for one query; None without prompts."""

    def cut(self, queries: Sequence[str]) -> int:
        """How many queries are longer than is read of them."""


class TorchEncoder:
    """The model that learning uses."""

    def __init__(self, method: PromptDSI, threads: int | None = None) -> None:
        self.method, self.threads = method, threads

    def encode(self, queries: Sequence[str], *, prompted: bool = True) -> Floats:
        import torch

        if self.threads is not None:
            torch.set_num_threads(self.threads)  # of products that the calling thread begins
        found: Floats = self.method.encode(queries, prompted=prompted).cpu().numpy()
        return found

    def choose(self, query: str) -> Chosen | None:
        import torch

        method = self.method
        ids = method.tokenizer_.encode([query], max_tokens=method.encoding.max_tokens).ids
        with torch.no_grad():
            chosen = method.model_(method.tokenizer_.pad(ids, method.model_.encoder.word.weight.device)).selection
        if chosen.ids is None or chosen.prefix is None:
            return None
        similarity = None if chosen.similarity is None else chosen.similarity.cpu().numpy()
        return Chosen(chosen.prefix.cpu().numpy(), chosen.ids.cpu().numpy(), similarity, (chosen.ids == NO_PROMPT).cpu().numpy())

    def cut(self, queries: Sequence[str]) -> int:
        return self.method.tokenizer_.encode(queries, max_tokens=self.method.encoding.max_tokens).cut


def check_engine(engine: str, device: str, manifest: Manifest) -> str:
    """The engine that `auto` stands for: torch where another device than the CPU is named, and for strategies only torch knows."""
    if engine not in ENGINES:
        raise UsageError(f"no engine {engine!r}; there are {', '.join(ENGINES)}")
    needs_torch = device not in ("auto", "cpu") or manifest.params.get("prompts", "none") not in KNOWN
    if engine in ("onnx", "int8") and needs_torch:
        raise UsageError(f"the engine {engine} runs on the processor and knows the prompts {', '.join(KNOWN)}; use --engine torch")
    return engine if engine != "auto" else "torch" if needs_torch else "onnx"


def open_table(store: Store, manifest: Manifest, *, threads: int | None = None) -> Table:
    """The rows of a generation, mapped."""
    blocks: list[Block] = []
    docids: list[str] = []
    for number, entry in enumerate(manifest.corpora):
        block, own = get_rows(store, entry.rows), store.docids(entry.ids)
        if block.rows.shape != (entry.count, manifest.config["width"]) or len(own) != entry.count:
            raise DataError(f"holds other rows than generation {manifest.number} says; run `promptdsi verify`", path=store.folder)
        blocks.append(block)
        docids += named(own, manifest.firsts()[number])
    return Table(joined(blocks), docids, set(manifest.tombstones), threads=threads or cores())


def named(docids: Sequence[str | None], first: int) -> list[str]:
    """Docids by row. A purged one has none; its row is dead, and a name nobody can ask for keeps its place."""
    return [docid or f"\0{first + place}" for place, docid in enumerate(docids)]


def check_encoder(store: Store, manifest: Manifest) -> None:
    """Raise ValueError unless the encoder is the one the manifest describes; nothing but names and shapes is looked at."""
    config = EncoderConfig(**manifest.config)
    check_weights(config, store.blobs.arrays(manifest.encoder))
    layers = manifest.params.get("prompt_options", {}).get("prompt_layers", PROMPT_LAYERS)
    max_tokens = manifest.params["encoding"]["max_tokens"]
    if max_tokens > config.max_tokens or (manifest.prompts and not all(1 <= one <= config.layers for one in layers)):
        raise ValueError("the method asks for more than the encoder has")


def open_encoder(store: Store, manifest: Manifest, method: Callable[[], PromptDSI], *, engine: str, threads: int | None) -> Encoder:
    """The encoder of a generation; `method` is called only where torch is needed."""
    if engine == "torch":
        return TorchEncoder(method(), threads)
    params, encoding = manifest.params, manifest.params["encoding"]
    options, config = params.get("prompt_options", {}), EncoderConfig(**manifest.config)
    held = {name: store.blobs.arrays(name) for name in set(manifest.prompts.values())}
    prompts = {name: held[blob][name] for name, blob in manifest.prompts.items()}
    pool = Pool(prompts, tuple(options.get("prompt_layers", PROMPT_LAYERS)), center=options.get("center", False))
    prompted = pool.layers if len(pool) else ()
    firsts_only = encoding["pooling"] == "first"
    key = (manifest.encoder, config, prompted, firsts_only, threads or cores(), engine)
    layers = _layers.get(key)
    if layers is None:
        weights = store.blobs.arrays(manifest.encoder)
        layers = Layers(config, weights, prompted, firsts_only=firsts_only, threads=threads, int8=engine == "int8")
        _layers[key] = layers
    return QueryEncoder(
        layers,
        Tokenizer(store.blobs.text(manifest.tokenizer), config.pad_id),
        pool,
        pooling=encoding["pooling"],
        normalise=encoding["normalize"],
        max_tokens=encoding["max_tokens"],
        two_pass=params.get("selection") == "two-pass",
        project=params.get("prefix_space") == "pre",
    )
