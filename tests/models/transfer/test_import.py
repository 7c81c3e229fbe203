"""Files that agents have written by themselves become conversations, tasks and states."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

import pytest
from click.testing import CliRunner
from hypothesis import given, settings, strategies

import limpet
from limpet import AsyncStore, Conflict, NotStorable, Store, TooLarge
from limpet.backends.memory import MemoryBackend
from limpet.cli import main
from limpet.core.codec import Codec
from limpet.errors import InvalidId, NotImportable, StoreUnavailable, TaskPaused
from limpet.store import scope_over
from limpet.testing.crash import Moment, Program, ack, crash, seeded, soak
from limpet.transfer import imports as importing
from limpet.transfer.imports import Item, parse, understand
from tests.cli.test_cli import OBEYED, in_terminal, lines_of
from tests.support import places
from tests.support.commands import run as run_command
from tests.support.stores import bot, call, result, system, user

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from limpet.backends.contract import Append, Appended

CHAT = [system("Be brief."), user("Order A-17?"), call("c1"), result("c1", "sent"), bot("Sent.")]

CHECKPOINT = {
    "agent_id": "agent-01",
    "task_id": "report-42",
    "goal": "Summarise open incidents",
    "plan": ["fetch", "count", "write"],
    "completed": ["fetch", "count"],
    "results": {"fetch": {"rows": [1, 2]}, "count": 2},
    "decisions": [{"decision": "use the replica", "because": "the API is slow"}],
    "discoveries": ["100 calls a minute"],
    "created_at": "2026-01-01T08:00:00Z",
    "updated_at": "2026-01-01T09:30:00.000001Z",
}

#: As `json.dump(await agent.save_state(), file)` writes it with AutoGen 0.7.
AGENT = {
    "type": "AssistantAgentState",
    "version": "1.0.0",
    "llm_context": {
        "messages": [
            {"content": "You look up orders.", "type": "SystemMessage"},
            {"content": "Where is A-17?", "source": "user", "type": "UserMessage"},
            {
                "content": [{"id": "c1", "arguments": '{"order": "A-17"}', "name": "look_up"}],
                "thought": "I must look it up.",
                "source": "support",
                "type": "AssistantMessage",
            },
            {
                "content": [
                    {"content": "sent", "name": "look_up", "call_id": "c1", "is_error": False},
                    {"content": "late", "name": "look_up", "call_id": "c2", "is_error": True},
                ],
                "type": "FunctionExecutionResultMessage",
            },
            {
                "content": "It was sent.",
                "thought": None,
                "source": "support",
                "type": "AssistantMessage",
            },
        ]
    },
}


def container(name: str, *texts: str, key: str = "agent_state") -> dict[str, Any]:
    """An agent in the state of a team, that has heard or said *texts*."""
    messages = [
        {"content": text, "source": "user" if n == 0 else "critic", "type": "UserMessage"}
        for n, text in enumerate(texts)
    ]
    messages.append({"content": f"{name}!", "source": name, "type": "AssistantMessage"})
    state = {"type": "AssistantAgentState", "llm_context": {"messages": messages}}
    return {"type": "ChatAgentContainerState", key: state, "message_buffer": []}


TEAM = {
    "type": "TeamState",
    "version": "1.0.0",
    "agent_states": {
        "writer": container("writer", "A poem.", "Better."),
        "critic/3f0b8e6a": container("critic", "A poem."),
        "inner": {
            "type": "ChatAgentContainerState",
            "agent_state": {
                "type": "SocietyOfMindAgentState",
                "inner_team_state": {
                    "type": "TeamState",
                    "agent_states": {"poet": container("poet", "A line.")},
                },
            },
        },
        "silent": {"type": "ChatAgentContainerState", "agent_state": {"type": "BaseState"}},
        "RoundRobinGroupChatManager": {"type": "RoundRobinManagerState", "message_thread": []},
    },
}


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty store."""
    with limpet.open("memory:") as opened:
        yield opened


def load(store: Store, document: Any, **how: Any) -> list[str]:
    """Import *document*, by way of its JSON, and say what that made."""
    items = understand(parse(json.dumps(document).encode()), **{"name": "file", **how})
    for item in items:
        importing.put(store, item)
    return [f"{item.kind}/{item.id}" for item in items]


def kept(store: Store, id_: str) -> Any:
    """The document in a state."""
    (entry,) = store.journal("state", id_).read()
    assert entry.type == "imported"
    return entry.body


# -- messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", [CHAT, {"messages": CHAT}, {"id": "file", "messages": CHAT}])
def test_a_list_of_messages_becomes_a_conversation(store: Store, document: Any) -> None:
    """As it is, known by the file's name."""
    assert load(store, document) == ["conversation/file"]
    assert store.conversation("file").messages() == CHAT
    assert store.conversation("file").window(max_messages=3)[-1] == CHAT[-1]
    assert store.conversation("file").append(user("Thanks")) == 6


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_json_lines_are_messages_too(*, lines: bool, end: str) -> None:
    """Whether the name says so or not."""
    data = end.join(json.dumps(message) for message in CHAT) + end
    assert parse(data.encode(), lines=lines) == CHAT


def test_a_single_line_is_a_single_message(store: Store) -> None:
    """The smallest file of its kind."""
    for document in (CHAT[1], [CHAT[1]]):
        load(store, document)
    assert store.conversation("file").messages() == [CHAT[1]]


def test_what_stands_beside_the_messages_is_not_lost(store: Store) -> None:
    """It has no place in a conversation, so all of it is kept."""
    document = {"messages": CHAT, "model": "some-model", "usage": {"tokens": 7}}
    assert load(store, document) == ["conversation/file", "state/file/file"]
    assert kept(store, "file/file") == document
    odd = {"role": "user", "content": "x", "messages": 5}
    assert load(store, odd, id="x") == ["conversation/x"]
    assert load(store, {"id": "own", "messages": CHAT}, id="y") == [
        "conversation/y",
        "state/y/file",
    ]


def test_messages_of_other_shapes_with_a_role_stay_as_they_are(store: Store) -> None:
    """Parts, tools, reasoning: whatever the model's API has."""
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}], "timestamp": 1.5},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"role": "developer", "content": None},
    ]
    assert load(store, messages) == ["conversation/file"]
    assert store.conversation("file").messages() == messages


def test_a_history_of_langchain_is_put_into_our_shape(store: Store) -> None:
    """And kept as it was besides, for what our shape has no place for."""
    args = {"order": "A-17"}
    tool_calls = [{"name": "look_up", "args": args, "id": "c1", "type": "tool_call"}]
    history = [
        {"type": "system", "data": {"content": "Be brief."}},
        {"type": "human", "data": {"content": "Where?", "additional_kwargs": {}}},
        {"type": "ai", "data": {"content": "", "tool_calls": tool_calls}},
        {"type": "tool", "data": {"content": "sent", "tool_call_id": "c1"}},
        {"type": "ai", "data": {"content": "Sent.", "tool_calls": []}},
    ]
    assert load(store, history) == ["conversation/file", "state/file/file"]
    function = {"name": "look_up", "arguments": '{"order": "A-17"}'}
    assert store.conversation("file").messages() == [
        system("Be brief."),
        user("Where?"),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "sent", "tool_call_id": "c1"},
        bot("Sent."),
    ]
    assert kept(store, "file/file") == history


def test_flat_messages_of_langchain_are_put_into_our_shape(store: Store) -> None:
    """As `[m.model_dump() for m in messages]` has them."""
    about: dict[str, Any] = {
        "additional_kwargs": {},
        "response_metadata": {},
        "name": None,
        "id": None,
    }
    args = {"name": "look_up", "args": {"order": "A-17"}, "id": "c1", "type": "tool_call"}
    history = [
        {"content": "Be brief.", **about, "type": "system"},
        {"content": "Where?", **about, "type": "human", "example": False},
        {"content": "", **about, "type": "ai", "tool_calls": [args], "invalid_tool_calls": []},
        {"content": "sent", **about, "type": "tool", "tool_call_id": "c1", "status": "success"},
        {"content": "Sent.", **about, "type": "ai", "tool_calls": []},
    ]
    load(store, history)
    found = store.conversation("file").messages()
    assert [message["role"] for message in found] == [
        *("system", "user", "assistant", "tool", "assistant")
    ]
    assert found[2]["tool_calls"][0]["function"]["name"] == "look_up"
    assert found[3] == result("c1", "sent")
    assert found[4] == bot("Sent.")


# -- ChatGPT ---------------------------------------------------------------------------------------


def node(id_: str, parent: str | None, role: str = "", *parts: Any, **more: Any) -> dict[str, Any]:
    """A place in the tree of a chat, as ChatGPT exports it."""
    content = {"content_type": "text", "parts": list(parts)}
    message = {"id": id_, "author": {"role": role, "name": None}, "content": content, **more}
    return {"id": id_, "message": message if role else None, "parent": parent, "children": []}


def chat_of_chatgpt(id_: str = "chat-1") -> dict[str, Any]:
    """A chat in which an answer was asked for again."""
    hidden = {"metadata": {"is_visually_hidden_from_conversation": True}}
    nodes = [
        node("root", None),
        node("s", "root", "system", "", **hidden),
        node("q", "s", "user", {"content_type": "image_asset_pointer"}, "What is it?"),
        node("a1", "q", "assistant", "A whelk.", recipient="all"),
        node("a2", "q", "assistant", "search('shell')", recipient="browser"),
        node("t", "a2", "tool", "A limpet is a snail."),
        node("a3", "t", "assistant", "A limpet.", recipient="all"),
    ]
    mapping = {one["id"]: one for one in nodes}
    return {
        "title": "A shell",
        "create_time": 1700000000.5,
        "mapping": mapping,
        "current_node": "a3",
        "conversation_id": id_,
        "id": id_,
    }


def test_chats_of_chatgpt_become_conversations_along_the_branch_that_was_shown(
    store: Store,
) -> None:
    """What was said to people; all of the tree is stored besides."""
    chats = [chat_of_chatgpt("chat-1"), chat_of_chatgpt("chat-2")]
    assert load(store, chats, name="conversations") == [
        *("conversation/chat-1", "state/chat-1/file"),
        *("conversation/chat-2", "state/chat-2/file"),
    ]
    assert store.conversation("chat-2").messages() == [user("What is it?"), bot("A limpet.")]
    assert kept(store, "chat-1/file") == chats[0]


def test_a_chat_of_chatgpt_without_a_current_node_ends_with_the_newest(store: Store) -> None:
    """Nor does a tree that is a circle keep us for ever."""
    chat = chat_of_chatgpt()
    del chat["current_node"], chat["mapping"]["a3"], chat["mapping"]["t"], chat["mapping"]["a2"]
    chat["mapping"]["root"]["parent"] = "a1"
    load(store, chat)
    assert store.conversation("chat-1").messages() == [user("What is it?"), bot("A whelk.")]


# -- AutoGen ---------------------------------------------------------------------------------------


def test_an_agent_of_autogen_becomes_a_conversation_and_a_state(store: Store) -> None:
    """Calls and results in the shape of the OpenAI SDK; the document whole."""
    assert load(store, AGENT) == ["conversation/file/messages", "state/file"]
    function = {"name": "look_up", "arguments": '{"order": "A-17"}'}
    assert store.conversation("file/messages").messages() == [
        system("You look up orders."),
        user("Where is A-17?"),
        {
            "role": "assistant",
            "content": "I must look it up.",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        result("c1", "sent"),
        result("c2", "late"),
        bot("It was sent."),
    ]
    assert kept(store, "file") == AGENT


def test_a_team_of_autogen_becomes_a_conversation_for_each_agent(store: Store) -> None:
    """Under the team's name, teams within teams too; who has said nothing has no conversation."""
    assert load(store, TEAM, id="poets") == [
        *("conversation/poets/writer", "conversation/poets/critic"),
        *("conversation/poets/inner/poet", "state/poets"),
    ]
    assert store.conversation("poets/writer").messages() == [
        user("A poem."),
        {"role": "user", "content": "Better.", "name": "critic"},
        bot("writer!"),
    ]
    assert kept(store, "poets") == TEAM


def test_pictures_of_autogen_become_parts(store: Store) -> None:
    """As the OpenAI SDK has them."""
    content = ["Look:", {"data": "iVBORw0KGgo="}]
    message = {"content": content, "source": "user", "type": "UserMessage"}
    load(store, {"type": "AssistantAgentState", "llm_context": {"messages": [message]}})
    assert store.conversation("file/messages").messages()[0]["content"] == [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
    ]


def test_an_agent_without_messages_is_kept_as_a_state(store: Store) -> None:
    """There is nothing to make a conversation of."""
    state = {"type": "AssistantAgentState", "llm_context": {"messages": []}}
    assert load(store, state) == ["state/file"]


def test_a_state_can_be_imported_as_one_thing_only(store: Store) -> None:
    """With --as."""
    assert load(store, AGENT, as_="conversation", id="a") == ["conversation/a"]
    assert load(store, AGENT, as_="state", id="b") == ["state/b"]
    with pytest.raises(NotImportable, match="not a checkpoint"):
        understand(AGENT, name="c", as_="task")


# -- checkpoints -----------------------------------------------------------------------------------


def resumed(store: Store, id_: str = "report-42", goal: str = "Summarise open incidents") -> Any:
    """Which steps run when the task is resumed, and all results."""
    ran: list[str] = []

    def execute(step: limpet.Step) -> str:
        ran.append(step.name)
        return f"{step.name} now"

    return ran, store.run(id_, goal, plan=lambda: ["never made"], execute=execute)


def test_a_checkpoint_becomes_a_task_that_goes_on_after_the_completed_steps(store: Store) -> None:
    """What is done is not done again, and its results are there."""
    assert load(store, CHECKPOINT) == ["task/report-42"]
    assert [info.id for info in store.tasks(status="open", labels={"agent": "agent-01"})] == [
        "report-42"
    ]
    task = store.task("report-42")
    assert "use the replica" in task.resume_context()
    ran, outcome = resumed(store)
    assert ran == ["write"]
    assert outcome == {"fetch": {"rows": [1, 2]}, "count": 2, "write": "write now"}
    assert task.checkpoint().decisions[0].because == "the API is slow"


def test_a_task_is_stored_as_if_it_had_been_run_here(store: Store) -> None:
    """The same entries, so that nothing ever has to know that it was not."""
    load(store, CHECKPOINT)
    with store.task("own", goal=CHECKPOINT["goal"], agent="agent-01") as task:  # type: ignore[arg-type]
        task.plan(CHECKPOINT["plan"])
        task.step("fetch", lambda: {"rows": [1, 2]})
        task.step("count", lambda: 2)
        task.decide("use the replica", because="the API is slow")
        task.discover("100 calls a minute")
    own, imported = (store.journal("task", id_).read() for id_ in ("own", "report-42"))
    for entry in own:
        if entry.type == "step":
            assert isinstance(entry.body.pop("took"), float)
    for entry in imported:
        if entry.type == "step":
            assert isinstance(entry.body.pop("took"), float)
    assert [(e.type, e.body) for e in imported] == [(e.type, e.body) for e in own]
    heads = [store.journal("task", id_).head() for id_ in ("own", "report-42")]
    assert len({(h.status, str(h.labels)) for h in heads if h is not None}) == 1


def test_our_own_checkpoints_come_back(store: Store) -> None:
    """What `Checkpoint.to_json` wrote, task for task."""
    with store.task("mine", goal="Try", agent="me") as task:
        task.plan([{"name": "a", "url": "x"}, "b", "b"])
        task.step("a", lambda: None)
        task.step("b", lambda: [1])
        task.step("aside", lambda: 0.5)
        task.decide("so")
        task.discover("such")
        point = task.checkpoint()
    (item,) = understand(parse(point.to_json().encode()), name="x", id="yours")
    assert item.notes == ["done, and not in the plan: aside"]
    importing.put(store, item)
    found = store.task("yours").checkpoint().to_dict()
    assert {k: v for k, v in found.items() if not k.endswith(("_at", "task_id"))} == {
        k: v for k, v in point.to_dict().items() if not k.endswith(("_at", "task_id"))
    }
    assert resumed(store, "yours", "Try")[0] == ["b#2"]


def pay_and_die(store: Store, in_doubt: Literal["ask", "skip"]) -> None:
    """A task in the middle of whose last step the process ends."""

    def die() -> None:
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt), store.task("pay", goal="Pay") as task:
        task.plan(["look", "charge"])
        task.step("look", lambda: 17)
        task.step("charge", die, in_doubt=in_doubt)


def comes_back(store: Store, id_: str, *notes: str) -> limpet.Checkpoint:
    """Import the checkpoint of the task *id_* as another one, which is the same but for its id."""
    point = store.task(id_).checkpoint()
    (item,) = understand(parse(point.to_json().encode()), name="x", id=f"{id_} again")
    assert item.notes == list(notes)
    importing.put(store, item)
    found: limpet.Checkpoint = store.task(f"{id_} again").checkpoint()
    return found


def test_a_call_in_doubt_is_in_doubt_after_the_import_of_its_checkpoint(store: Store) -> None:
    """Or the payment would be made twice."""
    pay_and_die(store, in_doubt="ask")
    found = comes_back(store, "pay")
    assert found.in_doubt == ["charge"]
    doubts = [(one.id, one.call.id) for one in store.in_doubt()]
    assert sorted(doubts) == [("pay", "charge"), ("pay again", "charge")]
    charged: list[str] = []
    with pytest.raises(limpet.TaskWaiting), store.task("pay again") as task:
        task.step("charge", charged.append, "twice", in_doubt="ask")
    assert not charged
    assert comes_back(store, "pay again").status == "waiting"
    store.resolve("pay again again", "charge", "done", result="receipt")
    with store.task("pay again again") as task:
        assert task.step("charge", charged.append, "twice", in_doubt="ask") == "receipt"


@pytest.mark.parametrize("outcome", [None, "42", {"sum": [1, 2]}])
def test_a_done_task_is_done_after_the_import_of_its_checkpoint(store: Store, outcome: Any) -> None:
    """Nobody works on it again, and what came of it is there."""
    with store.task("t", goal="Try") as task:
        task.plan(["a", "b"])
        task.step("a", lambda: 1)
        task.finish(outcome)
    assert comes_back(store, "t").outcome == outcome
    assert [info.id for info in store.tasks(status="done")] == ["t", "t again"]
    assert store.run("t again", "Try", plan=list, execute=lambda _: pytest.fail("ran")) == outcome


def test_what_has_halted_a_task_halts_it_after_the_import_of_its_checkpoint(store: Store) -> None:
    """Paused, cancelled, failed, or ended by an error: with the reason."""
    for id_ in ("paused", "cancelled", "failed", "open"):
        with contextlib.suppress(ValueError), store.task(id_, goal="Try") as task:
            if id_ == "failed":
                task.fail("no more")
            elif id_ == "open":
                raise ValueError("a typing error")
    store.pause("paused")
    store.cancel("cancelled", because="not wanted")
    for id_ in ("paused", "cancelled", "failed", "open"):
        was, found = store.task(id_).checkpoint(), comes_back(store, id_)
        assert (found.status, found.error) == (was.status, was.error) == (id_, was.error)
        assert store.task(f"{id_} again").info().status == id_
    with pytest.raises(TaskPaused), store.task("paused again"):
        pass


def test_a_task_that_waits_for_a_signal_comes_to_its_wait_again(store: Store) -> None:
    """A checkpoint does not say of what kind a wait is; the program does."""
    with pytest.raises(limpet.TaskWaiting), store.task("t", goal="Try") as task:
        task.wait_for("approval")
    assert comes_back(store, "t", "it waits again when it comes to 'approval'").status == "open"
    store.signal("t again", "approval", payload="yes")
    with store.task("t again") as task:
        assert task.wait_for("approval") == "yes"


def test_the_beginning_of_a_large_result_is_not_taken_for_it(store: Store) -> None:
    """A checkpoint has no more of it; a whole export has."""
    with store.task("t", goal="Try") as task:
        task.step("crawl", lambda: "x" * 100_000)
    with pytest.raises(NotImportable, match=r"large result of step 'crawl'.*--kind task"):
        comes_back(store, "t")


@pytest.mark.parametrize(
    ("changes", "odd"),
    [
        ({"waiting_for": 5, "status": "waiting"}, "'waiting_for'"),
        ({"waiting_for": {"a": {"kind": "x", "until": "soon"}}, "status": "waiting"}, "'waiting_f"),
        (
            {
                "waiting_for": {"a": {"kind": "sleep", "until": "2026-01-01T00:00:00"}},
                "status": "waiting",
            },
            "timezone",
        ),
        ({"in_doubt": 5}, "'in_doubt' is not a list"),
        ({"in_doubt": [5]}, "'in_doubt' has 5"),
        ({"status": "forking"}, "half a fork"),
    ],
)
def test_an_ending_that_cannot_be_one_is_named(changes: dict[str, Any], odd: str) -> None:
    """Before anything is written."""
    with pytest.raises(NotImportable, match=odd):
        understand({**CHECKPOINT, **changes}, name="x")


@pytest.mark.parametrize(
    ("completed", "results"),
    [
        ([0, 1], {"0": {"rows": [1, 2]}, "1": 2}),
        ([0, 1], {"fetch": {"rows": [1, 2]}, "count": 2}),
        (["0", "1"], [{"rows": [1, 2]}, 2]),
        (None, {"0": {"rows": [1, 2]}, "1": 2}),
        ([{"index": 0, "result": {"rows": [1, 2]}}, {"index": 1, "result": 2}], None),
    ],
)
def test_a_position_in_the_plan_is_a_step(store: Store, completed: Any, results: Any) -> None:
    """As tutorials write checkpoints: the plan is a list of texts, and a loop counts."""
    load(store, {**CHECKPOINT, "completed": completed, "results": results})
    ran, outcome = resumed(store)
    assert ran == ["write"]
    assert (outcome["fetch"], outcome["count"]) == ({"rows": [1, 2]}, 2)


def test_a_number_that_is_the_name_of_a_step_is_that_step(store: Store) -> None:
    """Not the one in that position."""
    plan = [{"step": 1, "description": "fetch"}, {"step": 2, "description": "count"}]
    load(store, {**CHECKPOINT, "plan": plan, "completed": [1], "results": {"1": "a"}})
    assert store.task("report-42").checkpoint().results == {"1": "a"}


def test_positions_that_begin_with_1_are_known_by_the_last(store: Store) -> None:
    """Where the highest is the length of the plan, there is no other way to count."""
    results = {"1": "a", "2": "b", "3": "c"}
    load(store, {**CHECKPOINT, "completed": [1, 2, 3], "results": results})
    found = store.task("report-42").checkpoint().results
    assert found == {"fetch": "a", "count": "b", "write": "c"}


def test_a_checkpoint_keeps_its_times(store: Store) -> None:
    """The list of tasks says when it was begun and when it was last worked on."""
    load(store, CHECKPOINT)
    info = store.task("report-42").info()
    assert info.created_at == datetime(2026, 1, 1, 8, tzinfo=UTC)
    assert info.updated_at == datetime(2026, 1, 1, 9, 30, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize("time", ["2999-01-01T00:00:00Z", 1e12, "yesterday", True, [1], -5, 1e300])
def test_a_time_that_cannot_be_is_not_kept(store: Store, time: Any) -> None:
    """No entry is written in the future; the document is, whole."""
    load(store, {**CHECKPOINT, "created_at": None, "updated_at": time})
    updated = store.task("report-42").info().updated_at
    assert datetime(2026, 1, 1, tzinfo=UTC) < updated <= datetime.now(UTC)


@pytest.mark.parametrize(
    "changes",
    [
        {"completed": None, "completed_steps": ["fetch", "count"]},
        {"results": None, "intermediate_results": CHECKPOINT["results"]},
        {"goal": None, "objective": CHECKPOINT["goal"]},
        {"completed": None},
        {"results": [{"rows": [1, 2]}, 2]},
        {"results": [{"step": "count", "result": 2},
                     {"name": "fetch", "output": {"rows": [1, 2]}}]},
        {"results": None, "completed": [{"name": "fetch", "result": {"rows": [1, 2]}},
                                        {"step": "count", "output": 2}]},
        {"plan": [{"id": 1, "title": "fetch"}, {"id": 2, "title": "count"},
                  {"id": 3, "title": "write"}],
         "completed": [1, 2], "results": {"1": {"rows": [1, 2]}, "2": 2}},
        {"plan": [{"index": 0, "title": "fetch"}, {"index": 1, "title": "count"}, "write"],
         "results": [{"index": 1, "result": 2}, {"index": 0, "result": {"rows": [1, 2]}}]},
        {"plan": None, "steps": [
            {"name": "fetch", "status": "completed", "result": {"rows": [1, 2]}},
            {"name": "count", "done": True, "result": 2},
            {"name": "write", "status": "pending"}], "completed": None, "results": None},
    ],
)  # fmt: skip
def test_checkpoints_of_other_shapes_go_on_at_the_same_step(
    store: Store, changes: dict[str, Any]
) -> None:
    """Everybody writes them a little differently."""
    assert load(store, {**CHECKPOINT, **changes})[0] == "task/report-42"
    ran, outcome = resumed(store)
    assert ran == ["write"]
    assert (outcome["fetch"], outcome["count"]) == ({"rows": [1, 2]}, 2)


@pytest.mark.parametrize("plan", [None, ["look", "look"]])
def test_each_run_of_a_step_in_a_loop_has_its_own_result(store: Store, plan: Any) -> None:
    """The second is no newer form of the first."""
    results = [{"step": "look", "result": 1}, {"step": "look", "result": 2}]
    document = {**CHECKPOINT, "plan": plan, "completed": ["look", "look"], "results": results}
    load(store, document)
    assert store.task("report-42").checkpoint().results == {"look": 1, "look#2": 2}


def test_one_of_several_steps_of_a_name_is_known_by_its_number(store: Store) -> None:
    """The other one is still to be run."""
    plan = [{"id": 1, "name": "look"}, {"id": 2, "name": "look"}]
    completed = [{"id": 2, "name": "look"}]
    load(store, {**CHECKPOINT, "plan": plan, "completed": completed, "results": None})
    assert list(store.task("report-42").checkpoint().completed) == ["look#2"]


def test_a_checkpoint_without_a_plan_leaves_the_planning_to_the_next_run(store: Store) -> None:
    """An empty plan would be a task with nothing left to do."""
    for id_, plan in (("a", None), ("b", [])):
        load(store, {**CHECKPOINT, "plan": plan}, id=id_)
        assert resumed(store, id_)[0] == ["never made"]


def test_what_a_task_has_no_place_for_is_not_lost(store: Store) -> None:
    """Unknown fields, results of no step, decisions with more to them: kept with the whole."""
    kinds_of_more: list[dict[str, Any]] = [
        {"total_tokens": 1234},
        {"results": {"fetch": 1, "count": 2, "summary": "x"}},
        {"decisions": [{"decision": "so", "by": "ann"}]},
        {"discoveries": [{"odd": 1}]},
        {"updated_at": "2999-01-01T00:00:00Z"},
    ]
    for number, more in enumerate(kinds_of_more):
        id_ = f"t{number}"
        assert load(store, {**CHECKPOINT, **more}, id=id_) == [f"task/{id_}", f"state/{id_}/file"]
        assert kept(store, f"{id_}/file") == {**CHECKPOINT, **more}
    item = understand({**CHECKPOINT, **kinds_of_more[1]}, name="x")[0]
    assert item.notes == ["results of no completed step: summary"]
    assert store.task("t3").checkpoint().discoveries == ['{"odd": 1}']


def test_the_same_decision_is_stored_once(store: Store) -> None:
    """As a task does it."""
    load(store, {**CHECKPOINT, "decisions": ["so", "so", {"choice": "so"}]})
    assert [d.decision for d in store.task("report-42").checkpoint().decisions] == ["so"]


def test_a_goal_can_be_given(store: Store) -> None:
    """Many checkpoints have none."""
    document = {"task_id": "t", "completed_steps": ["a"], "intermediate_results": {"a": 1}}
    with pytest.raises(NotImportable, match="--goal"):
        understand(document, name="x")
    load(store, document, goal="Try")
    assert store.task("t").checkpoint().goal == "Try"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"completed_steps": ["fetch"]}, "Both 'completed' and 'completed_steps'"),
        ({"completed": 2}, "'completed' is not a list"),
        ({"completed": [0, 7]}, "Which step is 7"),
        ({"completed": None, "results": {"0": 1, "7": 2}}, "Which step is '7'"),
        ({"completed": [1, 2], "results": [0, 3]}, "Which step is 1"),
        ({"completed": [1, 2]}, "Which step is 1.*counted from 0 or from 1"),
        ({"plan": [{"id": 1, "name": "fetch"}], "completed": [0]}, "Which step is 0"),
        ({"plan": [{"name": "fetch"}], "completed": [None]}, "Which step is None"),
        ({"plan": [{"name": "fetch"}], "completed": [{"label": "x"}]}, "Which step is {'label'"),
        ({"results": [{"step": "fetch", "result": 1}] * 2}, "more than one of step 'fetch'"),
        ({"plan": [{"id": 1, "name": "fetch"}], "completed": ["fetch"],
          "results": {"1": 1, "fetch": 2}}, "more than one of step 'fetch'"),
        ({"results": [1]}, "which step each is of"),
        ({"results": 7}, "not by step"),
        ({"plan": "First fetch, then count."}, "'plan' is not a list"),
        ({"plan": ["fetch", 2]}, r"plan\[1\]"),
        ({"plan": [{"cost": 1}]}, r"plan\[0\]"),
        ({"decisions": "so"}, "'decisions' is not a list"),
        ({"completed": None, "results": None, "current_step": 2}, "'current_step' = 2"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_leaves_something_open_is_refused(
    changes: dict[str, Any], said: str
) -> None:
    """A guess would run a step twice, or not at all."""
    with pytest.raises(NotImportable, match=said):
        understand({**CHECKPOINT, **changes}, name="x")


@pytest.mark.parametrize("plan", [["a\nb"], [""], ["x" * 600]])
def test_a_step_that_cannot_be_one_is_named(plan: list[str]) -> None:
    """Before anything is written."""
    with pytest.raises(InvalidId, match="step name"):
        understand({**CHECKPOINT, "plan": plan}, name="x")


# -- many ------------------------------------------------------------------------------------------


def test_a_list_of_checkpoints_becomes_many_tasks(store: Store) -> None:
    """Each known by its own id, or by its number."""
    second = {**CHECKPOINT, "task_id": None}
    assert load(store, [CHECKPOINT, second]) == ["task/report-42", "task/file-2"]
    assert load(store, [CHECKPOINT, second], id="old") == ["task/old/report-42", "task/old/file-2"]


def test_an_object_of_conversations_becomes_many(store: Store) -> None:
    """Each known by its key; tasks and states too."""
    document = {"alice": CHAT, "bob": {"messages": CHAT[:2]}, "work": CHECKPOINT, "team": TEAM}
    assert load(store, document)[:3] == ["conversation/alice", "conversation/bob", "task/work"]
    assert store.conversation("bob").messages() == CHAT[:2]
    sessions = [{"session_id": "s1", "messages": CHAT}, {"messages": CHAT[:1]}]
    assert load(store, sessions) == ["conversation/s1", "conversation/file-2"]


def test_two_things_of_one_name_are_refused() -> None:
    """Which of them it would be, nobody could tell."""
    with pytest.raises(NotImportable, match="Two of them are known as task 'report-42'"):
        understand([CHECKPOINT, {**CHECKPOINT, "goal": "Other"}], name="x")


@pytest.mark.parametrize("id_", ["", " x", "a\nb", "x" * 600])
def test_an_id_that_cannot_be_one_is_refused_before_anything_is_written(id_: str) -> None:
    """Names of files can be odd."""
    with pytest.raises(InvalidId):
        understand(CHAT, name=id_)


def test_the_agent_may_be_an_object(store: Store) -> None:
    """Or nothing at all."""
    load(store, {**CHECKPOINT, "agent_id": None, "agent": {"name": "ann", "model": "x"}}, id="a")
    load(store, {**CHECKPOINT, "agent_id": ""}, id="b")
    assert store.task("a").checkpoint().agent_id == "ann"
    assert store.task("b").checkpoint().agent_id is None
    assert kept(store, "a/file")["agent"]["model"] == "x"


# -- what is not understood ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "document",
    [{}, [], 7, None, "text", [1, 2], {"a": 1}, [CHAT[0], 7], {"messages": []}, [[]], {"a": {}},
     {"goal": "x"}, {"type": "object"}, [{"type": "x"}], {"notes": [{"topic": "x"}]},
     [{"role": "manager", "name": "ann"}]],
)  # fmt: skip
def test_what_is_nothing_we_know_is_refused_and_can_be_kept_whole(
    store: Store, document: Any
) -> None:
    """With a word on what it is, and on what to do."""
    with pytest.raises(NotImportable, match="--as state"):
        understand(document, name="x")
    assert load(store, document, as_="state") == ["state/file"]
    assert kept(store, "file") == document


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            {"alice": [{"role": "user", "content": "Hi"}], "bob": []},
            "An empty list under 'bob' is not",
        ),
        ([CHECKPOINT, {"goal": "x"}], "An object with 'goal' in place 2 is not"),
        ([[], {}], "A list of 2 is not"),
    ],
)
def test_the_one_among_many_that_is_not_known_is_named(document: Any, said: str) -> None:
    """Nobody looks through hundreds of them."""
    with pytest.raises(NotImportable, match=said):
        understand(document, name="x")


def test_what_may_be_two_things_is_asked_about(store: Store) -> None:
    """A checkpoint with the conversation in it."""
    document = {**CHECKPOINT, "messages": CHAT}
    with pytest.raises(NotImportable, match="--as conversation, --as task, or --as state"):
        understand(document, name="x")
    assert load(store, document, as_="conversation") == ["conversation/file"]
    assert load(store, document, as_="task") == ["task/report-42"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"role": "user",\n  "content": oops}]', r"not JSON: .* \(line 2, column 14\)"),
        ('{"a": 1,}', r"line 1, column [89]"),  # Python 3.13 and newer point at the comma
        ('{"role": "user"}\n{"role": oops}\n', r"line 2, column 10"),
        ('[{"role": "user", "content": "Hel', r"cut off \(line 1, column 30\)"),
        ('[{"role": "user"},\n', r"cut off \(line 2, column 1\)"),
        ('{"role": "user"}\n{"role": "us', r"cut off \(line 2, column 10\)"),
        ('{"a": tru', "cut off"),
        ('{"a":\n "NaN", "b": NaN}', r"NaN is not JSON \(line 2, column 14\)"),
        ("[-Infinity]", r"-Infinity is not JSON \(line 1, column 2\)"),
        ("", "empty"),
        (" \n ", "empty"),
        ("[" * 100_000, "nested too deep"),
        ('[{"role": "user", "n": ' + "1" * 5000 + "}]", "thousands of digits"),
        ('{"alice": [], "bob": [], "alice": []}', "The key 'alice' is there twice"),
        ("hello", "not JSON"),
    ],
)
def test_a_file_that_is_no_json_is_refused_with_the_place(text: str, said: str) -> None:
    """Line and column; and whether the writer was cut short."""
    with pytest.raises(NotImportable, match=said):
        parse(text.encode())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32-le"])
def test_text_of_any_unicode_encoding_is_read(encoding: str) -> None:
    """Editors on Windows put a mark in front."""
    data = json.dumps([user("Grüße, 世界")], ensure_ascii=False).encode(encoding)
    assert parse(data) == [user("Grüße, 世界")]


def test_text_of_another_encoding_is_read_if_that_is_named(tmp_path: Path) -> None:
    """It is not guessed: what is damaged would be taken for text of another country."""
    (tmp_path / "old.json").write_bytes('[{"role": "user", "content": "Grüße"}]'.encode("latin-1"))
    refused = run_command("import", "old.json", code=1).stderr
    assert "It is not text" in refused
    assert "--encoding cp1252" in refused
    run_command("import", "old.json", "--encoding", "latin-1")
    assert "Grüße" in run_command("show", "old").stdout
    assert "no encoding 'x'" in run_command("import", "old.json", "--encoding", "x", code=1).stderr


@pytest.mark.parametrize(
    "data", [b'["\xff\xfe\xfa"]', b"\x80\x04\x95 a pickle", b"SQLite format 3\x00"]
)
def test_a_file_that_is_no_text_is_refused(data: bytes) -> None:
    """It is never tried as anything else."""
    with pytest.raises(NotImportable):
        parse(data)


def test_a_file_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a limit, and it is said."""
    monkeypatch.setattr(importing, "MAX_FILE", 100)
    with pytest.raises(NotImportable, match="100 is the most"):
        parse(b" " * 101)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (r'[{"role": "user", "content": "\ud800"}]', NotStorable, r"message 1\['content'\]"),
        ('[{"role": "user", "content": 1e400}]', NotStorable, r"message 1\['content'\] is inf"),
        (
            '[{"role": "a"}, {"role": "u", "content": %s}]' % ("[" * 200 + "]" * 200),
            TooLarge,
            "message 2",
        ),
        ('{"x": %s}' % ("[" * 200 + "]" * 200), TooLarge, "the document"),
    ],
)
def test_what_no_store_can_keep_is_refused_with_the_place(
    text: str, kind: type[Exception], said: str
) -> None:
    """Before anything is written."""
    as_ = "state" if text.startswith("{") else None
    with pytest.raises(kind, match=said):
        understand(parse(text.encode()), name="x", as_=as_)


WORDS = [
    *("role", "content", "type", "data", "tool_calls", "args", "id", "messages", "llm_context"),
    *("agent_state", "agent_states", "inner_team_state", "source", "thought", "goal", "plan"),
    *("completed", "results", "decisions", "discoveries", "name", "step", "result", "status"),
    *("task_id", "agent", "created_at", "because", "current_step", "in_doubt", "waiting_for"),
    *("outcome", "error", "mapping", "parent", "message", "author", "parts", "current_node"),
]
VALUES = [
    *("user", "human", "ai", "tool", "UserMessage", "AssistantMessage", "TeamState", "done", "a"),
    *("FunctionExecutionResultMessage", "SystemMessage", "AssistantAgentState", "2026-01-01", ""),
    *("waiting", "failed", "paused", "0", "1"),
]
DOCUMENTS = strategies.recursive(
    strategies.none()
    | strategies.booleans()
    | strategies.integers(-2, 3)
    | strategies.floats(allow_nan=False, allow_infinity=False)
    | strategies.sampled_from(VALUES)
    | strategies.text(max_size=3),
    lambda inner: (
        strategies.lists(inner, max_size=4)
        | strategies.dictionaries(strategies.sampled_from(WORDS), inner, max_size=6)
    ),
    max_leaves=25,
)


@pytest.mark.slow
@settings(max_examples=500)
@given(document=DOCUMENTS, as_=strategies.sampled_from([None, "conversation", "task", "state"]))
def test_whatever_is_in_a_file_is_imported_or_refused_in_words(
    document: Any, as_: str | None
) -> None:
    """No shape of data ends in a traceback."""
    with limpet.open("memory:") as store:
        try:
            items = understand(document, name="file", as_=as_)
        except limpet.LimpetError:
            return
        assert items
        for item in items:
            assert importing.put(store, item)
            assert not importing.put(store, item)
            if item.kind == "conversation":
                assert store.conversation(item.id).messages()
            elif item.kind == "task":
                assert store.task(item.id).checkpoint().goal


# -- show --json -----------------------------------------------------------------------------------


def shown(url: str, name: str) -> Any:
    """What `limpet show --json` prints of it."""
    return json.loads(run_command("--store", url, "show", name, "--json").stdout)


def test_what_show_prints_for_programs_is_imported_as_what_it_was(
    store: Store, tmp_path: Path
) -> None:
    """Under its own id: messages, a task with its doubts, the newest save of a state."""
    url = str(tmp_path / "agents.db")
    with limpet.open(url) as source:
        source.conversation("alice", labels={"team": "red"}).append(*CHAT)
        source.state("notes").save({"a": [1]})
        pay_and_die(source, in_doubt="skip")
    documents = [shown(url, name) for name in ("alice", "notes", "pay")]
    for document, made in zip(
        documents, ("conversation/alice", "state/notes", "task/pay"), strict=True
    ):
        assert load(store, document) == [made]
    assert store.conversation("alice").messages() == CHAT
    assert store.conversation("alice").info().labels == {"team": "red"}
    assert store.state("notes").load() == {"a": [1]}
    assert store.task("pay").checkpoint().results == {"look": 17}
    assert [(one.id, one.call.policy) for one in store.in_doubt()] == [("pay", "skip")]
    assert load(store, documents, id="all")[0] == "conversation/all/alice"
    documents[0]["in_doubt"] = {"c1": {"id": "c1"}}
    with pytest.raises(NotImportable, match=r"calls in doubt.*limpet export"):
        understand(documents[0], name="x")


def test_a_shown_task_that_waits_waits_until_the_same_moment(store: Store, tmp_path: Path) -> None:
    """What is shown says of what kind each wait is."""
    url = str(tmp_path / "agents.db")
    with (
        limpet.open(url) as source,
        contextlib.suppress(limpet.TaskWaiting),
        source.task("t", goal="Try") as task,
    ):
        task.wait_for("approval", timeout=5_000)
    load(store, shown(url, "t"))
    with limpet.open(url) as source:
        (was,), (found,) = source.tasks(), store.tasks()
    assert (found.status, found.due) == ("waiting", was.due)
    assert found.due is not None


# -- again -----------------------------------------------------------------------------------------


def long_chat(length: int = 10_000) -> list[dict[str, Any]]:
    """A long conversation."""
    return [user(f"{number} {'x' * (number % 50)}") for number in range(length)]


@pytest.mark.parametrize(
    "document", [CHAT, AGENT, TEAM, CHECKPOINT, long_chat(500), [CHECKPOINT]], ids=count()
)
def test_importing_the_same_again_adds_nothing(store: Store, document: Any) -> None:
    """Also when the work has gone on meanwhile, and however the file is laid out."""
    names = load(store, document)
    for name in names:
        kind, _, id_ = name.partition("/")
        if kind == "conversation":
            store.conversation(id_).append(user("More"))
    before = [store.journal(*name.split("/", 1)).read() for name in names]
    data = json.dumps(document, indent=3).encode()
    assert [importing.put(store, item) for item in understand(parse(data), name="file")] == [
        False
    ] * len(names)
    assert [store.journal(*name.split("/", 1)).read() for name in names] == before


@pytest.mark.parametrize("document", [CHAT, CHECKPOINT, long_chat(500)], ids=count())
def test_a_file_that_has_changed_is_refused(store: Store, document: Any) -> None:
    """Under the same id it would be two things in one; the error says what to do."""
    load(store, document, id="x")
    changed = [*document, user("More")] if isinstance(document, list) else {**document, "plan": []}
    with pytest.raises(Conflict, match="--id"):
        load(store, changed, id="x")
    load(store, changed, id="y")
    for taken in ("alice", "report-42"):
        store.conversation(taken).append(user("Mine"))
    with pytest.raises(Conflict):
        load(store, CHAT, id="alice")
    assert store.conversation("alice").messages() == [user("Mine")]


@pytest.mark.slow
@pytest.mark.parametrize("name", places.EVERYWHERE)
def test_files_are_imported_into_every_kind_of_store(
    name: str, request: pytest.FixtureRequest
) -> None:
    """Once, and agents go on from there."""
    documents = {"chat": CHAT, "team": TEAM, "long": long_chat(300), "work": CHECKPOINT}
    with limpet.open(places.find(name, request).url) as store:
        items = understand(documents, name="all")
        assert [importing.put(store, item) for item in items] == [True] * 7
        assert [importing.put(store, item) for item in items] == [False] * 7
        assert store.conversation("chat").messages() == CHAT
        assert store.conversation("long").messages() == long_chat(300)
        assert kept(store, "team") == TEAM
        assert store.task("work").info().created_at == datetime(2026, 1, 1, 8, tzinfo=UTC)
        assert resumed(store, "work")[0] == ["write"]
        with pytest.raises(Conflict):
            load(store, CHAT[:2], id="chat")


# -- long ------------------------------------------------------------------------------------------


def test_ten_thousand_messages_are_read_like_any_others(store: Store) -> None:
    """In many records, so that reading the end is not reading all of it."""
    chat = long_chat()
    load(store, chat)
    conversation = store.conversation("file")
    assert conversation.messages() == chat
    assert conversation.messages(last=3) == chat[-3:]
    assert conversation.window(max_messages=5) == chat[-5:]
    assert conversation.last() == chat[-1]
    conversation.append(bot("Indeed."))
    assert conversation.messages(last=2) == [chat[-1], bot("Indeed.")]
    assert len(store.backend.read(store.journal("conversation", "file").key)) > 300


class Sealed(Codec):
    """Stands for one that encrypts."""

    def encode(self, entries: Sequence[tuple[str, Any]], over: int | None = None) -> bytes:
        """Not to be read by others."""
        return b"sealed" + super().encode(entries, over)[::-1]

    def gather(self, bodies: Iterable[bytes], *args: Any) -> int:
        """And back."""
        return super().gather([body.removeprefix(b"sealed")[::-1] for body in bodies], *args)


def test_what_is_imported_is_written_by_the_stores_own_codec() -> None:
    """Where bodies are encrypted, nothing lies there in plain text, and all can be read."""
    codec = Sealed(max_bytes=200)
    with limpet.open("memory:", codec=codec) as store:
        (item,) = understand(CHAT[:2], name="sealed")
        importing.put(store, item)
        (record,) = store.backend.read(store.journal("conversation", "sealed").key)
        assert record.body.startswith(b"sealed")
        assert store.conversation("sealed").messages() == CHAT[:2]
        long = [user("Hello"), user("x" * 300)]
        with pytest.raises(TooLarge, match="message 2"):
            importing.put(store, understand(long, name="long")[0])
        with pytest.raises(TooLarge, match="message 2"):
            understand(long, name="long", codec=codec)
        assert [info.id for info in store.conversations()] == ["sealed"]


def test_an_import_cut_short_shows_no_message_and_is_finished_by_the_next() -> None:
    """At whatever write it was."""
    chat = long_chat(200)
    (item,) = understand(chat, name="file")
    for at in count(1):
        writes = count(1)

        class Unsteady(MemoryBackend):
            def append(self, request: Append) -> Appended:
                done = super().append(request)
                if next(writes) == at:  # noqa: B023 - used before the next one is made
                    raise StoreUnavailable("The server is away.")
                return done

        with Store(AsyncStore(scope_over(Unsteady()).as_sync())) as store:
            try:
                importing.put(store, item)
            except StoreUnavailable:
                whole = store.conversation("file").messages() == chat
                assert whole or store.conversation("file").messages() == []
                assert importing.look(store, item) == ("there" if whole else "part")
            else:
                break
            assert importing.put(store, item) is not whole
            assert store.conversation("file").messages() == chat
    assert at > 7


def import_long(url: str) -> None:
    """A program that imports a long conversation."""
    with limpet.open(url) as store:
        (item,) = understand(long_chat(3000), name="file")
        importing.put(store, item, lambda _: ack("part"))


@pytest.mark.slow
@pytest.mark.soak
def test_an_import_that_is_killed_again_and_again_comes_to_its_end(tmp_path: Path) -> None:
    """All or nothing of it can be read, and no message is there twice."""
    url = f"sqlite:{tmp_path}/agents.db"
    program = Program("tests.models.transfer.test_import:import_long", (url,))
    killed = 0
    with seeded() as rng:
        while crash([program], [Moment(rng.randint(0, 40 * killed), rng.uniform(0, 0.01))])[
            0
        ].killed:
            killed += 1
            with limpet.open(url) as store:
                assert store.conversation("file").messages() in ([], long_chat(3000))
            if killed == 10 * soak():
                import_long(url)
                break
    assert killed
    with limpet.open(url) as store:
        assert store.conversation("file").messages() == long_chat(3000)


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory of our own, without the reader's settings."""
    monkeypatch.chdir(tmp_path)
    for name in ("LIMPET_URL", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def written(path: Path, document: Any) -> str:
    """*document* as a file."""
    path.write_text(json.dumps(document))
    return str(path)


def test_the_command_imports_and_says_what(tmp_path: Path) -> None:
    """One line a thing; a second time it says that there was nothing to do."""
    memory = written(tmp_path / "agent_memory.json", CHAT)
    shown = run_command("import", memory).stdout
    assert shown == "conversation/agent_memory: 5 messages; imported\n"
    again = run_command("import", memory).stdout
    assert again == "conversation/agent_memory: 5 messages; there already; nothing was added\n"
    point = written(tmp_path / "checkpoint.json", CHECKPOINT)
    shown = run_command("import", point, "--store", "limpet.db").stdout
    assert shown == "task/report-42: 2 of 3 steps done, next is 'write'; imported\n"
    assert "Sent." in run_command("show", "agent_memory").stdout
    assert "(next)" in run_command("show", "report-42").stdout


def test_the_command_in_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    """Not even a store; and it knows what is there already."""
    state = written(tmp_path / "agent_state.json", AGENT)
    shown = run_command("import", state, "--dry-run").stdout
    assert shown == (
        "conversation/agent_state/messages: 6 messages; would be imported\n"
        "state/agent_state: the whole document; would be imported\n"
        "Nothing was written.\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["agent_state.json"]
    run_command("import", state, "--as", "state")
    shown = run_command("import", state, "--dry-run").stdout
    assert "state/agent_state: the whole document; is there already\n" in shown


def test_the_command_reports_to_programs(tmp_path: Path) -> None:
    """What there is, and what there was of it before."""
    chats = written(tmp_path / "chats.json", {"a": CHAT, "b": CHAT})
    written(tmp_path / "a.json", CHAT)
    run_command("import", "a.json")
    found = json.loads(run_command("import", chats, "--json").stdout)
    assert [(one["kind"], one["id"], one["was"]) for one in found] == [
        ("conversation", "a", "there"),
        ("conversation", "b", "new"),
    ]


@pytest.mark.parametrize(
    "document",
    [AGENT, TEAM, {"messages": CHAT, "model": "x"}, {**CHECKPOINT, "tokens": 5}],
    ids=["agent", "team", "messages", "checkpoint"],
)
def test_what_is_imported_is_shown_by_the_id_that_is_printed(tmp_path: Path, document: Any) -> None:
    """No id is two things after an import."""
    written(tmp_path / "it.json", document)
    for made in json.loads(run_command("import", "it.json", "--json").stdout):
        assert run_command("show", made["id"]).stdout.startswith(f"{made['kind']} {made['id']}")


def test_a_changed_file_ends_with_1_and_changes_nothing(tmp_path: Path) -> None:
    """Nothing of the file is imported if a part of it cannot be."""
    run_command("import", written(tmp_path / "chats.json", {"b": CHAT}))
    result = run_command("import", written(tmp_path / "c.json", {"a": CHAT, "b": CHAT[:2]}), code=1)
    assert result.stderr.startswith("Conflict: There is a conversation 'b' already")
    assert "--id" in result.stderr
    run_command("show", "a", code=3)


def test_a_torn_file_ends_with_1_and_makes_no_store(tmp_path: Path) -> None:
    """As a crash in the middle of json.dump leaves it."""
    (tmp_path / "agent_memory.json").write_text(json.dumps(CHAT)[:-20])
    result = run_command("import", "agent_memory.json", code=1)
    assert result.stderr.startswith("NotImportable: agent_memory.json: It is cut off (line 1, ")
    assert not (tmp_path / "limpet.db").exists()


def test_standard_input_needs_an_id() -> None:
    """It has no name."""
    runner = CliRunner()
    assert runner.invoke(main, ["import", "-"], input=json.dumps(CHAT)).exit_code == 2
    done = runner.invoke(main, ["import", "-", "--id", "x"], input=json.dumps(CHAT))
    assert done.stdout == "conversation/x: 5 messages; imported\n"


def test_a_missing_file_is_an_error_of_usage() -> None:
    """And makes no store."""
    assert "does not exist" in run_command("import", "missing.json", code=2).stderr


def test_json_lines_are_known_by_their_suffix(tmp_path: Path) -> None:
    """So that one line is a list of one."""
    (tmp_path / "chat.jsonl").write_text(json.dumps([1]) + "\n")
    assert "A list of 1 is not" in run_command("import", "chat.jsonl", code=1).stderr
    (tmp_path / "chat.ndjson").write_text(json.dumps(CHAT[1]))
    assert "1 message;" in run_command("import", "chat.ndjson").stdout


def test_imported_text_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    """Whatever names others gave to their things."""
    document = {**CHECKPOINT, "task_id": "x\u202ey", "results": {"\x1b[31m": 1}, "completed": []}
    point = written(tmp_path / "point.json", document)
    assert not OBEYED.search(run_command("import", point).stdout)
    result = run_command("import", written(tmp_path / "o.json", {"\x1b[31m": 1}), code=1)
    assert not OBEYED.search(result.stderr)


def test_a_long_import_shows_a_bar_on_a_terminal(tmp_path: Path) -> None:
    """And is gone when it is done."""
    shown = in_terminal("import", written(tmp_path / "long.json", long_chat(2000)))
    assert "2000" in shown
    assert lines_of(shown)[-1] == "conversation/long: 2,000 messages; imported"


def test_the_whole_item_is_made_before_anything_is_written(tmp_path: Path) -> None:
    """What cannot be stored is known from the file alone."""
    long = {"a": CHAT, "b": [user("x" * 17_000_000)]}
    result = run_command("import", written(tmp_path / "long.json", long), code=1)
    assert result.stderr.startswith("TooLarge: long.json: message 1 takes 17,0")
    assert not (tmp_path / "limpet.db").exists()


def test_items_say_what_is_in_them() -> None:
    """For whoever calls the library."""
    (item,) = understand(CHAT, name="chat")
    assert isinstance(item, Item)
    assert (item.kind, item.id, item.about, len(item.digest())) == (
        "conversation",
        "chat",
        "5 messages",
        24,
    )
