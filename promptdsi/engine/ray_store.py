"""A `PassageStore` on a Ray cluster: one process per shard, each with some documents of every generation that is open.

    ray://local                  processes on this machine, which end with this one
    ray://HOST:PORT?shards=8     a cluster whose head is at HOST:PORT and of which this machine is a node

A shard is pinned to a generation: every call names it, and a process that was started again opens it before it answers. A call returns
the answers of all shards or raises; there is no result without some of them. Ray is imported here only, and only when it is used.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import threading
import time
import uuid
import weakref
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from promptdsi import __version__
from promptdsi.engine.passage_store import MergedPassageStore, Shard
from promptdsi.engine.quantized import single_threaded_blas
from promptdsi.errors import DataError, PromptDSIError, UsageError
from promptdsi.model.path import cores

URL = re.compile(
    r"ray://(?:(?P<local>local)|(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):(?P<port>\d{1,5}))(?:\?shards=(?P<shards>[1-9]\d{0,3}))?"
)
LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|\[::1\]")
SECONDS_TO_CONNECT = 5.0
SECONDS_TO_OPEN = 3600.0  # a generation: checksums take about a second per gigabyte
SECONDS_TO_ANSWER = 25.0  # a shard of a lost node comes back within about ten; a server waits 30
SECONDS_TO_PING = 1.0
SLOW = {
    "log_sum_exp",
    "norms",
    "closest",
}  # calls that compare hundreds of queries with every row, for training: nobody waits for an answer
CONCURRENT = 4  # calls of a shard at a time: two batches of searches while a new generation is opened
OBJECT_STORE = 100 << 20  # bytes, of `ray://local`: vectors and hits are small
Opener = Callable[[Any, int, int, int], Shard]  # a generation's manifest, the number of the shard, how many there are, and on a node


class ShardsUnavailable(PromptDSIError):
    """A shard did not answer in time. Nothing is answered without it."""


class Failure(NamedTuple):
    """An error that a shard reports as data: exceptions of ours do not pass through Ray unchanged."""

    usage: bool
    problem: str
    path: str | None

    @classmethod
    def of(cls, error: PromptDSIError | OSError) -> Failure:
        if isinstance(error, DataError):
            return cls(False, error.problem, str(error.path))
        return cls(isinstance(error, UsageError), str(error), None)

    def to_error(self) -> PromptDSIError:
        if self.path is not None:
            return DataError(self.problem, path=self.path)
        return UsageError(self.problem) if self.usage else PromptDSIError(self.problem)


class ShardProcess:
    """What runs in a shard's process. After a crash Ray makes it again with the same arguments."""

    def __init__(self, opener: Opener, number: int, count: int, per_node: int) -> None:
        self.opener, self.share = opener, (number, count, per_node)
        self.stores: dict[str, Shard] = {}
        self._lock = threading.Lock()

    def call(self, key: str, manifest: list[Any], version: str, method: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method of the shard of a generation, which is opened if need be."""
        if version != __version__:
            return Failure(False, f"a node runs promptdsi {__version__}, the coordinator {version}: install the same everywhere", None)
        try:
            with single_threaded_blas():
                return getattr(self._store(key, manifest), method)(*arguments)
        except (PromptDSIError, OSError) as error:
            return Failure.of(error)

    def _store(self, key: str, manifest: list[Any]) -> Shard:
        if key not in self.stores:
            import ray

            with self._lock:  # calls of generations that are open do not wait for it
                if key not in self.stores:
                    self.stores[key] = self.opener(ray.get(manifest[0]), *self.share)
        return self.stores[key]

    def is_open(self, key: str) -> bool:
        return key in self.stores

    def release(self, key: str) -> None:
        self.stores.pop(key, None)

    def process_id(self) -> int:
        return os.getpid()


class RayShards:
    """The shard processes of one index on a cluster. They end with the last generation that uses them, or with this process."""

    def __init__(self, url: str, opener: Opener) -> None:
        self.ray, count, per_node = connect(url)
        shard = self.ray.remote(
            num_cpus=0.01,  # any node with a processor may take over a shard of one that is lost
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=CONCURRENT,
            concurrency_groups={"health": 1},
            scheduling_strategy="SPREAD",
        )(ShardProcess)
        self.actors = [shard.remote(opener, number, count, per_node) for number in range(count)]
        self.closed: deque[str] = deque()  # generations that are no longer needed here

    def collect(self, calls: list[Any], seconds: float) -> list[Any]:
        """The results of one call of each shard, all of them."""
        errors = self.ray.exceptions
        try:
            values = self.ray.get(calls, timeout=seconds)
        except errors.RayTaskError:
            raise  # an error of the program, with its traceback
        except errors.RayError:
            done, _ = self.ray.wait(calls, num_returns=len(calls), timeout=0)
            missing = f"{len(calls) - len(done)} of {len(calls)} shards" if len(done) < len(calls) else "a shard"
            raise ShardsUnavailable(f"{missing} of the index did not answer in {seconds:.0f} s: try again when the cluster is up") from None
        for value in values:
            if isinstance(value, Failure):
                raise value.to_error()
        return list(values)

    def release_closed(self) -> None:
        while self.closed:
            key = self.closed.popleft()
            for actor in self.actors:
                actor.release.options(max_task_retries=0).remote(key)


class RayPassageStore(MergedPassageStore):
    """A generation on a cluster. Once made, every shard has opened it and verified its files."""

    def __init__(self, shards: RayShards, manifest: Any, unknown_field: Callable[[str, dict[str, Counter[str]]], Exception]) -> None:
        super().__init__(unknown_field)
        self.shards, self.key, self.manifest = shards, uuid.uuid4().hex, [shards.ray.put(manifest)]
        self._opening: list[Any] = [None] * len(shards.actors)  # calls that let a shard that was started again open the generation
        shards.collect([self._start(actor, "contains", []) for actor in shards.actors], SECONDS_TO_OPEN)
        weakref.finalize(self, shards.closed.append, self.key)

    def call(self, method: str, *arguments: Any) -> list[Any]:
        self.shards.release_closed()
        seconds = SECONDS_TO_OPEN if method in SLOW else SECONDS_TO_ANSWER
        return self.shards.collect([self._start(actor, method, *arguments) for actor in self.shards.actors], seconds)

    def _start(self, actor: Any, method: str, *arguments: Any) -> Any:
        return actor.call.remote(self.key, self.manifest, __version__, method, arguments)

    def health(self) -> list[bool]:
        """Whether each shard answers, with this generation open. One that was started again is told to open it."""
        self.shards.release_closed()
        ray, actors = self.shards.ray, self.shards.actors
        pings = [actor.is_open.options(max_task_retries=0, concurrency_group="health").remote(self.key) for actor in actors]
        done, _ = ray.wait(pings, num_returns=len(pings), timeout=SECONDS_TO_PING)
        ready = []
        for number, ping in enumerate(pings):
            answer = None
            if ping in done:
                with contextlib.suppress(ray.exceptions.RayError):
                    answer = ray.get(ping)
            opening = self._opening[number]
            if answer is False and (opening is None or ray.wait([opening], timeout=0)[0]):
                self._opening[number] = self._start(actors[number], "contains", [])
            ready.append(answer is True)
        return ready


_running: weakref.WeakValueDictionary[tuple[str, str], RayShards] = weakref.WeakValueDictionary()
_connecting = threading.Lock()


def shards_on(url: str, index: str, opener: Opener) -> RayShards:
    """The shard processes of an index on a cluster: those of an earlier generation if one is open, else new ones."""
    with _connecting:
        shards = _running.get((url, index))
        if shards is None:
            shards = _running[url, index] = RayShards(url, opener)
        return shards


def connect(url: str) -> tuple[Any, int, int]:
    """The module `ray`, connected to a cluster; the number of shards, by default one for each node that computes; how many a node gets."""
    match = URL.fullmatch(url)
    if not match:
        raise UsageError(f"{url!r} is no cluster: give ray://HOST:PORT or ray://local, with ?shards=N if you like")
    local, host = match["local"], match["host"]
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    if local or LOOPBACK.fullmatch(host):
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray's name for: listen on the loopback address only
    elif os.environ.get("RAY_AUTH_MODE") != "token" or os.environ.get("RAY_USE_TLS") != "1":
        raise UsageError(f"{url} is another machine: set RAY_AUTH_MODE=token and RAY_USE_TLS=1, as docs/cluster.md describes")
    try:
        import ray
    except ImportError:
        raise PromptDSIError("a cluster needs Ray: pip install 'promptdsi[ray]'") from None
    address = "local" if local else f"{host}:{match['port']}"
    if not ray.is_initialized():
        if not local:
            _check_listening(host.strip("[]"), int(match["port"]))
        options = {"num_cpus": cores(), "include_dashboard": False, "object_store_memory": OBJECT_STORE} if local else {}
        try:
            if not local:
                _check_token(ray, address)
            ray.init(address, logging_level="ERROR", log_to_driver=False, **options)
        except Exception as error:  # Ray raises plain ones too
            reason = str(error).strip().splitlines()[0].partition(". ")[0]
            raise PromptDSIError(f"{url}: the cluster cannot be used from this machine ({reason})") from None
        ray._private.worker._worker_logs_enabled = False  # Ray prints what happens to shards on standard output, where results go
    elif not local and ray.get_runtime_context().gcs_address.rpartition(":")[2] != match["port"]:
        raise UsageError(f"this process is connected to another cluster than {url}")
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    count = int(match["shards"] or len(nodes) or 1)
    return ray, count, -(-count // max(len(nodes), 1))


def _check_listening(host: str, port: int) -> None:
    """Ray itself waits for minutes."""
    started = time.monotonic()
    while True:
        try:
            connection = socket.create_connection((host, port), SECONDS_TO_CONNECT)
            break
        except OSError as error:
            if time.monotonic() - started > SECONDS_TO_CONNECT or isinstance(error, socket.gaierror):
                raise PromptDSIError(f"no cluster answers at {host}:{port} ({error}); `ray start --head` starts one") from None
            time.sleep(0.2)
    with connection:
        if os.environ.get("RAY_USE_TLS") == "1":
            _check_certificates(connection, host)


def _check_certificates(connection: socket.socket, host: str) -> None:
    """Raise if the head and this machine do not accept each other: Ray itself tries again for minutes, without a word.

    Whether the head's certificate names its address is left to Ray, which compares names in its own way.
    """
    certificate, key, authority = (os.environ.get(f"RAY_TLS_{name}", "") for name in ("SERVER_CERT", "SERVER_KEY", "CA_CERT"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC: an intermediate authority will do
    context.set_alpn_protocols(["h2"])
    problem: object = None
    try:
        context.load_verify_locations(authority)
        context.load_cert_chain(certificate, key)
        with context.wrap_socket(connection) as secured:
            if not secured.recv(1):  # TLS 1.3: a client learns only now whether its certificate is accepted
                problem = "the head refuses this machine's certificate"
    except (ssl.SSLError, FileNotFoundError, PermissionError) as error:
        problem = error
    except OSError:  # the head is slow or restarts: Ray waits for it
        return
    if problem:
        names = "RAY_TLS_CA_CERT, RAY_TLS_SERVER_CERT and RAY_TLS_SERVER_KEY"
        raise PromptDSIError(f"{names} do not let this machine connect to {host} ({problem}); docs/cluster.md describes them")


def _check_token(ray: Any, address: str) -> None:
    """Raise if the cluster refuses the token: Ray itself tries again for twenty seconds and then does not say why.

    Both parts are Ray's own and not promised: where a release has them elsewhere, or a head is not ready yet, `ray.init` finds out.
    """
    try:
        from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled

        ensure_token_if_auth_enabled(create_token_if_missing=False)  # without any, the client aborts this process
        ray._raylet.GcsClient(address)
    except ray.exceptions.AuthenticationError:
        raise
    except Exception:
        return
