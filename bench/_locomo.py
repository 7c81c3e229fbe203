"""LoCoMo as memories and questions. Its licence is for evaluation only: it is not ours to give.

A turn of a conversation is a memory, and what was said around it is its context; a question's
evidence are the turns that hold its answer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: The fifth asks for what was never said.
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
#: Characters of a turn of the context: enough to say what a short answer is about.
CONTEXT = 200
#: Turns before and after. Chosen by the first conversations; the run prints what others would give.
WINDOW = (2, 1)
#: Conversations by which that was done; the rest are a check.
CHOSEN_ON = 5


class Turn(Struct, frozen=True):
    """Something that was said."""

    id: str
    text: str
    context: str
    by: str | None = None


class Question(Struct, frozen=True):
    """What is asked, and the turns that hold the answer."""

    text: str
    category: str
    evidence: frozenset[str]


class Sample(Struct, frozen=True):
    """One long conversation, and what is asked about it."""

    turns: list[Turn]
    questions: list[Question]


def load(path: Path, window: tuple[int, int] = WINDOW) -> list[Sample]:
    """The conversations of ``locomo10.json``; a turn's context are turns before and after it."""
    return [_sample(found, window) for found in msgspec.json.decode(path.read_bytes())]


def _sample(found: dict[str, Any], window: tuple[int, int]) -> Sample:
    turns = list(_turns(found["conversation"], *window))
    known = {turn.id for turn in turns}
    return Sample(turns, [asked for asked in map(_question(known), found["qa"]) if asked])


def _turns(conversation: dict[str, Any], before: int, after: int) -> Iterator[Turn]:
    sessions = [key for key in conversation if re.fullmatch(r"session_\d+", key)]
    for session in sorted(sessions, key=lambda key: int(key.partition("_")[2])):
        texts = [_text(said) for said in conversation[session]]
        for at, said in enumerate(conversation[session]):
            earlier = [text[-CONTEXT:] for text in texts[max(at - before, 0) : at]]
            later = [text[:CONTEXT] for text in texts[at + 1 : at + 1 + after]]
            yield Turn(said["dia_id"], texts[at], " ".join(earlier + later))


def _text(said: dict[str, Any]) -> str:
    caption = said.get("blip_caption")
    return f"{said['speaker']}: {said['text']}" + (f" [{caption}]" if caption else "")


def _question(known: set[str]) -> Any:
    def read(found: dict[str, Any]) -> Question | None:
        # A few are malformed: several ids in one text, "D:11:26", "D30:05".
        ids = re.findall(r"D:?(\d+):0*(\d+)", " ".join(found.get("evidence") or ()))
        evidence = frozenset(f"D{session}:{turn}" for session, turn in ids) & known
        if found["category"] not in CATEGORIES or not evidence:
            return None
        return Question(found["question"], CATEGORIES[found["category"]], evidence)

    return read
