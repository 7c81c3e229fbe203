"""Tests of what makes a memory outdated: only what cannot be true beside the newer one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from limpet.memory.results import Remembered
from limpet.memory.updates import outdated

FIRST = datetime(2026, 1, 1, tzinfo=UTC)

#: What was said first, what was said then, and whether that says otherwise about the same.
PAIRS = [
    ("Ada prefers coffee", "Ada now prefers tea", True),
    ("Ada prefers coffee in the morning", "Ada switched from coffee to tea in the morning", True),
    ("We use PostgreSQL for billing", "Billing no longer uses PostgreSQL", True),
    ("The API allows 100 calls a minute", "The API allows 200 calls a minute", True),
    ("Ada's favourite colour is blue", "Ada's favourite colour is green", True),
    ("Ada lives in Paris", "Ada lives in Berlin", True),
    ("The deadline is 7 May", "The deadline is 9 May", True),
    ("the billing database: db1.example.org", "The billing database: db2.example.org", True),
    # Both may be true.
    ("Ada likes tea", "Ada likes coffee", False),
    ("Ada is a doctor", "Ada is tall", False),
    ("Invoice 17 was paid", "Invoice 18 was paid", False),
    ("Ada prefers window seats", "Ada now prefers tea", False),
    ("Ada lives in Paris", "Bob lives in Berlin", False),
    ("Ada reads a book", "Right now I am reading another book", False),
    ("Ada visited Paris", "Ada visited Rome", False),
    # The same again.
    ("Ada lives in Paris", "ada lives in Paris.", False),
]


def said(number: int, text: str, **changes: object) -> Remembered:
    """A memory of that day."""
    fields = {"id": str(number), "text": text, "at": FIRST + timedelta(days=number)}
    return Remembered(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(("older", "newer", "otherwise"), PAIRS)
def test_what_says_otherwise(older: str, newer: str, *, otherwise: bool) -> None:
    """In whatever order they were found; and what was said first replaces nothing."""
    one, other = said(1, older), said(2, newer)
    expected = {"2": ["1"]} if otherwise else {}
    assert outdated([one, other]) == outdated([other, one]) == expected
    if "now" not in newer and "switched" not in newer and "longer" not in newer:
        back = outdated([said(1, newer), said(2, older)])
        assert back == ({"2": ["1"]} if otherwise else {})


def test_when_it_was_said_counts_not_when_it_was_remembered() -> None:
    """What is imported later may have been said long before."""
    one = said(1, "Ada lives in Paris")
    before = said(2, "Ada lives in Berlin", said_at=FIRST - timedelta(days=9))
    assert outdated([one, before]) == {"1": ["2"]}


def test_the_less_trusted_outdates_nothing() -> None:
    """Or whoever may write could push aside what others know."""
    known = said(1, "The API allows 100 calls", trust=0.9)
    assert outdated([known, said(2, "The API allows 9999 calls", trust=0.1)]) == {}
    assert outdated([known, said(2, "The API allows 200 calls", trust=0.9)]) == {"2": ["1"]}


def test_a_long_text_is_no_such_sentence() -> None:
    """It has many subjects."""
    assert outdated([said(1, "Ada lives in Paris"), said(2, "Ada lives in Rome " * 99)]) == {}
