"""Full text over tasks: what they were for, what came of their steps, and what they learned.

Of results that are kept apart for their size, the beginning is found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.backends.contract import to_micros
from limpet.core.text_index import Document
from limpet.core.text_search import Source, new_entries, words_in
from limpet.tasks import entries as kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from limpet.backends.contract import Head
    from limpet.core.journal import AsyncJournal, Entry
    from limpet.core.text_index import Known

__all__ = ["SOURCE"]


async def _news(
    journal: AsyncJournal, head: Head, before: Known | None
) -> tuple[Known | None, list[Document]]:
    """What was recorded since *before*, and that; or all there is, and None."""
    new = await new_entries(journal, head, before)
    if new is not None and not any(entry.type == kinds.REWOUND for entry in new):
        return before, _documents(new)
    documents: list[Document] = []
    async for entries in journal.pages(upto=head.seq):
        documents = _documents(entries, documents)
    return None, documents


def _documents(entries: Iterable[Entry], before: Iterable[Document] = ()) -> list[Document]:
    """The texts of *entries*, behind those that came *before*, but for what was rewound."""
    found = list(before)
    for entry in entries:
        body = entry.body
        if not isinstance(body, dict):
            continue
        if entry.type == kinds.REWOUND and isinstance(body.get("to"), int):
            found = [one for one in found if one.position <= body["to"]]
        elif entry.type in _TEXTS:
            label, read = _TEXTS[entry.type]
            name = body.get("name") or body.get("id") or body.get("step")
            label = label.format(name) if isinstance(name, str) else label.partition(" of ")[0]
            text = words_in(read(body))
            if text:
                found.append(Document(entry.seq, to_micros(entry.at), label, text))
    return found


def _result(body: dict[str, Any]) -> Any:
    large = body.get("large")
    return large.get("preview") if isinstance(large, dict) else body.get("result")


def _fields(*names: str) -> Callable[[dict[str, Any]], Any]:
    return lambda body: [body.get(name) for name in names]


# What each type of entry is to the reader, with the name of its step or signal in the braces; and
# what is to be found of it.
_TEXTS: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    kinds.CREATED: ("goal", _fields("goal", "input")),
    kinds.PLANNED: ("plan", _fields("steps")),
    kinds.REPLANNED: ("plan", _fields("because", "steps")),
    kinds.STEP: ("result of {}", _result),
    kinds.SKIPPED: ("skipped {}", _fields("because")),
    kinds.RESOLVED: ("result of {}", _fields("result")),
    kinds.TRIED: ("error of {}", _fields("error")),
    kinds.SIGNALLED: ("signal {}", _fields("payload")),
    kinds.DECIDED: ("decision", _fields("decision", "because")),
    kinds.DISCOVERED: ("discovery", _fields("discovery")),
    kinds.STOPPED: ("error", _fields("error")),
    kinds.PAUSED: ("paused", _fields("because")),
    kinds.CANCELLED: ("cancelled", _fields("because")),
    kinds.FINISHED: ("outcome", _fields("outcome")),
    kinds.FAILED: ("error", _fields("error")),
}

#: The texts of tasks.
SOURCE = Source(kinds.KIND, _news)
