"""Any journal as `limpet show` shows it; the models' own renderings build on that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from limpet.backends.contract import from_micros
from limpet.backends.facts import human_size
from limpet.cli.ls import entries, labels_of, status_of, status_style
from limpet.cli.tasks import print_call
from limpet.core.runtime import run_to_end
from limpet.views.doubts import doubts_of, effects_of
from limpet.views.heads import HeadView
from limpet.views.messages import written
from limpet.views.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from limpet import Store
    from limpet.backends.contract import Head
    from limpet.cli.options import StoreOptions
    from limpet.cli.output import Screen
    from limpet.core.calls import CallInDoubt

__all__ = ["JournalView", "Row", "print_sections"]


class JournalView:
    """Any journal: its entries, as they are."""

    def __init__(self, options: StoreOptions, store: Store, head: Head, last: int | None) -> None:
        self.options = options
        self.store = store
        self.head = head
        self.last = last

    def print_heading(self, screen: Screen) -> None:
        """What the head says."""
        head = self.head
        title = Text.assemble((head.key.kind, "dim"), " ", (safe(head.key.id), "bold"))
        if status := status_of(head):
            title.append(" · ").append(safe(status), status_style(head.status))
        screen.line(title)
        updated = f"updated {screen.since(from_micros(head.updated))}"
        facts = [entries(head), human_size(head.size), updated, labels_of(head)]
        screen.block(" · ".join(fact for fact in facts if fact), indent=0, style="dim")

    def in_doubt(self) -> list[CallInDoubt]:
        """The calls in doubt, of a thread those of its nodes, too.

        None, if the meta that they are in cannot be read, which the heading and the doctor say.
        """
        view = HeadView.of(self.head)
        effects = run_to_end(effects_of(self.store.scope.as_sync(), view))
        return doubts_of(view, effects)

    def print_in_doubt(self, screen: Screen) -> None:
        """The calls in doubt, each with the commands that say what became of it."""
        for number, one in enumerate(self.in_doubt()):
            if number == 0:
                screen.line()
                screen.line(("In doubt", "bold"))
            print_call(self.options, screen, one.kind, one.id, one.call)

    def found(self) -> list[Any]:
        """What there is to show."""
        journal = self.store.journal(self.head.key.kind, self.head.key.id)
        if self.last is None:
            return journal.read()
        return journal.read(reverse=True, limit=self.last)[::-1]

    def data(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {"journal": self.found()}

    def context(self) -> str:
        """What a model resumes from: of tasks only."""
        raise NotImplementedError

    def print(self, screen: Screen) -> None:
        """All of it, for people."""
        for entry in self.found():
            screen.line()
            screen.line((f"{entry.seq} ", "dim"), (safe(entry.type), "bold"))
            screen.block(written(entry.body) if entry.body is not None else "")


#: A line of a section: the mark before it, its text, and its style.
Row = tuple[str, str, str]


def print_sections(sections: Iterable[tuple[str, Iterable[Row]]], screen: Screen) -> None:
    """Parts of a record, each with its title; one without rows is not shown."""
    for title, rows in sections:
        for number, (mark, text, style) in enumerate(rows):
            if number == 0:
                screen.line()
                screen.line((title, "bold"))
            screen.block(text, indent=2 + len(mark), first=f"  {mark}", style=style)
