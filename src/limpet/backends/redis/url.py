"""What a redis: or valkey: URL says, and how to connect to the server that it names."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import SplitResult, unquote, urlsplit

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

from limpet.backends.url import flag, safe_url, seconds
from limpet.errors import InvalidURL

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.backends.redis.servers import DriverConnection

__all__ = ["PARAMETERS", "Address", "check_durability", "check_prefix", "count"]

#: The longest that one attempt of a call waits for the server, and for a connection to it.
ATTEMPT = 10.0
CONNECTING = 5.0


def check_durability(text: str | None) -> str | None:
    """One of the values of ``durability``."""
    if text not in (None, "full", "second", "none"):
        raise InvalidURL(f"durability is full, second or none, not {text!r}")
    return text


def check_prefix(text: str) -> str:
    """What all keys begin with."""
    if not re.fullmatch(r"[\w.:/-]{1,100}", text, re.ASCII):
        raise InvalidURL(f"prefix is up to 100 of A-Z, a-z, 0-9 and _ . : / -, not {text!r}")
    return text


def count(text: str | int) -> int:
    """A whole number from 0 up."""
    if int(text) < 0:
        raise ValueError(f"it is a number from 0 up, not {text!r}")
    return int(text)


PARAMETERS: dict[str, Callable[[str], Any]] = {
    "prefix": check_prefix,
    "timeout": seconds,
    "durability": check_durability,
    "replicas": count,
    "pool": count,
    "db": count,
    "create": flag,
    "readonly": flag,
    "ssl_ca_certs": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "ssl_check_hostname": flag,
    "sentinel": str,
    "sentinel_username": str,
    "sentinel_password": str,
}


class Address:
    """Where the server is, who we are there, and how long we wait for it.

    ``redis://[USER:PASSWORD@]HOST[:PORT][/DB]``, ``rediss://`` for TLS, the same as ``valkey``;
    ``redis:///path/to.sock`` for a socket file. *attempt*: the seconds that one try of a call has.
    With *sentinel*, ``HOST:PORT,HOST:PORT`` are Sentinels, who know where the master of that name
    is; user and password are the master's, *sentinel_login* is theirs.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        db: int | None,
        sentinel: str | None = None,
        sentinel_login: tuple[str | None, str | None] = (None, None),
        **tls: Any,
    ) -> None:
        parts = _split(url)
        self.sentinel = sentinel
        hosts = parts.netloc.rpartition("@")[2].split(",")
        if len(hosts) > 1 and not sentinel:
            raise InvalidURL(
                f"{safe_url(url)} names several servers. Sentinels need the name of their master, "
                "sentinel=NAME; of a cluster, one server is enough."
            )
        try:
            self.hosts = [_host_and_port(host, 26379 if sentinel else 6379) for host in hosts]
        except ValueError:  # which may quote the password
            raise InvalidURL(
                f"{safe_url(url)}: a port is a number up to 65535. Write special characters as %XX."
            ) from None
        path = unquote(parts.path).strip("/")
        self._socket_file = None if parts.hostname or not path or path.isdecimal() else f"/{path}"
        if path and self._socket_file is None and not path.isdecimal():
            raise InvalidURL(
                f"{safe_url(url)}: behind the host is the number of a database, not {path!r}."
            )
        self._tls = {name: value for name, value in tls.items() if value is not None}
        self._secure = parts.scheme in ("rediss", "valkeys")
        if self._tls and not self._secure:
            raise InvalidURL(
                f"{safe_url(url)}: {', '.join(self._tls)} are for TLS: write {parts.scheme}s://"
            )
        self.attempt = max(0.1, min(timeout, ATTEMPT))
        self._options = {
            "db": db if db is not None else int(path) if path.isdecimal() else 0,
            "username": unquote(parts.username) if parts.username else None,
            "password": unquote(parts.password) if parts.password else None,
            "socket_timeout": self.attempt,
            "socket_connect_timeout": min(self.attempt, CONNECTING),
            "protocol": 2,
        }
        login = dict(zip(("username", "password"), sentinel_login, strict=True))
        self._sentinel_options = self._options | login | {"db": 0}

    def connect(self, host: str, port: int, *, sentinel: bool = False) -> DriverConnection:
        """A connection of redis-py, made when it is first used."""
        kind: Any = Connection  # its classes have no types
        login = self._sentinel_options if sentinel else self._options
        options = {"host": host, "port": port, "socket_keepalive": True, **login}
        if self._socket_file is not None:
            kind, options = UnixDomainSocketConnection, {"path": self._socket_file, **self._options}
        elif self._secure:
            kind, options = SSLConnection, {**options, **self._tls}
        return cast("DriverConnection", kind(**options))


def _host_and_port(text: str, port: int) -> tuple[str, int]:
    """What *text* says, or the usual *port*."""
    parts = urlsplit(f"//{text}")
    return parts.hostname or "localhost", parts.port or port


def _split(url: str) -> SplitResult:
    scheme, _, rest = url.partition(":")
    with suppress(ValueError):  # which may quote the password
        parts = urlsplit(url)
        if rest.startswith("//") and not parts.fragment:
            return parts
    raise InvalidURL(
        f"{safe_url(url)} names no server. Write {scheme}://USER:PASSWORD@HOST:PORT/DB, "
        "with special characters as %XX."
    )
