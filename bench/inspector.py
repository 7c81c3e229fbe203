"""The inspector, served by a process of its own: pages, their sizes, and those who follow.

Processors' time is that of the server; its memory is what the system says that it holds.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing
from functools import partial
from html import unescape
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import limpet
from bench._measure import Bench, Contest, Contestant, Row, Took, milliseconds, timed
from tests.support.doubtful import leave_in_doubt
from tests.support.filled import LONG, fill_long, fill_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL, LARGE, QUICKLY = 100, 100_000, 5_000
MEGABYTE = 1_000_000
#: Entries that are appended while somebody follows, so many a second; those who follow together.
APPENDED, RATE, FOLLOWERS = 50_000, 2_000, 200
KIND, ID = "order", "o-1"
EVENTS, PAGE = (f"/{page}?kind={KIND}&id={ID}" for page in ("events", "journal"))
#: Seconds for which nothing happens, to see what following costs.
IDLE = 5


def measure(bench: Bench) -> list[Row]:
    """Start, pages at two sizes, one who follows a busy journal, and two hundred who do."""
    large = QUICKLY if bench.quick else LARGE
    return [
        *_start(bench),
        *_pages(bench, large),
        *_following(bench),
    ]


class Server:
    """``limpet inspect`` of a store, and a browser that was let in."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "limpet", "--store", str(path), "inspect"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None  # noqa: S101 - for the type checker
        link = urlsplit(self.process.stdout.readline().strip())
        self.host, self.port = link.hostname or "", link.port or 0
        self.cookie = ""
        self.get(f"{link.path}?{link.query}")

    def get(self, path: str) -> bytes:
        """A page."""
        with closing(HTTPConnection(self.host, self.port, timeout=60)) as connection:
            connection.request("GET", path, headers={"Cookie": self.cookie})
            answer = connection.getresponse()
            body = answer.read()
        if answer.status != 200:
            msg = f"{path} was answered with {answer.status}"
            raise RuntimeError(msg)
        self.cookie = self.cookie or (answer.getheader("set-cookie") or "").partition(";")[0]
        return body

    def timed(self, path: str) -> Took:
        """How long that takes."""
        cpu, began = self.cpu, time.perf_counter()
        self.get(path)
        took = Took(time.perf_counter() - began)
        took.cpu = self.cpu - cpu
        return took

    @property
    def cpu(self) -> float:
        """Seconds that the server has had of the processors."""
        clock = (~self.process.pid << 3) | 2  # of another process, as Linux names it
        return time.clock_gettime(clock)

    @property
    def memory(self) -> float:
        """Megabytes that it holds."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text("ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / MEGABYTE

    @property
    def connections(self) -> int:
        """How many it has open."""
        files = Path(f"/proc/{self.process.pid}/fd").iterdir()
        return sum(str(file.readlink()).startswith("socket:") for file in files)

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


# -- from the command to the first page ------------------------------------------------------------


def _start(bench: Bench) -> Iterator[Row]:
    path = bench.path("start")
    with limpet.open(path) as store:
        fill_tasks(store, SMALL)
    contest = Contest()

    def bare() -> object:
        return subprocess.run([sys.executable, "-c", "print()"], check=True, capture_output=True)

    def first_page() -> Took:
        began = time.perf_counter()
        with closing(Server(path)) as server:
            server.get("/")
            took = Took(time.perf_counter() - began)
            took.cpu = server.cpu
            return took

    contestants = {"python": timed(bare), "page": first_page}
    Contest().round(contestants)  # compiles what was not
    for _ in bench.rounds(10, quick=2):
        contest.round(contestants)
    python, page = contest.typical("python"), contest.typical("page")
    yield Row(
        name="limpet inspect: from the command to the first page",
        value=page - python,
        unit="s",
        at_most=0.5,
        note=f"{milliseconds(page)} with Python's own start of {milliseconds(python)};"
        f" of a processor {milliseconds(contest.typical_cpu('page'))}",
    )


# -- pages -----------------------------------------------------------------------------------------


def _long_pages() -> dict[str, str]:
    """The pages of the journals of `LONG`."""
    task, chat, state, memory, order = (
        f"kind={kind}&id={LONG[kind]}"
        for kind in ("task", "conversation", "state", "memory", "order")
    )
    return {
        "a task": f"/task?{task}",
        "its entries": f"/journal?{task}",
        "its versions": f"/versions?{task}",
        "a conversation's entries": f"/journal?{chat}",
        "a conversation's versions": f"/versions?{chat}",
        "a conversation": f"/chat?{chat}",
        "what a model would be sent of it": f"/window?{chat}&max_tokens=1000",
        "a state": f"/state?{state}",
        "an old version of it": f"/state?{state}&at=60",
        "a state's versions": f"/versions?{state}",
        "what the last of them changed": f"/diff?{state}",
        "memories": f"/memory?{memory}",
        "entries of a kind of one's own": f"/journal?{order}",
    }


def _pages(bench: Bench, large: int) -> Iterator[Row]:
    with ExitStack() as stack:
        long, many = (
            {
                size: stack.enter_context(closing(Server(_filled(bench, name, size))))
                for size in (SMALL, large)
            }
            for name in ("long", "many")
        )
        stores = {"home": "/", "home, by kind": "/?kind=task", "doubts": "/doubts"}
        for server in many.values():
            _until_looked_through(server)
        asked = [
            *((name, long, path) for name, path in _long_pages().items()),
            *((f"{name}, of so many journals", many, path) for name, path in stores.items()),
        ]
        contests: dict[str, Contest] = {}
        sizes: dict[str, float] = {}
        contestants: dict[str, dict[str, Contestant]] = {}
        for name, servers, path in asked:
            there = _of(servers, path)
            if there is None:
                continue
            follow = {size: _next(server.get(path)) for size, server in servers.items()}
            pages = {name: dict.fromkeys(servers, path)}
            if all(follow.values()):
                pages[f"{name}, the next page"] = {k: v or "" for k, v in follow.items()}
            for one, paths in pages.items():
                contests[one] = Contest()
                bodies = [len(servers[size].get(paths[size])) for size in (SMALL, large)]
                sizes[one] = bodies[1] / bodies[0]
                contestants[one] = {
                    "small": partial(servers[SMALL].timed, paths[SMALL]),
                    "large": partial(servers[large].timed, paths[large]),
                }
        for _ in bench.rounds(5, quick=2):
            for one, contest in contests.items():
                contest.round(contestants[one], calls=10)
        for one, contest in contests.items():
            yield Row(
                name=f"{one}: {large:,} to {SMALL}",
                value=contest.ratio("large", to="small"),
                at_most=1.3,
                note=f"{milliseconds(contest.typical('large'))};"
                f" {contest.cpu('large', 'small')}; bytes {sizes[one]:.2f}",
                figures={"cpu": contest.cpu_ratio("large", "small"), "bytes": sizes[one]},
            )
        most = max(sizes, key=sizes.__getitem__)
        yield Row(
            name=f"bytes of any of these pages: {large:,} to {SMALL}",
            value=sizes[most],
            at_most=1.3,
            note=f"most of all {most}",
        )


def _of(servers: dict[int, Server], path: str) -> str | None:
    """*path*, if there is such a page."""
    try:
        for server in servers.values():
            server.get(path)
    except RuntimeError:
        return None
    return path


def _filled(bench: Bench, name: str, size: int) -> Path:
    path = bench.path(f"{name}-{size}")
    with limpet.open(f"sqlite:{path}?durability=normal") as store:
        if name == "long":
            fill_long(store, size)
        else:
            fill_tasks(store, size, failed=2)
            for number in range(80):  # more than a page
                leave_in_doubt(store, "order", f"o-{number}", "ship")
    return path


def _until_looked_through(server: Server) -> None:
    """Wait until it has seen every journal once."""
    while b", looked through" not in server.get("/"):
        time.sleep(0.2)


def _next(page: bytes) -> str | None:
    """Where a page says that the next one is."""
    found = re.search(r'<a href="([^"]+)" rel="next"', page.decode())
    return unescape(found[1]) if found else None


# -- following -------------------------------------------------------------------------------------


def _following(bench: Bench) -> Iterator[Row]:
    path = bench.path("followed")
    with limpet.open(f"sqlite:{path}?durability=normal") as store:
        journal = store.journal(KIND, ID)
        journal.append(("moved", 0))
        with closing(Server(path)) as server:
            yield _one_busy(bench, server, journal)
        with closing(Server(path)) as server:
            yield from asyncio.run(_many(bench, server, journal))


def _one_busy(bench: Bench, server: Server, journal: limpet.Journal) -> Row:
    """What the server holds while one page follows a journal to which others append."""
    appended, shown = APPENDED // 10 if bench.quick else APPENDED, 0
    ended = threading.Event()

    def follow() -> None:
        nonlocal shown
        with closing(HTTPConnection(server.host, server.port, timeout=60)) as connection:
            connection.request("GET", EVENTS, headers={"Cookie": server.cookie})
            events = connection.getresponse()
            while not ended.is_set():
                if events.readline().startswith(b"data:"):
                    server.get(PAGE)
                    shown += 1

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    held: list[float] = []
    began = time.perf_counter()
    for number in range(1, appended + 1):
        journal.append(("moved", {"to": f"place {number:06}", "why": "it was asked to"}))
        if number % 100 == 0:
            held.append(server.memory)
            time.sleep(max(0.0, began + number / RATE - time.perf_counter()))
    ended.set()
    journal.append(("moved", "for the last time"))
    follower.join()
    fifth = len(held) // 5
    return Row(
        name=f"memory that {appended:,} appends to a journal add, while a page follows it",
        value=max(held[fifth:]) - max(held[:fifth]),
        unit="MB",
        at_most=4,
        note=f"{held[-1]:.0f} MB at the end; after the first fifth; shown anew {shown} times",
    )


async def _many(bench: Bench, server: Server, journal: limpet.Journal) -> list[Row]:
    """Those who follow one journal at the same time: when all know of a change, and have it."""
    server.get(PAGE)
    memory, before = server.memory, server.connections
    clients = [await _open(server, EVENTS) for _ in range(FOLLOWERS)]
    for reader, _ in clients:
        await reader.readuntil(b": following\n\n")
    opened = server.connections - before
    cpu = server.cpu
    await asyncio.sleep(IDLE)
    idle = (server.cpu - cpu) / IDLE

    async def told(reader: asyncio.StreamReader) -> float:
        await reader.readuntil(b"data:")
        known = time.perf_counter()
        page, writer = await _open(server, PAGE)
        while await page.read(65_536):
            pass
        writer.close()
        return known

    know, have, cpus = [], [], []
    for number in bench.rounds(7, quick=2):
        await asyncio.sleep(0.13 * number)  # at another moment between two looks
        cpu, began = server.cpu, time.perf_counter()
        await asyncio.to_thread(journal.append, ("moved", number))
        ends = await asyncio.gather(*(told(reader) for reader, _ in clients))
        know.append(max(ends) - began)
        have.append(time.perf_counter() - began)
        cpus.append(server.cpu - cpu)
    held = server.memory
    for _, writer in clients:
        writer.close()
    began = time.perf_counter()
    while server.connections > before and time.perf_counter() - began < 60:  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.1)
    return [
        Row(
            name=f"an append, until {FOLLOWERS} who follow have all been told",
            value=statistics.median(know),
            unit="s",
            at_most=2,
            note=f"and have the new page after {statistics.median(have):.2f} s, for"
            f" {statistics.median(cpus):.2f} s of a processor; nothing happens: {idle:.1%} of one",
        ),
        Row(
            name=f"memory for {FOLLOWERS} who follow",
            value=held - memory,
            unit="MB",
            at_most=50,
            note=f"{held:.0f} MB in all; {opened} connections more while they follow,"
            f" {server.connections - before} when they have gone",
        ),
    ]


async def _open(server: Server, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of its own, on which *path* is asked for."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    lines = (
        f"GET {path} HTTP/1.1",
        f"Host: {server.host}:{server.port}",
        f"Cookie: {server.cookie}",
        "Connection: close",
    )
    writer.write("\r\n".join((*lines, "", "")).encode())
    return reader, writer
