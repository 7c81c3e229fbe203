"""Every backend against the one contract."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from limpet.backends.memory import MemoryBackend
from limpet.backends.sqlite import database
from limpet.backends.sqlite.backend import SqliteBackend
from limpet.testing.conformance import BackendContract
from limpet.testing.machine import contract_machine
from tests.support.paths import ROOT
from tests.support.sqlite_index import migrations_with_an_index_moved_every

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from limpet.backends.contract import Backend


class TestSqlite(BackendContract):
    """SQLite, in a file."""

    backend = SqliteBackend

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        """A file of its own for each test."""
        return f"sqlite:{tmp_path}/agents.db"


class TestMemory(BackendContract):
    """A dict, with one lock."""

    @pytest.fixture
    def url(self) -> str:
        """There is none: each memory: store is new and its own."""
        pytest.skip("No URL opens the same memory: store twice.")

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
    """A place for SQLite, where the index is put in order after every third record."""
    migrations = migrations_with_an_index_moved_every(3)
    with TemporaryDirectory() as directory, mock.patch.object(database, "migrations", migrations):
        yield lambda: SqliteBackend(f"{directory}/agents.db")


@contextmanager
def a_dict() -> Iterator[Callable[[], Backend]]:
    """A place in memory."""
    yield MemoryBackend


TestSqliteMachine = pytest.mark.slow(contract_machine(a_file, examples=60))
TestMemoryMachine = pytest.mark.slow(contract_machine(a_dict, reopen=False))


@pytest.mark.slow
def test_a_backend_of_ones_own_is_found_by_its_entry_point(tmp_path: Path) -> None:
    """The example package, installed as people would; then its scheme works in any program."""
    example = ROOT / "examples" / "backend"
    copied = shutil.copytree(example, tmp_path / "backend")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    where = tmp_path / "installed"
    subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--target", where, copied], check=True
    )
    program = (
        "import limpet\n"
        "with limpet.open('shared:demo') as store:\n"
        "    store.conversation('alice').append({'role': 'user', 'content': 'Hello'})\n"
        "with limpet.open('shared:demo') as store:\n"
        "    print(store.backend.url, store.conversation('alice').messages())\n"
    )
    paths = [str(where), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "shared:demo [{'role': 'user', 'content': 'Hello'}]\n"
    suite = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(copied)]
    subprocess.run(suite, env=environment, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
