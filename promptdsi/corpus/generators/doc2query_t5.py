"""doc2query-t5: docT5query (Nogueira and Lin, 2019): top-k 10 sampling, 15 queries per document, 512 tokens in, 64 out.

`model` is a Hugging Face id or a local folder of any sequence-to-sequence model. The default was trained on MS MARCO, so on
MS MARCO its queries are in-domain.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from promptdsi.corpus.corpus import Document
from promptdsi.corpus.generators import Generator, batch_seed
from promptdsi.errors import OfflineError
from promptdsi.files import offline_by_environment


@dataclass(kw_only=True)
class Doc2QueryT5(Generator):
    """Samples from a T5 that was trained to write the query of a passage."""

    NAME = "doc2query-t5"
    batch_size = 8

    per_document: int = 15
    model: str = "castorini/doc2query-t5-base-msmarco"
    top_k: int = 10
    device: str = "cpu"
    offline: bool = False
    quiet: bool = True

    def generate(self, documents: Sequence[Document]) -> Iterator[list[str]]:
        import torch

        model, tokenizer = self._loaded
        texts = [f"{document.title} {document.text}".strip() for document in documents]
        tokens = tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=512).to(model.device)  # (B, T)
        torch.manual_seed(batch_seed(self.seed, documents))
        samples = model.generate(
            **tokens, do_sample=True, top_k=self.top_k, temperature=1.0, num_return_sequences=self.per_document, max_new_tokens=64
        )  # (B · n, 64)
        written = tokenizer.batch_decode(samples, skip_special_tokens=True)
        for number in range(len(documents)):
            yield written[number * self.per_document : (number + 1) * self.per_document]

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        from safetensors import SafetensorError
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        local = self.offline or offline_by_environment()
        try:
            tokenizer = AutoTokenizer.from_pretrained(self.model, local_files_only=local, trust_remote_code=False)
            with contextlib.redirect_stderr(io.StringIO()):  # hide the loading bar; progress is shown per document
                model = AutoModelForSeq2SeqLM.from_pretrained(
                    self.model, local_files_only=local, trust_remote_code=False, use_safetensors=True
                )
        except (OSError, ValueError, SafetensorError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise OfflineError(f"could not load the model {self.model}: {reason}; --model takes a local folder too") from None
        return model.to(self.device).eval(), tokenizer
