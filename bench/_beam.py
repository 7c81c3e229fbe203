"""BEAM's long chats with an assistant as memories and questions. They are not ours to give.

Each message is a memory, however long; what was said around it is its context. A question's
evidence are the messages that hold its answer; those that ask for what was never said have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from bench._locomo import CONTEXT, WINDOW, Question, Sample, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

QUESTIONS = "probing_questions/probing_questions.json"


def load(directory: Path) -> list[Sample]:
    """The chats below *directory*: a directory each, with ``chat.json`` and its questions."""
    chats = [path.parent for path in directory.glob("*/chat.json")]
    found = [_sample(chat) for chat in sorted(chats, key=lambda chat: (len(chat.name), chat.name))]
    if not found:
        raise ValueError(f"There is no chat.json in a directory of {directory}.")
    return found


def _sample(chat: Path) -> Sample:
    batches = msgspec.json.decode((chat / "chat.json").read_bytes())
    said = [message for batch in batches for turn in batch["turns"] for message in turn]
    texts = [message["content"] for message in said]
    before, after = WINDOW
    turns = [
        Turn(
            str(message["id"]),
            texts[at],
            " ".join(
                [text[-CONTEXT:] for text in texts[max(at - before, 0) : at]]
                + [text[:CONTEXT] for text in texts[at + 1 : at + 1 + after]]
            ),
            message["role"],
        )
        for at, message in enumerate(said)
    ]
    known = {turn.id for turn in turns}
    asked = msgspec.json.decode((chat / QUESTIONS).read_bytes())
    questions = [
        Question(one["question"], kind.replace("_", " "), evidence)
        for kind, some in asked.items()
        for one in some
        if (evidence := frozenset(map(str, _ids(one.get("source_chat_ids")))) & known)
    ]
    return Sample(turns, questions)


def _ids(found: Any) -> Iterator[Any]:
    """What is in a number, a list of them, or a dict of lists."""
    if isinstance(found, dict | list):
        for one in found.values() if isinstance(found, dict) else found:
            yield from _ids(one)
    elif found is not None:
        yield found
