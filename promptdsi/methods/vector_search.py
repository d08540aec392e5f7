"""What methods share that score by query vector × row: encoding, search, exact ranks, and saving as safetensors and JSON (no pickle)."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from promptdsi.aliases import METHOD_METADATA, SAVED_METHOD, renamed
from promptdsi.corpus.corpus import Corpus, whole_text
from promptdsi.corpus.passages import Passages, cut_corpus, whole_documents
from promptdsi.engine.quantized import mapped_tensors
from promptdsi.engine.row_table import RowTable
from promptdsi.engine.words import Calibration, Postings, WordStatistics, WordTable, statistics_from, to_tensors
from promptdsi.errors import DataError, UsageError
from promptdsi.files import atomic_write
from promptdsi.methods.base import Result, check_k
from promptdsi.methods.options import Encoding
from promptdsi.model.backbone import Backbone
from promptdsi.model.config import EncoderConfig, torch_device
from promptdsi.model.dsi import DSI
from promptdsi.model.encoder import Encoder, encoder_from
from promptdsi.model.path import Tokenizer
from promptdsi.model.prompts import PromptStrategy, make_strategy
from promptdsi.progress import Progress, silent
from promptdsi.training.encoding import LEAST_QUERIES, calibration_pairs, document_vectors, query_vectors
from promptdsi.training.fusion import DEFAULT_WEIGHT, MOST_SCORES, collect, fit_calibration, fit_weight

FORMAT, EARLIEST_FORMAT = 3, 2


class SavedMethod(Protocol):
    """What storage needs of a method; see `VectorSearch`."""

    name: ClassVar[str]
    backbone: str
    device: str
    model_: DSI
    tokenizer_: Tokenizer
    words_: WordTable | None

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
    tokenizer = Tokenizer(learned.tokenizer, learned.config.pad_id)
    method.start(Backbone(method.backbone, encoder, tokenizer, metadata.get("pooling", "mean")))
    device = torch.device(torch_device(method.device))
    rows = method.model_.rows
    rows.deleted = set(learned.deleted)
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


@dataclass(kw_only=True)
class VectorSearch(ABC):
    """A mix-in for `Method`. Learned state: `model_` (encoder, prompts and rows), `tokenizer_` and `truncated_documents_`."""

    backbone: str = "minilm"
    encoding: Encoding = Encoding()
    device: str = "auto"
    offline: bool = False

    model_: DSI = field(init=False, repr=False, compare=False)
    tokenizer_: Tokenizer = field(init=False, repr=False, compare=False)
    truncated_documents_: int = field(init=False, repr=False, compare=False)  # of the last corpus
    words_: WordTable | None = field(default=None, init=False, repr=False, compare=False)
    word_salt_: str = field(default="", init=False, repr=False, compare=False)  # with one, words are stored as hashes
    _cut: Passages | None = field(default=None, init=False, repr=False, compare=False)
    calibration_: Calibration | None = field(default=None, init=False, repr=False, compare=False)

    @abstractmethod
    def start(self, backbone: Backbone) -> None:
        """Make an untrained model around a backbone: sets `model_` and `tokenizer_`."""

    def make_model(self, encoder: Encoder, strategy: PromptStrategy | None = None, *, limits: Mapping[str, int] | None = None) -> DSI:
        """A model without rows, as `encoding` says. `limits` are token limits by name: the encoder must be able to read as many."""
        encoding, most = self.encoding, encoder.config.max_tokens
        for option, tokens in (limits or {}).items():
            if not 3 <= tokens <= most:
                raise UsageError(f"{option}={tokens} but the backbone {self.backbone} reads 3 to {most}")
        encoder.config = replace(encoder.config, dropout=encoding.dropout, attention_dropout=encoding.dropout)
        keywords: dict[str, Any] = {"pooling": encoding.pooling, "normalize": encoding.normalize, "scale": encoding.scale}
        return DSI(encoder, strategy or make_strategy("none"), **keywords).to(torch.device(torch_device(self.device))).eval()

    @abstractmethod
    def metadata(self) -> dict[str, Any]:
        """What was learned beside weights, as JSON."""

    def tensors(self) -> dict[str, Tensor]:
        """What was learned beside the model itself, by name: mean queries, a second tower."""
        return {}

    @abstractmethod
    def load_metadata(self, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Restore what `metadata` and `tensors` gave."""

    def search(self, queries: Sequence[str], *, k: int = 10) -> list[Result]:
        check_k(k)
        queries = [queries] if isinstance(queries, str) else list(queries)
        if not queries:
            return []
        docids = self.model_.rows.docids
        words = [self.words_.query(query) for query in queries] if self.words_ else None
        top = RowTable.from_rows(self.model_.rows).top(self.encode(queries).cpu().numpy(), k, words)
        return [Result([docids[row] for row in rows], scores) for rows, scores in zip(top.rows.tolist(), top.scores.tolist(), strict=True)]

    def ranks(self, queries: Sequence[str], docids: Sequence[str]) -> NDArray[np.int64]:
        rows = self.model_.rows
        if unknown := [docid for docid in docids if rows.row_of.get(docid, -1) < 0 or rows.row_of[docid] in rows.deleted]:
            raise UsageError(f"{len(unknown)} documents are not in the index, {unknown[0]!r} first")
        if not queries:
            return np.empty(0, dtype=np.int64)
        vectors = self.encode(queries)
        if self.words_ is None and not rows.several:
            return rows.ranks(vectors, rows.numbers(docids).to(vectors.device)).cpu().numpy()
        table, arrays = RowTable.from_rows(rows), vectors.cpu().numpy()
        words = [self.words_.query(query) if self.words_ else None for query in queries]
        ranks = [table.ranks(arrays[number], [rows.row_of[docid]], words[number])[0] for number, docid in enumerate(docids)]
        return np.array(ranks, dtype=np.int64)

    @property
    def encodes_as_d0(self) -> bool:
        """Whether queries are encoded as they were after D0, whatever was trained since: then a cache may hold their vectors."""
        return False

    @torch.no_grad()
    def encode(self, queries: Sequence[str], *, prompted: bool = True, progress: Progress = silent) -> Tensor:
        """Query vectors, ready to be scored: (n, D)."""
        queries = [queries] if isinstance(queries, str) else list(queries)
        ids = self.tokenizer_.encode(queries, max_tokens=self.encoding.max_tokens).ids
        return query_vectors(self.model_, ids, self.tokenizer_, prompted=prompted, progress=progress)

    def passages(self, corpus: Corpus) -> Passages:
        """The passages that get a row: one per document unless `encoding.passage_tokens` says otherwise."""
        limit = min(self.encoding.passage_tokens, self.encoding.document_tokens)  # a passage is read in one window
        if not limit:
            return whole_documents(corpus)
        if self._cut is None or self._cut.corpus is not corpus:  # kept until the corpus is learned: training needs them again and again
            self._cut = cut_corpus(corpus, limit, self.tokenizer_.token_starts)
        return self._cut

    def add_words(self, corpus: Corpus) -> None:
        """Take in the words of a corpus whose rows were just added, where words count."""
        if not self.encoding.words:
            self._cut = None
            return
        texts = self.passages(corpus).texts_with_queries(corpus.pairs("train", kinds=("annotated",)) if self.annotated_words() else ())
        postings = Postings.build(texts, self.word_salt_)
        self._cut = None  # no text of a corpus is kept once it is learned
        if self.words_ is None:
            weight = self.encoding.word_weight or DEFAULT_WEIGHT
            self.words_ = WordTable([postings], WordStatistics.of(postings), weight=weight, salt=self.word_salt_)
        else:
            self.words_ = self.words_.grown(postings)

    def annotated_words(self) -> bool:
        """Whether the words of annotated train queries are put to those of their documents."""
        return True

    @torch.no_grad()
    def calibrate(self, corpus: Corpus) -> None:
        """Fit the weight of words and the confidence of hits on D0's queries: dev where there are enough, else train, else pseudo."""
        rows = self.model_.rows
        pairs, annotated = calibration_pairs(self.passages(corpus), seed=0, limit=MOST_SCORES // max(len(rows), 1))
        self._cut = None
        if len(pairs) < LEAST_QUERIES:
            return
        table, texts = RowTable.from_rows(rows), [pair.text for pair in pairs]
        scored = collect(table, self.encode(texts).cpu().numpy(), texts, [rows.row_of[pair.docid] for pair in pairs], self.words_)
        if self.words_ and annotated and not self.encoding.word_weight:
            self.words_ = self.words_.weighted(fit_weight(scored))
        self.calibration_ = fit_calibration(scored, self.words_.weight if self.words_ else 0.0)

    def word_metadata(self) -> dict[str, Any]:
        """The learned weight of words, and the calibration of confidences, as JSON."""
        words = {"word_weight": self.words_.weight, "word_salt": self.word_salt_} if self.words_ else {}
        return words | ({"calibration": self.calibration_._asdict()} if self.calibration_ else {})

    def load_words(self, metadata: dict[str, Any], words: SavedWords | None) -> None:
        """Restore what `word_metadata` and the word files gave."""
        self.calibration_ = Calibration(**metadata["calibration"]) if "calibration" in metadata else None
        if words:
            self.word_salt_ = metadata["word_salt"]
            self.words_ = WordTable(words.postings, words.statistics, weight=metadata["word_weight"], salt=self.word_salt_)

    def document_vectors(self, corpus: Corpus, *, progress: Progress = silent) -> Tensor:
        """The unit vector of each document, or of each passage: (n, D)."""
        texts = [whole_text(document) for document in self.passages(corpus).documents()]
        size, most = self.encoding.document_tokens, self.encoding.document_windows
        windows, self.truncated_documents_ = self.tokenizer_.windows(texts, size=size, most=most)
        return document_vectors(self.model_, windows, self.tokenizer_, progress=progress)

    def save(self: SavedMethod, folder: str | Path) -> None:
        save_method(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path, *, device: str | None = None) -> Self:
        """Read what `save` wrote; `device` replaces the one it was saved with."""
        return load_method(cls, Path(folder), device)  # type: ignore[type-var]  # only subclasses that are also a Method are loaded
