"""Fencing: a worker that slept through its lease is refused, whatever its clock says.

Real processes, stopped by SIGSTOP. A place with a clock of its own decides by that alone: nobody
takes over early or has to wait longer because somebody's clock is wrong. SQLite and files have no
clock but the machine's, which is one for all; where it is made to differ all the same, a rival who
is ahead takes over too early, and one who is behind waits too long. What holds there as well is
what counts: of two who both think that they may write, one is refused.
"""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from limpet import LeaseHeld, LeaseLost, TaskHeld
from limpet.backends.contract import Append, Key
from limpet.backends.url import connect
from limpet.testing.crash import seeded, soak
from limpet.testing.takeover import Worker
from tests.support import places
from tests.support.places import Where

where = places.where

KEY = Key("default", "note", "one")
HOUR = 3600
LEASE = 0.4  # seconds; long enough to be renewed, short enough to be slept through

clocks = pytest.mark.parametrize("ahead", [0, HOUR, -HOUR], ids=["in-time", "ahead", "behind"])


class Crew:
    """Workers at one place. Their processes serve the next test too."""

    def __init__(self) -> None:
        self._idle: dict[int, list[Worker]] = {}
        self._hired: list[tuple[int, Worker]] = []

    def hire(self, where: Where, ahead: int = 0) -> Worker:
        """A worker with that clock, who has the place open."""
        idle = self._idle.setdefault(ahead, [])
        worker = idle.pop() if idle else Worker(ahead=ahead)
        self._hired.append((ahead, worker))
        worker.do("open", where.url, dict(os.environ))
        return worker

    def hire_two(self, where: Where, ahead: int) -> tuple[Worker, Worker]:
        """Two, neither with the right time: the second one's clock is *ahead* of the first's."""
        return self.hire(where, -ahead // 2), self.hire(where, ahead // 2)

    def dismiss(self) -> None:
        """Send home all that were hired; who is still busy, for good."""
        while self._hired:
            ahead, worker = self._hired.pop()
            worker.go_on()
            if worker.busy:
                worker.kill()
            else:
                worker.do("close")
                self._idle[ahead].append(worker)

    def close(self) -> None:
        """End them all."""
        with ExitStack() as stack:
            for idle in self._idle.values():
                for worker in idle:
                    stack.push(worker)


@pytest.fixture(scope="module")
def everybody() -> Iterator[Crew]:
    """Workers for all tests of this file."""
    made = Crew()
    yield made
    made.close()


@pytest.fixture
def crew(everybody: Crew) -> Iterator[Crew]:
    """Workers for one test."""
    yield everybody
    everybody.dismiss()


# -- a journal -----------------------------------------------------------------------------------


@pytest.mark.slow
@clocks
def test_a_writer_that_slept_through_its_lease_is_refused(
    where: Where, crew: Crew, ahead: int
) -> None:
    """What it says when it wakes is not in the journal; the rival goes on undisturbed."""
    late, rival = crew.hire_two(where, ahead)
    late.do("acquire", 60)
    late.do("append", "early")
    if keeps_time(where, ahead):
        with pytest.raises(LeaseHeld, match=f"held by process {late.pid}"):
            rival.do("acquire", 60)
    late.do("renew", LEASE)
    late.stop()
    take_over(where, rival, ahead)
    rival.do("append", "rival")

    late.tell("append", "late")
    late.go_on()
    with pytest.raises(LeaseLost, match=r"taken over, and nothing was written\. .*stop this one"):
        late.hear()
    with pytest.raises(LeaseLost):
        late.do("renew", 60)
    late.do("release")
    assert rival.do("holder") == f"process {rival.pid}"
    assert rival.do("append", "goes on") == 3
    assert late.do("bodies") == rival.do("bodies") == ["early", "rival", "goes on"]


def keeps_time(where: Where, ahead: int) -> bool:
    """Whether leases there last for what they say, for one whose clock is *ahead*."""
    return where.has_a_clock or ahead == 0


def take_over(where: Where, rival: Worker, ahead: int) -> None:
    """Let the rival have the lease of one that sleeps."""
    if keeps_time(where, ahead):
        rival.do("acquire", 60, wait=30)
    elif ahead > 0:  # it has ended, says its clock
        rival.do("acquire", 60)
    else:  # it has an hour to go, says its clock
        with pytest.raises(LeaseHeld):
            rival.do("acquire", 60, wait=2 * LEASE)
        rival.do("acquire", 60, dead=True)


@pytest.mark.slow
@clocks
@pytest.mark.parametrize("anew", ["nothing", "append_freely", "acquire"])
def test_a_writer_whose_journal_was_deleted_meanwhile_is_refused(
    where: Where, crew: Crew, ahead: int, anew: str
) -> None:
    """Its lease was for the old one, also if there is a new one by now, with a lease or without."""
    late, rival = crew.hire_two(where, ahead)
    late.do("acquire", 60)
    late.do("append", "early")
    late.stop()
    assert rival.do("delete") is True
    if anew == "acquire":
        rival.do("acquire", 60)
        rival.do("append", "new")
    elif anew == "append_freely":
        rival.do("append_freely", "new")

    late.tell("append", "late")
    late.go_on()
    with pytest.raises(LeaseLost):
        late.hear()
    with pytest.raises(LeaseLost):
        late.do("renew", 60)
    late.do("release")
    assert late.do("bodies") == ([] if anew == "nothing" else ["new"])
    if anew == "acquire":
        assert rival.do("append", "goes on") == 2


@pytest.mark.slow
def test_of_many_rivals_one_takes_over(where: Where, crew: Crew) -> None:
    """And the others are told who it was."""
    late, *rivals = [crew.hire(where) for _ in range(4)]
    late.do("acquire", LEASE)
    late.do("append", "early")
    late.stop()
    for rival in rivals:
        rival.tell("acquire", 60, wait=3 * LEASE)
    refused: list[str] = []
    won: list[Worker] = []
    for rival in rivals:
        try:
            rival.hear()
        except LeaseHeld as held:
            refused.append(str(held))
        else:
            won.append(rival)
    assert len(won) == 1
    assert all(f"held by process {won[0].pid} " in words for words in refused)
    late.go_on()
    with pytest.raises(LeaseLost):
        late.do("append", "late")
    assert won[0].do("append", "goes on") == 2


@pytest.mark.soak
def test_a_writer_may_be_stopped_at_any_moment(where: Where, crew: Crew) -> None:
    """Also in the middle of a write: what it was told is there, before the rival's; nothing else.

    One that is stopped with a lock in its hands keeps the rival waiting until it goes on.
    """
    late, rival = crew.hire(where), crew.hire(where)
    with seeded() as rng:
        for _ in range(4 * soak()):
            late.do("acquire", LEASE / 2)
            late.tell("append_on", "late")
            time.sleep(rng.uniform(0.01, 0.1))
            late.stop()
            rival.tell("acquire", 60, wait=30)
            time.sleep(LEASE)
            late.go_on()
            rival.hear()
            rival.do("append", "rival")
            acknowledged = late.hear()
            assert rival.do("bodies") == [*(f"late-{n}" for n in range(acknowledged)), "rival"]
            rival.do("release")
            rival.do("delete")


# -- a task --------------------------------------------------------------------------------------


@pytest.mark.slow
@clocks
@pytest.mark.parametrize("notices", [False, True], ids=["at-once", "noticed"])
def test_a_task_whose_worker_sleeps_goes_on_elsewhere(
    where: Where, crew: Crew, ahead: int, *, notices: bool
) -> None:
    """The worker hears of it when it wakes: with its next write, or before its next step runs."""
    late, rival = crew.hire_two(where, ahead)
    late.do("begin", lease=LEASE)
    late.do("step", "fetch")
    late.stop()
    if not keeps_time(where, ahead) and ahead < 0:
        not_yet(late, rival)
        return
    assert rival.do("begin", wait=30) == {"fetch": "fetch"}
    assert rival.do("step", "fetch") == "fetch"
    assert rival.do("step", "send") == "send"

    if notices:
        late.go_on()
        assert late.do("notice") == "LeaseLost"
        late.tell("step", "late")
    else:
        late.tell("step", "late")
        late.go_on()
    with pytest.raises(LeaseLost, match=r"taken over, and nothing was written\. .*stop this one"):
        late.hear()
    if notices:
        assert late.do("ran") == ["fetch"]
    with pytest.raises(LeaseLost):
        late.do("finish", "late")
    late.do("leave")

    assert rival.do("ran") == ["send"]
    assert rival.do("step", "more") == "more"
    assert rival.do("finish", "sent") == "sent"
    rival.do("leave")
    assert late.do("results") == {"fetch": "fetch", "send": "send", "more": "more"}
    kinds = ["created", "step", "resumed", "step", "step", "finished"]
    assert late.do("entries") == kinds


def not_yet(late: Worker, rival: Worker) -> None:
    """The rival thinks that the lease has an hour to go. So it waits, and nobody is harmed."""
    with pytest.raises(TaskHeld):
        rival.do("begin", wait=2 * LEASE)
    late.go_on()
    assert late.do("step", "send") == "send"
    late.do("leave")
    assert late.do("entries") == ["created", "step", "step"]


@clocks
@pytest.mark.parametrize("anew", [False, True], ids=["deleted", "begun-anew"])
def test_a_worker_whose_task_was_deleted_meanwhile_is_refused(
    where: Where, crew: Crew, ahead: int, *, anew: bool
) -> None:
    """Nothing of the old task gets into one of the same name that came after it."""
    late, rival = crew.hire_two(where, ahead)
    late.do("begin", lease=LEASE)
    late.do("step", "fetch")
    late.stop()
    assert rival.do("delete_task") is True
    if anew:
        assert rival.do("begin", goal="Begin again") == {}
        rival.do("step", "new")

    late.tell("step", "late")
    late.go_on()
    with pytest.raises(LeaseLost):
        late.hear()
    late.do("leave")
    assert late.do("entries") == (["created", "step"] if anew else [])
    if anew:
        assert rival.do("step", "more") == "more"
        rival.do("leave")


# -- the harness itself --------------------------------------------------------------------------


def test_a_worker_has_the_clock_that_it_was_given(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Or the tests above would prove nothing."""
    with Worker(ahead=HOUR) as ahead, Worker() as worker:
        url = f"sqlite:{tmp_path_factory.mktemp('clock')}/agents.db"
        worker.do("open", url)
        ahead.do("open", url)
        before = worker.do("acquire", 0)
        after = ahead.do("acquire", 0)
        assert (HOUR - 60) * 10**6 < after - before < (HOUR + 60) * 10**6


def test_what_a_worker_cannot_do_is_an_error_here() -> None:
    """With its words; a fault of the test is not taken for a refusal."""
    with Worker() as worker, pytest.raises(AssertionError, match=r"AttributeError.*fly"):
        worker.do("fly")


DAY = 24 * 60 * 60 * 10**9


@pytest.mark.parametrize("name", ["sqlite", "file", "memory"])
def test_what_was_released_by_a_clock_that_was_ahead_is_free_when_that_is_set_right(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was closed properly, and nobody waits a day for it."""
    url = "memory:" if name == "memory" else places.find(name, request).url
    with closing(connect(url)) as backend:
        real = time.time_ns
        with monkeypatch.context() as patch:
            patch.setattr(time, "time_ns", lambda: real() + DAY)
            backend.append(Append(key=KEY, body=b"x", count=1))
            backend.release(KEY, backend.acquire(KEY, "me", 60))
        head = backend.head(KEY)
        assert head is not None
        assert head.lease is None
        assert backend.acquire(KEY, "you", 60).holder == "you"
