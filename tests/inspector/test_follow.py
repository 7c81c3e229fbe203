"""Pages that follow a journal: told of every change, at no cost to each other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from tests.support.browser import inspected
from tests.support.processes import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.inspector.follow import Followers
    from tests.support.browser import Inspected

MESSAGE = {"role": "user", "content": "hello"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[limpet.Store]:
    """One with a conversation."""
    with limpet.open(tmp_path / "agents.db") as opened:
        opened.conversation("busy").append(MESSAGE)
        yield opened


class Client:
    """A browser's connection, that follows."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._unread = b""

    @classmethod
    async def follow(cls, served: Inspected, cookie: str, seen: str = "") -> Client:
        """Ask for the events of the conversation."""
        reader, writer = await asyncio.open_connection(*served.host.split(":"))
        client = cls(reader, writer)
        writer.write(
            f"GET /events?kind=conversation&id=busy&seen={seen} HTTP/1.1\r\nHost: {served.host}\r\n"
            f"Cookie: {cookie}\r\n\r\n".encode()
        )
        await writer.drain()
        await client.until(b": following")
        return client

    async def until(self, what: bytes) -> None:
        """Read on until *what* comes, and no further: events may come in one piece."""
        while what not in self._unread:
            got = await asyncio.wait_for(self._reader.read(4_096), 60)
            assert got, self._unread
            self._unread += got
        self._unread = self._unread.partition(what)[2]

    async def leave(self) -> None:
        """As a browser does that is closed."""
        self._writer.close()
        await self._writer.wait_closed()


async def enter(served: Inspected) -> str:
    """The cookie of somebody who was let in."""
    reader, writer = await asyncio.open_connection(*served.host.split(":"))
    path = served.link().removeprefix(served.url)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {served.host}\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    writer.close()
    await writer.wait_closed()
    (line,) = (line for line in head.split("\r\n") if line.lower().startswith("set-cookie:"))
    return line.partition(": ")[2].partition(";")[0]


def memory() -> int:
    """Bytes that this process, which the server is a part of, holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4_096


def test_two_hundred_clients_are_told_of_a_change(store: limpet.Store) -> None:
    """And cost the store what one does: one watcher looks for all of them."""

    async def follow(served: Inspected) -> None:
        cookie = await enter(served)
        clients = await asyncio.gather(*(Client.follow(served, cookie) for _ in range(200)))
        looked = count_heads(store)
        await asyncio.to_thread(store.conversation("busy").append, MESSAGE)
        await asyncio.gather(*(client.until(b"data: ") for client in clients))
        assert looked[0] < 100
        await asyncio.gather(*(client.leave() for client in clients))

    with inspected(store) as served:
        asyncio.run(follow(served))


def count_heads(store: limpet.Store) -> list[int]:
    """How often somebody looks at a head, from now on."""
    looked, head = [0], store.backend.head

    def counted(*args: Any) -> Any:
        looked[0] += 1
        return head(*args)

    store.backend.head = counted  # type: ignore[method-assign, assignment]
    return looked


def test_nobody_looks_when_nobody_follows(store: limpet.Store) -> None:
    """An inspector that is left open costs nothing."""

    async def follow(served: Inspected) -> None:
        cookie = await enter(served)
        first = await Client.follow(served, cookie)
        second = await Client.follow(served, cookie)
        await first.leave()  # who began to watch goes, and the other is told all the same
        await asyncio.to_thread(store.conversation("busy").append, MESSAGE)
        await second.until(b"data: ")
        await second.leave()

    with inspected(store) as served:
        asyncio.run(follow(served))
        followers: Followers = served.inspector._parts.followers
        assert until(lambda: not followers._topics and not followers._count)


def test_what_came_before_a_page_began_to_follow_is_told(store: limpet.Store) -> None:
    """Between what it shows and when it follows there is time for an entry."""

    async def follow(served: Inspected) -> None:
        cookie = await enter(served)
        shown = await Client.follow(served, cookie, seen="1")
        await asyncio.to_thread(store.conversation("busy").append, MESSAGE)
        late = await Client.follow(served, cookie, seen="1")
        for client in (late, shown):
            await client.until(b"data: ")
            await client.leave()

    with inspected(store) as served:
        asyncio.run(follow(served))


def test_memory_stays_flat_while_clients_follow_a_busy_journal(store: limpet.Store) -> None:
    """One that reads, and twenty that never do: nothing is queued for anybody."""

    async def follow(served: Inspected) -> None:
        cookie = await enter(served)
        reads = await Client.follow(served, cookie)
        idle = [await Client.follow(served, cookie) for _ in range(20)]
        await asyncio.to_thread(write, 500)
        before = memory()
        await asyncio.to_thread(write, 10_000)
        await reads.until(b"data: ")
        assert memory() - before < 8_000_000
        for client in (reads, *idle):
            await client.leave()

    def write(many: int) -> None:
        busy = store.conversation("busy")
        for _ in range(many // 100):
            busy.append(*[MESSAGE] * 100)

    with inspected(store) as served:
        asyncio.run(follow(served))


def test_a_journal_that_is_deleted_and_begun_again_is_a_change(store: limpet.Store) -> None:
    """The numbers are the same; what they number is not."""

    async def follow(served: Inspected) -> None:
        cookie = await enter(served)
        client = await Client.follow(served, cookie)
        await asyncio.sleep(0)
        await asyncio.to_thread(again)
        await client.until(b"data: ")
        await client.leave()

    def again() -> None:
        assert until(lambda: looked[0] > 1)  # the watcher has seen the first one
        store.conversation("busy").delete()
        store.conversation("busy").append(MESSAGE)

    with inspected(store) as served:
        looked = count_heads(store)
        asyncio.run(follow(served))
