"""The errors of Redis and redis-py: which of them pass by waiting, and what to tell the caller."""

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

__all__ = ["RedisErrors", "Unconfirmed"]


class Unconfirmed(RedisError):
    """The write is done, but not yet as safe as was asked for."""


_LOGIN_FAILED = (AuthenticationError, AuthenticationWrongNumberOfArgsError, AuthorizationError)

#: A read-only server may be a master that was just replaced: a new connection finds the new one.
_PASSING = (
    ConnectionError,  # it is away, loading its data, or has too many clients
    TimeoutError,
    AskError,  # a slot moves, and neither server takes it
    TryAgainError,  # half of it has moved
    ClusterDownError,  # and MasterDownError
    ReadOnlyError,
    Unconfirmed,
)

#: The same by the first word of the message, where redis-py has no class for it.
_PASSING_WORDS = ("BUSY", "NOREPLICAS", "UNBLOCKED", "CLUSTERDOWN")


class RedisErrors:
    """`limpet.backends.retry.Errors` for redis-py. *url* is the store's, without its password."""

    def __init__(self, url: str) -> None:
        self._url = url

    @staticmethod
    def passes(error: Exception) -> bool:
        if isinstance(error, _LOGIN_FAILED) or _is_untrusted(error):
            return False
        return isinstance(error, _PASSING) or _first_word(error) in _PASSING_WORDS

    @staticmethod
    def unanswered(error: Exception) -> bool:
        if isinstance(error, (BusyLoadingError, *_LOGIN_FAILED)) or _is_untrusted(error):
            return False
        return isinstance(error, (ConnectionError, TimeoutError, Unconfirmed))

    def translated(self, error: Exception, *, writes: bool) -> StoreError | None:
        if not isinstance(error, RedisError):
            return None
        other: tuple[type[StoreError], str]
        if _is_untrusted(error):
            other = StoreError, _UNTRUSTED
        elif not self.passes(error):
            other = StoreError, "{url} refuses: {error}."
        else:
            other = StoreUnavailable, _UNANSWERED if writes else _UNREACHABLE
        known = (
            (ours, message)
            for kind, first_word, ours, message in _MEANINGS
            if isinstance(error, kind) and first_word in ("", _first_word(error))
        )
        ours, message = next(known, other)
        return ours(message.format(url=self._url, error=str(error).rstrip(".")))


_UNREACHABLE = "{url} cannot be reached: {error}. Start the server, or check the URL."
_UNANSWERED = (
    "{url} did not answer for as long as timeout= allows: {error}. "
    "The write may or may not be there; repeat it with the same id."
)
_UNTRUSTED = (
    "{url} does not prove by its certificate that it is this server: {error}. Check the name of "
    "the host in the URL, and ssl_ca_certs=, the file with the certificate of who vouches for it."
)
_NOT_ALLOWED = (
    "{url}: this user may not do that: {error}. Give it the store's keys, and the commands for "
    "them: ACL SETUSER name ~PREFIX:* +@all -@admin"
)
_NOT_LET_IN = (
    "{url} does not let us in: {error}. Check user and password: redis://USER:PASSWORD@HOST, "
    "with special characters as %XX."
)
_FULL = (
    "{url} has no memory left for the write, and nothing of it was kept. Raise maxmemory, delete "
    "what is not needed, or let it expire. The server says: {error}."
)
_REPLICA = (
    "{url} is a replica, which takes no writes. Open its master, or this one with readonly=true. "
    "The server says: {error}."
)
_DISK = (
    "{url} refuses writes because it cannot save them to its disk. Nothing was written. Look into "
    "its log, and make room on its disk. The server says: {error}."
)
_OTHERS = (
    "{url} has something else under one of the store's keys. Whoever else writes there should use "
    "other names; choose another prefix= for a new store. The server says: {error}."
)

#: The class of an error and the first word of its message ("" for any); ours, and what it says.
_MEANINGS: tuple[
    tuple[type[Exception] | tuple[type[Exception], ...], str, type[StoreError], str], ...
] = (
    (NoPermissionError, "", StoreError, _NOT_ALLOWED),
    (_LOGIN_FAILED, "", StoreError, _NOT_LET_IN),
    (Unconfirmed, "", StoreUnavailable, "{url}: {error}. Repeat it with the same id."),
    (OutOfMemoryError, "", StoreFull, _FULL),
    (ReadOnlyError, "", StoreReadOnly, _REPLICA),
    (ResponseError, "MISCONF", StoreUnavailable, _DISK),
    (ResponseError, "WRONGTYPE", StoreCorrupt, _OTHERS),
)


def _is_untrusted(error: Exception) -> bool:
    """Whether the server has another certificate than we trust, which no waiting changes."""
    return isinstance(error, ConnectionError) and "CERTIFICATE_VERIFY_FAILED" in str(error)


def _first_word(error: Exception) -> str:
    return str(error).partition(" ")[0]
