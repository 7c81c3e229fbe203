"""What backends over a network share: how they try again."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

from limpet.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.errors import LimpetError

__all__ = ["persist", "unsure"]

T = TypeVar("T")


def persist(
    attempt: Callable[[], T],
    *,
    timeout: float,
    passing: Callable[[Exception], bool],
    pause: float = 0.02,
    longest: float = 1.0,
) -> T:
    """Call *attempt* until it succeeds, for *timeout* seconds, as long as its errors are *passing*.

    Only for what may be done twice: a read, or a write that the store knows again.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return attempt()
        except Exception as error:
            # Half of it by chance, so that many clients do not come back in step.
            wait = pause * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
            if not passing(error) or time.monotonic() + wait > deadline:
                raise
        time.sleep(wait)
        pause = min(2 * pause, longest)


def unsure(error: LimpetError) -> StoreUnavailable:
    """*error*, as it is to be told where a try before it had no answer: that one may be done."""
    return StoreUnavailable(
        f"{error} An earlier try of this call was not answered, and what it was to write may be "
        "there all the same: repeat it with the same id."
    )
