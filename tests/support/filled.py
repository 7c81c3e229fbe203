"""Stores with many journals, filled at once; and what a view costs them."""

from __future__ import annotations

from collections import Counter
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from limpet.backends.contract import Append, Key, Origin
from limpet.core.codec import Codec
from limpet.core.ids import make_key
from limpet.core.journal import AsyncJournal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from limpet import Store

__all__ = ["LONG", "counted", "fill_journal", "fill_long", "fill_old", "fill_tasks", "task_request"]

#: A task of which two steps of four are done.
ENTRIES: list[tuple[str, Any]] = [
    ("planned", {"steps": ["fetch", "add", "send", "report"]}),
    ("step", {"name": "fetch", "result": 1}),
    ("step", {"name": "add", "result": 2}),
]


def fill_old(store: Store, kind: str, id_: str, **attributes: Any) -> None:
    """A journal that was last written to in 1970."""
    body = Codec().encode([("x", {"role": "user", "content": "x"})])
    origin = Origin(at=1_000_000, created=1_000_000, first=1, incarnation=f"old-{id_}")
    key = Key("default", kind, id_)
    store.backend.append(Append(key=key, body=body, count=1, origin=origin, **attributes))


def task_request(
    store: Store,
    id_: str,
    *more: tuple[str, Any],
    status: str = "open",
    labels: dict[str, str] | None = None,
    kind: str = "task",
) -> Append:
    """The append by which such a task begins, with some *more* entries."""
    scope = store.scope.as_sync()
    key = make_key(scope.tenant, kind, id_)
    journal = AsyncJournal(scope.runtime, scope.store.codec, key, labels=labels or {})
    created = ("created", {"goal": f"Goal of {id_}", "agent": "a"})
    return journal.request([created, *ENTRIES, *more], status=status)


def fill_tasks(store: Store, count: int, *, failed: int = 0, prefix: str = "t") -> None:
    """Add *count* tasks, whose ids begin with *prefix*; every *failed*-th one has failed."""
    batch: list[Append] = []
    for number in range(count):
        status = "failed" if failed and number % failed == 0 else "open"
        labels = {"team": "red" if number % 2 else "blue"}
        batch.append(task_request(store, f"{prefix}{number:06}", status=status, labels=labels))
        if len(batch) == 2_000:
            store.backend.append_all(batch)
            batch = []
    if batch:
        store.backend.append_all(batch)


def fill_journal(store: Store, kind: str, id_: str, entries: Iterable[tuple[str, Any]]) -> None:
    """Append *entries* to a journal, each as a record of its own, as agents do."""
    scope = store.scope.as_sync()
    key = make_key(scope.tenant, kind, id_)
    journal = AsyncJournal(scope.runtime, scope.store.codec, key)
    requests = (journal.request([entry]) for entry in entries)
    while batch := list(islice(requests, 2_000)):
        store.backend.append_all(batch)


#: A journal of each kind, which `fill_long` makes as long as one likes.
LONG = {
    "task": "report",
    "conversation": "alice",
    "state": "profile",
    "memory": "facts",
    "order": "o-1",
}


def fill_long(store: Store, size: int) -> None:
    """Add the journals of `LONG`, of about *size* entries each."""
    fill_journal(store, "task", LONG["task"], islice(_long_task(), size))
    say = ("user", "assistant")
    chat = store.conversation(LONG["conversation"])
    for begin in range(0, size, 1_000):
        numbers = range(begin, min(begin + 1_000, size))
        chat.append(*({"role": say[n % 2], "content": f"Number {n:06}"} for n in numbers))
    state = store.state(LONG["state"])
    for number in range(size):
        state.save({"number": f"{number:06}", f"key {number % 20}": f"{number:06} " * 5})
    store.memory(LONG["memory"]).remember_all(
        [f"Customer {number:06} pays within {number % 30 + 10} days" for number in range(size)]
    )
    orders = (("moved", {"to": f"place {number:06}"}) for number in range(size))
    fill_journal(store, "order", LONG["order"], orders)


def _long_task() -> Iterator[tuple[str, Any]]:
    yield "created", {"goal": "Count everything", "agent": "a"}
    yield "planned", {"steps": ["count", "report"]}
    for number in count():
        yield "decided", {"decision": f"look at {number:06}", "because": "it comes next"}
        yield "step", {"name": f"look {number:06}", "result": number}


def counted(store: Store, work: Callable[[], Any]) -> tuple[Any, Counter[str]]:
    """What *work* returns; and what it asked of the backend: calls, and heads and records got."""
    backend, costs = store.backend, Counter[str]()

    def counting(name: str, results: Callable[[Any], Sequence[Any]]) -> Callable[..., Any]:
        asked = getattr(type(backend), name)

        def call(*args: Any, **kwargs: Any) -> Any:
            found = asked(backend, *args, **kwargs)
            costs["calls"] += 1
            costs[name] += len(results(found))
            return found

        return call

    counts: dict[str, Callable[[Any], Sequence[Any]]] = {
        "scan": lambda page: page.heads,
        "read": lambda records: records,
        "head": lambda head: [] if head is None else [head],
        "kinds": lambda kinds: kinds,
    }
    for name, results in counts.items():
        setattr(backend, name, counting(name, results))
    try:
        return work(), costs
    finally:
        for name in counts:
            delattr(backend, name)
