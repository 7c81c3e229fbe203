"""What Redis and redis-py report: what passes by waiting, and the rest in our own words."""

from __future__ import annotations

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,  # noqa: A004 - these two are redis-py's, and no others are used here
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,  # noqa: A004
    TryAgainError,
)

from limpet.errors import (
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

__all__ = ["Unconfirmed", "in_doubt", "passes", "translate"]


class Unconfirmed(RedisError):
    """The write is done, but not yet as safe as was asked for."""


_REFUSED = (AuthenticationError, AuthenticationWrongNumberOfArgsError, AuthorizationError)

#: A read-only server may be a master that was just succeeded: by asking again we find the new one.
_PASSING = (
    ConnectionError,  # it is away, loading its data, or has too many clients
    TimeoutError,
    AskError,  # a slot moves, and nobody wants it
    TryAgainError,  # half of it has moved
    ClusterDownError,  # and MasterDownError
    ReadOnlyError,
    Unconfirmed,
)

#: The same by the first word of the message, where redis-py has no class for it.
_PASSING_WORDS = ("BUSY", "NOREPLICAS", "UNBLOCKED", "CLUSTERDOWN")


def passes(error: Exception) -> bool:
    """Whether it is worth asking again."""
    if isinstance(error, _REFUSED):
        return False
    return isinstance(error, _PASSING) or _first_word(error) in _PASSING_WORDS


def in_doubt(error: Exception) -> bool:
    """Whether what was asked for may have been done nevertheless."""
    if isinstance(error, (BusyLoadingError, *_REFUSED)):
        return False
    return isinstance(error, (ConnectionError, TimeoutError, Unconfirmed))


def translate(error: Exception, url: str, *, writing: bool) -> StoreError:
    """Our own error for one of redis-py's."""
    said = str(error).rstrip(".")
    if isinstance(error, (*_REFUSED, NoPermissionError)):
        return _not_allowed(error, url)
    if isinstance(error, Unconfirmed):
        return StoreUnavailable(f"{url}: {said}. Repeat it with the same id.")
    for kind, word, ours, text in _MEANINGS:
        if isinstance(error, kind) and word in ("", _first_word(error)):
            return ours(f"{url} {text}. The server says: {said}.")
    if not passes(error):
        return StoreError(f"{url} refuses: {said}.")
    if writing:
        return StoreUnavailable(
            f"{url} did not answer for as long as timeout= allows: {said}. "
            "The write may or may not be there; repeat it with the same id."
        )
    return StoreUnavailable(f"{url} cannot be reached: {said}. Start the server, or check the URL.")


_FULL = (
    "has no memory left for the write, and nothing of it was kept. Raise maxmemory, delete what is "
    "not needed, or let it expire"
)
_REPLICA = "is a replica, which takes no writes. Open its master, or this one with readonly=true"
_DISK = (
    "refuses writes because it cannot save them to its disk. Nothing was written. Look into its "
    "log, and make room on its disk"
)
_OTHERS = (
    "has something else under one of the store's keys. Whoever else writes there should use other "
    "names; choose another prefix= for a new store"
)
_MEANINGS: tuple[tuple[type[Exception], str, type[StoreError], str], ...] = (
    (OutOfMemoryError, "", StoreFull, _FULL),
    (ReadOnlyError, "", StoreReadOnly, _REPLICA),
    (ResponseError, "MISCONF", StoreUnavailable, _DISK),
    (ResponseError, "WRONGTYPE", StoreCorrupt, _OTHERS),
)


def _not_allowed(error: Exception, url: str) -> StoreError:
    said = str(error).rstrip(".")
    if isinstance(error, NoPermissionError):
        return StoreError(
            f"{url}: this user may not do that: {said}. Give it the store's keys, and the commands "
            "for them: ACL SETUSER name ~PREFIX:* +@all -@admin"
        )
    return StoreError(
        f"{url} does not let us in: {said}. Check user and password: redis://USER:PASSWORD@HOST, "
        "with special characters as %XX."
    )


def _first_word(error: Exception) -> str:
    return str(error).partition(" ")[0]
