"""Tests of the commands about LangGraph's threads, which real graphs have made."""

from __future__ import annotations

import itertools
import json
import operator
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.types import Command, interrupt

import limpet
from limpet.integrations.langgraph import LimpetSaver
from limpet.integrations.langgraph.reading import readable
from tests.support import places
from tests.support.commands import run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from langchain_core.runnables import RunnableConfig

HOSTILE = "red \x1b[31m and \u202ebackwards"


class State(TypedDict, total=False):
    """What the assistant knows."""

    messages: Annotated[list[Any], add_messages]
    asked: int
    tags: set[str]


CALL = {"name": "search", "args": {"text": "tides"}, "id": "c1", "type": "tool_call"}
ANSWERS = (AIMessage("At noon."), AIMessage("No. 1"))


class Plain(TypedDict, total=False):
    """What somebody knows who has plain messages."""

    said: Annotated[list[Any], operator.add]


def joined(found: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    """What a channel has once that was written."""
    return [*found, *itertools.chain.from_iterable(writes)]


class Growing(TypedDict, total=False):
    """What somebody knows whose checkpoints have only what came."""

    said: Annotated[list[Any], DeltaChannel(joined, list, snapshot_frequency=4)]


def assistant(
    saver: Any,
    replies: Sequence[AIMessage] = (AIMessage("Let me see.", tool_calls=[CALL]), *ANSWERS),
) -> Any:
    """An agent that looks something up, after asking whether it may, and then answers."""
    model = GenericFakeChatModel(messages=iter([reply.model_copy() for reply in replies]))

    def agent(state: State) -> Any:
        return {
            "messages": [model.invoke(state["messages"])],
            "asked": state.get("asked", 0) + 1,
            "tags": {"sea"},
        }

    def tools(state: State) -> Any:
        answer = interrupt({"question": "May I search?", "text": HOSTILE})
        (wanted,) = state["messages"][-1].tool_calls
        found = ToolMessage(
            f"High tide is at 12 ({answer})", tool_call_id=wanted["id"], name="search"
        )
        return {"messages": [found]}

    def where(state: State) -> str:
        return "tools" if state["messages"][-1].tool_calls else END

    builder = StateGraph(State)
    builder.add_node(agent)
    builder.add_node(tools)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", where, ["tools", END])
    builder.add_edge("tools", "agent")
    return builder.compile(checkpointer=saver)


def config_of(thread: str) -> RunnableConfig:
    """What names a thread."""
    return {"configurable": {"thread_id": thread}}


def ask(graph: Any, thread: str, text: str = "When is high tide?") -> None:
    """Say something to the agent."""
    graph.invoke({"messages": [HumanMessage(text)]}, config_of(thread))


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the reader's own setting leaks in."""
    monkeypatch.chdir(tmp_path)
    for name in ("LIMPET_URL", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with a thread that was answered, and one that waits for it."""
    url = str(tmp_path / "agents.db")
    with LimpetSaver(url) as saver:
        ask(assistant(saver), " odd\n")
        graph = assistant(saver)
        ask(graph, "alice")
        graph.invoke(Command(resume="yes"), config_of("alice"))
        ask(graph, "alice", "And the next one?")
    return url


def shown(url: str, *args: str) -> str:
    """What a command prints about a store."""
    return run("--store", url, *args).stdout


def data(url: str, *args: str) -> Any:
    """The same as JSON."""
    return json.loads(shown(url, *args, "--json"))


# -- ls --------------------------------------------------------------------------------------------


def test_a_thread_that_waits_for_an_answer_is_listed_as_interrupted(url: str) -> None:
    """Whoever has to answer finds what waits for them."""
    assert [one["id"] for one in data(url, "ls", "--status", "interrupted")] == [
        "thread-id:%20odd%0A"
    ]
    assert {one["id"]: one["status"] for one in data(url, "ls")}["alice"] is None


def test_an_answer_takes_the_status_away(url: str) -> None:
    """From when it is given, not from when the node is done."""
    with LimpetSaver(url) as saver:
        assistant(saver, ANSWERS).invoke(Command(resume="no"), config_of(" odd\n"))
    assert data(url, "ls", "--status", "interrupted") == []


def test_the_status_is_that_of_the_newest_checkpoint_that_is_left(url: str) -> None:
    """Whatever is pruned; and who goes on otherwise waits no more."""
    with LimpetSaver(url) as saver:
        saver.prune([" odd\n"])
        assert [one["id"] for one in data(url, "ls", "--status", "interrupted")] == [
            "thread-id:%20odd%0A"
        ]
        graph = assistant(saver)
        ask(graph, "carol")
        graph.update_state(config_of("carol"), {"messages": [AIMessage("Never mind.")]})
    assert {one["id"] for one in data(url, "ls", "--status", "interrupted")} == {
        "thread-id:%20odd%0A"
    }


def test_threads_are_listed_with_where_they_are(url: str) -> None:
    """How many checkpoints, at which step, and what is asked."""
    alice, odd = data(url, "ls", "threads")
    assert (alice["checkpoints"], alice["step"], alice["asked"]) == (8, 6, [])
    assert (odd["thread"], odd["next"]) == (" odd\n", ["tools"])
    assert odd["asked"][0]["value"]["question"] == "May I search?"
    text = shown(url, "ls", "threads")
    assert "8 checkpoints; step 6" in text
    assert 'asks tools: {"question":"May I search?"' in text
    assert "checkpoints" not in shown(url, "ls")


# -- show ------------------------------------------------------------------------------------------


def test_a_thread_is_shown_as_who_said_what(url: str) -> None:
    """Calls of tools and their results are there, and what the graph knows besides."""
    text = shown(url, "show", "alice")
    said = text[text.index("messages 6 messages") :].split("\n", 2)[2]
    said = re.sub(r"  #\d+ · [-\dT:]+Z$", "", said, flags=re.MULTILINE)
    assert said == (
        "user\n  When is high tide?\n\n"
        'assistant\n  Let me see.\n  → search(text="tides")\n'
        "  ← High tide is at 12 (yes)\n\n"
        "assistant\n  At noon.\n\n"
        "user\n  And the next one?\n\n"
        "assistant\n  No. 1\n\n"
        'Other values\n  asked  3\n  tags  ["sea"]\n'
    )
    assert "step 6, the newest of 8" in text
    assert "When is high tide?" not in shown(url, "show", "alice", "--last", "2")


@pytest.mark.parametrize("name", [" odd\n", "thread/ odd\n", "thread-id:%20odd%0A"])
def test_a_thread_is_found_by_what_langgraph_calls_it(url: str, name: str) -> None:
    """And by the id of its journal, which is what is listed."""
    text = shown(url, "show", name)
    assert "· interrupted" in text
    assert "LangGraph calls it ' odd\\n'" in text
    assert 'Asks, and waits for an answer\n  - tools: {"question":"May I search?"' in text
    assert "Next\n  - tools" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_thread_is_given_to_programs_whole(url: str) -> None:
    """Values without LangGraph's marks, and every checkpoint with its metadata."""
    found = data(url, "show", "alice")
    assert found["values"]["tags"] == ["sea"]
    assert [message["type"] for message in found["values"]["messages"]] == [
        *("human", "ai", "tool", "ai", "human", "ai")
    ]
    assert [one["step"] for one in found["checkpoints"]] == list(range(-1, 7))
    assert found["checkpoint"] == found["checkpoints"][-1]["id"]
    assert found["next"] == found["asked"] == []


def test_plain_messages_and_failed_nodes_are_shown(tmp_path: Path) -> None:
    """Not everybody has LangChain's messages, and not every node ends well."""

    def fail(state: Plain) -> Any:
        raise ValueError("the model is away")

    url = str(tmp_path / "agents.db")
    with LimpetSaver(url) as saver:
        builder = StateGraph(Plain)
        builder.add_node(fail)
        builder.add_edge(START, "fail")
        graph = builder.compile(checkpointer=saver)
        with pytest.raises(ValueError, match="away"):
            graph.invoke({"said": [{"role": "user", "content": HOSTILE}]}, config_of("bob"))
    text = shown(url, "show", "bob")
    assert "said 1 message" in text
    assert "red \\e[31m and \\u202ebackwards" in text
    assert "the model is away" in text[text.index("Failed") :]


def test_what_has_a_secret_or_a_class_of_its_own_is_shown_without_it() -> None:
    """No class is looked for, and a secret is not printed."""
    secret = {"$ext": [0, ["pydantic.types", "SecretStr", "hunter2"]]}
    point = {"$ext": [5, ["shop.orders", "Order", {"id": 7, "at": {"$float": "nan"}}, "load"]]}
    assert readable([secret, point, {"$map": [[1, "one"]]}]) == [
        "**********",
        {"$type": "shop.orders.Order", "id": 7, "at": "nan"},
        {"1": "one"},
    ]


# -- history and diff ------------------------------------------------------------------------------


def test_history_says_what_each_node_changed(url: str) -> None:
    """A line for each checkpoint, with the id that get_state() takes."""
    lines = shown(url, "history", "alice").splitlines()
    assert [line.split("  ")[-2] for line in lines] == [
        "step -1 input",
        "step 0, messages +1",
        "step 1, agent: asked set, messages +1, tags set",
        "step 2, tools: messages +1",
        "step 3, agent: asked changed, messages +1",
        "step 4 input",
        "step 5, messages +1",
        "step 6, agent: asked changed, messages +1",
    ]
    assert len(shown(url, "history", "alice", "-n", "2").splitlines()) == 2
    newest = data(url, "history", "alice", "-n", "1")[0]
    assert lines[-1].endswith(newest["id"])
    assert newest["nodes"] == ["agent"]


def test_diff_compares_two_checkpoints_by_number_or_id(url: str) -> None:
    """What was said between them; without numbers, the newest and its parent."""
    every = data(url, "history", "alice")
    by_number = shown(url, "history", "alice", "--diff", *(str(every[n]["number"]) for n in (2, 4)))
    assert by_number.split("\n", 2)[2] == (
        "asked\n  - 1\n  + 2\n"
        'messages\n  + [2] "tool: ← High tide is at 12 (yes)"\n  + [3] "assistant: At noon."\n'
    )
    by_id = shown(url, "history", "alice", "--diff", every[2]["id"], every[4]["id"][:-1])
    assert by_id == by_number
    assert '  + [5] "assistant: No. 1"' in shown(url, "history", "alice", "--diff")
    assert "  - [5]" in shown(url, "history", "alice", "--diff", every[-1]["id"], every[2]["id"])


def test_a_checkpoint_that_is_not_there_is_a_message(url: str) -> None:
    """With what is meant by several ids said."""
    missing = run("--store", url, "history", "alice", "--diff", "4000", code=2)
    assert "There is no checkpoint '4000'" in missing.stderr
    begin = data(url, "history", "alice")[0]["id"][:4]
    several = run("--store", url, "history", "alice", "--diff", begin, code=2)
    assert f"8 checkpoints have an id that begins with '{begin}'" in several.stderr


def test_a_fork_is_told_from_the_line_of_the_newest(url: str) -> None:
    """What time travel has left behind is not taken for what the agent knows."""
    with LimpetSaver(url) as saver:
        graph = assistant(saver)
        past = [one for one in graph.get_state_history(config_of("alice")) if not one.next][-1]
        graph.update_state(past.config, {"messages": [AIMessage("At six.")]}, as_node="agent")
    found = data(url, "history", "alice")
    assert [one["line"] for one in found] == [0, 0, 0, 0, 0, 1, 1, 1, 0]
    begin = found[4]["number"]
    text = shown(url, "history", "alice")
    assert f"  [fork 1 from {begin}]  step 4 input" in text
    assert text.count("[fork 1]") == 2
    said = shown(url, "show", "alice")
    assert f"- fork 1: from {begin} to {found[7]['number']} (step 6), 3 checkpoints" in said
    assert "At six." in said
    assert "No. 1" not in said


def test_what_a_delta_channel_has_is_put_together(tmp_path: Path) -> None:
    """Its checkpoints have what was written, and now and then all of it."""
    url = str(tmp_path / "agents.db")
    with LimpetSaver(url) as saver:
        builder = StateGraph(Growing)
        builder.add_node("answer", lambda state: {"said": [AIMessage(f"No. {len(state['said'])}")]})
        builder.add_edge(START, "answer")
        graph = builder.compile(checkpointer=saver)
        for number in range(5):
            graph.invoke({"said": [HumanMessage(f"Question {number}")]}, config_of("alice"))
    found = data(url, "show", "alice")
    assert [message["content"] for message in found["values"]["said"]] == [
        text for number in range(5) for text in (f"Question {number}", f"No. {2 * number + 1}")
    ]
    said = [one["changes"].get("said") for one in data(url, "history", "alice")]
    assert said == [None, "+1", "+1"] * 5
    assert [one["role"] for one in data(url, "search", "question")] == ["user"] * 5


def test_a_subgraph_is_a_namespace_of_its_thread(tmp_path: Path) -> None:
    """Its checkpoints are marked, and what it asks is asked by the thread."""
    url = str(tmp_path / "agents.db")
    with LimpetSaver(url) as saver:
        builder = StateGraph(State)
        builder.add_node("desk", assistant(saver=True))  # with checkpoints of its own
        builder.add_edge(START, "desk")
        ask(builder.compile(checkpointer=saver), "alice")
    text = shown(url, "show", "alice")
    assert "· interrupted" in text
    assert 'waits for an answer\n  - desk: {"question"' in text
    assert "Subgraphs\n  - desk: 3 checkpoints, step 1" in text
    assert "[in desk]" in shown(url, "history", "alice")
    (inner,) = data(url, "show", "alice")["namespaces"].values()
    assert [message["type"] for message in inner["messages"]] == ["human", "ai"]


def test_tail_says_what_each_entry_of_a_thread_is(url: str) -> None:
    """For whoever looks at what is stored."""
    text = shown(url, "tail", "alice")
    assert ": messages" in text
    assert "task " in text
    assert "$ext" not in text


# -- search ----------------------------------------------------------------------------------------


def test_search_finds_what_was_said_in_threads_and_conversations(url: str) -> None:
    """With the checkpoint that had it first, and once, though later ones have it too."""
    with limpet.open(url) as store:
        store.conversation("bob").append({"role": "user", "content": "No tide waits"})
    found = data(url, "search", "high", "tide")
    assert {(one["kind"], one["role"]) for one in found if one["id"] == "alice"} == {
        ("thread", "user"),
        ("thread", "tool"),
    }
    assert len(found) == len({(one["id"], one["position"]) for one in found})
    assert {one["id"] for one in data(url, "search", "tide")} == {
        *("alice", "bob", "thread-id:%20odd%0A")
    }
    ids = {one["id"]: one["number"] for one in data(url, "history", "alice")}
    for one in found:
        if one["id"] == "alice":
            assert ids[one["checkpoint"]] == one["position"]
    assert "thread/alice" in shown(url, "search", "noon")


def test_search_finds_what_was_said_since(url: str) -> None:
    """What is indexed already is not again, and what is deleted is found no more."""
    assert len(data(url, "search", "noon")) == 1
    with LimpetSaver(url) as saver:
        ask(assistant(saver), "alice", "And the day after at noon?")
    assert len(data(url, "search", "noon")) == 2
    with limpet.open(url) as store:
        assert store.search_conversations("noon") == []
    run("--store", url, "delete", "alice", "--yes")
    assert data(url, "search", "noon") == []


# -- delete, expire, sweep -------------------------------------------------------------------------


def test_threads_are_deleted_like_everything_else(url: str) -> None:
    """By their id, or by what several ids begin with; a graph then begins anew."""
    assert "removed thread/thread-id:%20odd%0A" in shown(url, "delete", " odd\n", "--yes")
    assert "removed thread/alice" in shown(url, "delete", "ali*", "--yes")
    with LimpetSaver(url) as saver:
        assert saver.get_tuple(config_of("alice")) is None


def test_what_is_recorded_of_its_effects_goes_with_a_thread(url: str) -> None:
    """A thread that begins anew under the id has done nothing."""
    with limpet.open(url) as store:
        store.journal("thread-effects", "alice").append(("ended", {"id": "pay", "result": 1}))
    text = shown(url, "delete", "alice", "--yes")
    assert "removed thread/alice" in text
    assert "removed thread-effects/alice" in text
    with limpet.open(url) as store:
        assert store.journal("thread-effects", "alice").head() is None


def test_a_thread_expires_when_it_is_told_to(url: str) -> None:
    """And its room is freed by sweep."""
    assert "thread/alice expires at" in shown(url, "expire", "alice", "30d")
    assert "thread/alice never expires" in shown(url, "expire", "alice", "never")
    assert shown(url, "sweep").strip() == "Nothing to do."


# -- export, import, copy --------------------------------------------------------------------------


def history_of(url: str, thread: str) -> list[Any]:
    """All that LangGraph knows of a thread."""
    with LimpetSaver(url) as saver:
        return [
            (one.config, one.values, one.next, one.metadata, one.tasks)
            for one in assistant(saver).get_state_history(config_of(thread))
        ]


def test_an_export_becomes_the_same_threads_in_another_store(url: str, tmp_path: Path) -> None:
    """Every checkpoint, and what waits on it."""
    run("--store", url, "export", "--kind", "thread", "-o", "threads.jsonl")
    other = str(tmp_path / "other.db")
    text = shown(other, "import", "threads.jsonl")
    assert "thread/alice: " in text
    for thread in ("alice", " odd\n"):
        assert history_of(other, thread) == history_of(url, thread) != []
    assert data(other, "ls", "--status", "interrupted")
    assert "there already" in shown(other, "import", "threads.jsonl")


def test_an_export_with_an_entry_that_is_none_is_refused(url: str, tmp_path: Path) -> None:
    """A thread that no graph could open is not imported."""
    lines = shown(url, "export", "alice", "--kind", "thread").splitlines()
    record = json.loads(lines[1])
    record["entries"][0][1]["put"] = {"broken": {"$": [9000, 0]}}
    (tmp_path / "threads.jsonl").write_text(
        "\n".join([lines[0], json.dumps(record), *lines[2:]]), "utf-8"
    )
    refused = run("--store", "other.db", "import", "threads.jsonl", code=1)
    assert "is damaged: its entry" in refused.stderr


def test_a_readable_export_has_values_and_checkpoints(url: str) -> None:
    """One line for each thread, without the form in which it is stored."""
    text = shown(url, "export", "--kind", "thread", "--readable")
    assert "$ext" not in text
    alice, odd = map(json.loads, text.splitlines())
    assert alice["values"]["asked"] == 3
    assert len(alice["checkpoints"]) == 8
    assert odd["asked"][0]["value"]["question"] == "May I search?"
    single = json.loads(shown(url, "export", " odd\n", "--kind", "thread", "--readable"))
    assert single["thread"] == " odd\n"


def test_messages_of_a_thread_are_exported_as_models_take_them(url: str) -> None:
    """And become a conversation elsewhere."""
    args = ("export", "alice", "--kind", "thread", "--messages", "-o", "alice.jsonl")
    run("--store", url, *args)
    run("--store", "other.db", "import", "alice.jsonl")
    with limpet.open("other.db") as store:
        said = store.conversation("alice").messages()
    assert [message["role"] for message in said] == [
        *("user", "assistant", "tool", "assistant", "user", "assistant")
    ]
    assert said[1]["tool_calls"][0]["function"] == {
        "name": "search",
        "arguments": '{"text": "tides"}',
    }


@pytest.mark.parametrize(
    "kind",
    ["file", *(pytest.param(name, marks=pytest.mark.server) for name in ("postgresql", "redis"))],
)
def test_threads_are_copied_to_another_kind_of_store_and_back(
    url: str, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """A thread moves as it is: a graph goes on from there."""
    there = places.find(kind, request).url
    assert "2 copied" in run("copy", url, there).stdout
    assert history_of(there, "alice") == history_of(url, "alice")
    back = str(tmp_path / "back.db")
    run("copy", there, back)
    assert history_of(back, " odd\n") == history_of(url, " odd\n") != []
    with LimpetSaver(back) as saver:
        assistant(saver, ANSWERS).invoke(Command(resume="yes"), config_of(" odd\n"))
    assert "High tide is at 12 (yes)" in shown(back, "show", " odd\n")


# -- doctor, and without LangGraph -----------------------------------------------------------------


def test_doctor_names_an_entry_that_a_thread_cannot_have(url: str) -> None:
    """And says nothing of threads that are well."""
    assert data(url, "doctor")["ok"]
    with limpet.open(url) as store:
        body = {"task": "t", "writes": [["messages", {"$": [9000, 0]}]]}
        store.journal("thread", "alice").append(("writes", body))
    found = json.loads(run("--store", url, "doctor", "--json", code=1).stdout)
    (problem,) = found["unreadable"]
    assert problem["journal"] == "thread/alice"
    assert "It is not what is stored as 'writes'" in problem["problem"]
    assert "damaged: see limpet doctor" in shown(url, "ls", "threads")
    run("--store", url, "show", "alice", code=1)


def test_the_commands_need_no_langgraph(url: str) -> None:
    """What looks at a store need not be where the agents are."""
    program = (
        "import sys\n"
        "for name in ('langgraph', 'langchain_core', 'ormsgpack'): sys.modules[name] = None\n"
        "from limpet.cli import main\n"
        f"main(['--store', {url!r}, 'show', 'alice'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert "High tide is at 12 (yes)" in done.stdout.decode()
