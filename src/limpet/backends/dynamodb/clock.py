"""What time it is at the server, told from the dates of its replies."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ServerClock", "offset"]

#: A reply's date has whole seconds: the server's clock showed less than this more.
TICK = 1.0

#: Times are held for as long as this rather than go back, in seconds.
HELD = 5.0


def offset() -> float:
    """How far this machine's clock is ahead of its monotonic one, which stands still in sleep."""
    return time.time() - time.monotonic()


class ServerClock:
    """The server's time, in microseconds, reckoned from this process's monotonic clock.

    DynamoDB has no clock in its expressions, and two clients' clocks must never be compared. But a
    reply bears a date, and was written after the request was *sent* and before it was *received*:
    that bounds how far the server is ahead of our monotonic clock. All replies together bound it
    narrowly. Within the bounds this machine's own clock is believed, which is finer where it is
    kept by NTP; a machine that is an hour off falls outside them, and its clock does not count.

    A machine that slept, or whose clock was set, would go by a time that is long past. It can tell
    by its `offset`, and then lets the server be *asked* for anything at all, before it says more.
    """

    def __init__(self, asked: Callable[[], object]) -> None:
        self._asked = asked
        self._offset: float | None = None  # when the last reply was asked for
        self._lock = threading.Lock()
        self._low = float("-inf")
        self._high = float("inf")
        self._ahead = offset()
        self._last = 0
        self._date, self._seconds = "", 0.0

    def heard(self, date: str, sent: float, received: float, since: float) -> None:
        """Take in the *date* of a reply, and when it was asked for and came, by `monotonic`.

        *since*: the `offset` when it was asked for.
        """
        with self._lock:
            self._offset = since
            if date != self._date:
                self._date, self._seconds = date, _seconds(date)
            low, high = self._seconds - received, self._seconds + TICK - sent
            if low > self._high or high < self._low:
                # Not what was said before: this machine slept, or that one's clock was set.
                self._low, self._high = low, high
            else:
                self._low, self._high = max(low, self._low), min(high, self._high)
            if not self._low <= self._ahead <= self._high:
                self._ahead = self._nearest()

    def _nearest(self) -> float:
        """What to believe instead of what cannot be: the middle, or a step that small things need.

        A first guess that is far off is replaced by the best one; later the bounds close in from
        one side, and the clock is moved no more than it must be.
        """
        middle = (self._low + self._high) / 2
        edge = self._low if self._ahead < self._low else self._high
        return edge if abs(edge - self._ahead) < TICK else middle

    def now(self) -> int:
        """Microseconds since 1970; never less than before, unless the server was set back."""
        present = offset()
        if self._offset is None or abs(present - self._offset) > TICK:
            self._asked()
            self._offset = present
        with self._lock:
            found = round((time.monotonic() + self._ahead) * 1e6)
            if not 0 < self._last - found < HELD * 1e6:
                self._last = found
            return self._last


def _seconds(date: str) -> float:
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - boto3 has loaded it by then

    return parsedate_to_datetime(date).timestamp()
