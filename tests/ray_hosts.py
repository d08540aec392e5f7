"""For the tests: two hosts of a Ray cluster, network namespaces joined by a cable, set up as docs/cluster.md tells an operator to.

Each host has an address and a certificate of its own, the cluster's token, the environment that the page gives, and a node that the
command of a systemd unit under `deploy/` starts. Two hosts share the machine's files, and no network but the cable. Nor do they see each
other's processes, by which Ray finds the node of its host.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
ADDRESSES = ("10.213.7.1", "10.213.7.2")  # in the page the head is 10.0.0.1, this node 10.0.0.2
CABLE = "cable0"  # the name of both ends, each in its namespace
SMALL = ["--num-cpus=1", "--object-store-memory=80000000"]
SECONDS_TO_START = 60.0


def call(*words: str | Path, **options: Any) -> str:
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True, **options).stdout


def end(process: subprocess.Popen[str]) -> None:
    """Kill a program of a host if it still runs; `nsenter` is its parent, and both are a group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Host:
    """A namespace of network and processes with an address, and what an operator puts on a host."""

    def __init__(self, name: str, folder: Path, address: str) -> None:
        self.name, self.folder, self.address, self.init = name, folder, address, 0
        self.secrets = folder / "etc"  # /etc/promptdsi of the page
        self.secrets.mkdir(parents=True)
        page = (ROOT / "docs" / "cluster.md").read_text("utf-8")
        lines = re.findall(r"^ +(\w+)=(\S+)$", page, re.MULTILINE)
        page_values = {key: value.replace("/etc/promptdsi", str(self.secrets)) for key, value in lines}
        addresses = {"NODE_ADDRESS": address, "HEAD_ADDRESS": ADDRESSES[0], "HOME": str(folder)}
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")} | page_values | addresses

    def add_certificate(self, authority: Path) -> None:
        """A key and a certificate that names the address, signed by the cluster's authority."""
        names, request = self.folder / "names", self.folder / "request"
        names.write_text(f"subjectAltName=IP:{self.address}")
        key = ("-newkey", "rsa:2048", "-nodes", "-keyout", self.secrets / "node.key", "-subj", f"/CN={self.address}")
        call("openssl", "req", *key, "-out", request)
        signer = ("-CA", authority / "ca.crt", "-CAkey", authority / "ca.key", "-CAcreateserial", "-days", "2", "-extfile", names)
        call("openssl", "x509", "-req", "-in", request, *signer, "-out", self.secrets / "node.crt")
        shutil.copy(authority / "ca.crt", self.secrets)

    def boot(self) -> None:
        """Start the first process: when it ends all others do."""
        first = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sleep", "infinity")
        parent = subprocess.Popen(["ip", "netns", "exec", self.name, *first], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while not (numbers := [number for number in self.process_ids() if number != parent.pid]):
            if parent.poll() is not None:
                raise subprocess.CalledProcessError(parent.returncode, first, stderr=parent.communicate()[1])
            time.sleep(0.01)
        self.init = numbers[0]

    def start(self, *words: str | Path, **options: Any) -> subprocess.Popen[str]:
        """A program on this host."""
        command = ["nsenter", f"--target={self.init}", "--net", "--pid", "--mount", *map(str, words)]
        return subprocess.Popen(command, text=True, start_new_session=True, **({"env": self.environment} | options))

    def run(self, *words: str | Path, seconds: float = 180, **environment: str) -> subprocess.CompletedProcess[str]:
        """A command on this host; a variable that is empty is not set."""
        given = {key: value for key, value in (self.environment | environment).items() if value}
        process = self.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=given)
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        finally:
            end(process)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def promptdsi(self, *words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "promptdsi", *words, **options)

    def start_node(self, unit: str) -> None:
        """Start a node by the command of a systemd unit, and wait until it says that it runs."""
        lines = (ROOT / "deploy" / unit).read_text("utf-8")
        line = string.Template(re.findall("^ExecStart=(.+)$", lines, re.MULTILINE)[0]).substitute(self.environment)
        words = line.replace("/opt/promptdsi/bin", str(Path(sys.executable).parent)).split()
        with open(self.folder / "log", "w") as log:
            process = self.start(*words, *SMALL, f"--temp-dir={self.folder}", stdout=log, stderr=subprocess.STDOUT)
        end = time.monotonic() + SECONDS_TO_START
        while "Ray runtime started" not in (text := (self.folder / "log").read_text()):
            assert process.poll() is None and time.monotonic() < end, text
            time.sleep(0.05)

    def process_ids(self) -> list[int]:
        return [int(number) for number in call("ip", "netns", "pids", self.name).split()]

    def shard_count(self) -> int:
        """How many processes of shards run here: Ray names a process after its class."""
        count = 0
        for number in self.process_ids():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                count += Path(f"/proc/{number}/cmdline").read_bytes().startswith(b"ray::ShardProcess")
        return count

    def set_link(self, state: str) -> None:
        call("ip", "-n", self.name, "link", "set", CABLE, state)

    def remove(self) -> None:
        """End whatever runs here, which no other namespace shares, and the namespace."""
        end = time.monotonic() + 10
        while (numbers := self.process_ids()) and time.monotonic() < end:
            for number in numbers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            time.sleep(0.05)
        subprocess.run(["ip", "netns", "delete", self.name], check=False)


def join(hosts: list[Host]) -> None:
    """Make the namespaces of two hosts and the cable between them."""
    for host in hosts:
        call("ip", "netns", "add", host.name)
    first, second = hosts
    call("ip", "-n", first.name, "link", "add", CABLE, "type", "veth", "peer", "name", CABLE, "netns", second.name)
    for host in hosts:
        call("ip", "-n", host.name, "address", "add", f"{host.address}/24", "dev", CABLE)
        for name in ("lo", CABLE):
            call("ip", "-n", host.name, "link", "set", name, "up")
        host.boot()


def share_secrets(folder: Path, hosts: list[Host]) -> None:
    """One token and one certificate authority for all hosts, a certificate for each."""
    for name in ("ca", "other"):  # the second is a stranger's
        key = ("-newkey", "rsa:2048", "-nodes", "-keyout", folder / f"{name}.key", "-subj", f"/CN={name}")
        call("openssl", "req", "-x509", *key, "-days", "2", "-out", folder / f"{name}.crt")
    ray = Path(sys.executable).parent / "ray"
    home = {key: value for key, value in hosts[0].environment.items() if not key.startswith("RAY_")} | {"HOME": str(folder)}
    call(ray, "get-auth-token", "--generate", env=home)
    for host in hosts:
        host.add_certificate(folder)
        shutil.copy(folder / ".ray" / "auth_token", host.secrets)


@contextlib.contextmanager
def two_hosts(**environment: str) -> Iterator[list[Host]]:
    """A cluster of two hosts, the first of which is the head; where there can be none, the tests are skipped."""
    for program in ("ip", "nsenter", "openssl", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"the program {program} is not installed")
    folder = Path(tempfile.mkdtemp(prefix="hosts-", dir="/tmp"))  # short: the path of a socket has 107 bytes at most
    hosts = [Host(f"promptdsi-{os.getpid()}-{number}", folder / str(number), address) for number, address in enumerate(ADDRESSES, 1)]
    try:
        try:
            join(hosts)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces: {error.stderr.strip()}")
        share_secrets(folder, hosts)
        for host, unit in zip(hosts, ("ray-head.service", "ray-node.service"), strict=True):
            host.environment |= environment
            host.start_node(unit)
        yield hosts
    finally:
        for host in hosts:
            if Path("/run/netns", host.name).exists():
                host.remove()
        shutil.rmtree(folder, ignore_errors=True)
