"""Connections to one Redis or Valkey server: made by redis-py, pooled and fed here.

redis-py's own client costs as much again as the server does, tries again by rules that cannot know
what may be done twice, and in a cluster cannot send a command behind another to the same server.
So of redis-py there are its connections: sockets, TLS, logging in, parsing what comes back.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from redis.exceptions import ResponseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Message", "Node", "Wire", "Word", "packed"]

Word: TypeAlias = bytes | str | int
Message: TypeAlias = list[bytes | memoryview]

#: Bytes of a long message that go out at once: each piece may take the whole timeout.
PIECE = 1 << 18

#: Seconds after which an idle connection is not trusted: a firewall may have forgotten it.
IDLE = 60.0


class Wire(Protocol):
    """What we use of a connection of redis-py."""

    def send_packed_command(self, command: Any) -> None: ...

    def read_response(self) -> Any: ...

    def disconnect(self) -> None: ...


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
                message += (b"".join((*parts, b"$%d\r\n" % len(data))), *_pieces(data))
                parts = [b"\r\n"]
    message.append(b"".join(parts))
    return message


def _pieces(data: bytes) -> Iterator[memoryview]:
    view = memoryview(data)
    return (view[start : start + PIECE] for start in range(0, len(view), PIECE))


class Node:
    """One server. A connection is used by one caller at a time, and kept for the next one.

    Nothing here is locked: what a deque does is atomic. There are as many connections as callers at
    one time, of which *keep* stay.
    """

    def __init__(self, address: tuple[str, int], connect: Callable[[], Wire], keep: int) -> None:
        self.address = address
        self._connect = connect
        self._keep = keep
        self._idle: deque[tuple[Wire, float]] = deque()
        self._closed = False

    def exchange(self, message: Message, count: int = 1) -> list[Any]:
        """Send *message*, which holds *count* commands; their replies, errors among them."""
        wire = self._take()
        try:
            wire.send_packed_command(message)
            replies = [_reply(wire) for _ in range(count)]
        except BaseException:
            # Whatever it was, the replies to come are not those that the next caller waits for;
            # and where one connection is broken, the idle ones are likely to be.
            wire.disconnect()
            self.drop()
            raise
        self._give_back(wire)
        return replies

    def _take(self) -> Wire:
        while self._idle:
            try:
                wire, since = self._idle.pop()
            except IndexError:  # another caller was faster
                break
            if time.monotonic() - since < IDLE:
                return wire
            wire.disconnect()
        return self._connect()

    def _give_back(self, wire: Wire) -> None:
        self._idle.append((wire, time.monotonic()))
        if self._closed:
            self.drop()
        elif len(self._idle) > self._keep:
            self._idle.popleft()[0].disconnect()

    def drop(self) -> None:
        """Let go of the idle connections."""
        while self._idle:
            try:
                self._idle.pop()[0].disconnect()
            except IndexError:
                return

    def close(self) -> None:
        """Keep no connection any more."""
        self._closed = True
        self.drop()


def _reply(wire: Wire) -> Any:
    try:
        return wire.read_response()
    except ResponseError as error:
        return error
