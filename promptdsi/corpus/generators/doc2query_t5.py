"""doc2query-t5: docT5query (Nogueira and Lin, 2019): top-k 10 sampling, 15 queries per document, 512 tokens in, 64 out.

`model` is a Hugging Face id or a local folder of any sequence-to-sequence model, its weights as safetensors or as a PyTorch `.bin` file, of
which tensors alone are read. The default was trained on MS MARCO, so on MS MARCO its queries are in-domain. Its tokenizer is a
sentencepiece file, which the extra `doc2query` reads.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from promptdsi.corpus.corpus import Document
from promptdsi.corpus.generators import Generator, batch_seed
from promptdsi.errors import OfflineError, PromptDSIError
from promptdsi.files import offline_by_environment

TOKENS_READ, TOKENS_WRITTEN = 512, 64
SETTINGS = [
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.model",
    "vocab.*",
]
WEIGHTS = (["*.safetensors", "*.safetensors.index.json"], ["pytorch_model*.bin", "pytorch_model.bin.index.json"])  # the first that is there
SHARE, MOST = 0.4, 128  # of an accelerator's free memory that keys and values may fill; documents at once at most


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

    def load(self) -> None:
        self._loaded  # noqa: B018  # loads on first use

    def documents_at_once(self) -> int:
        """On an accelerator as many as its free memory holds the keys and values of, for every sample."""
        import torch

        if not self.device.startswith("cuda"):
            return self.batch_size
        model, _ = self._loaded
        return documents_in(SHARE * torch.cuda.mem_get_info(model.device)[0], model.config, self.per_document)

    def generate(self, documents: Sequence[Document]) -> Iterator[list[str]]:
        import torch

        model, tokenizer = self._loaded
        texts = [f"{document.title} {document.text}".strip() for document in documents]
        tokens = tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=TOKENS_READ)  # (B, T)
        tokens = {name: tokens[name].to(model.device) for name in ("input_ids", "attention_mask")}  # token types are not for a T5
        torch.manual_seed(batch_seed(self.seed, documents))
        sampling: dict[str, Any] = {"do_sample": True, "top_k": self.top_k, "temperature": 1.0}
        with torch.inference_mode():
            samples = model.generate(
                **tokens, **sampling, num_return_sequences=self.per_document, max_new_tokens=TOKENS_WRITTEN
            )  # (B · n, 64)
        written = tokenizer.batch_decode(samples, skip_special_tokens=True)
        for number in range(len(documents)):
            yield written[number * self.per_document : (number + 1) * self.per_document]

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        import torch
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        dtype = torch.float32 if self.device == "cpu" else torch.bfloat16
        try:
            folder = self._folder()
            check_tokenizer(folder)
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            with contextlib.redirect_stderr(io.StringIO()):  # hide the loading bar; progress is shown per document
                model = AutoModelForSeq2SeqLM.from_pretrained(
                    folder, dtype=dtype, weights_only=True, local_files_only=True, trust_remote_code=False
                )
        except PromptDSIError:
            raise
        except Exception as error:  # a stranger's folder fails in as many ways as it has files, and torch has its own error for each
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise OfflineError(f"could not load the model {self.model}: {reason}; --model takes a local folder too") from None
        return model.to(self.device).eval(), tokenizer

    def _folder(self) -> Path:
        """The model's folder; of a model on the hub, safetensors are fetched, and other weights only where there are none."""
        from huggingface_hub import snapshot_download

        if Path(self.model).is_dir():
            return Path(self.model)
        for weights in WEIGHTS:
            folder = Path(
                snapshot_download(
                    self.model, allow_patterns=[*SETTINGS, *weights], local_files_only=self.offline or offline_by_environment()
                )
            )
            if any(folder.glob(weights[0])):
                break
        return folder


def check_tokenizer(folder: Path) -> None:
    """Where the tokenizer is a sentencepiece file alone, its library must be installed."""
    if not (folder / "tokenizer.json").is_file() and any(folder.glob("*.model")) and find_spec("sentencepiece") is None:
        raise PromptDSIError(f"the tokenizer in {folder} needs sentencepiece: pip install 'promptdsi[doc2query]'")


def documents_in(memory: float, config: Any, samples: int) -> int:
    """Documents whose keys and values (bfloat16; those of the text once for every sample) fit into so many bytes.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> base = SimpleNamespace(num_decoder_layers=12, num_heads=12, d_kv=64)
    >>> documents_in(32e9, base, 15)
    100
    """
    per_token = 2 * 2 * config.num_decoder_layers * config.num_heads * config.d_kv
    return max(1, min(MOST, int(memory / (samples * per_token * (TOKENS_READ + TOKENS_WRITTEN)))))
