"""Makes a corpus of saved states, which every later release must be able to open.

    python -m tests.support.corpus tests/data/states-2

Each release that changes how states are stored adds one; none is ever made again.
"""

from __future__ import annotations

import copy
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import limpet
from limpet.core.calls import Call, Resolution, resolve_call
from limpet.core.runtime import run_to_end
from limpet.store import as_async

if TYPE_CHECKING:
    from limpet import State, Store

__all__ = ["PLACES", "make"]

#: Where the same states lie, each a place below the corpus.
PLACES = {"sqlite": "agents.db", "file": "file:agents"}


def make(directory: Path) -> None:
    """Save states in every form there is, and what they must be read as."""
    directory.mkdir(parents=True)
    expected: dict[str, list[Any]] = {}
    for place in PLACES.values():
        scheme, _, name = place.rpartition(":")
        with limpet.open(f"{scheme}:{directory / name}" if scheme else directory / name) as store:
            expected = _save(store)
    shutil.rmtree(directory / "agents" / ".limpet")  # locks
    text = json.dumps(expected, ensure_ascii=False)
    (directory / "expected.json").write_text(text + "\n", encoding="utf-8")


def _save(store: Store) -> dict[str, list[Any]]:
    """The states, and for each its document at every position, oldest first."""
    expected = {"support/zoë": _grown(store.state("support/zoë", labels={"team": "x"}))}
    large = {"log": [f"line {number}" for number in range(1_000)], "n": 1}
    state = store.state("large")
    expected["large"] = [large, large | {"n": 2}]
    for document in expected["large"]:
        state.save(document)
    old = {"ticket": 7, "notes": "x" * 300}
    store.state("versioned", type="Support").save(old)
    new = {"tickets": [7], "notes": "x" * 300}
    store.state("versioned", type="Support", version=2).save(new, note="migrated from version 1")
    expected["versioned"] = [old, new]
    expected["called"] = _called(store)
    imported = {"type": "AssistantAgentState", "llm_context": {"messages": []}}
    store.journal("state", "imported").append(("imported", imported))
    expected["imported"] = [imported]
    return expected


def _called(store: Store) -> list[Any]:
    """One whose agent had calls in doubt, of which a person said what became of the first."""
    first, second = ({"log": "x" * 300, "turn": turn} for turn in (1, 2))
    state = store.state("called")
    state.save(first, calls={"c1": Call("c1", "pay"), "c2": Call("c2", "send")})
    answer = Resolution("c1", "done", result={"paid": 7}, by="Zoë")
    run_to_end(resolve_call(as_async(store).scope.as_sync(), "state", "called", answer))
    state.load()
    state.save(second)
    return [first, first, second]


def _grown(state: State) -> list[Any]:
    """One that changes in every way that a patch can say."""
    text = "A long text, of which a piece is changed later, and which goes on after that. "
    message = {"content": 'Grüße 😀 "\\ \n', "thought": None, "source": "user"}
    document: dict[str, Any] = {
        "type": "AssistantAgentState",
        "version": "1.0.0",
        "llm_context": {"messages": [message | {"n": n} for n in range(40)]},
        "numbers": [0, 1.5, -0.0, 2**64, 1e22, True, None],
        "text": text,
        "text to cut": text,
        "to drop": {"a": 1},
    }
    documents = [copy.deepcopy(document)]
    messages = document["llm_context"]["messages"]

    def step() -> None:
        documents.append(copy.deepcopy(document))

    messages.append(message)
    step()
    messages[3]["content"] = "otherwise"
    messages.append(message)
    step()
    del messages[:2]
    step()
    messages[5:7] = [{"in": "the middle"}]
    step()
    document["text"] += "And on."
    document["text to cut"] = text.replace("a piece", "some")
    step()
    del document["to drop"]
    document["new"] = {"put": {"add": ["~0", "a/b", ""]}}
    step()
    document["numbers"][5] = 1
    step()
    document = dict(reversed(document.items()))
    step()
    state.save(documents[0], fingerprint={"model": "small", "tools": ["now"]})
    for number, one in enumerate(documents[1:], 2):
        fingerprint = {"model": "large", "tools": []} if number == 4 else None
        state.save(one, fingerprint=fingerprint, note="with a note" if number == 3 else None)
    return documents


if __name__ == "__main__":
    make(Path(sys.argv[1]))
