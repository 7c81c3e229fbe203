"""What was said, as `limpet show` shows it: conversations, and threads of LangGraph's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.cli.show_journal import JournalView, print_sections
from limpet.core.runtime import run_to_end
from limpet.integrations.langgraph import reading
from limpet.views import threads
from limpet.views.messages import parts, role
from limpet.views.text import count, one_line, safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from limpet import Store
    from limpet.backends.contract import Head
    from limpet.cli.options import StoreOptions
    from limpet.cli.output import Screen
    from limpet.cli.show_journal import Row
    from limpet.integrations.langgraph.reading import ThreadCheckpoint
    from limpet.integrations.langgraph.thread import Node

__all__ = ["ConversationView", "ThreadView"]

_ROLES = {
    "user": "bold cyan",
    "assistant": "bold green",
    "tool": "bold yellow",
    "function": "bold yellow",
    "system": "bold magenta",
    "developer": "bold magenta",
}


class ConversationView(JournalView):
    """Messages as chat."""

    def found(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.store.conversation(self.head.key.id).messages(
            last=self.last
        )
        return messages

    def data(self) -> dict[str, Any]:
        return {"messages": self.found()}

    def print(self, screen: Screen) -> None:
        found = self.found()
        for message in found:
            screen.line()
            print_message(message, screen)
        if not found:
            screen.line("It has no messages.")


def print_message(message: Mapping[str, Any], screen: Screen) -> None:
    """Who says it, and what."""
    who = role(message)
    about = [message.get(key) for key in ("name", "tool_call_id", "call_id")]
    known = " ".join(one_line(value) for value in about if value)
    screen.line((safe(who), _ROLES.get(who, "bold")), (f" {known}" if known else "", "dim"))
    for part in parts(message):
        screen.block(part.text, indent=4 if part.mark else 2, first=f"  {part.mark}")


class ThreadView(JournalView):
    """A thread of LangGraph's: where it is, what was said, and what else it knows."""

    def __init__(self, options: StoreOptions, store: Store, head: Head, last: int | None) -> None:
        super().__init__(options, store, head, last)
        self.log = run_to_end(threads.read(store.scope.as_sync(), head))
        self.newest = self.log.newest("")
        self.checkpoints = reading.checkpoints_of(self.log)

    def data(self) -> dict[str, Any]:
        found = reading.state_of(self.log, self.head)
        if self.last is not None:
            found["checkpoints"] = found["checkpoints"][-self.last :]
        return found

    def print(self, screen: Screen) -> None:
        name = reading.name_of(self.log, self.head)
        if name != self.head.key.id:
            screen.block(f"LangGraph calls it {name!r}", indent=0)
        if self.newest is None:
            screen.line("It has no checkpoints.")
            return
        print_sections(self.sections(self.newest), screen)
        values = reading.values_of(self.log, self.newest)
        said = {channel: reading.messages_in(value) for channel, value in values.items()}
        for channel, messages in said.items():
            if messages is not None:
                screen.line()
                screen.line((safe(channel), "bold"), (f" {count(len(messages), 'message')}", "dim"))
                for message in messages[-self.last :] if self.last else messages:
                    screen.line()
                    print_message(message, screen)
        others = [channel for channel in values if said[channel] is None]
        for number, channel in enumerate(others):
            if number == 0:
                screen.line()
                screen.line(("Other values", "bold"))
            screen.block(f"{one_line(channel)}  {threads.value_line(values[channel])}")

    def sections(self, newest: Node) -> Iterator[tuple[str, Iterable[Row]]]:
        """What is known of the thread beside its values; one without rows is not shown."""
        every = [one for one in self.checkpoints if not one.namespace]
        at = next(one for one in every if one.number == newest.seq)
        known = f"{newest.id}, {threads.step_line(at)}, the newest of {len(every):,}"
        yield "Checkpoint", [("", known, "")]
        asked = reading.asked_of(self.log, newest)
        yield (
            "Asks, and waits for an answer",
            (("- ", threads.asked_line(one), "yellow") for one in asked),
        )
        errors = reading.errors_of(self.log, newest)
        yield (
            "Failed",
            (("- ", f"{node}: {text}".removeprefix(": "), "red") for node, text in errors),
        )
        yield "Next", (("- ", name, "") for name in reading.next_of(self.log, newest))
        yield "Forks", (("- ", text, "") for text in self.forks())
        spaces = [ns for ns in self.log.nodes if ns]
        yield "Subgraphs", (("- ", text, "") for text in map(self.subgraph, spaces))

    def forks(self) -> Iterator[str]:
        """Where other lines begin, and how far they went."""
        lines: dict[int, list[ThreadCheckpoint]] = {}
        for one in self.checkpoints:
            if one.line:
                lines.setdefault(one.line, []).append(one)
        for number, line in lines.items():
            begin = line[0].parent
            where = "from the beginning" if begin is None else f"from {begin}"
            last = f"to {line[-1].number} ({threads.step_line(line[-1])})"
            inner = f" in {line[0].namespace}" if line[0].namespace else ""
            length = count(len(line), "checkpoint")
            yield f"fork {number}{inner}: {where} {last}, {length}"

    def subgraph(self, ns: str) -> str:
        """How far a subgraph is."""
        every = [one for one in self.checkpoints if one.namespace == ns]
        return f"{ns}: {count(len(every), 'checkpoint')}, {threads.step_line(every[-1])}"
