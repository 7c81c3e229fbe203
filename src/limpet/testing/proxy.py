"""A network that fails on demand: a TCP proxy between a client and its server.

    with Proxy("127.0.0.1", 5432) as network:
        store = limpet.open(f"postgresql://127.0.0.1:{network.port}/agents")
        network.arm("after")
        store.conversation("a").append(...)  # done, but the answer is lost with the connection

It knows no protocol. A *request* is what a client sends on one connection until the server answers.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Fault", "Proxy"]

#: What can become of a request:
#:
#: before    the connection is cut, and nothing of the request goes on
#: during    half of it goes on, then the connection is cut
#: after     it goes on; its answer is awaited and dropped, then the connection is cut
#: late      the connection is cut, and the request goes on only when the network heals
#: silent    nothing of it goes on, nothing ever comes back, and the connection stays: half-open
#: unheard   it goes on; nothing ever comes back, and the connection stays
Fault: TypeAlias = Literal["before", "during", "after", "late", "silent", "unheard"]

Address: TypeAlias = tuple[str, int]

CHUNK = 65536
ANSWER = 5.0  # seconds that are waited for one that nobody hears
QUIET = 0.05  # seconds without a byte: an answer is over


class Proxy:
    """Passes on what comes to its `port`, to *host* and *port*. Call it from any thread.

    `requests` counts what came, `struck` how many of them met a fault.
    """

    def __init__(self, host: str, port: int) -> None:
        self.requests = 0
        self.struck = 0
        self.seconds = 0.0
        self._lock = threading.Lock()
        self._plan: tuple[Fault, int, bool] | None = None  # with its number, and whether it stays
        self._doors: list[_Door] = []
        self._links: set[_Link] = set()
        self.port = self.add(host, port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, host: str, port: int) -> int:
        """The port that leads to one more server, over the same network."""
        door = _Door(self, (host, port))
        self._doors.append(door)
        return door.port

    def arm(self, fault: Fault, *, at: int = 1, stays: bool = False) -> None:
        """Let *fault* strike the *at*-th request from now; if it *stays*, every one from there."""
        with self._lock:
            self._plan = (fault, self.requests + at, stays)

    def delay(self, seconds: float) -> None:
        """Let every request take *seconds* longer, and every answer too."""
        self.seconds = seconds

    def cut(self) -> None:
        """Cut all connections that there are."""
        links = self._present()
        for link in links:
            link.cut()
        for link in links:
            link.join()

    def refuse(self) -> None:
        """Cut all connections and refuse new ones, as a machine does whose server is away."""
        for door in self._doors:
            door.shut()
        self.cut()

    def heal(self) -> None:
        """Work again. What was late has arrived on return.

        A connection on which nothing comes back stays so, as half-open ones do.
        """
        with self._lock:
            self._plan = None
        self.seconds = 0.0
        for door in self._doors:
            door.open()
        for link in self._present():
            link.deliver()

    def close(self) -> None:
        """Cut everything and let go of it."""
        self.refuse()
        for door in self._doors:
            door.close()

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._present())

    def _present(self) -> list[_Link]:
        with self._lock:
            return list(self._links)

    def admit(self, client: socket.socket, server: Address) -> None:
        """Connect *client* with *server*."""
        link = _Link(self, client, server)
        with self._lock:
            self._links.add(link)
        link.start()

    def forget(self, link: _Link) -> None:
        """*link* is no more."""
        with self._lock:
            self._links.discard(link)

    def next_fault(self) -> Fault | None:
        """What becomes of the request that begins now."""
        with self._lock:
            self.requests += 1
            if self._plan is None or self.requests < self._plan[1]:
                return None
            fault, _, stays = self._plan
            if not stays:
                self._plan = None
            self.struck += 1
            return fault


class _Door:
    """A port by which clients come in, while it is open, on their way to *server*."""

    def __init__(self, proxy: Proxy, server: Address) -> None:
        self._proxy = proxy
        self._server = server
        self._thread: threading.Thread | None = None
        self._bell, self._heard = socket.socketpair()
        self._listener = _bound(0)
        self.port: int = self._listener.getsockname()[1]
        self.open()

    def open(self) -> None:
        if self._thread is None:
            self._listener.listen(128)
            # Made here: whoever counts open files after this has counted it.
            selector = DefaultSelector()
            self._thread = threading.Thread(
                target=self._run, args=[selector], name="limpet-proxy-door", daemon=True
            )
            self._thread.start()

    def shut(self) -> None:
        if self._thread is not None:
            self._bell.send(b"!")
            self._thread.join()
            self._thread = None
            self._listener.close()
            self._listener = _bound(self.port)  # ours, and nobody listens: that is a refusal

    def close(self) -> None:
        for end in (self._listener, self._bell, self._heard):
            end.close()

    def _run(self, selector: DefaultSelector) -> None:
        with selector:
            selector.register(self._listener, EVENT_READ)
            selector.register(self._heard, EVENT_READ)
            while all(key.fileobj is not self._heard for key, _ in selector.select()):
                with suppress(OSError):  # it has left again
                    self._proxy.admit(self._listener.accept()[0], self._server)
            self._heard.recv(1)


class _Cut(Exception):
    """The connection ends here."""


class _Link(threading.Thread):
    """One connection of a client, and the one to the server that goes with it."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: Address) -> None:
        super().__init__(name="limpet-proxy-link", daemon=True)
        self._proxy = proxy
        self._client = client
        self._address = server
        self._over = threading.Event()
        self._kept = False  # a request, for later
        self._later = threading.Event()
        self._idle = True  # the next byte of the client begins a request
        self._fault: Fault | None = None
        self._quiet: float | None = None  # seconds after which an answer that is dropped is over

    def run(self) -> None:
        try:
            with (
                self._client,
                suppress(OSError),  # one side has gone; the other one is told by our going
                socket.create_connection(self._address, 5) as self._server,
                DefaultSelector() as self._selector,
            ):
                self._server.settimeout(None)
                for end, act in ((self._client, self._request), (self._server, self._answer)):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._selector.register(end, EVENT_READ, act)
                self._pass_on()
        finally:
            self._proxy.forget(self)

    def cut(self) -> None:
        """End it, from another thread."""
        self._over.set()
        self._later.set()
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)

    def deliver(self) -> None:
        """Send on what was kept, from another thread, and wait for its end."""
        if self._kept:
            self._later.set()
            self.join()

    def _pass_on(self) -> None:
        with suppress(_Cut):
            while not self._over.is_set():
                ready = self._selector.select(self._quiet)
                if not ready:
                    self._break()
                for key, _ in ready:
                    key.data()

    def _request(self) -> None:
        data = self._client.recv(CHUNK)
        if not data:
            raise _Cut
        if self._idle:
            self._idle = False
            if self._fault is None:
                self._fault = self._proxy.next_fault()
            self._dawdle()
        if self._fault == "before":
            self._break()
        elif self._fault == "during":
            self._server.sendall(data[: len(data) // 2])
            self._break()
        elif self._fault == "late":
            self._keep(data)
        elif self._fault != "silent":
            self._server.sendall(data)

    def _answer(self) -> None:
        data = self._server.recv(CHUNK)
        if not data and self._fault in ("silent", "unheard"):
            self._selector.unregister(self._server)  # not even that is heard
        elif not data:
            raise _Cut
        elif self._fault == "after":
            self._quiet = QUIET
        elif self._fault is None:
            if not self._idle:
                self._idle = True
                self._dawdle()
            self._client.sendall(data)

    def _keep(self, data: bytes) -> None:
        self._kept = True
        data += _rest(self._client, QUIET)
        self._reset_client()
        self._client.close()
        self._later.wait()
        if not self._over.is_set():
            self._server.sendall(data)
            _rest(self._server, ANSWER)
        raise _Cut

    def _dawdle(self) -> None:
        if self._proxy.seconds:
            self._over.wait(self._proxy.seconds)

    def _break(self) -> None:
        self._reset_client()
        raise _Cut

    def _reset_client(self) -> None:
        """It is to meet a reset; the server an end, after what it was sent."""
        self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _rest(end: socket.socket, patience: float) -> bytes:
    """What comes from *end* within *patience*, until it is quiet."""
    data = b""
    end.settimeout(patience)
    with suppress(OSError):
        while more := end.recv(CHUNK):
            data += more
            end.settimeout(QUIET)
    return data


def _bound(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    return listener
