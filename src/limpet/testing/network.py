"""The network suite: what a backend over a network must do when the network fails.

Subclass it beside `BackendContract`, and say where the server is and how to open a place on it::

    class TestMyBackendOverABadNetwork(NetworkContract):
        @pytest.fixture
        def server(self, my_server):
            return my_server

        @pytest.fixture
        def opened_through(self, my_server):
            places = defaultdict(my_server.new_place)
            return lambda port, place=0, **options: MyBackend("127.0.0.1", port, places[place])

``opened_through`` connects by way of a `Proxy` on that port. Within one test the same ``place`` is
the same place, and each is empty when a test begins. The options are those of every backend.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

import pytest

from limpet.backends.contract import Append, Backend, Key
from limpet.errors import StoreError, StoreUnavailable
from limpet.testing.conformance import Caller
from limpet.testing.crash import seeded
from limpet.testing.leaks import nothing_left
from limpet.testing.operations import ALL, APPENDS, LATE, SIX, bodies_of, read
from limpet.testing.proxy import Fault, Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from limpet.testing.operations import Operation

__all__ = ["NetworkContract", "OpenedThrough", "Place"]

CUTS: tuple[Fault, ...] = ("before", "during", "after")
HALF_OPEN: tuple[Fault, ...] = ("silent", "unheard")

#: Seconds that a call gets where it is to give up, and after which it counts as hanging.
TIMEOUT, PATIENCE = 3.0, 30.0


class Place(Protocol):
    """Where a server listens."""

    @property
    def host(self) -> str:
        """Its address."""

    @property
    def port(self) -> int:
        """Its port."""


class OpenedThrough(Protocol):
    """How a place is opened by way of a proxy on a port of this machine."""

    def __call__(self, port: int, *, place: int = 0, timeout: float = 30) -> Backend:
        """A new connection."""


def _name(operation: Operation) -> str:
    return operation.__name__.replace("_", "-")


cut = pytest.mark.parametrize("fault", CUTS)
half_open = pytest.mark.parametrize("fault", HALF_OPEN)
doing = pytest.mark.parametrize("operation", ALL, ids=_name)


# -- the suite -------------------------------------------------------------------------------------


class NetworkContract:
    """What `limpet.backends.contract` promises, although the network fails."""

    @pytest.fixture
    def server(self) -> Place:
        """Where the server is."""
        raise NotImplementedError

    @pytest.fixture
    def opened_through(self) -> OpenedThrough:
        """Opens a connection to a place that is empty when a test begins."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _leaves_nothing(self, server: Place) -> Iterator[None]:  # noqa: ARG002 - is to be there
        """No thread and no file stays open, however the connections have ended."""
        with nothing_left():
            yield

    @pytest.fixture
    def network(self, server: Place, _leaves_nothing: None) -> Iterator[Proxy]:
        """The way to the server."""
        with Proxy(server.host, server.port) as proxy:
            yield proxy

    @pytest.fixture
    def store(self, network: Proxy, opened_through: OpenedThrough) -> Iterator[Caller]:
        """A backend on the far side of the network."""
        with _used(opened_through(network.port)) as store:
            yield store

    @pytest.fixture
    def hasty(self, network: Proxy, opened_through: OpenedThrough) -> Iterator[Caller]:
        """One that gives up soon."""
        with _used(opened_through(network.port, timeout=TIMEOUT)) as store:
            yield store

    # -- connections that are cut --------------------------------------------------------------

    @cut
    @doing
    def test_a_call_outlives_its_connection(
        self, store: Caller, network: Proxy, operation: Operation, fault: Fault
    ) -> None:
        """Whichever of its requests is cut off, and wherever: it is done in the end, and once."""
        _with_each_request_struck(store, network, operation, fault)

    @cut
    @pytest.mark.parametrize("operation", APPENDS, ids=_name)
    def test_an_awaited_append_outlives_its_connection(
        self, store: Caller, network: Proxy, operation: Operation, fault: Fault
    ) -> None:
        """The same on an event loop."""
        loop = asyncio.new_event_loop()
        try:
            _with_each_request_struck(Caller(store.backend, loop), network, operation, fault)
        finally:
            loop.close()

    @doing
    def test_a_call_outlives_a_connection_that_was_cut_while_nobody_used_it(
        self, store: Caller, network: Proxy, operation: Operation
    ) -> None:
        """A pool may hold many such; each call must get past all of them."""
        doings = [operation(store, _key(number)) for number in range(4)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(next, doings))  # at once, so that there are several connections
        network.cut()
        for doing in doings:
            next(doing)
            assert next(doing, None) is None

    @cut
    def test_a_place_whose_making_was_cut_off_is_made_by_the_next_one(
        self, network: Proxy, opened_through: OpenedThrough, fault: Fault
    ) -> None:
        """Opening may be tried again or give up; what it leaves behind must be good for use."""
        for at in itertools.count(1):
            struck = network.struck
            network.arm(fault, at=at)
            with suppress(StoreUnavailable):
                opened_through(network.port, place=at).close()
            network.heal()
            with _used(opened_through(network.port, place=at)) as store:
                assert store.append().seq == 1
            if network.struck == struck:
                return

    def test_many_writers_over_a_bad_network_lose_and_double_nothing(
        self, store: Caller, network: Proxy
    ) -> None:
        """Each one's appends are there once and in its order, and so are the numbers."""
        key, writers = _key(0), range(4)

        def write(writer: int) -> list[int]:
            bodies = [f"{writer}:{number}".encode() for number in range(25)]
            return [store.append(key, body).seq for body in bodies]

        with seeded() as rng, ThreadPoolExecutor(len(writers)) as pool:
            writing = [pool.submit(write, writer) for writer in writers]
            while not all(one.done() for one in writing):
                network.arm(rng.choice(CUTS), at=rng.randint(1, 12))
                time.sleep(rng.uniform(0, 0.1))
            network.heal()
            seqs = [one.result() for one in writing]
        bodies = {record.seq: record.body for record in store.read(key)}
        assert sorted(bodies) == list(range(1, 101))
        for writer, own in zip(writers, seqs, strict=True):
            assert [bodies[seq] for seq in own] == [f"{writer}:{n}".encode() for n in range(25)]
            assert own == sorted(own)

    @pytest.mark.parametrize("operation", LATE, ids=_name)
    def test_a_request_that_arrives_late_changes_nothing_any_more(
        self, hasty: Caller, network: Proxy, operation: Operation
    ) -> None:
        """It was cut off and repeated, and others have gone on from there."""
        for at in itertools.count(1):
            doing, struck = operation(hasty, _key(at)), network.struck
            next(doing)
            network.arm("late", at=at)
            try:
                next(doing)
                next(doing)
            except StoreError:  # the server may have kept locks for it, which it cannot get past
                network.heal()
                assert hasty.append(_key(at)._replace(kind="other")).seq == 1
                continue
            network.heal()
            assert next(doing, None) is None
            if network.struck == struck:
                return

    # -- a network that is away ----------------------------------------------------------------

    @pytest.mark.parametrize("fault", ["before", "after", "silent", "refused"])
    def test_while_the_network_is_away_every_call_ends_and_says_so(
        self, hasty: Caller, network: Proxy, fault: Fault | Literal["refused"]
    ) -> None:
        """`StoreUnavailable` after the timeout; when the network is back, all is well again."""
        doings = [operation(hasty, _key(number)) for number, operation in enumerate(SIX)]
        for doing in doings:
            next(doing)
        _break_for_good(network, fault)
        ends = _at_once([partial(next, doing) for doing in doings])
        assert [type(end) for end in ends] == [StoreUnavailable] * len(SIX), ends
        assert all(isinstance(end, Exception) and end.__cause__ is not None for end in ends)
        network.heal()
        network.cut()  # of those that are half-open it would have to learn first
        assert hasty.append(_key(99)).seq == 1

    @pytest.mark.parametrize("fault", ["during", "after", "unheard", "refused"])
    def test_an_append_that_was_given_up_is_repeated_under_its_id_and_there_once(
        self, hasty: Caller, network: Proxy, fault: Fault | Literal["refused"]
    ) -> None:
        """Whether it was written, which its writer could not know, or not."""
        _break_for_good(network, fault)
        with pytest.raises(StoreUnavailable):
            hasty.append(_key(0), b"first", id="mine", expect=0)
        network.heal()
        network.cut()
        assert hasty.append(_key(0), b"first", id="mine", expect=0).seq == 1
        assert bodies_of(hasty, _key(0)) == [b"first"]

    def test_a_store_that_cannot_be_reached_is_not_opened(
        self, network: Proxy, opened_through: OpenedThrough
    ) -> None:
        """It says so after its timeout, and leaves nothing open."""
        network.refuse()
        with pytest.raises(StoreUnavailable) as caught:
            opened_through(network.port, timeout=TIMEOUT)
        assert str(network.port) in str(caught.value)

    @pytest.mark.parametrize("fault", HALF_OPEN)
    def test_a_store_that_does_not_answer_is_not_opened(
        self, network: Proxy, opened_through: OpenedThrough, fault: Fault
    ) -> None:
        """It takes connections and says nothing: that must not be waited for without end."""
        network.arm(fault, stays=True)
        (end,) = _at_once([partial(opened_through, network.port, timeout=TIMEOUT)])
        assert isinstance(end, StoreUnavailable), end

    # -- connections that only seem to be there ------------------------------------------------

    @half_open
    def test_a_half_open_connection_is_not_waited_for_without_end(
        self, server: Place, opened_through: OpenedThrough, fault: Fault
    ) -> None:
        """The call is done on another one, or gives up; then the store works, and nothing twice."""

        def alone(number: int, operation: Operation) -> None:
            with (
                Proxy(server.host, server.port) as network,
                _used(opened_through(network.port, place=number, timeout=TIMEOUT)) as store,
            ):
                doing = operation(store, _key(number))
                next(doing)
                network.arm(fault)
                _done_or_given_up(store, doing)

        ends = _at_once([partial(alone, number, operation) for number, operation in enumerate(SIX)])
        assert ends == [None] * len(SIX), ends

    def test_a_slow_network_is_waited_for(
        self, server: Place, opened_through: OpenedThrough
    ) -> None:
        """Five seconds for every request are no reason to give up, with the usual timeout."""

        def alone(number: int, operation: Operation) -> None:
            with (
                Proxy(server.host, server.port) as network,
                _used(opened_through(network.port, place=number)) as store,
            ):
                doing = operation(store, _key(number))
                next(doing)
                network.delay(2.5)
                next(doing)
                network.heal()
                assert next(doing, None) is None

        # Not `read`, which is many calls: they would only take many times five seconds.
        operations = [operation for operation in SIX if operation is not read]
        calls = [partial(alone, number, operation) for number, operation in enumerate(operations)]
        assert _at_once(calls, patience=120) == [None] * len(operations)

    # -- cancellation --------------------------------------------------------------------------

    @pytest.mark.parametrize("fault", ["slow", "after", "late", "unheard"])
    def test_a_cancelled_append_is_settled_before_its_caller_goes_on(
        self,
        hasty: Caller,
        network: Proxy,
        server: Place,
        opened_through: OpenedThrough,
        fault: Fault | Literal["slow"],
    ) -> None:
        """It is there once or not at all, and nothing lands after the cancellation was heard."""
        key = _key(0)
        hasty.append(key, b"first")
        if fault == "slow":
            network.delay(0.3)
        else:
            network.arm(fault)

        async def cancelled() -> None:
            requests = network.requests
            request = Append(key=key, body=b"second", count=1)
            writing = asyncio.create_task(hasty.runtime.append(request))
            while network.requests == requests:  # noqa: ASYNC110 - the proxy knows no loop
                await asyncio.sleep(0.005)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing

        asyncio.run(cancelled())
        with (
            Proxy(server.host, server.port) as other,
            _used(opened_through(other.port)) as store,
        ):
            then = bodies_of(store, key)
            network.heal()
            time.sleep(0.5)
            assert then == bodies_of(store, key)
            assert then in ([b"first"], [b"first", b"second"])

    def test_closing_waits_for_no_answer_for_ever(self, hasty: Caller, network: Proxy) -> None:
        """A store can be closed although its connections only seem to be there."""
        hasty.append()
        network.arm("silent", stays=True)
        assert _at_once([hasty.backend.close]) == [None]


# -- how it is done --------------------------------------------------------------------------------


def _with_each_request_struck(
    store: Caller, network: Proxy, operation: Operation, fault: Fault
) -> None:
    """Do it again and again, with the fault at its first request, its second, until it has none."""
    for at in itertools.count(1):
        doing, struck = operation(store, _key(at)), network.struck
        next(doing)
        network.arm(fault, at=at)
        next(doing)
        network.heal()
        assert next(doing, None) is None
        if network.struck == struck:
            return


def _done_or_given_up(store: Caller, doing: Iterator[None]) -> None:
    """Go on with *doing*; if it gives up, the store must work all the same."""
    try:
        next(doing)
    except StoreUnavailable:
        assert store.append(_key(99), b"x", id="x").seq == 1
    else:
        assert next(doing, None) is None


def _break_for_good(network: Proxy, fault: Fault | Literal["refused"]) -> None:
    if fault == "refused":
        network.refuse()
    else:
        network.arm(fault, stays=True)


def _at_once(
    calls: Sequence[Callable[[], object]], *, patience: float = PATIENCE
) -> list[BaseException | object]:
    """How each of *calls* ends, in a thread of its own: its error or its result.

    One that does not end in time is an error here; its thread may then outlive the test.
    """
    pool = ThreadPoolExecutor(len(calls))
    running = [pool.submit(call) for call in calls]
    deadline = time.monotonic() + patience
    ends = []
    for one in running:
        error = one.exception(max(0.0, deadline - time.monotonic()))
        ends.append(error if error is not None else one.result())
    pool.shutdown()
    return ends


@contextmanager
def _used(backend: Backend) -> Iterator[Caller]:
    """*backend*, closed afterwards."""
    caller = Caller(backend, None)
    try:
        yield caller
    finally:
        caller.close()


def _key(number: int) -> Key:
    return Key("acme", "note", f"n{number}")
