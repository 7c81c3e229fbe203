"""How often a step is tried, and how it comes back when nobody knows whether it happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, get_args

from msgspec import Struct

from limpet.core.ids import check_seconds

__all__ = ["PLAIN", "InDoubt", "Retry", "StepPolicy"]

#: What becomes of a step that began, if nobody knows whether it happened.
InDoubt = Literal["retry", "verify", "ask", "skip"]

RETRY: Final = "retry"
VERIFY: Final = "verify"
ASK: Final = "ask"
SKIP: Final = "skip"
POLICIES: tuple[InDoubt, ...] = get_args(InDoubt)

_ANY_ERROR = (Exception, BaseException)


class Retry(Struct, frozen=True, kw_only=True):
    """How often a step is tried, and how long is waited in between.

    *attempts* in all; only errors of the types *on* are worth another one. The first wait is *wait*
    seconds, each next one *factor* times as long, up to *most*; *jitter* is the share of a wait
    that is left to chance, so that many who failed together do not come back together. *timeout*
    seconds are the most that one attempt may take.

    >>> retry = Retry(attempts=4, wait=1, jitter=0)
    >>> [retry.delay(n, OSError()) for n in (1, 2, 3, 4)]
    [1.0, 2.0, 4.0, None]
    """

    attempts: int = 3
    on: type[BaseException] | tuple[type[BaseException], ...] = Exception
    wait: float = 1.0
    factor: float = 2.0
    most: float = 60.0
    jitter: float = 0.5
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.factor < 1 or self.wait < 0 or not 0 <= self.jitter <= 1:
            msg = (
                "A Retry has attempts and a factor of at least 1, a wait of at least 0, and a "
                f"jitter from 0 to 1; not {self!r}."
            )
            raise ValueError(msg)
        if self.timeout is not None:
            check_seconds(self.timeout, "timeout")

    def delay(self, attempt: int, error: BaseException) -> float | None:
        """Seconds from the failure of *attempt* (1, 2, …) to the next; None: there is no next."""
        if attempt >= self.attempts or not isinstance(error, self.on):
            return None
        try:
            wait = min(self.wait * float(self.factor) ** (attempt - 1), self.most)
        except OverflowError:
            wait = self.most
        import random  # noqa: PLC0415 - most programs that import us never need it

        return float(wait * (1 - self.jitter * random.random()))  # noqa: S311 - not a secret


class StepPolicy(Struct, frozen=True):
    """How a step is run: how often it is tried, and what happens if it is in doubt."""

    in_doubt: InDoubt = RETRY
    verify: Callable[[str], Any] | None = None
    retry: Retry | None = None
    effect: bool = False

    @classmethod
    def of(
        cls,
        in_doubt: str | None = None,
        verify: Callable[[str], Any] | None = None,
        retry: Retry | int | None = None,
        *,
        effect: bool = False,
    ) -> StepPolicy:
        """What the arguments of `Task.step` say, if they make sense together."""
        if in_doubt is None and verify is None and retry is None and not effect:
            return PLAIN  # as nearly always
        policy = in_doubt or (RETRY if verify is None else VERIFY)
        if policy not in POLICIES:
            msg = f"in_doubt is one of {', '.join(POLICIES)}; not {in_doubt!r}."
            raise ValueError(msg)
        if (policy == VERIFY) != (verify is not None):
            msg = (
                "in_doubt='verify' and verify= go together: a function that is given the step's "
                "idempotency key and returns its result, or None if it did not happen."
            )
            raise ValueError(msg)
        if isinstance(retry, int) and not isinstance(retry, bool):  # True is 1 to Python
            retry = Retry(attempts=retry)
        if retry is not None and not isinstance(retry, Retry):
            msg = (
                f"retry= takes a number of attempts, or a Retry; not {retry!r:.80}. Write "
                "retry=3, or retry=Retry(attempts=3, wait=1)."
            )
            raise TypeError(msg)
        any_error = retry is not None and retry.attempts > 1 and retry.on in _ANY_ERROR
        if any_error and policy in (ASK, SKIP):
            # An error that may mean "it happened" must not lead to a second time.
            msg = (
                f"A step with in_doubt={policy!r} is not tried again after just any error, for it "
                "may have happened. Name those after which it certainly has not: "
                "Retry(on=ConnectionRefusedError)."
            )
            raise ValueError(msg)
        return cls(policy, verify, retry, effect or policy != RETRY)

    @property
    def marked(self) -> bool:
        """Whether its beginning is durable before it begins."""
        return self.in_doubt != RETRY


PLAIN = StepPolicy()
