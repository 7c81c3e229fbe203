"""Tests of recall by time: what was said then, or tells of it, comes before what fits as well."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from tests.models.memory.test_memory_index import texts
from tests.support import stores

if TYPE_CHECKING:
    from pathlib import Path

    from limpet import Memory

cache = stores.cache

#: What was said, and on which day.
SAID = {
    "Ada lives in Paris now": (2022, 3, 1),
    "We moved to the new office in Berlin": (2023, 2, 20),
    "Ada had lunch with Grace": (2023, 4, 20),
    "Yesterday Ada had lunch with Alan": (2023, 5, 3),
    "Ada has lunch with Kurt every Friday": (2023, 5, 9),
    "The contract ends on 30 June 2024": (2023, 5, 9),
}
NOW = datetime(2023, 5, 10, 12, tzinfo=UTC)


@pytest.fixture
def memory(tmp_path: Path) -> Any:
    """A year of memories, remembered at once."""
    with limpet.open(tmp_path / "agents.db") as store:
        found = store.memory("one")
        found.remember_all(
            {"text": text, "said_at": datetime(*day, 9, tzinfo=UTC)} for text, day in SAID.items()
        )
        yield found


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        ("who had lunch last week?", "Yesterday Ada had lunch with Alan"),
        ("lunch on 2 May", "Yesterday Ada had lunch with Alan"),
        ("lunch in April", "Ada had lunch with Grace"),
        ("lunch before May 2023", "Ada had lunch with Grace"),
        ("lunch yesterday", "Ada has lunch with Kurt every Friday"),
        ("what happens in June 2024?", "The contract ends on 30 June 2024"),
        ("what happened three weeks ago?", "Ada had lunch with Grace"),
    ],
)
def test_the_time_of_a_question_decides_between_equals(
    memory: Memory, asked: str, first: str
) -> None:
    """Relative to when it is asked, and for a text to when it was said."""
    hits = memory.recall(asked, k=3, now=NOW)
    assert hits[0].text == first
    assert "time" in str(hits[0].why)
    shares = hits[0].why.shares()
    assert shares.time
    total = shares.words + shares.activation + shares.time + (shares.neighbour or 0)
    assert total == pytest.approx(hits[0].score)


@pytest.mark.parametrize(("side", "first"), [("before", "Paris"), ("after", "Berlin")])
def test_an_event_is_a_time(memory: Memory, side: str, first: str) -> None:
    """When it was is known from the memory that tells of it."""
    memory.remember("Ada lives in Berlin now", said_at=datetime(2023, 3, 1, tzinfo=UTC))
    hits = memory.recall(f"where did Ada live {side} the move to the new office?", k=9, now=NOW)
    homes = [hit.text for hit in hits if hit.text.startswith("Ada lives")]
    assert first in homes[0]
    # Of an event that nobody told of, nothing is known.
    hits = memory.recall(f"where did Ada live {side} the flood?", k=9, now=NOW)
    assert all(hit.why.time is None for hit in hits)


def test_it_is_no_filter(memory: Memory) -> None:
    """What fits the words is found, whenever it was; `since` and `until` leave out."""
    found = memory.recall("Kurt last year", k=9, now=NOW)
    assert found[0].text == "Ada has lunch with Kurt every Friday"
    since, until = datetime(2023, 5, 1, tzinfo=UTC), datetime(2023, 5, 9, tzinfo=UTC)
    for found in (
        memory.recall("lunch", since=since, until=until),
        memory.recall("lunch in April", since=since, until=until, now=NOW),
    ):
        assert texts(found) == ["Yesterday Ada had lunch with Alan"]
    assert texts(memory.list(since=since, until=until)) == ["Yesterday Ada had lunch with Alan"]


def test_without_a_time_nothing_changes(memory: Memory) -> None:
    """A question that names none is answered as before."""
    for asked in ("lunch", "what may Ada do?", "before"):
        hits = memory.recall(asked, now=NOW)
        assert all(hit.why.time is None for hit in hits)


def test_when_it_was_said(memory: Memory) -> None:
    """It is shown, and its age is counted from then."""
    one = memory.recall("Grace", k=1)[0]
    assert one.said_at == datetime(2023, 4, 20, 9, tzinfo=UTC)
    assert one.age.days > 365
    assert one.at.year > 2024
    assert "2023-04-20" in memory.messages("Grace")[1]["content"]
    assert memory.remember("now").said_at is None
    made = memory.remember("then", said_at=datetime(2020, 1, 1, tzinfo=UTC))
    assert memory.get(made.id) == made
    assert memory.list()[-1].text == "then"
    with pytest.raises(ValueError, match="said_at"):
        memory.remember("x", said_at=datetime(2020, 1, 1))  # noqa: DTZ001 - the point
    with pytest.raises(ValueError, match="now"):
        memory.recall("x", now=datetime(2020, 1, 1))  # noqa: DTZ001 - the point


def test_times_follow_the_text(memory: Memory) -> None:
    """An update tells of another day, and what was forgotten of none."""
    one = memory.recall("contract", k=1)[0]
    memory.update(one.id, "The contract ends on 31 July 2025")
    assert memory.recall("what happens in July 2025?", k=1, now=NOW)[0].why.time == 1.0
    memory.forget(subject="contract")
    hits = memory.recall("what happens in July 2025?", now=NOW)
    assert all(hit.why.time == 0 for hit in hits)
    memory.reindex()
    assert memory.recall("who had lunch last week?", k=1, now=NOW)[0].text.startswith("Yesterday")
