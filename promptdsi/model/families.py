"""From a Hugging Face folder to our encoder: configuration and weight names of the BERT, RoBERTa and MPNet families.

Reads `config.json` and safetensors files directly: no pickle, no remote code, no heavy import.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from promptdsi.errors import DataError, PromptDSIError
from promptdsi.model.config import ACTIVATIONS, EncoderConfig

ATTENTION = {  # names inside a layer, ours to the library's
    "bert": {"query": "self.query", "key": "self.key", "value": "self.value", "out": "output.dense", "norm": "output.LayerNorm"},
    "mpnet": {"query": "attn.q", "key": "attn.k", "value": "attn.v", "out": "attn.o", "norm": "LayerNorm"},
}
FAMILIES = {"bert": "bert", "roberta": "roberta", "xlm-roberta": "roberta", "camembert": "roberta", "mpnet": "mpnet"}  # by model_type
CLASSES = {"bert": "BertModel", "roberta": "RobertaModel", "mpnet": "MPNetModel"}
REQUIRED = {  # fields of `EncoderConfig` and their names in the library's config.json
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "feed_forward": "intermediate_size",
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
}
OPTIONAL = {
    "norm_eps": "layer_norm_eps",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
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
        raise DataError(f"only absolute positions and the activations {', '.join(ACTIVATIONS)} are supported", path=path)
    family = FAMILIES[kind]
    pad = 1 if family == "mpnet" else int(raw.get("pad_token_id", 1 if family == "roberta" else 0) or 0)
    sizes = {ours: raw[key] for ours, key in REQUIRED.items()}
    sizes |= {ours: raw[key] for ours, key in OPTIONAL.items() if key in raw}
    return EncoderConfig(
        family=family,
        pad_id=pad,
        position_offset=0 if family == "bert" else pad + 1,  # in the other families positions start behind the padding id
        relative_buckets=raw.get("relative_attention_num_buckets", 32) if family == "mpnet" else 0,
        **sizes,
    )


def library_config(config: EncoderConfig) -> dict[str, Any]:
    """Our configuration as the library's `config.json`."""
    names = {"family": "model_type", "pad_id": "pad_token_id"} | REQUIRED | OPTIONAL
    names |= {"relative_buckets": "relative_attention_num_buckets"} if config.relative_buckets else {}
    fields = {key: getattr(config, ours) for ours, key in names.items()}
    return {"architectures": [CLASSES[config.family]], "type_vocab_size": 1} | fields


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
    # The first BERT weights call a norm's weight and bias gamma and beta; models saved under a head have their family's name in front.
    library = {re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name)): tensor for name, tensor in raw.items()}
    library = {name.removeprefix(f"{config.family}."): tensor for name, tensor in library.items()}
    try:
        weights = {ours: torch.cat([library[name].float() for name in sources]) for ours, sources in weight_names(config).items()}
        if config.family != "mpnet":  # only token type 0 is used: it becomes part of the positions
            weights["position.weight"] = weights["position.weight"] + library["embeddings.token_type_embeddings.weight"].float()[0]
    except KeyError as error:
        raise DataError(f"lacks the weight {error}: it does not fit its config.json", path=folder) from None
    return weights


def library_weights(weights: Mapping[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
    """Our state dict under the library's names."""
    parts = {ours: zip(sources, weights[ours].chunk(len(sources)), strict=True) for ours, sources in weight_names(config).items()}
    library = {name: part.contiguous() for pairs in parts.values() for name, part in pairs}
    if config.family != "mpnet":  # the one token type is in the positions already
        library["embeddings.token_type_embeddings.weight"] = torch.zeros(1, config.width)
    return library


def weight_names(config: EncoderConfig) -> dict[str, list[str]]:
    """The library's name of each of our weights; of the joint projection three, for query, key and value."""
    attention = {side: f"attention.{name}" for side, name in ATTENTION.get(config.family, ATTENTION["bert"]).items()}
    layer = {"query_key_value": [attention[side] for side in ("query", "key", "value")]}
    layer |= {"attention_out": [attention["out"]], "attention_norm": [attention["norm"]]}
    layer |= {"up": ["intermediate.dense"], "down": ["output.dense"], "output_norm": ["output.LayerNorm"]}
    names = {"word.weight": ["embeddings.word_embeddings.weight"], "position.weight": ["embeddings.position_embeddings.weight"]}
    if config.relative_buckets:
        names["relative.weight"] = ["encoder.relative_attention_bias.weight"]
    for part in ("weight", "bias"):
        names[f"norm.{part}"] = [f"embeddings.LayerNorm.{part}"]
        for number in range(config.layers):
            for ours, sources in layer.items():
                names[f"layers.{number}.{ours}.{part}"] = [f"encoder.layer.{number}.{name}.{part}" for name in sources]
    return names


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
