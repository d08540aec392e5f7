"""DPR: one encoder for queries and one for documents, trained on D0 and left alone; new documents are encoded and added.

method = DPR.from_params({"fit": {"batch_size": 32}}).fit(d0).add(d1)

Karpukhin et al. 2020 (arXiv 2004.04906) and facebookresearch/DPR, whose settings are the defaults. Not as there: gradients
are not clipped (at norm 2.0 there; our loop has no clipping), and the rate warms up over a tenth of all steps, not 1,237.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from promptdsi.corpus.corpus import Corpus, whole_text
from promptdsi.errors import PromptDSIError, UsageError
from promptdsi.methods.base import Method
from promptdsi.methods.bm25 import BM25
from promptdsi.methods.options import check_options
from promptdsi.methods.vector_search import VectorSearch
from promptdsi.model.backbone import Backbone, load_backbone
from promptdsi.model.dsi import DSI
from promptdsi.model.encoder import Encoder, Tokens
from promptdsi.model.path import Numbers
from promptdsi.model.tokenizer import Ids, Tokenizer, lengths_of
from promptdsi.progress import Progress, silent
from promptdsi.training.checkpoint import checksum_of
from promptdsi.training.distributed import is_leading, join
from promptdsi.training.encoding import autocast, encode_batches, encode_with
from promptdsi.training.examples import TrainingPair, training_pairs_of
from promptdsi.training.training import Group, Training, TrainingLog, train

# Tokens of a step's passages whose activations are stored, 3 to 4 GB with MiniLM; beyond, layers run again in the backward pass.
STORED_TOKENS = 8_192
Loss = Callable[[Sequence[Tensor]], Tensor]


class Triples(NamedTuple):
    """Queries as token ids, and for each the numbers of its document and then of its hard negatives (n, 1 + hard)."""

    ids: Sequence[Ids]
    documents: NDArray[np.int64]


@dataclass(kw_only=True)
class DPR(VectorSearch, Method):
    """Learned state: `model_` (query tower, and the documents' vectors as rows), `document_encoder_`, `logs_`.

    A document is its first `passage_tokens` tokens (fewer if the backbone reads fewer) and one vector, of free length unless
    `encoding.normalize`. Not used: document tokens and windows of `encoding`, and of `fit` what concerns rows.
    """

    name: ClassVar[str] = "dpr"
    rehearsal_free: ClassVar[bool] = True

    passage_tokens: int = 256
    hard_negatives: int = 1
    pseudo_queries: int = 15  # used only where D0 has no annotated query
    fit_options: Training = Training(epochs=40, lr=2e-5, row_lr=0.0, schedule="linear", encoder_decay=0.0, row_decay=0.0)
    seed: int = 0

    document_encoder_: Encoder = field(init=False, repr=False, compare=False)
    logs_: list[TrainingLog] = field(init=False, repr=False, compare=False)

    def fit(self, corpus: Corpus, *, checkpoint: Path | None = None, progress: Progress = silent) -> Self:
        """Train both towers on D0, freeze them, and encode D0's documents."""
        if not is_leading() and join().size > 1:
            raise UsageError("dpr trains in one process: start it without torchrun")
        loss = ranking_loss(self.encoding.scale)  # first, because it fails at once when its library is missing
        self.start(load_backbone(self.backbone, offline=self.offline))
        pairs = tower_pairs(corpus, pseudo=self.pseudo_queries, seed=self.seed)
        documents = with_hard_negatives(corpus, pairs, count=self.hard_negatives, progress=progress)
        triples = Triples(self.tokenizer_.encode([pair.text for pair in pairs], max_tokens=self.encoding.max_tokens).ids, documents)
        towers = Towers(self.model_, self.make_model(self.document_encoder_), self.tokenizer_)
        keywords: dict[str, Any] = {"seed": self.seed, "checkpoint": checkpoint, "progress": progress}
        log = learn_towers(towers, triples, self._passages(corpus), loss, self.fit_options, **keywords)
        self._freeze()
        self.add(corpus, progress=progress)
        self.logs_ = [log]
        return self

    def add(self, corpus: Corpus, *, checkpoint: Path | None = None, progress: Progress = silent) -> Self:
        """Encode new documents with the document tower as it is; nothing trains, nothing old is read."""
        vectors = self.document_vectors(corpus, progress=progress)
        self.model_.rows.grow([document.docid for document in corpus.documents], vectors)
        self.model_.rows.freeze()
        self.logs_.append(TrainingLog())
        return self

    def document_vectors(self, corpus: Corpus, *, progress: Progress = silent) -> Tensor:
        """The document tower's vector of each document: (n, D)."""
        tower, device = self.make_model(self.document_encoder_), self.model_.device
        passages = self._passages(corpus)
        return encode_with(tower.unprompted, passages, self.tokenizer_, device, what="encoding documents", progress=progress)

    def extra_bytes(self) -> int:
        """The document tower, without which no document can be added."""
        return sum(weight.numel() * weight.element_size() for weight in self.document_encoder_.parameters())

    def start(self, backbone: Backbone) -> None:
        """Two towers around one backbone: equal, and not yet trained."""
        check_options(self.get_params())
        passage_tokens = min(self.passage_tokens, backbone.encoder.config.max_tokens)  # longer passages are truncated
        limits = {"encoding.max_tokens": self.encoding.max_tokens, "passage_tokens": passage_tokens}
        self.model_ = self.make_model(backbone.encoder, limits=limits)
        self.document_encoder_ = copy.deepcopy(self.model_.encoder)
        self.tokenizer_, self.truncated_documents_, self.logs_ = backbone.tokenizer, 0, []

    def metadata(self) -> dict[str, Any]:
        return {"corpora": len(self.logs_)}

    def tensors(self) -> dict[str, Tensor]:
        return self.document_encoder_.state_dict()

    def load_metadata(self, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.document_encoder_.load_state_dict(tensors)
        self.logs_ = [TrainingLog() for _ in range(metadata["corpora"])]
        self._freeze()

    def _freeze(self) -> None:
        for encoder in (self.model_.encoder, self.document_encoder_):
            encoder.eval()
            encoder.freeze()

    def _passages(self, corpus: Corpus) -> Sequence[Ids]:
        texts = [whole_text(document) for document in corpus.documents]
        most = min(self.passage_tokens, self.document_encoder_.config.max_tokens)
        ids, truncated = self.tokenizer_.encode(texts, max_tokens=most)
        self.truncated_documents_ = sum(truncated)
        return ids


class Towers(NamedTuple):
    """What trains, and what reads for it."""

    queries: DSI
    documents: DSI
    tokenizer: Tokenizer


def learn_towers(
    towers: Towers,
    triples: Triples,
    passages: Sequence[Ids],
    loss: Loss,
    options: Training,
    *,
    seed: int = 0,
    checkpoint: Path | None = None,
    progress: Progress = silent,
) -> TrainingLog:
    """Train both towers. Like DPR, a step does not look whether two of its queries ask for the same document.

    Batches are made of queries of like length, not of documents of like length: that would bring the queries of one document
    together, each making the other's document a negative.
    """
    device = towers.queries.device

    def step(batch: Numbers) -> Tensor:
        numbers = triples.documents[batch].T  # (1 + hard, B): positives first
        with autocast(device):
            queries = towers.queries.unprompted(towers.tokenizer.pad([triples.ids[number] for number in batch], device))  # (B, D)
            documents = passage_vectors(towers, [passages[number] for number in numbers.ravel().tolist()])  # ((1 + hard) B, D)
        return loss([queries.float(), *documents.float().chunk(len(numbers))])

    named = {
        f"{side}.{name}": weight for side in ("queries", "documents") for name, weight in getattr(towers, side).encoder.named_parameters()
    }
    towers.queries.train()
    towers.documents.train()
    groups = [Group(named, options.lr, options.encoder_decay)]
    resume: dict[str, Any] = {}
    if checkpoint:
        settings = [towers.queries.pooling, towers.queries.normalize, towers.queries.scale, towers.queries.encoder.config.to_json()]
        arrays = [*named.values(), lengths_of(triples.ids), *triples.ids, triples.documents, lengths_of(passages), *passages]
        resume = {"checkpoint": checkpoint, "identity": checksum_of(settings, arrays)}
    return train(step, groups, lengths_of(triples.ids), options, seed=seed, **resume, what="learning D0", progress=progress)


def passage_vectors(towers: Towers, ids: Sequence[Ids]) -> Tensor:
    """Vectors of documents, with gradients: (n, D)."""
    from torch.utils.checkpoint import checkpoint

    encode: Callable[[Tokens], Tensor] = towers.documents.unprompted
    if sum(map(len, ids)) > STORED_TOKENS:
        encode = partial(checkpoint, encode, use_reentrant=False)
    return encode_batches(encode, ids, towers.tokenizer, towers.documents.device)


def ranking_loss(scale: float = 1.0) -> Loss:
    """sentence-transformers' softmax over the batch's positives and hard negatives, by inner product.

    Takes vectors: queries (B, D), their documents (B, D), then hard negatives (B, D) each. The towers are ours, so the loss is
    given no model to call.
    """
    try:
        from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
        from sentence_transformers.util import dot_score
    except ImportError:
        raise PromptDSIError("dpr needs sentence-transformers 6: pip install 'promptdsi[dpr]'") from None
    no_model: Any = nn.Identity()
    loss = MultipleNegativesRankingLoss(no_model, scale=scale, similarity_fct=dot_score)
    no_labels = torch.empty(0)  # query i belongs to document i
    return lambda vectors: loss.compute_loss_from_embeddings(list(vectors), no_labels)


def tower_pairs(corpus: Corpus, *, pseudo: int, seed: int) -> list[TrainingPair]:
    """What the towers are trained on: annotated train queries; where there are none, pseudo-queries."""
    annotated = [TrainingPair(pair.query.text, pair.docid) for pair in corpus.pairs("train", kinds=("annotated",))]
    return annotated or training_pairs_of(corpus, pseudo=pseudo, seed=seed)


def with_hard_negatives(corpus: Corpus, pairs: Sequence[TrainingPair], *, count: int, progress: Progress = silent) -> NDArray[np.int64]:
    """For each query the number of its document, then of BM25's best documents that are not relevant: (n, 1 + count).

    Fewer than `count` where the corpus has no more.
    """
    position = {document.docid: number for number, document in enumerate(corpus.documents)}
    relevant: dict[str, set[str]] = {}
    for pair in pairs:
        relevant.setdefault(pair.text, set()).add(pair.docid)
    count = min(count, len(position) - max(map(len, relevant.values()), default=0))
    negatives: dict[str, list[int]] = {text: [] for text in relevant}
    if count:
        bm25 = BM25().fit(corpus)
        with progress("finding hard negatives", total=len(relevant), unit="queries") as advance:
            for text, docids in relevant.items():
                best = bm25.search([text], k=count + len(docids))[0].docids
                negatives[text] = [position[docid] for docid in best if docid not in docids][:count]
                advance(1)
    return np.array([[position[pair.docid], *negatives[pair.text]] for pair in pairs], dtype=np.int64)
