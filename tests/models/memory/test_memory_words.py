"""Tests of what memories are found by: words of all languages, parts of them, and typing errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet.core.vocabulary import distance
from tests.support import stores

if TYPE_CHECKING:
    from pathlib import Path

    from limpet import Memory

cache = stores.cache

#: What is remembered, in one namespace.
STORED = [
    "Die Krankenversicherung kostet 300 Euro",
    "Ada hat eine Haftpflicht",
    "The carrier pigeon arrived at noon",
    "We receive the invoice on Fridays",
    "他在东京大学工作",
    "서울에서 회의가 있다",
    "ฉันทำประกันสุขภาพแล้ว",
    "मुझे हिन्दी पसंद है",
    "Call getUserName before save_user_settings",
    "The licence costs 12,500 a year",
    "🍕 on Fridays, 🍣 on Mondays",
    "See https://docs.example.org/setup/linux for v2.3.1",
    "Mr Bjørnstjerne plays chess",
    "Abends gibt es Kräutertee",
]

#: What is asked, which of them is first, and what it was found by instead.
ASKED: list[tuple[str, str | None, tuple[tuple[str, str], ...]]] = [
    ("Versicherung", STORED[0], (("versicherung", "krankenversicherung"),)),
    ("Haftpflichtversicherung", STORED[1], (("haftpflichtversicherung", "haftpflicht"),)),
    ("Krankenverischerung", STORED[0], (("krankenverischerung", "krankenversicherung"),)),
    ("Krankenversicherung", STORED[0], ()),
    ("the pidgeon", STORED[2], (("pidgeon", "pigeon"),)),
    ("when do we recieve it?", STORED[3], (("recieve", "receive"),)),
    ("Bjørnstjarne", STORED[12], (("Bjørnstjarne", "bjørnstjerne"),)),
    ("kräutertea", STORED[13], (("kräutertea", "krautertee"),)),
    ("东京大学在哪里", STORED[4], ()),
    ("서울 회의", STORED[5], ()),
    ("ประกันสุขภาพ", STORED[6], ()),
    ("हिन्दी", STORED[7], ()),
    ("get_user_name", STORED[8], ()),
    ("saveUserSettings", STORED[8], ()),
    ("settings", STORED[8], ()),
    ("12500", STORED[9], ()),
    ("🍣", STORED[10], ()),
    ("docs.example.org", STORED[11], ()),
    ("2.3.1", STORED[11], ()),
    # English has that word: it is not meant for another one, though it is near.
    ("the change", None, ()),
    # Too far from anything, too short, or a number.
    ("xylofohn", None, ()),
    ("cal", None, ()),
    ("12501", None, ()),
]


@pytest.fixture(params=[0, 300])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """The memories above; among few others, and among so many that they are searched otherwise."""
    with limpet.open(tmp_path / "agents.db") as store:
        found = store.memory("one")
        found.remember_all([*STORED, *(f"zzz {number} qqq" for number in range(request.param))])
        yield found


@pytest.mark.parametrize(("asked", "first", "near"), ASKED)
def test_words_are_found_however_they_are_written(
    memory: Memory, asked: str, first: str | None, near: tuple[tuple[str, str], ...]
) -> None:
    """And where it was by another word, the hit names both."""
    hits = memory.recall(asked, k=3)
    assert [hit.text for hit in hits[:1]] == ([] if first is None else [first])
    if hits:
        assert hits[0].why.near == near
        for word, other in near:
            assert f"{other!r} for {word!r}" in str(hits[0].why)


def test_a_word_that_is_there_is_not_looked_for_elsewhere(memory: Memory) -> None:
    """Who asks for a word that memories have gets those."""
    memory.remember("Eine Versicherung ist genug")
    (hit,) = memory.recall("Versicherung")
    assert hit.text == "Eine Versicherung ist genug"


def test_the_identifier_itself_is_first() -> None:
    """What has its parts here and there comes after it."""
    with limpet.open("memory:") as store:
        memory = store.memory("one")
        memory.remember_all(["the user has an id and a name", "set user_id", "a user without id"])
        assert memory.recall("user_id")[0].text == "set user_id"


def test_the_words_of_one_tenant_do_not_help_another(tmp_path: Path) -> None:
    """One index holds the texts of all tenants; what one may mean is not told to others."""
    url = str(tmp_path / "agents.db")
    with limpet.open(url, tenant="a") as one, limpet.open(url, tenant="b") as other:
        for store, said in ((one, "my Krankenversicherung"), (other, "a versicherungg")):
            store.conversation("chat").append({"role": "user", "content": said})
        assert [hit.excerpt for hit in one.search_conversations("versicherung")] == [
            "my Krankenversicherung"
        ]
        assert [hit.excerpt for hit in other.search_conversations("krankenversicherunk")] == []


@pytest.mark.parametrize("query", ["getUserName", "get_user_name", "username", "东京大学", "1000"])
def test_conversations_are_searched_by_the_same_words(query: str) -> None:
    """One way of dividing texts into words, wherever they are searched."""
    with limpet.open("memory:") as store:
        said = "call getUserName in 东京大学 for 1,000 yen"
        store.conversation("chat").append({"role": "user", "content": said})
        assert [hit.excerpt for hit in store.search_conversations(query)] == [said]
        assert store.search_conversations('"user 1000"') == []  # quoted: these, in this order


def test_no_word_of_what_was_forgotten_is_left(tmp_path: Path, cache: Path) -> None:
    """Neither in the words of the index, nor in the list of words that it has."""
    with limpet.open(tmp_path / "agents.db") as store:
        memory = store.memory("one")
        # Several pages of words, so that some are in the inner nodes of the tree.
        memory.remember_all([f"Quittungsnummer{letters(n)} common" for n in range(3_000)])
        secret = memory.remember(
            "Geheimratsecken are secret common", context="Donaudampfschiff getSecretCode"
        )
        quoting = memory.remember("innocent", context="Geheimratsecken are secret common, they say")
        assert memory.recall("geheimratseken")[0].id == secret.id
        store.conversation("chat").append({"role": "user", "content": "hello"})
        store.search_conversations("geheimratseken")
        memory.forget(secret.id)
        assert memory.recall("geheimratseken secret", k=1) == []
        assert memory.get(quoting.id).context is None
        memory.forget(quoting.id)
        files = [path for path in cache.rglob("*") if path.is_file()]
        assert len(files) > 1
        for path in files:
            data = path.read_bytes().lower()
            for word in (b"geheimrat", b"donaudampf", b"secretcode", b"innocent"):
                assert word not in data, path
        assert memory.recall("common", k=1)


def letters(number: int) -> str:
    """A number without digits."""
    return "".join(chr(ord("a") + int(digit)) for digit in f"{number:04}")


@pytest.mark.parametrize(
    ("one", "other", "far"),
    [
        ("same", "same", 0),
        ("recieve", "receive", 1),
        ("pidgeon", "pigeon", 1),
        ("adress", "address", 1),
        ("kitten", "sitting", 3),
        ("abcdef", "badcfe", 3),
        ("", "ab", 2),
    ],
)
def test_distance_counts_typing_errors(one: str, other: str, far: int) -> None:
    """Two letters swapped are one error, as people make it."""
    assert distance(one, other, 9) == distance(other, one, 9) == far
    assert distance(one, other, 1) == far or distance(one, other, 1) > 1
