"""Linearizability: whether what many clients were told can have come from one journal.

Clients append to one journal, read it and ask for its head, all at once, and each `Call` is noted
with the time when it began and the time when it was answered. The history is linearizable if every
call can be given one moment between the two, so that each answer is right for that moment::

    history = history_of(run(*crowd(url, calls=40)))
    assert violations(history, journal_of(url)) == []

In general that takes a search. Here it does not. A journal is only added to, so what is in it at
the end gives the order of all appends, and what a call was told says how many of them it had seen.
Each call thus has its place in the order, or a span of places where its answer says too little: a
repeated append, a page that was full. What is left to check is that no call has its place before
that of a call that had ended when it began. This is exact, not a sample: `test_linear.py`
plays it against the search.

A client that is killed leaves calls without an answer; such an append may be there or not, but
only once.
"""

from __future__ import annotations

import bisect
import heapq
import math
import threading
import time
from contextlib import ExitStack
from random import Random
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from limpet.backends.contract import Append, Appended, Backend, Expect, Head, Key, Record
from limpet.backends.url import connect
from limpet.core.runtime import AsyncRuntime
from limpet.errors import Conflict
from limpet.testing.crash import Outcome, Program, ack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = [
    "Call",
    "Look",
    "Read",
    "Seen",
    "Write",
    "act",
    "crowd",
    "history_of",
    "journal_of",
    "violations",
]

KEY = Key("acme", "note", "shared")


class Seen(Struct, frozen=True, array_like=True):
    """A record as a reader sees it: the number of its last entry, how many they are, what it is."""

    seq: int
    count: int
    body: str


class _Call(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """What all calls have: times are of a clock that all clients share; None: never answered."""

    client: str
    began: int
    ended: int | None = None


class Write(_Call, frozen=True, kw_only=True):
    """An append of *body*, which no other has, unless it is the same one tried again under its id.

    Its answer is a *seq*, *repeated* if the append was there before; or a `Conflict`, which tells
    the *actual* head.
    """

    body: str
    count: int = 1
    id: str | None = None
    expect: int | None = None
    seq: int | None = None
    repeated: bool = False
    actual: int | None = None


class Read(_Call, frozen=True, kw_only=True):
    """A read, and what it *found*."""

    found: list[Seen] = []
    after: int = 0
    limit: int = 1000
    reverse: bool = False


class Look(_Call, frozen=True, kw_only=True):
    """A look at the head; *seq* is 0 where there was none."""

    seq: int = 0


Call: TypeAlias = Write | Read | Look


def violations(history: Iterable[Call], journal: Sequence[Seen]) -> list[str]:
    """What cannot have been, as sentences; nothing if *history* is linearizable.

    *journal* is what is there after the last call.
    """
    return list(_Check(history, journal).faults())


class _Place(NamedTuple):
    """Where a call stands in the order: between *first* and *last*.

    The append that made the n-th record stands at 2n, whoever saw just n records at 2n + 1.
    """

    call: Call
    first: int
    last: int


class _Wrong(Exception):
    """An answer that is right at no moment."""


class _Check:
    def __init__(self, history: Iterable[Call], journal: Sequence[Seen]) -> None:
        self.calls = list(history)
        self.journal = list(journal)
        self.ends = [0, *(record.seq for record in journal)]
        self.index = {record.body: n for n, record in enumerate(journal, 1)}

    def faults(self) -> Iterator[str]:
        broken = [*self._numbers(), *self._authors()]
        yield from broken
        if broken:
            return  # there is no order to compare with
        places: list[_Place] = []
        for call in self.calls:
            try:
                places += self._places(call)
            except _Wrong as wrong:
                yield f"{_shown(call)}: {wrong}"
        yield from _out_of_order(places)

    # -- the journal by itself -----------------------------------------------------------------

    def _numbers(self) -> Iterator[str]:
        for before, record in zip(self.ends, self.journal, strict=False):
            if record.seq != before + record.count:
                yield f"{record} follows {before}: a number was left out, or given twice"
        if len(self.index) < len(self.journal):
            bodies = [record.body for record in self.journal]
            twice = sorted(body for body in self.index if bodies.count(body) > 1)
            yield f"doubled in the journal: {', '.join(twice)}"

    def _authors(self) -> Iterator[str]:
        """Faults of records that nobody wrote, or that nobody can have written."""
        self.author: dict[str, Write] = {}
        for call in self.calls:
            if isinstance(call, Write) and call.actual is None and not call.repeated:
                first = self.author.setdefault(call.body, call)
                if first.seq is not None and call.seq is not None and first is not call:
                    yield f"{_shown(first)} and {_shown(call)} were both told that it was new"
                # Of several attempts without an answer any may have done it: the first can have.
                if first.seq is None and (call.seq is not None or call.began < first.began):
                    self.author[call.body] = call
        for record in self.journal:
            if record.body not in self.author:
                yield f"{record} is in the journal, and everybody who wrote it was refused"

    # -- calls by themselves -------------------------------------------------------------------

    def _places(self, call: Call) -> Iterator[_Place]:
        """Where *call* stands; nowhere if it was not answered and did nothing."""
        if isinstance(call, Write):
            yield from self._places_of_write(call)
        elif call.ended is not None:
            first, last = self._read(call) if isinstance(call, Read) else self._state(call.seq)
            yield _seen(call, first, last)

    def _places_of_write(self, call: Write) -> Iterator[_Place]:
        n = self.index.get(call.body)
        if call.actual is not None:
            if call.actual == call.expect:
                raise _Wrong("it was refused, and the head was where it expected it")
            state, _ = self._state(call.actual)
            if n is not None and state >= n:
                raise _Wrong("it was refused, although it was there")
            yield _seen(call, state, state)
            return
        if n is None:
            if call.ended is not None:
                raise _Wrong("it was acknowledged and is lost")
            return
        if call.repeated or self.author[call.body] is call:
            self._compare(call, n)
        if call.repeated:
            yield _seen(call, n, len(self.journal))
        elif self.author[call.body] is call:
            yield _Place(call, 2 * n, 2 * n)

    def _compare(self, call: Write, n: int) -> None:
        record, before = self.journal[n - 1], self.ends[n - 1]
        if call.seq not in (None, record.seq) or call.count != record.count:
            raise _Wrong(f"the journal has {record}")
        if not call.repeated and call.expect not in (None, before):
            raise _Wrong(f"it was added where the head was {before}")

    def _state(self, seq: int) -> tuple[int, int]:
        n = bisect.bisect_left(self.ends, seq)
        if n == len(self.ends) or self.ends[n] != seq:
            raise _Wrong(f"the head was never {seq}")
        return n, n

    def _read(self, call: Read) -> tuple[int, int]:
        """How many records the journal can have had when it was read like that."""
        if not call.found:
            first, last = 0, bisect.bisect_right(self.ends, call.after) - 1
        elif call.reverse:
            first, last = self._state(call.found[0].seq)
        else:
            first, last = self._state(call.found[-1].seq)
            if len(call.found) == call.limit:  # there may have been more
                last = len(self.journal)
        there = [record for record in self.journal[:first] if record.seq > call.after]
        if call.found != (there[::-1] if call.reverse else there)[: call.limit]:
            raise _Wrong("the journal never was like that")
        return first, last


def _seen(call: Call, first: int, last: int) -> _Place:
    return _Place(call, 2 * first + 1, 2 * last + 1)


def _out_of_order(places: list[_Place]) -> Iterator[str]:
    """Faults of calls that stand before one that had ended when they began.

    Each is put as early as it can stand. If that is too late for it, there is no order at all.
    """
    over: list[tuple[float, int, int]] = []  # ended, position, and which it was
    reached, by = 0, -1
    for which, (call, first, last) in sorted(
        enumerate(places), key=lambda pair: pair[1].call.began
    ):
        while over and over[0][0] < call.began:
            _, position, ended = heapq.heappop(over)
            if position > reached:
                reached, by = position, ended
        position = max(first, reached)
        if position > first:
            position |= 1  # only an append stands at an even place, and it has no other
        if position > last:
            earlier = _shown(places[by].call)
            yield f"{_shown(call)} began after the end of {earlier}, and comes before it"
        else:
            ended_at = math.inf if call.ended is None else call.ended
            heapq.heappush(over, (ended_at, position, which))


def _shown(call: Call) -> str:
    """*call* on one line: of a long read the end."""
    if isinstance(call, Read) and len(call.found) > 3:
        shown = ", ".join(record.body for record in call.found[-3:])
        return f"Read by {call.client} of {len(call.found)} records up to {shown}"
    return repr(call)


# -- clients ---------------------------------------------------------------------------------------

#: Eight clients in three processes, and how those of a process share it: each with a connection of
#: its own, threads on one connection, or coroutines on one connection.
CROWD = {"own": ("ann", "ben", "cleo"), "shared": ("dan", "eve"), "async": ("fay", "gus", "hal")}


def crowd(url: str, *, calls: int, rng: Random, again: Sequence[Write] = ()) -> list[Program]:
    """Programs in which clients make so many *calls* each on one journal, at random.

    They begin when all of them are there. *again*: appends that were not answered, tried once more
    under their ids before anything else.
    """
    seed = str(rng.getrandbits(32))
    retries = {
        way: msgspec.json.encode([write for write in again if write.client in names]).decode()
        for way, names in CROWD.items()
    }
    return [
        Program(f"{__name__}:act", (url, way, str(calls), seed, retries[way], *names))
        for way, names in CROWD.items()
    ]


def history_of(outcomes: Iterable[Outcome]) -> list[Call]:
    """What clients said of their calls. An append is announced, so it is known if it has no end."""
    calls: dict[tuple[str, int], Call] = {}
    for outcome in outcomes:
        for line in outcome.acked:
            call = msgspec.json.decode(line, type=Call)
            calls[call.client, call.began] = call
    return list(calls.values())


def journal_of(url: str) -> list[Seen]:
    """What is in the journal now."""
    backend = connect(url)
    try:
        found: list[Seen] = []
        while page := backend.read(KEY, after=found[-1].seq if found else 0):
            found += map(_as_seen, page)
        return found
    finally:
        backend.close()


def act(url: str, way: str, calls: str, seed: str, again: str, *names: str) -> None:
    """Be the clients of these *names*."""
    repeated = msgspec.json.decode(again, type=list[Write])
    clients = [
        _Client(
            name, int(calls), Random(f"{name} {seed}"), [w for w in repeated if w.client == name]
        )
        for name in names
    ]
    with ExitStack() as stack:
        backends = [connect(url) for _ in (clients if way == "own" else "1")]
        for backend in backends:
            stack.callback(backend.close)
        _meet(backends[0], KEY._replace(id=f"start-{seed}"))
        if way == "async":
            _in_a_loop(backends[0], clients)
        else:
            _in_threads(backends * (1 if way == "own" else len(clients)), clients)


def _meet(backend: Backend, key: Key) -> None:
    """Wait for the other processes."""
    backend.append(Append(key=key, body=b"here", count=1))
    deadline = time.monotonic() + 30
    while not ((head := backend.head(key)) and head.seq == len(CROWD)):
        assert time.monotonic() < deadline, "the other processes do not come"
        time.sleep(0.005)


def _in_threads(backends: list[Backend], clients: list[_Client]) -> None:
    def go(backend: Backend, client: _Client) -> None:
        for call in client.calls():
            client.note(call, _perform(backend, call))

    threads = [
        threading.Thread(target=go, args=pair) for pair in zip(backends, clients, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _in_a_loop(backend: Backend, clients: list[_Client]) -> None:
    import asyncio  # noqa: PLC0415 - the other programs start faster without it

    runtime = AsyncRuntime(backend)

    async def go(client: _Client) -> None:
        for call in client.calls():
            client.note(call, await _perform_async(runtime, call))

    async def all_of_them() -> None:
        await asyncio.gather(*map(go, clients))

    asyncio.run(all_of_them())
    runtime.close()


_Answer: TypeAlias = Appended | Conflict | list[Record] | Head | None


def _perform(backend: Backend, call: Call) -> _Answer:
    if isinstance(call, Read):
        return backend.read(KEY, after=call.after, limit=call.limit, reverse=call.reverse)
    if isinstance(call, Look):
        return backend.head(KEY)
    try:
        return backend.append(_request(call))
    except Conflict as conflict:
        return conflict


async def _perform_async(runtime: AsyncRuntime, call: Call) -> _Answer:
    if not isinstance(call, Write):
        return await runtime.call(_perform, runtime.backend, call)
    try:
        return await runtime.append(_request(call))
    except Conflict as conflict:
        return conflict


def _request(call: Write) -> Append:
    body = call.body.encode()
    expect = None if call.expect is None else Expect(None, call.expect)
    return Append(key=KEY, body=body, count=call.count, id=call.id, expect=expect)


def _as_seen(record: Record) -> Seen:
    return Seen(record.seq, record.count, record.body.decode())


class _Client:
    """Chooses calls by chance, and tells the harness of each."""

    _line = threading.Lock()  # a long line is not written in one piece

    def __init__(self, name: str, count: int, rng: Random, again: list[Write]) -> None:
        self.name = name
        self._count = count
        self._rng = rng
        self._again = again
        self._head = 0  # as far as it knows

    def calls(self) -> Iterator[Call]:
        for write in self._again:
            retried = msgspec.structs.replace(write, began=_now())
            self._tell(retried)
            yield retried
        for _ in range(self._count):
            call = self._any()
            if isinstance(call, Write):
                self._tell(call)
            yield call

    def note(self, call: Call, answer: _Answer) -> None:
        ended = _now()
        if isinstance(answer, Conflict):
            self._head = answer.actual
            told: Call = msgspec.structs.replace(call, ended=ended, actual=answer.actual)
        elif isinstance(answer, Appended):
            self._head = max(self._head, answer.seq)
            told = msgspec.structs.replace(
                call, ended=ended, seq=answer.seq, repeated=answer.repeated
            )
        elif isinstance(answer, list):
            told = msgspec.structs.replace(call, ended=ended, found=list(map(_as_seen, answer)))
        else:
            self._head = 0 if answer is None else answer.seq
            told = msgspec.structs.replace(call, ended=ended, seq=self._head)
        self._tell(told)

    def _any(self) -> Call:
        chance, rng = self._rng.random(), self._rng
        if chance < 0.15:
            return Look(client=self.name, began=_now())
        if chance < 0.4:
            after = rng.choice([0, max(0, self._head - rng.randrange(12))])
            limit, reverse = rng.choice([3, 1000]), rng.random() < 0.5
            return Read(client=self.name, began=_now(), after=after, limit=limit, reverse=reverse)
        body = f"{self.name}-{rng.getrandbits(40):x}"
        return Write(
            client=self.name,
            began=_now(),
            body=body,
            count=rng.choice([1, 1, 2, 3]),
            id=rng.choice([None, body]),
            expect=rng.choice([None, self._head]),
        )

    def _tell(self, call: Call) -> None:
        with self._line:
            ack(msgspec.json.encode(call).decode())


def _now() -> int:
    """The time by a clock that all processes of this machine share."""
    return time.monotonic_ns()
