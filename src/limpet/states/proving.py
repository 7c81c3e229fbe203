"""All saves of a state proved, one after the other: for `limpet doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.states.kept import PATCHED, Damage, Kept, follow

if TYPE_CHECKING:
    from limpet.core.journal import Entry

__all__ = ["Prover"]


class Prover:
    """Proves that each save of a state is what was saved.

    What goes back to a save that is not is no further trouble, up to the next whole copy.
    """

    def __init__(self) -> None:
        self._kept: Kept | None = None
        self._is_lost = False
        #: Whether the save that came last cannot be had, and nobody has heard of it.
        self.unsaid = False

    def lose(self, *, said: bool) -> None:
        """Entries are missing here, or cannot be read; *said*: that was told."""
        self._kept, self._is_lost, self.unsaid = None, True, not said

    def trouble(self, entry: Entry) -> str | None:
        """Why the save in *entry* cannot be had; None if it can be, or if that was told."""
        if self._is_lost and entry.type == PATCHED:
            return None
        try:
            self._kept = follow(self._kept, entry)
            self._kept.prove()
        except Damage as error:
            self.lose(said=True)
            return f"The save cannot be given: {error}."
        self._is_lost = self.unsaid = False
        return None
