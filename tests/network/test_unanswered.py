"""Calls whose first try had no answer: it may have been carried out, and others have gone on."""

from __future__ import annotations

import itertools
import time
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psycopg
import pytest

import limpet
from limpet.backends import retry
from limpet.backends.contract import Append, Expect
from limpet.backends.postgresql.backend import PostgresBackend
from limpet.backends.postgresql.connections import LostSessions
from limpet.backends.url import connect
from limpet.errors import Conflict
from limpet.testing.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.tables import KEY, append

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.backends.contract import Backend, Key
    from tests.support.servers import PostgresServer, Server

#: Seconds for calls that are to give up.
TIMEOUT = 3.0


class Far:
    """A place, with a backend over a network that fails, and one of others who have a good one.

    *between* is what happens after a try that had no answer, before the next one.
    """

    def __init__(self, server: Server, patch: pytest.MonkeyPatch) -> None:
        self.network = Proxy(server.host, server.port)
        url = server.place()
        self.others = connect(url)
        self.store = connect(server.through(url, self.network.port), timeout=TIMEOUT)
        self.between: Callable[[], object] | None = None
        pauses = SimpleNamespace(monotonic=time.monotonic, sleep=self._sleep)
        patch.setattr(retry, "time", pauses)

    def _sleep(self, seconds: float) -> None:
        act, self.between = self.between, None
        if act is not None:
            act()
        time.sleep(seconds)

    def close(self) -> None:
        """Let go of all of it."""
        self.network.heal()
        self.store.close()
        self.others.close()
        self.network.close()


@pytest.fixture(params=["postgresql_server", "redis_server", "dynamodb_server"])
def far(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    """On each kind of server."""
    with closing(Far(request.getfixturevalue(request.param), monkeypatch)) as made:
        yield made


def each_request_unanswered(
    far: Far, deed: Callable[[Key], object], then: Callable[[Key], bool]
) -> Iterator[tuple[Key, bool]]:
    """Do *deed* with its first request unanswered, its second, and so on; *then* what others do.

    Yields the key, and whether others found that it was done.
    """
    ever = False
    deed(KEY)  # the first one may ask for more than those to come
    for at in itertools.count(1):
        key, struck = KEY._replace(id=f"n{at}"), far.network.struck
        for number in range(1, 5):
            append(far.others, b"%d" % number, key)
        found = False

        def between(key: Key = key) -> None:
            nonlocal found
            found = then(key)

        far.between = between
        far.network.arm("after", at=at)
        deed(key)
        far.between = None
        far.network.heal()
        yield key, found
        ever = ever or found
        if far.network.struck == struck:
            assert ever
            return


def test_a_delete_takes_nothing_that_was_begun_since(far: Far) -> None:
    """It was done, and whoever began anew was told that all is well."""

    def begin_anew(key: Key) -> bool:
        if far.others.head(key) is not None:
            return False
        return append(far.others, b"new", key, expect=Expect(None, 0)).seq == 1

    for key, anew in each_request_unanswered(far, far.store.delete, begin_anew):
        assert [body for _, body in far.others.bodies(key)] == [b"new"] * anew


def test_a_delete_of_what_is_expected_says_what_became_of_it(far: Far) -> None:
    """It was done, or others were faster: never both, whichever answer was lost."""

    def come_back(key: Key) -> bool:
        append(far.others, b"new", key)
        return True

    refused: set[Key] = set()

    def delete(key: Key) -> None:
        head = far.others.head(key)
        try:
            assert far.store.delete(key, expect=head.expect if head else Expect(None, 0)) is (
                head is not None
            )
        except Conflict:
            refused.add(key)

    for key, came_back in each_request_unanswered(far, delete, come_back):
        old = [b"1", b"2", b"3", b"4"] if key in refused else []
        assert [body for _, body in far.others.bodies(key)] == old + [b"new"] * came_back


def test_a_compaction_drops_nothing_that_was_begun_since(far: Far) -> None:
    """The numbers are the same, the journal is another one."""

    def begin_anew(key: Key) -> bool:
        head = far.others.head(key)
        if head is None or head.first == 1:
            return False
        far.others.delete(key)
        for _ in range(4):
            append(far.others, b"new", key)
        return True

    compact = lambda key: far.store.compact(key, 3)  # noqa: E731 - a word for it
    for key, anew in each_request_unanswered(far, compact, begin_anew):
        assert [seq for seq, _ in far.others.bodies(key)] == ([1, 2, 3, 4] if anew else [3, 4])


def test_a_change_of_attributes_is_not_made_again_over_what_others_set_since(far: Far) -> None:
    """A reader must not see ours, theirs, and ours once more."""
    append(far.others)
    for at in itertools.count(1):
        struck, far.between = far.network.struck, None
        far.others.append(Append(key=KEY, status="before"))
        seen: list[str | None] = []

        def theirs(seen: list[str | None] = seen) -> None:
            head = far.others.head(KEY)
            seen.append(None if head is None else head.status)
            far.others.append(Append(key=KEY, status="theirs"))

        far.between = theirs
        far.network.arm("after", at=at)
        with suppress(limpet.StoreUnavailable):  # then it may be there, and it says so
            far.store.append(Append(key=KEY, status="ours"))
        far.network.heal()
        head = far.others.head(KEY)
        assert head is not None
        if seen == ["ours"]:
            assert head.status == "theirs"
        if far.network.struck == struck:
            return


# -- what is told when the answer that came at last is no ------------------------------------------


def given_up(far: Far) -> str:
    """What is said of an append that was done, although its answers say that it was not."""
    for _ in range(3):  # so that it is one request
        append(far.store)
    far.network.arm("after")
    with pytest.raises(limpet.StoreUnavailable) as caught:
        append(far.store, b"done", id="mine")
    assert caught.value.__cause__ is not None
    assert bodies_of(far.others) == [b"x", b"x", b"x", b"done"]
    assert "may be there all the same: repeat it with the same id" in str(caught.value)
    return str(caught.value)


def bodies_of(backend: Backend) -> list[bytes]:
    """What is in the journal."""
    return [body for _, body in backend.bodies(KEY)]


def done_once(far: Far) -> None:
    """It is, if it is repeated as it says."""
    far.network.heal()
    assert append(far.store, b"done", id="mine").repeated is True
    assert bodies_of(far.others) == [b"x", b"x", b"x", b"done"]


@pytest.mark.server
@pytest.mark.parametrize(
    ("trouble", "over", "words"),
    [
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"), "no memory"),
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"), "a replica"),
    ],
)
def test_a_redis_that_is_full_or_succeeded_by_then_is_not_taken_at_its_word(
    monkeypatch: pytest.MonkeyPatch, trouble: list[str], over: list[str], words: str
) -> None:
    """`StoreFull` or `StoreReadOnly` would say that nothing was written."""
    with RedisServer() as server, closing(Far(server, monkeypatch)) as far:
        far.between = lambda: server.ask(*trouble)
        assert words in given_up(far)
        server.ask(*over)
        done_once(far)


def test_a_postgresql_that_is_a_standby_by_then_is_not_taken_at_its_word(
    postgresql_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as new sessions go, here; and when they are over, none of them is kept."""
    with closing(Far(postgresql_server, monkeypatch)) as far:
        assert isinstance(far.store, PostgresBackend)
        parameters = far.store._connections._parameters
        append(far.store, key=KEY._replace(id="other"))  # by a session that may write
        with monkeypatch.context() as patch:
            more = f"{parameters['options']} -c default_transaction_read_only=on"
            patch.setitem(parameters, "options", more)
            assert "a standby" in given_up(far)
            with pytest.raises(limpet.errors.StoreReadOnly, match="a standby"):
                far.store.acquire(KEY, "me", 60)
        done_once(far)


def test_a_session_of_the_same_number_on_another_server_is_left_alone(
    postgresql_server: PostgresServer,
) -> None:
    """After a failover, a number that was ours may be that of a session which was there before."""
    with (
        closing(psycopg.connect(postgresql_server.url())) as other,
        closing(PostgresBackend.from_url(postgresql_server.place())) as backend,
    ):
        hour = 3_600_000_000
        for began, ended in ((hour, False), (-hour, False), (0, True)):
            lost = LostSessions(backend._queries)
            lost.add((other.info.backend_pid, time.time_ns() // 1000 + began))
            backend._connections.run(lost.end)
            if ended:
                with pytest.raises(psycopg.OperationalError):
                    other.execute("SELECT 1")
            else:
                other.execute("SELECT 1")


def test_many_lost_sessions_are_ended_by_as_few_requests_as_one(
    postgresql_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network that fails again and again, a request for each never gets to the last one."""
    with closing(Far(postgresql_server, monkeypatch)) as far:
        assert isinstance(far.store, PostgresBackend)
        append(far.store)  # there is a connection
        requests = []
        for many in (1, 1, 1, 50):  # statements are prepared at first
            lost = LostSessions(far.store._queries)
            for number in range(many):
                lost.add((1_000_000_000 + number, time.time_ns() // 1000))
            before = far.network.requests
            far.store._connections.run(lost.end)
            requests.append(far.network.requests - before)
        assert requests[-1] == requests[-2]


def test_a_session_that_is_lost_while_it_ends_others_adds_nothing_to_them(
    postgresql_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller had not sent anything: otherwise each try would leave one more for the next."""
    with closing(Far(postgresql_server, monkeypatch)) as far:
        assert isinstance(far.store, PostgresBackend)
        connections = far.store._connections
        append(far.store)
        connections._lost.add((1_000_000_000, time.time_ns() // 1000))
        far.network.arm("after", stays=True)
        with pytest.raises(limpet.StoreUnavailable) as raised:
            append(far.store, id="a")
        assert "may be there" not in str(raised.value)
        assert len(connections._lost._sessions) == 1
        far.network.heal()
        append(far.store, id="a")
        assert not connections._lost._sessions


def test_a_dynamodb_that_cannot_be_reached_by_then_may_have_written(
    dynamodb_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last try was never sent, but there was one before it."""
    with closing(Far(dynamodb_server, monkeypatch)) as far:
        far.between = far.network.refuse
        assert "cannot be reached" in given_up(far)
        done_once(far)
