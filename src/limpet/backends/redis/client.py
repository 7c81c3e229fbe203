"""Calls to the servers of a store: repeated until they are answered, and carried out once."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from redis.exceptions import NoScriptError, ResponseError

from limpet.backends.contract import micros
from limpet.backends.redis.durability import Standing, survey
from limpet.backends.redis.errors import RedisErrors
from limpet.backends.redis.servers import Servers, Word, packed, slot_of
from limpet.backends.retry import repeat
from limpet.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from limpet.backends.redis.durability import Durability
    from limpet.backends.redis.servers import Server
    from limpet.backends.redis.url import Address

__all__ = ["Client"]

T = TypeVar("T")

#: For how long, in seconds, a call is known again; longer where calls go on for longer.
REMEMBER = 120.0

#: Seconds to look for a server when opening: whoever mistyped its name should not wait for long.
OPENING = 5.0

#: The first Redis that has what we use; every Valkey does.
OLDEST = (7, 0)

SCRIPTS = os.path.join(os.path.dirname(__file__), "lua")


class _Script(NamedTuple):
    """A Lua script, and the name by which a server knows it once it has seen it."""

    text: bytes
    sha: bytes


@cache
def _script(name: str) -> _Script:
    """``lua/NAME.lua``, with ``common.lua`` behind its first line, which holds its flags."""
    with open(os.path.join(SCRIPTS, f"{name}.lua"), "rb") as file:
        flags, body = file.readline(), file.read()
    with open(os.path.join(SCRIPTS, "common.lua"), "rb") as file:
        text = flags + file.read() + body
    return _Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


class _Writer:
    """Makes one call after the other, and numbers them."""

    __slots__ = ("name", "number")

    def __init__(self) -> None:
        self.name = os.urandom(8).hex()
        self.number = 0


class Client:
    """What can be asked of the servers. Errors come out as ours.

    A call that writes has a writer, a number and a token: see `answered` in lua/common.lua.
    """

    def __init__(
        self, url: str, address: Address, durability: Durability, *, timeout: float, pool: int
    ) -> None:
        self._url = url
        self._errors = RedisErrors(url)
        self._timeout = timeout
        self._servers = Servers(address, durability, pool)
        self._remember = micros(max(REMEMBER, 3 * timeout))
        self._writers: deque[_Writer] = deque()

    # -- the servers -------------------------------------------------------------------------

    @property
    def clustered(self) -> bool:
        """Whether it is a cluster."""
        return self._servers.clustered

    def open(self) -> list[Standing]:
        """Find the servers; what each says of itself."""
        standing = repeat(
            lambda: self._survey(self._servers.first()),
            self._errors,
            timeout=min(self._timeout, OPENING),
        )
        if standing.mode == "sentinel":
            raise StoreError(
                f"{self._url} is a Sentinel, which keeps no data. Add the name of its master to "
                "the URL: sentinel=NAME."
            )
        if standing.version < OLDEST:
            version = ".".join(map(str, standing.version))
            raise StoreError(
                f"{self._url} is {standing.engine} {version}, which is too old. "
                "Redis 7.0, or any Valkey, is the first that will do."
            )
        if not standing.clustered:
            return [standing]
        self._repeat(self._servers.learn_slots)
        return self.standings()

    def standings(self) -> list[Standing]:
        """What the servers say of themselves."""
        return self._repeat(lambda: [self._survey(server) for server in self._servers.all()])

    def _survey(self, server: Server) -> Standing:
        return survey(partial(self._servers.exchange, server))

    def close(self) -> None:
        """Close all connections."""
        self._servers.close()

    def after_fork_in_child(self) -> None:
        """Neither connections nor writers may be in two processes."""
        self._servers.after_fork_in_child()
        self._writers.clear()

    # -- calls -------------------------------------------------------------------------------

    def command(self, key: bytes, *words: Word, writes: bool = False) -> Any:
        """One command about *key*, which may be carried out twice."""
        message, slot = packed(words), slot_of(key)
        return self._repeat(
            lambda: _answer(self._servers.send(slot, message, writes=writes)), writes=writes
        )

    def commands(self, commands: Sequence[tuple[int, Sequence[Word]]]) -> list[Any]:
        """Many commands that read, each with its slot; their answers."""
        return self._repeat(lambda: [_answer(reply) for reply in self._servers.send_each(commands)])

    def run(
        self,
        name: str,
        slot: int,
        keys: Sequence[bytes],
        args: Sequence[Word],
        *,
        writes: bool = False,
    ) -> Any:
        """Run a script, in one round trip."""
        script, rest = _script(name), (len(keys), *keys, *args)
        message = packed((b"EVALSHA", script.sha, *rest))

        def attempt() -> Any:
            reply = self._servers.send(slot, message, writes=writes)
            if type(reply) is NoScriptError:  # its first time here
                whole = packed((b"EVAL", script.text, *rest))
                reply = self._servers.send(slot, whole, writes=writes)
            return _answer(reply)

        return self._repeat(attempt, writes=writes)

    def run_each(
        self, name: str, calls: Sequence[tuple[int, Sequence[bytes], Sequence[Word]]]
    ) -> list[Any]:
        """Run a script that reads many times, in one round trip to each server."""
        script = _script(name)

        def replies(*start: bytes) -> list[Any]:
            return self._servers.send_each(
                [(slot, (*start, len(keys), *keys, *args)) for slot, keys, args in calls]
            )

        def attempt() -> list[Any]:
            found = replies(b"EVALSHA", script.sha)
            if any(type(reply) is NoScriptError for reply in found):
                found = replies(b"EVAL", script.text)
            return [_answer(reply) for reply in found]

        return self._repeat(attempt)

    def write(
        self,
        name: str,
        slot: int,
        keys: Sequence[bytes],
        args: Sequence[Word],
        *,
        begin: Callable[[], tuple[Sequence[bytes], Sequence[Word]]] | None = None,
    ) -> list[Any]:
        """Run a script that writes to a journal, in effect once.

        *begin* has the keys and arguments that it needs besides if the journal is not there yet.
        """
        token = os.urandom(4).hex()
        try:
            writer = self._writers.pop()
        except IndexError:
            writer = _Writer()
        while True:
            writer.number += 1
            call = (writer.name, writer.number, token, self._remember, *args)
            answer: list[Any] = self.run(name, slot, keys, call, writes=True)
            if answer[0] == b"late":
                # A copy of this process has the same one, as when a virtual machine was cloned.
                writer = _Writer()
            elif answer[0] == b"absent" and begin is not None:
                # By the same writer: should the first call come once more, it comes too late.
                more_keys, more_args = begin()
                keys, args = (*keys, *more_keys), (*args, *more_args)
            else:
                # A writer whose call has failed is not used again: that call may still come.
                self._writers.append(writer)
                return answer

    def _repeat(self, attempt: Callable[[], T], *, writes: bool = False) -> T:
        return repeat(attempt, self._errors, timeout=self._timeout, writes=writes)


def _answer(reply: Any) -> Any:
    """*reply*, unless it is an error."""
    if isinstance(reply, ResponseError):
        raise reply
    return reply
