"""Full text over states: the texts in the newest document of each, for the index.

What looks like a message is found as one, by who said it: that is how agents' and teams' states
hold them, often several times, and each is found once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.core.text_index import Document
from limpet.core.text_search import Source, new_entries, words_in
from limpet.errors import StateNotFound
from limpet.states.format import BETWEEN, KIND
from limpet.states.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.backends.contract import Head
    from limpet.core.journal import AsyncJournal
    from limpet.core.text_index import Known

__all__ = ["SOURCE", "save_of"]

#: How many texts of one save are found, each with a position of its own.
MOST = 1 << 20
#: Characters from which on what has no space in it is data: an image, a signature.
DATA = 1_000

# What is beside the words of a message.
_ABOUT = frozenset({"id", "call_id", "type", "metadata", "models_usage", "created_at", "is_error"})


def save_of(position: int) -> int:
    """The position of the save in which what was found at a *position* is."""
    return position // MOST


async def _news(
    journal: AsyncJournal, head: Head, before: Known | None
) -> tuple[Known | None, list[Document]]:
    """Nothing, if *before* has the newest save; else all texts in that."""
    new = await new_entries(journal, head, before)
    if new is not None and all(entry.type in BETWEEN for entry in new):
        return before, []
    try:
        newest, snapshot = await Reader(journal).newest(head)
    except StateNotFound:  # deleted meanwhile, or nothing was saved yet
        return None, []
    at = newest.updated
    documents: list[Document] = []
    seen: set[str] = set()
    for label, text in _texts(snapshot.document, ""):
        if text not in seen and not _is_data(text) and len(documents) < MOST:
            seen.add(text)
            position = snapshot.position * MOST + len(documents)
            documents.append(Document(position, at, label, text))
    return None, documents


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Each message in *value* with who said it, and each other text with where it is."""
    # Without recursion: a document may be nested as deep as JSON allows.
    ahead = [(path, value)]
    while ahead:
        path, value = ahead.pop()
        if isinstance(value, str):
            if value.strip():
                yield path, value
        elif isinstance(value, dict):
            speaker = _speaker(value)
            if speaker is not None:
                said = {"thought": value.get("thought"), "content": value["content"]}
                text = " ".join(
                    filter(None, (words_in(one, leaving=_ABOUT) for one in said.values()))
                )
                if text.strip():
                    yield speaker, text
                continue
            inner = [(f"{path}.{key}" if path else key, one) for key, one in value.items()]
            ahead += reversed(inner)
        elif isinstance(value, list):
            ahead += [(f"{path}[{at}]", one) for at, one in reversed(list(enumerate(value)))]


def _speaker(value: dict[str, Any]) -> str | None:
    """Who says *value*, if it is a message."""
    if not isinstance(value.get("content"), (str, list)):
        return None
    for name in ("source", "role"):
        if isinstance(value.get(name), str):
            return str(value[name])
    kind = value.get("type")
    return "tool" if kind == "FunctionExecutionResultMessage" else None


def _is_data(text: str) -> bool:
    return len(text) > DATA and text.isascii() and not any(map(str.isspace, text))


#: The texts of states.
SOURCE = Source(KIND, _news)
