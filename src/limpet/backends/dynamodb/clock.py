"""What time it is at the server, reckoned from the dates of its answers."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ServerClock", "offset"]

#: An answer's date has whole seconds: the server's clock showed less than this more.
TICK = 1.0

#: Times stand still for up to so many seconds rather than go back.
STANDS_STILL = 5.0


def offset() -> float:
    """How far this machine's clock is ahead of its monotonic one, which stands still in sleep."""
    return time.time() - time.monotonic()


class ServerClock:
    """The server's time, in microseconds, reckoned from this process's monotonic clock.

    DynamoDB has no clock in its expressions, and two clients' clocks must never be compared. But an
    answer bears a date, and was written after the request was *sent* and before it was *received*:
    that bounds how far the server is ahead of our monotonic clock. All answers together bound it
    narrowly. Within the bounds this machine's own clock is believed, which is finer where it is
    set by NTP; a machine that is an hour off falls outside them, and its clock does not count.

    A machine that slept, or whose clock was set, would go by a time that is long past. It notices
    by its `offset`, and then calls *ask*, which asks the server for anything at all.
    """

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self._offset: float | None = None  # when the last answer was asked for
        self._lock = threading.Lock()
        self._low = float("-inf")
        self._high = float("inf")
        self._ahead = offset()
        self._last = 0
        self._date, self._seconds = "", 0.0

    def observe(self, date: str, sent: float, received: float, since: float) -> None:
        """Take in the *date* of an answer, and when it was asked for and came, by `monotonic`.

        *since*: the `offset` when it was asked for.
        """
        with self._lock:
            self._offset = since
            if date != self._date:
                from email.utils import parsedate_to_datetime  # noqa: PLC0415 - boto3 has loaded it

                self._date, self._seconds = date, parsedate_to_datetime(date).timestamp()
            low, high = self._seconds - received, self._seconds + TICK - sent
            if low > self._high or high < self._low:
                # Not what was so before: this machine slept, or that one's clock was set.
                self._low, self._high = low, high
            else:
                self._low, self._high = max(low, self._low), min(high, self._high)
            if not self._low <= self._ahead <= self._high:
                # A first guess that is far off is replaced by the best one; later the bounds close
                # in from one side, and the clock is moved no more than it must be.
                edge = self._low if self._ahead < self._low else self._high
                near = abs(edge - self._ahead) < TICK
                self._ahead = edge if near else (self._low + self._high) / 2

    def now(self) -> int:
        """Microseconds since 1970; never less than before, unless the server was set back."""
        present = offset()
        if self._offset is None or abs(present - self._offset) > TICK:
            self._ask()
            self._offset = present
        with self._lock:
            found = round((time.monotonic() + self._ahead) * 1e6)
            if not 0 < self._last - found < STANDS_STILL * 1e6:
                self._last = found
            return self._last
