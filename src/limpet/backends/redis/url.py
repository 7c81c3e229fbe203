"""What a redis: or valkey: URL says, and how to connect to that."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

from limpet.backends.url import flag, safe_url, seconds
from limpet.errors import InvalidURL

if TYPE_CHECKING:
    from collections.abc import Callable
    from urllib.parse import SplitResult

    from limpet.backends.redis.wire import Wire

__all__ = ["PARAMETERS", "Target", "check_durability", "check_prefix", "count"]

#: The longest that one attempt of a call waits for the server, and for a connection to it.
ATTEMPT = 10.0
CONNECTING = 5.0


def check_durability(text: str | None) -> str | None:
    """One of the words that ``durability`` can be."""
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
}


class Target:
    """Where the server is, who we are there, and how long we wait for it.

    ``redis://[USER:PASSWORD@]HOST[:PORT][/DB]``, ``rediss://`` for TLS, the same as ``valkey``;
    ``redis:///path/to.sock`` for a socket file.
    """

    def __init__(self, url: str, *, timeout: float, db: int | None, **tls: Any) -> None:
        shown = safe_url(url)
        parts = _parts(url)
        try:
            self.host, self.port = parts.hostname or "localhost", parts.port or 6379
        except ValueError:  # which may quote the password
            raise InvalidURL(
                f"{shown}: a port is a number up to 65535. Write special characters as %XX."
            ) from None
        place = unquote(parts.path).strip("/")
        self.path = None if parts.hostname or not place or place.isdecimal() else f"/{place}"
        if place and self.path is None and not place.isdecimal():
            raise InvalidURL(
                f"{shown}: behind the host is the number of a database, not {place!r}."
            )
        self._tls = {name: value for name, value in tls.items() if value is not None}
        self._secure = parts.scheme in ("rediss", "valkeys")
        if self._tls and not self._secure:
            raise InvalidURL(
                f"{shown}: {', '.join(self._tls)} are for TLS: write {parts.scheme}s://"
            )
        self.attempt = max(0.1, min(timeout, ATTEMPT))
        self._options = {
            "db": db if db is not None else int(place) if place.isdecimal() else 0,
            "username": unquote(parts.username) if parts.username else None,
            "password": unquote(parts.password) if parts.password else None,
            "socket_timeout": self.attempt,
            "socket_connect_timeout": min(self.attempt, CONNECTING),
            "protocol": 2,
        }

    def connect(self, host: str, port: int) -> Wire:
        """A connection that is made when it is first used."""
        if self.path is not None:
            return _made(UnixDomainSocketConnection, path=self.path, **self._options)
        options = {"host": host, "port": port, "socket_keepalive": True, **self._options}
        if self._secure:
            return _made(SSLConnection, **options, **self._tls)
        return _made(Connection, **options)


def _parts(url: str) -> SplitResult:
    scheme, _, rest = url.partition(":")
    with suppress(ValueError):  # which may quote the password
        parts = urlsplit(url)
        if rest.startswith("//") and not parts.fragment:
            return parts
    raise InvalidURL(
        f"{safe_url(url)} names no server. Write {scheme}://USER:PASSWORD@HOST:PORT/DB, "
        "with special characters as %XX."
    )


def _made(kind: Any, **options: Any) -> Wire:
    """A connection of redis-py, whose classes have no types."""
    return cast("Wire", kind(**options))
