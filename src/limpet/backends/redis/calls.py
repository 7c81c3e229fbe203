"""Calls to the servers of a store: repeated until they are answered, and carried out once."""

from __future__ import annotations

import os
import re
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import NoScriptError, RedisError, ResponseError

from limpet.backends.contract import micros
from limpet.backends.redis.durability import Barrier, Standing, survey
from limpet.backends.redis.errors import in_doubt, passes, translate
from limpet.backends.redis.scripts import script
from limpet.backends.redis.servers import Servers, slot_of
from limpet.backends.redis.wire import Word, packed
from limpet.backends.retry import persist, unsure
from limpet.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from limpet.backends.redis.url import Target

__all__ = ["Calls"]

T = TypeVar("T")

#: For how long, in seconds, a call is known again; longer where calls go on for longer.
REMEMBER = 120.0

#: Seconds to look for a server when opening: whoever mistyped its name should not wait for long.
OPENING = 5.0

#: The first Redis that has what we use; every Valkey does.
OLDEST = (7, 0)


class _Writer:
    """Makes one call after the other, and numbers them."""

    __slots__ = ("name", "number")

    def __init__(self) -> None:
        self.name = os.urandom(8).hex()
        self.number = 0


class Calls:
    """What can be asked of the servers. Errors come out as ours.

    A call that writes has a writer, a number and a token: ``lua/common.lua`` says what for.
    """

    def __init__(self, url: str, target: Target, *, timeout: float, pool: int) -> None:
        self.url = url
        self.barrier: Barrier | None = None
        self.attempt = target.attempt
        self._timeout = timeout
        self._servers = Servers(target.host, target.port, target.connect, pool)
        self._remember = micros(max(REMEMBER, 3 * timeout))
        self._writers: deque[_Writer] = deque()
        self._engine = ""
        self._version: tuple[int, ...] = ()

    # -- the servers -------------------------------------------------------------------------

    @property
    def clustered(self) -> bool:
        """Whether there are several servers."""
        return self._servers.clustered

    def open(self) -> bool:
        """Find out whom we speak to; whether it takes writes."""
        hello = self._persist(self._greet, timeout=min(self._timeout, OPENING))
        if hello["mode"] == "cluster":
            self._persist(self._servers.learn)
        return self.clustered or hello["role"] == "master"

    def _greet(self) -> dict[str, str]:
        (answer,) = _answers(self._servers.first().exchange(packed(("HELLO",))))
        words = [word.decode() if isinstance(word, bytes) else str(word) for word in answer]
        hello = dict(zip(words[::2], words[1::2], strict=False))
        self._engine = hello["server"].capitalize()
        self._version = tuple(int(part) for part in re.findall(r"\d+", hello["version"]))
        if self._version < OLDEST:
            raise StoreError(
                f"{self.url} is {self._engine} {hello['version']}, which is too old. "
                "Redis 7.0, or any Valkey, is the first that will do."
            )
        return hello

    def standings(self) -> list[Standing]:
        """What the servers say of themselves."""
        return self._persist(
            lambda: [survey(node, self._engine, self._version) for node in self._servers.all()]
        )

    def try_disk(self) -> None:
        """Raise if a server cannot tell when a write is on its disk, and is to be asked."""
        if self.barrier is None or not self.barrier.disk:
            return
        message = packed(self.barrier.commands[0])
        for answer in self._persist(
            lambda: [node.exchange(message)[0] for node in self._servers.all()]
        ):
            if isinstance(answer, ResponseError):
                raise StoreError(
                    f"{self.url} is not as durable as durability=full asks: {answer} "
                    "Set appendonly yes in its configuration."
                ) from answer

    def close(self) -> None:
        """Let go of all connections."""
        self._servers.close()

    def after_fork_in_child(self) -> None:
        """Neither connections nor writers may be in two processes."""
        self._servers.after_fork_in_child()
        self._writers.clear()

    # -- calls -------------------------------------------------------------------------------

    def command(self, key: bytes, *words: Word) -> Any:
        """One command about *key*."""
        message, slot = packed(words), slot_of(key)
        return self._persist(lambda: _answers(self._servers.send(slot, message))[0])

    def commands(self, commands: Sequence[tuple[int, Sequence[Word]]]) -> list[Any]:
        """Many commands, each with its slot; their answers."""
        return self._persist(lambda: _answers(self._servers.each(commands)))

    def run(
        self,
        name: str,
        slot: int,
        keys: Sequence[bytes],
        args: Sequence[Word],
        *,
        writing: bool = False,
    ) -> Any:
        """Run a script in one round trip; what it has written is safe when the answer is here."""
        made = script(name)
        barrier = self.barrier if writing else None
        rest = (len(keys), *keys, *args)
        behind = barrier.commands if barrier else ()
        message = packed((b"EVALSHA", made.sha, *rest), *behind)

        def attempt() -> Any:
            answers = self._servers.send(slot, message, 1 + len(behind))
            if type(answers[0]) is NoScriptError:  # its first time here
                whole = packed((b"EVAL", made.text, *rest), *behind)
                answers = self._servers.send(slot, whole, 1 + len(behind))
            if isinstance(answers[0], ResponseError):
                raise answers[0]
            if barrier:
                barrier.check(answers[1:])
            return answers[0]

        return self._persist(attempt, writing=writing)

    def run_all(
        self, name: str, calls: Sequence[tuple[int, Sequence[bytes], Sequence[Word]]]
    ) -> list[Any]:
        """Run a script that only reads, many times; one message to each server."""
        made = script(name)

        def ask(*start: bytes) -> list[Any]:
            return self._servers.each(
                [(slot, (*start, len(keys), *keys, *args)) for slot, keys, args in calls]
            )

        def attempt() -> list[Any]:
            answers = ask(b"EVALSHA", made.sha)
            if any(type(answer) is NoScriptError for answer in answers):
                answers = ask(b"EVAL", made.text)
            return _answers(answers)

        return self._persist(attempt)

    def write(
        self,
        name: str,
        slot: int,
        keys: Sequence[bytes],
        *args: Word,
        begin: Callable[[], tuple[Sequence[bytes], Sequence[Word]]],
    ) -> list[Any]:
        """Run a script that writes to a journal, in effect once.

        *begin* has the keys and arguments that it needs beside if the journal is not there yet.
        """
        token = os.urandom(4).hex()
        try:
            writer = self._writers.pop()
        except IndexError:
            writer = _Writer()
        while True:
            writer.number += 1
            call = (writer.name, writer.number, token, self._remember, *args)
            answer: list[Any] = self.run(name, slot, keys, call, writing=True)
            if answer[0] == b"late":
                # A copy of this process has the same one, as when a virtual machine was cloned.
                writer = _Writer()
            elif answer[0] == b"absent":
                # By the same writer: should the first call come once more, it comes too late.
                more_keys, more_args = begin()
                keys, args = (*keys, *more_keys), (*args, *more_args)
            else:
                # A writer whose call has failed is not used again: that call may still come.
                self._writers.append(writer)
                return answer

    def _persist(
        self, attempt: Callable[[], T], *, timeout: float | None = None, writing: bool = False
    ) -> T:
        """Call *attempt* until it succeeds or the time is up; all it does may be done twice."""
        unanswered = False

        def once() -> T:
            nonlocal unanswered
            try:
                return attempt()
            except RedisError as error:
                unanswered = unanswered or (writing and in_doubt(error))
                raise

        try:
            return persist(
                once, timeout=self._timeout if timeout is None else timeout, passing=passes
            )
        except RedisError as error:
            ours = translate(error, self.url, writing=writing)
            raise (unsure(ours) if unanswered and not in_doubt(error) else ours) from error


def _answers(answers: list[Any]) -> list[Any]:
    """*answers*, unless one of them is an error."""
    for answer in answers:
        if isinstance(answer, ResponseError):
            raise answer
    return answers
