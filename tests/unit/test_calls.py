"""Calls that began: which are open, which are running, and which nobody has seen the end of."""

from datetime import UTC, datetime

import pytest

from limpet.backends.contract import Head, Key, Lease
from limpet.core.calls import Call, Ledger, calls_in_doubt, check_answer
from limpet.core.leases import holder_name
from limpet.core.meta import Meta

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
EPOCH = 7


def head(*calls: Call, holder: str | None = None) -> Head:
    """The head of a journal that has these open *calls*; somebody may hold its lease."""
    lease = None if holder is None else Lease(holder, EPOCH, 2**60)
    meta = Meta(calls={call.id: call for call in calls}).encode()
    return Head(Key("default", "task", "t"), "1", 1, 1, 0, 0, 0, meta=meta, lease=lease)


def test_a_call_is_open_until_it_has_ended() -> None:
    """And it is known since when."""
    ledger = Ledger()
    assert not ledger
    ledger.begin(Call("pay"), NOW)
    assert "pay" in ledger
    assert (ledger.running, ledger.abandoned, ledger.since) == ({"pay"}, set(), {"pay": NOW})
    assert ledger.end("pay") == Call("pay")
    assert not ledger
    assert (ledger.running, ledger.since) == (set(), {})
    assert ledger.end("pay") is None


def test_a_call_that_failed_is_open_and_does_not_run() -> None:
    """Whether it happened is not known; how it ended is."""
    ledger = Ledger()
    ledger.begin(Call("pay"))
    ledger.fail("pay", "no answer")
    ledger.fail("unknown", "no answer")
    assert ledger.open == {"pay": Call("pay", error="no answer")}
    assert (ledger.running, ledger.abandoned) == (set(), set())


def test_what_an_earlier_run_has_left_is_abandoned() -> None:
    """Until it is begun again; a copy does not change with it."""
    ledger = Ledger([Call("pay")], NOW)
    assert (ledger.abandoned, ledger.since) == ({"pay"}, {"pay": NOW})
    ledger.begin(Call("send"))
    ledger.abandon()
    copy = ledger.copy()
    assert copy.abandoned == {"pay", "send"}
    ledger.begin(Call("pay", attempt=2))
    assert (ledger.running, ledger.abandoned) == ({"pay"}, {"send"})
    assert (copy.running, copy.open["pay"].attempt) == (set(), 1)


@pytest.mark.parametrize(
    ("call", "holder", "is_doubtful"),
    [
        (Call("pay", epoch=EPOCH), None, True),
        (Call("pay", epoch=EPOCH), "somebody on another machine", False),
        (Call("pay"), "somebody on another machine", False),
        (Call("pay", epoch=EPOCH - 1), "somebody on another machine", True),
        (Call("pay", epoch=EPOCH, error="no answer"), "somebody on another machine", True),
        (Call("pay", epoch=EPOCH), holder_name(None), False),
    ],
    ids=["nobody", "running", "unknown", "an earlier run", "failed", "ours"],
)
def test_what_somebody_is_just_making_is_not_in_doubt(
    call: Call, holder: str | None, *, is_doubtful: bool
) -> None:
    """As far as the head can tell: by the lease under which it began, and by its error."""
    assert calls_in_doubt(head(call, holder=holder)) == ([call] if is_doubtful else [])


def test_a_head_without_calls_has_none_in_doubt() -> None:
    """Whatever else a model keeps there."""
    assert calls_in_doubt(head()) == []


def test_an_answer_is_one_of_three_and_only_what_is_done_has_a_result() -> None:
    """The error says what was resolved, in the words of the caller."""
    check_answer("done", 1)
    check_answer("retry", None)
    with pytest.raises(ValueError, match="A call in doubt is resolved as one of done, retry, skip"):
        check_answer("maybe", None)
    with pytest.raises(ValueError, match="Only a step that is done has a result"):
        check_answer("skip", 1, "step")
