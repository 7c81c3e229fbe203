"""DynamoDB: the contract, and what a table and its limits add to it."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

import limpet
from limpet.backends.contract import Appended, Key
from limpet.backends.dynamodb import heads
from limpet.backends.dynamodb.backend import DynamoBackend
from limpet.backends.dynamodb.layout import index_item, item_key, partition
from limpet.backends.dynamodb.table import Table
from limpet.testing.conformance import BackendContract
from limpet.testing.machine import contract_machine
from tests.support import tables
from tests.support.servers import shared
from tests.support.tables import DAY, HELLO, KEY, append, bodies, fill, items, moments, small_items

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.backends.contract import Backend
    from tests.support.servers import Server

url, store, other = tables.url, tables.store, tables.other


class TestDynamo(BackendContract):
    """A table of its own for each test."""

    backend = DynamoBackend

    @pytest.fixture
    def url(self, dynamodb_server: Server) -> str:
        """A place that nobody has used."""
        return dynamodb_server.place()


@contextmanager
def a_table() -> Iterator[Callable[[], Backend]]:
    """A place for the machine."""
    url = shared("dynamodb_server").place()
    yield lambda: DynamoBackend.from_url(url)


@contextmanager
def a_table_of_small_items() -> Iterator[Callable[[], Backend]]:
    """A place where nothing fits."""
    with a_table() as opened, small_items():
        yield opened


_needs_server = pytest.mark.usefixtures("dynamodb_server")
TestDynamoMachine = _needs_server(contract_machine(a_table, examples=4))
TestSmallItemsMachine = _needs_server(contract_machine(a_table_of_small_items, examples=4))


# -- sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3_000, 3_001, 64_001, 400_000, 1_500_000, 5_000_000, 20_000_000])
def test_a_body_of_any_size_is_stored_whole(store: DynamoBackend, size: int) -> None:
    """As the first record of a journal and as a later one; an item takes 400 KB."""
    body = os.urandom(size)
    append(store, body)
    append(store, body[::-1], expect=1)
    assert bodies(store.read(KEY)) == [body, body[::-1]]
    assert bodies(store.read(KEY, reverse=True, limit=1)) == [body[::-1]]
    head = store.head(KEY)
    assert head is not None
    assert head.size == 2 * size


def test_many_large_bodies_are_read_at_once(store: DynamoBackend) -> None:
    """More than fit into one reply."""
    large = [os.urandom(300_000) for _ in range(45)]
    for body in large:
        append(store, body)
    assert bodies(store.read(KEY)) == large
    assert bodies(store.read(KEY, after=20, upto=22)) == large[20:22]


@pytest.mark.parametrize("size", [5_000, 100_000, 1_000_000])
def test_a_large_append_that_is_refused_leaves_nothing(store: DynamoBackend, size: int) -> None:
    """Its body was written before, and is removed again."""
    append(store)
    before = items(store)
    with pytest.raises(limpet.Conflict):
        append(store, b"x" * size, expect=0)
    with pytest.raises(limpet.LeaseLost):
        append(store, b"x" * size, epoch=7)
    assert set(items(store)) == set(before)
    assert "uploads" not in items(store)["head"]


def test_nothing_is_left_of_a_deleted_journal(store: DynamoBackend) -> None:
    """But a small head, which goes by itself within days."""
    fill(store)
    append(store, b"x" * 1_000_000, id="large")
    assert len(items(store)) > 8
    assert store.delete(KEY) is True
    left = moments(store)
    assert set(left) == {"index", "head"}
    assert max(left.values()) < time.time() + 3 * DAY


def test_keys_of_unusual_parts_are_kept_apart(store: DynamoBackend) -> None:
    """Slashes and per cents in tenants, ids that look like something of ours."""
    tenants = ["a/b", "a%2Fb", "a%252Fb", "a", "kinds", "limpet"]
    ids = ["head", "b/note/x", "a/b", "format", "x" * 512, "~", "!", "\U0010fffd"]
    keys = [Key(tenant, "note", id_) for tenant in tenants for id_ in ids]
    for number, key in enumerate(keys):
        append(store, str(number).encode(), key, id=ids[number % len(ids)])
    for number, key in enumerate(keys):
        assert bodies(store.read(key)) == [str(number).encode()]
    assert store.kinds() == sorted((tenant, "note") for tenant in tenants)
    for tenant in tenants:
        page = store.scan(tenant, "note")
        assert [head.key.id for head in page.heads] == sorted(ids, key=str.encode)
    assert store.scan("a", "note", prefix="x" * 2_000).heads == []


# -- tails and chunks ------------------------------------------------------------------------------


def test_a_long_journal_is_read_from_chunks_and_tail_as_one(store: DynamoBackend) -> None:
    """Forward, backward, from and to any number, in pages of any size."""
    with small_items():
        for number in range(1, 30):
            append(store, str(number).encode() * (number % 4 + 1), count=number % 3 + 1)
    whole = store.read(KEY)
    assert len(whole) == 29
    for after in range(0, 60, 7):
        for upto in (None, 1, 13, 30, 31, 58):
            wanted = [
                r for r in whole if r.seq > after and (upto is None or r.seq - r.count < upto)
            ]
            for limit in (1, 4, 100):
                got = store.read(KEY, after=after, upto=upto, limit=limit)
                back = store.read(KEY, after=after, upto=upto, limit=limit, reverse=True)
                assert (got, back) == (wanted[:limit], wanted[::-1][:limit])


def test_readers_see_each_record_once_while_tails_are_moved(
    store: DynamoBackend, other: DynamoBackend
) -> None:
    """Four writers on two connections fill tails; readers look all the time."""
    done = threading.Event()

    def write(backend: DynamoBackend, writer: int) -> list[int]:
        body = f"{writer:0250}".encode()
        return [append(backend, body).seq for _ in range(40)]

    def look(backend: DynamoBackend, *, reverse: bool) -> int:
        seen = 0
        while not done.is_set():
            seqs = [record.seq for record in backend.read(KEY, reverse=reverse)]
            assert seqs[:: -1 if reverse else 1] == list(range(1, len(seqs) + 1))
            assert len(seqs) >= seen
            seen = len(seqs)
        return seen

    with ThreadPoolExecutor(6) as pool:
        looks = [pool.submit(look, store, reverse=False), pool.submit(look, other, reverse=True)]
        writers = [pool.submit(write, one, n) for n, one in enumerate((store, other) * 2)]
        try:
            seqs = [seq for writer in writers for seq in writer.result()]
        finally:
            done.set()
        assert all(looked.result() >= 0 for looked in looks)
    assert sorted(seqs) == list(range(1, 161))
    assert [record.seq for record in store.read(KEY)] == sorted(seqs)
    assert sum("/r/" in name for name in items(store)) > 5


def test_an_id_is_known_however_long_ago_it_was_used(
    store: DynamoBackend, other: DynamoBackend
) -> None:
    """In the tail, in a chunk, by another process; with other ids, and conditions that fail."""
    first = [append(store, id=f"id {n}/é") for n in range(50)]
    append(store, b"x" * 4_000, id="x" * 512)
    for backend in (store, other):
        for number, done in enumerate(first):
            again = append(backend, id=f"id {number}/é", expect=0, epoch=3)
            assert again == Appended(done.seq, done.at, done.incarnation, repeated=True)
        assert append(backend, b"y", id="x" * 512).repeated
    assert len(store.read(KEY)) == 51


def test_ids_are_forgotten_with_their_records(store: DynamoBackend, other: DynamoBackend) -> None:
    """And not those that came after; another process need not have been told."""
    for number in range(50):
        append(store, id=f"n{number}")
    assert append(other, id="n3").repeated
    assert store.compact(KEY, 40) == 39
    assert append(other, id="n3").seq == 51
    assert not append(store, id="n4").repeated
    assert append(store, id="n3") == append(other, id="n3")
    assert append(store, id="n45").seq == 46
    assert sum("/i/" in name for name in items(store)) < 20


def test_compacting_removes_the_items(store: DynamoBackend) -> None:
    """Chunks that are not needed any more, and large bodies."""
    fill(store, 30)
    append(store, b"x" * 1_000_000)
    fill(store, 30)
    before = items(store)
    assert store.compact(KEY, 32) == 31
    after = items(store)
    assert not any("/b/" in name for name in after)
    assert sum("/r/" in name for name in after) < sum("/r/" in name for name in before)
    assert [record.seq for record in store.read(KEY)] == list(range(32, 62))
    head = store.head(KEY)
    assert head is not None
    assert (head.first, head.size) == (32, 30 * 300)


def test_what_somebody_took_away_is_reported(store: DynamoBackend) -> None:
    """A gap is never passed over: not in a read, not by the doctor."""
    fill(store)
    table = store._table
    chunks = [name for name in items(store) if "/r/" in name]
    table.remove([item_key(partition(KEY), chunks[2])])
    with pytest.raises(limpet.errors.StoreCorrupt, match=r"missing.*Nothing was changed.*Restore"):
        store.read(KEY)
    facts = {fact.name: fact for fact in store.facts(deep=True)}
    assert not facts["integrity"].ok
    assert "note/one" in facts["integrity"].value


# -- what it costs ---------------------------------------------------------------------------------


@contextmanager
def metered(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, float]]]:
    """Every request that is made, and the capacity units that DynamoDB says it took.

    For one that was refused it does not say.
    """
    calls: list[tuple[str, float]] = []
    send = Table.send

    def counted(self: Table, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        try:
            reply = send(self, operation, parameters | {"ReturnConsumedCapacity": "TOTAL"})
        except ClientError:
            calls.append((f"{operation} refused", 0))
            raise
        used = reply.get("ConsumedCapacity", [])
        used = used if isinstance(used, list) else [used]
        calls.append((operation, sum(one["CapacityUnits"] for one in used)))
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(Table, "send", counted)
        yield calls


def test_an_append_is_one_update_of_one_small_item(
    store: DynamoBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the journal; now and then a chunk is written as well."""
    with metered(monkeypatch) as calls:
        append(store, b"x" * 300)
        assert [name for name, _ in calls] == ["get_item", "put_item", "transact_write_items"]
        calls.clear()
        for _ in range(300):
            append(store, b"x" * 300)
    updates = [units for name, units in calls if name == "update_item"]
    chunks = [units for name, units in calls if name == "put_item"]
    assert len(updates) == 300
    assert len(updates) + len(chunks) == len(calls)
    assert len(chunks) <= 300 / 8
    assert max(updates) <= 4
    assert sum(units for _, units in calls) / 300 < 3.5


def test_a_writer_that_is_behind_learns_from_the_refusal(
    store: DynamoBackend, other: DynamoBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer brings the head: whoever shares a journal pays one request more, and no read."""
    append(store)
    append(other)
    with metered(monkeypatch) as calls:
        assert append(store).seq == 3
        assert [name for name, _ in calls] == ["update_item refused", "update_item"]
        calls.clear()
        lease = other.acquire(KEY, "other", 60)
        with pytest.raises(limpet.LeaseHeld):
            store.acquire(KEY, "me", 60)
        with pytest.raises(limpet.Conflict):
            append(store, expect=2)
        other.release(KEY, lease)
        assert append(store, expect=3).seq == 4


def test_threads_of_one_process_do_not_refuse_each_other(
    store: DynamoBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take turns at a journal; one that takes long is not waited for."""
    append(store)
    with metered(monkeypatch) as calls, ThreadPoolExecutor(8) as pool:
        assert len({done.seq for done in pool.map(lambda _: append(store), range(60))}) == 60
    assert not [name for name, _ in calls if "refused" in name]
    with store._heads._turn(KEY), ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(heads, "LONGEST_TURN", 0.01)
        assert pool.submit(append, store).result().seq == 62


def test_a_journal_that_others_never_leave_alone_is_busy(
    store: DynamoBackend, other: DynamoBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append that is overtaken again and again gives up, and has written nothing."""
    append(store)
    write = store._heads.write

    def overtaken(*args: Any) -> None:
        append(other, b"other")
        write(*args)

    monkeypatch.setattr(store._heads, "write", overtaken)
    store._table.timeout = 0.3
    with pytest.raises(limpet.errors.StoreBusy, match=r"again and again.*nothing was written"):
        append(store, b"mine")
    assert b"mine" not in bodies(store.read(KEY))


def test_the_newest_records_are_read_without_the_others(
    store: DynamoBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tail costs one request, the last twenty two; not what the whole journal would."""
    fill(store, 400)
    with metered(monkeypatch) as calls:
        assert [r.seq for r in store.read(KEY, after=398)] == [399, 400]
        assert [name for name, _ in calls] == ["get_item"]
        calls.clear()
        assert len(store.read(KEY, reverse=True, limit=20)) == 20
    assert [name for name, _ in calls] == ["get_item", "query"]
    assert sum(units for _, units in calls) < 10


def test_ids_of_what_is_gone_are_passed_over_many_at_a_time(
    store: DynamoBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that was never swept says what is in it without a call for every two of them."""
    append(store, key=KEY._replace(id="z"))
    gone = [index_item(KEY._replace(id=f"n{number:03}"), None) for number in range(400)]
    store._table.write({"PutRequest": {"Item": item}} for item in gone)
    with metered(monkeypatch) as calls:
        assert store.kinds() == [("acme", "note")]
    assert len(calls) < 30


# -- fork ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(url: str) -> None:
    """Both go on, also with other threads at work while it forks."""
    with limpet.open(url) as store, ThreadPoolExecutor(2) as pool:
        store.conversation("parent").append(HELLO)
        stop = threading.Event()
        writing = pool.submit(_write_until, store, stop)
        children = [_fork(store, f"child{number}") for number in range(3)]
        for child in children:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        stop.set()
        assert writing.result() == store.conversation("thread").length()
        store.conversation("parent").append(HELLO)
        for number in range(3):
            assert store.conversation(f"child{number}").length() == 15


def _write_until(store: limpet.Store, stop: threading.Event) -> int:
    count = 0
    while not stop.is_set():
        store.conversation("thread").append(HELLO)
        count += 1
    return count


def _fork(store: limpet.Store, name: str) -> int:
    child = os.fork()
    if child:
        return child
    try:
        for _ in range(15):
            store.conversation(name).append(HELLO)
        ok = store.conversation(name).length() == 15
        store.close()
    except BaseException:  # noqa: BLE001 - a child of pytest must never go on as pytest
        os._exit(1)
    os._exit(0 if ok else 2)
