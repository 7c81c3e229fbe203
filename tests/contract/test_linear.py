"""Linearizability: eight clients on one journal, and one order that explains what each was told."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from limpet.backends.memory import MemoryBackend
from limpet.testing import linear
from limpet.testing.crash import Moment, Outcome, crash, run, seeded, soak
from limpet.testing.linear import (
    Call,
    Look,
    Read,
    Seen,
    Write,
    crowd,
    history_of,
    journal_of,
    violations,
)
from tests.support import places
from tests.support.places import Where

where = places.where

CALLS = 40  # of each client
KILLS = 3
FEW = 3  # times fewer of them where writers who meet have to try again, as on DynamoDB


# -- every backend -------------------------------------------------------------------------------


@pytest.mark.soak
def test_eight_clients_see_one_journal(where: Where) -> None:
    """Processes, threads and coroutines, with connections of their own or shared."""
    calls = scaled(CALLS, where)
    with seeded() as rng:
        history = history_of(run(*crowd(where.url, calls=calls, rng=rng)))
        journal = journal_of(where.url)
        assert violations(history, journal) == []
    assert len(history) == 8 * calls
    assert len(journal) == sum(isinstance(call, Write) and call.seq is not None for call in history)
    assert {type(call) for call in history} == {Write, Read, Look}
    assert side_by_side(history) > calls
    assert any(isinstance(call, Write) and call.actual is not None for call in history)


@pytest.mark.soak
def test_clients_that_are_killed_leave_one_journal(where: Where) -> None:
    """An append without an answer is there or not; tried again under its id, it is there once."""
    history: list[Call] = []
    with seeded() as rng:
        for _ in range(scaled(KILLS, where)):
            moment = Moment(rng.randint(20, 150), rng.uniform(0, 0.005))
            programs = crowd(where.url, calls=10_000, rng=rng, again=unanswered(history))
            history += history_of(crash(programs, [moment]))
            assert violations(history, journal_of(where.url)) == []
        history += history_of(run(*crowd(where.url, calls=2, rng=rng, again=unanswered(history))))
        assert violations(history, journal_of(where.url)) == []
    assert {write.body for write in unanswered(history)} == set()


def scaled(count: int, where: Where) -> int:
    """How many there shall be."""
    return count * soak() // (FEW if where.name == "dynamodb" else 1)


def unanswered(history: Sequence[Call]) -> list[Write]:
    """Appends under an id of which nobody knows whether they are there."""
    writes = [call for call in history if isinstance(call, Write) and call.id is not None]
    known = {write.id for write in writes if write.ended is not None}
    return list({write.id: write for write in writes if write.id not in known}.values())


def side_by_side(history: Iterable[Call]) -> int:
    """How many calls began while one of another client was under way."""
    found, last, whose = 0, 0, ""
    for call in sorted(history, key=lambda call: call.began):
        found += call.began < last and call.client != whose
        if call.ended is not None and call.ended > last:
            last, whose = call.ended, call.client
    return found


# -- in one process ------------------------------------------------------------------------------


class Forgetful(MemoryBackend):
    """Answers some reads from what it knew a moment ago, as a replica does."""

    def __init__(self) -> None:
        super().__init__()
        self._old: Any = None

    def head(self, key: Any) -> Any:
        """At times the one before."""
        old, self._old = self._old, super().head(key)
        return old


def played(backend: MemoryBackend) -> list[str]:
    """What is wrong with *backend* as five threads see it."""
    lines: list[str] = []
    lock = threading.Lock()

    def ack(line: str) -> None:
        with lock:
            lines.append(line)

    with seeded() as rng, patch.object(linear, "ack", ack):
        clients = [linear._Client(name, 60, Random(rng.random()), []) for name in "abcde"]
        linear._in_threads([backend] * 5, clients)
    found = backend.read(linear.KEY)
    history = history_of([Outcome(lines, killed=False)])
    return violations(history, [Seen(r.seq, r.count, r.body.decode()) for r in found])


def test_memory_is_one_journal_to_its_threads() -> None:
    """The contract in its plainest reading passes."""
    assert played(MemoryBackend()) == []


def test_a_backend_that_answers_from_memory_is_found_out() -> None:
    """A check that cannot see a stale answer would prove nothing."""
    assert any("comes before it" in fault for fault in played(Forgetful()))


# -- the checker itself --------------------------------------------------------------------------


def wrote(client: str, began: int, ended: int | None, **answer: Any) -> Write:
    """An append by *client*, whose body is its name and when it began."""
    made: dict[str, Any] = {"client": client, "began": began, "ended": ended, **answer}
    return Write(**{"body": f"{client}{began}", **made})


def saw(client: str, began: int, ended: int, *found: Seen, **how: Any) -> Read:
    """A read by *client*."""
    return Read(client=client, began=began, ended=ended, found=list(found), **how)


A, B, C = Seen(1, 1, "a0"), Seen(3, 2, "b10"), Seen(4, 1, "c20")
ABC = (A, B, C)
GOOD: list[Call] = [
    wrote("a", 0, 5, seq=1),
    wrote("b", 10, 25, seq=3, count=2),
    wrote("c", 20, 40, seq=4, expect=3),
    wrote("d", 12, 30, expect=1, actual=3),
    saw("e", 6, 9, A),
    saw("e", 11, 28, A, B),
    saw("e", 41, 45, C, B, reverse=True, limit=2),
    Look(client="f", began=50, ended=55, seq=4),
]


def test_a_history_that_one_order_explains_is_linearizable() -> None:
    """Calls that overlap may have come in either order."""
    assert violations(GOOD, ABC) == []
    assert violations([], []) == []


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (saw("x", 41, 45, A, B), "comes before it"),
        (Look(client="x", began=41, ended=45, seq=3), "comes before it"),
        (Look(client="x", began=6, ended=7, seq=0), "comes before it"),
        (saw("x", 41, 45), "comes before it"),
        (wrote("x", 41, 45, expect=1, actual=3), "comes before it"),
    ],
)
def test_a_stale_answer_is_found(call: Call, fault: str) -> None:
    """Whoever was told of an append sees it in every later read."""
    assert fault in violations([*GOOD, call], ABC)[0]


@pytest.mark.parametrize(
    "call",
    [
        saw("x", 6, 9, A, B),
        Look(client="x", began=6, ended=9, seq=3),
        wrote("x", 6, 9, expect=0, actual=3),
    ],
)
def test_an_answer_from_the_future_is_found(call: Call) -> None:
    """Nobody sees an append that nobody has begun."""
    assert "comes before it" in violations([*GOOD, call], ABC)[0]


def test_reads_that_go_back_are_found() -> None:
    """Also while the append that they see is under way, and by two different clients."""
    calls: list[Call] = [wrote("a", 0, 100, seq=1), saw("b", 10, 20, A), saw("c", 30, 40)]
    assert "comes before it" in violations(calls, [A])[0]
    assert violations([calls[0], saw("b", 10, 20, A), saw("c", 15, 40)], [A]) == []


def test_a_lost_append_is_found() -> None:
    """Acknowledged means that it is there."""
    (fault,) = violations([*GOOD, wrote("x", 60, 70, seq=5)], ABC)
    assert "acknowledged and is lost" in fault


@pytest.mark.parametrize(
    ("journal", "fault"),
    [
        ((A, B, C, Seen(5, 1, "a0")), "doubled in the journal: a0"),
        ((A, B, C, Seen(5, 1, "z")), "everybody who wrote it was refused"),
        ((A, B, C, Seen(5, 1, "d12")), "everybody who wrote it was refused"),
        ((A, C), "a number was left out"),
        ((A, B, Seen(3, 1, "c20")), "a number was left out, or given twice"),
        ((A, Seen(3, 2, "c20"), Seen(4, 1, "b10")), "the journal has"),
    ],
)
def test_a_journal_that_nobody_can_have_written_is_found(
    journal: Sequence[Seen], fault: str
) -> None:
    """Doubled, invented, refused and yet there, misnumbered, swapped."""
    assert any(fault in found for found in violations(GOOD, journal))


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (saw("x", 41, 45, A, C), "never was like that"),
        (saw("x", 41, 45, B, A, C), "never was like that"),
        (saw("x", 41, 45, A, B, after=1), "never was like that"),
        (saw("x", 41, 45, C, A, reverse=True), "never was like that"),
        (saw("x", 41, 45, Seen(2, 1, "a0")), "the head was never 2"),
        (Look(client="x", began=41, ended=45, seq=2), "the head was never 2"),
        (wrote("x", 41, 45, expect=4, actual=4), "the head was where it expected it"),
        (wrote("x", 41, 45, body="a0", seq=2, repeated=True), "the journal has"),
        (wrote("x", 41, 45, body="a0", expect=1, actual=4), "although it was there"),
        (wrote("x", 41, 45, body="y", seq=1, repeated=True), "acknowledged and is lost"),
    ],
)
def test_an_answer_that_was_right_at_no_moment_is_found(call: Call, fault: str) -> None:
    """Holes, other orders, records that were not asked for, refusals without a reason."""
    assert any(fault in found for found in violations([*GOOD, call], ABC))


def test_appends_numbered_against_time_are_found() -> None:
    """One that began when the other had ended comes behind it."""
    calls = [wrote("b", 0, 5, seq=2), wrote("a", 10, 15, seq=1)]
    (fault,) = violations(calls, [Seen(1, 1, "a10"), Seen(2, 1, "b0")])
    assert "comes before it" in fault


def test_an_append_that_succeeded_somewhere_else_is_found() -> None:
    """Compare-and-set: between what was expected and what was added nobody came."""
    calls = [wrote("a", 0, 5, seq=1), wrote("b", 0, 5, seq=2, expect=0)]
    (fault,) = violations(calls, [A, Seen(2, 1, "b0")])
    assert "it was added where the head was 1" in fault


def test_two_that_both_did_the_same_append_are_found() -> None:
    """Of an append and its retry one is told that it was there."""
    calls = [wrote("a", 0, 5, seq=1), wrote("b", 6, 9, body="a0", seq=1)]
    assert "both told that it was new" in violations(calls, [A])[0]
    assert violations([calls[0], replace(calls[1], repeated=True)], [A]) == []


def test_an_append_without_an_answer_may_be_there_or_not() -> None:
    """But not before it began, and not for one reader and then not for another."""
    lost = wrote("x", 60, None)
    there = (*ABC, Seen(5, 1, "x60"))
    assert violations([*GOOD, lost], ABC) == violations([*GOOD, lost], there) == []
    assert violations([*GOOD, lost, saw("y", 70, 80, *ABC)], there) == []
    seen = [*GOOD, lost, saw("y", 70, 80, *there)]
    assert violations([*seen, saw("z", 81, 90, *there)], there) == []
    assert "comes before it" in violations([*seen, saw("z", 81, 90, *ABC)], there)[0]
    assert "comes before it" in violations([*GOOD, lost, saw("y", 50, 59, *there)], there)[0]


# -- against a search ----------------------------------------------------------------------------

Journal = tuple[Seen, ...]


def answered(journal: Journal, call: Call) -> tuple[Journal, Call]:
    """The journal after *call*, and *call* with the answer that it should have had."""
    head = journal[-1].seq if journal else 0
    if isinstance(call, Look):
        return journal, replace(call, seq=head)
    if isinstance(call, Read):
        there = [record for record in journal if record.seq > call.after]
        return journal, replace(call, found=(there[::-1] if call.reverse else there)[: call.limit])
    for record in journal:
        if record.body == call.body:
            return journal, replace(call, seq=record.seq, repeated=True, actual=None)
    if call.expect not in (None, head):
        return journal, replace(call, seq=None, repeated=False, actual=head)
    added = Seen(head + call.count, call.count, call.body)
    return (*journal, added), replace(call, seq=added.seq, repeated=False, actual=None)


def explained(calls: Sequence[Call], journal: Journal, before: Journal = ()) -> bool:
    """Whether some order explains *calls* from *before* to *journal*: every order is tried."""
    if before == journal and not any(call.ended is not None for call in calls):
        return True
    if len(before) > len(journal):
        return False
    for n, call in enumerate(calls):
        others = [*calls[:n], *calls[n + 1 :]]
        if any(other.ended is not None and other.ended < call.began for other in others):
            continue
        after, right = answered(before, call)
        if (call.ended is None or call == right) and explained(others, journal, after):
            return True
    return False


@dataclass
class Scene:
    """A history that is right, made up by chance."""

    rng: Random
    calls: list[Call] = field(default_factory=list)
    journal: Journal = ()

    def play(self, count: int) -> None:
        """Add calls, each at its moment."""
        for moment in range(0, 10 * count, 10):
            call = self._any(moment)
            self.journal, call = answered(self.journal, call)
            if self.rng.random() < 0.2:
                call = silent(call)
            self.calls.append(call)

    def _any(self, moment: int) -> Call:
        rng = self.rng
        span = {
            "client": "x",
            "began": moment - rng.randrange(25),
            "ended": moment + rng.randrange(25),
        }
        writes = [call for call in self.calls if isinstance(call, Write)]
        kind = rng.randrange(8)
        if kind == 0:
            return Look(**span)  # type: ignore[arg-type]
        if kind < 3:
            after, limit = rng.choice([0, 0, 1, 3]), rng.choice([1, 2, 9])
            return Read(**span, after=after, limit=limit, reverse=rng.random() < 0.5)  # type: ignore[arg-type]
        if kind == 3 and writes:
            return replace(rng.choice(writes), **span)
        expect = rng.choice([None, rng.randrange(4)])
        return Write(**span, body=f"at {moment}", count=rng.choice([1, 2]), expect=expect)  # type: ignore[arg-type]

    def spoil(self) -> None:
        """Change something, which may make it wrong."""
        rng, n = self.rng, self.rng.randrange(len(self.calls))
        call = self.calls[n]
        shift = rng.choice([-30, -10, 10, 30])
        if rng.random() < 0.15:
            self.journal = tuple(rng.sample(self.journal, rng.randint(0, len(self.journal))))
        elif rng.random() < 0.5 or call.ended is None:
            ended = None if call.ended is None else call.ended + shift
            self.calls[n] = replace(call, began=call.began + shift, ended=ended)
        elif isinstance(call, Read):
            found = rng.sample(self.journal, rng.randint(0, len(self.journal)))
            self.calls[n] = replace(call, found=rng.choice([found, sorted(found, key=seq_of)]))
        elif isinstance(call, Look) or call.seq is not None:
            self.calls[n] = replace(call, seq=rng.randrange(6))
        else:
            self.calls[n] = replace(call, actual=rng.randrange(6))


def seq_of(record: Seen) -> int:
    """Its number."""
    return record.seq


def silent(call: Call) -> Call:
    """The same without an answer."""
    if isinstance(call, Write):
        return replace(call, ended=None, seq=None, repeated=False, actual=None)
    return replace(call, ended=None)


@settings(max_examples=400)
@given(st.randoms(use_true_random=False), st.integers(1, 6), st.integers(0, 2))
def test_the_checker_and_a_search_through_all_orders_agree(
    rng: Random, calls: int, spoilt: int
) -> None:
    """It finds all that is wrong, and nothing that is not."""
    scene = Scene(rng)
    scene.play(calls)
    assert violations(scene.calls, scene.journal) == []
    for _ in range(spoilt):
        scene.spoil()
    found = violations(scene.calls, scene.journal)
    assert (found == []) == explained(scene.calls, scene.journal), found
