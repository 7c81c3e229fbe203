"""How long a conversation is: known by its head, and what reading all of it would say."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import limpet
from limpet import Conflict, Store
from limpet.backends.contract import Append, Appended
from limpet.conversations.transcript import COPIED, MESSAGE, ConversationMeta, Transcript
from limpet.core.calls import BEGAN, Call, Resolution, resolve_call
from limpet.core.runtime import run_to_end
from limpet.errors import Unreadable
from tests.support import stores
from tests.support.stores import Place, bot, call, result, system, user

everywhere, place, store = stores.everywhere, stores.place, stores.store


def transcript_of(store: Store, id_: str) -> Transcript:
    """The journal of a conversation, as integrations have it."""
    return store._core.conversation(id_).transcript


@pytest.fixture
def blocking(tmp_path: Path) -> Iterator[Store]:
    """A sync store, whose parts can be looked at."""
    with limpet.open(tmp_path / "agents.db") as opened:
        yield opened


def check(chat: Any) -> None:
    """The length is what a full read says: forwards, and backwards."""
    assert chat.length() == len(chat.messages()) == len(chat.items())


# -- any changes -----------------------------------------------------------------------------------

CHANGES = [
    *("append", "append", "system", "pop", "pop", "replace", "clear", "pin", "pinned", "unpin"),
    *("fork", "half", "sum", "trim", "outputs", "broken", "notes", "label"),
]


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 3)), max_size=30))
def test_it_is_what_reading_all_of_it_would_say(changes: list[tuple[str, int]]) -> None:
    """Whatever was said, taken back, pinned, summed up, copied or noted beside it."""
    with limpet.open("memory:") as store:
        chat = store.conversation("alice")
        for number, (change, count) in enumerate(changes):
            chat = changed(store, chat, change, count, number)
            check(chat)
        for info in store.conversations():
            check(store.conversation(info.id))


def changed(store: Store, chat: Any, change: str, count: int, number: int) -> Any:
    """Do it; returns the conversation to go on with."""
    new = [user(f"{number} {n} " + "x" * 50) for n in range(count)]
    positions = [position for position, _ in chat.items()]
    simple: dict[str, Callable[[], object]] = {
        "append": lambda: chat.append(user("a"), *new),
        "system": lambda: chat.append(system("s"), *new),
        "pop": lambda: [chat.pop() for _ in range(count)],
        "replace": lambda: chat.replace(*new),
        "clear": chat.clear,
        "pinned": lambda: chat.append(*[user("p")] * (count + 1), pin=True, id=f"pinned-{count}"),
        "unpin": lambda: chat.unpin(*positions),
        "sum": lambda: chat.compact(lambda _: "So far.", keep_tokens=30),
        "trim": lambda: chat.compact("trim", keep_tokens=30),
        "outputs": lambda: chat.compact("outputs", keep_tokens=30),
        "notes": lambda: run_to_end(
            transcript_of(store, chat.id).write([("note", n) for n in range(count + 1)])
        ),
    }
    try:
        if change in simple:
            simple[change]()
        elif change == "pin" and positions:
            chat.pin(positions[count % len(positions)])
        elif change == "broken":
            long = result(f"c{number}", "y" * 900)
            chat.append(call(f"c{number}", f"d{number}"), long, bot("Well."), user("Go on."))
            chat.window()
        elif change == "label" and positions:
            chat.label(team=str(number))
        elif change == "fork" and positions:
            return chat.fork(f"fork-{number}", at=None if count else positions[-1])
        elif change == "half" and positions:
            half = [(COPIED, message) for message in chat.messages()]
            meta = ConversationMeta(forking=True, others=len(half)).encode()
            store.journal("conversation", f"half-{number}").append(*half, meta=meta)
            return store.conversation(f"half-{number}")
    except limpet.errors.InvalidMessage:  # what cannot be pinned, or too much of it
        pass
    return chat


def test_a_long_fork_has_the_length_of_what_it_copies(store: Store) -> None:
    """It is written in several records, and has a summary and pins of its own."""
    chat = store.conversation("alice")
    chat.append(*[user(f"{n} " + "x" * 30) for n in range(100)])
    chat.pin(40)
    chat.compact(lambda _: "So far.", keep_tokens=300)
    fork = chat.fork("b")
    assert (fork.length(), chat.fork("c", at=70).length()) == (100, 70)
    fork.append(user("more"))
    fork.pop()
    fork.fork("d").append(user("more"))
    for id_ in ("alice", "b", "c", "d"):
        check(store.conversation(id_))


# -- what it costs ---------------------------------------------------------------------------------


def test_no_record_is_read(place: Place, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it is, and whatever has happened in it."""
    chat = store.conversation("alice")
    chat.append(system("s"), *[user(str(n)) for n in range(100)])
    chat.append(user("p"), pin=True)
    chat.pop()
    chat.compact("trim", keep_tokens=30)
    chat.fork("b").pop()
    opened = place.open()

    def never(*_: Any, **__: Any) -> Any:
        pytest.fail("read")

    for name in ("read", "bodies", "scan"):
        monkeypatch.setattr(opened.backend, name, never)
    lengths = [opened.conversation(id_).length() for id_ in ("alice", "b", "nobody")]
    assert lengths == [101, 100, 0]


def test_a_message_is_appended_without_a_look_at_the_head(
    blocking: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most appends are of messages, and change nothing but the number."""
    chat = blocking.conversation("alice")
    chat.append(system("s"))
    requests: list[Append] = []
    append = blocking.backend.append

    def noted(request: Append) -> Appended:
        requests.append(request)
        return append(request)

    monkeypatch.setattr(blocking.backend, "append", noted)
    monkeypatch.setattr(blocking.backend, "head", lambda *_: pytest.fail("looked"))
    chat.append(user("1"), bot("2"))
    (request,) = requests
    assert (request.count, request.meta, request.expect) == (
        2,
        limpet.backends.contract.UNSET,
        None,
    )


def test_the_status_is_for_lists_and_is_left_alone(store: Store) -> None:
    """What a conversation knows of itself is in its meta."""
    chat = store.conversation("alice")
    chat.append(system("s"), user("1"), user("2"))
    chat.pin(2)
    chat.pop()
    chat.clear()
    chat.append(user("3"))
    head = store.journal("conversation", "alice").head()
    assert head is not None
    assert head.status is None
    assert ConversationMeta.of(head) == ConversationMeta(start=6)


# -- several at once -------------------------------------------------------------------------------


def test_it_is_right_when_many_write_at_once(tmp_path: Path) -> None:
    """Each who adds more than messages counts what is there then, and nothing is counted twice."""
    path = tmp_path / "chat.db"

    def work(number: int) -> None:
        with limpet.open(path) as store:
            chat = store.conversation("alice")
            for n in range(12):
                chat.append(user(f"{number}-{n}"))
                if n % 3 == number % 3:
                    chat.append(user("p"), pin=True)
                if n % 4 == 0:
                    chat.pop()
                if n == 6:
                    chat.compact("trim", keep_tokens=20)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with limpet.open(path) as store:
        check(store.conversation("alice"))
        assert store.conversation("alice").length() == 6 * (12 + 4 - 3)


def test_a_position_that_comes_to_be_in_this_moment_is_not_the_expected_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was pinned would be another message: the writer had looked at another head."""
    with limpet.open(tmp_path / "a.db") as one, limpet.open(tmp_path / "a.db") as two:
        chat, other = one.conversation("alice"), two.conversation("alice")
        chat.append(user("1"))
        append = one.backend.append

        def late(request: Append) -> Appended:
            other.append(user("2"))
            return append(request)

        monkeypatch.setattr(one.backend, "append", late)
        with pytest.raises(Conflict):
            chat.append(user("rule"), pin=True, expect=2)
        monkeypatch.undo()
        assert (chat.messages(), chat.pinned()) == ([user("1"), user("2")], [])
        assert chat.append(user("rule"), pin=True, expect=2) == 4
        assert chat.pinned() == [(4, user("rule"))]


def test_what_is_retried_is_not_counted_again(store: Store) -> None:
    """Under the same id, whatever was said since."""
    chat = store.conversation("alice")
    for _ in range(2):
        chat.append(user("rule"), pin=True, id="rule")
        chat.append(user("more"))
    chat.replace(user("new"), id="new")
    chat.append(user("more"))
    chat.replace(user("new"), id="new")
    assert chat.length() == 2
    check(chat)


# -- calls that are in doubt -----------------------------------------------------------------------


def test_calls_in_doubt_are_noted_and_resolved_without_being_messages(blocking: Store) -> None:
    """They are found by the head, and so is the length."""
    transcript = transcript_of(blocking, "alice")
    began = Call("c1", name="pay")
    entries = [(MESSAGE, call("c1")), (BEGAN, {"id": "c1", "name": "pay"})]
    run_to_end(transcript.write(entries, lambda _: ConversationMeta(calls={"c1": began})))
    chat = blocking.conversation("alice")
    assert chat.length() == 1
    run_to_end(
        resolve_call(blocking._core.scope, "conversation", "alice", Resolution("c1", "done"))
    )
    check(chat)
    assert chat.length() == 1


def test_a_call_in_a_message_that_is_taken_back_is_no_longer_in_doubt(blocking: Store) -> None:
    """Nothing in the conversation tells of it any more."""
    transcript = transcript_of(blocking, "alice")
    calls = {id_: Call(id_) for id_ in ("c1", "c2")}
    entries = [(MESSAGE, call("c1")), (MESSAGE, call("c2")), (BEGAN, None)]
    run_to_end(transcript.write(entries, lambda _: ConversationMeta(calls=calls)))
    assert blocking.conversation("alice").pop() == call("c2")
    head = blocking.journal("conversation", "alice").head()
    assert ConversationMeta.of(head).calls.keys() == {"c1"}
    check(blocking.conversation("alice"))


# -- a meta that is damaged, and every backend -----------------------------------------------------


@pytest.mark.parametrize("meta", [b"x", b"5", b'{"start": -1}', b'{"pins": ["x"]}'])
def test_a_meta_that_cannot_be_read_is_named_and_hides_nothing(store: Store, meta: bytes) -> None:
    """All messages are there, and can be put in its place."""
    chat = store.conversation("alice")
    chat.append(user("1"), user("2"))
    store.journal("conversation", "alice").append(meta=meta)
    for read in (chat.window, chat.length, chat.pop):
        with pytest.raises(Unreadable, match="conversation 'alice' has a meta that cannot be read"):
            read()
    assert chat.messages() == [user("1"), user("2")]
    chat.append(user("3"))
    chat.replace(*chat.messages())
    assert chat.window() == [user("1"), user("2"), user("3")]
    check(chat)


def test_a_meta_of_a_later_release_is_read_as_far_as_it_is_known(store: Store) -> None:
    """What it does not know, this one leaves out."""
    chat = store.conversation("alice")
    chat.append(user("1"), user("2"))
    store.journal("conversation", "alice").append(meta=b'{"pins": [1], "later": {"a": 1}}')
    assert (chat.pinned(), chat.length()) == ([(1, user("1"))], 2)


def test_length_is_the_same_everywhere(everywhere: Place) -> None:
    """On every backend, for another process too."""
    chat, other = (everywhere.open().conversation("alice") for _ in range(2))
    chat.append(system("s"), *[user(f"{n} " + "x" * 30) for n in range(50)])
    other.append(user("p"), pin=True)
    chat.pop()
    other.compact("trim", keep_tokens=100)
    fork = chat.fork("b")
    fork.append(user("1"))
    assert (chat.length(), other.length(), fork.length()) == (51, 51, 52)
    for one in (chat, other, fork):
        check(one)
    chat.replace(user("new"))
    assert other.length() == 1
    other.clear()
    assert chat.length() == 0


def test_async_conversations_have_it_too() -> None:
    """Awaited."""

    async def main() -> None:
        async with limpet.open_async("memory:") as store:
            chat = store.conversation("alice")
            await chat.append(user("1"), user("2"))
            await chat.pop()
            assert await chat.length() == 1

    asyncio.run(main())
