"""LangGraph's own conformance suite for checkpointers, on every kind of store.

The suite awaits all it does; `BlockingSaver` lets it say the same of the blocking methods.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability

from limpet.integrations.langgraph import LimpetSaver
from tests.support import places
from tests.support.blocking_saver import BlockingSaver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from langgraph.checkpoint.base import BaseCheckpointSaver

#: Every case is run by itself on each; a cluster and Valkey are Redis to a checkpointer.
BACKENDS = [
    "memory",
    *places.LOCAL,
    *(pytest.param(name, marks=pytest.mark.server) for name in ("postgresql", "redis", "dynamodb")),
]


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest) -> str:
    """An empty place."""
    return "memory:" if request.param == "memory" else places.find(request.param, request).url


@pytest.mark.parametrize("capability", [capability.value for capability in Capability])
@pytest.mark.parametrize("way", ["async", "sync"])
def test_what_langgraph_asks_of_a_checkpointer_holds(url: str, way: str, capability: str) -> None:
    """A graph that runs on LangGraph's savers runs on ours, its optional maintenance included."""

    @checkpointer_test(name="LimpetSaver")
    async def saver() -> AsyncIterator[BaseCheckpointSaver[Any]]:
        if way == "async":
            async with LimpetSaver(url) as made:
                yield made
        else:
            with LimpetSaver(url) as made:
                yield BlockingSaver(made)

    report = asyncio.run(validate(saver, capabilities={capability}))
    result = report.results[capability]
    assert result.detected
    assert result.failures == []
    assert result.tests_passed > 0
