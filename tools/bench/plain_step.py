"""The continual step as one would write it first, with the Hugging Face library: the baseline of the training benchmark.

A random batch padded to its longest query; the whole model run with a prefix hooked into one layer; logits over all rows in
one matrix that gets gradients for every row; `two_pass` runs the model once more before, for the selection vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from promptdsi.model.backbone import backbone_folder
from promptdsi.model.tokenizer import Ids

PROMPTED_LAYER, PREFIX_ROWS = 2, 10


class PrefixAttention(nn.Module):
    """BERT's self-attention with extra keys and values in front, as in the reference code bases."""

    def __init__(self, attention: Any, width: int) -> None:
        super().__init__()
        self.attention = attention
        self.prompt = nn.Parameter(torch.empty(2, PREFIX_ROWS, width).uniform_(-1, 1))
        self.enabled = True

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **ignored: Any) -> tuple[Tensor, None]:
        base = self.attention
        heads = (base.num_attention_heads, base.attention_head_size)
        query, key, value = (part(hidden_states) for part in (base.query, base.key, base.value))
        rows = PREFIX_ROWS if self.enabled else 0
        if rows:
            prompt = self.prompt[:, None].expand(-1, len(hidden_states), -1, -1)
            key, value = torch.cat([prompt[0], key], 1), torch.cat([prompt[1], value], 1)
        query, key, value = (part.view(*part.shape[:2], *heads).transpose(1, 2) for part in (query, key, value))
        if attention_mask is not None and attention_mask.dtype == torch.bool:
            attention_mask = torch.zeros(attention_mask.shape).masked_fill(~attention_mask, -torch.inf)
        mask = nn.functional.pad(attention_mask, (rows, 0)) if attention_mask is not None else None
        dropout = base.dropout.p if self.training else 0.0
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, mask, dropout)
        return mixed.transpose(1, 2).flatten(2), None


class PlainStep:
    def __init__(self, rows: int, new: int, *, two_pass: bool, seed: int = 0) -> None:
        from transformers import AutoModel

        torch.manual_seed(seed)
        self.model: Any = AutoModel.from_pretrained(backbone_folder("minilm"), local_files_only=True, add_pooling_layer=False)
        self.model.requires_grad_(False)
        width = self.model.config.hidden_size
        layer = self.model.encoder.layer[PROMPTED_LAYER - 1].attention
        layer.self = PrefixAttention(layer.self, width)
        self.prefix: PrefixAttention = layer.self
        self.classifier = nn.Linear(width, rows, bias=False)
        self.first_new = rows - new
        self.two_pass = two_pass
        self.optimizer = torch.optim.AdamW([self.prefix.prompt, *self.classifier.parameters()], lr=1e-4)
        self.model.train()

    def step(self, ids: list[Ids], targets: Tensor) -> float:
        """One training step on a batch."""
        longest = max(len(query) for query in ids)
        batch = torch.from_numpy(np.stack([np.pad(query, (0, longest - len(query))) for query in ids]).astype(np.int64))
        mask = (torch.arange(longest) < torch.tensor([len(query) for query in ids])[:, None]).long()
        if self.two_pass:
            self.prefix.enabled = False
            with torch.no_grad():
                self.model.eval()(input_ids=batch, attention_mask=mask)
            self.model.train()
            self.prefix.enabled = True
        hidden = self.model(input_ids=batch, attention_mask=mask).last_hidden_state[:, 0]
        loss = nn.functional.cross_entropy(self.classifier(hidden), targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.classifier.weight.grad[: self.first_new] = 0  # type: ignore[index]
        self.optimizer.step()
        return loss.item()
