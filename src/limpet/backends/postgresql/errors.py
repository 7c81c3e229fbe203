"""PostgreSQL's errors: which of them pass, and what each means in our own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from limpet.errors import (
    InvalidURL,
    SchemaTooNew,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreNotFound,
    StoreReadOnly,
    StoreUnavailable,
    TooLarge,
)

if TYPE_CHECKING:
    from limpet.errors import LimpetError

__all__ = [
    "READ_ONLY",
    "NotConnected",
    "OpeningErrors",
    "PostgresErrors",
    "ServerSilent",
    "is_lost",
    "is_undone",
    "translate",
]

#: The code of an error for a write on a standby, or in a session that is set to read-only.
READ_ONLY = "25006"


class ServerSilent(psycopg.OperationalError):
    """The server has said nothing for longer than we wait."""


class NotConnected(psycopg.OperationalError):
    """There was no connection to be had, because of *error*, so nothing was sent."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(*error.args)
        self.error = error


class _Meaning(NamedTuple):
    """What an error means that has one of these codes, or matches these words.

    A server that refuses a connection is known by its words: libpq does not tell the code.
    """

    make: type[LimpetError]
    text: str
    codes: tuple[str, ...] = ()
    words: str | None = None
    passes: bool = False

    def fits(self, code: str, text: str) -> bool:
        """Whether an error is of this kind; of a code, the beginning is enough."""
        if code:
            return code.startswith(self.codes)
        return self.words is not None and re.search(self.words, text) is not None


_MEANINGS = [
    _Meaning(
        StoreUnavailable,
        "{place} is starting or stopping ({text}). Try again in a moment.",
        codes=("57P01", "57P02", "57P03"),
        words=r"is (starting up|shutting down|not yet accepting|in recovery mode)",
        passes=True,
    ),
    _Meaning(
        StoreUnavailable,
        "{place} ended the connection ({text}). Try again.",
        codes=("08", "25P03", "57P05"),
        passes=True,
    ),
    _Meaning(
        StoreUnavailable,
        "{place} has no connection left ({text}). Close some, open the stores with a smaller "
        "pool=, or raise its max_connections.",
        codes=("53300",),
        words="too many (clients|connections)|connection slots",
        passes=True,
    ),
    _Meaning(
        StoreError,
        "{place} did not let us in ({text}). Check user name and password in the URL, and the "
        "server's pg_hba.conf.",
        codes=("28",),
        words="authentication failed|no password supplied|pg_hba.conf|role .* does not exist",
    ),
    _Meaning(
        StoreError,
        "There is no connection to {place} by TLS as the URL asks for it ({text}). Check sslmode, "
        "sslrootcert and the name of the host in the URL, and the certificate of the server.",
        words="certificate|SSL was required|private key|unknown ca",
    ),
    _Meaning(
        StoreUnavailable,
        "{place} has no server of the kind that target_session_attrs asks for ({text}). A standby "
        "can be written when it is promoted.",
        words="session is (not )?read-only|server is (not )?in hot standby",
        passes=True,
    ),
    _Meaning(
        StoreNotFound,
        "There is no such database: {text} ({place}). Check the URL, or create it with createdb.",
        codes=("3D000",),
        words="database .* does not exist",
    ),
    _Meaning(
        StoreError,
        "{place} is behind a pooler that does not keep a session for us ({text}). "
        "Add prepare=false to the URL.",
        codes=("26000", "42P05"),
        words="unsupported startup parameter",
    ),
    _Meaning(
        InvalidURL,
        "{place}: a parameter of the URL cannot be so: {text}.",
        words="invalid .* value|bad value for|unrecognized configuration parameter|invalid port",
    ),
    _Meaning(
        StoreBusy,
        "Another transaction held a row that {place} was to write for longer than the timeout. "
        "Look for it in pg_stat_activity, or open the store with a larger timeout=.",
        codes=("55P03",),
        passes=True,
    ),
    _Meaning(
        StoreBusy,
        "{place} kept giving way to other transactions ({text}). Try again.",
        codes=("40",),
        passes=True,
    ),
    _Meaning(
        StoreUnavailable,
        "{place} took longer than the timeout ({text}). Look for what keeps it busy, or open the "
        "store with a larger timeout=.",
        codes=("57014",),
    ),
    _Meaning(
        StoreFull,
        "There is no room left for {place}, and the write was not kept ({text}). Everything "
        "acknowledged before is safe. Free some space on the server and try again.",
        codes=("53100",),
    ),
    _Meaning(
        StoreReadOnly,
        "{place} cannot be written: it is a standby, or set to read-only. Name the primary "
        "(with several hosts, add target_session_attrs=read-write), or open it with "
        "readonly=True.",
        codes=(READ_ONLY,),
    ),
    _Meaning(
        StoreReadOnly,
        "This user may not do that on {place} ({text}). Let its owner grant it, or create the "
        "schema for you: CREATE SCHEMA … AUTHORIZATION …",
        codes=("42501",),
    ),
    _Meaning(
        StoreNotFound,
        "The tables of the store on {place} are not there ({text}). Was the schema dropped while "
        "it was open? Open the store again.",
        codes=("42P01", "3F000"),
    ),
    _Meaning(
        SchemaTooNew,
        "The tables on {place} are not as this release knows them ({text}). Upgrade limpet, or "
        "restore the schema.",
        codes=("42703", "42804"),
    ),
    _Meaning(TooLarge, "{place} refused a value as too large ({text}).", codes=("54",)),
    _Meaning(
        StoreCorrupt,
        "{place} reports damage: {text}. Before anything else, copy the server's data away; then "
        "see `limpet doctor`, restore a backup of the server, or one of ours with `limpet restore "
        "BACKUP` into an empty schema.",
        codes=("XX001", "XX002", "23505"),
    ),
    _Meaning(
        StoreUnavailable,
        "The disk under {place} failed: {text}. The write may not be there; check the server "
        "before trying again.",
        codes=("58",),
    ),
]

_STARTING = _MEANINGS[0]
_SILENT = _Meaning(
    StoreUnavailable,
    "{place} said nothing for {text}. The server, or the way to it, is stuck; a write may or may "
    "not be there.",
    passes=True,
)
_UNREACHABLE = _Meaning(
    StoreUnavailable,
    "{place} cannot be reached ({text}). Start the server, or check host and port in the URL.",
    passes=True,
)
_FAILED = _Meaning(StoreError, "{place} could not do its work: {text}.")


class PostgresErrors:
    """What psycopg's errors mean, as `limpet.backends.retry` asks. *place* is what ours call it."""

    def __init__(self, place: str) -> None:
        self.place = place

    def passes(self, error: Exception) -> bool:
        """Whether the same call may succeed in a moment."""
        return isinstance(error, psycopg.Error) and _meaning(error).passes

    def unanswered(self, error: Exception) -> bool:
        """Whether the call may have been carried out all the same."""
        return is_lost(error) and not isinstance(error, NotConnected)

    def translated(self, error: Exception, *, writes: bool) -> LimpetError | None:  # noqa: ARG002 - the same for both
        """One of ours for *error*; None for what is no error of psycopg."""
        return translate(error, self.place) if isinstance(error, psycopg.Error) else None


class OpeningErrors(PostgresErrors):
    """The same while a store is opened: a server that is not there is reported at once."""

    def passes(self, error: Exception) -> bool:
        """Whether the server is starting, or somebody else is about to create the same tables."""
        if not isinstance(error, psycopg.Error):
            return False
        meaning = _meaning(error)
        duplicate = error.sqlstate in ("23505", "42P06", "42P07", "42710")
        return duplicate or meaning is _STARTING or (meaning.passes and meaning.make is StoreBusy)


def translate(error: psycopg.Error, place: str) -> LimpetError:
    """*error* as one of ours, with what to do about it."""
    meaning = _meaning(error)
    return meaning.make(meaning.text.format(place=place, text=_line(error)))


def is_lost(error: Exception) -> bool:
    """Whether the connection went away, and perhaps others with it."""
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return error.sqlstate.startswith(("08", "25P03", "57P"))


def is_undone(error: psycopg.Error) -> bool:
    """Whether the database gave way to another transaction."""
    return error.sqlstate is not None and error.sqlstate.startswith("40")


def _line(error: psycopg.Error) -> str:
    """What the driver says, in one line, without its own frame."""
    first = str(error).strip().partition("\n")[0].rstrip(".")
    frame = r"^connection (failed|is bad): (connection to server .*? failed: )?(FATAL: +)?"
    return re.sub(frame, "", first)


def _meaning(error: psycopg.Error) -> _Meaning:
    if isinstance(error, NotConnected):
        error = error.error
    if isinstance(error, ServerSilent):
        return _SILENT
    code, text = error.sqlstate or "", _line(error)
    for meaning in _MEANINGS:
        if meaning.fits(code, text):
            return meaning
    return _UNREACHABLE if is_lost(error) else _FAILED
