"""The servers behind one URL, and the connections to them.

It is a lone one, a cluster, or the one that Sentinels say is the master now.

redis-py's own client costs as much again as the server does, tries again by rules that cannot know
what may be done twice, and in a cluster cannot send a command behind another to the same server. So
only its connections are used: sockets, TLS, logging in, parsing what comes back.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from limpet.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from limpet.backends.redis.durability import Confirmation, Durability
    from limpet.backends.redis.url import Address

__all__ = ["DriverConnection", "Message", "Server", "Servers", "Word", "packed", "slot_of"]

Word: TypeAlias = bytes | str | int
Message: TypeAlias = list[bytes | memoryview]

#: Bytes of a long message that go out at once: each piece may take the whole timeout.
PIECE = 1 << 18

#: Seconds after which an idle connection is not trusted: a firewall may have forgotten it.
IDLE = 60.0

#: How often a call is redirected before we give the cluster time to agree with itself.
REDIRECTS = 5


def packed(*commands: Sequence[Word]) -> Message:
    """Commands as the server takes them."""
    message: Message = []
    parts: list[bytes] = []
    for words in commands:
        parts.append(b"*%d\r\n" % len(words))
        for word in words:
            data = word if type(word) is bytes else str(word).encode()
            if len(data) < PIECE:
                parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
            else:  # not copied, and sent piece by piece
                view = memoryview(data)
                message.append(b"".join((*parts, b"$%d\r\n" % len(data))))
                message += (view[start : start + PIECE] for start in range(0, len(data), PIECE))
                parts = [b"\r\n"]
    message.append(b"".join(parts))
    return message


ASKING = packed(("ASKING",))


def slot_of(key: bytes) -> int:
    """The hash slot of *key*."""
    return int(key_slot(key))


class DriverConnection(Protocol):
    """What we use of a connection of redis-py."""

    def send_packed_command(self, command: Any) -> None: ...

    def read_response(self) -> Any: ...

    def disconnect(self) -> None: ...


class _Connection:
    """One connection, and how its server confirms writes, once the first one has asked for it."""

    def __init__(self, driver: DriverConnection) -> None:
        self._driver = driver
        self._confirmation: Confirmation | None = None
        self.idle_since = 0.0

    def exchange(self, message: Message, count: int) -> list[Any]:
        """Send *message*, which holds *count* commands; their replies, errors among them."""
        self._driver.send_packed_command(message)
        replies = []
        for _ in range(count):
            try:
                replies.append(self._driver.read_response())
            except ResponseError as error:
                replies.append(error)
        return replies

    def write(self, message: Message, count: int, durability: Durability) -> list[Any]:
        """The same for commands that write; what they wrote is as safe as *durability* asks for.

        A new connection may be to a server that was restarted with other settings, or has taken
        over from another: so what it promises is looked at before the first write.
        """
        confirmation = self._confirmation
        if confirmation is None:
            confirmation = self._confirmation = durability.check(self.exchange)
        replies = self.exchange(message + confirmation.message, count + confirmation.count)
        answers = replies[:count]
        if not any(isinstance(answer, ResponseError) for answer in answers):
            confirmation.check(replies[count:])
        return answers

    def close(self) -> None:
        self._driver.disconnect()


class Server:
    """One server. A connection is used by one caller at a time, and kept for the next one.

    Nothing here is locked: what a deque does is atomic. There are as many connections as callers at
    one time, of which *pool* stay.
    """

    def __init__(
        self,
        address: tuple[str, int],
        connect: Callable[[str, int], DriverConnection],
        durability: Durability,
        pool: int,
    ) -> None:
        self.address = address
        self._connect = connect
        self._durability = durability
        self._pool = pool
        self._idle: deque[_Connection] = deque()
        self._closed = False

    def exchange(self, message: Message, count: int = 1, *, writes: bool = False) -> list[Any]:
        """Send *message*, which holds *count* commands; their replies, errors among them.

        *writes*: the replies come when what was written is as safe as was asked for.
        """
        connection = self._take()
        try:
            if writes:
                replies = connection.write(message, count, self._durability)
            else:
                replies = connection.exchange(message, count)
        except BaseException:
            # Whatever it was, the replies to come are not those that the next caller waits for;
            # and where one connection is broken, the idle ones are likely to be.
            connection.close()
            self.drop_idle()
            raise
        self._give_back(connection)
        return replies

    def _take(self) -> _Connection:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another caller was faster
                break
            if time.monotonic() - connection.idle_since < IDLE:
                return connection
            connection.close()
        return _Connection(self._connect(*self.address))

    def _give_back(self, connection: _Connection) -> None:
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        if self._closed:
            self.drop_idle()
        elif len(self._idle) > self._pool:
            self._idle.popleft().close()

    def drop_idle(self) -> None:
        """Close the idle connections."""
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def close(self) -> None:
        """Close all connections; those in use when they come back."""
        self._closed = True
        self.drop_idle()


class Servers:
    """Sends commands to the server that has their key.

    A cluster is known by asking one of its servers who has which slots. That is done again when a
    server says that a slot has moved, or does not answer. So are Sentinels, about their master.
    """

    def __init__(self, address: Address, durability: Durability, pool: int) -> None:
        self._address = address
        self._durability = durability
        self._pool = pool
        self._servers: dict[tuple[str, int], Server] = {}
        self._slots: list[Server | None] | None = None  # None: one server has them all
        self._master: Server | None = None  # as the Sentinels say, where there are any
        self._stale = False
        self._learning = threading.RLock()

    @property
    def clustered(self) -> bool:
        """Whether it is a cluster."""
        return self._slots is not None

    def first(self) -> Server:
        """The server that the URL names, or that its Sentinels do."""
        if self._address.sentinel is None:
            return self._server(self._address.hosts[0])
        master = self._master
        if master is not None and not self._stale:
            return master
        with self._learning:
            if self._master is None or self._stale:
                self._master, self._stale = self._ask_for_master(self._address.sentinel), False
                for address, server in list(self._servers.items()):
                    if server is not self._master:
                        self._servers.pop(address).close()
            return self._master

    def all(self) -> list[Server]:
        """Those that have keys, in a stable order."""
        if self._slots is None:
            return [self.first()]
        found = {server.address: server for server in self._slots if server is not None}
        return [found[address] for address in sorted(found)]

    # -- commands ------------------------------------------------------------------------------

    def send(self, slot: int, message: Message, *, writes: bool = False) -> Any:
        """The reply to *message*, which holds one command for *slot*."""
        server = self._server_of(slot)
        (reply,) = self.exchange(server, message, 1, writes=writes)
        for _ in range(REDIRECTS):
            if not isinstance(reply, AskError):  # or a MovedError, which is one
                break
            server = self._server((reply.host or server.address[0], reply.port))
            if type(reply) is MovedError:
                if self._slots is None:
                    # One server of a cluster that was none when we opened it.
                    raise ClusterDownError("it has become one of a cluster")
                self._slots[slot], self._stale = server, True
                (reply,) = self.exchange(server, message, 1, writes=writes)
            else:  # this key only, and for this time only
                _, reply = self.exchange(server, ASKING + message, 2, writes=writes)
        return reply

    def send_each(self, commands: Sequence[tuple[int, Sequence[Word]]]) -> list[Any]:
        """The replies to many *commands* that read, each with its slot: one message a server."""
        groups: dict[Server, list[int]] = {}
        for index, (slot, _) in enumerate(commands):
            groups.setdefault(self._server_of(slot), []).append(index)
        replies: list[Any] = [None] * len(commands)
        for server, group in groups.items():
            message = packed(*(commands[index][1] for index in group))
            answers = self.exchange(server, message, len(group))
            for index, answer in zip(group, answers, strict=True):
                replies[index] = answer
        for index, reply in enumerate(replies):
            if isinstance(reply, AskError):
                slot, words = commands[index]
                replies[index] = self.send(slot, packed(words))
        return replies

    def exchange(
        self, server: Server, message: Message, count: int, *, writes: bool = False
    ) -> list[Any]:
        """As `Server.exchange`; what shows that another may have its place is noted."""
        try:
            replies = server.exchange(message, count, writes=writes)
        except RedisError:
            self._stale = True  # another may have taken over from it
            raise
        if any(isinstance(reply, (ReadOnlyError, ClusterDownError)) for reply in replies):
            self._stale = True
            server.drop_idle()  # the name may stand for another server now
        return replies

    # -- who has what --------------------------------------------------------------------------

    def learn_slots(self) -> None:
        """Ask who has which slots: from here on this is a cluster."""
        with self._learning:
            if self._slots is not None and not self._stale:
                return  # another caller has asked meanwhile
            slots = self._ask_for_slots()
            self._slots, self._stale = slots, False
            used = {self.first(), *slots}
            for address, server in list(self._servers.items()):
                if server not in used:
                    self._servers.pop(address).close()

    def _ask_for_slots(self) -> list[Server | None]:
        trouble: Exception = ClusterDownError("no server")
        for server in dict.fromkeys([*self._servers.values(), self.first()]):
            try:
                (reply,) = server.exchange(packed(("CLUSTER", "SLOTS")))
                if isinstance(reply, ResponseError):
                    raise reply
            except RedisError as error:
                trouble = error
                continue
            slots: list[Server | None] = [None] * 16384
            for first, last, (host, port, *_), *_ in reply:
                # A server that does not know its own name is where we have asked.
                name = host.decode() if host else server.address[0]
                slots[first : last + 1] = [self._server((name, port))] * (last + 1 - first)
            return slots
        raise trouble

    def _ask_for_master(self, name: str) -> Server:
        """The first that a Sentinel takes for the master, and that is one."""
        away: RedisError | None = None  # why none could be asked
        trouble: Exception | None = None  # with what those said who could
        for host, port in self._address.hosts:
            sentinel = self._address.connect(host, port, sentinel=True)
            try:
                sentinel.send_packed_command(packed(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)))
                found = sentinel.read_response()
            except RedisError as error:
                away = error
                continue
            finally:
                sentinel.disconnect()
            if found is None:
                trouble = trouble or StoreError(
                    f"The Sentinels know no master {name!r}. Check sentinel= in the URL: it is the "
                    "name in their `sentinel monitor NAME …`."
                )
                continue
            server = self._server((found[0].decode(), int(found[1])))
            try:
                # A Sentinel may be behind, or ahead of a promotion.
                (role,) = server.exchange(packed(("HELLO",)))
                if isinstance(role, ResponseError):
                    raise role
                if b"master" in role:
                    return server
                trouble = ReadOnlyError(f"READONLY {host}:{port} names a replica")
            except RedisError as error:
                trouble = error
        raise trouble or away or ClusterDownError("no Sentinel")

    def _server_of(self, slot: int) -> Server:
        if self._slots is None:
            return self.first()
        if self._stale:
            self.learn_slots()
        server = self._slots[slot]
        if server is None:
            self._stale = True
            raise ClusterDownError(f"no server has slot {slot}")
        return server

    def _server(self, address: tuple[str, int]) -> Server:
        server = self._servers.get(address)
        if server is None:
            made = Server(address, self._address.connect, self._durability, self._pool)
            server = self._servers.setdefault(address, made)
        return server

    # -- the end, and fork ---------------------------------------------------------------------

    def close(self) -> None:
        """Close all connections."""
        for server in list(self._servers.values()):
            server.close()

    def after_fork_in_child(self) -> None:
        """The parent's connections are the parent's: leave them to it."""
        self._learning = threading.RLock()
        for server in self._servers.values():
            server.drop_idle()
