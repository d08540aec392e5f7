"""Processes on a Ray cluster that help this one to train D0, as those of torchrun do: Ray starts them, torch.distributed connects them."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

from promptdsi import __version__
from promptdsi.engine.ray_store import connect
from promptdsi.errors import PromptDSIError, UsageError
from promptdsi.training.distributed import leading, work_alone

SECONDS_TO_START = 120.0  # of a helper: it imports torch


class Helper:
    """What runs in a helper's process."""

    def version(self) -> str:
        import promptdsi.training.shared_stages  # noqa: F401  # imported before the others wait for this process

        return __version__

    def help(self, environment: dict[str, str]) -> None:
        from promptdsi.training.shared_stages import help_training

        os.environ |= environment
        help_training()


@contextlib.contextmanager
def leading_on(url: str | None) -> Iterator[None]:
    """Lead the processes that help: those of a cluster, `shards` in all with this one, or without an address those of torchrun."""
    if url is None:
        with leading():
            yield
        return
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("--on starts its own processes: run it without torchrun")
    ray, count, _ = connect(url)
    actor = ray.remote(num_cpus=0.01, scheduling_strategy="SPREAD")(Helper)
    helpers = [actor.remote() for _ in range(count - 1)]
    try:
        with _as_error(url, ray):
            _check_versions(ray.get([helper.version.remote() for helper in helpers], timeout=SECONDS_TO_START))
            common = _environment(ray.util.get_node_ip_address(), count)
            calls = [helper.help.remote(common | {"RANK": str(rank)}) for rank, helper in enumerate(helpers, 1)]
            os.environ |= common | {"RANK": "0"}
            with leading():
                yield
            ray.get(calls)
    finally:
        work_alone()
        for helper in helpers:
            ray.kill(helper)


@contextlib.contextmanager
def _as_error(url: str, ray: Any) -> Iterator[None]:
    """Say in one sentence that a helper was lost: torch reports a closed connection, as a RuntimeError."""
    try:
        yield
    except (RuntimeError, ray.exceptions.RayError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise PromptDSIError(f"a process on {url} was lost ({reason}); the same command goes on from the last checkpoint") from error


def _check_versions(versions: list[str]) -> None:
    if other := set(versions) - {__version__}:
        raise PromptDSIError(f"a node runs promptdsi {min(other)}, this one {__version__}: install the same everywhere")


def _environment(address: str, count: int) -> dict[str, str]:
    """What tells torch.distributed where the first process is; on one machine everything stays on the loopback address."""
    with socket.socket() as free:
        free.bind((address, 0))
        port = free.getsockname()[1]
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if address.startswith("127.") and os.path.exists("/sys/class/net/lo") else {}
    return {"WORLD_SIZE": str(count), "MASTER_ADDR": address, "MASTER_PORT": str(port)} | loopback
