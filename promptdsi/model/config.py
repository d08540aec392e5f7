"""The sizes of an encoder, its activations and position buckets, and its device; imports no torch: the query engine reads them too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.checks import choice, integer, real, record
from promptdsi.errors import PromptDSIError, UsageError

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

    @staticmethod
    def check(value: Any) -> None:
        """Raise ValueError unless these are the fields of an encoder of a size that exists; nothing is allocated."""
        ENCODER_FIELDS(value)
        if value["width"] % value["heads"]:
            raise ValueError(f"heads is {value['heads']}, which does not divide a width of {value['width']}")
        if value.get("pad_id", 0) >= value["vocabulary"] or value.get("position_offset", 0) >= value["positions"]:
            raise ValueError("pad_id or position_offset is beyond the tables of tokens and positions")
        if value.get("relative_buckets", 0) in range(1, 4):
            raise ValueError("relative_buckets is too small for two directions with near and far positions")

    @property
    def weight_count(self) -> int:
        """How many numbers such an encoder has."""
        width, inner = self.width, self.feed_forward
        layer = 4 * width * (width + 1) + 2 * inner * width + inner + width + 4 * width
        tables = (self.vocabulary + self.positions + 2) * width + self.relative_buckets * self.heads
        return tables + self.layers * layer

    @property
    def max_tokens(self) -> int:
        """The longest input the position table allows."""
        return self.positions - self.position_offset


ENCODER_FIELDS = record(  # larger than any encoder there is, small enough that a sum of them fits a memory
    {
        "family": choice(("bert", "roberta", "mpnet")),
        "width": integer(1, 1 << 16),
        "layers": integer(1, 1000),
        "heads": integer(1, 1 << 12),
        "feed_forward": integer(1, 1 << 20),
        "vocabulary": integer(1, 1 << 24),
        "positions": integer(1, 1 << 20),
    },
    {
        "position_offset": integer(0, 1 << 20),
        "pad_id": integer(0, 1 << 24),
        "norm_eps": real(1e-30, 1),
        "activation": choice(tuple(ACTIVATIONS)),
        "relative_buckets": integer(0, 256),
        "dropout": real(0, 1),
        "attention_dropout": real(0, 1),
    },
)


@cache
def relative_buckets(count: int, buckets: int, max_distance: int = 128) -> NDArray[np.int64]:
    """T5's position buckets (T, T), as MPNet uses them: half for each direction, half of those exact, the rest logarithmic."""
    position = np.arange(count)
    distance = position[:, None] - position[None, :]  # (T, T), query minus key
    half = buckets // 2
    exact = half // 2
    size = np.abs(distance)
    # In float32 and in this order, as the backbones were trained: another rounding would move distances to other buckets.
    logarithm = np.log(np.maximum(size, 1).astype(np.float32) / np.float32(exact)) / np.float32(math.log(max_distance / exact))
    far = np.minimum(exact + (logarithm * np.float32(half - exact)).astype(np.int64), half - 1)
    return np.asarray((distance < 0) * half + np.where(size < exact, size, far), np.int64)


def torch_device(name: str) -> str:
    """Return `name` if torch can use that device; `auto` is an accelerator if there is one, else the CPU."""
    import torch

    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(device for device, usable in available.items() if usable)
    kind = name.split(":")[0]
    if kind not in available:
        raise UsageError(f"no device {name!r}; there are auto, cpu, cuda and mps")
    if not available[kind]:
        raise PromptDSIError(f"this machine has no {name} that torch can use; try --device cpu")
    return name
