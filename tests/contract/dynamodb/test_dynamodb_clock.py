"""DynamoDB's clock, as its replies tell it."""

from __future__ import annotations

import time

import pytest

from limpet.backends.dynamodb import clock as server_clock
from limpet.backends.dynamodb.clock import ServerClock

SERVER = 1_800_000_000


def heard(clock: ServerClock, server: float, now: float, trip: float = 0.01) -> None:
    """Let a reply come in at *now*, from a server whose clock shows *server* then."""
    moment = time.gmtime(server - trip / 2)
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", moment)
    clock.observe(date, now - trip, now, server_clock.offset())


class Watch:
    """This machine's clocks, set by hand."""

    def __init__(self, wall: float) -> None:
        self.wall = wall
        self.passed = 100.0

    def time(self) -> float:
        """The one on the wall."""
        return self.wall + self.passed

    def monotonic(self) -> float:
        """The one that is never set."""
        return self.passed


@pytest.mark.parametrize("error", [0, 0.3, -0.3, 90, -3600])
def test_the_servers_clock_is_told_from_its_replies(
    monkeypatch: pytest.MonkeyPatch, error: float
) -> None:
    """To a second at once, to a few hundredths after many, however wrong our own is."""
    watch = Watch(SERVER + error)
    monkeypatch.setattr(server_clock, "time", watch)
    clock, last = ServerClock(ask=lambda: None), 0
    for reply in range(200):
        watch.passed += 0.137
        heard(clock, SERVER + watch.passed, watch.passed)
        off = clock.now() / 1e6 - SERVER - watch.passed
        assert abs(off) < (1.02 if reply < 150 else 0.05)
        assert clock.now() >= last
        last = clock.now()


def test_a_machine_that_slept_knows_the_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its monotonic clock stood still meanwhile."""
    watch = Watch(SERVER)
    monkeypatch.setattr(server_clock, "time", watch)
    clock = ServerClock(ask=lambda: None)
    for slept in (0, 500, 500):
        for _ in range(20):
            watch.passed += 0.3
            heard(clock, SERVER + watch.passed + slept, watch.passed)
    assert abs(clock.now() / 1e6 - SERVER - 500 - watch.passed) < 1.02


def test_a_machine_that_slept_asks_before_it_says_what_time_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once: what its own clock shows then is no reason to ask again."""
    watch, asked = Watch(SERVER), 0

    def ask() -> None:
        nonlocal asked
        asked += 1
        heard(clock, watch.time(), watch.passed)

    monkeypatch.setattr(server_clock, "time", watch)
    clock = ServerClock(ask)
    for slept, times in ((0, 1), (0.5, 1), (3600, 2), (0, 2), (-90, 3)):
        watch.wall += slept
        for _ in range(3):
            watch.passed += 0.1
            assert abs(clock.now() / 1e6 - watch.time()) < 1.02
        assert asked == times
