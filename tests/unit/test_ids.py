"""Ids: what can be one is the same for tenants, conversations, tasks, steps and labels."""

import enum
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet import LimpetError, Store
from limpet.core.ids import MAX_ID_BYTES, MAX_LABEL_BYTES, MAX_TENANT_BYTES, check_id, check_seconds
from limpet.errors import InvalidId
from tests.support import stores
from tests.support.stores import Place, user

place, store = stores.place, stores.store

GOOD = [
    "a",
    "user@example.com",
    "with space inside",
    "Zoë",
    "日本語",
    "🧵",
    "👩\u200d👩\u200d👧",  # three people, joined
    "a/../b",
    "../../etc/passwd",
    ".",
    "C:\\agents",
    "'; DROP TABLE limpet_journals; --",
    "%00",
    "%",
    "_",
    "*",
    "a:b#2",
    "#2",
    "[1]",
    "{}",
    "\ufeffbom",
    "e\u0301",  # not the same as é
    "x" * MAX_LABEL_BYTES,
]

BAD: list[Any] = [
    "",
    " ",
    " a",
    "a ",
    "a\t",
    "\u00a0a",
    "a\u3000",
    "a\nb",
    "a\x00b",
    "\x1b[31m",
    "a\x7fb",
    "a\x85b",
    "a\u2028b",
    "a\u2029b",
    "a\ud800b",
    "\udcff",
    "a\ufffeb",
    "a\uffffb",
    "a\U0010ffffb",
    "x" * (MAX_ID_BYTES + 1),
    "é" * (MAX_ID_BYTES // 2 + 1),
    None,
    5,
    b"a",
    ["a"],
]


def test_a_good_id_finds_its_own_and_nothing_else(place: Place, store: Store) -> None:
    """Paths, SQL, patterns and scripts of all kinds are only names here."""
    for id_ in GOOD:
        store.conversation(id_).append(user(id_))
    for id_ in GOOD:
        assert store.conversation(id_).messages() == [user(id_)]
        found = [chat.id for chat in store.conversations(prefix=id_)]
        assert found == sorted(other for other in GOOD if other.startswith(id_))
    assert [chat.id for chat in store.conversations()] == sorted(GOOD, key=str.encode)
    assert not list(place.path.parent.glob("[!m]*"))


def test_a_good_id_is_one_everywhere(store: Store) -> None:
    """One rule, not one a model."""
    for id_ in GOOD:
        with store.task(id_, "goal", agent=id_[:32], labels={id_: id_}) as task:
            task.plan([id_])
            assert [step.run(lambda: 1) for step in task.remaining()] == [1]
            assert task.step(f"{id_}!", lambda: 2) == 2
        assert [found.id for found in store.tasks(labels={id_: id_})] == [id_]
        store.conversation(id_, labels={id_: ""}).append(user("hello"), id=id_)
        store.conversation(id_).label(**{id_: id_})
        assert [found.labels for found in store.conversations(labels={id_: id_})] == [{id_: id_}]


def test_a_good_id_can_be_a_tenant(place: Place) -> None:
    """Some of them are narrower, and the limit is another."""
    for id_ in GOOD[:-1]:
        place.open(tenant=id_).conversation("chat").append(user(id_))
    for id_ in GOOD[:-1]:
        assert place.open(tenant=id_).conversation("chat").messages() == [user(id_)]
    with pytest.raises(InvalidId, match="cannot be a tenant: it has 129 bytes, and 128"):
        place.open(tenant="x" * (MAX_TENANT_BYTES + 1))


REFUSALS: list[Callable[[Store, Any], object]] = [
    lambda store, bad: store.conversation(bad),
    lambda store, bad: store.task(bad, "goal"),
    lambda store, bad: store.task("task", "goal", agent=bad or ""),
    lambda store, bad: store.journal("note", bad),
    lambda store, bad: store.journal(bad, "id"),
    lambda store, bad: store.conversation("chat", labels={bad: "x"} if bad != ["a"] else {5: "x"}),  # type: ignore[dict-item]
    lambda store, bad: store.conversation("chat", labels={"x": bad or " "}),
    lambda store, bad: store.task("task", "goal", labels={"x": bad or " "}),
    lambda store, bad: store.conversation("chat").append(user("x"), id=bad or ""),
    lambda store, bad: store.conversation("chat").label(x=bad or " "),
    lambda store, bad: store.conversation("source").fork(bad),
]


def chat_with_one(store: Store) -> Any:
    """A conversation with something to fork."""
    chat = store.conversation("source")
    chat.append(user("x"))
    return chat


@pytest.mark.parametrize("refused", REFUSALS)
def test_a_bad_id_is_refused_everywhere_before_anything_is_written(
    store: Store, refused: Callable[[Store, Any], object]
) -> None:
    """What one place takes and another refuses would be lost between them."""
    chat_with_one(store)
    for bad in BAD:
        with pytest.raises(InvalidId):
            refused(store, bad)
    assert [chat.id for chat in store.conversations()] == ["source"]
    assert list(store.tasks()) == []


def test_a_bad_tenant_is_refused(place: Place) -> None:
    """As any other id."""
    for bad in BAD:
        with pytest.raises(InvalidId):
            place.open(tenant=bad)


def test_a_bad_step_name_is_refused_before_the_step_runs(store: Store) -> None:
    """Afterwards would be too late."""
    with store.task("task", "goal") as task:
        for bad in BAD:
            with pytest.raises(InvalidId):
                task.step(bad, lambda: pytest.fail("it ran"))
            if isinstance(bad, str):
                with pytest.raises(InvalidId):
                    task.plan([bad])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("", "'' cannot be a conversation id: it is empty"),
        (" a", "has space at an end"),
        ("a\x00b", r"it contains '\\x00'"),
        ("x" * 600, "it has 600 bytes, and 512 is the most. Use a hash of it."),
        (5, "A conversation id must be text, not int"),
    ],
)
def test_the_error_says_what_is_wrong_with_it(store: Store, bad: Any, message: str) -> None:
    """And what to do, where that is not plain."""
    with pytest.raises(InvalidId, match=message) as caught:
        store.conversation(bad)
    assert isinstance(caught.value, (LimpetError, ValueError))


@pytest.mark.parametrize("kind", ["Note", "no te", "", "1st", "x" * 33, "näh", "a/b", None, 5])
def test_a_kind_is_a_short_plain_word(store: Store, kind: Any) -> None:
    """Kinds are the program's, not the user's."""
    with pytest.raises(InvalidId, match="kind"):
        store.journal(kind, "id")


@pytest.mark.parametrize("bad", [["secret"] * 99, "x" * 999 + " ", "x" * 999, "x\n" * 99])
def test_the_error_repeats_only_the_beginning_of_what_was_given(store: Store, bad: Any) -> None:
    """It may be a whole message, given in the wrong place."""
    with pytest.raises(InvalidId) as caught:
        store.conversation(bad)
    assert len(str(caught.value)) < 250


def test_an_enum_of_text_can_be_an_id(store: Store) -> None:
    """It is text, and it is stored as that."""
    known = enum.StrEnum("known", {"ALICE": "alice"})
    store.conversation(known.ALICE).append(user("hello"))
    assert store.conversation("alice").messages() == [user("hello")]


@given(st.text())
def test_any_text_is_either_a_good_id_or_refused(text: str) -> None:
    """No other error, and a good one is text that any backend can hold."""
    try:
        check_id(text, "id")
    except InvalidId:
        pass
    else:
        assert text == text.strip() != ""
        assert len(text.encode()) <= MAX_ID_BYTES
        assert not any(ord(char) < 0x20 for char in text)


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, 1e30, "60", None, timedelta(1)])
def test_a_time_that_no_clock_can_add_is_refused(store: Store, seconds: Any) -> None:
    """A lease or a ttl of nothing would lose what is under it at once."""
    with pytest.raises(ValueError, match="A lease is a number of seconds over 0"):
        store.task("task", "goal", lease=seconds)
    if seconds is not None:
        with pytest.raises(ValueError, match="A ttl is a number of seconds over 0"):
            store.task("task", "goal", ttl=seconds)
        with pytest.raises(ValueError, match="A ttl is a number of seconds over 0"):
            store.conversation("chat", ttl=seconds)
        with pytest.raises(ValueError, match="A ttl is a number of seconds over 0"):
            chat_with_one(store).expire(seconds)
    assert check_seconds(0.001, "ttl") == 0.001
