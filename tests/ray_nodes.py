"""For the tests and the soak: two Ray nodes on the loopback address, of which the second can be lost and started again."""

from __future__ import annotations

import os
import signal
from typing import Any

from promptdsi import Index

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # no reports; loopback only
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}


class Nodes:
    """A cluster of one node or two, each with its own worker processes."""

    def __init__(self, shards: int = 3, count: int = 2) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster()
        self._add(include_dashboard=False)
        self.second = self._add() if count > 1 else None
        self.url = f"ray://{self.cluster.address}?shards={shards}"

    def _add(self, **options: Any) -> Any:
        """Start a node. Ray gives it thirty seconds, which on a busy machine may not be enough the first time."""
        for _ in range(3):
            try:
                return self.cluster.add_node(**NODE, **options)
            except Exception as error:
                problem = error
        raise problem

    def lose_one(self) -> None:
        self.cluster.remove_node(self.second, allow_graceful=False)

    def add_one(self) -> None:
        self.second = self._add()

    def shut_down(self) -> None:
        import ray

        ray.shutdown()
        self.cluster.shutdown()


def process_ids(index: Index) -> list[int]:
    """The processes of an index's shards."""
    import ray

    return ray.get([actor.process_id.remote() for actor in index.opened.processes.actors])


def kill_shard(index: Index, number: int) -> None:
    os.kill(process_ids(index)[number], signal.SIGKILL)
