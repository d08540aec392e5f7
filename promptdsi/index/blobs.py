"""Blobs: files named by their own sha256, written once. The same content is the same file, so "nothing changed" can be seen."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptdsi.engine.mapped import mapped_tensors
from promptdsi.errors import DataError
from promptdsi.files import adopt, atomic_write, remove, sha256_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

NAME = re.compile(r"([0-9a-f]{64})\.(safetensors|sqlite|json)")


def is_plain(path: Path) -> bool:
    """Whether a path is a file of its own: no link may lead out of the index."""
    return path.is_file() and not path.is_symlink()


class Blobs:
    """The `blobs/` folder of an index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, content: bytes, kind: str) -> str:
        """Store content and return its name; what is there already, whole, is not written again."""
        name = f"{hashlib.sha256(content).hexdigest()}.{kind}"
        if not self._holds(name):
            with atomic_write(self.folder / name) as file:
                file.write(content)
        return name

    def put_json(self, value: Any) -> str:
        return self.put(json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8"), "json")

    def take(self, temporary: Path, kind: str) -> str:
        """Store a file that was written beside the blobs, and return its name."""
        name = f"{sha256_of(temporary)}.{kind}"
        if self._holds(name):
            remove([temporary])
        else:
            adopt(temporary, self.folder / name)
        return name

    def path(self, name: str) -> Path:
        """Where a blob is; it must be there, and be a file of its own."""
        if not NAME.fullmatch(name):
            raise DataError(f"names the blob {name[:100]!r}, which is no blob's name; run `promptdsi verify`", path=self.folder.parent)
        path = self.folder / name
        if self.folder.is_symlink() or path.is_symlink():
            raise DataError("is a link; an index holds its own files only", path=path)
        if not path.is_file():
            raise DataError("is missing; restore it from a copy, or see with `promptdsi verify` which generations are whole", path=path)
        return path

    def size(self, name: str) -> int:
        return self.path(name).stat().st_size

    def check(self, name: str, size: int) -> None:
        """Raise DataError unless the blob has the size and the checksum it should."""
        path = self.path(name)
        if path.stat().st_size != size or sha256_of(path) != name[:64]:
            raise DataError(
                "is damaged (sha256 or size differ); restore it from a copy, or see with `promptdsi verify` which generations are whole",
                path=path,
            )

    def json(self, name: str) -> Any:
        path = self.path(name)
        try:
            return json.loads(path.read_bytes())
        except ValueError:
            raise DataError("is damaged (no JSON); run `promptdsi verify`", path=path) from None

    def text(self, name: str) -> str:
        return self.path(name).read_text("utf-8")

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Tensors mapped from the file, not read: memory is used as they are. The header is checked before anything is allocated."""
        from safetensors import SafetensorError, safe_open

        path = self.path(name)
        try:
            with safe_open(path, "pt") as file:
                return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise DataError(f"is damaged ({error}); run `promptdsi verify`", path=path) from None

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """The same for the query engine, without torch."""
        return mapped_tensors(self.path(name))

    def names(self) -> set[str]:
        """Every file of the folder, ours or not."""
        return {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set()

    def remove(self, names: set[str]) -> None:
        remove([self.folder / name for name in sorted(names)])

    def _holds(self, name: str) -> bool:
        path = self.folder / name
        return is_plain(path) and sha256_of(path) == name[:64]
