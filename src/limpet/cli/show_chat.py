"""What was said, as `limpet show` shows it: conversations, threads, runs, agents and teams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.cli.show_journal import JournalView, print_sections
from limpet.cli.show_state import StateView
from limpet.core.runtime import run_to_end
from limpet.errors import Unreadable
from limpet.integrations.langgraph import thread
from limpet.views import threads
from limpet.views.chat import DAMAGED, Event
from limpet.views.text import count, one_line, safe
from limpet.views.transcript import transcript

if TYPE_CHECKING:
    from limpet.cli.output import Screen
    from limpet.views.chat import Message, Part
    from limpet.views.transcript import Section, Transcript

__all__ = ["ChatView", "ConversationView", "TeamView", "ThreadView"]

_ROLES = {
    "user": "bold cyan",
    "assistant": "bold green",
    "tool": "bold yellow",
    "function": "bold yellow",
    "system": "bold magenta",
    "developer": "bold magenta",
}
_TONES = {"warn": "yellow", "bad": "red"}
#: What comes after the messages, as there may be much of it.
_LAST = "Other values"
#: Sections that are no lists.
_PLAIN = ("Name", "Checkpoint", "Output", _LAST)


class ChatView(JournalView):
    """Who said what, with tools and their results."""

    #: Of which of several lists of messages: a channel, or an agent.
    source: str | None = None

    def page(self, source: str | None) -> Transcript:
        """The newest messages, or all of them."""
        scope = self.store.scope.as_sync()
        page = run_to_end(transcript(scope, self.head, size=self.last, source=source))
        if page.problem:
            raise Unreadable(page.problem)
        return page

    def print(self, screen: Screen) -> None:
        first = self.page(self.source)
        _print_sections([one for one in first.sections if one.title != _LAST], screen)
        for note in first.notes:
            screen.line((note, "dim"))
        is_thread = self.head.key.kind == thread.KIND
        # Of a thread all its channels; of a team what was said in it, and not what each one knows.
        names = [one.name for one in first.sources] if is_thread and not self.source else []
        for name in names or [first.source]:
            page = first if name == first.source else self.page(name)
            _print_page(page, screen, named=bool(page.sources))
        _print_sections([one for one in first.sections if one.title == _LAST], screen)
        others = [one for one in first.sources if one.name not in (names or [first.source])]
        for number, one in enumerate(others):
            if number == 0:
                screen.line()
                screen.line(("There is also (--of NAME)", "bold"))
            name = one.name.removeprefix("context:")
            screen.line(f"  {name}  ", (f"{one.title}, {count(one.messages, 'message')}", "dim"))
        damaged = [line for line in first.lines if isinstance(line, Event) and line.what == DAMAGED]
        if damaged:  # the rest is shown, and a script is told
            raise Unreadable(damaged[0].detail)


class ConversationView(ChatView):
    """Messages as chat."""

    def data(self) -> dict[str, Any]:
        chat = self.store.conversation(self.head.key.id)
        return {"messages": chat.messages(last=self.last)}


class ThreadView(ChatView):
    """A thread of LangGraph's: where it is, what was said, and what else it knows."""

    def data(self) -> dict[str, Any]:
        found = run_to_end(threads.state(self.store.scope.as_sync(), self.head))
        if self.last is not None:
            found["checkpoints"] = found["checkpoints"][-self.last :]
        return found


class TeamView(ChatView):
    """An agent or a team of AutoGen's; for programs, its document."""

    def data(self) -> dict[str, Any]:
        return StateView(self.options, self.store, self.head, None).data()


def _print_sections(sections: list[Section], screen: Screen) -> None:
    print_sections(
        (
            (
                one.title,
                [
                    ("" if one.title in _PLAIN else "- ", line, _TONES.get(one.tone, ""))
                    for line in one.lines
                ],
            )
            for one in sections
        ),
        screen,
    )


def _print_page(page: Transcript, screen: Screen, *, named: bool) -> None:
    lines = [line for line in page.lines if isinstance(line, Event) or line.counts]
    if named:
        title = next(one.title for one in page.sources if one.name == page.source)
        screen.line()
        screen.line((safe(title), "bold"), (f" {count(page.total or 0, 'message')}", "dim"))
    if not page.messages:
        screen.line("It has no messages.")
    for line in lines:
        screen.line()
        if isinstance(line, Event):
            screen.line((f"{line.what}: {line.text}", "dim"))
            screen.block(line.detail, style="dim")
        else:
            print_message(line, screen)
    if page.writing:
        screen.line()
        screen.line(("assistant", _ROLES["assistant"]), (" is just writing", "dim"))
        screen.block(page.writing)


def print_message(message: Message, screen: Screen) -> None:
    """Who says it and when, what it took, and what is said."""
    usage = message.usage
    given = "?" if usage.input is None else f"{usage.input:,}"
    made = "?" if usage.output is None else f"{usage.output:,}"
    facts = [
        f"#{message.number}",
        "" if message.at is None else screen.time(message.at),
        usage.model or "",
        "" if given == made == "?" else f"{given} → {made} tokens",
        "" if usage.seconds is None else f"{usage.seconds:.1f} s",
        "" if usage.ended is None else f"ended by {usage.ended}",
    ]
    known = " · ".join(one_line(fact) for fact in facts if fact)
    who = safe(one_line(message.role))
    name = f" {one_line(message.name)}" if message.name else ""
    screen.line((who, _ROLES.get(who, "bold")), (name, "bold"), (f"  {known}", "dim"))
    for mark in message.marks:
        text = f"{mark.kind}: {mark.text}" if mark.text else mark.kind
        screen.block(f"({text})", style="yellow" if mark.kind == "repaired" else "dim")
    for part in message.parts:
        _print_part(part, screen)


def _print_part(part: Part, screen: Screen) -> None:
    match part.kind:
        case "call":
            screen.block(part.text, indent=4, first="  → ")
            result = part.result
            if result is None:
                screen.block(f"({part.note})", indent=4, first="  ← ", style="yellow")
            else:
                text = f"(error) {result.text}" if result.error else result.text
                style = "red" if part.failed else ""
                screen.block(text or "(nothing)", indent=4, first="  ← ", style=style)
        case "result":
            text = f"(error) {part.text}" if part.error else part.text
            screen.block(text, indent=4, first="  ← ", style="red" if part.failed else "")
        case "thought":
            screen.block(part.text, indent=4, first="  ~ ", style="dim")
        case "refusal":
            screen.block(f"(refused) {part.text}")
        case _:
            screen.block(part.text)
