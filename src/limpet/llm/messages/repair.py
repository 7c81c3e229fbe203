"""Histories that a crash has damaged, made such that a provider takes them again.

Providers refuse a whole history for one tool call without its result, or one result without its
call. `repair` finds what is wrong by a rule that the caller chooses, and says what it did. It
changes no message that it is given, and what is whole comes back as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from limpet.errors import BrokenHistory
from limpet.llm.messages.mending import Mender, Repair
from limpet.llm.messages.shape import shape_of_all

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from limpet.llm.messages.shape import Shape

    Rule = Literal["stub", "drop", "raise"]

__all__ = ["Repair", "Repaired", "check", "repair"]

#: What comes of where a window was cut, or was said so by the model: no damage, and no error.
HARMLESS = frozenset(
    {"headless", "trailing_space", "empty_message", "empty_text", "orphan_reasoning"}
)
#: Repairs that an error lists; more of them say nothing new.
SHOWN = 10


class Repaired(Struct, frozen=True):
    """A history that a provider takes, and what was done to make it so."""

    messages: list[dict[str, Any]]
    repairs: list[Repair]

    def __repr__(self) -> str:
        return f"Repaired({len(self.messages)} messages, repairs={self.repairs!r})"


def repair(
    messages: Sequence[Mapping[str, Any]],
    rule: Rule = "stub",
    *,
    shape: Shape | None = None,
    keep_open: bool = False,
) -> Repaired:
    """*messages* with every tool call answered once, where its provider looks for the answer.

    *rule* says what to do with a call that has no result: ``stub`` answers it with words that say
    that it was interrupted, ``drop`` leaves the call out (not what was said beside it), ``raise``
    raises `BrokenHistory`. A result without a call is left out, one in the wrong place is moved.
    *shape*: whose rules; by default those of the shape that the messages have. With *keep_open*,
    calls at the very end may still wait for their results.

    >>> cut = {"type": "function_call", "call_id": "c1", "name": "pay", "arguments": "{}"}
    >>> repair([{"role": "user", "content": "Pay."}, cut], "drop").messages
    [{'role': 'user', 'content': 'Pay.'}]
    """
    check_options(rule, shape)
    mender = Mender(messages, shape or shape_of_all(messages), rule=rule, keep_open=keep_open)
    mended, repairs = mender.run()
    if rule == "raise":
        check(repairs)
    return Repaired([message for _, message in mended], repairs)


def check_options(rule: object, shape: object) -> None:
    """`ValueError` if *rule* or *shape* is none of those that there are."""
    if rule not in ("stub", "drop", "raise"):
        raise ValueError(f'repair={rule!r}: a rule is "stub", "drop" or "raise".')
    if shape not in (None, "chat", "responses", "anthropic"):
        raise ValueError(f'shape={shape!r}: a shape is "chat", "responses" or "anthropic".')


def check(repairs: list[Repair]) -> None:
    """Raise the error that names those of *repairs* that are damage, if there are any."""
    damage = [found for found in repairs if found.kind not in HARMLESS]
    if damage:
        raise _broken(damage)


def _broken(repairs: list[Repair]) -> BrokenHistory:
    found = [f"- message {entry.index}: {entry.what}" for entry in repairs[:SHOWN]]
    if len(repairs) > SHOWN:
        found.append(f"- and {len(repairs) - SHOWN:,} more")
    msg = "\n".join(
        [
            "No provider would take these messages as they are:",
            *found,
            'repair="stub" or repair="drop" makes them whole; neither changes what is stored.',
        ]
    )
    return BrokenHistory(msg, repairs)
