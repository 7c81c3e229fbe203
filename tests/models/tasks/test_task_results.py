"""Results of steps: a large one is kept apart, and loaded when it is asked for."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import NotStorable, Store, TaskHeld
from limpet.backends.contract import Key
from limpet.core.runtime import run_to_end
from limpet.errors import NotLoaded
from limpet.tasks.steps import LARGE
from tests.support import stores
from tests.support.dying import Calls
from tests.support.stores import Place

place, store, everywhere = stores.place, stores.store, stores.everywhere

GOAL = "Tell everybody"


#: Too large to be kept with the rest.
ROWS = [f"row {n} {n * n}" for n in range(LARGE // 4)]


def test_a_large_result_is_kept_apart_and_loaded_when_asked_for(everywhere: Place) -> None:
    """The checkpoint stays small, and a resumed step returns all of it."""
    text = "".join(chr(33 + n * n % 90) + str(n * 7919 % 1009) for n in range(LARGE))
    store = everywhere.open()
    with store.task("t", GOAL) as task:
        assert task.step("fetch", lambda: text) == text
        assert task.step("small", lambda: 1) == 1
    fetch = Calls()
    with everywhere.open().task("t") as task:
        assert task.step("fetch", fetch) == text
        assert task.load("fetch") == text
        assert task.load() == {"fetch": text, "small": 1}
        point = task.checkpoint()
    assert len(point.to_json()) < 2000
    assert point.results["fetch"]["large"]
    assert text.startswith(point.results["fetch"]["preview"])
    assert fetch.calls == []


def test_what_compresses_well_is_large_too(store: Store) -> None:
    """A copy of it in a directory of files is not compressed, and resuming would read it all."""
    with store.task("t", GOAL) as task:
        assert task.step("draw", lambda: "z" * 900_000) == "z" * 900_000
        found = task.checkpoint().results["draw"]
    assert (found["large"], found["bytes"] > 900_000, found["preview"]) == (True, True, "z" * 300)


def test_what_is_large_is_part_of_a_sync_tasks_results(tmp_path: Path) -> None:
    """An async one says how to get it, for it cannot wait."""
    with limpet.open(tmp_path / "db") as store, store.task("t", GOAL) as task:
        task.step("fetch", lambda: ROWS)
        assert task.results == {"fetch": ROWS}
        assert task.result("fetch", as_=tuple[str, ...]) == tuple(ROWS)

    async def main() -> None:
        async with limpet.open_async(tmp_path / "db") as store, store.task("t") as task:
            with pytest.raises(NotLoaded, match=r"await task\.load\('fetch'\)"):
                _ = task.results
            assert await task.load("fetch") == ROWS

    asyncio.run(main())


def test_results_are_read_while_others_record(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread, or another coroutine, ends a step in the middle of it."""
    with store.task("t", GOAL) as task:
        task.step("fetch", lambda: ROWS)
        runner = task.runner
        results, read_large = runner.live.state.results, runner.read_large

        async def meanwhile(name: str, seq: int) -> Any:
            results[f"{len(results)}"] = 1
            return await read_large(name, seq)

        monkeypatch.setattr(runner, "read_large", meanwhile)
        assert task.load()["fetch"] == ROWS
        if not isinstance(task, stores.Driven):
            assert task.results["fetch"] == ROWS
        looked = run_to_end(runner.record.look())
        results["later"] = 1
        assert "later" not in looked.checkpoint().results


def test_a_task_that_goes_takes_nothing_of_the_next_one_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun under the same id the moment that it may: after a deletion, and while sweeping."""
    with limpet.open(tmp_path / "db") as store, limpet.open(tmp_path / "db") as other:
        backend = store.backend
        begun: list[str] = []

        def begin(id_: str) -> None:
            if id_ not in begun:
                with suppress(TaskHeld), other.task(id_, GOAL, ttl=None) as task:
                    task.step("fetch", lambda: ROWS)
                    begun.append(id_)

        def delete(key: Key, real: Any = backend.delete, **how: Any) -> bool:
            gone: bool = real(key, **how)
            if key.kind == "task":
                begin(key.id)
            return gone

        def head(key: Key, real: Any = backend.head) -> Any:
            found = real(key)
            if key.kind == "task" and found is None:
                begin(key.id)
            return found

        for id_, ttl in (("deleted", None), ("swept", 0.01)):
            with store.task(id_, GOAL, ttl=ttl) as task:
                task.step("fetch", lambda: ROWS[::-1])
        monkeypatch.setattr(backend, "delete", delete)
        assert store.task("deleted").delete()
        time.sleep(0.02)
        monkeypatch.setattr(backend, "head", head)
        store.sweep()
        assert begun == ["deleted", "swept"]
        for id_ in begun:
            with other.task(id_) as task:
                assert task.load("fetch") == ROWS


def test_what_is_kept_apart_goes_with_its_task(place: Place, store: Store) -> None:
    """When it is deleted, and when it has expired and is swept."""
    for name, ttl in (("gone", None), ("expired", 0.01)):
        with store.task(name, GOAL, ttl=ttl) as task:
            task.step("fetch", lambda: ROWS)
    assert store.task("gone").delete()
    assert store.journal("task-result", "gone").head() is None
    time.sleep(0.02)
    assert store.journal("task-result", "expired").head() is not None
    assert store.sweep() == 2
    assert store.journal("task-result", "expired").head() is None


def test_keys_that_are_one_in_json_are_refused_wherever_a_value_is_stored(store: Store) -> None:
    """A state refuses them too: what is read back would lack one of them, in silence."""
    twins: dict[Any, str] = {1: "one", "1": "another"}
    with store.task("t", GOAL) as task:
        with pytest.raises(NotStorable, match=r"results\['fetch'\] has the keys 1 and '1'"):
            task.step("fetch", lambda: twins)
        with pytest.raises(NotStorable, match="payload has the keys"):
            store.signal("t", "go", twins)
        with pytest.raises(NotStorable, match="outcome has the keys"):
            task.finish(twins)
    with pytest.raises(NotStorable, match=r"message\['meta'\] has the keys"):
        store.conversation("c").append({"role": "user", "content": "x", "meta": twins})
    with pytest.raises(NotStorable, match="state has the keys"):
        store.state("s").save(twins)
