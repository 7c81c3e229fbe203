"""Peers' ways to find a memory, with the same embedding model; run where they are installed.

They are not among our dependencies: ``pip install langgraph mem0ai`` into the environment of a run
brings their rows into it. Neither calls a model or a network here.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench._locomo import Turn
    from bench._recallers import Embedder, Recaller

SPACE = ("bench",)


class LangGraph:
    """LangGraph's store: its in-memory one, which searches as its others do."""

    def __init__(self, embed: Embedder) -> None:
        self._embed = embed
        self._store: Any = None

    def index(self, turns: Sequence[Turn]) -> None:
        """Put every turn."""
        make = import_module("langgraph.store.memory").InMemoryStore
        index = {"dims": 384, "embed": self._embed_list, "fields": ["text"]}
        self._store = make(index=index)
        for turn in turns:
            self._store.put(SPACE, turn.id, {"text": turn.text})

    def _embed_list(self, texts: Sequence[str]) -> list[list[float]]:
        return [vector.tolist() for vector in self._embed(texts)]

    def recall(self, question: str, k: int) -> list[str]:
        """Search."""
        return [found.key for found in self._store.search(SPACE, query=question, limit=k)]

    def close(self) -> None:
        """Nothing."""


class Mem0:
    """mem0 without its model (``infer=False``), on a local Qdrant; its default without extras.

    Its keyword part needs fastembed and spaCy, which fetch their models when they first run.
    """

    def __init__(self, embed: Embedder) -> None:
        os.environ |= {"MEM0_TELEMETRY": "False"}
        self._place = tempfile.mkdtemp(prefix="mem0-")
        os.environ["MEM0_DIR"] = self._place
        self._embed = embed
        self._memory: Any = None
        self._count = 0

    def index(self, turns: Sequence[Turn]) -> None:
        """Add every turn."""
        for name in ("mem0", "qdrant_client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # it warns of each missing extra
        self._let_go()
        self._count += 1
        self._memory = import_module("mem0").Memory.from_config(self._config())
        self._memory.embedding_model = _Mem0Embedder(self._embed)
        for turn in turns:
            self._memory.add(turn.text, user_id="bench", metadata={"turn": turn.id}, infer=False)

    def _config(self) -> dict[str, Any]:
        place = os.path.join(self._place, str(self._count))  # noqa: PTH118 - a text is wanted
        nobody = {"provider": "openai", "config": {"api_key": "none"}}
        qdrant = {"collection_name": "bench", "embedding_model_dims": 384, "path": place}
        return {
            "vector_store": {"provider": "qdrant", "config": qdrant},
            "embedder": nobody,
            "llm": nobody,
            "history_db_path": f"{place}.db",
        }

    def recall(self, question: str, k: int) -> list[str]:
        """Search, without a threshold."""
        filters = {"user_id": "bench"}
        found = self._memory.search(question, filters=filters, top_k=k, threshold=0.0)
        return [hit["metadata"]["turn"] for hit in found["results"]]

    def _let_go(self) -> None:
        if self._memory is not None:
            self._memory.vector_store.client.close()

    def close(self) -> None:
        """Remove its files."""
        self._let_go()
        shutil.rmtree(self._place, ignore_errors=True)


class _Mem0Embedder:
    """The model that all ways share, as mem0 calls it."""

    def __init__(self, embed: Embedder) -> None:
        self._embed = embed

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:  # noqa: ARG002 - its signature
        """One text."""
        return [float(number) for number in self._embed([text])[0]]

    def embed_batch(
        self,
        texts: Sequence[str],
        memory_action: str | None = None,  # noqa: ARG002 - its signature
    ) -> list[list[float]]:
        """Some."""
        return [self.embed(text) for text in texts]


def installed(embed: Embedder) -> dict[str, Callable[[], Recaller]]:
    """The peers that can be imported here."""
    known: dict[str, tuple[str, Callable[[], Recaller]]] = {
        "LangGraph store": ("langgraph", lambda: LangGraph(embed)),
        "mem0, infer=False": ("mem0", lambda: Mem0(embed)),
    }
    return {name: make for name, (package, make) in known.items() if find_spec(package)}
