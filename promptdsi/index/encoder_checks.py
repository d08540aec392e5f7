"""Whether the encoder and the prompts of a generation are those its manifest describes, by names, types and shapes: nothing is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from promptdsi.index.blobs import Blobs
from promptdsi.index.manifest import Manifest
from promptdsi.model.config import PROMPT_LAYERS, EncoderConfig
from promptdsi.model.path import check_weights
from promptdsi.model.prompts.strategy import PromptStrategy


def check_encoder(manifest: Manifest, blobs: Blobs) -> None:
    """Raise ValueError unless the encoder has the weights of such an encoder, and as many tokens and layers as the method needs."""
    config = EncoderConfig(**manifest.config)
    weights = blobs.arrays(manifest.encoder)
    check_weights(config, weights)
    if wrong := [name for name, weight in weights.items() if weight.dtype != np.float32]:
        raise ValueError(f"the weight {min(wrong)} is of another type")
    layers = manifest.params.get("prompt_options", {}).get("prompt_layers", PROMPT_LAYERS)
    too_deep = bool(manifest.prompts) and not all(1 <= layer <= config.layers for layer in layers)
    if manifest.params["encoding"]["max_tokens"] + config.position_offset > config.positions or too_deep:
        raise ValueError("the method needs more tokens or layers than the encoder has")


def check_prompts(strategy: PromptStrategy, tensors: Mapping[str, Any], width: int) -> None:
    """Raise ValueError unless every tensor is a block of this strategy's pool, and its blocks have as many prompts as keys."""
    names = re.compile(rf"(?P<kind>{'|'.join(map(re.escape, strategy.blocks))})\.[0-9]{{1,6}}")
    prompt = (len(strategy.prompt_layers), 2, strategy.prompt_length // 2, width)
    sizes = dict.fromkeys(strategy.blocks, 0)
    for name, tensor in tensors.items():
        match = names.fullmatch(name)
        if not match and name not in ("mean", "null"):
            raise ValueError(f"the prompts {strategy.name} have no tensor {name[:50]!r}")
        inner = tensor.shape[1:] if match else tensor.shape
        if tensor.dtype != np.float32 or inner != (prompt if match and match["kind"] == "prompts" else (width,)):
            raise ValueError(f"the prompt tensor {name} has another type or shape than the method says")
        if match:
            sizes[match["kind"]] += len(tensor)
    if sizes["prompts"] and len(set(sizes.values())) > 1:  # keys may come first
        raise ValueError("there are not as many prompts as keys")
