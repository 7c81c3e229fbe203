"""What a finished task leaves to those after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.memory.entries import Draft

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.checkpoint import Checkpoint

__all__ = ["learned"]

#: Characters of an outcome, and of the goal that is its context: enough to find and to use it.
LONGEST, CONTEXT = 8_000, 300

OUTCOME, DECISION, DISCOVERY = "outcome", "decision", "discovery"


def learned(checkpoint: Checkpoint) -> Iterator[Draft]:
    """Outcome, decisions and discoveries of a task, in the words in which they were stored."""
    goal = _cut(checkpoint.goal, CONTEXT)
    where: dict[str, Any] = {"source": checkpoint.task_id, "by": checkpoint.agent_id}
    if checkpoint.outcome not in (None, ""):
        text = f"{goal}: {_cut(_text(checkpoint.outcome), LONGEST)}"
        yield Draft(text=text, kind=OUTCOME, **where)
    for made in checkpoint.decisions:
        because = f" (because {made.because})" if made.because else ""
        text = _cut(made.decision + because, LONGEST)
        if text.strip():
            yield Draft(text=text, kind=DECISION, context=goal, **where)
    for found in checkpoint.discoveries:
        text = _cut(_text(found), LONGEST)
        if text.strip():
            yield Draft(text=text, kind=DISCOVERY, context=goal, **where)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
