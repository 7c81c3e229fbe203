"""Agents and teams of AutoGen that are kept: loaded, saved after each turn, taken up again."""

from __future__ import annotations

import asyncio
import base64
import gc
import io
import json
import random
import sys
import weakref
from typing import TYPE_CHECKING, Any

import PIL.Image
import pytest
from autogen_agentchat.agents import ApprovalResponse, AssistantAgent, CodeExecutorAgent
from autogen_agentchat.base import TaskResult, TerminatedException, TerminationCondition
from autogen_agentchat.conditions import (
    ExternalTermination,
    MaxMessageTermination,
    TextMentionTermination,
    TimeoutTermination,
    TokenUsageTermination,
)
from autogen_agentchat.messages import (
    MultiModalMessage,
    StopMessage,
    StructuredMessage,
    TextMessage,
)
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_agentchat.tools import AgentTool
from autogen_core import CancellationToken, FunctionCall, Image, SingleThreadedAgentRuntime
from autogen_core.code_executor import CodeExecutor, CodeResult
from autogen_core.memory import ListMemory, MemoryContent
from autogen_core.model_context import (
    BufferedChatCompletionContext,
    HeadAndTailChatCompletionContext,
    TokenLimitedChatCompletionContext,
    UnboundedChatCompletionContext,
)
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    SystemMessage,
    UserMessage,
)
from click.testing import CliRunner
from pydantic import BaseModel

import limpet
from limpet.cli import main
from limpet.errors import (
    BrokenHistory,
    ChangedWarning,
    Conflict,
    LeaseHeld,
    MissingExtra,
    NoMigration,
    NotFound,
    NotStorable,
    WrongState,
)
from limpet.integrations import autogen
from limpet.integrations.autogen import members
from limpet.integrations.autogen.identity import MASK, masked
from limpet.integrations.autogen.members import Counters
from limpet.llm.messages.repair import INTERRUPTED
from limpet.states.migrations import Migrations
from limpet.transfer import imports as importing
from tests.support.autogen_teams import KINDS, agent, calling, look, played, talk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from limpet.store import AsyncStore


def in_store(work: Callable[[AsyncStore], Awaitable[Any]], url: str = "memory:") -> Any:
    """What *work* makes of a store."""

    async def main() -> Any:
        async with limpet.open_async(url) as store:
            return await work(store)

    return asyncio.run(main())


def texts(result: Any) -> list[str]:
    """What was said, and by whom."""
    return [f"{message.source}: {message.to_text()}" for message in result.messages]


async def context(it: Any) -> list[Any]:
    """What an agent's model will be shown."""
    return list((await it.save_state())["llm_context"]["messages"])


def trio(most: int = 7, **options: Any) -> RoundRobinGroupChat:
    """Three who talk in turn."""
    options.setdefault("termination_condition", MaxMessageTermination(most))
    return RoundRobinGroupChat([agent(name) for name in ("anna", "ben", "cleo")], **options)


async def broken_off(store: AsyncStore, id: str = "it", turns: int = 3, **options: Any) -> Any:
    """A team whose run nobody listened to after so many turns."""
    team = await autogen.keep(trio(), store, id, **options)
    seen = 0
    stream = team.run_stream(task="Go.")
    async for _ in stream:
        seen += 1
        if seen > turns:
            break
    await stream.aclose()
    return team


# -- one agent -------------------------------------------------------------------------------------


def test_a_kept_agent_is_the_same_object() -> None:
    """Types, names and attributes are what they were: nothing has to be learned, or cast."""

    async def work(store: AsyncStore) -> None:
        made = agent("anna")
        kept = await autogen.keep(made, store, "it")
        assert kept is made
        assert isinstance(kept, AssistantAgent)
        result = await kept.run(task="Hello.")
        assert texts(result) == ["user: Hello.", "anna: 2 after 'Hello.'"]

    in_store(work)


@pytest.mark.parametrize(
    "made",
    [
        UnboundedChatCompletionContext,
        lambda: BufferedChatCompletionContext(buffer_size=3),
        lambda: HeadAndTailChatCompletionContext(head_size=1, tail_size=2),
        lambda: TokenLimitedChatCompletionContext(played(), token_limit=40),
    ],
    ids=["unbounded", "buffered", "head and tail", "tokens"],
)
def test_every_model_context_goes_on_where_it_was(made: Callable[[], Any]) -> None:
    """What the model is shown after a restart is what it would have been shown without one."""

    async def work(store: AsyncStore) -> None:
        straight = one = agent("anna", model_context=made())
        for number in range(5):
            one = agent("anna", model_context=made())
            one = await autogen.keep(one, store, "it")
            kept = texts(await one.run(task=f"Question {number}."))
            assert kept == texts(await straight.run(task=f"Question {number}."))
        assert await context(one) == await context(straight)

    in_store(work)


def test_the_stream_of_an_agent_has_all_its_pieces() -> None:
    """Chunks, events and the result come as from the agent itself."""

    async def pieces(it: Any) -> list[str]:
        return [type(item).__name__ async for item in it.run_stream(task="Say it.")]

    async def work(store: AsyncStore) -> None:
        options = {"tools": [look], "reflect_on_tool_use": True, "model_client_stream": False}
        plain = await pieces(agent("anna", calling("look"), **options))
        kept = await autogen.keep(agent("anna", calling("look"), **options), store, "it")
        assert await pieces(kept) == plain
        chunky = AssistantAgent("bo", played(), model_client_stream=True)
        chunky._model_client.chat_completions = ["one two three"]  # type: ignore[attr-defined]
        kept = await autogen.keep(chunky, store, "chunky")
        assert (await pieces(kept)).count("ModelClientStreamingChunkEvent") == 3

    in_store(work)


class Weather(BaseModel):
    """What an agent may be made to answer with."""

    sky: str


def test_structured_answers_come_back_typed() -> None:
    """An answer that is given again from the store is of the class that it was."""

    async def work(store: AsyncStore) -> None:
        def made() -> Any:
            return agent("anna", lambda *_: '{"sky": "blue"}', output_content_type=Weather)

        task = TextMessage(content="The sky?", source="user", id="question-1")
        one = await autogen.keep(made(), store, "it")
        first = await one.run(task=task)
        other = await autogen.keep(made(), store, "it")
        again = await other.run(task=task)
        message = again.messages[-1]
        assert isinstance(message, StructuredMessage)
        assert message.content == Weather(sky="blue")
        assert message.id == first.messages[-1].id
        assert len(await context(other)) == 2

    in_store(work)


def test_a_task_with_an_id_of_its_own_is_done_once() -> None:
    """Whoever was killed before he saw the answer asks again, and is given it."""

    async def work(store: AsyncStore) -> None:
        kinds: dict[str, Any] = {"agent": lambda: agent("anna"), "team": trio}
        for it, made in kinds.items():
            task = TextMessage(content="Go.", source="user", id="message-17")
            one = await autogen.keep(made(), store, it)
            first = await one.run(task=task)
            other = await autogen.keep(made(), store, it)
            again = await other.run(task=task)
            assert texts(again) == texts(first)
            assert again.stop_reason == first.stop_reason
            assert await other.save_state() == await one.save_state()
            new = await other.run(task=TextMessage(content="Go.", source="user", id="message-18"))
            assert texts(new) != texts(first)

    in_store(work)


def test_memory_and_tools_of_an_agent_work_as_before() -> None:
    """What is attached to an agent is its own; a state of a tool's is kept beside."""

    async def work(store: AsyncStore) -> None:
        memory = ListMemory()
        await memory.add(MemoryContent(content="It rains.", mime_type="text/plain"))
        poet = agent("poet")
        made = agent("anna", calling("poet"), memory=[memory], tools=[AgentTool(poet)])
        made._model_client.answer = _ask_the_poet  # type: ignore[attr-defined]
        one = await autogen.keep(made, store, "it")
        result = await one.run(task="A line.")
        assert [type(m).__name__ for m in result.messages][1] == "MemoryQueryEvent"
        assert await context(poet)
        twin = agent("poet")
        again = agent("anna", _ask_the_poet, memory=[memory], tools=[AgentTool(twin)])
        await autogen.keep(again, store, "it")
        assert await context(twin) == await context(poet)
        assert await context(again) == await context(one)

    in_store(work)


def _ask_the_poet(messages: Sequence[Any], tools: Any) -> Any:
    return [FunctionCall(id=f"c{len(messages)}", name="poet", arguments='{"task": "Rhyme."}')]


# -- teams -----------------------------------------------------------------------------------------


def test_a_team_that_was_broken_off_goes_on_with_the_next_speaker() -> None:
    """The run is one: what it put out, who is next, and how far it has counted."""

    async def work(store: AsyncStore) -> None:
        whole = await trio().run(task="Go.")
        team = await broken_off(store)
        assert autogen.kept(team).unfinished
        for again in (False, True):
            it = await autogen.keep(trio(), store, "it") if again else team
            kept = autogen.kept(it)
            if again:
                await kept.state.restore(4)
                await kept.reload()
            result = await it.run()
            assert texts(result) == texts(whole)
            assert result.stop_reason == whole.stop_reason
            assert not kept.unfinished
            assert await kept.resume() is None

    in_store(work)


def test_the_same_task_again_goes_on_too() -> None:
    """A script that is simply started again does the right thing."""

    async def work(store: AsyncStore) -> None:
        await broken_off(store)
        team = await autogen.keep(trio(), store, "it")
        assert texts(await team.run(task="Go.")) == texts(await trio().run(task="Go."))

    in_store(work)


def test_another_task_is_a_new_run_that_knows_of_the_old() -> None:
    """Nothing that was said is lost, and the new run counts from the beginning."""

    async def work(store: AsyncStore) -> None:
        await broken_off(store)
        team = await autogen.keep(trio(), store, "it")
        result = await team.run(task="Stop that; do this.")
        assert len(result.messages) == 7
        manager = (await team.save_state())["agent_states"]["RoundRobinGroupChatManager"]
        said = [message["content"] for message in manager["message_thread"]]
        assert said[0] == "Go."
        assert "Stop that; do this." in said

    in_store(work)


def test_a_question_that_nobody_heard_is_asked_with_the_next() -> None:
    """A process that died before the model answered has not lost what the user said."""

    async def work(store: AsyncStore) -> None:
        def dead(messages: Any, tools: Any) -> str:
            raise ConnectionError("The model is away.")

        one = await autogen.keep(agent("anna", dead), store, "it")
        with pytest.raises(ConnectionError):
            await one.run(task="First.")
        assert autogen.kept(one).unfinished
        other = await autogen.keep(agent("anna"), store, "it")
        await other.run(task="Second.")
        assert [m["content"] for m in await context(other)][:2] == ["First.", "Second."]

    in_store(work)


def test_an_error_leaves_nothing_torn() -> None:
    """After a model's failure the team is as after the last whole turn, and goes on from there."""

    async def work(store: AsyncStore) -> None:
        whole = await trio().run(task="Go.")
        team = trio()
        model = team._participants[1]._model_client  # type: ignore[union-attr]
        fails = iter([True])

        def answer(messages: Any, tools: Any) -> str:
            if len(messages) > 4 and next(fails, False):
                raise ConnectionError("The model is away.")
            return talk(messages)

        model.answer = answer
        await autogen.keep(team, store, "it")
        with pytest.raises(RuntimeError, match="The model is away"):
            await team.run(task="Go.")
        assert texts(await team.run()) == texts(whole)

    in_store(work)


@pytest.mark.parametrize("how", ["token", "task"])
def test_a_cancelled_run_goes_on(how: str) -> None:
    """AutoGen calls a cancelled team inconsistent; a kept one is as after its last turn."""

    async def work(store: AsyncStore) -> None:
        whole = await trio().run(task="Go.")
        team = trio()
        model = team._participants[1]._model_client  # type: ignore[union-attr]
        waiting = asyncio.Event()
        create = type(model).create

        async def slow(messages: Any, **options: Any) -> Any:
            if len(messages) > 4 and not waiting.is_set():
                waiting.set()
                await asyncio.sleep(0.2)
            return await create(model, messages, **options)

        model.create = slow
        await autogen.keep(team, store, "it")
        token = CancellationToken()
        run = asyncio.create_task(team.run(task="Go.", cancellation_token=token))
        await waiting.wait()
        if how == "token":
            token.cancel()
        else:
            run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert texts(await team.run()) == texts(whole)

    in_store(work)


def test_a_team_on_a_runtime_of_ones_own_is_saved_after_each_run() -> None:
    """Its turns are not ours to stop; what was asked is durable, and then all of it."""

    async def work(store: AsyncStore) -> None:
        runtime = SingleThreadedAgentRuntime()
        runtime.start()
        team = await autogen.keep(trio(runtime=runtime), store, "it")
        result = await team.run(task="Go.")
        await runtime.stop_when_idle()
        assert texts(result) == texts(await trio().run(task="Go."))
        assert [saved.position for saved in await autogen.kept(team).state.history()] == [1, 2]
        other = await autogen.keep(trio(), store, "it")
        assert await other.save_state() == await team.save_state()

    in_store(work)


@pytest.mark.parametrize("made", [lambda: agent("anna"), trio], ids=["agent", "team"])
def test_a_task_that_cannot_be_stored_is_not_in_the_way_of_the_next(made: Any) -> None:
    """It is refused, before anybody is asked, and nothing of it stays."""

    async def work(store: AsyncStore) -> None:
        it = await autogen.keep(made(), store, "it")
        await it.run(task="One.")
        with pytest.raises(NotStorable, match=r"\['content'\] is text that is not valid Unicode"):
            await it.run(task="\ud800")
        assert not autogen.kept(it).unfinished
        result = await it.run(task="Two.")
        assert texts(result)[0] == "user: Two."
        other = await autogen.keep(made(), store, "it")
        assert await other.save_state() == await it.save_state()

    in_store(work)


def test_a_kept_agent_can_be_in_a_team_that_is_not() -> None:
    """A team asks it as any other."""

    async def work(store: AsyncStore) -> None:
        one = await autogen.keep(agent("anna"), store, "anna")
        team = RoundRobinGroupChat(
            [one, agent("ben")], termination_condition=MaxMessageTermination(5)
        )
        await team.run(task="Go.")
        other = await autogen.keep(agent("anna"), store, "anna")
        assert await context(other) == await context(one)
        assert len(await context(one)) == 4

    in_store(work)


def test_a_selector_that_is_loaded_twice_remembers_once() -> None:
    """AutoGen adds what it loads to what its selector knows already."""

    async def work(store: AsyncStore) -> None:
        members: list[Any] = [agent("anna"), agent("ben")]
        team = SelectorGroupChat(members, model_client=played(lambda *_: "ben"), max_turns=1)
        await autogen.keep(team, store, "it")
        await team.run(task="Go.")
        await autogen.kept(team).reload()
        await autogen.kept(team).reload()
        address = team._group_chat_manager_topic_type
        manager = next(
            made
            for id_, made in team._runtime._instantiated_agents.items()  # type: ignore[attr-defined]
            if id_.type == address
        )
        assert len(await manager._model_context.get_messages()) == 2

    in_store(work)


def test_a_reset_is_durable() -> None:
    """What was reset does not come back with the next process."""

    async def work(store: AsyncStore) -> None:
        team = await broken_off(store)
        await team.reset()
        assert not autogen.kept(team).unfinished
        other = await autogen.keep(trio(), store, "it")
        assert texts(await other.run(task="Go.")) == texts(await trio().run(task="Go."))
        one = await autogen.keep(agent("anna"), store, "anna")
        await one.run(task="Hello.")
        await one.on_reset(CancellationToken())
        assert await context(await autogen.keep(agent("anna"), store, "anna")) == []

    in_store(work)


# -- what AutoGen does not save --------------------------------------------------------------------


class Thrice(TerminationCondition):
    """A condition of somebody's own."""

    component_config_schema = BaseModel

    def __init__(self, most: int = 3) -> None:
        self.most = most
        self.turns = 0

    @property
    def terminated(self) -> bool:
        """Whether it has."""
        return self.turns >= self.most

    async def __call__(self, messages: Sequence[Any]) -> StopMessage | None:
        """Count."""
        if self.terminated:
            raise TerminatedException
        self.turns += 1
        done = self.turns >= self.most
        return StopMessage(content="Enough.", source="Thrice") if done else None

    async def reset(self) -> None:
        """Begin anew."""
        self.turns = 0


@pytest.mark.parametrize(
    "made",
    [
        lambda: MaxMessageTermination(9),
        lambda: TokenUsageTermination(max_total_token=100_000),
        lambda: ExternalTermination() | MaxMessageTermination(9),
        lambda: TextMentionTermination("Go") & MaxMessageTermination(9),
        Thrice,
    ],
    ids=["messages", "tokens", "or", "and", "one's own"],
)
def test_conditions_count_on(made: Callable[[], Any]) -> None:
    """A limit is a limit on the run, not on what a process sees of it."""

    async def work() -> None:
        usage = {"prompt_tokens": 5, "completion_tokens": 7}
        message = TextMessage(content="Go on.", source="anna", models_usage=usage)  # type: ignore[arg-type]
        one, other = made(), made()
        counters, loaded = Counters(one), Counters(other)
        await one([message])
        saved = json.loads(json.dumps(await counters.save()))
        await loaded.load(saved)
        assert await loaded.save() == saved
        first, second = await one([message]), await other([message])
        assert (first and first.content) == (second and second.content)
        assert await loaded.save() == await counters.save()

    asyncio.run(work())


def test_a_timeout_counts_the_time_that_it_ran() -> None:
    """The clock of a process says nothing to another."""

    async def work() -> None:
        one = TimeoutTermination(100)
        counters = Counters(one)
        one._start_time -= 60
        other = TimeoutTermination(100)
        other._start_time -= 1_000_000
        await Counters(other).load(await counters.save())
        message = TextMessage(content="Go on.", source="anna")
        assert await other([message]) is None
        other._start_time -= 41
        assert await other([message]) is not None

    asyncio.run(work())


def test_a_limit_that_was_changed_is_the_programs() -> None:
    """How far it has counted is stored; how far it may is not."""

    async def work(store: AsyncStore) -> None:
        await broken_off(store)
        team = await autogen.keep(trio(9), store, "it")
        result = await team.run()
        assert len(result.messages) == 9

    in_store(work)


def test_a_condition_that_is_another_begins_at_its_beginning() -> None:
    """Counters of one condition are not taken for those of another."""

    async def work(store: AsyncStore) -> None:
        await broken_off(store)
        condition = TextMentionTermination("nobody says this") | MaxMessageTermination(4)
        team = await autogen.keep(trio(termination_condition=condition), store, "it")
        result = await team.run()
        assert len(result.messages) >= 7

    in_store(work)


class Runs(CodeExecutor):
    """A code executor that notes what it is given."""

    component_config_schema = BaseModel

    def __init__(self) -> None:
        self.ran: list[str] = []

    async def execute_code_blocks(self, code_blocks: Any, cancellation_token: Any) -> CodeResult:
        """Note it."""
        self.ran += [block.code for block in code_blocks]
        return CodeResult(exit_code=0, output="42")

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    async def restart(self) -> None:
        """Nothing to restart."""


def coder(executor: CodeExecutor, answer: Any) -> CodeExecutorAgent:
    """An agent that runs what its model writes."""

    def approve(request: Any) -> ApprovalResponse:
        return ApprovalResponse(approved=True, reason="It is played.")

    return CodeExecutorAgent("coder", executor, model_client=played(answer), approval_func=approve)


def test_an_agent_that_runs_code_remembers_and_does_not_run_it_twice() -> None:
    """AutoGen saves nothing of it; what it ran before a crash is not run again."""

    async def work(store: AsyncStore) -> None:
        def answer(messages: Sequence[Any], tools: Any) -> str:
            if "42" in str(messages[-1].content):
                raise ConnectionError("The model is away.")
            return "```python\nprint(42)\n```"

        executor = Runs()
        first = coder(executor, answer)
        await autogen.keep(first, store, "it")
        with pytest.raises(ConnectionError):
            await first.run(task="Run it.")
        second = coder(executor, talk)
        await autogen.keep(second, store, "it")
        await second.run()
        assert executor.ran == ["print(42)\n"]
        third = coder(executor, talk)
        await autogen.keep(third, store, "it")
        assert await third.model_context.get_messages() == await second.model_context.get_messages()
        assert await third.model_context.get_messages()

    in_store(work)


def test_the_component_is_kept_without_secrets() -> None:
    """How the team was put together can be read years later; nobody's key can."""
    openai = pytest.importorskip("autogen_ext.models.openai")

    async def work(store: AsyncStore) -> None:
        client = openai.OpenAIChatCompletionClient(model="gpt-4o", api_key="sk-very-secret")
        one = AssistantAgent("anna", client, system_message="Be kind.")
        await autogen.keep(one, store, "it")
        await autogen.kept(one).save()
        document = await store.state("it").load()
        component = document["limpet"]["component"]
        assert component["config"]["system_message"] == "Be kind."
        assert "very-secret" not in json.dumps(document)
        await autogen.keep(agent("bo"), store, "bo", component=False)
        await autogen.kept(one).save()

    in_store(work)


def test_no_credential_of_a_component_is_stored() -> None:
    """AutoGen masks ``api_key``; a gateway's is in a header, or in the address."""
    openai = pytest.importorskip("autogen_ext.models.openai")

    async def send(text: str) -> str:
        """Send it."""
        api_key = "HUSH-source"
        return text + api_key

    async def work(store: AsyncStore) -> None:
        client = openai.OpenAIChatCompletionClient(
            model="gpt-4o",
            api_key="HUSH-key",
            base_url="https://ann:HUSH-password@gateway.example/v1?sig=HUSH-query&v=2",
            default_headers={"Authorization": "Bearer HUSH-header", "X-Team": "HUSH-team"},
        )
        sender = AssistantAgent("sender", client, tools=[send])
        team = RoundRobinGroupChat([sender, AssistantAgent("other", client)])
        await autogen.keep(team, store, "it")
        await autogen.kept(team).save()
        component = json.dumps((await store.state("it").load())["limpet"]["component"])
        assert "HUSH" not in component
        told = ("gpt-4o", "gateway.example/v1?sig=", "Authorization", "X-Team", "async def send")
        assert all(text in component for text in told)

    in_store(work)


@pytest.mark.parametrize(
    "config",
    [
        {"azure_ad_token": "HUSH"},
        {"clientSecret": "HUSH", "max_tokens": 5},
        {"nested": [{"auth": {"user": "HUSH", "scopes": ["HUSH"]}}]},
        {"connection_string": "HUSH"},
        {"endpoint": "Endpoint=sb://x/;SharedAccessKey=HUSH;EntityPath=y"},
        {"store": "postgresql://ann:HUSH@db/agents"},
        {"webhook": "https://x.example/hook?code=HUSH#top"},
        {"path": "/blob?sv=HUSH"},
        {"note": "call it with Bearer HUSH-0123456789abcdef"},
        {"source_code": 'client(password="HUSH", retries=3)'},
        {"passphrases": 'Server=db;Password="HUSH HUSH";Timeout=3'},
        {"annotated": "def send(text, token: str | None = 'HUSH'): ..."},
        {"formatted": '{"Authorization": f"Bearer HUSH"}'},
        {"odd": "amqp://ann:x@y/HUSH@queue/v"},
        {"args": ["-H", "Authorization: Bearer HUSH"]},
        {"server_params": {"command": "x", "args": ["--api-key", "HUSH", "--token=HUSH"]}},
        {"StdioServerParams": {"command": "x", "env": {"DATABASE": "HUSH"}}},
        {"SseServerParams": {"url": "https://x.example/?a=HUSH", "headers": {"X": "HUSH"}}},
        {"pem": "-----BEGIN RSA PRIVATE KEY-----\nHUSH\n-----END RSA PRIVATE KEY-----"},
        {"anything": "sk-HUSHHUSH"},
    ],
    ids=lambda config: next(iter(config)),
)
def test_what_may_be_a_credential_is_masked(config: dict[str, Any]) -> None:
    """By the name of its field, or by what it looks like; the names of fields stay."""
    found = masked(config)
    assert "HUSH" not in json.dumps(found)
    assert MASK in json.dumps(found)
    assert found.keys() == config.keys()
    assert found.get("max_tokens", 5) == 5


def test_what_is_no_credential_is_stored_as_it_is() -> None:
    """Prompts, names, models and limits are what the description is for."""
    config = {
        "model": "gpt-4o",
        "max_tokens": 40,
        "tokenizer": "cl100k",
        "stop": ["END"],
        "api_key": None,
        "system_message": "Use basic arithmetic; a risk-averse tone. See https://docs.example/a.",
        "server_params": {"type": "StdioServerParams", "command": "uvx", "args": ["server"]},
    }
    assert masked(config) == config


# -- saved without going through all of it ---------------------------------------------------------


class Brief(UserMessage):
    """A kind of message that AutoGen does not know."""

    aside: str = "not saved"


def _edits(picture: Any) -> list[Callable[[list[Any]], Any]]:
    """What may become of the messages in a context, by AutoGen, a context's class, or a user."""
    call = FunctionCall(id="c", name="look", arguments="{}")
    result = FunctionExecutionResult(content="found", name="look", call_id="c", is_error=False)
    said = AssistantMessage(content="Hm.", thought="Why?", source="anna")
    return [
        lambda them: them.append(UserMessage(content="Hello.", source="user")),
        lambda them: them.append(said),
        lambda them: them.append(AssistantMessage(content=[call], source="anna")),
        lambda them: them.append(FunctionExecutionResultMessage(content=[result])),
        lambda them: setattr(said, "thought", None),
        lambda them: setattr(call, "arguments", '{"text": "x"}'),
        lambda them: setattr(result, "content", "lost"),
        lambda them: them[2].content.append(FunctionCall(id="d", name="look", arguments="{}")),
        lambda them: them.insert(1, SystemMessage(content="Be brief.")),
        lambda them: them.append(Brief(content="Short.", source="user")),
        lambda them: them.append({"content": "A dict.", "source": "u", "type": "UserMessage"}),
        lambda them: them[-1].update(content="Another."),
        lambda them: them.pop(),
        lambda them: them.append(UserMessage(content=["Look:", picture], source="user")),
        lambda them: them[-1].content.append("Well?"),
        lambda them: them.__delitem__(slice(2, None)),
        lambda them: them.clear(),
        lambda them: them.append(UserMessage(content="Hello again.", source="user")),
    ]


def test_what_is_saved_is_what_autogen_would_save(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is new is gone through, and yet no change is missed, wherever it was made."""
    picture = Image.from_pil(PIL.Image.new("RGB", (1, 1)))
    asked = 0
    save_state = AssistantAgent.save_state

    async def counted(it: Any) -> Any:
        nonlocal asked
        asked += 1
        return await save_state(it)

    monkeypatch.setattr(AssistantAgent, "save_state", counted)

    async def work() -> None:
        nonlocal asked
        one = agent("anna")
        dump = members.StateDump(one)
        for edit in _edits(picture):
            edit(one.model_context._messages)
            expected = json.dumps(dict(await save_state(one)))
            assert json.dumps(await dump()) == expected
            assert json.dumps(await dump()) == expected
        asked = 0
        for number in range(members.TRUSTED + 5):
            one.model_context._messages.append(UserMessage(content=f"{number}", source="user"))
            assert await dump() == await save_state(one)
        assert asked == 1  # once in a while all of it is gone through

    asyncio.run(work())


# -- tools cut in half -----------------------------------------------------------------------------


async def cut(store: AsyncStore, id: str = "it", **options: Any) -> None:
    """An agent whose process, for all that the store knows, died while its tool ran."""
    began = asyncio.Event()

    async def pay(text: str) -> str:
        """Pay."""
        began.set()
        await asyncio.sleep(60)
        return text

    one = agent("anna", calling("pay"), tools=[pay], reflect_on_tool_use=True)
    await autogen.keep(one, store, id, **options)
    await broken(one.run(task="Pay it."), began.wait())
    assert [call.name for call in autogen.kept(one).in_doubt] == ["pay"]


async def broken(run: Any, when: Awaitable[Any]) -> None:
    """A *run* that is broken off *when* that is so."""
    task = asyncio.create_task(run)
    await when
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def payer(paid: list[str]) -> AssistantAgent:
    """An agent that pays."""

    async def pay(text: str) -> str:
        """Pay."""
        paid.append(text)
        return "paid"

    return agent("anna", calling("pay"), tools=[pay], reflect_on_tool_use=True)


def test_a_tool_that_was_cut_short_is_not_run_again() -> None:
    """The model is told that nobody knows, and so are the people who look."""

    async def work(store: AsyncStore) -> None:
        await cut(store)
        paid: list[str] = []
        one = await autogen.keep(payer(paid), store, "it")
        kept = autogen.kept(one)
        assert [(call.name, call.id) for call in kept.in_doubt] == [("pay", "call-2")]
        result = await one.run()
        assert not paid
        assert texts(result)[-1] == f"anna: The tool says {INTERRUPTED}"
        assert [repair["tool"] for repair in kept.repairs] == ["pay"]
        later = await autogen.keep(payer(paid), store, "it")
        assert autogen.kept(later).repairs == kept.repairs

    in_store(work)


def test_a_tool_that_outlives_its_run_changes_nothing_of_the_next() -> None:
    """AutoGen does not end it with the run; what comes of it then comes too late."""

    async def work(store: AsyncStore) -> None:
        began, ended = asyncio.Event(), asyncio.Event()

        async def pay(text: str) -> str:
            """Pay."""
            began.set()
            await ended.wait()
            return "paid"

        one = agent("anna", calling("pay"), tools=[pay], reflect_on_tool_use=True)
        await autogen.keep(one, store, "it")
        await broken(one.run(task="Pay it."), began.wait())
        run = asyncio.create_task(one.run())
        await asyncio.sleep(0)
        ended.set()
        assert texts(await run)[-1] == f"anna: The tool says {INTERRUPTED}"
        other = await autogen.keep(payer([]), store, "it")
        assert await other.save_state() == await one.save_state()

    in_store(work)


def test_a_tool_that_may_run_twice_does() -> None:
    """Where a second time does no harm, nobody needs to know."""

    async def work(store: AsyncStore) -> None:
        await cut(store)
        paid: list[str] = []
        one = await autogen.keep(payer(paid), store, "it", idempotent=["pay"])
        assert texts(await one.run())[-1] == "anna: The tool says paid"
        assert paid == ["n2"]
        assert not autogen.kept(one).repairs

    in_store(work)


def test_somebody_can_say_what_came_of_it() -> None:
    """With in_doubt="ask" it waits for a person who has looked."""

    async def work(store: AsyncStore) -> None:
        await cut(store)
        paid: list[str] = []
        one = await autogen.keep(payer(paid), store, "it", in_doubt="ask")
        with pytest.raises(autogen.CallsInDoubt, match=r"pay \(call-2\)"):
            await one.run()
        with pytest.raises(NotFound, match="'call-9' of state 'it' is not in doubt"):
            await autogen.kept(one).resolve("call-9", "done", result="paid")
        await autogen.kept(one).resolve("call-2", "done", result="paid, the bank says")
        assert texts(await one.run())[-1] == "anna: The tool says paid, the bank says"
        assert not paid

    in_store(work)


def test_a_call_that_is_left_out_was_never_made() -> None:
    """With in_doubt="drop" the model is asked again, and may call the tool once more, or not."""

    async def work(store: AsyncStore) -> None:
        await cut(store)
        paid: list[str] = []
        one = await autogen.keep(payer(paid), store, "it", in_doubt="drop")
        assert texts(await one.run())[-1] == "anna: The tool says paid"
        assert paid == ["n2"]
        (repair,) = autogen.kept(one).repairs
        assert repair["what"].endswith("it was left out")
        await cut(store, "other")
        other = await autogen.keep(
            agent("anna"), store, "other", in_doubt="drop", on_change="ignore"
        )
        await other.run(task="Never mind.")
        assert [m["content"] for m in await context(other)][:2] == ["Pay it.", "Never mind."]

    in_store(work)


def test_of_several_calls_only_the_one_in_doubt_is_left_out() -> None:
    """What the others have done is known, and is not done again."""

    async def work(store: AsyncStore) -> None:
        looked: list[str] = []

        async def pay(text: str) -> str:
            """Pay."""
            await asyncio.sleep(60)
            return text

        async def note(text: str) -> str:
            """Note it down."""
            looked.append(text)
            return "noted"

        def answer(messages: Sequence[Any], tools: Any) -> Any:
            if messages[-1].type == "FunctionExecutionResultMessage":
                return ", ".join(result.content for result in messages[-1].content)
            return [
                FunctionCall(id=name, name=name, arguments='{"text": "5"}')
                for name in ("pay", "note")
            ]

        def made() -> AssistantAgent:
            return agent("anna", answer, tools=[pay, note], reflect_on_tool_use=True)

        async def noted() -> None:
            # Not when the tool has run: when that is durable.
            while "noted" not in json.dumps(await store.state("it").load(default=None)):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)

        one = await autogen.keep(made(), store, "it", component=False)
        await broken(one.run(task="Pay, and note it."), noted())
        assert looked == ["5"]
        other = await autogen.keep(made(), store, "it", in_doubt="drop")
        assert texts(await other.run())[-1] == "anna: noted"
        assert looked == ["5"]

    in_store(work)


def test_an_agent_that_is_asked_something_else_knows_what_its_tools_did() -> None:
    """A turn that nobody goes on with is no secret: its model sees the call and its result."""

    async def work(store: AsyncStore) -> None:
        await cut(store)
        one = await autogen.keep(agent("anna"), store, "it", on_change="ignore")
        await one.run(task="Never mind.")
        said = await context(one)
        assert [m["type"] for m in said] == [
            "UserMessage",
            "AssistantMessage",
            "FunctionExecutionResultMessage",
            "UserMessage",
            "AssistantMessage",
        ]
        assert said[2]["content"][0]["content"] == INTERRUPTED

    in_store(work)


@pytest.mark.parametrize("kind", ["nested", "graph"])
def test_what_a_model_has_said_in_a_long_turn_is_not_asked_again(kind: str) -> None:
    """A turn of a team within a team is many turns, and one of several at once has to wait."""
    first, later = {"nested": ("poet", "editor"), "graph": ("left", "right")}[kind]

    def members(it: Any) -> dict[str, Any]:
        inner = it._participants[0]
        found = inner._participants if kind == "nested" else it._participants
        return {member.name: member for member in found}

    async def work(store: AsyncStore) -> None:
        whole = await KINDS[kind]().run(task="Go.")
        one = KINDS[kind]()

        async def dead(*args: Any, **options: Any) -> Any:
            await asyncio.sleep(0.05)
            raise ConnectionError("The model is away.")

        members(one)[later]._model_client.create = dead
        await autogen.keep(one, store, "it")
        with pytest.raises(RuntimeError, match="The model is away"):
            await one.run(task="Go.")
        other = KINDS[kind]()
        models = {name: member._model_client for name, member in members(other).items()}
        await autogen.keep(other, store, "it")
        assert texts(await other.run()) == texts(whole)
        spoke = sum(1 for message in whole.messages if message.source == first)
        assert models[first].asked == spoke - 1

    in_store(work)


def test_several_tools_at_once_are_begun_by_one_write() -> None:
    """A model that calls five tools does not pay for ten writes."""

    async def work(store: AsyncStore) -> None:
        def answer(messages: Sequence[Any], tools: Any) -> Any:
            return [
                FunctionCall(id="", name="look", arguments=json.dumps({"text": f"n{number}"}))
                for number in range(5)
            ]

        one = await autogen.keep(agent("anna", answer, tools=[look]), store, "it")
        result = await one.run(task="Look.")
        assert result.messages[-1].to_text().count("found") == 5
        assert len(set(result.messages[-1].to_text().split("\n"))) == 5
        assert len(await autogen.kept(one).state.history()) <= 5

    in_store(work)


# -- states that are not whole, or not ours --------------------------------------------------------

CALL = {"id": "c1", "name": "pay", "arguments": "{}"}
CUT = {
    "type": "AssistantAgentState",
    "version": "1.0.0",
    "llm_context": {
        "messages": [
            {"content": "Pay.", "source": "user", "type": "UserMessage"},
            {"content": [CALL], "thought": None, "source": "anna", "type": "AssistantMessage"},
            {"content": "And?", "source": "user", "type": "UserMessage"},
            {
                "content": [{"content": "x", "name": "old", "call_id": "c0", "is_error": False}],
                "type": "FunctionExecutionResultMessage",
            },
        ]
    },
}


def test_a_call_without_its_result_gets_one_that_says_so() -> None:
    """A state that AutoGen saved within a call is not refused by the provider for ever."""

    async def work(store: AsyncStore) -> None:
        await store.state("it").save(CUT)
        one = await autogen.keep(agent("anna"), store, "it")
        said = await context(one)
        assert [m["type"] for m in said] == [
            "UserMessage",
            "AssistantMessage",
            "FunctionExecutionResultMessage",
            "UserMessage",
        ]
        assert said[2]["content"][0]["content"] == INTERRUPTED
        assert [r["call_id"] for r in autogen.kept(one).repairs] == ["c1", "c0"]
        with pytest.raises(BrokenHistory, match="'pay' has no result"):
            await autogen.keep(agent("anna"), store, "it", repair="raise")
        two = await autogen.keep(agent("anna"), store, "it", repair="drop")
        assert [m["content"] for m in await context(two)] == ["Pay.", "And?"]
        thoughtful = json.loads(json.dumps(CUT))
        thoughtful["llm_context"]["messages"][1]["thought"] = "I pay."
        await store.state("other").save(thoughtful)
        two = await autogen.keep(agent("anna"), store, "other", repair="drop")
        assert [m["content"] for m in await context(two)] == ["Pay.", "I pay.", "And?"]

    in_store(work)


def test_the_state_of_something_else_is_refused() -> None:
    """AutoGen takes a team's state for an agent's, and wipes the agent's history."""

    async def work(store: AsyncStore) -> None:
        await broken_off(store, "team")
        with pytest.raises(WrongState, match="TeamState"):
            await autogen.keep(agent("anna"), store, "team")
        four = RoundRobinGroupChat([agent(n) for n in ("anna", "ben", "cleo", "dan")])
        with pytest.raises(WrongState, match="this team has also dan"):
            await autogen.keep(four, store, "team", on_change="ignore")
        members: list[Any] = [agent("anna"), agent("ben"), agent("cleo")]
        other = SelectorGroupChat(members, model_client=played())
        with pytest.raises(WrongState, match="SelectorGroupChatManager"):
            await autogen.keep(other, store, "team", on_change="ignore")
        one = await autogen.keep(agent("anna"), store, "one")
        with pytest.raises(WrongState, match="given to AssistantAgent, whose own are of type"):
            await one.load_state(await other.save_state())

    in_store(work)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every part of a document."""
    parts: Any = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, part in parts:
        found.append((*path, key))
        if isinstance(part, (dict, list)):
            found += places(part, (*path, key))
    return found


def altered(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of *document* with another *value* at *path*; ``...``: with none."""
    made = json.loads(json.dumps(document))
    part = made
    for key in path[:-1]:
        part = part[key]
    if value is ...:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return made


def lengths(state: Any) -> list[int]:
    """How many messages there are in each list of them, in their order."""
    names = ("messages", "message_thread", "message_buffer")
    found = []
    for path in places(state):
        if path[-1] in names and path[0] != "limpet":
            part = state
            for key in path:
                part = part[key]
            found.append(len(part))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_altered_in_the_store_is_an_error_that_says_so(kind: str) -> None:
    """Or it is taken, and nothing is forgotten: never a KeyError, never an agent that knows less.

    Parts are dropped, or of another kind, wherever they are.
    """
    chosen = random.Random(kind)

    async def work(store: AsyncStore) -> None:
        one = await autogen.keep(KINDS[kind](), store, "it", component=False)
        await one.run(task=TextMessage(content="Go.", source="user", id="mine"))
        state = store.state("it")
        document = await state.at((await state.info()).position // 2 + 1)
        ways = places(document)
        ours = [path for path in ways if path[0] == "limpet"]
        refused = 0
        for number in range(24):
            path = chosen.choice(ours if number % 2 else ways)
            value = chosen.choice([..., None, 7, "x", [7], {"x": 1}, True])
            await store.state(f"{number}").save(altered(document, path, value))
            made = KINDS[kind]()
            try:
                await autogen.keep(made, store, f"{number}", on_change="ignore")
            except WrongState:
                refused += 1
            else:
                before, after = lengths(document), lengths(await made.save_state())
                assert all(now >= was - 1 for was, now in zip(before, after, strict=True)), path
        assert 0 < refused < 24

    in_store(work)


def test_what_is_altered_while_it_is_kept_is_refused_until_it_is_mended() -> None:
    """An earlier save is restored, and it goes on; what was asked before it is not forgotten."""

    async def work(store: AsyncStore) -> None:
        kept = await autogen.keep(agent("anna"), store, "it")
        await kept.run(task="One.")
        state = store.state("it")
        good = (await state.info()).position
        document = await state.load()
        await state.save(document | {"llm_context": {}})
        for _ in range(2):
            with pytest.raises(WrongState, match=r"llm_context has no 'messages'.*restore\(positi"):
                await kept.run(task="Two.")
        await state.restore(good)
        await kept.run(task="Three.")
        said = [message["content"] for message in await context(kept)]
        assert said[::2] == ["One.", "Three."]

    in_store(work)


def test_a_team_that_shrank_is_told_when_the_next_speaker_is_gone() -> None:
    """AutoGen would find out when it is their turn, by an IndexError."""

    async def work(store: AsyncStore) -> None:
        await broken_off(store, "team", turns=2)
        two = RoundRobinGroupChat([agent("anna"), agent("ben")])
        with pytest.raises(WrongState, match="number 3 is to speak next, and there are 2"):
            await autogen.keep(two, store, "team", on_change="ignore")

    in_store(work)


def test_a_change_of_prompt_tools_and_model_is_told() -> None:
    """A state that was saved by an agent with other tools may call what is not there any more."""

    async def work(store: AsyncStore) -> None:
        one = agent("anna", calling("look"), tools=[look])
        await autogen.keep(one, store, "it")
        await one.run(task="Look.")
        with pytest.warns(ChangedWarning, match="still calls look, which is gone"):
            await autogen.keep(agent("anna"), store, "it")
        seen = []

        def on_change(change: Any, document: Any) -> Any:
            seen.append(change)
            return document

        other = AssistantAgent("anna", played(), system_message="Be brief.")
        await autogen.keep(other, store, "it", on_change=on_change)
        assert seen[0].prompt == ("You are anna.", "Be brief.")
        assert seen[0].tools_removed == ["look"]

    in_store(work)


def test_older_versions_are_migrated() -> None:
    """A tool got another name, and the history of every agent with it."""
    ours = Migrations()

    @ours.migration("it", 1, 2)
    def renamed(document: Any) -> Any:
        return json.loads(json.dumps(document).replace('"look"', '"find"'))

    async def work(store: AsyncStore) -> None:
        one = agent("anna", calling("look"), tools=[look])
        await autogen.keep(one, store, "it")
        await one.run(task="Look.")
        with pytest.raises(NoMigration, match=r"@limpet.migration"):
            await autogen.keep(agent("anna"), store, "it", version=2)

        async def find(text: str) -> str:
            """Look something up."""
            return text

        other = agent("anna", calling("find"), tools=[find])
        await autogen.keep(other, store, "it", version=2, on_change="ignore", migrations=ours)
        assert (await context(other))[1]["content"][0]["name"] == "find"
        await other.run(task="Again.")
        assert (await store.state("it").info()).version == 2

    in_store(work)


# -- several at once -------------------------------------------------------------------------------


def test_two_that_take_turns_know_of_each_other() -> None:
    """Two instances of a service each have the agent; a user meets now one, now the other."""

    async def work(store: AsyncStore) -> None:
        one, other = agent("anna"), agent("anna")
        await autogen.keep(one, store, "it")
        await autogen.keep(other, store, "it")
        for number in range(3):
            await one.run(task=f"One {number}.")
            await other.run(task=f"Other {number}.")
        assert len(await context(other)) == 12
        assert [m["content"] for m in await context(other)][::4] == [f"One {n}." for n in range(3)]

    in_store(work)


def test_of_two_at_the_same_time_one_gets_a_conflict_and_nothing_is_lost() -> None:
    """The late one is told, before or after its model was asked; the other's turn stands."""

    async def work(store: AsyncStore) -> None:
        one, other = trio(), trio()
        await autogen.keep(one, store, "it")
        await autogen.keep(other, store, "it")
        results = await asyncio.gather(
            one.run(task="One."), other.run(task="Other."), return_exceptions=True
        )
        kinds = sorted(type(result).__name__ for result in results)
        assert kinds == ["Conflict", "TaskResult"], results
        won = next(result for result in results if isinstance(result, TaskResult))
        third = await autogen.keep(trio(), store, "it")
        manager = (await third.save_state())["agent_states"]["RoundRobinGroupChatManager"]
        assert [m["content"] for m in manager["message_thread"]] == [
            message.to_text() for message in won.messages
        ]
        late = one if isinstance(results[0], Conflict) else other
        assert len((await late.run(task="Late.")).messages) == 7

    in_store(work)


@pytest.mark.slow
def test_with_a_hold_the_second_waits_for_the_first() -> None:
    """Nobody pays for a model's answer that is then thrown away."""

    async def work(store: AsyncStore) -> None:
        one, other = trio(), trio()
        await autogen.keep(one, store, "it", hold=True)
        await autogen.keep(other, store, "it", hold=True)
        first, second = await asyncio.gather(one.run(task="One."), other.run(task="Other."))
        assert len(first.messages) == len(second.messages) == 7
        impatient = await autogen.keep(trio(), store, "it", hold=True, wait=0)
        stream = one.run_stream(task="Once more.")
        await anext(stream)
        with pytest.raises(LeaseHeld):
            await impatient.run(task="Now.")
        await stream.aclose()
        await impatient.run(task="Now.")

    in_store(work)


# -- the rest --------------------------------------------------------------------------------------


def test_an_agent_has_one_past() -> None:
    """Kept twice, one user's words would be told to another."""

    async def work(store: AsyncStore) -> None:
        team = trio()
        await autogen.keep(team, store, "it")
        with pytest.raises(autogen.AlreadyKept, match="'it' already"):
            await autogen.keep(team, store, "other")
        with pytest.raises(autogen.AlreadyKept, match="'anna' is kept"):
            await autogen.keep(team._participants[0], store, "other")
        autogen.kept(team._participants[0]).release()
        with pytest.raises(ValueError, match="is not kept"):
            autogen.kept(team)
        assert type(team._participants[0]._model_client).__name__ == "Played"  # type: ignore[union-attr]
        assert "run" not in vars(team)
        assert len((await team.run(task="Go.")).messages) == 7
        await autogen.keep(team, store, "other")

    in_store(work)


def test_an_agent_that_nobody_has_any_more_is_gone() -> None:
    """A service that makes one for each request does not keep them all in memory."""

    async def work(store: AsyncStore) -> None:
        async def request() -> Any:
            team = await autogen.keep(trio(), store, "it")
            await team.run(task="Go.")
            return weakref.ref(team)

        found = await request()
        gc.collect()
        assert found() is None

    in_store(work)


def test_pictures_are_kept() -> None:
    """A message may be more than text."""

    async def work(store: AsyncStore) -> None:
        pixel = base64.b64decode(
            "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5Er"
            "kJggg=="
        )
        picture = Image.from_pil(PIL.Image.open(io.BytesIO(pixel)))
        task = MultiModalMessage(content=["Look:", picture], source="user", id="picture-1")
        one = await autogen.keep(agent("anna", lambda *_: "A pixel."), store, "it")
        await one.run(task=task)
        other = await autogen.keep(agent("anna"), store, "it")
        assert await context(other) == await context(one)
        again = await other.run(task=task)
        assert again.messages[-1].to_text() == "A pixel."
        seen = (await other.model_context.get_messages())[0].content[1]
        assert isinstance(seen, Image)

    in_store(work)


def test_a_state_that_was_loaded_by_hand_counts() -> None:
    """Whoever has a file of his own loads it, and it is kept from the next turn on."""

    async def work(store: AsyncStore) -> None:
        plain = agent("anna")
        await plain.run(task="Long ago.")
        one = await autogen.keep(agent("anna"), store, "it")
        await one.load_state(await plain.save_state())
        await one.model_context.add_message(UserMessage(content="By hand.", source="user"))
        await one.run(task="Now.")
        other = await autogen.keep(agent("anna"), store, "it")
        said = [message["content"] for message in await context(other)]
        assert said[0] == "Long ago."
        assert "By hand." in said

    in_store(work)


def test_what_was_exported_plain_autogen_loads() -> None:
    """Nobody is locked in: also in the middle of a run."""

    async def work(store: AsyncStore) -> None:
        await broken_off(store)
        document = json.loads(json.dumps(await autogen.export(store, "it")))
        assert set(document) == {"type", "version", "agent_states"}
        thread = document["agent_states"]["RoundRobinGroupChatManager"]["message_thread"]
        plain = trio(2)
        await plain.load_state(document)
        whole = texts(await trio().run(task="Go."))
        assert texts(await plain.run()) == whole[len(thread) : len(thread) + 2]
        first = await autogen.export(store, "it", at=1)
        assert first["agent_states"]["anna"]["message_buffer"] == []

    in_store(work)


def test_a_file_from_the_command_line_is_what_plain_autogen_loads(tmp_path: Path) -> None:
    """And what it loads goes on as if it had never been elsewhere."""
    url = f"sqlite:{tmp_path}/agents.db"
    states = in_store(_two_turns, url)

    def run(*args: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, ["--store", url, "export", *args])
        assert result.exit_code == code, result.output
        return result.output

    for id_, made in (("agent", lambda: agent("anna")), ("team", trio)):
        file = tmp_path / f"{id_}.json"
        assert f"State {id_}, as it was saved at" in run("--state", id_, "-o", str(file))
        plain = made()
        asyncio.run(plain.load_state(json.loads(file.read_bytes())))
        assert asyncio.run(plain.save_state()) == states[id_]
    first = json.loads(run("--state", "agent", "--at", "2"))
    assert len(first["llm_context"]["messages"]) == 2
    assert json.loads(run("--state", "mine")) == {"limpet": "mine"}
    run("--state", "nobody", code=3)
    run("--state", "agent", "alice", code=2)
    run("--at", "2", code=2)


async def _two_turns(store: AsyncStore) -> dict[str, Any]:
    kinds: dict[str, Any] = {"agent": agent("anna"), "team": trio()}
    await store.state("mine").save({"limpet": "mine"})
    for id_, made in kinds.items():
        it = await autogen.keep(made, store, id_)
        await it.run(task="One.")
        await it.run(task="Two.")
    return {id_: await made.save_state() for id_, made in kinds.items()}


def test_a_file_that_was_written_by_hand_is_kept_from_then_on(tmp_path: Path) -> None:
    """What people have: ``json.dump(await agent.save_state())``."""
    plain = agent("anna")
    asyncio.run(plain.run(task="Long ago."))
    data = json.dumps(asyncio.run(plain.save_state())).encode()
    url = f"sqlite:{tmp_path}/agents.db"
    with limpet.open(url) as store:
        for item in importing.understand(importing.parse(data), name="agent_state"):
            importing.put(store, item)

    async def work(store: AsyncStore) -> None:
        one = await autogen.keep(agent("anna"), store, "agent_state")
        assert await context(one) == await context(plain)
        await one.run(task="Now.")
        assert len(await context(await autogen.keep(agent("anna"), store, "agent_state"))) == 4

    in_store(work, url)


def test_two_that_take_up_the_same_run_do_not_both_end_it() -> None:
    """A run that was broken off is taken up by a write, and only one gets it."""

    async def work(store: AsyncStore) -> None:
        await broken_off(store)
        one = await autogen.keep(trio(), store, "it")
        other = await autogen.keep(trio(), store, "it")
        assert len((await one.run(task="Go.")).messages) == 7
        with pytest.raises(Conflict):
            await other.run(task="Go.")
        manager = (await one.save_state())["agent_states"]["RoundRobinGroupChatManager"]
        assert len(manager["message_thread"]) == 7
        assert len((await other.run(task="Once more.")).messages) == 7

    in_store(work)


def test_a_task_that_another_process_has_done_is_not_done_again() -> None:
    """An id says it is the same, whoever has heard it first."""

    async def work(store: AsyncStore) -> None:
        one = await autogen.keep(agent("anna"), store, "it")
        other = await autogen.keep(agent("anna"), store, "it")
        task = TextMessage(content="Go.", source="user", id="message-17")
        first = await one.run(task=task)
        assert texts(await other.run(task=task)) == texts(first)
        assert len(await context(other)) == 2

    in_store(work)


def test_an_orchestrator_with_nothing_to_go_on_with_says_so() -> None:
    """AutoGen's is an assertion that fails."""

    async def work(store: AsyncStore) -> None:
        team = await autogen.keep(KINDS["magentic one"](), store, "it")
        with pytest.raises(AssertionError, match="needs a task"):
            await team.run()

    in_store(work)


def test_a_store_that_is_not_async_will_do(tmp_path: Path) -> None:
    """AutoGen awaits; the rest of the program need not."""
    with limpet.open(tmp_path / "agents.db") as store:

        async def work() -> None:
            one = await autogen.keep(agent("anna"), store, "it")
            await one.run(task="Hello.")
            assert (await autogen.export(store, "it"))["type"] == "AssistantAgentState"

        asyncio.run(work())
        assert store.state("it").load()["llm_context"]["messages"][0]["content"] == "Hello."


def test_without_autogen_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter imports without it."""
    monkeypatch.setitem(sys.modules, "autogen_agentchat", None)

    async def work(store: AsyncStore) -> None:
        with pytest.raises(MissingExtra, match=r"\[autogen\]"):
            await autogen.keep(None, store, "it")  # type: ignore[type-var]

    in_store(work)


def test_what_is_not_autogens_is_refused() -> None:
    """Any object has a state of its own: `store.state`."""

    async def work(store: AsyncStore) -> None:
        with pytest.raises(TypeError, match="not a dict"):
            await autogen.keep({}, store, "it")  # type: ignore[type-var]
        with pytest.raises(ValueError, match="repair is"):
            await autogen.keep(agent("anna"), store, "it", repair="ask")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="in_doubt is"):
            await autogen.keep(agent("anna"), store, "it", in_doubt="stub")  # type: ignore[arg-type]
        assert "Kept('it'" in repr(autogen.kept(await autogen.keep(agent("bo"), store, "it")))

    in_store(work)
