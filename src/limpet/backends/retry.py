"""Calls over a network: tried again while that may help, and honest about what nobody knows.

Only for what may be done twice: a read, or a write that the store knows again (by its id). A try
without an answer may have been carried out all the same. If a later one is then refused, the
caller must not take the refusal for "nothing was written".
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Protocol, TypeVar

from limpet.errors import LimpetError, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Errors", "may_be_there", "repeat"]

T = TypeVar("T")

#: Seconds before the second try, and at most between any two.
PAUSE = 0.02
LONGEST_PAUSE = 1.0


class Errors(Protocol):
    """What the errors of one driver mean."""

    def passes(self, error: Exception) -> bool:
        """Whether the same call may succeed in a moment."""

    def unanswered(self, error: Exception) -> bool:
        """Whether the call may have been carried out all the same."""

    def translated(self, error: Exception, *, writes: bool) -> LimpetError | None:
        """One of ours for *error*; None for what is no error of the driver."""


def repeat(
    attempt: Callable[[], T],
    errors: Errors,
    *,
    timeout: float,
    writes: bool = False,
    unanswered: bool = False,
) -> T:
    """Call *attempt* until it succeeds, for *timeout* seconds, as long as its errors pass.

    *writes*: what a try without an answer did may stay. *unanswered*: there was such a try before.
    """
    deadline, pause = time.monotonic() + timeout, PAUSE
    while True:
        try:
            return attempt()
        except Exception as error:
            lost = errors.unanswered(error)
            # Half of it by chance, so that many clients do not come back in step.
            wait = pause * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
            if not errors.passes(error) or time.monotonic() + wait > deadline:
                ours: LimpetError | None = error if isinstance(error, StoreError) else None
                ours = ours or errors.translated(error, writes=writes)
                if ours is None:
                    raise  # such as a conflict: an answer of the store's, which knows earlier tries
                if unanswered and not lost:
                    ours = may_be_there(ours)
                if ours is error:
                    raise
                raise ours from error
            unanswered = unanswered or (writes and lost)
        time.sleep(wait)
        pause = min(2 * pause, LONGEST_PAUSE)


def may_be_there(error: LimpetError) -> StoreUnavailable:
    """*error* as it is to be told after a try without an answer."""
    return StoreUnavailable(
        f"{error} An earlier try of this call was not answered, and what it was to write may be "
        "there all the same: repeat it with the same id."
    )
