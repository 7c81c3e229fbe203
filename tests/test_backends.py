"""Every backend against the one contract."""

from __future__ import annotations

from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from holdfast.backends.memory import MemoryBackend
from holdfast.backends.sqlite import SqliteBackend
from holdfast.testing.conformance import BackendContract
from holdfast.testing.machine import contract_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.backends.base import Backend


class TestSqlite(BackendContract):
    """SQLite, in a file."""

    @pytest.fixture
    def opened(self, tmp_path: Path) -> Callable[[], Backend]:
        """A file of its own for each test."""
        return lambda: SqliteBackend(str(tmp_path / "agents.db"))


class TestMemory(BackendContract):
    """A dict, with one lock."""

    @pytest.fixture
    def opened(self) -> Callable[[], Backend]:
        """One place in memory: a second connection is the same object, closed with the first."""
        backend = MemoryBackend()

        class Second(MemoryBackend):
            def __init__(self) -> None:
                self.__dict__.update(backend.__dict__)

        first = iter([backend])
        return lambda: next(first, None) or Second()


@contextmanager
def a_file() -> Iterator[Callable[[], Backend]]:
    """A place for SQLite."""
    with TemporaryDirectory() as directory:
        yield lambda: SqliteBackend(f"{directory}/agents.db")


@contextmanager
def a_dict() -> Iterator[Callable[[], Backend]]:
    """A place in memory."""
    yield MemoryBackend


TestSqliteMachine = contract_machine(a_file, examples=60)
TestMemoryMachine = contract_machine(a_dict, reopen=False)
