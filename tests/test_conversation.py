"""Conversations: what was said is kept, in one order, once, and as long as it should be."""

import threading
import time
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

import holdfast
from holdfast import (
    Codec,
    Conflict,
    ConversationNotFound,
    IdReused,
    InvalidMessage,
    NotStorable,
    Store,
    TooLarge,
    WrongType,
)
from holdfast.backends.base import Append, Head, Key
from holdfast.conversation import CHUNK, COPIED, FORKING
from tests import nouns
from tests.nouns import Place, bot, call, result, system, user

place, store = nouns.place, nouns.store


class Message(BaseModel):
    """A message as a client library has it."""

    role: str
    content: str | None = None
    name: str | None = None


class Turn(msgspec.Struct):
    """Another client library's."""

    role: str
    content: str


def numbered(count: int) -> list[dict[str, Any]]:
    """As many messages, each another."""
    return [user(str(n)) for n in range(1, count + 1)]


# -- appending -----------------------------------------------------------------------------------


def test_what_was_appended_is_there_for_another_process(place: Place, store: Store) -> None:
    """Durable on return, in the order it was said."""
    chat = store.conversation("alice")
    assert chat.append(user("I prefer e-mail.")) == 1
    assert chat.append(bot("Noted."), user("Thanks."), system("Be brief.")) == 4
    again = place.open().conversation("alice")
    assert again.messages() == [
        user("I prefer e-mail."),
        bot("Noted."),
        user("Thanks."),
        system("Be brief."),
    ]


def test_any_other_keys_of_a_message_are_kept(store: Store) -> None:
    """Providers invent new ones every month."""
    odd = {"role": "user", "content": [{"type": "image", "url": "…"}], "x": {"y": [None, 1.5]}}
    item = {"type": "function_call_output", "call_id": "a", "output": "ok"}
    chat = store.conversation("alice")
    chat.append(odd, item)
    assert chat.messages() == [odd, item]


def test_model_objects_become_messages(store: Store) -> None:
    """What a client library returns can be appended as it is, and asked back as that."""
    chat = store.conversation("alice")
    chat.append(Message(role="assistant", content="Hi."), Turn("user", "Hello."))
    assert chat.messages() == [
        {"role": "assistant", "content": "Hi.", "name": None},
        {"role": "user", "content": "Hello."},
    ]
    assert chat.messages(as_=Turn) == [Turn("assistant", "Hi."), Turn("user", "Hello.")]
    assert chat.messages(last=1, as_=Message) == [Message(role="user", content="Hello.")]
    chat.append({"role": "user"})
    with pytest.raises(WrongType, match=r"does not fit Turn.*`content`"):
        chat.messages(as_=Turn)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("hello", "Message 1 is a str. A message is a dict with a role"),
        ({"content": "hello"}, "Message 1 is a dict without a role"),
        ({"role": 1}, "Message 1 is a dict without a role"),
        (None, "Message 1 is a NoneType"),
        ([user("a"), user("b")], r"Message 1 is a list\. To append several.*append\(\*messages\)"),
    ],
)
def test_what_is_no_message_is_refused(store: Store, bad: object, message: str) -> None:
    """Before it is stored, and no model would know what to do with it."""
    chat = store.conversation("alice")
    with pytest.raises(InvalidMessage, match=message):
        chat.append(bad)
    with pytest.raises(InvalidMessage, match=r"Message 2 is .*"):
        chat.append(user("good"), bad)
    with pytest.raises(InvalidMessage, match="at least one"):
        chat.append()
    assert chat.messages() == []
    assert list(store.conversations()) == []


def test_several_messages_are_stored_all_or_none(store: Store) -> None:
    """A turn is never half there, and the error says which message was the bad one."""
    chat = store.conversation("alice")
    chat.append(user("before"))
    with pytest.raises(NotStorable, match=r"^message 2\['content'\]\['x'\]: an object$"):
        chat.append(user("good"), {"role": "user", "content": {"x": object()}})
    with pytest.raises(NotStorable, match=r"^message\['content'\]: an object$"):
        chat.append({"role": "user", "content": object()})
    with pytest.raises(NotStorable, match=r"^message 1: an object$"):
        chat.append(object())
    assert chat.messages() == [user("before")]


def test_a_message_over_the_limit_is_refused_with_its_size(place: Place) -> None:
    """Found when it is written, with the number, not when a server refuses it for ever."""
    chat = place.open(codec=Codec(max_bytes=1000)).conversation("alice")
    with pytest.raises(TooLarge, match=r"^message takes 2,\d\d\d bytes.*may have 1,000"):
        chat.append(user("x" * 2000))
    assert chat.messages() == []


def test_second_writer_at_the_same_position_gets_a_conflict(place: Place, store: Store) -> None:
    """Two agents never silently answer the same question."""
    one, two = store.conversation("alice"), place.open().conversation("alice")
    position = one.append(user("Question"))
    assert one.append(bot("Answer of one"), expect=position) == 2
    with pytest.raises(Conflict, match=r"is at 2, not at 1: another writer.*retry") as caught:
        two.append(bot("Answer of two"), expect=position)
    assert (caught.value.expected, caught.value.actual) == (1, 2)
    assert two.messages() == [user("Question"), bot("Answer of one")]


def test_expecting_nothing_means_the_very_first(store: Store) -> None:
    """Whoever begins a conversation can know that it did."""
    chat = store.conversation("alice")
    assert chat.append(user("first"), expect=0) == 1
    with pytest.raises(Conflict):
        chat.append(user("also first"), expect=0)


def test_two_writers_both_keep_what_they_said(place: Place, store: Store) -> None:
    """Nobody's words are lost, and every reader sees one order."""
    chats = [store.conversation("alice"), place.open().conversation("alice")]
    for n in range(10):
        chats[n % 2].append(user(str(n)))
    assert chats[0].messages() == chats[1].messages() == [user(str(n)) for n in range(10)]


def test_a_retried_append_adds_nothing(place: Place, store: Store) -> None:
    """A reply that was lost on the way is no reason to say it twice."""
    chat = store.conversation("alice")
    assert chat.append(user("a"), bot("b"), id="turn-1") == 2
    chat.append(user("c"))
    assert chat.append(user("a"), bot("b"), id="turn-1") == 2
    assert place.open().conversation("alice").append(user("a"), bot("b"), id="turn-1") == 2
    assert chat.append(user("a"), bot("b"), id="turn-1", expect=0) == 2
    assert chat.messages() == [user("a"), bot("b"), user("c")]


def test_an_append_id_cannot_stand_for_two_things(store: Store) -> None:
    """Otherwise the second would be lost, and nobody told."""
    chat = store.conversation("alice")
    chat.append(user("a"), id="turn-1")
    with pytest.raises(IdReused, match=r"'turn-1' was used at 1.*new id") as caught:
        chat.append(user("b"), id="turn-1")
    assert caught.value.actual == 1
    assert chat.messages() == [user("a")]
    assert store.conversation("bob").append(user("b"), id="turn-1") == 1


def test_what_the_caller_does_to_a_message_later_changes_nothing(store: Store) -> None:
    """Stored is stored, and what was read is the caller's own."""
    chat = store.conversation("alice")
    message = user("original")
    chat.append(message)
    message["content"] = "changed"
    chat.messages()[0]["content"] = "changed"
    assert chat.messages() == [user("original")]


# -- reading -------------------------------------------------------------------------------------


def test_last_messages_and_length(store: Store) -> None:
    """Across appends of any size."""
    chat = store.conversation("alice")
    assert (chat.messages(), chat.messages(last=5), chat.last(), chat.length()) == ([], [], None, 0)
    chat.append(*numbered(7))
    chat.append(user("8"))
    assert chat.messages(last=3) == [user("6"), user("7"), user("8")]
    assert chat.messages(last=0) == []
    assert chat.messages(last=100) == chat.messages() == numbered(8)
    assert chat.last() == user("8")
    assert chat.length() == 8
    with pytest.raises(ValueError, match="say how many"):
        chat.messages(last=-1)


def test_a_long_conversation_comes_back_whole(store: Store) -> None:
    """Over many pages, and in order."""
    chat = store.conversation("alice")
    for start in range(0, 4500, 500):
        chat.append(*(user(str(n)) for n in range(start, start + 500)))
    assert [m["content"] for m in chat.messages()] == [str(n) for n in range(4500)]
    assert [m["content"] for m in chat.messages(last=2100)] == [str(n) for n in range(2400, 4500)]


def test_info_tells_about_it_without_reading_it(store: Store) -> None:
    """Position, size, times and labels."""
    chat = store.conversation("alice", labels={"team": "red"})
    with pytest.raises(ConversationNotFound, match="no conversation 'alice'") as caught:
        chat.info()
    assert isinstance(caught.value, LookupError)
    chat.append(user("a"))
    first = chat.info()
    chat.append(user("b"), user("c"))
    info = chat.info()
    assert (info.id, info.position, info.labels, info.expires_at) == (
        "alice",
        3,
        {"team": "red"},
        None,
    )
    assert info.size > first.size > 0
    assert info.created_at == first.created_at <= first.updated_at <= info.updated_at
    assert info.created_at.tzinfo is not None


# -- labels and lists ------------------------------------------------------------------------------


def test_conversations_are_listed_by_prefix_and_labels(store: Store) -> None:
    """What a support desk asks for: all of one customer, all that are urgent."""
    for n in range(3):
        store.conversation(f"acme/{n}", labels={"team": "red", "n": str(n)}).append(user("x"))
    store.conversation("acme", labels={"team": "blue"}).append(user("x"))
    store.conversation("Zoë").append(user("x"))

    def ids(**filters: Any) -> list[str]:
        return [chat.id for chat in store.conversations(**filters)]

    assert ids() == ["Zoë", "acme", "acme/0", "acme/1", "acme/2"]
    assert ids(prefix="acme/") == ["acme/0", "acme/1", "acme/2"]
    assert ids(labels={"team": "red"}) == ["acme/0", "acme/1", "acme/2"]
    assert ids(labels={"team": "red", "n": "1"}) == ["acme/1"]
    assert ids(prefix="acme/", labels={"team": "blue"}) == []
    assert ids(prefix="nobody") == []


def test_a_long_list_has_everything_once(store: Store) -> None:
    """Over many pages, also while some are deleted."""
    for n in range(250):
        store.conversation(f"chat-{n:03}").append(user("x"))
    seen = []
    for info in store.conversations():
        seen.append(info.id)
        store.conversation(info.id).delete()
    assert seen == [f"chat-{n:03}" for n in range(250)]
    assert list(store.conversations()) == []


def test_labels_can_be_set_changed_and_removed(place: Place, store: Store) -> None:
    """None removes one; an append by the one who gave it does not bring it back."""
    chat = store.conversation("alice", labels={"team": "red", "open": ""})
    with pytest.raises(ConversationNotFound):
        chat.label(team="blue")
    chat.append(user("x"))
    chat.label(team="blue", open=None, extra="1")
    chat.append(user("y"))
    assert chat.info().labels == {"team": "blue", "extra": "1"}
    place.open().conversation("alice").append(user("z"))
    assert chat.info().labels == {"team": "blue", "extra": "1"}
    assert chat.length() == 3


# -- expiry --------------------------------------------------------------------------------------


def test_a_conversation_ends_when_its_time_is_over(store: Store) -> None:
    """Counted from the last append; afterwards it is not there, and begins anew."""
    chat = store.conversation("alice", ttl=0.1)
    chat.append(user("a"))
    assert chat.info().expires_at is not None
    time.sleep(0.15)
    assert chat.messages() == []
    assert list(store.conversations()) == []
    with pytest.raises(ConversationNotFound, match="expired"):
        chat.info()
    assert chat.append(user("b")) == 1
    assert chat.messages() == [user("b")]


def test_every_append_prolongs_it(store: Store) -> None:
    """A conversation that goes on does not end in the middle."""
    chat = store.conversation("alice", ttl=60)
    chat.append(user("a"))
    first = chat.info().expires_at
    time.sleep(0.002)
    chat.append(user("b"))
    second = chat.info().expires_at
    assert first is not None
    assert second is not None
    assert first < second


def test_expire_sets_and_takes_away_the_end(place: Place, store: Store) -> None:
    """A user asks to be forgotten tomorrow, or to be kept after all."""
    chat = store.conversation("alice")
    with pytest.raises(ConversationNotFound):
        chat.expire(60)
    chat.append(user("a"))
    chat.expire(0.1)
    place.open().conversation("alice").append(user("b"))
    assert chat.info().expires_at is not None
    chat.expire(None)
    chat.append(user("c"))
    time.sleep(0.15)
    assert chat.info().expires_at is None
    assert chat.length() == 3


def test_sweeping_frees_the_room_of_what_has_expired(store: Store) -> None:
    """And of nothing else."""
    store.conversation("gone", ttl=0.05).append(user("a"))
    store.conversation("stays").append(user("a"))
    time.sleep(0.1)
    assert store.sweep() == 1
    assert store.sweep() == 0
    assert [chat.id for chat in store.conversations()] == ["stays"]


# -- forks ---------------------------------------------------------------------------------------


def test_a_fork_begins_with_the_same_messages_and_is_independent(store: Store) -> None:
    """Trying another way does not touch the first one."""
    chat = store.conversation("alice", labels={"team": "red"})
    chat.append(*numbered(3))
    fork = chat.fork("alice-b")
    assert fork.id == "alice-b"
    assert fork.messages() == store.conversation("alice-b").messages() == numbered(3)
    assert fork.info().labels == {"team": "red"}
    fork.append(user("other way"))
    chat.append(user("first way"))
    assert [chat.last(), fork.last()] == [user("first way"), user("other way")]
    assert (chat.length(), fork.length()) == (4, 4)


def test_a_fork_begins_at_any_point(store: Store) -> None:
    """Also within an append of several messages."""
    chat = store.conversation("alice")
    chat.append(user("1"))
    chat.append(user("2"), user("3"), user("4"))
    chat.append(user("5"))
    for at in range(1, 6):
        assert chat.fork(f"at-{at}", at=at).messages() == numbered(at)
    assert chat.fork("beyond", at=99).messages() == numbered(5)
    for at in (0, -1):
        with pytest.raises(InvalidMessage, match="no messages up to"):
            chat.fork("empty", at=at)
    with pytest.raises(ConversationNotFound):
        store.conversation("nobody").fork("somebody")
    assert store.conversation("empty").messages() == []


@pytest.mark.parametrize("length", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 110])
def test_a_fork_may_be_long(store: Store, length: int) -> None:
    """It is written in chunks, and read as one."""
    chat = store.conversation("alice")
    chat.append(*numbered(length))
    fork = chat.fork("long")
    assert fork.messages() == numbered(length)
    assert fork.messages(last=40) == numbered(length)[-40:]
    fork.append(user("more"))
    assert fork.window(max_messages=3) == [*numbered(length)[-2:], user("more")]
    assert fork.length() == length + 1


def test_a_fork_of_large_messages_stays_under_the_limit(place: Place) -> None:
    """What could be appended can be forked."""
    chat = place.open().conversation("alice")
    large = [user(letter * 3_000_000) for letter in "abcdefg"]
    for message in large:
        chat.append(message)
    assert chat.fork("other").messages() == large


def test_a_fork_can_be_forked(store: Store) -> None:
    """And that one too, at a point before, in or behind what was copied."""
    chat = store.conversation("a")
    chat.append(*numbered(50))
    fork = chat.fork("b", at=40)
    fork.append(user("41"), user("42"))
    assert fork.fork("c").messages() == numbered(42)
    assert fork.fork("d", at=20).messages() == numbered(20)
    assert fork.fork("c-2").fork("e").messages() == numbered(42)


def test_a_fork_keeps_the_end_that_was_set(place: Place) -> None:
    """What must be forgotten is not kept for ever in a copy."""
    chat = place.open(ttl=50).conversation("alice")
    chat.append(user("a"))
    assert chat.fork("b").info().expires_at is not None
    elsewhere = place.open().conversation("alice").fork("c")
    elsewhere.append(user("b"))
    assert elsewhere.info().expires_at is not None


def test_a_fork_never_writes_over_another_conversation(store: Store) -> None:
    """Nor over the one it came from."""
    chat, other = store.conversation("alice"), store.conversation("bob")
    chat.append(*numbered(40))
    other.append(user("mine"))
    for taken in ("bob", "alice"):
        with pytest.raises(Conflict, match=f"There is a conversation '{taken}' already"):
            chat.fork(taken)
    assert other.messages() == [user("mine")]
    assert chat.messages() == numbered(40)


def test_the_same_fork_again_changes_nothing(store: Store) -> None:
    """A retry is harmless; another fork under that id is refused."""
    chat = store.conversation("alice")
    chat.append(*numbered(40))
    chat.fork("b", at=35).append(user("more"))
    assert chat.fork("b", at=35).messages() == [*numbered(35), user("more")]
    with pytest.raises(Conflict, match="already"):
        chat.fork("b", at=36)
    assert chat.fork("b", at=35).length() == 36


def cut_short(store: Store) -> None:
    """What a fork of "alice" to "b" has written when it dies after its first chunk."""
    chat = store.conversation("alice")
    chat.append(system("s"), *numbered(69))
    first = [(COPIED, message) for message in chat.messages()[:CHUNK]]
    store.journal("conversation", "b").append(*first, id="fork-0", expect=0, status=FORKING)


def test_a_fork_cut_short_has_no_messages(store: Store) -> None:
    """Half of a history would pass for all of it."""
    cut_short(store)
    fork = store.conversation("b")
    assert fork.messages() == fork.messages(last=5) == fork.window() == []
    assert (fork.last(), fork.length()) == (None, 0)


def test_a_fork_cut_short_is_finished_by_the_same_call(store: Store) -> None:
    """Nothing is doubled."""
    cut_short(store)
    fork = store.conversation("alice").fork("b")
    assert fork.messages() == [system("s"), *numbered(69)]
    assert fork.window(max_messages=2) == [system("s"), user("69")]


def test_a_fork_cut_short_can_be_used_without_it(store: Store) -> None:
    """Who writes there regardless begins with nothing, and keeps what was written."""
    cut_short(store)
    fork = store.conversation("b")
    fork.append(user("hello"))
    assert fork.messages() == fork.window() == fork.messages(last=3) == [user("hello")]
    with pytest.raises(Conflict, match="already"):
        store.conversation("alice").fork("b")
    fork.clear()
    fork.append(user("again"))
    assert fork.messages() == fork.window() == [user("again")]


# -- clearing and deleting -------------------------------------------------------------------------


def test_clear_starts_afresh(place: Place, store: Store) -> None:
    """The messages are gone; labels stay, and positions go on."""
    chat = store.conversation("alice", labels={"team": "red"})
    chat.append(system("s"), *numbered(5))
    size = chat.info().size
    chat.clear()
    assert chat.messages() == chat.window() == chat.messages(last=3) == []
    assert (chat.last(), chat.length()) == (None, 0)
    assert chat.info().size < size
    assert chat.append(user("new")) > 6
    again = place.open().conversation("alice")
    assert again.messages() == again.window() == [user("new")]
    assert again.info().labels == {"team": "red"}
    again.clear()
    again.clear()
    assert chat.messages() == []
    store.conversation("nobody").clear()
    assert [info.id for info in store.conversations()] == ["alice"]


def test_clear_is_a_change_that_a_writer_notices(store: Store) -> None:
    """An answer to what was cleared does not become the first thing said."""
    chat = store.conversation("alice")
    position = chat.append(user("Question"))
    chat.clear()
    with pytest.raises(Conflict):
        chat.append(bot("Answer"), expect=position)


def test_clear_counts_from_where_it_came_to_pass(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer who gets in just before it is cleared too, and nothing of that shows up later."""
    chat, backend = store.conversation("alice"), store.backend
    chat.append(system("s"), *numbered(3))
    heads = []

    def head(key: Key) -> Head | None:
        heads.append(find(key))
        if len(heads) == 1:
            body = Codec().encode([("message", system("meanwhile"))])
            backend.append(Append(key=key, body=body, count=1))
        return heads[-1]

    find = backend.head
    monkeypatch.setattr(backend, "head", head)
    chat.clear()
    assert len(heads) == 2
    assert chat.messages() == chat.window() == []


def test_delete_removes_all_of_it(store: Store) -> None:
    """And says whether there was anything."""
    chat = store.conversation("alice", labels={"team": "red"})
    assert chat.delete() is False
    chat.append(*numbered(3), id="turn")
    assert chat.delete() is True
    assert chat.delete() is False
    assert chat.messages() == []
    assert list(store.conversations()) == []
    assert store.conversation("alice").append(user("new"), id="turn") == 1
    assert store.conversation("alice").info().labels == {}


def test_many_threads_lose_nothing(tmp_path: Any) -> None:
    """Sixteen writers on one conversation: all of it is there, once, and each one's in order."""
    with holdfast.open(tmp_path / "chat.db") as store:
        chat = store.conversation("alice")

        def write(writer: int) -> None:
            for n in range(20):
                chat.append({**user(str(n)), "writer": writer}, {**bot(str(n)), "writer": writer})

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        messages = chat.messages()
    assert len(messages) == 16 * 20 * 2
    for first, second in zip(messages[::2], messages[1::2], strict=True):
        assert (first["role"], second["role"]) == ("user", "assistant")
        assert (first["content"], first["writer"]) == (second["content"], second["writer"])
    for writer in range(16):
        mine = [m["content"] for m in messages[::2] if m["writer"] == writer]
        assert mine == [str(n) for n in range(20)]


def test_a_turn_with_tools_is_stored_as_it_is(store: Store) -> None:
    """Content may be null; ids stay as the provider gave them."""
    turn = [user("Weather?"), call("a", "b"), result("a"), result("b"), bot("Sunny.")]
    chat = store.conversation("alice")
    chat.append(*turn)
    assert chat.messages() == chat.window() == turn
