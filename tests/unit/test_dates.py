"""Tests of times in English: which ones a text or a question names, and what is none."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.memory.dates import read_question, spans_in

#: A Wednesday.
NOW = datetime(2023, 5, 10, 15, 30, tzinfo=UTC)

#: What is asked then, and the days from which up to which it is about.
ASKED = [
    ("What did we do yesterday?", "2023-05-09 2023-05-10"),
    ("what is on today", "2023-05-10 2023-05-11"),
    ("what did I eat last night?", "2023-05-09 2023-05-10"),
    ("what about the day before yesterday?", "2023-05-08 2023-05-09"),
    ("What did we decide last week?", "2023-05-01 2023-05-08"),
    ("and this week?", "2023-05-08 2023-05-15"),
    ("What happened last weekend?", "2023-05-06 2023-05-08"),
    ("the past month", "2023-04-10 2023-05-11"),
    ("last month", "2023-04-01 2023-05-01"),
    ("last year", "2022-01-01 2023-01-01"),
    ("last quarter's figures", "2023-01-01 2023-04-01"),
    ("last summer", "2022-06-01 2022-09-01"),
    ("next Tuesday", "2023-05-16 2023-05-17"),
    ("what happened on Monday?", "2023-05-08 2023-05-09"),
    ("since Monday", "2023-05-08 2023-05-10"),
    ("two years ago", "2020-11-09 2021-11-09"),
    ("3 days ago", "2023-05-07 2023-05-08"),
    ("in the last 3 weeks", "2023-04-19 2023-05-11"),
    ("in May 2023", "2023-05-01 2023-06-01"),
    ("in December", "2022-12-01 2023-01-01"),
    ("last May", "2022-05-01 2022-06-01"),
    ("on 7 May", "2023-05-07 2023-05-08"),
    ("on May 7th, 2022", "2022-05-07 2022-05-08"),
    ("31 October, 2022", "2022-10-31 2022-11-01"),
    ("on 9th December 2023", "2023-12-09 2023-12-10"),
    ("2023-05-07", "2023-05-07 2023-05-08"),
    ("am 07.05.2023", "2023-05-07 2023-05-08"),
    ("25/6/2023", "2023-06-25 2023-06-26"),
    ("in 2021", "2021-01-01 2022-01-01"),
    ("in Q3 2022", "2022-07-01 2022-10-01"),
    ("the summer of 2022", "2022-06-01 2022-09-01"),
    ("in mid-August 2023", "2023-08-10 2023-08-21"),
    ("first weekend of August 2023", "2023-08-05 2023-08-07"),
    ("the week before August 3, 2023", "2023-07-27 2023-08-03"),
    ("the Friday before 20 May 2022", "2022-05-13 2022-05-14"),
    ("between 1 May and 5 May 2023", "2023-05-01 2023-05-06"),
    ("from March to April 2023", "2023-03-01 2023-05-01"),
    ("before 7 May 2023", "0001-01-02 2023-05-07"),
    ("as of December 2022", "0001-01-02 2023-01-01"),
    ("after 7 May 2023", "2023-05-08 9999-12-30"),
]

#: What names no time: words that have another meaning, numbers, and days that there are none.
NONE = [
    "What may Ada do?",
    "may I march in?",
    "3 may come",
    "the second of them",
    "What did he name her after?",
    "the last photo, and the next one",
    "version 2023.1 of order 2023-99-99",
    "5/6/2023",
    "call 555-2023",
    "I spring to it and fall",
    "this is what it was",
    "100000 years ago",
]


@pytest.mark.parametrize(("asked", "about"), ASKED)
def test_a_question_names_a_time(asked: str, about: str) -> None:
    """Relative to when it is asked."""
    found = read_question(asked, NOW)
    assert found is not None
    ((start, end),) = found.spans
    assert f"{start.date()} {end.date()}" == about


@pytest.mark.parametrize("text", NONE)
def test_what_is_no_time_is_not_taken_for_one(text: str) -> None:
    """A wrong time would hide what fits."""
    assert read_question(text, NOW) is None
    assert spans_in(text, NOW) == []


def test_what_a_question_says_besides() -> None:
    """Its time is not looked for among the words."""
    found = read_question("What did Ada decide last week about tea?", NOW)
    assert found is not None
    assert found.rest.split() == "What did Ada decide about tea?".split()  # noqa: SIM905 - as read


@pytest.mark.parametrize(
    ("asked", "event", "before"),
    [
        ("Where did Ada live before the move?", "the move", True),
        ("What changed after we moved to Berlin?", "we moved to Berlin", False),
        ("since the launch, what broke", "the launch", False),
    ],
)
def test_a_question_names_an_event(asked: str, event: str, *, before: bool) -> None:
    """When that was, only the memories know."""
    found = read_question(asked, NOW)
    assert found is not None
    assert (found.spans, found.event, found.before, found.rest) == ([], event, before, asked)


@pytest.mark.parametrize(
    ("said", "days"),
    [
        ("We met yesterday.", ["2023-05-09"]),
        ("On Friday I went to Paris", ["2023-05-05"]),
        ("On Friday I'll go to Paris", ["2023-05-12"]),
        ("We will camp in July", ["2023-07-01"]),
        ("We camped in July", ["2022-07-01"]),
        ("Born on 10 December 1815 in London", ["1815-12-10"]),
        ("The deadline is 2024-02-29, or tomorrow", ["2023-05-11", "2024-02-29"]),
    ],
)
def test_a_text_names_times(said: str, days: list[str]) -> None:
    """Relative to when it was said; what lies ahead is told by how it is said."""
    assert sorted(span.start.date().isoformat() for span in spans_in(said, NOW)) == days


def test_days_begin_where_the_question_is_asked() -> None:
    """Late in the evening of New York it is the next day already in Greenwich."""
    evening = datetime(2023, 5, 9, 22, tzinfo=timezone(timedelta(hours=-4)))
    (yesterday,) = spans_in("yesterday", evening)
    assert yesterday.start.date() == date(2023, 5, 8)
    assert yesterday.start.astimezone(UTC).hour == 4


WORDS = """the last next first week weekend of may february 29 31st 2023 0000 9999 999 years ago
before after since between and monday q4 summer mid from to 2023-02-30 fourth"""


@given(
    st.text() | st.lists(st.sampled_from(WORDS.split())).map(" ".join),
    st.integers(0, 80_000).map(
        lambda days: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=days)
    ),
)
def test_any_text_can_be_read(text: str, now: datetime) -> None:
    """Whatever it says, a time in a text begins before it ends."""
    read_question(text, now)
    assert all(start < end for start, end in spans_in(text, now))
