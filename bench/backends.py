"""A row a backend: one turn appended, against the shortest durable write to the same place."""

# ruff: noqa: D102  # Floor describes the methods, once for all of them

from __future__ import annotations

import os
import statistics
from abc import ABC, abstractmethod
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import limpet
from bench._measure import (
    Bench,
    Contest,
    Contestant,
    Row,
    make_bodies,
    make_turns,
    milliseconds,
    slice_of_threads,
    timed,
)
from tests.support import servers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

SHORT, LONG = 10, 5_000
TURNS = make_turns(LONG)
BODIES = make_bodies(TURNS)
WRITERS = 16


class Floor(ABC):
    """The shortest durable write to a place, through the driver that Limpet uses."""

    what: ClassVar[str]
    at_most: ClassVar[float] = 1.3

    @abstractmethod
    def __init__(self, url: str) -> None:
        """Connect to the place of *url*."""

    @abstractmethod
    def write(self, body: bytes) -> None:
        """One write, durable on return."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection."""


class FileFloor(Floor):
    """Write and fdatasync, to a file that is open."""

    what = "write + fdatasync"

    def __init__(self, url: str) -> None:
        path = url.removeprefix("file:") + "-floor"
        self._handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def write(self, body: bytes) -> None:
        os.write(self._handle, body)
        os.fdatasync(self._handle)

    def close(self) -> None:
        os.close(self._handle)


class PostgresFloor(Floor):
    """One prepared INSERT, autocommitted."""

    what = "an INSERT"

    def __init__(self, url: str) -> None:
        import psycopg  # noqa: PLC0415 - only where this server is measured

        self._connection = psycopg.connect(url.partition("?")[0], autocommit=True)
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS floor (conversation text NOT NULL, body bytea NOT NULL)"
        )

    def write(self, body: bytes) -> None:
        self._connection.execute(
            "INSERT INTO floor VALUES (%b, %b)", ("chat", body), prepare=True, binary=True
        )

    def close(self) -> None:
        self._connection.close()


class RedisFloor(Floor):
    """A script that counts up and adds to a stream: the least that an atomic append is."""

    what = "a scripted append"
    at_most = 1.2

    _SCRIPT = """
    local seq = redis.call('HINCRBY', KEYS[1], 'seq', 1)
    redis.call('XADD', KEYS[2], seq .. '-0', 'body', ARGV[1])
    return seq
    """

    def __init__(self, url: str) -> None:
        import redis  # noqa: PLC0415 - only where this server is measured

        at = urlsplit(url)
        self._client = redis.Redis(at.hostname or "", at.port or 0, password=at.password)
        self._append = self._client.register_script(self._SCRIPT)
        self._keys = ["floor:head", "floor:records"]

    def write(self, body: bytes) -> None:
        self._append(keys=self._keys, args=[body])

    def close(self) -> None:
        self._client.close()


class DynamoFloor(Floor):
    """One put_item on condition that it is new."""

    what = "a conditional put"

    def __init__(self, url: str) -> None:
        import boto3  # noqa: PLC0415 - only where this server is measured

        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        self._client: Any = boto3.client(
            "dynamodb", endpoint_url=query["endpoint_url"], region_name=query["region"]
        )
        self._seq = 0
        keys = {"chat": "S", "seq": "N"}
        self._client.create_table(
            TableName="floor",
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[
                {"AttributeName": name, "AttributeType": kind} for name, kind in keys.items()
            ],
            KeySchema=[
                {"AttributeName": "chat", "KeyType": "HASH"},
                {"AttributeName": "seq", "KeyType": "RANGE"},
            ],
        )

    def write(self, body: bytes) -> None:
        self._seq += 1
        self._client.put_item(
            TableName="floor",
            Item={"chat": {"S": "chat"}, "seq": {"N": str(self._seq)}, "body": {"B": body}},
            ConditionExpression="attribute_not_exists(seq)",
        )

    def close(self) -> None:
        self._client.close()


# -- what is measured ------------------------------------------------------------------------------


def measure(bench: Bench) -> list[Row]:
    """Every backend in turn; its server runs only for as long."""
    rows: list[Row] = []
    places = iter(PLACES)
    for _ in bench.rounds(len(PLACES), quick=len(PLACES)):
        name, place, floor = next(places)
        with place(bench) as url:
            rows += _appends(bench, name, url, floor)
            if floor is PostgresFloor:
                rows.append(_writers(bench, name, url))
    return rows


def _appends(bench: Bench, name: str, url: str, floor: type[Floor]) -> list[Row]:
    calls, rounds, length = (20, 2, 200) if bench.quick else (50, 8, LONG)
    contest = Contest()
    with closing(floor(url)) as raw, limpet.open(url) as store:
        contestants: dict[str, Contestant] = {
            "raw": timed(partial(next, _writes(raw))),
            "short": timed(partial(next, _to_short(store, calls * (rounds + 1)))),
            "long": timed(partial(next, _to_long(store, length))),
        }
        Contest().round(contestants, calls)  # to warm up
        for _ in range(rounds):
            contest.round(contestants, calls)
    ours, raws = milliseconds(contest.typical("short")), milliseconds(contest.typical("raw"))
    return [
        Row(
            name=f"{name}, append a turn against {floor.what}",
            value=contest.ratio("short", to="raw"),
            at_most=floor.at_most,
            note=f"{ours}, raw {raws}; {contest.cpu('short', to='raw')} of this process",
        ),
        Row(
            name=f"{name}, append a turn to {length:,} against to {SHORT}",
            value=contest.ratio("long", to="short"),
            at_most=1.1,
        ),
    ]


def _writes(raw: Floor) -> Iterator[None]:
    for body in cycle(BODIES):
        raw.write(body)
        yield


def _to_short(store: limpet.Store, calls: int) -> Iterator[None]:
    """Append to conversations of some ten turns, each until it has twice as many."""
    chats = [store.conversation(f"short-{number}") for number in range(calls // SHORT + 1)]
    for chat in chats:
        for turn in TURNS[:SHORT]:
            chat.append(*turn)
    yield  # so that the preparation is not the first call's
    for chat in chats:
        for turn in TURNS[:SHORT]:
            chat.append(*turn)
            yield


def _to_long(store: limpet.Store, length: int) -> Iterator[None]:
    chat = store.conversation("long")
    for turn in TURNS[:length]:
        chat.append(*turn)
    yield
    for turn in cycle(TURNS):
        chat.append(*turn)
        yield


def _writers(bench: Bench, name: str, url: str) -> Row:
    """Threads with a connection each, raw; and as many threads on one store."""
    seconds, rounds = (0.3, 2) if bench.quick else (0.7, 8)
    ratios, rates = [], []
    with ExitStack() as stack:
        raws = [stack.enter_context(closing(PostgresFloor(url))) for _ in range(WRITERS)]
        store = stack.enter_context(limpet.open(url, pool=WRITERS))
        chats = [store.conversation(f"writer-{number}") for number in range(WRITERS)]
        ways: dict[str, list[Callable[[], object]]] = {
            "raw": [partial(raw.write, body) for raw, body in zip(raws, BODIES, strict=False)],
            "ours": [partial(chat.append, *turn) for chat, turn in zip(chats, TURNS, strict=False)],
        }
        for calls in ways.values():
            slice_of_threads(calls, seconds)  # to warm up
        for _ in range(rounds):
            done = {way: sum(slice_of_threads(calls, seconds)) for way, calls in ways.items()}
            ratios.append(done["ours"] / done["raw"])
            rates.append([done[way] / seconds for way in ("ours", "raw")])
    ours, raw_rate = (statistics.median(each) for each in zip(*rates, strict=True))
    return Row(
        name=f"{name}, {WRITERS} threads, appends a second against INSERTs",
        value=statistics.median(ratios),
        at_least=0.9,
        note=f"{ours:,.0f}, raw {raw_rate:,.0f}",
    )


# -- the places ------------------------------------------------------------------------------------


@contextmanager
def _directory(bench: Bench) -> Iterator[str]:
    yield f"file:{bench.path('files')}"


@contextmanager
def _server(kind: type[servers.Server], _: Bench) -> Iterator[str]:
    os.environ.update(servers.AWS_ENVIRONMENT)
    with kind() as server:
        yield server.place()


PLACES: list[tuple[str, Callable[[Bench], AbstractContextManager[str]], type[Floor]]] = [
    ("file:", _directory, FileFloor),
    ("PostgreSQL", partial(_server, servers.PostgresServer), PostgresFloor),
    ("Redis", partial(_server, servers.RedisServer), RedisFloor),
    ("Valkey", partial(_server, servers.ValkeyServer), RedisFloor),
    ("DynamoDB Local", partial(_server, servers.DynamoServer), DynamoFloor),
]
