"""The servers behind one URL: a lone one, or a cluster, in which every key has its server."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from limpet.backends.redis.wire import Message, Node, Word, packed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from limpet.backends.redis.wire import Wire

__all__ = ["Servers", "slot_of"]

#: How often a call is sent on before we give the cluster time to agree with itself.
REDIRECTS = 5

ASKING = packed(("ASKING",))


def slot_of(key: bytes) -> int:
    """The hash slot of *key*."""
    return int(key_slot(key))


class Servers:
    """Sends commands to the server that has their key.

    A cluster is known by asking one of its servers who has which slots. That is done again when a
    server says that a slot has moved, or does not answer.
    """

    def __init__(
        self, host: str, port: int, connect: Callable[[str, int], Wire], keep: int
    ) -> None:
        self._connect = connect
        self._keep = keep
        self._seed = (host, port)
        self._nodes: dict[tuple[str, int], Node] = {}
        self._slots: list[Node | None] | None = None  # None: one server has them all
        self._stale = False
        self._asking = threading.Lock()

    @property
    def clustered(self) -> bool:
        """Whether there are several."""
        return self._slots is not None

    def first(self) -> Node:
        """The server that the URL names."""
        return self._node(self._seed)

    def all(self) -> list[Node]:
        """Those that have keys, in a stable order."""
        if self._slots is None:
            return [self.first()]
        found = {node.address: node for node in self._slots if node is not None}
        return [found[address] for address in sorted(found)]

    # -- commands ------------------------------------------------------------------------------

    def send(self, slot: int, message: Message, count: int = 1) -> list[Any]:
        """The replies to *message*, the first of whose *count* commands is for *slot*."""
        node = self._having(slot)
        replies = self._exchange(node, message, count)
        for _ in range(REDIRECTS):
            answer = replies[0]
            if not isinstance(answer, AskError):  # or a MovedError, which is one
                break
            node = self._node((answer.host or node.address[0], answer.port))
            if type(answer) is MovedError:
                self._move(slot, node)
                replies = self._exchange(node, message, count)
            else:  # this key only, and for this time only
                replies = self._exchange(node, ASKING + message, count + 1)[1:]
        return replies

    def each(self, commands: Sequence[tuple[int, Sequence[Word]]]) -> list[Any]:
        """The replies to many *commands*, each with its slot: one message to each server."""
        groups: dict[Node, list[int]] = {}
        for index, (slot, _) in enumerate(commands):
            groups.setdefault(self._having(slot), []).append(index)
        replies: list[Any] = [None] * len(commands)
        for node, group in groups.items():
            message = packed(*(commands[index][1] for index in group))
            answers = self._exchange(node, message, len(group))
            for index, answer in zip(group, answers, strict=True):
                replies[index] = answer
        for index, answer in enumerate(replies):
            if isinstance(answer, AskError):
                slot, words = commands[index]
                replies[index] = self.send(slot, packed(words))[0]
        return replies

    def _exchange(self, node: Node, message: Message, count: int) -> list[Any]:
        try:
            replies = node.exchange(message, count)
        except RedisError:
            self._stale = True  # it may be another's turn now
            raise
        if isinstance(replies[0], (ReadOnlyError, ClusterDownError)):
            self._stale = True
            node.drop()  # the name may stand for another server now
        return replies

    # -- who has what --------------------------------------------------------------------------

    def learn(self) -> None:
        """Ask who has which slots: from here on this is a cluster."""
        with self._asking:
            if self._slots is not None and not self._stale:
                return  # another caller has asked meanwhile
            slots = self._ask()
            self._slots, self._stale = slots, False
            used = {self._seed, *(node.address for node in slots if node is not None)}
            for address in self._nodes.keys() - used:
                self._nodes.pop(address).close()

    def _having(self, slot: int) -> Node:
        if self._slots is None:
            return self._node(self._seed)
        if self._stale:
            self.learn()
        node = self._slots[slot]
        if node is None:
            self._stale = True
            raise ClusterDownError(f"no server has slot {slot}")
        return node

    def _move(self, slot: int, node: Node) -> None:
        if self._slots is None:
            # One server of a cluster that was none when we opened it.
            raise ClusterDownError("it has become one of a cluster")
        self._slots[slot] = node
        self._stale = True

    def _ask(self) -> list[Node | None]:
        trouble: Exception | None = None
        for node in dict.fromkeys([*self._nodes.values(), self.first()]):
            try:
                (answer,) = node.exchange(packed(("CLUSTER", "SLOTS")))
            except RedisError as error:
                trouble = error
                continue
            if not isinstance(answer, ResponseError):
                return self._map(answer, node.address[0])
            trouble = answer
        raise trouble or ClusterDownError("no server")

    def _map(self, answer: Iterable[Any], asked: str) -> list[Node | None]:
        slots: list[Node | None] = [None] * 16384
        for first, last, (host, port, *_), *_ in answer:
            # A server that does not know its own name is where we have asked.
            node = self._node((host.decode() if host else asked, port))
            slots[first : last + 1] = [node] * (last + 1 - first)
        return slots

    def _node(self, address: tuple[str, int]) -> Node:
        node = self._nodes.get(address)
        if node is None:
            made = Node(address, lambda: self._connect(*address), self._keep)
            node = self._nodes.setdefault(address, made)
        return node

    # -- the end, and fork ---------------------------------------------------------------------

    def close(self) -> None:
        """Let go of all connections."""
        for node in list(self._nodes.values()):
            node.close()

    def after_fork_in_child(self) -> None:
        """The parent's connections are the parent's: leave them to it."""
        self._asking = threading.Lock()
        for node in self._nodes.values():
            node.drop()
