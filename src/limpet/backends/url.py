"""What a store's URL says: its parameters, each of a kind, and how to show it without a secret."""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

from limpet.errors import InvalidURL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from limpet.backends.contract import Backend

__all__ = [
    "DEFAULT_TENANT",
    "DEFAULT_URL",
    "at_home",
    "check_durability",
    "command",
    "connect",
    "find",
    "flag",
    "in_commands",
    "is_default",
    "safe_url",
    "seconds",
    "url_parameters",
]

DEFAULT_URL = "limpet.db"
DEFAULT_TENANT = "default"


def url_parameters(
    url: str, kinds: Mapping[str, Callable[[str], object]]
) -> tuple[str, dict[str, Any]]:
    """Split a URL into what is before the ``?``, unquoted, and its parameters by their *kinds*."""
    if "?" not in url and "%" not in url:
        return url, {}
    from urllib.parse import parse_qsl, unquote  # noqa: PLC0415 - slow to import

    place, _, query = url.partition("?")
    parameters: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if "@" in name:  # the end of a password with a ? in it, which is not to be shown
            msg = f"{safe_url(url)}: in user name and password, write special characters as %XX."
            raise InvalidURL(msg)
        if name not in kinds:
            msg = f"{safe_url(url)} has a parameter {name!r}; known here are {', '.join(kinds)}."
            raise InvalidURL(msg)
        try:
            parameters[name] = kinds[name](value)
        except ValueError as error:
            msg = f"{safe_url(url)}: {name} cannot be {value!r} ({error})."
            raise InvalidURL(msg) from error
    return unquote(place), parameters


def at_home(path: str) -> str:
    """*path*, with the user's directory for a ``~`` in front: no shell has seen what is in .env."""
    return os.path.expanduser(path) if "/" in path or path == "~" else path


def flag(text: str | bool) -> bool:  # noqa: FBT001 - an option gives one, a URL a text
    """``true`` or ``false``, also as 1 or 0."""
    if isinstance(text, bool):
        return text
    if text not in ("1", "true", "0", "false"):
        raise ValueError(f"it is true or false, not {text!r}")
    return text in ("1", "true")


def seconds(text: str | float) -> float:
    """A number of seconds, from 0 up."""
    if not 0 <= float(text) < float("inf"):
        raise ValueError(f"it is a number of seconds from 0 up, not {text!r}")
    return float(text)


def check_durability(text: str) -> str:
    """``full``: an acknowledged write survives power loss; ``normal``: the process's end only."""
    if text not in ("full", "normal"):
        msg = f"durability is full or normal, not {text!r}"
        raise InvalidURL(msg)
    return text


#: Parameters whose values may be shown. Of others nobody knows: ``passwd=``, ``apikey=``, …
_HARMLESS = frozenset(
    {
        *(
            "timeout",
            "durability",
            "readonly",
            "create",
            "vfs",
            "schema",
            "pool",
            "prepare",
            "wakeups",
        ),
        *(
            "prefix",
            "db",
            "replicas",
            "sentinel",
            "region",
            "profile",
            "endpoint_url",
            "create_table",
        ),
        *("host", "hostaddr", "port", "dbname", "user", "sslmode", "target_session_attrs"),
        *("connect_timeout", "application_name", "options", "channel_binding", "gssencmode"),
    }
)


def safe_url(url: str) -> str:
    """*url*, or a text with one in it, as it may be shown: without the password.

    >>> safe_url("postgresql://ann:secret@db/agents?password=secret")
    'postgresql://ann:***@db/agents?password=***'
    """
    url = re.sub(r"((?:^\w+:|//)[^:@/?]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(
        r"([?&])([^=&?]*)=([^&]*)",
        lambda found: found[0] if found[2] in _HARMLESS else f"{found[1]}{found[2]}=***",
        url,
    )


def is_default(url: str) -> bool:
    """Whether the store at *url*, as it is shown, is the one that is opened when none is named."""
    default = safe_url(os.environ.get("LIMPET_URL") or DEFAULT_URL)
    return url in (default, f"sqlite:{default}")


def command(words: str, *, url: str | None, tenant: str) -> str:
    """The command ``limpet`` *words* for a store and tenant: it can be pasted."""
    import shlex  # noqa: PLC0415 - for errors and commands only

    store = f" --store {shlex.quote(safe_url(url))}" if url else ""
    whose = f" --tenant {shlex.quote(tenant)}" if tenant != DEFAULT_TENANT else ""
    return f"limpet {words}{store}{whose}"


#: A command that a message names; those that have stores of their own, or name them, are complete.
_COMMAND = re.compile(r"`limpet (?!(?:demo|copy|salvage)\b)((?:(?!--store|--tenant)[^`\n])+)`")


def in_commands(text: str, *, url: str | None, tenant: str) -> str:
    """*text*, with this store and tenant in each command that it names in backticks."""
    return _COMMAND.sub(lambda found: f"`{command(found[1], url=url, tenant=tenant)}`", text)


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
    kind, url = find(url)
    backend = kind.from_url(url, **options)
    backend.url = safe_url(url)
    return backend


def find(url: str | os.PathLike[str] | None) -> tuple[type[Backend], str]:
    """The class of the backend that *url* names, and the URL with its scheme."""
    if url is None:
        url = os.environ.get("LIMPET_URL") or DEFAULT_URL
    text = os.fspath(url)
    scheme, rest = _split(text, is_path=isinstance(url, os.PathLike))
    if "\0" in rest or "%00" in rest:  # of a path, every % is now %25
        raise InvalidURL(f"{safe_url(text)!r} cannot be opened: no name contains NUL.")
    return _find(scheme), f"{scheme}:{rest}"


def _split(url: str, *, is_path: bool) -> tuple[str, str]:
    scheme, colon, rest = url.partition(":")
    if is_path or not colon or len(scheme) == 1 or not url[0].isalpha():  # one letter is a drive
        if not is_path and re.search(r"\?\w+=", url):
            msg = (
                f"{safe_url(url)} is a path, and only a URL has parameters. "
                f"Write sqlite:{safe_url(url)}, or for a file of that name "
                f"sqlite:{_quoted(safe_url(url))}"
            )
            raise InvalidURL(msg)
        return "sqlite", _quoted(url)
    return scheme.lower(), rest


def _quoted(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3F")


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
        f"{scheme}: is not a kind of store that is installed here (there are {known}). Another "
        f"comes with a package that names it in the entry point group {ENTRY_POINTS}. For a "
        "file with a colon in its name, write sqlite:PATH."
    )
    raise InvalidURL(msg)
