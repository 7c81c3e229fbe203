"""States and memories as `limpet show` shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.cli.memory import print_memory
from limpet.cli.show_journal import JournalView
from limpet.views.text import json_document

if TYPE_CHECKING:
    from limpet import State, StateVersion, Store
    from limpet.backends.contract import Head
    from limpet.cli.options import StoreOptions
    from limpet.cli.output import Screen
    from limpet.memory import Remembered

__all__ = ["MemoryView", "StateView"]


class MemoryView(JournalView):
    """What is remembered, the newest last."""

    def found(self) -> list[Remembered]:
        return self.store.memory(self.head.key.id).list(limit=self.last)[::-1]

    def data(self) -> dict[str, Any]:
        return {"memories": self.found()}

    def print(self, screen: Screen) -> None:
        found = self.found()
        for one in found:
            screen.line()
            print_memory(one, screen)
        if not found:
            screen.line("It has no memories that count now.")


class StateView(JournalView):
    """The newest document, as it was saved."""

    def __init__(self, options: StoreOptions, store: Store, head: Head, last: int | None) -> None:
        super().__init__(options, store, head, last)
        saved: State = store.state(head.key.id)
        self.newest: StateVersion = saved.history(last=1)[-1]
        self.document = saved.at(self.newest.position, migrate=False)

    def data(self) -> dict[str, Any]:
        return {"saved": self.newest, "document": self.document}

    def print(self, screen: Screen) -> None:
        facts = [f"of type {self.newest.type}" if self.newest.type else "", self.newest.note or ""]
        screen.block(" · ".join(fact for fact in facts if fact), indent=0)
        screen.line()
        screen.block(json_document(self.document), indent=0)
