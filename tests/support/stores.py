"""Stores for the tests of models: a test is written once and runs over backends, sync and async.

The async way is the sync one but for ``await``, so a test in sync style can drive it too: `Driven`
runs each coroutine to its end on a private event loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import TYPE_CHECKING, Any, cast

import pytest

import limpet
from limpet import (
    AsyncConversation,
    AsyncJournal,
    AsyncMemory,
    AsyncPlan,
    AsyncState,
    AsyncStep,
    AsyncStore,
    AsyncTask,
    AsyncVersions,
    Store,
)
from limpet.backends.memory import MemoryBackend
from limpet.store import scope_over
from tests.support import places

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "Driven",
    "Place",
    "bot",
    "cache",
    "call",
    "everywhere",
    "place",
    "result",
    "store",
    "system",
    "user",
]

ASYNC_MODELS = (
    *(AsyncStore, AsyncJournal, AsyncConversation, AsyncTask, AsyncStep),
    *(AsyncState, AsyncMemory, AsyncPlan, AsyncVersions),
)


class Driven:
    """An async model with the manners of its sync twin."""

    def __init__(self, core: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._core = core
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return self._shown(getattr(self._core, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As a plan is made."""
        return self._shown(self._core(*args, **kwargs))

    def __enter__(self) -> Any:
        return self._shown(self._core.__aenter__())

    def __exit__(self, *raised: object) -> Any:
        return self._shown(self._core.__aexit__(*raised))

    def _shown(self, value: Any) -> Any:
        if isinstance(value, Awaitable):
            return self._shown(self._loop.run_until_complete(_result(value)))
        if isinstance(value, AsyncIterator):
            return self._each(value)
        if isinstance(value, ASYNC_MODELS):
            return Driven(value, self._loop)
        if isinstance(value, Iterator):
            return map(self._shown, value)
        if inspect.ismethod(value):
            return lambda *args, **kwargs: self._shown(value(*args, **kwargs))
        return value

    def _each(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        while True:
            try:
                yield self._shown(anext(items))
            except StopAsyncIteration:
                return


async def _result(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


class Place:
    """Where state lives in a test: `open` it as often as you like, sync or async, as it was made.

    That is at *url*; without one, for SQLite, a file in *directory*.
    """

    def __init__(self, backend: str, way: str, directory: Path, url: str | None = None) -> None:
        self.is_async = way == "async"
        self.path = directory / "models.db"
        self.url = f"sqlite:{self.path}" if url is None else url
        self.memory = MemoryBackend() if backend == "memory" else None
        self._loop = asyncio.new_event_loop()
        self._opened: list[Store] = []
        self._beside: list[Store] = []

    def open(self, **options: Any) -> Store:
        """Another store over the same state. The async one is driven, and looks like a `Store`."""
        opened: Any
        if self.memory is not None:
            scope = scope_over(self.memory, **options)
            opened = AsyncStore(scope) if self.is_async else Store(AsyncStore(scope.as_sync()))
        else:
            opened = (limpet.open_async if self.is_async else limpet.open)(self.url, **options)
        if self.is_async:
            opened = Driven(opened, self._loop)
        self._opened.append(cast("Store", opened))
        return self._opened[-1]

    def beside(self) -> Store:
        """A sync store over the same state: a driven loop cannot be entered twice."""
        if self.memory is None:
            opened = limpet.open(self.url)
        else:
            opened = Store(AsyncStore(scope_over(self.memory).as_sync()))
        self._beside.append(opened)
        return opened

    def close(self) -> None:
        """Close all that was opened."""
        for opened in [*self._opened, *self._beside]:
            opened.close()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


#: `make test-fast` is content with two of the four.
WAYS = [
    "memory-sync",
    pytest.param("memory-async", marks=pytest.mark.slow),
    pytest.param("sqlite-sync", marks=pytest.mark.slow),
    "sqlite-async",
]


@pytest.fixture(params=WAYS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Each backend, sync and async."""
    backend, _, way = request.param.partition("-")
    made = Place(backend, way, tmp_path)
    yield made
    made.close()


def _both_ways() -> Iterator[Any]:
    for way in ("sync", "async"):
        yield f"memory-{way}"
        for name in places.LOCAL:
            yield f"{name}-{way}"
        for name in places.SERVERS:
            yield pytest.param(f"{name}-{way}", marks=pytest.mark.server)


@pytest.fixture(params=_both_ways())
def everywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Every backend there is, sync and async: for what is essential."""
    backend, _, way = request.param.rpartition("-")
    url = None if backend == "memory" else places.find(backend, request).url
    made = Place(backend, way, tmp_path, url)
    yield made
    made.close()


@pytest.fixture
def store(place: Place) -> Store:
    """A store over `place`."""
    return place.open()


# -- messages ------------------------------------------------------------------------------------


def system(content: str) -> dict[str, Any]:
    """What the developer says."""
    return {"role": "system", "content": content}


def user(content: str) -> dict[str, Any]:
    """What the user says."""
    return {"role": "user", "content": content}


def bot(content: str) -> dict[str, Any]:
    """What the model says."""
    return {"role": "assistant", "content": content}


def call(*ids: str) -> dict[str, Any]:
    """The model calls tools."""
    calls = [
        {"id": id_, "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
        for id_ in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(id_: str, content: str = "found") -> dict[str, Any]:
    """What the tool that was called as *id_* returned."""
    return {"role": "tool", "tool_call_id": id_, "content": content}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The index lies where the test can see it, and nowhere else."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("LIMPET_CACHE", str(directory))
    return directory
