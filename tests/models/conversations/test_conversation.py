"""Conversations: what was said is kept, in one order, once, and as long as it should be."""

import itertools
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

import limpet
from limpet import Codec, Conflict, NotStorable, Store, TooLarge
from limpet.backends.contract import Append, Appended, Head, Key
from limpet.conversations.forks import CHUNK
from limpet.conversations.transcript import COPIED, ConversationMeta
from limpet.errors import ConversationNotFound, IdReused, InvalidMessage, WindowTooSmall, WrongType
from tests.support import stores
from tests.support.paths import ROOT
from tests.support.stores import Place, bot, call, result, system, user

place, store = stores.place, stores.store


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


ODD = [
    ({"role": "usr", "content": "Hi"}, "the role 'usr'. Did you mean 'user'"),
    ({"role": "User", "content": "Hi"}, "the role 'User'. Did you mean 'user'"),
    ({"role": "model", "parts": []}, r"the role 'model'. Roles are assistant, developer,"),
    ({"role": "user", "content": 3}, "content of type int. It is text, or a list of parts"),
    ({"role": "user", "content": True}, "content of type bool"),
    ({"role": "user", "content": {"type": "text", "text": "Hi"}}, "content of type dict"),
    ({"role": "assistant", "content": ["Hi"]}, "content whose part 1 is of type str"),
    ({"role": "tool", "tool_call_id": "c", "content": [{"type": "text"}, None]}, "content whose"),
    ({"role": "user", "content": [{"text": "Hi"}]}, "content whose part 1 has no 'type'"),
    ({"type": "message", "role": "bot", "content": "Hi"}, "the role 'bot'"),
]


@pytest.mark.parametrize(("odd", "why"), ODD)
def test_a_role_or_content_that_no_provider_takes_is_refused_unless_it_is_meant(
    store: Store, odd: dict[str, Any], why: str
) -> None:
    """A provider would refuse the whole history for it, long after."""
    chat = store.conversation("alice")
    with pytest.raises(InvalidMessage, match=f"Message 2 has {why}.*check=False"):
        chat.append(user("good"), odd)
    with pytest.raises(InvalidMessage, match="Message 1 has"):
        chat.replace(odd)
    with pytest.raises(InvalidMessage, match="Message 1 has"):
        chat.append(odd, pin=True)
    assert chat.messages() == []
    chat.append(odd, check=False)
    assert chat.messages() == [odd]
    chat.replace(odd, odd, check=False)
    assert chat.messages() == [odd, odd]


def test_what_the_three_shapes_have_is_taken(store: Store) -> None:
    """Messages of OpenAI's two APIs and of Anthropic's, items of any type, objects for parts."""
    text, call = {"type": "text", "text": "Hi"}, {"id": "c1", "type": "function", "function": {}}
    good: list[Any] = [
        *({"role": role, "content": "Hi"} for role in ("system", "developer", "user", "assistant")),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [text]},
        {"role": "function", "name": "now", "content": "12:00"},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}, text]},
        {"role": "user", "content": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ""}]},
        {"type": "reasoning", "content": 3, "summary": []},
        {"type": "invented", "role": "whoever"},
    ]
    chat = store.conversation("alice")
    chat.append(*good)
    chat.append({"role": "assistant", "content": [Turn("user", "an object")]})
    assert chat.messages()[:-1] == good


def test_several_messages_are_stored_all_or_none(store: Store) -> None:
    """A turn is never half there, and the error says which message was the bad one."""
    chat = store.conversation("alice")
    chat.append(user("before"))
    with pytest.raises(NotStorable, match=r"^message 2\['content'\]\['x'\] is an object, "):
        chat.append(user("good"), {"role": "user", "content": {"x": object()}}, check=False)
    with pytest.raises(NotStorable, match=r"^message\['content'\] is an object, "):
        chat.append({"role": "user", "content": object()})
    with pytest.raises(NotStorable, match=r"^message 1 is an object, "):
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


@pytest.mark.parametrize("count", [16, 17, 33, 1000, 5000])
def test_many_messages_in_one_append_are_one_act(store: Store, count: int) -> None:
    """However they lie: one position, one id, all or none, and windows as of single ones."""
    chat, messages = store.conversation("alice"), numbered(count)
    chat.append(system("Be brief."))
    assert chat.append(*messages, id="once", expect=1) == count + 1
    assert chat.append(*messages, id="once", expect=1) == count + 1
    with pytest.raises(IdReused):
        chat.append(*messages[:-1], user("another"), id="once")
    with pytest.raises(Conflict):
        chat.append(*messages, expect=count)
    assert chat.messages() == [system("Be brief."), *messages]
    assert chat.window(max_messages=4) == [system("Be brief."), *messages[-3:]]
    assert chat.replace(*messages[::-1]) == 2 * count + 2
    assert chat.messages() == messages[::-1]


def test_what_is_wrong_with_one_of_many_messages_is_said_of_that_one(store: Store) -> None:
    """By its number among all of them, and nothing is stored; the limit is one for all of them."""
    chat = store.conversation("alice")
    with pytest.raises(NotStorable, match=r"message 41\['content'\]"):
        chat.append(*numbered(40), user(object()), user("more"))  # type: ignore[arg-type]
    with limpet.open("memory:", codec=Codec(max_bytes=3_000)) as small:
        with pytest.raises(TooLarge):
            small.conversation("alice").append(*numbered(200))
        assert small.conversation("alice").messages() == []
    assert chat.messages() == []


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
    chat = store.conversation("alice", ttl=60)
    chat.append(user("a"))
    assert chat.info().expires_at is not None
    store.conversation("alice").expire(0.001)
    time.sleep(0.01)
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
    chat.expire(60)
    place.open().conversation("alice").append(user("b"))
    assert chat.info().expires_at is not None
    chat.expire(None)
    chat.append(user("c"))
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


@pytest.mark.slow
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
    meta = ConversationMeta(forking=True, others=CHUNK).encode()
    store.journal("conversation", "b").append(*first, id="fork-0", expect=0, meta=meta)


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


@pytest.mark.slow
def test_many_threads_lose_nothing(tmp_path: Any) -> None:
    """Sixteen writers on one conversation: all of it is there, once, and each one's in order."""
    with limpet.open(tmp_path / "chat.db") as store:
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


def test_an_append_goes_a_short_way_to_the_disk(tmp_path: Path) -> None:
    """Whoever follows it through the code sees few calls, in few files."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_filename)

    with limpet.open(tmp_path / "chat.db") as store:
        chat = store.conversation("alice")
        chat.append(user("Hello."))
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            chat.append(user("Are you there?"))
        finally:
            sys.setprofile(before)
    assert len(calls) <= 36
    assert len(set(calls)) <= 12


def test_a_turn_with_tools_is_stored_as_it_is(store: Store) -> None:
    """Content may be null; ids stay as the provider gave them."""
    turn = [user("Weather?"), call("a", "b"), result("a"), result("b"), bot("Sunny.")]
    chat = store.conversation("alice")
    chat.append(*turn)
    assert chat.messages() == chat.window() == turn


# -- taking back and replacing ---------------------------------------------------------------------


def test_pop_takes_back_the_newest_message(place: Place, store: Store) -> None:
    """One after the other, over appends of any size; what was taken back stays in the journal."""
    chat = store.conversation("alice")
    assert chat.pop() is None
    chat.append(user("1"))
    chat.append(user("2"), user("3"))
    assert chat.pop() == user("3")
    chat.append(user("4"))
    assert (chat.pop(), chat.pop()) == (user("4"), user("2"))
    again = place.open().conversation("alice")
    assert again.messages() == again.window() == again.messages(last=5) == [user("1")]
    assert (again.length(), again.last()) == (1, user("1"))
    assert again.messages(everything=True) == numbered(4)
    assert (chat.pop(), chat.pop()) == (user("1"), None)
    chat.append(user("5"))
    assert again.messages() == again.window() == again.messages(last=2) == [user("5")]
    assert again.messages(last=2, everything=True) == [user("4"), user("5")]


def test_pop_knows_the_system_messages_in_front(store: Store) -> None:
    """They are read from the beginning, where nothing else tells that they are gone."""
    chat = store.conversation("alice")
    chat.append(system("a"), system("b"), user("1"))
    for expected in (user("1"), system("b")):
        assert chat.pop() == expected
    assert chat.window() == [system("a")]
    chat.append(system("c"), user("2"))
    chat.append(*numbered(50))
    assert chat.window(max_messages=4) == [system("a"), system("c"), user("49"), user("50")]
    for _ in range(53):
        chat.pop()
    assert (chat.window(), chat.messages(), chat.last()) == ([], [], None)
    chat.append(user("first"), system("later"), user("last"))
    assert chat.window(max_messages=1) == [user("last")]


def test_many_undone_beginnings_leave_a_short_mark(store: Store) -> None:
    """A chat in which the user takes back the first question again and again."""
    chat = store.conversation("alice")
    chat.append(system("s"))
    for n in range(30):
        chat.append(user(str(n)))
        assert chat.pop() == user(str(n))
    head = store.journal("conversation", "alice").head()
    assert head is not None
    assert head.status is None
    assert ConversationMeta.of(head) == ConversationMeta(gaps=((2, 61),), others=60)
    chat.append(system("t"), user("x"))
    assert chat.window() == [system("s"), system("t"), user("x")]


def test_two_who_pop_get_different_messages(tmp_path: Any) -> None:
    """Each message is taken back once, by one of them."""
    with limpet.open(tmp_path / "chat.db") as store:
        store.conversation("alice").append(*numbered(40))
        popped: list[Any] = []

        def pop() -> None:
            chat = store.conversation("alice")
            while (message := chat.pop()) is not None:
                popped.append(message)

        threads = [threading.Thread(target=pop) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(int(message["content"]) for message in popped) == list(range(1, 41))


def test_replace_puts_messages_in_place_of_all_others(place: Place, store: Store) -> None:
    """In one act, as a framework's own compaction wants it; nothing is deleted."""
    chat = store.conversation("alice", labels={"team": "red"})
    chat.append(system("old"), *numbered(5))
    chat.pin(3)
    position = chat.replace(system("new"), user("6"))
    again = place.open().conversation("alice")
    for found in (
        again.messages(),
        again.window(),
        again.messages(last=9),
        again.fork("b").window(),
    ):
        assert found == [system("new"), user("6")]
    assert again.messages(everything=True) == [system("old"), *numbered(6)[:5], *found]
    assert (again.pinned(), again.info().labels) == ([], {"team": "red"})
    assert again.append(user("7"), expect=position) == position + 1
    with pytest.raises(Conflict):
        chat.replace(user("x"), expect=position)
    with pytest.raises(InvalidMessage, match="Message 2 is a str"):
        chat.replace(user("x"), "y")
    assert again.messages() == [system("new"), user("6"), user("7")]
    chat.replace()
    assert (chat.messages(), chat.window(), chat.pop()) == ([], [], None)


def test_a_retried_replace_does_nothing(store: Store) -> None:
    """Also when something was said since."""
    chat = store.conversation("alice")
    chat.append(*numbered(5))
    position = chat.replace(user("short"), id="compaction-1")
    chat.append(user("more"))
    assert chat.replace(user("short"), id="compaction-1") == position
    assert chat.messages() == [user("short"), user("more")]
    with pytest.raises(IdReused):
        chat.replace(user("other"), id="compaction-1")


def test_what_was_cleared_is_not_among_everything(store: Store) -> None:
    """Clearing is meant to forget."""
    chat = store.conversation("alice")
    chat.append(user("secret"))
    store.backend.compact = lambda *_: 0  # type: ignore[method-assign]
    chat.clear()
    chat.append(user("1"))
    assert chat.messages(everything=True) == [user("1")]


def test_items_have_their_positions(store: Store) -> None:
    """By which messages are pinned, forked at and looked up."""
    chat = store.conversation("alice")
    assert chat.items() == []
    chat.append(user("1"), user("2"))
    chat.pop()
    chat.append(user("3"))
    assert chat.items() == [(1, user("1")), (4, user("3"))]
    assert chat.items(after=1) == [(4, user("3"))]
    assert chat.fork("b", at=1).items() == [(1, user("1"))]
    assert chat.fork("c").messages() == [user("1"), user("3")]


# -- pins ------------------------------------------------------------------------------------------


def test_a_pinned_append_is_idempotent_and_conditional(store: Store) -> None:
    """As every append is."""
    chat = store.conversation("alice")
    position = chat.append(user("rule 1"), user("rule 2"), pin=True, id="rules", expect=0)
    chat.append(*numbered(5))
    assert chat.append(user("rule 1"), user("rule 2"), pin=True, id="rules", expect=0) == position
    assert [message for _, message in chat.pinned()] == [user("rule 1"), user("rule 2")]
    assert chat.items()[:2] == chat.pinned()
    with pytest.raises(Conflict):
        chat.append(user("rule 3"), pin=True, expect=0)
    assert chat.window(max_messages=3) == [user("rule 1"), user("rule 2"), user("5")]


def test_what_cannot_be_pinned_is_refused(store: Store) -> None:
    """Half of a tool call, what is not there, and too much of it."""
    chat = store.conversation("alice")
    chat.append(user("1"), call("a"), result("a"))
    for position in (2, 3):
        with pytest.raises(InvalidMessage, match="cannot be pinned"):
            chat.pin(position)
    with pytest.raises(InvalidMessage, match="cannot be pinned"):
        chat.append(user("x"), call("b"), pin=True)
    with pytest.raises(InvalidMessage, match=r"has no message at 7\. items\(\)"):
        chat.pin(7)
    with pytest.raises(InvalidMessage, match="has room for 50 pinned messages"):
        chat.append(*numbered(51), pin=True)
    chat.pin()
    chat.unpin(1)
    assert (chat.pinned(), chat.length()) == ([], 3)
    store.conversation("nobody").unpin(1)
    assert [info.id for info in store.conversations()] == ["alice"]


def test_a_popped_message_is_no_longer_pinned(store: Store) -> None:
    """Taken back is taken back."""
    chat = store.conversation("alice")
    chat.append(user("1"), user("2"))
    chat.append(user("pinned"), pin=True)
    assert chat.pop() == user("pinned")
    chat.append(user("3"))
    assert (chat.pinned(), chat.window(max_messages=1)) == ([], [user("3")])


def test_what_is_popped_just_now_is_not_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would stay in every window, though it was taken back; an append meanwhile does no harm."""
    with limpet.open(tmp_path / "a.db") as one, limpet.open(tmp_path / "a.db") as two:
        chat, other = one.conversation("alice"), two.conversation("alice")
        chat.append(user("1"), user("2"))
        append = one.backend.append

        def meanwhile(change: Callable[[], object]) -> None:
            """Let *change* come between what is looked at and what is written."""

            def late(request: Append) -> Appended:
                monkeypatch.setattr(one.backend, "append", append)
                change()
                return append(request)

            monkeypatch.setattr(one.backend, "append", late)

        meanwhile(other.pop)
        with pytest.raises(InvalidMessage, match="has no message at 2"):
            chat.pin(2)
        assert chat.pinned() == []
        meanwhile(lambda: other.append(user("3")))
        chat.pin(1)
        assert chat.pinned() == [(1, user("1"))]


def test_a_fork_keeps_its_pins(store: Store) -> None:
    """At their new positions."""
    chat = store.conversation("alice")
    chat.append(user("1"))
    chat.append(user("rule"), pin=True)
    chat.append(*numbered(60))
    fork = chat.fork("b")
    assert fork.pinned() == [(2, user("rule"))]
    assert fork.window(max_messages=2) == [user("rule"), user("60")]
    assert chat.fork("c", at=1).pinned() == []


# -- anything, in any order ------------------------------------------------------------------------


class Model:
    """What a conversation should be, kept in lists."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.everything: list[Any] = []
        self.number = 0

    def new(self, count: int, kind: str) -> list[Any]:
        """As many messages that nobody has said."""
        self.number += count
        make = system if kind == "system" else user
        return [make(f"{self.number - n}") for n in range(count)]


CHANGES = ["append", "append", "append", "system", "pop", "pop", "replace", "clear", "pin", "fork"]


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 3)), max_size=25))
def test_any_changes_leave_what_they_should(changes: list[tuple[str, int]]) -> None:
    """Read forwards, backwards, in part, and as a window: always the same conversation."""
    model = Model()
    with limpet.open("memory:") as store:
        chat = store.conversation("alice")
        for number, (change, count) in enumerate(changes):
            chat = changed(chat, model, change, count, f"fork-{number}")
            said = model.messages
            assert chat.messages() == said
            assert chat.messages(everything=True) == model.everything
            assert [message for _, message in chat.items()] == said
            assert chat.length() == len(said)
            assert chat.messages(last=3) == said[max(0, len(said) - 3) :]
            assert chat.window(keep_system=False) == chat.window() == said
            assert windowed(chat) == short(said, chat.pinned())


def changed(chat: Any, model: Model, change: str, count: int, id_: str) -> Any:
    """Do the same to both; returns the conversation to go on with."""
    if change in ("append", "system") and count:
        new = model.new(count, change)
        chat.append(*new)
        model.messages += new
        model.everything += new
    elif change == "pop":
        assert chat.pop() == (model.messages.pop() if model.messages else None)
    elif change == "replace":
        new = model.new(count, "append")
        chat.replace(*new)
        model.messages = list(new)
        model.everything += new
    elif change == "clear" and model.everything:
        chat.clear()
        model.messages, model.everything = [], []
    elif change == "pin" and model.messages:
        chat.pin(chat.items()[count % len(model.messages)][0])
    elif change == "fork" and model.messages:
        model.everything = list(model.messages)
        return chat.fork(id_)
    return chat


def windowed(chat: Any) -> Any:
    """A short window, or what is wrong with it."""
    try:
        return chat.window(max_messages=4)
    except WindowTooSmall:
        return None


def short(said: list[Any], pinned: list[Any]) -> list[Any] | None:
    """The plain way: what is in front, and as many of the newest as four leave room for."""
    opening = list(itertools.takewhile(lambda m: m["role"] == "system", said))
    pins = [message for _, message in pinned if message not in opening]
    rest = said[len(opening) :]
    for start in range(len(rest) + 1):
        tail = rest[start:]
        front = opening + [pin for pin in pins if pin not in tail]
        if len(front + tail) <= 4:
            return None if rest and not tail else front + tail
    return None


# -- the page about it -----------------------------------------------------------------------------


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    """All of them, in one program, as somebody would who types them in."""
    page = (ROOT / "docs" / "conversations.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "all.py").write_text("\n".join(blocks), "utf-8")
    command = [sys.executable, "-W", "error", "all.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for said in re.findall(r"print\(.*  # (.*)", "\n".join(blocks)):
        assert all(part.strip() in done.stdout for part in said.split("…"))
    assert "<Counter o200k_base> True" in done.stdout
