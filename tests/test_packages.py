"""What is fetched from packages: checked before anything of it runs, whole or not at all, and not believed once damaged."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from promptdsi.errors import OfflineError, PromptDSIError
from promptdsi.files import sha256_of
from promptdsi.pypi import Package, cached


def test_a_package_that_cannot_be_had_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTDSI_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(OfflineError, match=r"could not download no-such-package-here==1\.0"):
        cached("thing", Package("no-such-package-here==1.0", "0" * 64, 1), lambda archive, folder: None)
    assert list(tmp_path.iterdir()) == []


def test_a_package_with_another_checksum_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTDSI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    wheel = tmp_path / "links/toything-1.0-py3-none-any.whl"
    make_wheel(wheel)
    with pytest.raises(PromptDSIError, match="is not the file this release expects"):
        cached("thing", Package("toything==1.0", "0" * 64, 1), lambda archive, folder: None)
    assert list((tmp_path / "cache").iterdir()) == []
    good = Package("toything==1.0", sha256_of(wheel), 1)
    folder = cached("thing", good, lambda archive, folder: None)
    assert folder.is_dir()
    assert cached("thing", good, lambda archive, folder: pytest.fail("unpacked twice"), offline=True) == folder


def test_a_damaged_cache_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTDSI_CACHE", str(tmp_path))
    (tmp_path / "thing").mkdir()
    (tmp_path / "thing/data.json").write_text("{}")
    package = Package("toything==1.0", "0" * 64, 1)
    for checksums in ("", '{"data.json": "00"}', '{"gone.json": "00"}'):
        (tmp_path / "thing/checksums.json").write_text(checksums)
        with pytest.raises(PromptDSIError, match="thing is damaged; delete that folder"):
            cached("thing", package, lambda archive, folder: None)


def test_another_source_archive_is_refused_before_its_build_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTDSI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    witness = tmp_path / "ran"
    files = {
        "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n",
        "backend.py": f"open({str(witness)!r}, 'w').close()\n",
        "PKG-INFO": "Metadata-Version: 2.1\nName: toysource\nVersion: 1.0\n",
    }
    with tarfile.open(tmp_path / "toysource-1.0.tar.gz", "w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"toysource-1.0/{name}")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    with pytest.raises(PromptDSIError, match="is not the file this release expects"):
        cached("thing", Package("toysource==1.0", "0" * 64, 1), lambda archive, folder: None)
    assert not witness.exists()


def make_wheel(path: Path) -> None:
    """The smallest wheel pip will download."""
    path.parent.mkdir(parents=True)
    info = "toything-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("toything.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: toything\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
