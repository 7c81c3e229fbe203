"""Calls over a network that are tried again, and what their callers are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from limpet.backends import retry
from limpet.errors import Conflict, LimpetError, StoreBusy, StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable


class Lost(Exception):
    """The driver's error for an answer that did not come."""


class Refused(Exception):
    """The driver's error for a connection that could not be had: nothing was sent."""


class Full(Exception):
    """The driver's error for a disk that is full."""


class DriverErrors:
    """What they mean."""

    def passes(self, error: Exception) -> bool:
        """What has to do with the network does."""
        return isinstance(error, (Lost, Refused))

    def unanswered(self, error: Exception) -> bool:
        """One that was sent."""
        return isinstance(error, Lost)

    def translated(self, error: Exception, *, writes: bool) -> LimpetError | None:
        """Those three."""
        made = {Lost: StoreUnavailable, Refused: StoreUnavailable, Full: StoreFull}.get(type(error))
        return None if made is None else made(f"as ours, {writes}")


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only pauses move, and how long each of them was."""
    made: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(made), sleep=made.append)
    monkeypatch.setattr(retry, "time", clock)
    return made


def played(*outcomes: object) -> Callable[[], object]:
    """A call whose tries end like this, one after the other; the last one is for ever."""
    left = list(outcomes)

    def attempt() -> object:
        outcome = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return attempt


def repeat(*outcomes: object, **how: Any) -> object:
    """What comes of them."""
    return retry.repeat(played(*outcomes), DriverErrors(), **({"timeout": 30} | how))


def test_it_is_tried_until_it_succeeds(pauses: list[float]) -> None:
    """Ever less often, and never quite in step with others."""
    assert repeat(*[Lost()] * 12, "done") == "done"
    assert len(pauses) == 12
    assert all(0 < pause <= retry.LONGEST_PAUSE for pause in pauses)
    assert pauses[0] <= retry.PAUSE < max(pauses)


def test_it_is_given_up_after_the_timeout(pauses: list[float]) -> None:
    """With one of our errors, whose cause is the driver's."""
    with pytest.raises(StoreUnavailable, match="as ours, True") as caught:
        repeat(Lost(), timeout=5, writes=True)
    assert isinstance(caught.value.__cause__, Lost)
    assert "may be there" not in str(caught.value)  # which the last error says by itself
    assert sum(pauses) <= 5


def test_what_does_not_pass_is_raised_at_once(pauses: list[float]) -> None:
    """The driver's as ours; ours, and what is nobody's, as they are."""
    with pytest.raises(StoreFull, match="as ours, False"):
        repeat(Full())
    for error in (StoreBusy("ours"), Conflict("ours", 1, 2), ZeroDivisionError()):
        with pytest.raises(type(error)) as caught:
            repeat(error)
        assert caught.value is error
    assert pauses == []


@pytest.mark.parametrize("then", [Full(), StoreBusy("busy"), Refused()])
def test_after_a_write_without_an_answer_nobody_is_told_that_nothing_was_written(
    then: Exception,
) -> None:
    """It may have been, whatever a later try came to."""
    with pytest.raises(StoreUnavailable, match=r"may be there all the same.*same id") as caught:
        repeat(Lost(), then, writes=True)
    assert caught.value.__cause__ is then
    with pytest.raises(StoreUnavailable, match="may be there"):
        repeat(then, writes=True, unanswered=True)


def test_after_a_read_without_an_answer_an_error_is_what_it_says() -> None:
    """Nor did a try count that was never sent."""
    with pytest.raises(StoreFull):
        repeat(Lost(), Full())
    with pytest.raises(StoreFull):
        repeat(Refused(), Full(), writes=True)


def test_a_refusal_by_the_store_is_an_answer() -> None:
    """It was decided by what there is, an earlier try of the same call included."""
    with pytest.raises(Conflict):
        repeat(Lost(), Conflict("another was faster", 1, 2), writes=True)
