"""The sizes of an encoder and its activations; without torch, because the query engine reads them too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

PROMPT_LAYERS = (2,)  # the default of every strategy
NO_PROMPT = -1  # the prompt id of a query that goes without a prompt


class Activation(NamedTuple):
    """A function of `torch.nn.functional` with its options, and the operator of onnxruntime that computes the same."""

    torch: str
    onnx: str
    domain: str = "com.microsoft"
    options: Mapping[str, str] = {}


ACTIVATIONS = {
    "gelu": Activation("gelu", "Gelu"),
    "relu": Activation("relu", "Relu", domain=""),
    "gelu_new": Activation("gelu", "FastGelu", options={"approximate": "tanh"}),
}


@dataclass(frozen=True)
class EncoderConfig:
    """The sizes of an encoder; `position_offset` is the position number of the first token."""

    family: str
    width: int
    layers: int
    heads: int
    feed_forward: int
    vocabulary: int
    positions: int
    position_offset: int = 0
    pad_id: int = 0
    norm_eps: float = 1e-12
    activation: str = "gelu"
    relative_buckets: int = 0
    dropout: float = 0.1
    attention_dropout: float = 0.1

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def max_tokens(self) -> int:
        """The longest input the position table allows."""
        return self.positions - self.position_offset


def check_weights(config: EncoderConfig, weights: Mapping[str, Any]) -> None:
    """Raise ValueError unless these are the weights of such an encoder, by names and shapes; no weight is read."""
    width, inner = config.width, config.feed_forward
    sizes = {"query_key_value": (3 * width, width), "attention_out": (width, width), "up": (inner, width), "down": (width, inner)}
    expected: dict[str, tuple[int, ...]] = {"word.weight": (config.vocabulary, width), "position.weight": (config.positions, width)}
    for name in ("norm", *(f"layers.{layer}.{norm}_norm" for layer in range(config.layers) for norm in ("attention", "output"))):
        expected |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    for layer in range(config.layers):
        for name, shape in sizes.items():
            expected |= {f"layers.{layer}.{name}.weight": shape, f"layers.{layer}.{name}.bias": shape[:1]}
    if config.relative_buckets:
        expected["relative.weight"] = (config.relative_buckets, config.heads)
    if width % config.heads:
        raise ValueError(f"{config.heads} heads do not share a width of {width}")
    for name, size in expected.items():
        if name not in weights or weights[name].shape != size:
            raise ValueError(f"the weight {name} is not {' × '.join(map(str, size))} numbers")
    if other := weights.keys() - expected.keys():
        raise ValueError(f"the weight {min(other)} belongs to no such encoder")
