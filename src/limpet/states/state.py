"""State: a document that is saved again and again, with its history, its versions and its type."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

from msgspec import Struct, structs

from limpet.backends.contract import UNSET, Head, UnsetType
from limpet.core.codec import convert, fresh, plain
from limpet.core.journal import listed_fields
from limpet.core.runtime import SyncWrapper, sync, sync_wrapped
from limpet.errors import ChangedWarning, Conflict, NotStorable, StateChanged, outside
from limpet.states.diff import describe
from limpet.states.fingerprint import FingerprintChange, compare
from limpet.states.format import KIND, SaveInfo, Snapshot, StateMeta, StateVersion, type_of
from limpet.states.migrations import Upgrader, check_version
from limpet.states.migrations import migrations as all_migrations
from limpet.states.reader import Reader
from limpet.states.writer import Draft, Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.backends.contract import Key
    from limpet.core.calls import Call
    from limpet.core.journal import Entry
    from limpet.core.scope import Scope
    from limpet.states.migrations import Migrations

    OnChange = Literal["warn", "raise", "ignore"] | Callable[[FingerprintChange, Any], Any]

    class LoadOptions(TypedDict, total=False):
        """What `load` takes besides, whatever it returns."""

        fingerprint: Mapping[str, Any] | None
        on_change: OnChange


__all__ = ["KIND", "AsyncState", "FingerprintChange", "State", "StateInfo", "StateVersion"]

D = TypeVar("D")
T = TypeVar("T")

REENTERED = (
    "A state was saved or loaded within the save_state() that it was waiting for, and would have "
    "waited for ever. Do so before, or after."
)


class StateInfo(Struct, frozen=True):
    """A state in a list: everything about it but its document."""

    id: str
    position: int
    version: int | None  # of the newest save
    size: int
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    labels: dict[str, str]

    @classmethod
    def of(cls, head: Head) -> StateInfo:
        """The view of a journal's *head*."""
        return cls(**listed_fields(head), version=StateMeta.of(head).version)


class AsyncState:
    """The state of one agent, team or object; see `State`."""

    def __init__(
        self,
        scope: Scope,
        id: str,
        *,
        version: int = 1,
        type: str | None = None,
        labels: Mapping[str, str | None] | UnsetType = UNSET,
        ttl: float | UnsetType | None = UNSET,
        migrations: Migrations | None = None,
    ) -> None:
        self.version = check_version(version)
        self.type = _check_text(type, "type")
        self.scope = scope  # for what is built upon states
        self._journal = journal = scope.journal(KIND, id, labels=labels, ttl=ttl)
        self._invoke = scope.runtime.invoke
        self._lock = scope.runtime.lock(REENTERED)
        self._migrations = migrations
        known = all_migrations if migrations is None else migrations
        self._upgrader = Upgrader(self.id, type, known, journal.codec, self._invoke)
        self._reader = Reader(journal)
        self._writer = Writer(journal, self._reader)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, version={self.version})"

    @property
    def id(self) -> str:
        """What the state is known by."""
        return self._journal.key.id

    @property
    def key(self) -> Key:
        """That of its journal."""
        return self._journal.key

    @property
    def position(self) -> int | None:
        """Its position when last loaded or saved here; 0: there was none, None: not loaded yet."""
        seen = self._writer.seen
        return None if seen is None else seen.expect.seq

    async def is_current(self) -> bool:
        """Whether nobody has written to it since it was last loaded or saved here."""
        return await self._writer.is_current()

    # -- saving --------------------------------------------------------------------------------

    async def save(
        self,
        document: Any,
        *,
        fingerprint: Mapping[str, Any] | None = None,
        expect: int | None = None,
        note: str | None = None,
        calls: Mapping[str, Call] | None = None,
    ) -> int:
        """Save *document*, or what its ``save_state()`` returns; its position in the history.

        Durable on return. What is stored is what changed since the last save; if nothing did,
        nothing is, and the position is the old one. If somebody else has saved since this object
        last loaded or saved, `Conflict` is raised; *expect* is another position to expect, 0
        for a state that must be new. *fingerprint*: what the state depends on (see `check`).
        *note*: a comment for the history. *calls*: of an agent's tools, those that have begun
        and not ended; without, they are what they were.
        """
        note = _check_text(note, "note")
        _check_position(expect, "expect")
        return await self._lock.run(self._save, document, fingerprint, note, expect, calls)

    async def _save(
        self,
        document: Any,
        fingerprint: Mapping[str, Any] | None,
        note: str | None,
        expect: int | None,
        calls: Mapping[str, Call] | None,
    ) -> int:
        if callable(getattr(document, "save_state", None)):
            document = await self._invoke(document.save_state)
        draft = Draft(self.scope.redacted(document), self._journal.codec)
        note = self.scope.redacted(note)
        info = SaveInfo(self.version, self.type, self._plain(fingerprint), note)
        return await self._writer.save(draft, info, expect=expect, calls=calls)

    def _plain(self, fingerprint: Any) -> dict[str, Any] | None:
        """A *fingerprint* as it is stored."""
        if fingerprint is None:
            return None
        if not isinstance(fingerprint, Mapping):
            msg = (
                "A fingerprint is a dict, with name, prompt, tools and so on; not "
                f"{fingerprint!r:.80}."
            )
            raise TypeError(msg)
        found = self.scope.redacted(dict(fingerprint))
        draft = Draft(found, self._journal.codec, "fingerprint")
        draft.make_plain()
        return draft.document  # type: ignore[no-any-return]

    # -- loading -------------------------------------------------------------------------------

    @overload
    async def load(
        self, into: Any = None, *, as_: type[T], **options: Unpack[LoadOptions]
    ) -> T: ...
    @overload
    async def load(
        self, into: Any = None, *, as_: type[T], default: D, **options: Unpack[LoadOptions]
    ) -> T | D: ...
    @overload
    async def load(
        self,
        into: Any = None,
        *,
        as_: Any = None,
        default: Any = UNSET,
        **options: Unpack[LoadOptions],
    ) -> Any: ...
    async def load(
        self,
        into: Any = None,
        *,
        as_: Any = None,
        default: Any = UNSET,
        fingerprint: Mapping[str, Any] | None = None,
        on_change: OnChange = "warn",
    ) -> Any:
        """The newest document, at this version; `StateNotFound` if there is none and no *default*.

        A document of an older version goes through the migrations that lead to this one; nothing
        is written by that. *into* is an object whose ``load_state`` is to have it; *as_* a type
        that it is to come back as. `WrongState` if it is of another type than the one asked for.

        *fingerprint* is what it will depend on now. If it was saved by something else, *on_change*
        says what then: ``"warn"``, ``"raise"`` `StateChanged`, ``"ignore"``, or a function that
        gets the `FingerprintChange` and the document and returns the document.
        """
        if not callable(on_change) and on_change not in ("warn", "raise", "ignore"):
            msg = f'on_change is "warn", "raise", "ignore" or a function, not {on_change!r:.80}.'
            raise ValueError(msg)
        snapshot = await self._lock.run(self._newest)
        if snapshot is None:
            if default is UNSET:
                raise self._reader.not_found()
            return default
        # The lock is free again: functions of the user's may well save it.
        document = await self._upgrader.upgrade(snapshot, self.version)
        found = type_of(document)
        if self.type is None and found is not None and hasattr(into, "save_state"):
            # Some objects take any state, and forget what they had.
            own = type_of(await self._invoke(into.save_state))
            self._upgrader.check_type(found, own)
        change = compare(snapshot.info.fingerprint, self._plain(fingerprint), document)
        if change is not None:
            document = await self._changed(change, document, on_change)
        if into is not None:
            load_state = getattr(into, "load_state", None)
            if not callable(load_state):
                msg = (
                    f"load(into=…) takes an object with load_state(), and {type(into).__name__} "
                    "has none. For a document as a type of yours: load(as_=…)."
                )
                raise TypeError(msg)
            await self._invoke(load_state, fresh(document))
        return document if as_ is None else convert(document, as_)

    async def _newest(self) -> Snapshot | None:
        """The newest save, with a document that is the caller's own."""
        snapshot = await self._writer.newest()
        if snapshot is None:
            return None
        return structs.replace(snapshot, document=fresh(snapshot.document))

    async def _changed(self, change: FingerprintChange, document: Any, on_change: OnChange) -> Any:
        """The document to load where it was saved by something else than what is to have it."""
        if callable(on_change):
            document = await self._invoke(on_change, change, document)
            if document is None:
                raise TypeError("on_change returned None: it returns the document to be loaded.")
            return document
        msg = f"State {self.id!r} was saved by what is another now: {change}."
        if on_change == "raise":
            msg = f"{msg} Load it with on_change=…, or save it anew."
            raise StateChanged(msg, change)
        if on_change == "warn":
            import warnings  # noqa: PLC0415 - rarely needed

            warnings.warn(ChangedWarning(msg), stacklevel=outside())
        return document

    @overload
    async def at(self, when: int | datetime, *, as_: type[T], migrate: bool = True) -> T: ...
    @overload
    async def at(self, when: int | datetime, *, as_: Any = None, migrate: bool = True) -> Any: ...
    async def at(self, when: int | datetime, *, as_: Any = None, migrate: bool = True) -> Any:
        """The document at a position, or as it was at a time; brought to this version.

        With *migrate* off it comes as it was saved, whatever its version.
        """
        snapshot = await self._reader.at(when)
        version = self.version if migrate else snapshot.info.version
        document = await self._upgrader.upgrade(snapshot, version)
        return document if as_ is None else convert(document, as_)

    async def check(self, fingerprint: Mapping[str, Any]) -> FingerprintChange | None:
        """What differs between what the newest save depends on and *fingerprint*; None: nothing.

        A fingerprint is a dict: ``name``, ``type``, ``prompt`` and ``model``, ``tools`` (a list of
        names or schemas, or a dict of them), ``members`` (the fingerprints of a team's, by name),
        and what else counts.
        """
        _, newest = await self._reader.newest()
        return compare(newest.info.fingerprint, self._plain(fingerprint), newest.document)

    # -- history -------------------------------------------------------------------------------

    async def history(
        self, *, last: int | None = None, before: int | None = None
    ) -> list[StateVersion]:
        """Every save, oldest first, or the *last* few: position, time, version, sizes, note.

        With *before*, those before that position: so a long history is read page by page.
        """
        _check_position(last, "last")
        _check_position(before, "before")
        if last is not None and last < 1:
            msg = f"history(last={last}): say how many, from 1 up; without it you get all of them."
            raise ValueError(msg)
        return await self._reader.history(last, before)

    async def diff(self, a: int | datetime, b: int | datetime | None = None) -> str:
        """What changed from the save *a* to the save *b*, or to the newest, for people to read.

        What was removed has a ``-``, what was added a ``+``, each under the place where it is.
        """
        before = await self._reader.at(a)
        after = await self._reader.at(b) if b is not None else (await self._reader.newest())[1]
        return describe(before, after)

    async def other_entries(self, after: int | None = None) -> list[Entry]:
        """What others have recorded in the journal: entries that are no saves.

        Those behind position *after*; without it, those behind the newest save.
        """
        return await self._reader.other_entries(after)

    async def restore(self, position: int | datetime, *, expect: int | None = None) -> int:
        """Save what was saved at *position* again, as it was; the position that it has now.

        Nothing is lost by that: what came between stays in the history.
        """
        _check_position(expect, "expect")
        return await self._lock.run(self._restore, position, expect)

    async def _restore(self, position: int | datetime, expect: int | None) -> int:
        snapshot = await self._reader.at(position)
        info = structs.replace(snapshot.info, note=f"restored from {snapshot.position}")
        draft = Draft(self.scope.redacted(snapshot.document), self._journal.codec)
        return await self._writer.save(draft, info, expect=expect, again=True)

    async def fork(self, id: str, *, at: int | datetime | None = None) -> AsyncState:
        """A new state *id* that begins with this one as it is, or as it was at a position or time.

        The two are then independent. `Conflict` if there is another state with that id. Calls that
        are in doubt in the newest save are so in a fork of it, too.
        """
        head, snapshot = await self._reader.newest()
        open_calls = StateMeta.of(head).calls.items()
        calls = {id_: structs.replace(call, epoch=0) for id_, call in open_calls}
        if at is not None:
            newest, snapshot = snapshot.position, await self._reader.at(at)
            calls = calls if snapshot.position == newest else {}
        fork = AsyncState(
            self.scope,
            id,
            version=self.version,
            type=self.type,
            ttl=self._journal.ttl,
            migrations=self._migrations,
        )
        note = f"forked from {self.id} at {snapshot.position}"
        info = structs.replace(snapshot.info, note=note)
        draft = Draft(snapshot.document, self._journal.codec)
        ttl: float | UnsetType | None = UNSET
        if self._journal.ttl is UNSET:
            ttl = None if head.ttl is None else head.ttl / 1e6
        try:
            await fork._writer.save(
                draft, info, expect=0, again=True, labels=dict(head.labels), ttl=ttl, calls=calls
            )
        except Conflict as error:
            there = await fork._writer.newest()
            if there is None or there.digest != info.digest(draft.content.text):
                msg = f"There is a state {id!r} already. Fork to another id, or delete it first."
                raise Conflict(msg, error.expected, error.actual) from error
            # It is this very fork: it was made before, by a call that was not answered.
        return fork

    async def compact(self, *, before: int | None = None) -> int:
        """Forget the saves before position *before*, or all that the newest does not need.

        Returns how many were deleted. Saves that a later one is built on stay.
        """
        _check_position(before, "before")
        if before is None:
            _, snapshot = await self._reader.newest()
        else:
            snapshot = await self._reader.at(before)
        return await self._journal.compact(snapshot.copy)

    async def label(self, /, **labels: str | None) -> None:
        """Set labels; None removes one. Lists can be filtered by them."""
        if not await self._journal.label(labels):
            raise self._reader.not_found()

    async def expire(self, ttl: float | None) -> None:
        """Let it end *ttl* seconds after it was last added to, from now on; None: never."""
        if not await self._journal.expire(ttl):
            raise self._reader.not_found()

    # -- the rest ------------------------------------------------------------------------------

    async def delete(self) -> bool:
        """Remove the state and its history. False if it was not there."""
        return await self._lock.run(self._writer.delete)

    async def info(self) -> StateInfo:
        """Labels, size, times, version and position."""
        head = await self._journal.head()
        if head is None:
            raise self._reader.not_found()
        return StateInfo.of(head)


class State(SyncWrapper[AsyncState]):
    """The state of one agent, team or object: a document that is saved whole, and stored in part.

    Documents are what JSON has; dataclasses and models become that, and come back by ``as_=``.

    >>> import limpet
    >>> with limpet.open("memory:") as store:
    ...     state = store.state("support", version=1)
    ...     state.save({"tickets": [7]})
    ...     state.save({"tickets": [7, 8]})
    ...     state.load(), state.at(1)
    1
    2
    ({'tickets': [7, 8]}, {'tickets': [7]})
    """

    @property
    def id(self) -> str:
        """What the state is known by."""
        return self._core.id

    @property
    def position(self) -> int | None:
        """Its position when last loaded or saved here; 0: there was none, None: not loaded yet."""
        return self._core.position

    @property
    def version(self) -> int:
        """The version that this program saves, and is given."""
        return self._core.version

    @property
    def type(self) -> str | None:
        """The type that was asked for."""
        return self._core.type

    is_current = sync(AsyncState.is_current)
    save = sync(AsyncState.save)
    load = sync(AsyncState.load)
    at = sync(AsyncState.at)
    check = sync(AsyncState.check)
    history = sync(AsyncState.history)
    diff = sync(AsyncState.diff)
    other_entries = sync(AsyncState.other_entries)
    restore = sync(AsyncState.restore)
    compact = sync(AsyncState.compact)
    delete = sync(AsyncState.delete)
    info = sync(AsyncState.info)
    label = sync(AsyncState.label)
    expire = sync(AsyncState.expire)
    fork = sync_wrapped(AsyncState.fork, lambda core: State(core))  # noqa: PLW0108 - not made yet


def _check_text(text: Any, name: str) -> str | None:
    """*text*, if it is text, or None: what is stored as anything else could not be read again."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise NotStorable(f"{name} is text, not {text!r:.80}.", name)
    return plain(text, name)  # type: ignore[no-any-return]


def _check_position(number: Any, name: str) -> None:
    if number is not None and number.__class__ is not int:
        raise TypeError(f"{name} is a whole number, not {number!r:.80}.")
