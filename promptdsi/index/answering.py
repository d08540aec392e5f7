"""What answers the queries of a generation: its rows as a table, and its encoder.

`onnx` runs the encoder without torch, on the processor; `int8` is the same with products of small whole numbers; `torch` runs the
model that learning uses, on any device. Rows are scanned by the processor in all of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from promptdsi.engine.quantized import RowBlock, merge_small_blocks
from promptdsi.engine.query_encoder import EncoderSessions, OnnxEncoder, QueryEncoder, TorchEncoder
from promptdsi.engine.row_table import RowTable
from promptdsi.engine.threads import cores
from promptdsi.errors import DataError, UsageError
from promptdsi.index.manifest import Manifest
from promptdsi.index.rows import get_rows
from promptdsi.index.store import Store
from promptdsi.model.config import PROMPT_LAYERS, EncoderConfig, check_weights
from promptdsi.model.prompts import make_strategy
from promptdsi.model.prompts.strategy import ArrayPool
from promptdsi.model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from promptdsi.methods.promptdsi import PromptDSI

ENGINES = ("auto", "onnx", "int8", "torch")
# Generations of one index have the same encoder: it is built once for all that are open.
_sessions: weakref.WeakValueDictionary[tuple[Any, ...], EncoderSessions] = weakref.WeakValueDictionary()


def check_engine(engine: str, device: str, manifest: Manifest) -> str:
    """The engine that `auto` stands for: torch where another device than the CPU is named."""
    if engine not in ENGINES:
        raise UsageError(f"no engine {engine!r}; there are {', '.join(ENGINES)}")
    needs_torch = device not in ("auto", "cpu")
    if engine in ("onnx", "int8") and needs_torch:
        raise UsageError(f"the engine {engine} runs on the CPU only; use --engine torch with --device {device}")
    return engine if engine != "auto" else "torch" if needs_torch else "onnx"


def open_table(store: Store, manifest: Manifest, *, threads: int | None = None) -> RowTable:
    """The rows of a generation, mapped."""
    blocks: list[RowBlock] = []
    docids: list[str] = []
    for number, entry in enumerate(manifest.corpora):
        block, own = get_rows(store, entry.rows), store.docids(entry.ids)
        if block.rows.shape != (entry.count, manifest.config["width"]) or len(own) != entry.count:
            raise DataError(f"holds other rows than generation {manifest.number} says; run `promptdsi verify`", path=store.folder)
        blocks.append(block)
        docids += named(own, manifest.firsts()[number])
    return RowTable(merge_small_blocks(blocks), docids, set(manifest.tombstones), threads=threads or cores())


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


def open_encoder(store: Store, manifest: Manifest, method: Callable[[], PromptDSI], *, engine: str, threads: int | None) -> QueryEncoder:
    """The encoder of a generation; `method` is called only where torch is needed."""
    params, encoding, config = manifest.params, manifest.params["encoding"], EncoderConfig(**manifest.config)
    if engine == "torch":
        opened = method()
        return TorchEncoder(opened.model_, opened.tokenizer_, max_tokens=opened.encoding.max_tokens, threads=threads)
    blobs = {name: store.blobs.arrays(name) for name in set(manifest.prompts.values())}
    strategy = make_strategy(params.get("prompts", "none"), **params.get("prompt_options", {}))
    strategy.pool = ArrayPool({name: blobs[blob][name] for name, blob in manifest.prompts.items()}, strategy.blocks)
    layers = strategy.prompt_layers if strategy.prompts else ()
    path = {"pooling": encoding["pooling"], "prefix_space": params.get("prefix_space", "post")}
    key = (manifest.encoder, config, layers, *path.values(), threads or cores(), engine)
    sessions = _sessions.get(key)
    if sessions is None:
        weights = store.blobs.arrays(manifest.encoder)
        sessions = EncoderSessions(config, weights, layers, **path, threads=threads, int8=engine == "int8")
        _sessions[key] = sessions
    tokenizer = Tokenizer(store.blobs.text(manifest.tokenizer), config.pad_id)
    selection, normalize, max_tokens = params.get("selection", "single"), encoding["normalize"], encoding["max_tokens"]
    return OnnxEncoder(sessions, tokenizer, strategy, max_tokens=max_tokens, normalize=normalize, selection=selection, **path)
