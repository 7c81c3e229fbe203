"""Tests of recall where memories say otherwise about the same: the newest comes first."""

from __future__ import annotations

import pytest

import limpet
from tests.models.memory.test_memory_index import texts
from tests.support import stores

cache = stores.cache


@pytest.mark.parametrize("others", [0, 300])
def test_the_newest_is_first_and_names_the_older(others: int) -> None:
    """Nothing is lost: what it replaces comes after it, and is marked."""
    with limpet.open("memory:") as store:
        memory = store.memory("one")
        memory.remember_all([f"zzz {number} qqq" for number in range(others)])
        old = memory.remember("Ada prefers coffee")
        memory.remember("Ada met Grace for coffee")
        new = memory.remember("Ada now prefers tea")
        hits = memory.recall("does Ada prefer coffee?", k=5)
        assert texts(hits)[:2] == ["Ada now prefers tea", "Ada prefers coffee"]
        assert hits[0].why.newer_than == (old.id,)
        assert not hits[0].why.outdated
        assert hits[1].why.outdated
        assert "newer than 1 that say otherwise" in str(hits[0].why)
        assert "a newer one says otherwise" in str(hits[1].why)
        assert hits[1].recalled().outdated
        assert len(hits) == 3
        (only,) = memory.recall("does Ada prefer coffee?", k=1)
        assert only.id == new.id  # though another scores better
        assert "a newer memory says otherwise" in memory.messages("Ada prefers?")[1]["content"]
        with store.task("t", goal="does Ada prefer coffee?") as task:
            context = task.resume_context(memories="one")
        assert context.index("now prefers tea") < context.index("Ada prefers coffee")


def test_what_min_score_leaves_out_stays_out() -> None:
    """A newer one that does not fit is not brought in."""
    with limpet.open("memory:") as store:
        memory = store.memory("one")
        memory.remember("The API of billing allows 100 calls")
        memory.remember("The API of billing allows 200 requests")
        found = memory.recall("billing allows 100 calls", min_score=0.9)
        assert texts(found) == ["The API of billing allows 100 calls"]
        assert not found[0].why.outdated
