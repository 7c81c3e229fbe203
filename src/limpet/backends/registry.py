"""From a URL to a backend. One line here is one scheme; others register by entry point."""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

from limpet.backends.options import DEFAULT_URL, safe_url
from limpet.errors import InvalidURL

if TYPE_CHECKING:
    from limpet.backends.base import Backend

__all__ = ["connect"]

#: Third-party backends: an entry point of this group, named as the scheme, gives the class.
ENTRY_POINTS = "limpet.backends"

_SCHEMES = {
    "sqlite": "limpet.backends.sqlite:SqliteBackend",
    "file": "limpet.backends.file:FileBackend",
    "postgresql": "limpet.backends.postgresql:PostgresBackend",
    "postgres": "limpet.backends.postgresql:PostgresBackend",
    "redis": "limpet.backends.redis:RedisBackend",
    "rediss": "limpet.backends.redis:RedisBackend",
    "valkey": "limpet.backends.redis:RedisBackend",
    "valkeys": "limpet.backends.redis:RedisBackend",
    "dynamodb": "limpet.backends.dynamodb:DynamoBackend",
    "memory": "limpet.backends.memory:MemoryBackend",
}


def connect(url: str | os.PathLike[str] | None, **options: Any) -> Backend:
    """Open the backend that *url* names; None: ``$LIMPET_URL``, else ``limpet.db`` here.

    *options* are the backend's own; they go before the URL's parameters.
    """
    if url is None:
        url = os.environ.get("LIMPET_URL") or DEFAULT_URL
    scheme, rest = _split(os.fspath(url), is_path=isinstance(url, os.PathLike))
    url = f"{scheme}:{rest}"
    backend = _find(scheme).from_url(url, **options)
    backend.url = safe_url(url)
    return backend


def _split(url: str, *, is_path: bool) -> tuple[str, str]:
    scheme, colon, rest = url.partition(":")
    if is_path or not colon or len(scheme) == 1 or not url[0].isalpha():  # one letter is a drive
        quoted = url.replace("%", "%25").replace("?", "%3F")
        if not is_path and re.search(r"\?\w+=", url):
            msg = (
                f"{url} is a path, and only a URL has parameters. "
                f"Write sqlite:{url}, or for a file of that name sqlite:{quoted}"
            )
            raise InvalidURL(msg)
        return "sqlite", quoted
    return scheme.lower(), rest


def _find(scheme: str) -> type[Backend]:
    if scheme in _SCHEMES:
        module, _, name = _SCHEMES[scheme].partition(":")
        return getattr(import_module(module), name)  # type: ignore[no-any-return]
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import, rarely needed

    found = entry_points(group=ENTRY_POINTS, name=scheme)
    if found:
        return next(iter(found)).load()  # type: ignore[no-any-return]
    known = ", ".join(f"{name}:" for name in _SCHEMES)
    msg = (
        f"{scheme}: is not a kind of store that is installed here (there are {known}). "
        "For a file with a colon in its name, write sqlite:PATH."
    )
    raise InvalidURL(msg)
