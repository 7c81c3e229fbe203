"""Tables of DynamoDB for the tests: to write to, to look into, and a server that answers badly.

from tests.support import tables

url, store = tables.url, tables.store
"""

from __future__ import annotations

import http.client
import json
import math
import threading
from collections import deque
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from limpet.backends.contract import Append, Appended, Expect, Key
from limpet.backends.dynamodb import DynamoBackend, appends, records
from limpet.backends.dynamodb.layout import index_partition, partition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.backends.contract import Backend, Record
    from tests.support.servers import Server

KEY = Key("acme", "note", "one")
HELLO = {"role": "user", "content": "hello"}
HOUR, DAY = 3_600, 86_400


@pytest.fixture
def url(dynamodb_server: Server) -> str:
    """A place that nobody has used."""
    return dynamodb_server.place()


@pytest.fixture
def store(url: str) -> Iterator[DynamoBackend]:
    """A backend on it."""
    backend = DynamoBackend.from_url(url)
    yield backend
    backend.close()


@pytest.fixture
def other(store: DynamoBackend, url: str) -> Iterator[DynamoBackend]:
    """Another on the same table, as another process would have it."""
    backend = DynamoBackend.from_url(url)
    yield backend
    backend.close()


def append(backend: Backend, body: bytes = b"x", key: Key = KEY, **request: Any) -> Appended:
    """Append one record of one entry, unless *request* says otherwise; `expect` may be a number."""
    if isinstance(request.get("expect"), int):
        request["expect"] = Expect(None, request["expect"])
    return backend.append(Append(**{"key": key, "body": body, "count": 1, **request}))


def change(backend: Backend, **request: Any) -> Appended:
    """Append no record."""
    return append(backend, b"", count=0, **request)


def fill(backend: Backend, records: int = 60, **request: Any) -> None:
    """Enough for some chunks."""
    for number in range(records):
        append(backend, f"{number:0300}".encode(), **request)


def items(backend: DynamoBackend, key: Key = KEY) -> dict[str, dict[str, Any]]:
    """All that is stored of one journal, its head and its entry in the index too."""
    table = backend._table
    listed = {"index": table.get(index_partition(key.tenant, key.kind), key.id)}
    own = {item["sk"]["S"]: item for item in table.query(partition(key), " ", "~")}
    return {name: item for name, item in {**listed, **own}.items() if item is not None}


def moments(backend: DynamoBackend) -> dict[str, float]:
    """From when on DynamoDB may remove what is stored of the journal, in seconds."""
    return {
        name: int(item["remove_after"]["N"]) if "remove_after" in item else math.inf
        for name, item in items(backend).items()
    }


def bodies(records: list[Record]) -> list[bytes]:
    """What is in them."""
    return [record.body for record in records]


class Later:
    """A server that is ahead of itself, for those who ask this backend."""

    def __init__(self, backend: DynamoBackend) -> None:
        self._clock = backend._table.clock
        self._now = self._clock.now
        self._ahead = 0.0
        self._clock.now = self.now  # type: ignore[method-assign]

    def now(self) -> int:
        """The time there."""
        return self._now() + round(self._ahead * 1e6)

    def by(self, seconds: float) -> None:
        """Let *seconds* pass."""
        self._ahead += seconds


@contextmanager
def small_items() -> Iterator[None]:
    """Tails of two records, and parts of a few bytes: so that there are chunks and parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appends, "MOST", 2)
        patch.setattr(records, "INLINE", 6)
        patch.setattr(records, "PART", 5)
        patch.setattr(records, "UNLISTED", 5)
        yield


# -- a server that answers badly -------------------------------------------------------------------


class Front(ThreadingHTTPServer):
    """Stands before DynamoDB, and answers in its place, or loses its answers, when told to."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.behind = port
        self.faults: deque[tuple[str, object]] = deque()
        self.asked: list[str] = []
        self.lock = threading.Lock()

    def fault(self, operation: str, what: object, times: int = 1) -> None:
        """Answer *operation* with an error code or a whole reply; or lose it, and call *what*."""
        self.faults.extend([(operation, what)] * times)

    def next_fault(self, operation: str) -> object:
        """What is to go wrong with this one."""
        with self.lock:
            self.asked.append(operation)
            if self.faults and self.faults[0][0] in (operation, "*"):
                return self.faults.popleft()[1]
        return None


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Front

    def do_POST(self) -> None:
        operation = self.headers["X-Amz-Target"].partition(".")[2]
        body = self.rfile.read(int(self.headers["Content-Length"]))
        what = self.server.next_fault(operation)
        if isinstance(what, (str, dict)):
            self._say(what)
            return
        status, reply, headers = self._ask(body)
        if callable(what):
            what()
            self.close_connection = True
            return
        self._send(status, reply, headers.get("x-amz-crc32"))

    def _ask(self, body: bytes) -> tuple[int, bytes, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=30)
        try:
            connection.request("POST", "/", body, dict(self.headers))
            reply = connection.getresponse()
            return reply.status, reply.read(), reply.headers
        finally:
            connection.close()

    def _say(self, what: str | dict[str, Any]) -> None:
        if isinstance(what, str):
            what = {"__type": f"com.amazonaws.dynamodb.v20120810#{what}", "message": "as told"}
        code = what.get("__type", "")
        broken = code.endswith(("InternalServerError", "ServiceUnavailable"))
        self._send((500 if broken else 400) if code else 200, json.dumps(what).encode(), None)

    def _send(self, status: int, reply: bytes, checksum: str | None) -> None:
        self.send_response(status)
        if checksum:
            self.send_header("x-amz-crc32", checksum)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def front(dynamodb_server: Server) -> Iterator[Front]:
    """A server that can be told to answer badly."""
    with Front(dynamodb_server.port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def behind(dynamodb_server: Server, url: str, front: Front) -> Iterator[DynamoBackend]:
    """A backend that speaks to it."""
    backend = DynamoBackend.from_url(dynamodb_server.through(url, front.server_port), timeout=5)
    yield backend
    backend.close()
