"""From a Hugging Face folder to our encoder: configuration and weight names of the BERT, RoBERTa and MPNet families.

Reads `config.json` and safetensors files directly: no pickle, no remote code, no heavy import.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from promptdsi.errors import DataError, PromptDSIError
from promptdsi.model.config import ACTIVATIONS, EncoderConfig

BERT_LIKE = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
}
MPNET_LIKE = {
    "query": "attention.attn.q",
    "key": "attention.attn.k",
    "value": "attention.attn.v",
    "attention_out": "attention.attn.o",
    "attention_norm": "attention.LayerNorm",
}
SHARED = {"up": "intermediate.dense", "down": "output.dense", "output_norm": "output.LayerNorm"}
# model_type → names inside a layer, and whether positions start behind the padding id.
FAMILIES: dict[str, tuple[str, dict[str, str], bool]] = {
    "bert": ("bert", BERT_LIKE | SHARED, False),
    "roberta": ("roberta", BERT_LIKE | SHARED, True),
    "xlm-roberta": ("roberta", BERT_LIKE | SHARED, True),
    "camembert": ("roberta", BERT_LIKE | SHARED, True),
    "mpnet": ("mpnet", MPNET_LIKE | SHARED, True),
}


def read_config(folder: Path) -> EncoderConfig:
    """`config.json` as our configuration, or an error that says what is not supported."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DataError("is no model folder: it has no config.json", path=folder) from None
    except ValueError as error:
        raise DataError(f"is damaged: {error}", path=path) from None
    kind = raw.get("model_type")
    if kind not in FAMILIES:
        raise DataError(f"model type {kind!r} is not supported; there are {', '.join(FAMILIES)}", path=path)
    if raw.get("position_embedding_type", "absolute") != "absolute" or raw.get("hidden_act", "gelu") not in ACTIVATIONS:
        raise DataError("only absolute positions and the activations gelu, relu and gelu_new are supported", path=path)
    family, _, behind_padding = FAMILIES[kind]
    pad = 1 if family == "mpnet" else int(raw.get("pad_token_id", 1 if family == "roberta" else 0) or 0)
    return EncoderConfig(
        family=family,
        width=raw["hidden_size"],
        layers=raw["num_hidden_layers"],
        heads=raw["num_attention_heads"],
        feed_forward=raw["intermediate_size"],
        vocabulary=raw["vocab_size"],
        positions=raw["max_position_embeddings"],
        position_offset=pad + 1 if behind_padding else 0,
        pad_id=pad,
        norm_eps=raw.get("layer_norm_eps", 1e-12),
        activation=raw.get("hidden_act", "gelu"),
        relative_buckets=raw.get("relative_attention_num_buckets", 32) if family == "mpnet" else 0,
        dropout=raw.get("hidden_dropout_prob", 0.1),
        attention_dropout=raw.get("attention_probs_dropout_prob", 0.1),
    )


def read_weights(folder: Path, config: EncoderConfig) -> dict[str, Tensor]:
    """The folder's safetensors under our names, in float32."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise DataError("holds no .safetensors weights; pickled weights are never loaded, convert them first", path=folder)
    raw: dict[str, Tensor] = {}
    for file in files:
        try:
            raw |= load_file(file)
        except SafetensorError as error:
            raise DataError(f"is damaged: {error}", path=file) from None
    # Models saved under a head carry their family's name in front.
    # The first BERT weights call a norm's weight and bias gamma and beta.
    bare = {re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name)): tensor for name, tensor in raw.items()}
    bare = {name.removeprefix(f"{config.family}."): tensor for name, tensor in bare.items()}
    try:
        return renamed(bare.__getitem__, config)
    except KeyError as error:
        raise DataError(f"lacks the weight {error}: it does not fit its config.json", path=folder) from None


def renamed(get: Callable[[str], Tensor], config: EncoderConfig) -> dict[str, Tensor]:
    """Our state dict from the library's weights; `get` finds one by the library's name."""
    names = next(names for family, names, _ in FAMILIES.values() if family == config.family)
    position = get("embeddings.position_embeddings.weight").float()
    if config.family != "mpnet":
        position = position + get("embeddings.token_type_embeddings.weight").float()[0]
    ours = {
        "word.weight": get("embeddings.word_embeddings.weight").float(),
        "position.weight": position,
        "norm.weight": get("embeddings.LayerNorm.weight").float(),
        "norm.bias": get("embeddings.LayerNorm.bias").float(),
    }
    if config.relative_buckets:
        ours["relative.weight"] = get("encoder.relative_attention_bias.weight").float()
    for number in range(config.layers):
        theirs, here = f"encoder.layer.{number}.", f"layers.{number}."
        for part in ("weight", "bias"):
            projections = [get(f"{theirs}{names[side]}.{part}").float() for side in ("query", "key", "value")]
            ours[f"{here}query_key_value.{part}"] = torch.cat(projections)
            for name in ("attention_out", "attention_norm", "up", "down", "output_norm"):
                ours[f"{here}{name}.{part}"] = get(f"{theirs}{names[name]}.{part}").float()
    return ours


def library_weights(ours: dict[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
    """The way back: our state dict under the library's names."""
    names = next(names for family, names, _ in FAMILIES.values() if family == config.family)
    theirs = {
        "embeddings.word_embeddings.weight": ours["word.weight"],
        "embeddings.position_embeddings.weight": ours["position.weight"],
        "embeddings.LayerNorm.weight": ours["norm.weight"],
        "embeddings.LayerNorm.bias": ours["norm.bias"],
    }
    if config.family != "mpnet":  # the one token type is in the positions already
        theirs["embeddings.token_type_embeddings.weight"] = torch.zeros(1, config.width)
    if config.relative_buckets:
        theirs["encoder.relative_attention_bias.weight"] = ours["relative.weight"]
    for number in range(config.layers):
        layer, here = f"encoder.layer.{number}.", f"layers.{number}."
        for part in ("weight", "bias"):
            for side, piece in zip(("query", "key", "value"), ours[f"{here}query_key_value.{part}"].chunk(3), strict=True):
                theirs[f"{layer}{names[side]}.{part}"] = piece.contiguous()
            for name in ("attention_out", "attention_norm", "up", "down", "output_norm"):
                theirs[f"{layer}{names[name]}.{part}"] = ours[f"{here}{name}.{part}"]
    return theirs


def library_config(config: EncoderConfig) -> dict[str, Any]:
    """Our configuration as the library's `config.json`."""
    classes = {"bert": "BertModel", "roberta": "RobertaModel", "mpnet": "MPNetModel"}
    return {
        "architectures": [classes[config.family]],
        "model_type": config.family,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.feed_forward,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.positions,
        "pad_token_id": config.pad_id,
        "layer_norm_eps": config.norm_eps,
        "hidden_act": config.activation,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "type_vocab_size": 1,
    } | ({"relative_attention_num_buckets": config.relative_buckets} if config.relative_buckets else {})


def read_pooling(folder: Path) -> str:
    """How the model was trained to be read: `mean` if its sentence-transformers settings say so, else `first`."""
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return "first"
    settings: dict[str, Any] = json.loads(path.read_text("utf-8"))
    mode = settings.get("pooling_mode")
    if settings.get("pooling_mode_mean_tokens") or mode == "mean":
        return "mean"
    if settings.get("pooling_mode_cls_token") or mode == "cls":
        return "first"
    raise PromptDSIError(f"{path}: only first-token and mean pooling are supported")
