"""Tiny models for the tests: random encoders of a few hundred weights, a word tokeniser, and a small model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from promptdsi.model.config import EncoderConfig
from promptdsi.model.dsi import DSI
from promptdsi.model.encoder import Encoder, Tokens
from promptdsi.model.prompts import make_strategy
from promptdsi.model.tokenizer import Tokenizer

WIDTH = 8


def config(**changes: Any) -> EncoderConfig:
    sizes: dict[str, Any] = {
        "family": "bert",
        "width": WIDTH,
        "layers": 3,
        "heads": 2,
        "feed_forward": 16,
        "vocabulary": 60,
        "positions": 40,
    }
    return EncoderConfig(**(sizes | {"dropout": 0.0, "attention_dropout": 0.0} | changes))


def encoder(seed: int = 0, **changes: Any) -> Encoder:
    torch.manual_seed(seed)
    return Encoder(config(**changes)).eval()


def model(
    strategy: str = "none",
    *,
    seed: int = 0,
    encoder_changes: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    **keywords: Any,
) -> DSI:
    defaults = {} if strategy == "none" else {"prompt_length": 4}
    return DSI(encoder(seed, **(encoder_changes or {})), make_strategy(strategy, **(defaults | (options or {}))), **keywords).eval()


def begun(strategy: str, corpora: int = 2, **keywords: Any) -> DSI:
    """A model whose strategy has begun some corpora, with rows for them."""
    dsi = model(strategy, **keywords)
    queries = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(1))
    topics = torch.arange(40) % 3
    dsi.strategy.prepare(queries, topics if dsi.strategy.wants_topics else None)
    dsi.rows.grow(["a", "b", "c"], torch.randn(3, WIDTH))
    for number in range(corpora):
        dsi.strategy.begin_corpus(queries + number)
        dsi.rows.grow([f"n{number}", f"m{number}"], torch.randn(2, WIDTH))
    return dsi


def batch(*lengths: int, seed: int = 0, vocabulary: int = 60) -> Tokens:
    """A padded batch of random queries of the given lengths."""
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    ids = torch.zeros(len(lengths), longest, dtype=torch.long)
    for row, length in zip(ids, lengths, strict=True):
        row[:length] = torch.randint(2, vocabulary, (length,), generator=generator)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return Tokens(ids, None if bool(mask.all()) else mask)


def only(tokens: Tokens, number: int) -> Tokens:
    """One query of a batch, alone and unpadded."""
    length = tokens.ids.shape[1] if tokens.mask is None else int(tokens.mask[number].sum())
    return Tokens(tokens.ids[number : number + 1, :length])


def word_tokenizer(words: list[str]) -> str:
    """`tokenizer.json` of a tokeniser that knows some words and brackets them like BERT."""
    from tokenizers import Tokenizer as Fast
    from tokenizers import models, normalizers, pre_tokenizers, processors

    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", *words])}
    fast = Fast(models.WordLevel(vocabulary, unk_token="[UNK]"))
    fast.normalizer = normalizers.Lowercase()
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    fast.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    return str(fast.to_str())


def backbone_folder(folder: Path, words: list[str], *, seed: int = 0, **changes: Any) -> Path:
    """A complete local BERT folder with random weights, as the Hugging Face library saves it."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    sizes |= {"max_position_embeddings": 64, "vocab_size": len(words) + 4}
    BertModel(BertConfig(**(sizes | changes))).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(word_tokenizer(words))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return folder


def tokenizer(words: list[str]) -> Tokenizer:
    return Tokenizer(word_tokenizer(words), 0)


def snapshot(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items() if tensor is not None}
