"""Giving memories their vectors, by a function of the user's or by the local model.

A write does not wait for it: vectors are made at the next recall, some at a time, or by `embed`.
Until then, and if the function fails, memories are found by their words.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from limpet.errors import EmbeddingFailed
from limpet.memory.vectors import (
    Embedded,
    TextVectors,
    WordVectors,
    combine,
    find_unembedded,
    numpy,
    pack,
    store_failure,
    store_vectors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from limpet.memory.index import Index
    from limpet.memory.indexed_journal import IndexedJournal
    from limpet.memory.vectors import Unembedded

    Progress = Callable[[int, int], object]

__all__ = ["Embeddings", "embedding_function", "model_name"]

log = logging.getLogger(__name__)

#: Memories that a recall embeds before it answers.
AT_RECALL = 64
#: Failures in a row after which `embed` gives up: enough to find the one text of a batch that is
#: refused, and a few more beside it.
MOST_FAILURES = 10

_NEXT = " Full text finds what has no vector; embed() tries again, and so do later recalls."


def embedding_function(embed: Any) -> Callable[[list[str]], Any] | None:
    """What *embed* stands for: a function, the local model if it is True or "local", or None."""
    if embed is None or embed is False:
        return None
    if embed is True or embed == "local":
        from limpet.memory.local_model import LocalModel  # noqa: PLC0415 - only where it is used

        return LocalModel.shared()
    if not callable(embed):
        msg = (
            "embed is a function from a list of texts to a list of vectors, or True for the local "
            f"model; not {type(embed).__name__}."
        )
        raise TypeError(msg)
    numpy()  # if it is missing, say so now and not at the first recall
    return embed  # type: ignore[no-any-return]


def model_name(embed: Any) -> str:
    """The name of the model behind a function; when it changes, vectors are made again.

    That is the function's attribute ``model``, if it has one, else its own name.
    """
    model = getattr(embed, "model", None)
    if isinstance(model, str) and model:
        return model
    named = embed if hasattr(embed, "__qualname__") else type(embed)
    return f"{named.__module__}.{named.__qualname__}"


class Embeddings:
    """Makes the vectors of one namespace."""

    def __init__(self, journal: IndexedJournal, embed: Any) -> None:
        self._journal = journal
        self._runtime = journal.runtime
        self._embed = embedding_function(embed)

    async def of_query(self, query: str) -> TextVectors | None:
        """The vectors of *query*; None without an embedding function.

        Some memories get their vector on the way. If that fails, it is logged and not raised: full
        text finds them all the same.
        """
        if self._embed is None:
            return None
        namespace = self._journal.key.id
        try:
            (found,) = await self._vectors([query])
        except EmbeddingFailed as error:
            msg = (
                f"The query could not be embedded: {_cause(error)}. Nothing was recalled. Try "
                "again; or recall by words alone, from the same memory without embed: "
                f"store.memory({namespace!r})."
            )
            raise EmbeddingFailed(msg) from error.__cause__
        (like,) = pack([found.vector])
        try:
            await self._catch_up(like, AT_RECALL)
        except (EmbeddingFailed, ValueError) as error:
            log.warning("Memory %r: %s", namespace, error)
        return found

    async def embed_all(self, progress: Progress | None = None) -> int:
        """Embed every memory that has no vector yet, newest first; how many.

        Texts that the function refuses do not stop the others; they are raised at the end.
        """
        if self._embed is None:
            return 0
        await self._journal.change_index(_leave_nothing_out)
        try:
            return await self._catch_up(None, None, progress, MOST_FAILURES)
        finally:
            # The function may have been unreachable, and not have refused those texts.
            await self._journal.change_index(_leave_nothing_out)

    async def _catch_up(
        self,
        like: bytes | None,
        most: int | None,
        progress: Progress | None = None,
        most_failures: int = 0,
    ) -> int:
        """Embed up to *most* memories; *like*: see `find_unembedded`."""
        model = model_name(self._embed)
        done = failures = 0
        refused: list[Exception] = []
        while most is None or done < most:
            left = None if most is None else most - done
            missing, rows = await self._journal.change_index(find_unembedded, model, like, left)
            if not rows:
                break
            try:
                await self._embed_rows(model, rows)
            except (EmbeddingFailed, ValueError) as error:
                failures += 1
                if failures > most_failures:
                    raise
                refused += [error] if len(rows) == 1 else []
            else:
                done, failures = done + len(rows), 0
                if progress is not None:
                    progress(done, done + missing - len(rows))
        if refused:
            last = refused[-1]
            many = "1 memory" if len(refused) == 1 else f"{len(refused):,} memories"
            msg = (
                f"The embedding function failed for {many}, tried one by one: {_cause(last)}."
                f"{_NEXT}"
            )
            raise EmbeddingFailed(msg) from (last.__cause__ or last)
        return done

    async def _embed_rows(self, model: str, rows: Sequence[Unembedded]) -> None:
        texts = [part for row in rows for part in (row.text, row.whole) if part]
        each = list(dict.fromkeys(texts))  # many memories of a task have the same context
        try:
            found = dict(zip(each, await self._vectors(each), strict=True))
            vectors = pack(
                [
                    combine(found[row.text].vector, found[row.whole].vector if row.whole else None)
                    for row in rows
                ]
            )
        except (EmbeddingFailed, ValueError) as error:
            await self._journal.change_index(store_failure, rows, _cause(error))
            raise
        words = [found[row.text].words for row in rows]
        embedded = [
            Embedded(row, value, None if its is None else its.pack())
            for row, value, its in zip(rows, vectors, words, strict=True)
        ]
        await self._journal.change_index(store_vectors, model, embedded)

    async def _vectors(self, texts: list[str]) -> list[TextVectors]:
        """The vector of each text; and those of its words, if the function can give them."""
        with_words = getattr(self._embed, "with_words", None)
        found = await self._call(texts, with_words or self._embed)
        if with_words is None:
            return [TextVectors(vector, None) for vector in found]
        return [TextVectors(vector, WordVectors(*words)) for vector, words in found]

    async def _call(self, texts: list[str], embed: Any) -> Any:
        """What the user's function makes of *texts*, on a thread unless it is async."""

        def call() -> Any:
            try:
                return embed(texts)
            except Exception as error:
                raise _failed(texts, error) from error

        async def wait() -> Any:
            try:
                return await returned
            except Exception as error:
                raise _failed(texts, error) from error

        found = returned = await self._runtime.call(call)
        if hasattr(returned, "__await__"):
            wait.__qualname__ = getattr(embed, "__qualname__", type(embed).__qualname__)
            try:
                found = await self._runtime.invoke(wait)
            except TypeError:  # of a sync store: it cannot wait, and names the function by that
                getattr(returned, "close", lambda: None)()
                raise
        count = len(found) if hasattr(found, "__len__") else "no list of"
        if count != len(texts):
            msg = f"The embedding function returned {count} vectors for {len(texts)} texts."
            raise ValueError(msg)
        return found


def _leave_nothing_out(index: Index) -> None:
    with index.lock:
        index.backoff.clear()


def _failed(texts: list[str], error: Exception) -> EmbeddingFailed:
    # Only the name of the error: its message may quote a text, or an API key.
    many = "1 text" if len(texts) == 1 else f"{len(texts):,} texts"
    return EmbeddingFailed(
        f"The embedding function failed for {many}: {type(error).__name__}.{_NEXT}"
    )


def _cause(error: Exception) -> str:
    """The name of the error behind *error*."""
    return type(error.__cause__ or error).__name__
