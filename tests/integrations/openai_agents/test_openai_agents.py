"""Sessions of the OpenAI Agents SDK on a store: what the SDK asks of a session, and some more."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from agents import Agent, OpenAIResponsesCompactionSession, Runner, Session, SessionSettings
from agents.testing import assistant_message, function_call

import limpet
from limpet.errors import (
    BrokenHistory,
    IdReused,
    InvalidId,
    MissingExtra,
    NotStorable,
    StoreClosed,
)
from limpet.integrations.openai_agents import LimpetSession
from tests.support import places
from tests.support.agents_sdk import say, strict, texts

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

Make = Any  # makes sessions on one store
BACKENDS = [
    "memory",
    "sqlite",
    "file",
    pytest.param("postgresql", marks=pytest.mark.server),
    pytest.param("redis", marks=pytest.mark.server),
]


def user(text: str) -> Any:
    """What the user says."""
    return {"role": "user", "content": text}


def bot(text: str) -> Any:
    """What the model says, as the SDK stores it."""
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "content": [part]}


def called(id_: str) -> Any:
    """A tool call."""
    return {"type": "function_call", "call_id": id_, "name": "look_up", "arguments": "{}"}


def result(id_: str) -> Any:
    """Its result."""
    return {"type": "function_call_output", "call_id": id_, "output": "found"}


def awaiting(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """An async test, run in an event loop of its own; for one that takes *make*."""

    def run(make: Make) -> None:
        asyncio.run(test(make))

    run.__doc__, run.__name__ = test.__doc__, test.__name__
    return run


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes sessions on a new store of each kind."""
    name = request.param
    url = "memory:" if name == "memory" else places.find(name, request).url
    store = limpet.open_async(url)

    def session(id_: str = "alice", **options: Any) -> LimpetSession:
        return LimpetSession(store, id_, **options)

    session.store = store  # type: ignore[attr-defined]
    yield session
    asyncio.run(store.close())


@pytest.fixture
def on_memory() -> Iterator[Make]:
    """The same where the backend makes no difference."""
    with limpet.open("memory:") as store:
        yield lambda id_="alice", **options: LimpetSession(store, id_, **options)


# -- items -----------------------------------------------------------------------------------------


def test_it_is_a_session_of_the_sdk(on_memory: Make) -> None:
    """By the SDK's own check, and by its types."""
    session: Session = LimpetSession("memory:", "alice")
    assert isinstance(session, Session)
    assert isinstance(on_memory(), Session)


@awaiting
async def test_a_new_session_is_empty(make: Make) -> None:
    """Nothing needs to be created first."""
    session = make()
    assert await session.get_items() == []
    assert await session.get_items(limit=3) == []
    assert await session.pop_item() is None
    await session.clear_session()


@awaiting
async def test_items_come_back_equal_and_in_order(make: Make) -> None:
    """Whatever the SDK has put in: it compares what it reads with what it wrote."""
    items = [
        user("Grüße, 世界 🌍, مرحبا\n\t\0\"'; DROP TABLE items; -- \\ {}[]"),
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x" * 9000},
        called("c1"),
        {**result("c1"), "output": [{"type": "input_image", "image_url": "data:,", "n": None}]},
        bot(""),
        {"type": "of a kind to come", "deep": {"n": [1, 2.5, True, None, {"": []}]}},
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "…"},
    ]
    session = make()
    await session.add_items(items[:2])
    await session.add_items(items[2:])
    assert await session.get_items() == items
    assert await make().get_items() == items


@awaiting
async def test_what_has_neither_role_nor_type_comes_back_equal(make: Make) -> None:
    """The SDK's encrypted sessions put such items into the session that they wrap."""
    envelope = {"__enc__": 1, "v": 1, "kid": "k", "payload": "…"}
    session = make()
    await session.add_items([envelope, user("Hello")])
    assert await session.get_items() == [envelope, user("Hello")]
    assert await session.get_items(limit=2) == [envelope, user("Hello")]
    await session.pop_item()
    assert await session.pop_item() == envelope


@awaiting
async def test_items_that_no_provider_has_written_are_given_as_they_are(make: Make) -> None:
    """Somebody has put them there: what is wrong with them the provider will say."""
    items = [
        {"type": "agents.item"},
        {"type": "function_call", "call_id": ["c1"]},
        {"type": "function_call_output", "call_id": {"c": 1}},
    ]
    session = make()
    await session.add_items(items)
    assert await session.get_items() == items


@awaiting
async def test_models_of_the_sdk_are_kept_as_dicts(make: Make) -> None:
    """With what was set in them, as the SDK itself would write them."""
    session = make()
    await session.add_items([assistant_message("Hi"), function_call("pay", {"to": 1}, call_id="c")])
    message, call = await session.get_items()
    assert message["content"][0]["text"] == "Hi"
    assert call == {
        "type": "function_call",
        "id": "c",
        "call_id": "c",
        "name": "pay",
        "arguments": '{"to":1}',
    }


@awaiting
async def test_adding_nothing_writes_nothing(make: Make) -> None:
    """The runner does so after some turns."""
    session = make()
    await session.add_items([])
    assert [chat.id async for chat in make.store.conversations()] == []


@awaiting
async def test_of_several_items_all_or_none_are_added(make: Make) -> None:
    """Half a turn would be a broken history."""
    session = make()
    with pytest.raises(NotStorable):
        await session.add_items([user("Hello"), {"type": "message", "content": object()}])
    assert await session.get_items() == []


@awaiting
async def test_popping_takes_back_the_newest(make: Make) -> None:
    """One at a time, until there is none, and what is added then is the newest."""
    session = make()
    await session.add_items([user("1"), user("2")])
    await session.add_items([user("3")])
    assert await session.pop_item() == user("3")
    assert await session.pop_item() == user("2")
    assert await session.get_items() == [user("1")]
    await session.add_items([user("4")])
    assert await session.get_items() == [user("1"), user("4")]
    assert await session.get_items(limit=1) == [user("4")]
    assert [await session.pop_item() for _ in range(3)] == [user("4"), user("1"), None]


@awaiting
async def test_of_two_who_pop_each_gets_another_item(make: Make) -> None:
    """As for every queue."""
    await make().add_items([user(str(number)) for number in range(6)])
    popped = await asyncio.gather(*(make().pop_item() for _ in range(6)))
    assert sorted(item["content"] for item in popped) == list("012345")
    assert await make().get_items() == []


@awaiting
async def test_clearing_removes_the_items_of_one_session(make: Make) -> None:
    """And of no other; it can be used afterwards."""
    one, other = make("one"), make("other")
    await one.add_items([user("1")])
    await other.add_items([user("2")])
    await one.clear_session()
    assert await one.get_items() == []
    await one.add_items([user("3")])
    assert await one.get_items() == [user("3")]
    assert await other.get_items() == [user("2")]
    assert await other.pop_item() == user("2")


ODD_IDS = ["", " ", "alice ", " alice", "a\x00b", "a\nb", "\ud800", "x" * 513, "é" * 300, "é" * 301]


@awaiting
async def test_every_session_id_that_the_sdk_takes_has_items_of_its_own(make: Make) -> None:
    """Empty, with spaces at the ends, with a NUL, too long: none is taken for another."""
    ids = ["alice", "a%00b", *ODD_IDS]
    ids += [make(id_).conversation.id for id_ in ODD_IDS]  # what they are written out as
    for number, id_ in enumerate(ids):
        await make(id_).add_items([user(str(number))])
    for number, id_ in enumerate(ids):
        session = make(id_)
        assert session.session_id == id_
        assert await session.get_items() == [user(str(number))]


def test_a_session_is_the_conversation_of_its_id_where_there_can_be_one(on_memory: Make) -> None:
    """One that cannot be typed is written out, as the guide says."""
    assert on_memory("user:7/ü").conversation.id == "user:7/ü"
    assert on_memory("a b\n").conversation.id == "session-id:a%20b%0A"
    with pytest.raises(InvalidId, match="must be text"):
        on_memory(7)


def test_tenants_do_not_see_each_others_sessions(tmp_path: Path) -> None:
    """The same session id is another session."""

    async def main() -> None:
        for tenant in ("acme", "other"):
            async with limpet.open_async(tmp_path / "agents.db", tenant=tenant) as store:
                session = LimpetSession(store, "alice")
                assert await session.get_items() == []
                await session.add_items([user(tenant)])

    asyncio.run(main())


# -- limits ----------------------------------------------------------------------------------------


@awaiting
async def test_a_limit_gives_the_newest(make: Make) -> None:
    """Oldest of them first; 0 gives none, and fewer than there are is all."""
    session = make()
    items = [user(str(number)) for number in range(5)]
    await session.add_items(items)
    for limit in (1, 3, 5, 99):
        assert await session.get_items(limit=limit) == items[-limit:]
    assert await session.get_items(limit=0) == []
    assert await session.get_items(limit=None) == items
    assert await session.get_items(limit=-1) == items


@awaiting
async def test_the_settings_have_a_limit_unless_the_call_has_one(make: Make) -> None:
    """As an object or a dict, given at the start or later."""
    items = [user(str(number)) for number in range(5)]
    await make().add_items(items)
    for settings in (SessionSettings(limit=2), {"limit": 2}):
        session = make(session_settings=settings)
        assert await session.get_items() == items[-2:]
        assert await session.get_items(limit=4) == items[-4:]
    session = make()
    assert session.session_settings == SessionSettings()
    session.session_settings = SessionSettings(limit=1)
    assert await session.get_items() == items[-1:]


def test_settings_that_the_sdk_does_not_know_are_refused(on_memory: Make) -> None:
    """By the SDK: a limit that is misspelt is no limit."""
    with pytest.raises(TypeError):
        on_memory(session_settings={"limti": 2})


@awaiting
async def test_a_limit_is_exact_even_between_a_call_and_its_result(make: Make) -> None:
    """The SDK compares the newest items with what it has written; it leaves out halves itself."""
    items = [user("Where?"), called("c1"), result("c1"), bot("Here.")]
    session = make()
    await session.add_items(items)
    for limit in range(5):
        assert await session.get_items(limit=limit) == items[len(items) - limit :]


@awaiting
async def test_a_budget_of_tokens_gives_the_newest_that_fit(make: Make) -> None:
    """With a call and its result together or not at all."""
    items = [user("x" * 4000), called("c1"), result("c1"), bot("Here.")]
    await make().add_items(items)
    assert (await make(max_tokens=200).get_items())[1:] == items[1:]
    assert await make(max_tokens=20).get_items() == items[3:]
    assert await make(max_tokens=20).get_items(limit=2) == items[2:]


# -- two writers, and one who tries again ----------------------------------------------------------


@awaiting
async def test_an_id_makes_a_repeated_add_harmless(make: Make) -> None:
    """Who did not hear the answer can ask again."""
    session = make()
    for _ in range(3):
        await session.add_items([user("Hello")], id="turn-1")
    assert await session.get_items() == [user("Hello")]
    with pytest.raises(IdReused):
        await session.add_items([user("Goodbye")], id="turn-1")


@awaiting
async def test_two_who_add_at_once_both_keep_what_they_said(make: Make) -> None:
    """Each turn in one piece."""
    sessions = [make() for _ in range(4)]
    turns = [[user(f"{number}"), bot(f"{number}")] for number in range(20)]
    adding = (sessions[number % 4].add_items(turn) for number, turn in enumerate(turns))
    await asyncio.gather(*adding)
    items = await make().get_items()
    pairs = list(pairwise(items))[::2]
    assert sorted(item["content"] for item, _ in pairs) == sorted(str(n) for n in range(20))
    assert all(answer == bot(said["content"]) for said, answer in pairs)


def test_a_session_works_from_several_event_loops_and_threads(on_memory: Make) -> None:
    """`Runner.run_sync` has its own loop, and so has each worker thread."""
    session = on_memory()

    def turn(number: int) -> None:
        asyncio.run(session.add_items([user(str(number))]))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(turn, range(20)))
    items = asyncio.run(session.get_items())
    assert sorted(int(item["content"]) for item in items) == list(range(20))


# -- repair ----------------------------------------------------------------------------------------

CUT = [user("Pay."), called("c1"), user("And?"), result("c0"), bot("What?")]


@awaiting
async def test_a_call_without_result_and_a_result_without_call_are_left_out(make: Make) -> None:
    """The provider would refuse the whole history. What was done about it is said."""
    session = make()
    await session.add_items(CUT)
    assert await session.get_items() == [user("Pay."), user("And?"), bot("What?")]
    await session.get_items()
    assert len(await session.conversation.repairs()) == 2
    assert await make(repair=None).get_items() == CUT, "what is stored is not changed"


@awaiting
async def test_a_call_without_result_can_be_answered_or_refused(make: Make) -> None:
    """By the same rules as for every conversation."""
    await make().add_items(CUT)
    kinds = [item.get("type") for item in await make(repair="stub").get_items()]
    assert kinds == [None, "function_call", "function_call_output", None, "message"]
    with pytest.raises(BrokenHistory):
        await make(repair="raise").get_items()


@awaiting
async def test_the_newest_calls_may_wait_for_approval(make: Make) -> None:
    """They are no damage: somebody may be about to say yes."""
    items = [user("Pay."), called("c1"), called("c2"), result("c1")]
    session = make()
    await session.add_items(items)
    assert await session.get_items() == items
    assert await session.conversation.repairs() == []


# -- compaction ------------------------------------------------------------------------------------


class Compactor:
    """Stands in for the client of OpenAI: what `responses.compact` returns is given."""

    def __init__(self, *output: Any, meanwhile: Any = None) -> None:
        self.responses = self
        self.asked: list[Any] = []
        self._output = list(output)
        self._meanwhile = meanwhile

    async def compact(self, **question: Any) -> Any:
        """The one call that the SDK makes."""
        self.asked.append(question)
        if self._meanwhile is not None:
            await self._meanwhile()
        return SimpleNamespace(output=self._output, usage=None)


SUMMARY: Any = {"type": "compaction", "id": "cmp_1", "encrypted_content": "…"}


@awaiting
async def test_the_sdks_compaction_replaces_all_items_at_once(make: Make) -> None:
    """There is no moment without history, and what was said can still be read."""
    session = make()
    items = [user("1"), bot("2"), user("3"), bot("4")]
    await session.add_items(items)
    compactor: Any = Compactor(SUMMARY)
    wrapper = OpenAIResponsesCompactionSession("alice", session, client=compactor)
    await wrapper.run_compaction({"force": True, "compaction_mode": "input"})
    assert compactor.asked[0]["input"] == items
    assert await session.get_items() == [SUMMARY]
    assert await session.conversation.messages(everything=True) == [*items, SUMMARY]
    await wrapper.add_items([user("5")])
    assert await wrapper.get_items() == [SUMMARY, user("5")]


@awaiting
async def test_the_end_of_a_history_can_be_replaced(make: Make) -> None:
    """What the SDK does by itself after a turn: older items stay as they are."""
    session = make()
    items = [user("1"), bot("2"), user("3"), bot("4")]
    await session.add_items(items)
    snapshot = await session._get_compaction_snapshot(3)
    assert (snapshot.items, snapshot.complete) == (items[1:], False)
    assert await snapshot.replace_suffix(1, [SUMMARY])
    assert await session.get_items() == [*items[:2], SUMMARY]
    whole = await session._get_compaction_snapshot(3)
    assert whole.complete
    assert await whole.replace_suffix(0, [user("0")])
    assert await session.get_items() == [user("0")]
    assert await session._atomic_replace_items([])
    assert await session.get_items() == []


@awaiting
async def test_what_somebody_says_meanwhile_is_not_replaced(make: Make) -> None:
    """The summary was made without it."""
    session = make()
    await session.add_items([user("1"), bot("2")])
    snapshot = await session._get_compaction_snapshot(5)
    await make().add_items([user("3")])
    assert not await snapshot.replace_suffix(0, [SUMMARY])
    assert await session.get_items() == [user("1"), bot("2"), user("3")]


@awaiting
async def test_what_the_sdk_says_is_expired_leaves_the_store(make: Make) -> None:
    """It prunes the oldest in the act of compacting: ciphertext that nobody can read any more."""
    session = make()
    items = [user("old 1"), user("old 2"), user("3"), user("old 4"), user("5"), user("6")]
    for item in items:
        await session.add_items([item])

    def is_expired(item: Any) -> bool:
        return str(item.get("content")).startswith("old")

    snapshot = await session._get_compaction_snapshot(2, prune_prefix=is_expired)
    assert await snapshot.replace_suffix(1, [SUMMARY])
    left = [user("3"), user("old 4"), user("5"), SUMMARY]
    assert await session.get_items() == left  # only what was at the very beginning is pruned
    assert await session.conversation.messages(everything=True) == left
    snapshot = await session._get_compaction_snapshot(9, prune_prefix=is_expired)
    assert await snapshot.replace_suffix(0, [SUMMARY])
    assert await session.get_items() == [SUMMARY]
    assert await session.conversation.messages(everything=True) == [SUMMARY]


def test_encrypted_items_that_have_expired_are_removed_by_the_sdks_compaction(
    on_memory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the SDK has it: an encrypted session around the compacting one around ours."""
    memory = pytest.importorskip("agents.extensions.memory.encrypt_session")

    async def main() -> None:
        session = on_memory()
        compactor: Any = Compactor(SUMMARY)
        compacting = OpenAIResponsesCompactionSession("alice", session, client=compactor)
        encrypted = memory.EncryptedSession("alice", compacting, "a key", ttl=60)
        await encrypted.add_items([user("expired 1"), user("expired 2")])
        now = memory.time.time
        monkeypatch.setattr(memory.time, "time", lambda: now() + 100)
        await encrypted.add_items([user("new")])
        assert len(await session.get_items()) == 3
        snapshot = await encrypted._get_compaction_snapshot(1)
        assert await snapshot.replace_suffix(0, [SUMMARY])
        assert len(await session.get_items()) == 1
        assert await encrypted.get_items() == [SUMMARY]
        assert len(await session.conversation.messages(everything=True)) == 1

    asyncio.run(main())


def test_the_sdk_compacts_by_itself_after_a_turn(on_memory: Make) -> None:
    """With the same care: who says something meanwhile is heard."""

    async def main(*, disturbed: bool) -> list[Any]:
        session = on_memory(f"disturbed {disturbed}")

        async def meanwhile() -> None:
            if disturbed:
                await on_memory(session.session_id).add_items([user("Wait!")])

        compactor: Any = Compactor(SUMMARY, meanwhile=meanwhile)
        wrapper = OpenAIResponsesCompactionSession(
            session.session_id,
            session,
            client=compactor,
            compaction_mode="input",
            should_trigger_compaction=lambda _: True,
        )
        agent = Agent(name="guide", model=strict(say("Hi.")))
        await Runner.run(agent, "Hello", session=wrapper)
        assert len(compactor.asked) == 1
        items: list[Any] = await session.get_items()
        return items

    assert asyncio.run(main(disturbed=False)) == [SUMMARY]
    kept = asyncio.run(main(disturbed=True))
    assert texts(kept) == ["user: Hello", "assistant: Hi.", "user: Wait!"]


@awaiting
async def test_a_subclass_that_changes_items_is_not_passed_by(make: Make) -> None:
    """The SDK then clears and adds, through the methods that the subclass has."""

    class Shouting(LimpetSession):
        async def add_items(self, items: Any, *, id: str | None = None) -> None:
            louder: list[Any] = [{**item, "content": item["content"].upper()} for item in items]
            await super().add_items(louder, id=id)

    session = Shouting(make.store, "alice")
    await session.add_items([user("hello")])
    compactor: Any = Compactor(user("summary"))
    wrapper = OpenAIResponsesCompactionSession("alice", session, client=compactor)
    await wrapper.run_compaction({"force": True, "compaction_mode": "input"})
    assert await session.get_items() == [user("SUMMARY")]
    assert await session._get_compaction_snapshot(5) is None


@awaiting
async def test_an_empty_history_has_a_snapshot(make: Make) -> None:
    """And it is replaced if it is still empty."""
    session = make()
    snapshot = await session._get_compaction_snapshot(5)
    assert (snapshot.items, snapshot.complete) == ([], True)
    assert await snapshot.replace_suffix(0, [SUMMARY])
    assert await session.get_items() == [SUMMARY]


# -- opening and closing ---------------------------------------------------------------------------


def test_a_session_that_opened_its_store_closes_it(tmp_path: Path) -> None:
    """Afterwards everything is refused, even to add nothing; a second time is no harm."""

    async def main() -> None:
        async with LimpetSession(tmp_path / "agents.db", "alice") as session:
            await session.add_items([user("Hello")])
        await session.close()
        for use in (
            session.get_items(),
            session.add_items([]),
            session.pop_item(),
            session.clear_session(),
        ):
            with pytest.raises(StoreClosed):
                await use
        async with LimpetSession(f"sqlite:{tmp_path}/agents.db", "alice") as session:
            assert await session.get_items() == [user("Hello")]

    asyncio.run(main())


def test_adding_nothing_to_a_session_whose_store_is_closed_is_refused() -> None:
    """Also if somebody else has opened the store: the next turn would be lost."""

    async def main() -> None:
        async with limpet.open_async("memory:") as store:
            session = LimpetSession(store, "alice")
        with pytest.raises(StoreClosed, match="alice"):
            await session.add_items([])

    asyncio.run(main())


def test_a_store_that_was_given_stays_open(tmp_path: Path) -> None:
    """It is whose it was; a sync one serves as well."""

    async def main(store: Any) -> None:
        async with LimpetSession(store, "alice") as session:
            await session.add_items([user("Hello")])
        assert await session.get_items() == [user("Hello")]

    with limpet.open(tmp_path / "agents.db") as store:
        asyncio.run(main(store))
        assert store.conversation("alice").messages() == [user("Hello")]


def test_what_is_no_store_is_refused() -> None:
    """With a word on what would be one."""
    with pytest.raises(TypeError, match=r"limpet\.open"):
        LimpetSession(3, "alice")  # type: ignore[arg-type]


def test_labels_and_time_to_live_are_those_of_the_conversation(on_memory: Make) -> None:
    """So that sessions can be listed, and end."""
    session = on_memory(labels={"team": "support"}, ttl=3600)
    asyncio.run(session.add_items([user("Hello")]))
    info = asyncio.run(session.conversation.info())
    assert info.labels == {"team": "support"}
    assert info.expires_at is not None


def test_its_name_says_nothing_of_what_is_in_it(on_memory: Make) -> None:
    """Logs are read by others."""
    session = on_memory()
    asyncio.run(session.add_items([user("secret")]))
    assert repr(session) == "LimpetSession('alice')"


def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module itself can be imported, and costs nothing of the SDK."""
    monkeypatch.setitem(sys.modules, "agents.memory.session_settings", None)
    with pytest.raises(MissingExtra, match=r"\[openai-agents\].*pip install"):
        LimpetSession("memory:", "alice")
    script = "import limpet.integrations.openai_agents, sys; print('agents' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"False\n"
