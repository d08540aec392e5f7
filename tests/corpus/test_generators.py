"""Pseudo-queries: each generator, the cache that makes a run resumable, and what is written into a corpus."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptdsi import Corpus, Document
from promptdsi.corpus.generators import Generator, generators, make_generator, unique_queries
from promptdsi.corpus.generators.smollm2 import query_in, read_shots, shots_prompt
from promptdsi.corpus.generators.spans import Spans
from promptdsi.corpus.pseudo import CACHE_FOLDER, QueryCache, add_queries, generate_queries
from promptdsi.errors import OfflineError, PromptDSIError, UsageError


class Echo(Generator):
    """Says how often it was asked; silent about owls."""

    NAME = "echo"
    batch_size = 2

    def __init__(self, *, per_document: int = 3, seed: int = 0, fail_at: int | None = None) -> None:
        self.per_document = per_document
        self.seed = seed
        self.fail_at = fail_at
        self.seen: list[str] = []

    def key(self) -> dict[str, Any]:
        return {"generator": "echo", "seed": self.seed}

    def generate(self, documents: Sequence[Document]) -> Iterator[list[str]]:
        for document in documents:
            if self.fail_at is not None and len(self.seen) >= self.fail_at:
                raise KeyboardInterrupt
            self.seen.append(document.docid)
            yield (
                [] if document.title == "Owls" else [f"about {document.title}", f"About  {document.title}", f"more on {document.docid}", ""]
            )


@given(st.text(max_size=300), st.text(max_size=40), st.integers(1, 8), st.integers(0, 3))
def test_spans_gives_clean_queries_for_any_document(text: str, title: str, per_document: int, seed: int) -> None:
    generator = Spans(per_document=per_document, seed=seed)
    document = Document("d", text, title)
    (raw,) = generator.generate([document])
    queries = unique_queries(raw, per_document)
    assert len(queries) <= per_document
    assert len({query.casefold() for query in queries}) == len(queries)
    assert all(query == " ".join(query.split()) and query for query in queries)
    (again,) = Spans(per_document=per_document, seed=seed).generate([document])
    assert again == raw


def test_spans_asks_for_title_sentences_and_spans() -> None:
    document = Document("d", "The solar wind shapes the tail of a comet. Dust and ice make up its frozen core.", "Comets")
    queries = next(Spans().generate([document]))
    assert queries[0] == "Comets"
    assert "solar wind shapes" in queries
    assert any(query.startswith(("solar wind", "The solar wind")) and "comet" in query for query in queries)


def test_a_documents_queries_do_not_depend_on_its_neighbours() -> None:
    documents = [Document(str(i), f"Sentence number {i} speaks of thing {i}. Another one follows here.", f"T{i}") for i in range(5)]
    batch = list(Spans().generate(documents))
    assert batch == [next(Spans().generate([document])) for document in documents]


def test_adding_writes_queries_and_judgements_once(small: Corpus, tmp_path: Path) -> None:
    small.write(tmp_path / "c")
    written = add_queries(tmp_path / "c", Echo())
    assert written.without == ["d3"]
    corpus = Corpus.read(tmp_path / "c")
    added = [(pair.query.text, pair.docid) for pair in corpus.pairs("train", kinds=("pseudo",)) if pair.query.queryid.startswith("pq-")]
    assert added == [("about Tea", "d1"), ("more on d1", "d1"), ("about Canal locks", "d2"), ("more on d2", "d2")]
    assert corpus.documents == small.documents and corpus.queries[: len(small.queries)] == small.queries
    assert corpus.qrels["train"][: len(small.qrels["train"])] == small.qrels["train"]
    before = {path: path.read_bytes() for path in (tmp_path / "c").rglob("*") if path.is_file()}
    again = Echo()
    assert add_queries(tmp_path / "c", again).pairs == [] and again.seen == []
    assert {path: path.read_bytes() for path in (tmp_path / "c").rglob("*") if path.is_file()} == before


def test_an_interrupted_run_goes_on_where_it_stopped(small: Corpus, tmp_path: Path) -> None:
    small.write(tmp_path / "c")
    before = (tmp_path / "c/queries.jsonl").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        add_queries(tmp_path / "c", Echo(fail_at=2))
    assert (tmp_path / "c/queries.jsonl").read_bytes() == before
    second = Echo()
    add_queries(tmp_path / "c", second)
    assert second.seen == ["d3"]


def test_killed_between_the_two_files_the_next_run_completes_it(small: Corpus, tmp_path: Path) -> None:
    small.write(tmp_path / "c")
    judgements = (tmp_path / "c/qrels/train.tsv").read_bytes()
    add_queries(tmp_path / "c", Echo())
    complete = (tmp_path / "c/qrels/train.tsv").read_bytes()
    (tmp_path / "c/qrels/train.tsv").write_bytes(judgements)
    add_queries(tmp_path / "c", Echo())
    assert (tmp_path / "c/qrels/train.tsv").read_bytes() == complete


@pytest.mark.parametrize("damage", [b'{"content": "abc", "que', b'{"content": "x"}\n', b"\x00\x00\n", b"[]\n"])
def test_a_cut_off_cache_line_is_dropped_not_believed(damage: bytes, small: Corpus, tmp_path: Path) -> None:
    cache = QueryCache(tmp_path, Echo())
    generate_queries(Corpus(small.documents[:2]), Echo(), cache)
    with cache.path.open("ab") as file:
        file.write(damage)
    second = Echo()
    generate_queries(small, second, QueryCache(tmp_path, second))
    assert second.seen == ["d3"]
    assert len(QueryCache(tmp_path, Echo()).queries) == 3


def test_the_cache_knows_documents_by_content_and_generators_by_settings(small: Corpus, tmp_path: Path) -> None:
    generate_queries(small, Echo(), QueryCache(tmp_path, Echo()))
    changed = [small.documents[0]._replace(text="other"), *small.documents[1:]]
    second = Echo()
    generate_queries(Corpus(changed), second, QueryCache(tmp_path, second))
    assert second.seen == ["d1"]
    other_seed = Echo(seed=1)
    generate_queries(small, other_seed, QueryCache(tmp_path, other_seed))
    assert len(other_seed.seen) == 3


def test_a_gzipped_corpus_stays_gzipped(small: Corpus, tmp_path: Path) -> None:
    import gzip

    small.write(tmp_path / "c")
    plain = tmp_path / "c/queries.jsonl"
    plain.with_name("queries.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    add_queries(tmp_path / "c", Echo())
    assert not plain.exists() and Corpus.read(tmp_path / "c").counts()["pseudo"] == 5


def test_the_command(run: Any, tmp_path: Path, small: Corpus) -> None:
    small.write(tmp_path / "c")
    output = json.loads(run("queries", "c", "--json", "-n", "2").stdout)
    assert (output["added"], output["documents"], output["without"]) == (6, 3, [])
    assert json.loads(run("queries", "c", "--json", "-n", "2").stdout)["added"] == 0
    assert (tmp_path / "c" / CACHE_FOLDER).is_dir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/tea.txt").write_text("Brew tea with fresh water.")
    refused = run("queries", "notes")
    assert refused.returncode == 1 and "give -o FOLDER" in refused.stderr
    assert run("queries", "notes", "-o", "beir").returncode == 0
    assert Corpus.read(tmp_path / "beir").counts()["pseudo"] >= 2
    assert "exists and is not empty" in run("queries", "notes", "-o", "beir").stderr


def test_two_writers_at_once_are_refused(small: Corpus, tmp_path: Path) -> None:
    from promptdsi.corpus.pseudo import exclusive_lock
    from promptdsi.errors import DataError

    small.write(tmp_path / "c")
    with exclusive_lock(tmp_path / "c" / CACHE_FOLDER), pytest.raises(DataError, match="another process is adding queries"):
        add_queries(tmp_path / "c", Echo())
    assert len(add_queries(tmp_path / "c", Echo()).pairs) == 4


def test_a_cut_off_new_folder_is_completed_and_nothing_stands_twice(run: Any, tmp_path: Path, small: Corpus) -> None:
    small.write(tmp_path / "c")
    run("queries", "c", "-n", "2")
    assert json.loads(run("queries", "c", "-o", "new", "-n", "2", "--json").stdout)["added"] == 0
    assert Corpus.read(tmp_path / "new") == Corpus.read(tmp_path / "c")
    (tmp_path / "new/corpus.jsonl").unlink()  # as if killed before the last file
    assert run("queries", "c", "-o", "new", "-n", "2").returncode == 0
    assert Corpus.read(tmp_path / "new") == Corpus.read(tmp_path / "c")


@pytest.mark.parametrize(("device", "code"), [("moon", 2), ("cuda", 1)])
def test_a_device_that_is_not_available_is_refused(device: str, code: int, run: Any, tmp_path: Path, small: Corpus, tiny_t5: Path) -> None:
    import torch

    assert device != "cuda" or not torch.cuda.is_available()
    small.write(tmp_path / "c")
    outcome = run("queries", "c", "-g", "doc2query-t5", "--model", tiny_t5, "--device", device)
    assert outcome.returncode == code and len(outcome.stderr.strip().splitlines()) == 1


def test_remote_code_never_runs(run: Any, tmp_path: Path, small: Corpus) -> None:
    small.write(tmp_path / "c")
    evil = tmp_path / "evil"
    evil.mkdir()
    (evil / "config.json").write_text(
        '{"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForSeq2SeqLM": "evil.Model"}}'
    )
    (evil / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    outcome = run("queries", "c", "-g", "doc2query-t5", "--model", evil, "--offline")
    assert outcome.returncode == 1 and "Traceback" not in outcome.stderr
    assert not (tmp_path / "ran").exists()


def test_generators_are_found_by_name_and_say_what_they_lack() -> None:
    assert {"spans", "smollm2", "doc2query-t5"} <= set(generators())
    with pytest.raises(UsageError, match="no generator 'x'; there are"):
        make_generator("x")
    with pytest.raises(UsageError, match="generator spans has the options per_document, seed, word_dropout; got model"):
        make_generator("spans", model="y")


def test_device_and_quiet_are_not_part_of_the_cache_key() -> None:
    assert make_generator("smollm2", device="cpu", quiet=False).key() == make_generator("smollm2").key()
    assert make_generator("smollm2", temperature=0.1).key() != make_generator("smollm2").key()


def test_a_model_that_cannot_be_loaded_is_one_sentence(run: Any, tmp_path: Path, small: Corpus) -> None:
    small.write(tmp_path / "c")
    outcome = run("queries", "c", "-g", "doc2query-t5", "--model", str(tmp_path / "nothing"), "--offline")
    assert outcome.returncode == 1 and "could not load the model" in outcome.stderr
    assert "Traceback" not in outcome.stderr


@pytest.fixture(scope="module")
def tiny_t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T5 of a few thousand random weights with a word tokeniser, saved as a local folder."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    folder = tmp_path_factory.mktemp("t5")
    words = ["<pad>", "</s>", "<unk>", "tea", "water", "boil", "canal", "lock", "owl", "night", "sound", "how", "hot", "boat", "the", "a"]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>").save_pretrained(folder)
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(words), d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0, eos_token_id=1
    )
    T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


def test_doc2query_t5_reads_safetensors_and_bin_alike_and_executes_nothing(tiny_t5: Path, small: Corpus, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    folder = tmp_path / "bin"
    shutil.copytree(tiny_t5, folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    either = [list(make_generator("doc2query-t5", model=str(place), offline=True).generate(small.documents)) for place in (tiny_t5, folder)]
    assert either[0] == either[1] and all(len(queries) == 15 for queries in either[0])
    torch.save({"shared.weight": WritesWhenUnpickled(tmp_path / "ran")}, folder / "pytorch_model.bin")
    with pytest.raises(OfflineError, match="could not load the model"):
        make_generator("doc2query-t5", model=str(folder), offline=True).load()
    assert not (tmp_path / "ran").exists()


class WritesWhenUnpickled:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_sentencepiece_tokenizer_without_its_library_names_the_extra(tiny_t5: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)  # as if it were not installed
    folder = tmp_path / "t5"
    shutil.copytree(tiny_t5, folder)
    (folder / "tokenizer.json").rename(folder / "spiece.model")
    with pytest.raises(PromptDSIError, match=r"needs sentencepiece: pip install 'promptdsi\[doc2query\]'"):
        make_generator("doc2query-t5", model=str(folder), offline=True).load()


def test_doc2query_t5_samples_from_a_local_folder_without_network(tiny_t5: Path, small: Corpus, tmp_path: Path, no_network: None) -> None:
    small.write(tmp_path / "c")
    generator = make_generator("doc2query-t5", model=str(tiny_t5), offline=True, device="cpu")
    assert generator.per_document == 15
    written = add_queries(tmp_path / "c", generator)
    owners = {pair.docid for pair in written.pairs}
    assert owners == {"d1", "d2", "d3"} and 0 < len(written.pairs) <= 45
    assert all(pair.query.kind == "pseudo" for pair in written.pairs)
    again = list(make_generator("doc2query-t5", model=str(tiny_t5), offline=True, device="cpu").generate(small.documents))
    assert [text for texts in again for text in unique_queries(texts, 15)] == [pair.query.text for pair in written.pairs]


@pytest.fixture(scope="module")
def tiny_llama() -> tuple[Any, Any]:
    """A causal model of the same family as SmolLM2, random weights, bytes as tokens."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<eos>": 0} | {character: number + 1 for number, character in enumerate(alphabet)}
    raw = Tokenizer(models.BPE(vocabulary, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>", pad_token="<eos>", padding_side="left")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=len(vocabulary), **sizes, eos_token_id=0, pad_token_id=0, max_position_embeddings=4096)
    return LlamaForCausalLM(config).eval(), tokenizer


def test_reading_the_examples_once_changes_nothing(tiny_llama: tuple[Any, Any]) -> None:
    """With the shots' keys and values copied, the next-token scores equal those of one plain pass, padding included."""
    import copy

    import torch

    from promptdsi.corpus.generators.smollm2 import passage_prompt

    model, tokenizer = tiny_llama
    shots = read_shots(model, tokenizer)
    documents = [Document("a", "short text", "A"), Document("b", "a rather longer text about something else", "B")]
    tokens = tokenizer([passage_prompt(document) for document in documents], return_tensors="pt", padding=True, add_special_tokens=False)
    mask = torch.cat([torch.ones_like(shots.ids).expand(2, -1), tokens["attention_mask"]], 1)
    cache = copy.deepcopy(shots.cache)
    cache.batch_repeat_interleave(2)
    positions = (mask.cumsum(1) - 1)[:, shots.ids.shape[1] :]
    with torch.inference_mode():
        cached_scores = model(input_ids=tokens["input_ids"], attention_mask=mask, position_ids=positions, past_key_values=cache).logits[
            :, -1
        ]
        for number, document in enumerate(documents):
            plain = tokenizer(shots_prompt() + passage_prompt(document), return_tensors="pt")["input_ids"]
            torch.testing.assert_close(cached_scores[number], model(input_ids=plain).logits[0, -1], atol=1e-4, rtol=1e-4)
    assert all(tokenizer.decode([number]).startswith("\n") for number in shots.line_ends) and shots.line_ends


def test_smollm2_generates_per_document(tiny_llama: tuple[Any, Any], small: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    from promptdsi.corpus.generators import smollm2

    monkeypatch.setattr(smollm2, "cached", lambda *arguments, **keywords: Path())
    monkeypatch.setattr(smollm2, "load_gguf", lambda folder, device: tiny_llama)
    monkeypatch.setattr(smollm2, "query_in", lambda text, document: f"{document.docid} {text!r}")
    queries_by_document = list(make_generator("smollm2", per_document=2).generate(small.documents))
    assert [{query.split()[0] for query in queries} for queries in queries_by_document] == [{"d1"}, {"d2"}, {"d3"}]
    assert all(len(queries) == 4 for queries in queries_by_document)
    assert list(make_generator("smollm2", per_document=2).generate(small.documents)) == queries_by_document


@pytest.mark.parametrize(
    "text", ["", "tea", "why are owls so quiet when they fly", "Passage: tea water", "how to fix a car engine", "a " * 30]
)
def test_what_is_no_query_about_the_passage_is_dropped(text: str, small: Corpus) -> None:
    assert query_in(text, small.documents[0]) == ""


def test_smollm2_offline_and_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTDSI_CACHE", str(tmp_path))
    with pytest.raises(OfflineError, match="smollm2 is not in the cache"):
        next(make_generator("smollm2", offline=True).generate([Document("d", "x")]))
