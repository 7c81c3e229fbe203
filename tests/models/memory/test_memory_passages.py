"""Tests of what a long memory is found by, of words compared one by one, and of who speaks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import limpet
from limpet.core.codec import Codec
from limpet.memory.passages import LONGEST, WHOLE, passages
from limpet.memory.speakers import Asked, first_person, speaker_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from limpet import Store

SAID = [
    f"On day {day} the crew wrote down the weather and the hour of sunrise." for day in range(60)
]
HEAVY = "An anchor is heavy for the crew of a small ship in the hour before sunrise."
AXES = ("gull", "storm", "anchor", "lamp")


class ByWord:
    """A model of a kind: a direction for each word it knows, and one for all others."""

    model = "by-word"

    def __call__(self, texts: list[str]) -> list[Any]:
        """The sum of the words of each text."""
        return [vector for vector, _ in self.with_words(texts)]

    def with_words(self, texts: list[str]) -> list[tuple[Any, tuple[list[str], Any]]]:
        """That, and the words."""
        found = []
        for text in texts:
            words = text.lower().replace(".", " ").replace("?", " ").split()
            rows = [[0.05, *(float(word.startswith(axis)) for axis in AXES)] for word in words]
            found.append((np.sum(rows, axis=0), (words, np.array(rows))))
        return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store in a file."""
    with limpet.open(tmp_path / "agents.db", codec=Codec(compress_over=None)) as opened:
        yield opened


def long_text(said: str, at: int = 40) -> str:
    """A text of many passages, one of which has what was *said*."""
    return " ".join([*SAID[:at], said, *SAID[at:]])


def test_a_long_text_is_cut_between_sentences() -> None:
    """Into passages that share their edges and miss nothing; a short one stays whole."""
    text = long_text("The anchor was lost off Skagen.")
    found = passages(text)
    assert all(len(one) <= LONGEST for one in found)
    assert all(one.endswith(". ") for one in found[:-1])
    starts = [text.index(one) for one in found]
    for one, start, following in zip(found, starts, starts[1:], strict=False):
        assert start < following < start + len(one)
    assert passages("x" * WHOLE) == ["x" * WHOLE]
    assert "".join(passages("x" * 2000)) == "x" * 2000
    assert passages("") == [""]


@pytest.mark.parametrize("embed", [None, ByWord()])
def test_a_long_memory_is_found_by_one_passage(store: Store, embed: Any) -> None:
    """And returned whole, with the passage that decided."""
    memory = store.memory("one", embed=embed)
    text = long_text("The anchor was lost off Skagen in a storm.")
    memory.remember_all([text, *(f"Note {at}. {' '.join(SAID[:3])}" for at in range(120)), HEAVY])
    memory.embed()
    hit, other = memory.recall("which anchor was lost off Skagen in a storm?", k=2)
    assert hit.text == text
    assert "lost off Skagen" in hit.passage
    assert len(hit.passage) <= LONGEST
    assert other.passage == other.text == HEAVY
    (message,) = memory.messages(
        "which anchor was lost off Skagen in a storm?", k=1, passages=True
    )[1:]
    assert "lost off Skagen" in message["content"]
    assert SAID[0] not in message["content"]


def test_a_context_counts_where_the_text_says_too_little(store: Store) -> None:
    """For a long text it does not; nor before a text that has the words itself."""
    memory = store.memory("one")
    memory.remember(long_text("The lamp was lit."), context="Was the anchor lost?")
    memory.remember("Yes, on Monday.", context="Was the anchor lost?")
    memory.remember("The anchor was lost on Friday.", context="Is there news?")
    hits = memory.recall("anchor lost", k=9)
    assert [hit.text for hit in hits] == ["The anchor was lost on Friday.", "Yes, on Monday."]


def test_a_passage_belongs_to_what_its_text_begins_with(store: Store) -> None:
    """The same words mean something else in a text about something else."""
    memory = store.memory("one", embed=ByWord())
    rest = [*SAID[30:40], "A storm came.", *SAID[40:]]
    of_lamps, of_gulls = (
        " ".join([*(said.replace("day", about) for said in SAID[:30]), *rest])
        for about in ("lamp", "gull")
    )
    memory.remember_all([of_lamps, of_gulls])
    memory.embed()
    first, second = memory.recall("lamps in the storm", k=2)
    assert first.text == of_lamps
    assert (first.why.meaning or 0) > (second.why.meaning or 0)


def test_nothing_is_left_of_the_passages_of_a_long_memory(store: Store, tmp_path: Path) -> None:
    """Neither of their words, nor of the vectors of these."""
    memory = store.memory("one", embed=ByWord())
    memory.remember_all(["a storm of gulls", "the lamp"])
    made = memory.remember(long_text("The xylophone-4711 was lost."), source="log")
    memory.embed()
    index = memory._core._indexed.open_index()
    stored = index.run("SELECT value, words FROM vector JOIN passage USING (p) WHERE text NOTNULL")
    traces = [b"xyloph", b"-4711", *(bytes(part) for row in stored for part in row)]
    assert len(stored) > 3

    def left() -> set[bytes]:
        files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        return {trace for trace in traces if any(trace in data for data in files)}

    assert left()
    assert memory.forget(made.id).vectors == len(stored)
    assert not left()
    assert index.run("SELECT count(*) FROM passage") == [(2,)]


def test_a_name_over_the_edge_of_a_passage_is_forgotten(store: Store) -> None:
    """Or in the context of a long text, which is in no index."""
    memory = store.memory("one")
    text = "".join("ada lovelace "[at % 13] for at in range(3000))
    assert not all("ada lovelace" in one for one in passages(text)) or len(passages(text)) > 1
    memory.remember(text)
    memory.remember(long_text("No name."), context="said by Ada Lovelace")
    memory.remember("of nobody")
    assert len(memory.forget(subject="Ada Lovelace").ids) == 2
    assert [one.text for one in memory.list()] == ["of nobody"]


def test_each_word_of_a_query_is_looked_for_by_itself(store: Store) -> None:
    """Where a model gives the words of a text; why says how near they are."""
    memory = store.memory("one", embed=ByWord())
    memory.remember_all(["stormy lamps", "storms and storms", "gulls"])
    hit, *others = memory.recall("storm lamp?", k=3)
    assert hit.text == "stormy lamps"
    assert hit.why.word_by_word == pytest.approx(1, abs=0.1)
    assert "word by word" in str(hit.why)
    assert hit.score == pytest.approx(sum(filter(None, _added(hit.why.shares()))))
    assert all((other.why.word_by_word or 0) < 0.9 for other in others)


def _added(parts: Any) -> list[float | None]:
    return [getattr(parts, name) for name in parts.__struct_fields__]


# -- what stands beside it -------------------------------------------------------------------------


def test_what_was_remembered_next_to_a_good_match_gains_by_it(store: Store) -> None:
    """Of what fits as well; why says so."""
    memory = store.memory("one")
    beside, apart = "The lamp is old", "The lamp is new"
    memory.remember_all(["storm, anchor and lamp", beside, "gulls", "terns", apart])
    _, first, second = memory.recall("anchor, storm and lamp", k=3)
    assert [first.text, second.text] == [beside, apart]  # though the other is newer
    assert (first.why.neighbour or 0) > 0.5
    assert "neighbour" in str(first.why)
    assert second.why.neighbour is None
    assert first.score == pytest.approx(sum(filter(None, _added(first.why.adds))))


def test_what_was_said_an_hour_later_is_no_neighbour(store: Store) -> None:
    """It was remembered next to it, and belongs to something else."""
    memory = store.memory("one")
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    for hours, text in ((0, "storm, anchor and lamp"), (2, "The lamp is old")):
        memory.remember(text, said_at=at + timedelta(hours=hours))
    assert [hit.why.neighbour for hit in memory.recall("anchor, storm and lamp")] == [None, None]


def test_what_another_task_found_out_is_no_neighbour(store: Store) -> None:
    """Two tasks may end one right after the other, and have nothing to do with each other."""
    memory = store.memory("one")
    for task, text in (("a", "storm, anchor and lamp"), ("b", "The lamp is old")):
        memory.remember(text, kind="discovery", source=task)
    memory.remember("The lamp is new", kind="discovery", source="b")
    found = {hit.text: hit.why.neighbour for hit in memory.recall("anchor, storm and lamp")}
    assert found["storm, anchor and lamp"] is None
    assert found["The lamp is old"] == pytest.approx(found["The lamp is new"])


# -- who speaks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [True, False])
def test_what_somebody_said_is_found_before_what_others_said(store: Store, by: bool) -> None:  # noqa: FBT001 - a case
    """By the name that the question has; said by *by*, or as a transcript has it."""
    memory = store.memory("one")
    for name in ("Ada", "Bob"):
        text = "the garden needs water"
        memory.remember(f"{name}: {text}") if not by else memory.remember(
            f"{text}, {name}", by=name
        )
    for name in ("Ada", "Bob"):
        hit, _ = memory.recall(f"What did {name} say of the garden?", k=2)
        assert name in hit.text
        assert hit.why.speaker == 1
    assert memory.recall("garden", k=1)[0].why.speaker is None


def test_who_asks_of_themselves_finds_what_they_said(store: Store) -> None:
    """Not what they were answered."""
    memory = store.memory("one")
    memory.remember("A deadline for the report is best set on a Friday.", by="assistant")
    memory.remember("The deadline of the report has moved to Monday, by the way.", by="user")
    memory.remember("Reports and deadlines: my deadline for the report is not known.")
    hits = memory.recall("When is my deadline for the report?", k=3)
    assert hits[-1].by == "assistant"
    assert [hit.why.speaker for hit in hits if hit.by] == [1, 0]


def test_speakers_are_known_by_their_names() -> None:
    """And first persons by how often they come."""
    assert speaker_of("Ada Lovelace: hello", None) == "ada lovelace"
    assert speaker_of("Note: hello", "Bob") == "bob"
    assert speaker_of("what I said: hello", None) is None
    assert first_person("I went home") == 1
    assert 0 < first_person("I " + "went home " * 20) < 0.5
    assert first_person("") == 0
    assert Asked("what does Ada want", frozenset()).about("ada lovelace", 0) == 1
    assert Asked("will it rain", frozenset({"will"})).about("will", 0) == 0
    assert Asked("my plan", frozenset()).about(None, 0.5) == 0.5
    assert Asked("Summarize how my plan came to be", frozenset()).about("user", 1) == 0
