"""What memories mean, as vectors: made by a function of the user's, when the words are safe."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from limpet.errors import EmbeddingFailed
from limpet.memory.due import due, note_failure, put_vectors, try_again
from limpet.memory.embeddings import chosen, model_of
from limpet.memory.vectors import mixed, packed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import Self

    from limpet.memory.desk import Desk
    from limpet.memory.due import Due

    Progress = Callable[[int, int], object]

__all__ = ["Meaning"]

log = logging.getLogger(__name__)

#: Memories that a recall embeds before it answers.
AT_RECALL = 64
#: Failures in a row after which `embed` gives up: enough to find the one text of a batch that is
#: refused, and a few more beside it.
PATIENCE = 10


class Meaning:
    """The vectors of one namespace."""

    def __init__(self, desk: Desk, embed: Any) -> None:
        self._desk = desk
        self._embed = chosen(embed)

    async def of(self, query: str) -> Any:
        """What *query* means; None where nothing is embedded.

        Some memories get their vector on the way. If that fails it is noted, and not raised: full
        text finds them, as it did before.
        """
        if self._embed is None:
            return None
        try:
            (found,) = await self._embedded([query])
        except EmbeddingFailed as error:
            msg = (
                f"The query could not be embedded: {_cause(error)}. Nothing was recalled. Try "
                "again; or recall by words alone, from the same memory without embed: "
                f"store.memory({self._desk.namespace!r})."
            )
            raise EmbeddingFailed(msg) from error.__cause__
        (like,) = packed([found])
        try:
            await self._catch_up(like, AT_RECALL)
        except (EmbeddingFailed, ValueError) as error:
            log.warning("Memory %r: %s", self._desk.namespace, error)
        return found

    async def all(self, progress: Progress | None = None) -> int:
        """Embed every memory that has no vector yet, newest first; how many.

        What is refused does not keep the others from it; it is raised at the end.
        """
        if self._embed is None:
            return 0
        await self._desk.work(try_again)
        try:
            return await self._catch_up(None, None, progress, PATIENCE)
        finally:
            await self._desk.work(try_again)  # it may have been away, and not have refused them

    async def _catch_up(
        self,
        like: bytes | None,
        most: int | None,
        progress: Progress | None = None,
        patience: int = 0,
    ) -> int:
        """Embed up to *most*; what is there is to be *like* a vector, or is made anew."""
        model = model_of(self._embed)
        done = failures = 0
        refused: list[Exception] = []
        while most is None or done < most:
            left = None if most is None else most - done
            missing, rows = await self._desk.work(due, model, like, left)
            if not rows:
                break
            try:
                await self._give_vectors(model, rows)
            except (EmbeddingFailed, ValueError) as error:
                failures += 1
                if failures > patience:
                    raise
                refused += [error] if len(rows) == 1 else []
            else:
                done, failures = done + len(rows), 0
                if progress is not None:
                    progress(done, done + missing - len(rows))
        if refused:
            raise _refused(len(refused), refused[-1]) from (refused[-1].__cause__ or refused[-1])
        return done

    async def _give_vectors(self, model: str, rows: Sequence[Due]) -> None:
        try:
            vectors = packed(await self._meant(rows))
        except (EmbeddingFailed, ValueError) as error:
            await self._desk.work(note_failure, rows, _cause(error))
            raise
        await self._desk.work(put_vectors, model, list(zip(rows, vectors, strict=True)))

    async def _meant(self, rows: Sequence[Due]) -> list[Any]:
        """What the texts of *rows* mean, and what their contexts add to that."""
        words = [part for row in rows for part in (row.text, row.whole) if part]
        each = list(dict.fromkeys(words))  # many memories of a task have one context
        found = dict(zip(each, await self._embedded(each), strict=True))
        return [mixed(found[row.text], found[row.whole] if row.whole else None) for row in rows]

    async def _embedded(self, texts: list[str]) -> Any:
        """What the user's function makes of *texts*, on a thread unless it is async."""
        embed: Any = self._embed
        found = await self._desk.call(_called, embed, texts)
        if hasattr(found, "__await__"):
            found = await self._desk.user(_Waiting(embed, found, texts))
        count = len(found) if hasattr(found, "__len__") else "no list of"
        if count != len(texts):
            msg = f"The embedding function returned {count} vectors for {len(texts)} texts."
            raise ValueError(msg)
        return found


def _called(embed: Callable[[list[str]], Any], texts: list[str]) -> Any:
    try:
        return embed(texts)
    except Exception as error:
        raise _failed(texts, error) from error


class _Waiting:
    """What the async function *embed* returned, to be waited for; called, it is itself."""

    def __init__(self, embed: Any, found: Any, texts: list[str]) -> None:
        self.__qualname__ = getattr(embed, "__qualname__", type(embed).__qualname__)
        self._found = found
        self._texts = texts

    def __call__(self) -> Self:
        return self

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            return (yield from self._found.__await__())
        except Exception as error:
            raise _failed(self._texts, error) from error

    def close(self) -> None:
        """Nobody will wait for it."""
        getattr(self._found, "close", lambda: None)()


def _failed(texts: list[str], error: Exception) -> EmbeddingFailed:
    # By its name only: what it says may quote a text, or a key.
    many = _many(len(texts), "text")
    return EmbeddingFailed(
        f"The embedding function failed for {many}: {type(error).__name__}.{_GO_ON}"
    )


def _refused(count: int, error: Exception) -> EmbeddingFailed:
    many = _many(count, "memory", "memories")
    return EmbeddingFailed(
        f"The embedding function failed for {many}, tried one by one: {_cause(error)}.{_GO_ON}"
    )


_GO_ON = " Full text finds what has no vector; embed() tries again, and so do later recalls."


def _many(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _cause(error: Exception) -> str:
    """The name of what went wrong."""
    return type(error.__cause__ or error).__name__
