"""The network that fails on demand does to a request what was asked, and nothing else."""

from __future__ import annotations

import os
import socket
import socketserver
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from limpet.testing.leaks import nothing_left
from limpet.testing.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self


class Echo(socketserver.ThreadingTCPServer):
    """Answers each line with itself, and remembers what it was sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.heard = b""
        self.left = threading.Semaphore(0)  # one for each client that went


class Answers(socketserver.StreamRequestHandler):
    """One client of `Echo`."""

    server: Echo

    def handle(self) -> None:
        """Answer until it goes."""
        with suppress(ConnectionError):
            while data := self.connection.recv(1 << 20):
                self.server.heard += data
                if data.endswith(b"\n"):
                    self.connection.sendall(data)
        self.server.left.release()


@pytest.fixture
def echo() -> Iterator[Echo]:
    """A server."""
    with Echo() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def network(echo: Echo) -> Iterator[Proxy]:
    """The way to it, which must leave no thread and no file open."""
    with nothing_left(), Proxy("127.0.0.1", echo.server_address[1]) as proxy:
        yield proxy


class Client:
    """Says lines and hears what comes back."""

    def __init__(self, network: Proxy, *, patience: float = 10, port: int = 0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port or network.port), patience)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def say(self, line: bytes) -> None:
        """Send *line* and wait for nothing."""
        self._socket.sendall(line)

    def hear(self) -> bytes:
        """What comes next; nothing if the connection has ended."""
        try:
            return self._socket.recv(1 << 20)
        except ConnectionError:
            return b""

    def ask(self, line: bytes) -> bytes:
        """The answer to *line*."""
        self.say(line)
        return self.hear()


@pytest.mark.slow
def test_what_is_sent_arrives_and_what_is_answered_comes_back(network: Proxy, echo: Echo) -> None:
    """Without a fault, nobody notices it."""
    with Client(network) as one, Client(network) as two:
        assert (one.ask(b"a\n"), two.ask(b"b\n"), one.ask(b"c\n")) == (b"a\n", b"b\n", b"c\n")
        assert (network.requests, network.struck, network.connections) == (3, 0, 2)
    assert echo.heard == b"a\nb\nc\n"


def test_much_comes_through_whole_and_counts_as_one_request(network: Proxy, echo: Echo) -> None:
    """However many packets it takes."""
    much = os.urandom(3_000_000).replace(b"\n", b" ") + b"\n"
    with Client(network) as client:
        client.say(much)
        while len(echo.heard) < len(much):
            time.sleep(0.01)
    assert echo.heard == much
    assert network.requests == 1


@pytest.mark.slow
def test_a_cut_before_the_request_keeps_it_from_the_server(network: Proxy, echo: Echo) -> None:
    """The client meets the end of its connection."""
    network.arm("before")
    with Client(network) as client:
        assert client.ask(b"hello\n") == b""
    assert echo.left.acquire(timeout=10)
    assert echo.heard == b""


def test_a_cut_during_the_request_lets_half_of_it_through(network: Proxy, echo: Echo) -> None:
    """As a client that dies in the middle of it."""
    network.arm("during")
    with Client(network) as client:
        assert client.ask(b"hello!\n") == b""
    assert echo.left.acquire(timeout=10)
    assert echo.heard == b"hel"


def test_a_cut_after_the_request_loses_only_the_answer(network: Proxy, echo: Echo) -> None:
    """The server has done it, and the client cannot know."""
    network.arm("after")
    with Client(network) as client:
        assert client.ask(b"hello\n") == b""
    assert echo.heard == b"hello\n"


def test_a_late_request_arrives_when_the_network_heals(network: Proxy, echo: Echo) -> None:
    """Its sender has long gone on without it."""
    network.arm("late")
    with Client(network) as client, Client(network) as other:
        assert client.ask(b"late\n") == b""
        assert other.ask(b"early\n") == b"early\n"
        network.heal()
        assert echo.heard == b"early\nlate\n"
        assert network.connections == 1


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "heard"), [("silent", b""), ("unheard", b"hello\nagain\n")])
def test_a_half_open_connection_stays_and_says_nothing(
    network: Proxy, echo: Echo, fault: str, heard: bytes
) -> None:
    """Also after the network has healed; a new connection works then, and before."""
    network.arm("silent" if fault == "silent" else "unheard")
    with Client(network, patience=0.2) as client, Client(network) as other:
        for line in (b"hello\n", b"again\n"):
            with pytest.raises(TimeoutError):
                client.ask(line)
        assert echo.heard == heard
        assert other.ask(b"x\n") == b"x\n"
        network.heal()
        with pytest.raises(TimeoutError):
            client.ask(b"")
        assert network.connections == 2


def test_a_fault_waits_for_its_turn_and_strikes_once(network: Proxy) -> None:
    """On whatever connection the n-th request comes."""
    network.arm("before", at=3)
    with Client(network) as one, Client(network) as two:
        assert [one.ask(b"1\n"), two.ask(b"2\n"), one.ask(b"3\n")] == [b"1\n", b"2\n", b""]
        assert two.ask(b"4\n") == b"4\n"
    assert network.struck == 1


def test_a_fault_that_stays_strikes_until_the_network_heals(network: Proxy) -> None:
    """A new connection does not help."""
    network.arm("before", stays=True)
    for _ in range(3):
        with Client(network) as client:
            assert client.ask(b"x\n") == b""
    network.heal()
    with Client(network) as client:
        assert client.ask(b"x\n") == b"x\n"
    assert network.struck == 3


@pytest.mark.slow
def test_a_server_that_is_away_refuses(network: Proxy) -> None:
    """It comes back at the same port."""
    with Client(network) as client:
        assert client.ask(b"x\n") == b"x\n"
        network.refuse()
        assert client.hear() == b""
        with pytest.raises(ConnectionRefusedError):
            Client(network)
        network.refuse()
        network.heal()
        with Client(network) as again:
            assert again.ask(b"y\n") == b"y\n"


@pytest.mark.slow
def test_connections_are_cut_on_demand(network: Proxy) -> None:
    """Those that there are; others may come."""
    with Client(network) as client:
        client.ask(b"x\n")
        network.cut()
        assert client.hear() == b""
        assert network.connections == 0
    with Client(network) as client:
        assert client.ask(b"x\n") == b"x\n"


def test_one_network_can_lead_to_several_servers(network: Proxy, echo: Echo) -> None:
    """What befalls it befalls the way to each of them."""
    port = network.add("127.0.0.1", echo.server_address[1])
    network.arm("before", at=2)
    with Client(network) as one, Client(network, port=port) as two:
        assert (one.ask(b"1\n"), two.ask(b"2\n"), one.ask(b"3\n")) == (b"1\n", b"", b"3\n")
    network.refuse()
    for each in (network.port, port):
        with pytest.raises(ConnectionRefusedError):
            Client(network, port=each)


def test_a_delay_counts_each_way(network: Proxy) -> None:
    """Both the request and its answer take longer."""
    with Client(network) as client:
        client.ask(b"x\n")
        network.delay(0.2)
        began = time.monotonic()
        assert client.ask(b"y\n") == b"y\n"
        assert time.monotonic() - began >= 0.4


def test_a_delay_does_not_hold_up_the_end(network: Proxy) -> None:
    """A test that fails in the middle of it must not wait for it."""
    network.delay(1000)
    with Client(network) as client:
        client.say(b"x\n")
        while network.requests == 0:
            time.sleep(0.01)
        network.close()
        assert client.hear() == b""


def test_a_server_that_is_not_there_is_an_end_and_not_a_hang() -> None:
    """The client learns of it as of any cut."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with Proxy("127.0.0.1", nobody.getsockname()[1]) as network, Client(network) as client:
            assert client.ask(b"x\n") == b""
