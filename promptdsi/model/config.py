"""The sizes of an encoder, and where prompts stand in it. Apart from the model itself, so that they can be read without torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

PROMPT_LAYERS = (2,)  # unless a strategy is told otherwise
NO_PROMPT = -1  # the number of the prompt that a query without one has chosen


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
