"""Tests of ``limpet.open(…, embed=…)``: one word, and every namespace is found by meaning too."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

import limpet
from limpet.errors import MissingExtra
from limpet.memory.local_model import LocalModel
from tests.models.memory.test_memory_index import embed, texts
from tests.support import stores

if TYPE_CHECKING:
    from pathlib import Path

cache = stores.cache


def test_every_namespace_and_tenant_is_found_by_meaning() -> None:
    """What the store was opened with holds for whatever memory it makes."""
    with limpet.open("memory:", embed=embed) as store:
        for memory in (store.memory("one"), store.as_tenant("b").memory("two")):
            memory.remember_all(["a horse", "a payment"])
            assert texts(memory.recall("zebra", k=1)) == ["a horse"]
            assert memory.stats().model == "tests.models.memory.test_memory_index.embed"


def test_a_memory_may_have_another_function_or_none() -> None:
    """The store's is a default: the one nearest to the call counts."""
    with limpet.open("memory:", embed=embed) as store:
        store.memory("one").remember("a horse")
        assert store.memory("one", embed=False).recall("zebra") == []
        assert store.memory("one", embed=lambda texts: [[1.0] for _ in texts]).recall("zebra")


def test_tasks_recall_by_meaning(tmp_path: Path) -> None:
    """A task that asks for its memories by True or by a name need not know of any model."""
    with limpet.open(tmp_path / "agents.db", embed=embed) as store:
        store.memory("tasks").remember("the horse is fed at noon")
        with store.task("one", goal="zebra") as task:
            assert "fed at noon" in task.resume_context(memories=True)
    with (
        limpet.open(tmp_path / "agents.db") as store,
        store.task("two", goal="zebra") as task,
    ):
        assert "fed at noon" not in task.resume_context(memories=True)


def test_awaited_with_an_async_function() -> None:
    """`open_async` takes what `AsyncStore.memory` takes."""

    async def slow(texts: list[str]) -> list[list[float]]:
        return embed(texts)

    async def run() -> list[str]:
        async with limpet.open_async("memory:", embed=slow) as store:
            await store.memory("one").remember_all(["a horse", "a payment"])
            return texts(await store.memory("one").recall("zebra", k=1))

    assert asyncio.run(run()) == ["a horse"]


def test_a_missing_extra_is_named_before_anything_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the first recall, and no empty store is left behind."""
    monkeypatch.setattr(LocalModel, "_one", None)  # another test may have loaded it
    monkeypatch.setitem(sys.modules, "numpy", None)
    for wanted in (True, embed):
        with pytest.raises(MissingExtra, match=r"'\.\[embeddings\]'"):
            limpet.open(tmp_path / "agents.db", embed=wanted)
        with pytest.raises(MissingExtra, match=r"'\.\[embeddings\]'"):
            limpet.open_async(tmp_path / "agents.db", embed=wanted)
    assert not (tmp_path / "agents.db").exists()
    with pytest.raises(TypeError, match="embed is a function"):
        limpet.open("memory:", embed=5)  # type: ignore[arg-type]


def test_the_local_model_with_one_word() -> None:
    """``embed=True`` is all that it takes."""
    pytest.importorskip("onnxruntime")
    with limpet.open("memory:", embed=True) as store:
        memory = store.memory("one")
        memory.remember_all(["Reset a forgotten password", "Bananas are yellow"])
        assert texts(memory.recall("how do I recover my login?", k=1))[0].startswith("Reset")
