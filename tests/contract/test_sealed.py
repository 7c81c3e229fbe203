"""A sealed backend against the one contract: whoever uses it cannot tell."""

from __future__ import annotations

from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from limpet.backends.dynamodb import DynamoBackend
from limpet.backends.file import FileBackend
from limpet.backends.memory import MemoryBackend
from limpet.backends.postgresql import PostgresBackend
from limpet.backends.redis import RedisBackend
from limpet.backends.sqlite.backend import SqliteBackend
from limpet.crypto.keys import Keys
from limpet.crypto.sealed import Sealed
from limpet.testing.conformance import BackendContract
from limpet.testing.machine import contract_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from limpet.backends.contract import Backend
    from tests.support.servers import Server

KEYS = Keys({1: b"1" * 32})


def sealed(kind: type[Backend]) -> type[Backend]:
    """The class *kind*, sealed, as the suite opens it."""

    class SealedKind(Sealed):
        """With the keys of all tests."""

        @classmethod
        def from_url(cls, url: str, **options: Any) -> Any:
            """As that of *kind*."""
            return cls(kind.from_url(url, **options), KEYS)

    return SealedKind


class TestSealedSqlite(BackendContract):
    """SQLite, in a file."""

    backend = sealed(SqliteBackend)
    notes = False

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        """A file of its own for each test."""
        return f"sqlite:{tmp_path}/agents.db"


@pytest.mark.slow
class TestSealedFile(BackendContract):
    """A directory of files, in each line of which is a head."""

    backend = sealed(FileBackend)
    notes = False

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        """A directory of its own for each test."""
        return f"file:{tmp_path}/agents"


@pytest.mark.long
@pytest.mark.server
class TestSealedPostgresql(BackendContract):
    """A server, whose transactions see what others commit."""

    backend = sealed(PostgresBackend)
    notes = False

    @pytest.fixture
    def url(self, postgresql_server: Server) -> str:
        """A schema of its own for each test."""
        return postgresql_server.place()


@pytest.mark.long
@pytest.mark.server
class TestSealedRedis(BackendContract):
    """A server, whose changes are scripts."""

    backend = sealed(RedisBackend)
    notes = False

    @pytest.fixture
    def url(self, redis_server: Server) -> str:
        """A prefix of its own for each test."""
        return redis_server.place()


@pytest.mark.long
@pytest.mark.server
class TestSealedDynamodb(BackendContract):
    """A server, whose head has the newest records in it."""

    backend = sealed(DynamoBackend)
    notes = False

    @pytest.fixture
    def url(self, dynamodb_server: Server) -> str:
        """A prefix of its own for each test."""
        return dynamodb_server.place()


class TestSealedMemory(BackendContract):
    """A dict."""

    notes = False

    @pytest.fixture
    def url(self) -> str:
        """There is none: each memory: store is new and its own."""
        pytest.skip("No URL opens the same memory: store twice.")

    @pytest.fixture
    def opened(self) -> Callable[[], Backend]:
        """One place in memory, and a sealed backend over it for each connection."""
        backend = MemoryBackend()

        class Second(MemoryBackend):
            def __init__(self) -> None:
                self.__dict__.update(backend.__dict__)

        first = iter([backend])
        return lambda: Sealed(next(first, None) or Second(), KEYS)


@contextmanager
def a_file() -> Iterator[Callable[[], Backend]]:
    """A place for SQLite."""
    with TemporaryDirectory() as directory:
        yield lambda: Sealed(SqliteBackend(f"{directory}/agents.db"), KEYS)


@contextmanager
def a_dict() -> Iterator[Callable[[], Backend]]:
    """A place in memory."""
    yield lambda: Sealed(MemoryBackend(), KEYS)


TestSealedSqliteMachine = pytest.mark.slow(contract_machine(a_file, notes=False, examples=60))
TestSealedMemoryMachine = pytest.mark.slow(contract_machine(a_dict, notes=False, reopen=False))
