"""Tests of the search over everything: each model's texts, and the index that follows them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet.backends.contract import Append, Key
from limpet.core import text_search
from limpet.core.index_files import own_file
from limpet.core.runtime import run_to_end
from limpet.tasks import search as _task_search
from limpet.views.search import SearchView, search_view
from tests.models.test_damage import seal
from tests.support import stores

if TYPE_CHECKING:
    from collections.abc import Iterator

cache = stores.cache


@pytest.fixture
def store(tmp_path: Path) -> Iterator[limpet.Store]:
    """An empty store in a file."""
    with limpet.open(tmp_path / "agents.db") as opened:
        yield opened


def look(store: limpet.Store, query: str, **options: Any) -> SearchView:
    """What a search finds."""
    return run_to_end(search_view(store.scope.as_sync(), query, **options))


def roles(store: limpet.Store, query: str, **options: Any) -> set[tuple[str, str]]:
    """Where something is, and what it is there."""
    return {(f"{hit.kind}/{hit.id}", hit.role) for hit in look(store, query, **options).hits}


def test_all_that_a_task_records_is_found(store: limpet.Store) -> None:
    """Goal, plan, results, decisions, discoveries, errors and outcome, each at its entry."""
    with store.task("report", goal="Audit the zebras", agent="ada") as task:
        task.plan(["count", {"name": "weigh", "unit": "kilogram"}])
        task.step("count", lambda: {"stripes": "forty-two"})
        task.decide("leave the foals out", because="they are restless")
        task.discover("Zebras sleep standing")
        task.step("weigh", lambda: "x" * 20_000 + " end")
        task.finish("All zebras are well")
    with pytest.raises(RuntimeError), store.task("broken", goal="Fail") as task:
        task.step("call", _failing)
    assert roles(store, "audit") == {("task/report", "goal")}
    assert roles(store, "kilogram") == {("task/report", "plan")}
    assert (
        roles(store, "stripes") == roles(store, "forty-two") == {("task/report", "result of count")}
    )
    assert roles(store, "restless") == {("task/report", "decision")}
    assert roles(store, "standing") == {("task/report", "discovery")}
    assert roles(store, '"zebras are well"') == {("task/report", "outcome")}
    assert ("task/broken", "error") in roles(store, "teapot")
    (hit,) = look(store, "standing").hits
    (entry,) = store.journal("task", "report").read(after=hit.position - 1, limit=1)
    assert entry.body["discovery"] == "Zebras sleep standing"


def _failing() -> None:
    raise RuntimeError("The server is a teapot")


def test_what_was_rewound_is_not_found_and_a_fork_has_its_own(store: limpet.Store) -> None:
    """The index says what the task is, not what it was."""
    with store.task("report", goal="Count") as task:
        task.discover("Giraffes hum")
        task.discover("Okapis hide")
        assert roles(store, "okapis") == {("task/report", "discovery")}
        fork = task.versions.fork("other", at=2)
        with fork:
            fork.discover("Llamas spit")
        task.versions.rewind(to=2)
    assert roles(store, "okapis") == set()
    assert roles(store, "giraffes") == {("task/report", "discovery"), ("task/other", "discovery")}
    assert roles(store, "llamas") == {("task/other", "discovery")}
    store.journal("task", "other").delete()
    assert roles(store, "llamas giraffes") == {("task/report", "discovery")}


def test_only_what_is_new_in_a_task_is_read(
    store: limpet.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search costs what came since the last one."""
    read: list[int] = []
    documents = _task_search._documents

    def counted(entries: Any, *before: Any) -> Any:
        read.append(len(list(entries)))
        return documents(entries, *before)

    monkeypatch.setattr(_task_search, "_documents", counted)
    with store.task("report", goal="Count") as task:
        for number in range(50):
            task.discover(f"Number {number}")
        look(store, "count")
        task.discover("One more okapi")
        assert roles(store, "okapi") == {("task/report", "discovery")}
        look(store, "count")
    assert read[1:] == [1]


def test_the_newest_document_of_a_state_is_found(store: limpet.Store) -> None:
    """Every text in it, with where it is; and nothing of what it was before."""
    state = store.state("settings")
    state.save({"profile": {"name": "Ada", "likes": ["green tea", "tides"]}, "seen": 3})
    assert roles(store, "tides") == {("state/settings", "profile.likes[1]")}
    position = state.save({"profile": {"name": "Ada", "likes": ["black coffee"]}})
    assert roles(store, "tides") == set()
    (hit,) = look(store, "coffee").hits
    assert hit.position == position
    store.journal("state", "settings").delete()
    assert roles(store, "coffee") == set()


def test_what_a_team_has_said_is_found_once_and_by_whom(store: limpet.Store) -> None:
    """Each agent's state has the same messages again."""
    said = {"content": "The tide is high", "source": "anna", "type": "TextMessage", "id": "1"}
    call = [{"id": "c1", "arguments": '{"place": "Brest"}', "name": "look_up"}]
    result = [{"content": "4.2 metres", "name": "look_up", "call_id": "c1", "is_error": False}]
    member = {
        "type": "AssistantAgentState",
        "version": "1.0.0",
        "llm_context": {
            "messages": [
                said,
                {"content": call, "source": "ben", "thought": "Let me check", "type": "X"},
                {"content": result, "type": "FunctionExecutionResultMessage"},
            ]
        },
    }
    agents = {name: {"agent_state": member, "message_buffer": [said]} for name in ("anna", "ben")}
    team = {"type": "TeamState", "version": "1.0.0", "agent_states": agents}
    store.state("team").save(team)
    assert roles(store, "tide") == {("state/team", "anna")}
    assert roles(store, "brest") == roles(store, "check") == {("state/team", "ben")}
    assert roles(store, "metres") == {("state/team", "tool")}
    assert len(look(store, "tide").hits) == 1


def test_memories_are_found_as_long_as_they_count(store: limpet.Store) -> None:
    """Not what was replaced, forgotten or has expired."""
    memory = store.memory("acme")
    made = memory.remember("Ada prefers e-mail", tags=["contact"])
    memory.remember("Bob prefers the telephone", ttl=1e-6)
    assert roles(store, "prefers") == {("memory/acme", "fact")}
    (hit,) = look(store, "contact").hits
    assert hit.memory == made.id
    memory.remember("Ada prefers e-mail")  # once more, which makes no second one
    assert len(look(store, "prefers").hits) == 1
    newer = memory.update(made.id, "Ada prefers letters")
    assert [hit.memory for hit in look(store, "prefers").hits] == [newer.id]
    memory.forget(newer.id)
    assert look(store, "prefers").hits == []


def test_what_is_forgotten_leaves_the_search_index_at_once(store: limpet.Store) -> None:
    """Forgetting must not wait for somebody to search."""
    memory = store.memory("acme")
    made = memory.remember("The password of Ada is Rumpelstiltskin")
    memory.remember("The sea is blue")
    assert look(store, "rumpelstiltskin").hits
    path = own_file(store.backend, "search")
    assert path is not None

    def anywhere(word: bytes) -> bool:
        files = Path(path).parent.glob("*")
        return any(word in file.read_bytes().lower() for file in files if file.is_file())

    assert anywhere(b"rumpelstiltskin")
    memory.forget(made.id)
    assert not anywhere(b"rumpelstiltskin")
    assert look(store, "sea").hits


def test_many_that_do_not_count_any_more_hide_none_that_do(store: limpet.Store) -> None:
    """What was replaced a hundred times still matches the words."""
    memory = store.memory("acme")
    made = memory.remember("tea")
    for number in range(60):
        look(store, "tea")  # each version is indexed while it is the newest
        made = memory.update(made.id, f"tea {number}")
    assert [hit.memory for hit in look(store, "tea", k=3).hits] == [made.id]


def test_kinds_prefix_and_labels_narrow_it_down(store: limpet.Store) -> None:
    """And the groups are by journal, the best first."""
    store.conversation("a-chat", labels={"team": "red"}).append(
        {"role": "user", "content": "okapi"}, {"role": "assistant", "content": "An okapi?"}
    )
    with store.task("b-task", goal="Find the okapi"):
        pass
    store.memory("a-memory").remember("An okapi is a giraffe")
    everything = look(store, "okapi")
    assert len(everything.groups) == 3
    assert not everything.more
    assert look(store, "okapi", k=2).more
    assert {hit.kind for hit in look(store, "okapi", kinds=["task"]).hits} == {"task"}
    assert {hit.id for hit in look(store, "okapi", prefix="a-").hits} == {"a-chat", "a-memory"}
    assert {hit.id for hit in look(store, "okapi", labels={"team": "red"}).hits} == {"a-chat"}
    (chat,) = look(store, "okapi", kinds=["conversation"]).groups
    assert [hit.position for hit in chat.hits] == [1, 2]


@pytest.mark.parametrize("kind", ["conversation", "task", "state", "memory"])
def test_a_damaged_journal_hides_no_other(store: limpet.Store, kind: str) -> None:
    """It is named, with what is wrong."""
    store.conversation("well").append({"role": "user", "content": "okapi"})
    key = Key("default", kind, "ill")
    store.backend.append(Append(key=key, body=seal(b"5"), count=1))
    view = look(store, "okapi")
    assert [hit.id for hit in view.hits] == ["well"]
    assert [(one.kind, one.id) for one in view.damaged] == [(kind, "ill")]


def test_odd_entries_of_a_task_are_no_error(store: limpet.Store) -> None:
    """They have our names, and somebody else's shape."""
    store.journal("task", "odd").append(
        ("created", {"goal": 5}), ("step", ["okapi"]), ("decided", {"decision": {"x": "okapi"}})
    )
    view = look(store, "okapi")
    assert view.damaged == []
    assert [hit.position for hit in view.hits] == [3]


def test_words_of_deep_values_are_found() -> None:
    """JSON may be nested deeper than Python goes."""
    value: Any = "okapi"
    for _ in range(100_000):
        value = [value]
    assert text_search.words_in(value) == "okapi"
    assert text_search.words_in({"a": {"id": "x", "b": 1}}, leaving={"id"}) == "a b 1"
