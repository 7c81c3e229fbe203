"""Documents brought to the version, and held to the type, that a program asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.errors import MigrationFailed, NotStorable, TooLarge, WrongState
from limpet.states.drafts import Draft
from limpet.states.kept import type_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from limpet.core.codec import Codec
    from limpet.states.kept import Kept
    from limpet.states.migrations import Migration, Migrations

__all__ = ["Upgrader", "type_of"]


class Upgrader:
    """Makes what a program can use of what was saved; it writes nothing."""

    def __init__(
        self,
        id_: str,
        type_: str | None,
        migrations: Migrations,
        codec: Codec,
        ask: Callable[..., Awaitable[Any]],
    ) -> None:
        self._id = id_
        self._type = type_
        self._migrations = migrations
        self._codec = codec
        self._ask = ask

    def names(self, kept: Kept) -> tuple[str, ...]:
        """What migrations may know the state by: its id, then its type."""
        known = (self._id, kept.about.type, self._type)
        return tuple(dict.fromkeys(name for name in known if name is not None))

    async def document(self, kept: Kept, version: int) -> Any:
        """The document of *kept*, which is the caller's own, at *version*."""
        steps = self._migrations.way(self.names(kept), kept.about.version, version)
        document, found = kept.document, kept.about.type
        if steps:
            # A type that the user has given says nothing of what a migration makes.
            own = found not in (None, type_of(document))
            for step in steps:
                document = await self._run(step, document, kept.position)
            found = None if own else type_of(document)
        self.check_type(found, self._type)
        return document

    def check_type(self, found: str | None, wanted: str | None) -> None:
        """That a state of the type *found* will do where *wanted* is asked for."""
        if found is None or wanted is None or found == wanted:
            return
        msg = (
            f"State {self._id!r} is of type {found!r}, and {wanted!r} was asked for. Loading it "
            "would lose what is in it. Load it into what saved it, or give this one another id."
        )
        raise WrongState(msg)

    async def _run(self, step: Migration, document: Any, position: int) -> Any:
        """What *step* makes of *document*, as it would be stored."""
        what = f"The migration {step} of state {self._id!r}, saved at {position},"
        untouched = "Nothing was written."
        try:
            made = await self._ask(step.function, document)
        except Exception as error:
            msg = f"{what} raised {type(error).__name__}: {error}. {untouched}"
            raise MigrationFailed(msg) from error
        if made is None:
            msg = f"{what} returned None: a migration returns the document. {untouched}"
            raise MigrationFailed(msg)
        try:
            draft = Draft(made, self._codec)
            draft.make_plain()
        except (NotStorable, TooLarge) as error:
            msg = f"{what} made what cannot be stored: {error} {untouched}"
            raise MigrationFailed(msg) from error
        return draft.document
