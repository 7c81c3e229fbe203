"""Calls that are made once each, for integrations that have no task to make them steps of.

Each call is recorded before it is made and when it has ended, in a journal of its own kind. Those
that began and did not end are in the meta of that journal's head, where `limpet.core.calls` finds
what is in doubt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import Struct, structs

from limpet.backends.contract import UNSET, UnsetType
from limpet.core.calls import BEGAN, RESOLVED, SKIPPED, Call, Ledger, Resolution
from limpet.core.ids import name_fields
from limpet.core.meta import Meta
from limpet.errors import CallsInDoubt, Conflict, Unreadable, besides

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from limpet.core.journal import Entry
    from limpet.core.scope import Scope

__all__ = ["RecordedCalls"]

# Entry types, beside those of calls: BEGAN and RESOLVED, of limpet.core.calls.
ENDED = "ended"  # it has returned, and this is what
FORGOTTEN = "forgotten"  # nothing: it stands where all that was before has been deleted
FAILED = "failed"  # it has raised: whether it happened is not known

#: Seconds between two looks at whether calls are still running.
WAIT_AGAIN = 0.01


class _Ended(Struct):
    id: str
    result: Any = None


class _Failed(Struct):
    id: str
    error: str


_BODIES: dict[str, Any] = {BEGAN: Call, ENDED: _Ended, FAILED: _Failed, RESOLVED: Resolution}


class RecordedCalls:
    """Calls that are made once each, in the journal *id* of some *kind*, which is theirs alone.

    Within its block one process at a time makes them, several side by side if it likes::

        async with RecordedCalls(store.scope, "toybot", "alice") as calls:
            await calls.make("c1", send, "Hello")

    The block is a lease of *lease* seconds that renews itself; `LeaseHeld` if another process is in
    it for longer than *wait* seconds. Its end waits for the calls that are still running. *ttl*
    seconds after the last call, the journal expires.
    """

    def __init__(
        self,
        scope: Scope,
        kind: str,
        id: str,
        *,
        lease: float = 60,
        wait: float = 0,
        ttl: float | UnsetType | None = UNSET,
    ) -> None:
        name_fields(kind, "id", "name", "agent", "policy", "of", "by", "how")
        self._scope = scope
        self._journal = scope.journal(kind, id, ttl=ttl)
        self._lock = scope.lock(kind, id, lease, wait=wait)
        self._writing = scope.runtime.lock("A recorded call within the record of another one.")
        self._forget()

    def _forget(self, incarnation: str | None = None) -> None:
        self._incarnation = incarnation
        self._position = 0
        self._calls = Ledger()
        #: Those that have begun, as they did last.
        self._begun: dict[str, Call] = {}
        self._results: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._journal.key.kind!r}, {self._journal.key.id!r})"

    async def __aenter__(self) -> Self:
        """Take the lease, and read what has been made."""
        await self._lock.__aenter__()
        try:
            # Another process may have been here, and the journal may be a new one.
            head = await self._journal.head()
            if head is None or head.incarnation != self._incarnation:
                self._forget(None if head is None else head.incarnation)
            if head is not None and head.seq > self._position:
                await self._catch_up()
            self._calls.abandon()  # what began before is not running: the lease is ours
        except BaseException:
            await self._lock.release()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for what is running, and give up the lease: what has not ended is in doubt now."""
        try:
            while self._calls.running:  # `asyncio.gather` leaves them behind when one raises
                await self._scope.runtime.sleep(WAIT_AGAIN)
        finally:
            await self._lock.__aexit__(kind, error, trace)

    async def make(
        self, id: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call *function*, unless the call *id* was made before; what it returned.

        *id* names this call: the same after a restart, and another for each other call. A person
        may have said what it returned, or to go on without it: then this returns `SKIPPED`.

        If it began and did not end, or ended with an exception, nobody knows whether it happened:
        `CallsInDoubt`, until `Store.resolve` says so. A function that knows that nothing happened
        returns that, instead of raising. `Conflict`, if a call of this id is running here.
        """
        name = getattr(function, "__name__", type(function).__name__)
        if not await self.begin(Call(id, name)):
            return self._results[id]
        try:
            result = await self._scope.runtime.invoke(function, *args, **kwargs)
            await self.end(id, result)
        except Exception as error:
            # Only what is an error of the call: a process that is being ended writes nothing more.
            with besides(error, f"it could not be recorded that the call {id!r} has failed"):
                await self.fail(id, error)
            raise
        finally:
            self.leave(id)
        return result

    # -- the parts of `make`, for who makes a call in another way ----------------------------------

    async def begin(self, call: Call, *, again: bool = False) -> bool:
        """Record that *call* begins; False if there is a result.

        `CallsInDoubt`, if it is in doubt, unless it may be made *again*; `Conflict`, if it is
        running. Then comes its `end`, or that it did `fail`, and in any case `leave`.
        """
        return await self._writing.run(self._begin, call, again)

    async def end(self, id: str, result: Any) -> None:
        """Record what a call has returned, or what is known of it otherwise."""
        await self._writing.run(self._write, ENDED, _Ended(id, result), None)

    async def fail(self, id: str, error: Exception) -> None:
        """Record that a call has raised: whether it happened is not known."""
        failed = _Failed(id, f"{type(error).__name__}: {error}")
        call = structs.replace(self._calls.open.get(id, Call(id)), error=failed.error)
        await self._writing.run(self._write, FAILED, failed, call)

    async def undo(self, id: str, by: str) -> None:
        """Record that a call that began has done nothing, as *by* knows."""
        await self._writing.run(self._write, RESOLVED, Resolution(id, "retry", by=by), None)

    def leave(self, id: str) -> None:
        """It is not running any more, whatever came of it."""
        self._calls.running.discard(id)

    async def doubtful(self, id: str) -> Call | None:
        """The call *id*, if it is in doubt; None if it has a result, runs, or is unknown."""
        return await self._writing.run(self._doubtful, id)

    async def _doubtful(self, id_: str) -> Call | None:
        if id_ in self._calls and id_ not in self._calls.running:
            await self._catch_up()  # somebody may have resolved it
        return None if id_ in self._calls.running else self._calls.open.get(id_)

    def attempts(self, id: str) -> int:
        """How often the call *id* has begun."""
        return self._begun[id].attempt if id in self._begun else 0

    def __contains__(self, id: object) -> bool:
        """Whether the call *id* has a result."""
        return id in self._results

    def result(self, id: str) -> Any:
        """What the call *id* has returned."""
        return self._results[id]

    async def forget(self, gone: Callable[[str], bool]) -> None:
        """Delete what has ended of calls that were part of something that is *gone*, for good.

        Within the block. What is in doubt stays, whatever it was part of.
        """
        await self._writing.run(self._forget_ended, gone)

    async def _forget_ended(self, gone: Callable[[str], bool]) -> None:
        while True:
            await self._catch_up()
            known = {**self._begun}
            stay = {
                id_: call
                for id_, call in known.items()
                if id_ in self._calls or (id_ in self._results and not gone(call.of))
            }
            if len(stay) == len(known):
                return
            # What stays is written anew, and all that is before it compacted away. The journal is
            # not deleted, though nothing stays: the lease would go with it.
            entries = [one for call in stay.values() for one in self._entries_of(call)]
            entries = entries or [(FORGOTTEN, {})]
            begin = self._position + 1
            try:
                self._position = await self._journal.append(
                    *entries, expect=self._position, lease=self._lock.lease
                )
            except Conflict:  # a person has resolved one
                continue
            await self._journal.compact(begin)
            for id_ in known.keys() - stay.keys():
                del self._begun[id_]
                self._results.pop(id_, None)
            return

    def _entries_of(self, call: Call) -> list[tuple[str, Any]]:
        """What says of a call what is known of it."""
        found: list[tuple[str, Any]] = [(BEGAN, structs.asdict(call))]
        if call.id in self._calls:
            error = self._calls.open[call.id].error
            if error is not None:
                found.append((FAILED, {"id": call.id, "error": error}))
        elif self._results[call.id] is SKIPPED:
            found.append((RESOLVED, {"id": call.id, "how": "skip"}))
        else:
            found.append((ENDED, {"id": call.id, "result": self._results[call.id]}))
        return found

    async def _begin(self, call: Call, again: bool) -> bool:  # noqa: FBT001 - see `begin`
        id_ = call.id
        doubtful = await self._doubtful(id_)
        if id_ in self._results:
            return False
        kind, where = self._journal.key.kind, self._journal.key.id
        if id_ in self._calls.running:
            msg = f"The call {id_!r} of {kind} {where!r} is running. Each call needs its own id."
            raise Conflict(msg, self._position, self._position)
        if doubtful is not None and not again:
            command = self._scope.command("resolve", f"{kind}/{where}", id_, "done")
            msg = (
                f"{doubtful.title} of {kind} {where!r} may have happened or not: "
                f"{doubtful.error or 'its process ended before it did'}. Find out, then say so: "
                f"{command} (or retry, or skip), or store.resolve({where!r}, {id_!r}, 'done', "
                f"kind={kind!r})."
            )
            raise CallsInDoubt(msg, [doubtful])
        attempt = self.attempts(id_) + 1
        call = structs.replace(call, attempt=attempt, epoch=self._lock.lease.epoch)
        self._calls.running.add(id_)  # before it is written: the lease is not given up meanwhile
        try:
            await self._write(BEGAN, call, call)
        except BaseException:
            self._calls.running.discard(id_)
            raise
        return True

    async def _write(
        self, kind: str, body: Call | Resolution | _Ended | _Failed, call: Call | None
    ) -> None:
        """Add an entry, and by the same act put *call*, or nothing, in the meta for its id."""
        while kind == BEGAN or body.id in self._calls:
            others = {id_: one for id_, one in self._calls.open.items() if id_ != body.id}
            meta = Meta(calls=others if call is None else {**others, body.id: call})
            try:
                self._position = await self._journal.append(
                    (kind, {k: v for k, v in structs.asdict(body).items() if v is not None}),
                    meta=meta.encode(),
                    expect=self._position,
                    lease=self._lock.lease,
                )
            except Conflict:  # a person has resolved another call, which is not to be open again
                await self._catch_up()
            else:
                self._take(kind, body)
                return

    async def _catch_up(self) -> None:
        async for page in self._journal.pages(after=self._position):
            for entry in page:
                self._take(entry.type, self._body(entry))
                self._position = entry.seq

    def _body(self, entry: Entry) -> Any:
        try:
            return msgspec.convert(entry.body, _BODIES.get(entry.type, Any))
        except msgspec.ValidationError as error:
            msg = (
                f"Entry {entry.seq} of {self._journal.key.kind} {self._journal.key.id!r} is not "
                f"what was written: {error}. Go back to a backup (`limpet restore BACKUP "
                "--replace`), or delete the journal."
            )
            raise Unreadable(msg) from error

    def _take(self, kind: str, body: Any) -> None:
        """Let an entry count."""
        if kind == BEGAN:
            self._calls.begin(body)
            self._begun[body.id] = body
        elif kind == FAILED:
            self._calls.fail(body.id, body.error)
        elif kind == ENDED:
            self._calls.end(body.id)
            self._results[body.id] = body.result
        elif kind == RESOLVED:
            self._calls.end(body.id)
            if body.how != "retry":
                self._results[body.id] = SKIPPED if body.how == "skip" else body.result
