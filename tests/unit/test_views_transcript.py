"""Who said what: one view over what every framework stores."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet.backends.contract import Head, Key
from limpet.conversations.conversation import KIND
from limpet.core.ids import make_key
from limpet.core.runtime import run_to_end
from limpet.errors import NotFound
from limpet.integrations.langgraph import reading
from limpet.views.chat import Event, Message, Stored, together, usage_in
from limpet.views.messages import call_arguments
from limpet.views.transcript import Cache, is_chat, transcript
from tests.support import chats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet import Store
    from limpet.views.transcript import Transcript

TOOL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "function": {"name": "pay", "arguments": "{}"}}],
}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "c1", "content": "paid"}


@pytest.fixture
def store() -> Iterator[Store]:
    """One in memory."""
    with limpet.open("memory:") as opened:
        yield opened


def head_of(store: Store, kind: str, id_: str) -> Head:
    """The head of a journal."""
    found = store.scope.backend.head(make_key(store.scope.tenant, kind, id_))
    assert found is not None
    return found


def shown(store: Store, kind: str, id_: str, **options: Any) -> Transcript:
    """A page of it."""
    return run_to_end(transcript(store.scope.as_sync(), head_of(store, kind, id_), **options))


def in_short(page: Transcript) -> list[str]:
    """Who, and what: calls with what came of them."""
    found = []
    for line in page.lines:
        if isinstance(line, Event):
            found.append(f"{line.number} ({line.what})")
            continue
        texts = [
            f"{part.text} -> {part.result.text if part.result else part.note}"
            if part.kind == "call"
            else part.text
            for part in line.parts
        ]
        found.append(f"{line.number} {line.name or line.role}: {' | '.join(texts)}")
    return found


def marks(page: Transcript) -> dict[int, list[str]]:
    """What is marked, by number."""
    return {m.number: [mark.kind for mark in m.marks] for m in page.messages if m.marks}


# -- conversations ---------------------------------------------------------------------------------


def test_a_call_stands_with_its_result_and_notes_with_their_messages(store: Store) -> None:
    """Nobody has to look for what a tool returned, or read JSON to learn what was repaired."""
    chats.a_conversation(store)
    page = shown(store, KIND, "alice")
    assert (page.total, page.older) == (12, None)
    lines = in_short(page)
    assert lines[0] == "1 system: You are a support agent. Be brief."
    assert lines[4].startswith('6 assistant: I look. | find_order(number=7) -> {"status": "sent"')
    assert "| track() -> It is in Rotterdam." in lines[4]
    assert lines[3] == "5 user: The parcel looks like this: | [image: image/png, 3.0 KB]"
    assert [line for line in lines if "(" in line.split()[1]] == ["10 (summary)"]
    assert marks(page) == {3: ["pinned"], 12: ["repaired"], 15: ["taken back"]}
    assert [message.number for message in page.messages if not message.counts] == [15]
    refund = next(message for message in page.messages if message.number == 12)
    assert refund.parts[0].note == "no result"


def test_pages_go_backwards_and_never_part_a_call_from_its_result(store: Store) -> None:
    """Every message is on one page, whatever the size of pages."""
    chats.a_conversation(store)
    whole = in_short(shown(store, KIND, "alice"))
    for size in range(1, 8):
        found: list[str] = []
        before = None
        while True:
            page = shown(store, KIND, "alice", before=before, size=size)
            found = in_short(page) + found
            before = page.older
            if before is None:
                break
        assert found == whole


def test_what_was_replaced_is_still_read_and_says_so(store: Store) -> None:
    """Nothing is deleted by replace(), and nobody takes it for what counts."""
    chat = store.conversation("a")
    chat.append({"role": "user", "content": "old"})
    chat.replace({"role": "user", "content": "new"})
    page = shown(store, KIND, "a")
    assert in_short(page) == ["1 user: old", "2 (cleared)", "3 user: new"]
    assert marks(page) == {1: ["replaced"]}
    assert page.total == 1


def test_a_fork_says_what_it_is_a_fork_of(store: Store) -> None:
    """And its messages are messages."""
    chats.a_conversation(store)
    store.conversation("alice").fork("alice-2", at=4)
    page = shown(store, KIND, "alice-2")
    assert in_short(page)[-1] == "4 (forked)" or "(forked)" in in_short(page)[-1]
    assert page.total == 3


def test_usage_is_that_of_the_reply_before_it(store: Store) -> None:
    """As a chat on the OpenAI SDK notes it, behind its reply."""
    chat = store.conversation("a")
    chat.append({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"})
    usage = {"input_tokens": 12, "output_tokens": 3}
    about = {"model": "gpt-5", "usage": usage, "seconds": 0.5, "finish_reason": "length"}
    store.journal(KIND, "a").append(("request", about))
    reply = shown(store, KIND, "a").messages[-1]
    found = reply.usage
    assert (found.model, found.input, found.output) == ("gpt-5", 12, 3)
    assert (found.seconds, found.ended) == (0.5, "length")


def test_the_beginning_of_a_reply_that_is_being_written_is_there(store: Store) -> None:
    """Whoever watches sees it come."""
    store.conversation("a").append({"role": "user", "content": "Hi"})
    journal = store.journal(KIND, "a")
    journal.append(("piece", {"text": "Hel", "more": False}))
    journal.append(("piece", {"text": "lo", "more": True}))
    page = shown(store, KIND, "a")
    assert (in_short(page), page.writing) == (["1 user: Hi"], "Hello")
    store.conversation("a").append({"role": "assistant", "content": "Hello."})
    assert shown(store, KIND, "a").writing == ""


@pytest.mark.parametrize(
    "arguments", ["[" * 100_000, '{"half": "\\ud800"}', "9" * 5_000, "no JSON", "7", "null", ""]
)
def test_what_a_model_says_in_place_of_arguments_is_shown(store: Store, arguments: str) -> None:
    """It need not be JSON, nor such that can be read, or written again."""
    tool = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": arguments}}
    store.conversation("a").append({"role": "assistant", "content": None, "tool_calls": [tool]})
    (message,) = shown(store, KIND, "a").messages
    (part,) = message.parts
    assert part.text.startswith("pay(")
    assert call_arguments(part.arguments) in (arguments, "")


def test_odd_content_is_shown_as_it_is(store: Store) -> None:
    """Whatever somebody stored, a page comes."""
    journal = store.journal(KIND, "a")
    journal.append(("message", 7), ("message", {"role": 3}), ("message", {"role": "user"}))
    journal.append(("summary", "text"), ("repaired", {"repairs": 4}), ("popped", {"position": "x"}))
    journal.append(("cleared", [1]), ("forked", None), ("shortened", {}), ("pinned", {}))
    journal.append(("later", {"of a newer release": 1}), ("request", {"usage": 9, "model": 1}))
    page = shown(store, KIND, "a")
    assert [line.number for line in page.lines if isinstance(line, Message)] == [2, 3]
    assert in_short(page)[0] == "1 (damaged)"
    assert "11 (later)" in in_short(page)


def test_a_damaged_entry_hides_no_other(tmp_path: Any) -> None:
    """A page says what cannot be read, and shows the rest."""
    url = f"file:{tmp_path / 'agents'}"
    with limpet.open(url) as opened:
        opened.conversation("a").append({"role": "user", "content": "one"})
        opened.conversation("a").append({"role": "user", "content": "two"})
        backend = opened.scope.backend
        read = backend.read

        def damaged(*args: Any, **options: Any) -> Any:
            from msgspec import structs  # noqa: PLC0415 - for this test

            found = read(*args, **options)
            return [structs.replace(r, body=b"?") if r.seq == 1 else r for r in found]

        backend.read = damaged  # type: ignore[method-assign]
        assert in_short(shown(opened, KIND, "a")) == ["1 (damaged)", "2 user: two"]


@pytest.mark.parametrize("length", [100, 3_000])
def test_a_page_costs_the_same_however_long_the_conversation(
    store: Store, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first page and the next one read a fixed number of records."""
    chat = store.conversation("long")
    for start in range(0, length, 500):
        chat.append(
            *({"role": "user", "content": str(n)} for n in range(start, min(start + 500, length)))
        )
    records = 0
    backend = store.scope.backend
    read = backend.read

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal records
        found = read(*args, **options)
        records += sum(record.count for record in found)
        return found

    monkeypatch.setattr(backend, "read", counted)
    first = shown(store, KIND, "long")
    assert (first.total, len(first.messages)) == (length, 50)
    assert records <= 50 * 16  # records hold up to 16
    records = 0
    second = shown(store, KIND, "long", before=first.older)
    assert len(second.messages) == 50
    assert second.messages[-1].number == length - 50
    assert records <= 50 * 16 + 216
    deep = shown(store, KIND, "long", before=51)
    assert (deep.older, len(deep.messages)) == (None, 50)
    assert bool(deep.notes) == (length > 1_000)  # what is noted far ahead is not looked for


def test_a_filter_looks_through_so_many_messages_and_goes_on(store: Store) -> None:
    """The words of what was said, of calls and of results; in bounded pieces."""
    chats.a_conversation(store)
    found = shown(store, KIND, "alice", match="rotterdam")
    assert [message.number for message in found.messages] == [6, 9]
    assert (found.scanned, found.older) == (11, None)
    chat = store.conversation("long")
    chat.append(*({"role": "user", "content": f"n {n}"} for n in range(2_500)))
    none = shown(store, KIND, "long", match="n 3 ")
    assert none.lines == []
    assert none.scanned == 1_000
    assert none.older == 1_501


# -- what frameworks store -------------------------------------------------------------------------


def test_a_session_of_the_agents_sdk_is_a_conversation(store: Store) -> None:
    """A call of the SDK's is not told from one of any other shape."""
    chats.a_session(store)
    assert in_short(shown(store, KIND, "session-1")) == [
        "1 user: Where is order 7?",
        '2 assistant: find_order(number="7") -> order 7 is on a ship',
        "4 assistant: It is on a ship.",
        "5 user: Pay it back.",
        '6 assistant: refund(number="7") -> no result yet',
    ]


def test_a_run_of_the_agents_sdk_says_what_it_waits_for(store: Store) -> None:
    """And who said yes."""
    chats.a_session(store)
    page = shown(store, "agents-run", "refund-7")
    assert in_short(page)[-1] == '6 desk: refund(number="7") -> waits for a yes or no'
    (waits,) = page.sections
    assert waits.title == "Waits for a yes or no"
    assert waits.lines == ['refund(number="7") of desk (s2)']
    chats.a_run(store)
    page = shown(store, "agents-run", "refund-7")
    assert in_short(page)[-1] == '6 desk: refund(number="7") -> approved by maria'
    assert page.sections[0].lines == ["s2 approved by maria"]


def test_a_thread_of_langgraphs_has_models_tokens_and_errors(store: Store) -> None:
    """As LangChain's messages carry them."""
    chats.a_thread(store)
    page = shown(store, "thread", "thread-1")
    assert in_short(page) == [
        "1 user: Where is order 7?",
        "2 clerk: I look. | find_order(number=7) -> no such order",
        "4 assistant: It cannot be found.",
    ]
    call = page.messages[1]
    assert call.parts[1].failed
    assert (call.usage.model, call.usage.input, call.usage.output) == ("gpt-5-mini", 21, 9)
    assert all(message.at and message.entry for message in page.messages)
    assert [(s.title, s.lines, s.tone) for s in page.sections][1] == (
        "Asks, and waits for an answer",
        ["person: Shall I ask the carrier?"],
        "warn",
    )
    # LangGraph writes on threads, so which entries are its checkpoints differs from run to run.
    found = []
    for entry in range(1, head_of(store, "thread", "thread-1").seq + 1):
        with suppress(NotFound):
            found.append(len(shown(store, "thread", "thread-1", at=entry).messages))
    assert found == sorted(found)
    assert {0, 1, 2} <= set(found)
    with pytest.raises(NotFound, match="Entry 99 of thread"):
        shown(store, "thread", "thread-1", at=99)


def test_a_thread_is_read_once_and_then_only_what_is_new(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of a long thread does not fold it anew."""
    chats.a_thread(store)
    cache = Cache()
    shown(store, "thread", "thread-1", cache=cache)
    monkeypatch.setattr(store.scope.backend, "read", None)  # nothing is asked of it
    monkeypatch.setattr(reading, "checkpoints_of", None)  # nor is what was read gone through
    again = shown(store, "thread", "thread-1", cache=cache, size=2)
    assert [message.number for message in again.messages] == [2, 4]
    assert again.older == 2


@pytest.mark.parametrize(
    ("kind", "sources"),
    [
        ("single", ["context:"]),
        ("round robin", ["thread:", "context:anna", "context:ben", "context:cleo"]),
        (
            "nested",
            [
                "thread:",
                "thread:writers",
                "context:critic",
                "context:writers/poet",
                "context:writers/editor",
            ],
        ),
        (
            "magentic one",
            ["thread:", "context:anna", "context:ben", "context:cleo"],
        ),
        ("swarm", ["thread:", "context:anna", "context:ben", "context:cleo"]),
    ],
)
def test_agents_and_teams_of_autogens_are_read_as_who_said_what(
    store: Store, kind: str, sources: list[str]
) -> None:
    """The team's thread first, then what each agent knows."""
    chats.a_state(store, kind, "x")
    assert is_chat(head_of(store, "state", "x"))
    page = shown(store, "state", "x")
    assert [source.name for source in page.sources] == sources
    for source in page.sources:
        assert shown(store, "state", "x", source=source.name).total == source.messages
    assert page.messages
    assert all(part.result or part.note for m in page.messages for part in m.parts if part.id)


def test_a_team_has_times_tokens_tools_and_names(store: Store) -> None:
    """As its manager's thread says it."""
    chats.a_state(store, "round robin", "x")
    page = shown(store, "state", "x")
    lines = in_short(page)
    assert lines[0] == "1 user: Write about order 7, look it up."
    assert lines[2] == '3 ben: look(text="n3") -> n3 found'
    anna = page.messages[1]
    assert (anna.name, anna.usage.output, anna.at is not None) == ("anna", 8, True)
    with pytest.raises(NotFound, match="There are no messages of 'dora'"):
        shown(store, "state", "x", source="dora")


def test_an_agent_or_team_is_known_by_its_head(store: Store) -> None:
    """Other states are documents; and what is no model's is no chat."""
    store.state("settings").save({"theme": "dark"})
    assert not is_chat(head_of(store, "state", "settings"))
    odd = Head(**{**_fields(head_of(store, "state", "settings")), "meta": b"?"})
    assert not is_chat(odd)
    assert not is_chat(Head(**{**_fields(odd), "key": Key("default", "task", "t")}))


def _fields(head: Head) -> dict[str, Any]:
    return {name: getattr(head, name) for name in head.__struct_fields__}


@pytest.mark.parametrize(
    "document", [7, [], {"agent_states": 3}, {"message_thread": [1, {}, None]}]
)
def test_a_state_of_any_shape_is_read(store: Store, document: Any) -> None:
    """What says that it is a team may be anything."""
    store.state("x").save(document)
    assert shown(store, "state", "x").messages is not None


# -- pairs -----------------------------------------------------------------------------------------


def test_calls_that_are_numbered_alike_get_each_their_own_result() -> None:
    """There are models that number their calls anew in every reply."""
    given = [TOOL, RESULT, TOOL, {**RESULT, "content": "paid again"}, RESULT]
    found = together([Stored(number, message) for number, message in enumerate(given, 1)])
    results = [message.parts[0].result for message in found if message.parts]
    assert [result.text for result in results if result] == ["paid", "paid again"]


def test_a_result_without_a_call_is_shown_as_one() -> None:
    """It is somebody's, and not to be lost."""
    (found,) = together([Stored(1, RESULT)])
    assert (found.role, found.parts[0].kind, found.parts[0].text) == ("tool", "result", "paid")


def test_a_result_behind_the_page_is_found() -> None:
    """And where none is within reach, that is said."""
    assert together([Stored(1, TOOL)], [Stored(2, RESULT)])[0].parts[0].result is not None
    (cut,) = together([Stored(1, TOOL)], [Stored(2, {"role": "user"})], complete=False)
    assert cut.parts[0].note == "no result in the 1 messages after it"


@pytest.mark.parametrize(
    ("message", "known"),
    [
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 4}, "model": "m"}, ("m", 3, 4)),
        ({"usage": {"input_tokens": 3, "output_tokens": 4}, "stop_reason": "x"}, (None, 3, 4)),
        ({"models_usage": {"prompt_tokens": 3, "completion_tokens": 4}}, (None, 3, 4)),
        (
            {"response_metadata": {"token_usage": {"prompt_tokens": 3}, "model_name": "m"}},
            ("m", 3, None),
        ),
        ({"usage": {"prompt_tokens": "many"}, "model": 7}, (None, None, None)),
        ({"usage": 9}, (None, None, None)),
    ],
)
def test_what_was_used_is_found_wherever_a_framework_has_it(
    message: dict[str, Any], known: tuple[Any, ...]
) -> None:
    """Each says it in its own words."""
    found = usage_in(message)
    assert (found.model, found.input, found.output) == known
