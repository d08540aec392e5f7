"""Raw files in the official formats with the paper's numbers of documents, and tiny random models: what `tools.rehearse_paper` runs on.

Texts are drawn from invented words. A page's title is a pair of words that no other page has, and its queries repeat the pair, so that a
search by words finds every page. Pages are short: 120 words for Natural Questions, 40 for MS MARCO.
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
SYLLABLES = [consonant + vowel for consonant in CONSONANTS for vowel in VOWELS]  # 70
INVENTED = [a + b + c for a, b, c in itertools.islice(itertools.product(SYLLABLES, SYLLABLES, ("n", "r")), 4000)]
TITLE_WORDS, WORDS = INVENTED[:2000], INVENTED[2000:]
FUNCTION_WORDS = ("the", "of", "what", "is", "in", "and", "a", "to")
TOPICS, TOPIC_WORDS = 60, 30
NQ_WORDS, MS_WORDS = 120, 40  # of a page
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class Counts(NamedTuple):
    """Pages of Natural Questions; lines of the MS MARCO docs file, and how many of them are judged."""

    pages: int = 109_714
    lines: int = 3_213_835
    relevant: int = 321_582


def test_every(documents: int) -> int:
    """One in so many documents has a test query: few queries, but some in each new corpus."""
    return max(1, min(100, documents // 1000))


class Page(NamedTuple):
    title: str
    body: list[str]
    question: str


def page(number: int, words: int) -> Page:
    """The page with this number: up to 4,000,000 have different titles."""
    draw = random.Random(number)
    title = f"{TITLE_WORDS[number % len(TITLE_WORDS)]} {TITLE_WORDS[number // len(TITLE_WORDS) % len(TITLE_WORDS)]}"
    first = number % TOPICS * TOPIC_WORDS  # neighbouring numbers are of different topics
    topic = WORDS[first : first + TOPIC_WORDS]
    body = [*f"The {title} is".split(), *draw.choices(topic, k=words // 2), "and", "the", *title.split()]
    body += draw.choices(WORDS, k=max(0, words - len(body)))
    body[words // 2] += "."
    return Page(title, body, f"what is the {title} of {draw.choice(topic)}")


def write_nq(folder: Path, counts: Counts) -> None:
    """Train in the simplified format, one example per page; dev in the whole format, with tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_lines(folder / "v1.0-simplified_simplified-nq-train.jsonl.gz", map(_simplified, range(counts.pages)))
    _write_lines(folder / "v1.0-simplified_nq-dev-all.jsonl.gz", map(_with_tokens, range(0, counts.pages, test_every(counts.pages))))


def _simplified(number: int) -> str:
    title, body, question = page(number, NQ_WORDS)
    address = f"https://en.wikipedia.org//w/index.php?title={title.replace(' ', '_').title()}&amp;oldid={number}"
    text = f"<H1> {title.title()} </H1> <P> {' '.join(body)} </P>"
    empty: dict[str, Any] = {"long_answer_candidates": [], "annotations": []}
    return json.dumps({"document_text": text, "question_text": question, "document_url": address, "example_id": number} | empty)


def write_few(folder: Path, documents: int) -> None:
    """A corpus of the first pages, for which a generator writes queries."""
    from promptdsi.corpus.corpus import Corpus, Document

    pages = [page(number, NQ_WORDS) for number in range(documents)]
    Corpus([Document(f"page{number}", " ".join(each.body), each.title) for number, each in enumerate(pages)]).write(folder)


def _with_tokens(number: int) -> str:
    title, body, _ = page(number, NQ_WORDS)
    marked = ["<P>", *body, "</P>"]
    tokens = [{"token": token, "html_token": token.startswith("<"), "start_byte": 0, "end_byte": 0} for token in marked]
    record = {"document_title": title.title(), "document_tokens": tokens, "question_text": f"the {title} is in what"}
    return json.dumps(record | {"document_url": "", "example_id": -1 - number, "annotations": [], "long_answer_candidates": []})


def write_msmarco(folder: Path, counts: Counts) -> None:
    """The five files. Judged documents are spread over the docs file, which is to be read to its end."""
    folder.mkdir(parents=True, exist_ok=True)
    step = counts.lines // counts.relevant
    relevant = range(0, step * counts.relevant, step)
    _write_lines(folder / "msmarco-docs.tsv", map(_document_line, range(counts.lines)))
    for split, numbers in (("train", relevant), ("dev", relevant[:: test_every(counts.relevant)])):
        shift = 0 if split == "train" else counts.lines
        questions = (f"{shift + number}\t{page(number, MS_WORDS).question}" for number in numbers)
        _write_lines(folder / f"msmarco-doc{split}-queries.tsv", questions)
        _write_lines(folder / f"msmarco-doc{split}-qrels.tsv.gz", (f"{shift + number} 0 D{number} 1" for number in numbers))


def _document_line(number: int) -> str:
    title, body, _ = page(number, MS_WORDS)
    return f"D{number}\thttps://example.org/{number}\t{title}\t{' '.join(body)}"


def _write_lines(path: Path, lines: Iterator[str]) -> None:
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) if path.suffix == ".gz" else path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def write_bert(folder: Path, *, layers: int = 2, width: int = 64) -> None:
    """A random BERT with a WordPiece vocabulary of the invented words."""
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertModel

    letters = list("abcdefghijklmnopqrstuvwxyz0123456789.,?-")
    pieces = [*SPECIAL, *FUNCTION_WORDS, *INVENTED, *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": 2, "intermediate_size": 2 * width}
    BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=130, **sizes)).save_pretrained(folder)
    BertWordPieceTokenizer(vocab=vocabulary, lowercase=True).save(str(folder / "tokenizer.json"))


def write_t5(folder: Path) -> None:
    """A random T5 of two layers with one token per invented word."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    words = ["<pad>", "</s>", "<unk>", *FUNCTION_WORDS, *INVENTED]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>").save_pretrained(folder)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
    config = T5Config(vocab_size=len(words), eos_token_id=1, **sizes)
    T5ForConditionalGeneration(config).save_pretrained(folder)
