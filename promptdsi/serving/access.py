"""Who may read and who may write, and how much: bearer tokens, compared in constant time, and the limits of a request."""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from promptdsi.errors import DataError, UsageError
from promptdsi.serving.error_responses import APIError

LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|::1")
SHARES = 4  # one address may take a quarter of everything there is a limited number of
LINE = re.compile(r"(read|write)\s+([!-~]{16,})")


@dataclass(frozen=True)
class Access:
    """The tokens and whether writing is enabled. Without a read token anyone who reaches the server may read."""

    read: str | None = None
    write: str | None = None
    allow_write: bool = False

    def check(self, authorization: str | None, *, writing: bool) -> None:
        """Raise unless a request with this Authorization header is allowed."""
        if writing and not self.allow_write:
            raise APIError(403, "read_only", "this server does not change its index", "start it with --allow-write")
        if not writing and self.read is None:
            return
        scheme, _, given = (authorization or "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else ""
        # Both are always compared, so that the time taken reveals nothing.
        expected = [(token or secrets.token_hex()).encode() for token in (self.write, self.read)]
        may_write, may_read = [hmac.compare_digest(given.encode(), token) for token in expected]
        if may_write or (may_read and not writing):
            return
        if may_read:
            raise APIError(403, "forbidden", "this token may read, not write")
        message = "the token is wrong" if given else "this needs a token"
        raise APIError(401, "unauthorized", message, "send the header Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})


@dataclass(frozen=True)
class Limits:
    """How large and how slow a request may be, and how many connections, requests and bytes there are at once."""

    body: int = 8 << 20
    requests: int = 64
    body_seconds: float = 15.0
    connections: int = 512
    bodies: int = 128 << 20  # bytes of all bodies that are being received
    unsent: int = 256 << 20  # bytes of all answers that clients have yet to read
    proxies: frozenset[str] = frozenset()  # addresses of reverse proxies

    def share(self, address: str, total: int) -> int:
        """How much of a total one address may take. Behind a loopback address or a proxy there may be many clients."""
        many = LOOPBACK.fullmatch(address) or address in map(network_of, self.proxies)
        return total if many else max(1, total // SHARES)


def network_of(address: str) -> str:
    """What counts as one client: an IPv4 address, or the 64 bits that one IPv6 client has addresses of.

    Examples
    --------
    >>> network_of("192.0.2.7"), network_of("::ffff:192.0.2.7"), network_of("2001:db8:1:2:3::4"), network_of("::1")
    ('192.0.2.7', '192.0.2.7', '2001:db8:1:2::', '::1')
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address) or parsed.is_loopback:
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.IPv6Address(int(parsed) >> 64 << 64))


def proxies_of(addresses: Iterable[str]) -> frozenset[str]:
    """The addresses of reverse proxies, checked."""
    try:
        return frozenset(str(ipaddress.ip_address(address.strip("[]"))) for address in addresses)
    except ValueError as error:
        raise UsageError(f"--proxy: {error}; give the address from which the proxy connects, such as 172.17.0.1") from None


def read_tokens(path: Path) -> dict[str, str]:
    """Tokens of a file with lines `read TOKEN` and `write TOKEN`; # begins a comment."""
    tokens: dict[str, str] = {}
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = LINE.fullmatch(line.strip())
        if not match:
            raise DataError("expected `read TOKEN` or `write TOKEN`, a token being at least 16 ASCII characters", path=path, line=number)
        if match[1] in tokens:
            raise DataError(f"has a second {match[1]} token", path=path, line=number)
        tokens[match[1]] = match[2]
    if len(set(tokens.values())) < len(tokens):
        raise DataError("the read token and the write token are the same", path=path)
    return tokens


def access_for(host: str, *, allow_write: bool, token_file: Path | None) -> Access:
    """The access rules of a server on this address. On loopback a write token is generated where no file gives one."""
    tokens = read_tokens(token_file) if token_file else {}
    if not LOOPBACK.fullmatch(host) and "read" not in tokens:
        raise UsageError(f"--host {host} can be reached from other machines: give a --token-file with a line `read TOKEN`")
    if allow_write and token_file and "write" not in tokens:
        raise UsageError(f"--allow-write needs a line `write TOKEN` in {token_file}")
    write = tokens.get("write") or (secrets.token_urlsafe(24) if allow_write else None)
    return Access(tokens.get("read"), write, allow_write)
