"""Tests of search: the index follows the journals, and is never more than they are."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import limpet
from limpet.backends.contract import Key
from limpet.conversations import search as _search
from limpet.core import text_index as _textindex
from limpet.core.codec import Codec
from limpet.core.index_files import cached, own_file
from limpet.core.text_index import Document, Known, Read, TextIndex, excerpt, index_of
from limpet.llm.messages.text import text_of
from tests.support import places, stores

if TYPE_CHECKING:
    from limpet import ConversationHit
    from tests.support.places import Where

cache = stores.cache

where = places.where

KEY = Key("default", "conversation", "alice")


def user(content: Any) -> dict[str, Any]:
    """A message of the user's."""
    return {"role": "user", "content": content}


def found(store: limpet.Store, query: str, **options: Any) -> list[ConversationHit]:
    """What a search finds."""
    return store.search_conversations(query, **options)


def ids(store: limpet.Store, query: str, **options: Any) -> list[str]:
    """In which conversations, best first."""
    return list(dict.fromkeys(hit.id for hit in found(store, query, **options)))


def test_what_was_said_is_found_on_every_backend(where: Where) -> None:
    """The truth may be anywhere; the index is local."""
    with limpet.open(where.url) as store:
        store.conversation("alice").append(user("My invoice is wrong"))
        store.conversation("bob").append(user("Where is Berlin?"))
        (hit,) = found(store, "invoice")
        assert (hit.id, hit.position, hit.role, hit.excerpt) == (
            "alice",
            1,
            "user",
            "My invoice is wrong",
        )
        store.conversation("alice").append(user("The invoice again"))
        assert [hit.position for hit in found(store, "invoice")] in ([1, 2], [2, 1])
        store.conversation("alice").delete()
        assert found(store, "invoice") == []


def test_async_stores_search_too(tmp_path: Path) -> None:
    """The same code, awaited; nothing of it on the event loop."""

    async def scenario() -> None:
        async with limpet.open_async(tmp_path / "a.db") as store:
            await store.conversation("alice").append(user("My invoice is wrong"))
            hits = await store.search_conversations("invoice")
            assert [hit.id for hit in hits] == ["alice"]

    asyncio.run(scenario())


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """An empty store in a file."""
    with limpet.open(tmp_path / "agents.db") as opened:
        yield opened


def test_messages_with_all_words_come_before_those_with_some(store: limpet.Store) -> None:
    """The nearest is first, and a word too many does not empty the list."""
    store.conversation("both").append(user("An invoice from Berlin, which is a long story indeed"))
    store.conversation("one").append(user("Berlin"))
    assert ids(store, "invoice berlin") == ["both", "one"]
    assert ids(store, "invoice berlin", k=1) == ["both"]
    assert ids(store, "nobody berlin") == ["one", "both"]


@pytest.mark.parametrize(
    ("said", "query"),
    [
        ("Grüße aus München", "munchen"),
        ("今日は天気がいい", "天気"),
        ("ราคาเท่าไร", "ราคา"),
        ("L'été à Évian", "ete"),
        ("send_mail was called", "send*"),
        ("the quick brown fox", '"quick brown"'),
        ("ПРИВЕТ мир", "привет"),
    ],
)
def test_words_are_found_in_many_languages(store: limpet.Store, said: str, query: str) -> None:
    """With or without accents, and where no space parts the words."""
    store.conversation("alice").append(user(said))
    store.conversation("bob").append(user("something else"))
    assert ids(store, query) == ["alice"]


def test_a_phrase_is_found_only_as_it_stands(store: limpet.Store) -> None:
    """Quotes mean what they mean everywhere."""
    store.conversation("alice").append(user("brown and quick"))
    assert ids(store, '"quick brown"') == []
    assert ids(store, "quick brown") == ["alice"]


@given(query=st.text(max_size=40))
def test_no_query_is_an_error(query: str) -> None:
    """What people type is words, never syntax."""
    index = TextIndex()
    index.add([Read(KEY, None, Known("a", 1, 1, 1), [Document(1, 1, "user", "any text at all")])])
    index.find(query, "default", k=3, among={"conversation": ["alice"]})
    assert len(excerpt("any text " * 100, query)) < 170


def test_half_a_character_in_a_query_divides_words(store: limpet.Store) -> None:
    """A browser may send it; no stored text has one."""
    store.conversation("alice").append(user("My invoice is wrong"))
    assert ids(store, "invoice \ud83d") == ids(store, "my\udc00invoice") == ["alice"]
    assert ids(store, "\ud83d") == []


def test_calls_results_and_thoughts_are_found_in_every_shape(store: limpet.Store) -> None:
    """What an agent did is as worth finding as what it said."""
    function = {"name": "refund", "arguments": '{"order": "A17"}'}
    call = {"id": "c1", "type": "function", "function": function}
    store.conversation("chat").append(
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "A17 refunded"},
    )
    use = {"type": "tool_use", "id": "t1", "name": "refund", "input": {"order": "A17"}}
    thinking = {"type": "thinking", "thinking": "order A17 it is", "signature": "x"}
    store.conversation("anthropic").append({"role": "assistant", "content": [thinking, use]})
    store.conversation("responses").append(
        {"type": "function_call", "call_id": "c1", "name": "refund", "arguments": '"A17"'},
    )
    assert sorted(ids(store, "A17 refund")) == ["anthropic", "chat", "responses"]
    assert ids(store, '"it is"') == ["anthropic"]


def test_data_of_images_is_not_text() -> None:
    """Base64 is nobody's word."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    assert text_of(user([{"type": "text", "text": "Look"}, image])) == "Look"


@given(
    st.dictionaries(
        st.sampled_from(["role", "type", "content", "tool_calls", "summary", "output"]),
        st.recursive(
            st.none() | st.text(max_size=3) | st.integers(),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(st.sampled_from(["type", "text", "function"]), inner, max_size=2)
            ),
        ),
    )
)
def test_any_message_has_some_text(message: dict[str, Any]) -> None:
    """Nothing that is stored stops a search."""
    assert isinstance(text_of(message), str)


def test_the_index_follows_what_the_conversation_is(store: limpet.Store) -> None:
    """Taken back, cleared, replaced, forked: only what counts is found."""
    chat = store.conversation("alice")
    chat.append(user("zebra"))
    chat.fork("copy")
    assert sorted(ids(store, "zebra")) == ["alice", "copy"]
    chat.append(user("giraffe"))
    assert ids(store, "giraffe") == ["alice"]
    chat.pop()
    assert ids(store, "giraffe") == []
    chat.clear()
    assert ids(store, "zebra") == ["copy"]
    chat.append(user("zebra once more"))
    assert sorted(ids(store, "zebra")) == ["alice", "copy"]


def test_a_conversation_that_began_anew_is_another(store: limpet.Store) -> None:
    """The same id with as many entries is told apart by when it began."""
    chat = store.conversation("alice")
    chat.append(user("zebra"))
    assert ids(store, "zebra") == ["alice"]
    chat.delete()
    chat.append(user("giraffe"))
    assert ids(store, "zebra") == []
    assert ids(store, "giraffe") == ["alice"]


def test_tenants_and_labels_are_kept_apart(tmp_path: Path) -> None:
    """Nobody finds what is not theirs."""
    url = str(tmp_path / "agents.db")
    with limpet.open(url, tenant="acme") as acme, limpet.open(url, tenant="other") as other:
        acme.conversation("a/alice", labels={"team": "red"}).append(user("zebra"))
        acme.conversation("b/bob").append(user("zebra"))
        other.conversation("carol").append(user("zebra"))
        assert ids(other, "zebra") == ["carol"]
        assert sorted(ids(acme, "zebra")) == ["a/alice", "b/bob"]
        assert ids(acme, "zebra", labels={"team": "red"}) == ["a/alice"]
        assert ids(acme, "zebra", prefix="b/") == ["b/bob"]
        other.conversation("carol").delete()
        assert ids(other, "zebra") == []
        assert len(ids(acme, "zebra")) == 2


def test_only_what_is_new_is_read(store: limpet.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a search is that of what was said since the last."""
    for name in ("alice", "bob"):
        store.conversation(name).append(*[user(f"zebra {n}") for n in range(50)])
    assert len(found(store, "zebra", k=200)) == 100
    read: list[Any] = []

    def counted(message: dict[str, Any]) -> str:
        read.append(message)
        return text_of(message)

    monkeypatch.setattr(_search, "text_of", counted)
    store.conversation("alice").append(user("zebra 50"))
    assert len(found(store, "zebra", k=200)) == 101
    assert len(read) == 1


@pytest.mark.parametrize("harm", ["deleted", "garbage", "old"])
def test_an_index_that_is_gone_or_damaged_is_made_anew(
    store: limpet.Store, cache: Path, harm: str
) -> None:
    """It is derived: nothing is lost with it."""
    store.conversation("alice").append(user("zebra"))
    assert ids(store, "zebra") == ["alice"]
    (file,) = cache.glob("*.search")
    if harm == "old":
        index = TextIndex(str(file))
        index._database.execute("PRAGMA user_version=99")
        index.let_go()
    elif harm == "garbage":
        file.write_bytes(b"not a database at all" * 100)
    else:
        file.unlink()
    assert ids(store, "zebra") == ["alice"]


def test_the_index_is_the_users_own(store: limpet.Store, cache: Path) -> None:
    """It holds what people wrote, so others may not read it."""
    store.conversation("alice").append(user("zebra"))
    assert ids(store, "zebra") == ["alice"]
    (file,) = cache.glob("*.search")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_a_second_search_leaves_the_locks_of_the_first(store: limpet.Store) -> None:
    """Whoever closes a file gives up all locks on it that its process has."""
    path = own_file(store.backend, "search")
    assert path is not None
    take = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_SH | fcntl.LOCK_NB)"
    with Path(path).open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        assert own_file(store.backend, "search") == path
        command = [sys.executable, "-I", "-S", "-c", take, path]
        refused = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "BlockingIOError" in refused.stderr


def test_an_index_goes_when_its_store_has_gone(tmp_path: Path, cache: Path) -> None:
    """What was said is in it, in plain text; files that are not ours stay."""
    kept = cache / "notes.search"
    old = cache / f"{'0' * 32}-{'1' * 32}.memory-wal"  # of a release that left no note
    stores = [str(tmp_path / "a.db"), f"file:{tmp_path / 'b'}", str(tmp_path / "c.db")]
    for url in [*stores, str(tmp_path / "d.db")]:
        with limpet.open(url) as one:
            one.conversation("alice").append(user("zebra"))
            assert ids(one, "zebra") == ["alice"]
            one.memory("zoo").remember("a zebra")
            assert one.memory("zoo").recall("zebra")
        if url == stores[-1]:
            shutil.rmtree(tmp_path / "b")
            (tmp_path / "a.db").unlink()
            kept.write_text("mine")
            old.write_text("zebra")
            found = cached()
            assert found is not None
            assert (found.indexes, found.stores, found.gone) == (6, 4, 3)
    assert len(list(cache.glob("*.search"))) == 3  # one of them is not ours
    assert len(list(cache.glob("*.memory"))) == 2
    assert kept.exists()
    assert not old.exists()
    found = cached()
    assert found is not None
    assert (found.indexes, found.stores, found.gone) == (4, 2, 0)


def test_what_was_deleted_is_not_in_the_file(store: limpet.Store, cache: Path) -> None:
    """Deleted means deleted, in the index too, from the next search on."""
    store.conversation("alice").append(user("xylophone"))
    assert ids(store, "xylophone") == ["alice"]
    store.conversation("alice").delete()
    assert ids(store, "xylophone") == []
    (file,) = cache.glob("*.search")
    index = TextIndex(str(file))
    index._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    index.let_go()
    assert b"xylophone" not in file.read_bytes()


def test_without_a_cache_it_is_in_memory(
    store: limpet.Store, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By wish, or because the directory cannot be written."""
    store.conversation("alice").append(user("zebra"))
    monkeypatch.setenv("LIMPET_CACHE", "none")
    assert ids(store, "zebra") == ["alice"]
    cache.write_text("in the way")
    monkeypatch.setenv("LIMPET_CACHE", str(cache))
    assert ids(store, "zebra") == ["alice"]


def test_what_is_encrypted_is_not_written_out_beside_it(tmp_path: Path, cache: Path) -> None:
    """A codec of one's own may be there to keep things secret."""

    class Secret(Codec):
        """Stands for one that encrypts."""

    with limpet.open(tmp_path / "a.db", codec=Secret()) as store:
        store.conversation("alice").append(user("zebra"))
        assert ids(store, "zebra") == ["alice"]
    assert not cache.exists()


def test_memory_stores_have_an_index_in_memory(cache: Path) -> None:
    """And each its own."""
    with limpet.open("memory:") as one, limpet.open("memory:") as other:
        one.conversation("alice").append(user("zebra"))
        assert ids(one, "zebra") == ["alice"]
        assert ids(other, "zebra") == []
        assert index_of(one.backend) is index_of(one.backend)
    assert not cache.exists()


def test_several_threads_may_search_at_once(store: limpet.Store) -> None:
    """Each brings the index up to date, and none doubles what another has added."""
    for number in range(20):
        store.conversation(f"c{number}").append(user("zebra"))
    counts: list[int] = []

    def work() -> None:
        counts.append(len(found(store, "zebra", k=100)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [20] * 4


def test_what_another_process_has_read_is_not_added_again() -> None:
    """Of two who read the same news, one adds them."""
    index = TextIndex()
    first, second = Known("a", 1, 1, 1), Known("a", 1, 2, 2)
    assert index.add([Read(KEY, None, first, [Document(1, 1, "user", "zebra")])])
    news = [Document(2, 2, "user", "zebra")]
    assert index.add([Read(KEY, first, second, news)])
    assert not index.add([Read(KEY, first, second, news)])
    assert len(index.find("zebra", "default", k=9, among={"conversation": [KEY.id]})) == 2


def test_an_index_that_another_process_took_further_is_not_made_anew(
    store: limpet.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be taken back to what was there before, while that process asks it."""
    chat = store.conversation("alice")
    chat.append(user("zebra one"))
    assert len(found(store, "zebra")) == 1
    heads, add = store.backend.heads, TextIndex.add
    added: list[Key] = []

    def meanwhile(*values: Any, **more: Any) -> Any:
        listed = list(heads(*values, **more))
        monkeypatch.setattr(store.backend, "heads", heads)
        chat.append(user("zebra two"))
        assert len(found(store, "zebra")) == 2
        return iter(listed)

    def counted(index: TextIndex, reads: list[Read]) -> bool:
        added.extend(read.key for read in reads)
        return add(index, reads)

    monkeypatch.setattr(store.backend, "heads", meanwhile)
    monkeypatch.setattr(TextIndex, "add", counted)
    assert len(found(store, "zebra")) == 2
    assert added == [KEY]


def test_what_another_process_takes_in_first_hides_nothing_of_what_came_after_it(
    store: limpet.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had listed the conversations a moment earlier."""
    chat = store.conversation("alice")
    chat.append(user("zebra one"))
    assert len(found(store, "zebra")) == 1
    chat.append(user("zebra two"), user("zebra three"))
    add = TextIndex.add

    def meanwhile(index: TextIndex, reads: list[Read]) -> bool:
        monkeypatch.setattr(TextIndex, "add", add)
        (read,) = reads
        now = read.now
        earlier = Known(now.incarnation, now.first, now.seen - 1, now.updated)
        assert add(index, [read._replace(now=earlier, documents=read.documents[:1])])
        return add(index, reads)

    monkeypatch.setattr(TextIndex, "add", meanwhile)
    assert len(found(store, "zebra")) == 3


def test_an_excerpt_shows_the_word() -> None:
    """From the middle of a long message, on one line."""
    text = "before " * 100 + "zebra\n" + "after " * 100
    shown = excerpt(text, "ZEBRA")
    assert "zebra" in shown
    assert shown.startswith("…")
    assert shown.endswith("…")
    assert len(shown) <= _textindex.EXCERPT + 2


def test_what_was_found_is_not_in_a_repr(store: limpet.Store) -> None:
    """Logs show where, never what."""
    store.conversation("alice").append(user("zebra"))
    assert "zebra" not in repr(found(store, "zebra"))
