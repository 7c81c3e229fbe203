"""State: a document that is saved again and again, with its history, its versions and its type."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

from msgspec import Struct, structs

from limpet.backends.contract import UNSET, Head, UnsetType
from limpet.core.codec import convert, fresh
from limpet.core.journal import listed_fields
from limpet.core.runtime import SyncWrapper, sync, sync_wrapped
from limpet.errors import ChangedWarning, Conflict, StateChanged, outside
from limpet.states.changes import FingerprintChange, compare
from limpet.states.drafts import Draft, check_text
from limpet.states.kept import Kept, Marks, StateVersion
from limpet.states.migrations import check_version
from limpet.states.migrations import migrations as all_migrations
from limpet.states.reading import Reader
from limpet.states.upgrading import Upgrader, type_of
from limpet.states.words import told
from limpet.states.writing import Writer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from limpet.core.scope import Scope
    from limpet.errors import StateNotFound
    from limpet.states.migrations import Migrations

    OnChange = Literal["warn", "raise", "ignore"] | Callable[[FingerprintChange, Any], Any]

    class Terms(TypedDict, total=False):
        """What `load` takes besides, whatever it returns."""

        fingerprint: Mapping[str, Any] | None
        on_change: OnChange


__all__ = ["KIND", "AsyncState", "FingerprintChange", "State", "StateInfo", "StateVersion"]

KIND = "state"

D = TypeVar("D")
T = TypeVar("T")

#: How often somebody looks whose turn it is, while another save of the same object is under way.
PAUSE = 0.001


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
        return cls(
            **listed_fields(head),
            version=Marks.of(head).version,
        )


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
        self.type = check_text(type, "type")
        self._scope = scope
        self._journal = journal = scope.journal(KIND, id, labels=labels, ttl=ttl)
        self._migrations = migrations
        self._ask = journal.runtime.invoke
        self._reader = Reader(journal)
        self._writer = Writer(journal, self._reader)
        known = all_migrations if migrations is None else migrations
        self._upgrader = Upgrader(self.id, type, known, self._writer.codec, self._ask)
        self._turn = _Turn(journal.runtime.sleep)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, version={self.version})"

    @property
    def id(self) -> str:
        """What the state is known by."""
        return self._journal.key.id

    @property
    def position(self) -> int | None:
        """Where the state was when it was last loaded or saved here; 0: nowhere, None: not yet."""
        return self._writer.position

    # -- saving --------------------------------------------------------------------------------

    async def save(
        self,
        document: Any,
        *,
        fingerprint: Mapping[str, Any] | None = None,
        expect: int | None = None,
        note: str | None = None,
    ) -> int:
        """Save *document*, or what its ``save_state()`` returns; its position in the history.

        Durable on return. What is stored is what changed since the last save; if nothing did,
        nothing is, and the position is the old one. If somebody else has saved since this object
        last loaded or saved, `Conflict` is raised; *expect* is another position to hold it to, 0
        for a state that must be new. *fingerprint*: what the state depends on (see `check`).
        *note*: a word about it for the history.
        """
        note = check_text(note, "note")
        _check_position(expect, "expect")
        async with self._turn:
            if callable(getattr(document, "save_state", None)):
                document = await self._ask(document.save_state)
            return await self._save(document, fingerprint=fingerprint, expect=expect, note=note)

    async def _save(self, document: Any, *, fingerprint: Any, **conditions: Any) -> int:
        codec = self._writer.codec
        draft = Draft(document, codec)
        return await self._writer.save(
            draft,
            version=self.version,
            type_=self.type,
            fingerprint=_plain_fingerprint(fingerprint, codec),
            **conditions,
        )

    # -- loading -------------------------------------------------------------------------------

    @overload
    async def load(self, into: Any = None, *, as_: type[T], **terms: Unpack[Terms]) -> T: ...
    @overload
    async def load(
        self, into: Any = None, *, as_: type[T], default: D, **terms: Unpack[Terms]
    ) -> T | D: ...
    @overload
    async def load(
        self, into: Any = None, *, as_: Any = None, default: Any = UNSET, **terms: Unpack[Terms]
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
        _check_on_change(on_change)
        async with self._turn:
            kept = await self._writer.newest()
            if kept is not None:
                kept = structs.replace(kept, document=fresh(kept.document))
        if kept is None:
            if default is UNSET:
                raise self._reader.not_found()
            return default
        # No longer in turn: functions of the user's may well save it.
        document = await self._upgrader.document(kept, self.version)
        await self._check_type(document, into)
        now = _plain_fingerprint(fingerprint, self._writer.codec)
        change = compare(kept.about.fingerprint, now, document)
        if change is not None:
            document = await self._changed(change, document, on_change)
        if into is not None:
            await self._ask(_loader(into), fresh(document))
        return document if as_ is None else convert(document, as_)

    async def _check_type(self, document: Any, into: Any) -> None:
        """That *into* takes such a state: some take any, and forget what they had."""
        found = type_of(document)
        if self.type is None and found is not None and hasattr(into, "save_state"):
            own = type_of(await self._ask(into.save_state))
            self._upgrader.check_type(found, own)

    async def _changed(self, change: FingerprintChange, document: Any, on_change: OnChange) -> Any:
        if callable(on_change):
            document = await self._ask(on_change, change, document)
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
        kept = await self._reader.at(when)
        version = self.version if migrate else kept.about.version
        document = await self._upgrader.document(kept, version)
        return document if as_ is None else convert(document, as_)

    async def check(self, fingerprint: Mapping[str, Any]) -> FingerprintChange | None:
        """What differs between what the newest save depends on and *fingerprint*; None: nothing.

        A fingerprint is a dict: ``name``, ``type``, ``prompt`` and ``model``, ``tools`` (a list of
        names or schemas, or a dict of them), ``members`` (the fingerprints of a team's, by name),
        and what else counts.
        """
        kept = await self._reader.newest()
        if kept is None:
            raise self._reader.not_found()
        now = _plain_fingerprint(fingerprint, self._writer.codec)
        return compare(kept.about.fingerprint, now, kept.document)

    # -- history -------------------------------------------------------------------------------

    async def history(self, *, last: int | None = None) -> list[StateVersion]:
        """Every save, oldest first, or the *last* few: position, time, version, sizes, note."""
        _check_position(last, "last")
        if last is not None and last < 1:
            msg = f"history(last={last}): say how many, from 1 up; without it you get all of them."
            raise ValueError(msg)
        return await self._reader.history(last)

    async def diff(self, a: int | datetime, b: int | datetime | None = None) -> str:
        """What changed from the save *a* to the save *b*, or to the newest, for people to read.

        What was taken away has a ``-``, what was added a ``+``, each under the place where it is.
        """
        before = await self._reader.at(a)
        after = await self._reader.newest() if b is None else await self._reader.at(b)
        return told(before, after or before)

    async def restore(self, position: int | datetime, *, expect: int | None = None) -> int:
        """Save what was saved at *position* again, as it was; the position that it has now.

        Nothing is lost by that: what came between stays in the history.
        """
        _check_position(expect, "expect")
        async with self._turn:
            kept = await self._reader.at(position)
            return await self._writer.save(
                Draft(kept.document, self._writer.codec),
                version=kept.about.version,
                type_=kept.about.type,
                fingerprint=kept.about.fingerprint,
                note=f"restored from {kept.position}",
                expect=expect,
                back=True,
            )

    async def fork(self, id: str, *, at: int | datetime | None = None) -> AsyncState:
        """A new state *id* that begins with this one as it is, or as it was at a position or time.

        The two are then independent. `Conflict` if there is another state with that id.
        """
        kept = await self._reader.newest() if at is None else await self._reader.at(at)
        head = await self._journal.head()
        if kept is None or head is None:
            raise self._reader.not_found()
        target = AsyncState(
            self._scope,
            id,
            version=self.version,
            type=self.type,
            ttl=self._journal.ttl,
            migrations=self._migrations,
        )
        await target._begin(kept, head, f"forked from {self.id} at {kept.position}")
        return target

    async def _begin(self, kept: Kept, head: Head, note: str) -> None:
        """Be a new state with the document of *kept*; a second time it does no harm."""
        writer = self._writer
        self._journal.labels = {**head.labels}
        if self._journal.ttl is UNSET:
            self._journal.ttl = None if head.ttl is None else head.ttl / 1e6
        try:
            await writer.save(
                Draft(kept.document, writer.codec),
                version=kept.about.version,
                type_=kept.about.type,
                fingerprint=kept.about.fingerprint,
                note=note,
                expect=0,
            )
        except Conflict as error:
            there = await writer.newest()
            if there is not None and (there.content, there.about.note) == (kept.content, note):
                return
            msg = f"There is a state {self.id!r} already. Fork to another id, or delete it first."
            raise Conflict(msg, error.expected, error.actual) from error
        finally:
            self._journal.labels = UNSET

    async def compact(self, *, before: int | None = None) -> int:
        """Forget the saves before position *before*, or all that the newest does not need.

        Returns how many went. One that a later save goes back to stays, and some after it with it.
        """
        _check_position(before, "before")
        head = await self._journal.head()
        if head is None:
            raise self._reader.not_found()
        kept = await (self._reader.newest(head) if before is None else self._reader.at(before))
        return 0 if kept is None else await self._journal.compact(kept.copy)

    async def label(self, /, **labels: str | None) -> None:
        """Set labels; None removes one. They are what the store's lists find by."""
        if not await self._journal.label(labels):
            raise self._not_found()

    async def expire(self, ttl: float | None) -> None:
        """Let it end *ttl* seconds after it was last added to, from now on; None: never."""
        if not await self._journal.expire(ttl):
            raise self._not_found()

    # -- the rest ------------------------------------------------------------------------------

    async def delete(self) -> bool:
        """Remove the state and its history. False if it was not there."""
        async with self._turn:
            self._writer.see(None)
            return await self._journal.delete()

    async def info(self) -> StateInfo:
        """Labels, size, times, version and position."""
        head = await self._journal.head()
        if head is None:
            raise self._reader.not_found()
        return StateInfo.of(head)

    def _not_found(self) -> StateNotFound:
        return self._reader.not_found()


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
        """Where the state was when it was last loaded or saved here; 0: nowhere, None: not yet."""
        return self._core.position

    @property
    def version(self) -> int:
        """The version that this program saves, and is given."""
        return self._core.version

    @property
    def type(self) -> str | None:
        """The type that was asked for."""
        return self._core.type

    save = sync(AsyncState.save)
    load = sync(AsyncState.load)
    at = sync(AsyncState.at)
    check = sync(AsyncState.check)
    history = sync(AsyncState.history)
    diff = sync(AsyncState.diff)
    restore = sync(AsyncState.restore)
    compact = sync(AsyncState.compact)
    delete = sync(AsyncState.delete)
    info = sync(AsyncState.info)
    label = sync(AsyncState.label)
    expire = sync(AsyncState.expire)
    fork = sync_wrapped(AsyncState.fork, lambda core: State(core))  # noqa: PLW0108 - not made yet


class _Turn:
    """Lets one save or load of an object at a time go on, as they came, on either face."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._sleep = sleep
        self._queue: deque[_Caller] = deque()  # safe between threads, as a list is not

    async def __aenter__(self) -> None:
        mine = _Caller()
        self._queue.append(mine)
        try:
            while (first := self._queue[0]) is not mine:
                first.check_other()
                await self._sleep(PAUSE)
        except BaseException:
            self._queue.remove(mine)
            raise

    async def __aexit__(self, *raised: object) -> None:
        self._queue.popleft()


class _Caller:
    """A thread, or a task of asyncio's in it, that waits for its turn or has it."""

    def __init__(self) -> None:
        self._thread, self._task = get_ident(), _task()

    def check_other(self) -> None:
        """That it is not who is asking, and would wait for itself."""
        if self._thread == get_ident() and self._task is _task():
            msg = (
                "A state was saved or loaded within the save_state() that it was waiting for, and "
                "would have waited for ever. Do so before, or after."
            )
            raise RuntimeError(msg)


def _task() -> Any:
    asyncio = sys.modules.get("asyncio")  # who has not imported it has no tasks
    try:
        return asyncio and asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return None


def _check_position(number: Any, name: str) -> None:
    if number is not None and number.__class__ is not int:
        raise TypeError(f"{name} is a whole number, not {number!r:.80}.")


def _check_on_change(on_change: Any) -> None:
    if not callable(on_change) and on_change not in ("warn", "raise", "ignore"):
        msg = f'on_change is "warn", "raise", "ignore" or a function, not {on_change!r:.80}.'
        raise ValueError(msg)


def _plain_fingerprint(fingerprint: Any, codec: Any) -> dict[str, Any] | None:
    if fingerprint is None:
        return None
    if not isinstance(fingerprint, Mapping):
        msg = (
            f"A fingerprint is a dict, with name, prompt, tools and so on; not {fingerprint!r:.80}."
        )
        raise TypeError(msg)
    draft = Draft(dict(fingerprint), codec, "fingerprint")
    draft.make_plain()
    return draft.document  # type: ignore[no-any-return]


def _loader(into: Any) -> Callable[..., Any]:
    load = getattr(into, "load_state", None)
    if callable(load):
        return load  # type: ignore[no-any-return]
    msg = (
        f"load(into=…) takes an object with load_state(), and {type(into).__name__} has none. "
        "For a document as a type of yours: load(as_=…)."
    )
    raise TypeError(msg)
