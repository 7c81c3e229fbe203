"""Sync and async classes: the same methods with the same words; those of one are awaited."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.core.runtime import run_to_end

PAIRS = [
    (limpet.AsyncStore, limpet.Store),
    (limpet.AsyncConversation, limpet.Conversation),
    (limpet.AsyncTask, limpet.Task),
    (limpet.AsyncStep, limpet.Step),
    (limpet.AsyncPlan, limpet.Plan),
    (limpet.AsyncVersions, limpet.Versions),
    (limpet.AsyncJournal, limpet.Journal),
]

# Of `AsyncJournal`, for models: records as they are stored, which no user has to do with.
FOR_MODELS = {
    *(
        "add",
        "check_end",
        "codec",
        "decode",
        "encode",
        "entries",
        "gather",
        "labels",
        "page",
        "pairs",
        "redacted",
        "request",
        "runs",
    ),
    *("runtime", "ttl", "understand", "unreadable", "write"),
}

# Of `AsyncConversation`, for integrations, which are written once and so for async alone.
FOR_INTEGRATIONS = {"scope", "transcript", "windows"}


def public(kind: type) -> dict[str, Any]:
    """The methods and properties of *kind* that users see."""
    found = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
    return {name: value for name, value in found.items() if name not in FOR_MODELS}


METHODS = [
    pytest.param(getattr(async_kind, name), method, id=f"{kind.__name__}.{name}")
    for async_kind, kind in PAIRS
    for name, method in public(kind).items()
    if callable(method)
]


def made(store: Any) -> list[Any]:
    """A model of each kind."""
    task = store.task("task", "goal")
    chat, journal = store.conversation("chat"), store.journal("note", "id")
    return [store, chat, task, task.plan, task.versions, journal]


def test_both_faces_show_the_same() -> None:
    """Nothing is missing on one side, and nothing is there on one side only."""
    sync_store, async_store = limpet.open("memory:"), limpet.open_async("memory:")
    for async_model, model in zip(made(async_store), made(sync_store), strict=True):
        ours = {name for name in dir(model) if not name.startswith("_")}
        theirs = {name for name in dir(async_model) if not name.startswith("_")} - FOR_MODELS
        if isinstance(model, limpet.Conversation):
            theirs -= FOR_INTEGRATIONS
        if isinstance(model, limpet.Task):
            theirs -= {"leave"}  # the end of the sync one's block calls it
        assert ours == theirs
        assert repr(model) == repr(async_model).replace("Async", "")
    asyncio.run(async_store.close())
    sync_store.close()


def test_both_faces_of_a_planned_step_show_the_same() -> None:
    """As any other model."""
    with limpet.open("memory:") as store, store.task("task", "goal") as task:
        task.plan(["fetch"])
        (step,), (async_step,) = task.remaining(), task._core.remaining()
        assert {n for n in dir(step) if n[0] != "_"} == {n for n in dir(async_step) if n[0] != "_"}
        assert repr(step) == "Step('fetch', done=False)"
        assert step.task is task


@pytest.mark.parametrize(("async_method", "method"), METHODS)
def test_a_method_takes_the_same_and_says_the_same(async_method: Any, method: Any) -> None:
    """Who knows one face knows the other."""
    ours, theirs = inspect.signature(method), inspect.signature(async_method)
    assert ours.parameters == theirs.parameters
    assert method.__doc__ == async_method.__doc__
    assert method.__doc__


@pytest.mark.parametrize(("async_method", "method"), METHODS)
def test_a_sync_method_is_never_to_be_awaited(async_method: Any, method: Any) -> None:
    """Nor does it say that it is."""
    assert not inspect.iscoroutinefunction(method)
    assert not inspect.isasyncgenfunction(method)


def test_properties_say_the_same() -> None:
    """Where both sides have one."""
    for async_kind, kind in PAIRS:
        for name, value in public(kind).items():
            twin = getattr(async_kind, name, None)
            if isinstance(value, property) and isinstance(twin, property):
                assert value.__doc__ == twin.__doc__


def test_every_public_thing_has_a_docstring() -> None:
    """What the signature cannot say."""
    for name in limpet.__all__:
        thing = getattr(limpet, name)
        assert inspect.getdoc(thing), name
        if inspect.isclass(thing) and thing in {kind for pair in PAIRS for kind in pair}:
            for method, value in public(thing).items():
                assert inspect.getdoc(value), f"{name}.{method}"


def test_with_on_what_is_async_says_what_to_write() -> None:
    """Python would only name a protocol."""
    store: Any = limpet.open_async("memory:")
    for thing in (store, store.task("task", "goal")):
        with pytest.raises(TypeError, match=r"is async.*'async with'.*limpet\.open\(\)"), thing:
            pass
    asyncio.run(store.close())


def test_async_with_on_what_is_sync_says_what_to_write() -> None:
    """The same the other way round."""

    async def enter(thing: Any) -> None:
        async with thing:
            pass

    with limpet.open("memory:") as store:
        for thing in (store, store.task("task", "goal")):
            with pytest.raises(TypeError, match=r"is not async.*'with'.*limpet\.open_async\(\)"):
                asyncio.run(enter(thing))


def test_a_sync_store_works_within_an_event_loop(tmp_path: Path) -> None:
    """It blocks it, as any sync call does, and needs no loop of its own that could deadlock."""

    async def main() -> list[Any]:
        with limpet.open(tmp_path / "db") as store:
            store.conversation("alice").append({"role": "user", "content": "hello"})
            return store.conversation("alice").messages()

    assert asyncio.run(main()) == [{"role": "user", "content": "hello"}]


def test_an_async_store_may_be_opened_before_there_is_a_loop(tmp_path: Path) -> None:
    """At the top of a module, as people do."""
    store = limpet.open_async(tmp_path / "db")

    async def main() -> int:
        async with store:
            return await store.conversation("alice").append({"role": "user", "content": "hello"})

    assert asyncio.run(main()) == 1


def test_code_that_waits_for_a_loop_is_named() -> None:
    """It cannot run here, and says where it could."""
    with pytest.raises(RuntimeError, match=r"awaits an event loop; open the store with open_async"):
        run_to_end(asyncio.sleep(0))
