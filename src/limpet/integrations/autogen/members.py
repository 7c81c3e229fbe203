"""An agent or a team and all that is within it: what AutoGen saves of it, and what it does not."""

from __future__ import annotations

import inspect
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from autogen_agentchat.agents import (
    AssistantAgent,
    BaseChatAgent,
    CodeExecutorAgent,
    MessageFilterAgent,
    SocietyOfMindAgent,
)
from autogen_agentchat.base import Response
from autogen_agentchat.conditions import TimeoutTermination
from autogen_agentchat.messages import MessageFactory, StopMessage, StructuredMessage
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import FunctionCall
from autogen_core.model_context import ChatCompletionContext, ChatCompletionContextState
from autogen_core.models import FunctionExecutionResult

from limpet.core.codec import fresh, plain
from limpet.errors import TaskHalted
from limpet.integrations.autogen import internals
from limpet.integrations.autogen.recording import (
    Patches,
    RecordingClient,
    RecordingExecutor,
    RecordingWorkbench,
    catch_halts,
    catch_halts_of_agent,
    find_halt,
    recording_workbench,
    run_effects_as_steps,
)
from limpet.integrations.autogen.run import as_exception

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

    from limpet.integrations.autogen.run import TurnLog

__all__ = [
    "AgentMember",
    "Counters",
    "Member",
    "StateDump",
    "TeamMember",
    "copied",
    "factory_of",
    "member_of",
    "members_of",
]

#: The name of a team's manager in the log; no participant can be called so.
MANAGER = "@manager"


class Member:
    """One agent or team, and its place: "writer", "research/writer"; "" for the outermost."""

    def __init__(self, it: Any, path: str) -> None:
        self.it = it
        self.path = path
        self.members: dict[str, Member] = {}

    def __iter__(self) -> Iterator[Member]:
        """This one and all within it."""
        yield self
        for member in self.members.values():
            yield from member

    def below(self, name: str) -> str:
        """The path of what is called *name* within it."""
        return f"{self.path}/{name}" if self.path else name

    async def attach(self) -> None:
        """Get hold of what only comes to be when it is used."""
        for member in self.members.values():
            await member.attach()

    async def save(self) -> dict[str, Any]:
        """What AutoGen's ``save_state`` leaves out, of this one and of all within it."""
        found = await self.save_own()
        members = {name: await member.save() for name, member in self.members.items()}
        members = {name: saved for name, saved in members.items() if saved}
        return {**found, "members": members} if members else found

    async def load(self, saved: dict[str, Any]) -> None:
        """Take it back. What is not in *saved* is as it was made."""
        await self.load_own(saved)
        for name, member in self.members.items():
            await member.load(saved.get("members", {}).get(name, {}))

    async def save_own(self) -> dict[str, Any]:
        """What AutoGen leaves out of this one."""
        return {}

    async def load_own(self, saved: dict[str, Any]) -> None:
        """Take that back."""

    def record(self, log: TurnLog, idempotent: frozenset[str], *, retry: bool) -> None:
        """Let *log* have all that its models answer and its tools do.

        *idempotent* names tools that may run twice; with *retry*, those in doubt are run again.
        """
        for member in self.members.values():
            member.record(log, idempotent, retry=retry)

    def release(self) -> None:
        """Let it be as it was."""
        for member in self.members.values():
            member.release()


class AgentMember(Member):
    """An agent."""

    def __init__(self, it: Any, path: str) -> None:
        super().__init__(it, path)
        for name, inner in internals.inner(it).items():
            self.members[name] = member_of(inner, self.below(name))
        # These have a model context, and do not save it.
        forgets = isinstance(it, (SocietyOfMindAgent, CodeExecutorAgent))
        self._context = it.model_context if forgets else None
        self._patches = Patches()
        #: The id of the message that it last answered with.
        self.answer: str | None = None

    async def save_own(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._context is not None:
            found["context"] = dict(await self._context.save_state())
        if isinstance(self.it, MessageFilterAgent):
            found["wrapped"] = dict(await self.members["wrapped"].it.save_state())
        tools = [dict(await bench.save_state()) for bench in internals.workbenches(self.it)]
        if any(_has_content(state) for state in tools):
            found["tools"] = tools
        return found

    async def load_own(self, saved: dict[str, Any]) -> None:
        if self._context is not None:
            await self._context.load_state(saved.get("context", {}))
        if saved.get("wrapped"):
            await self.members["wrapped"].it.load_state(saved["wrapped"])
        benches = internals.workbenches(self.it)
        for bench, state in zip(benches, saved.get("tools", ()), strict=False):
            await bench.load_state(state)

    def record(self, log: TurnLog, idempotent: frozenset[str], *, retry: bool) -> None:
        super().record(log, idempotent, retry=retry)
        actor = self._actor = log.actor(self.path)
        _record_client(self.it, log, self.path, lambda: "/" in self.path)
        rules: dict[str, Any] = {"idempotent": idempotent, "retry": retry}
        if benches := internals.workbenches(self.it):
            steps = [run_effects_as_steps(bench, self._patches) for bench in benches]
            self._catch_halts(self, [])
            recording = [
                recording_workbench(bench, actor, steps=names, **rules)
                for bench, names in zip(benches, steps, strict=True)
            ]
            internals.replace_workbenches(self.it, recording)
        executor = internals.code_executor(self.it)
        if executor is not None:
            internals.replace_code_executor(self.it, RecordingExecutor(executor, actor, **rules))
        self._stream = self._patches.put(self.it, "on_messages_stream", self._on_messages_stream)

    def _catch_halts(self, member: Member, known: list[Any]) -> None:
        """Catch what halts a task in the tools of *member*, and in agents that are its tools."""
        if isinstance(member, AgentMember) and member is not self and member.it not in known:
            known.append(member.it)
            catch_halts_of_agent(member.it, self._patches)
        for bench in internals.workbenches(member.it) if isinstance(member, AgentMember) else ():
            if bench in known:  # two may be tools of each other
                continue
            known.append(bench)
            catch_halts(bench, self._patches)
            for tool in internals.tools_of(bench):
                runner = internals.runner_of(tool)
                for inner in member_of(runner) if runner is not None else ():
                    self._catch_halts(inner, known)

    async def _on_messages_stream(
        self, messages: Any, cancellation_token: Any
    ) -> AsyncGenerator[Any, None]:
        """As the agent's own; but when the turn cannot go on, it puts out no more."""
        log = self._actor.log
        try:
            async with aclosing(self._stream(messages, cancellation_token)) as items:
                async for item in items:
                    if log.is_open and not self._actor.running:  # other tools come to their end
                        log.check()
                    if isinstance(item, Response):
                        self.answer = item.chat_message.id
                    yield item
        except (Exception, TaskHalted) as error:
            halt = find_halt(error)  # AutoGen may have made another error of it
            if halt is not None and log.is_open:
                log.refuse(halt)
                stop = as_exception(halt)
                raise stop from stop.__cause__
            raise

    def release(self) -> None:
        super().release()
        self._patches.release()
        _release_client(self.it)
        benches = internals.workbenches(self.it)
        if any(isinstance(bench, RecordingWorkbench) for bench in benches):
            internals.replace_workbenches(self.it, [bench.inner for bench in benches])
        executor = internals.code_executor(self.it)
        if isinstance(executor, RecordingExecutor):
            internals.replace_code_executor(self.it, executor.inner)


class TeamMember(Member):
    """A group chat of AutoGen's, with its manager."""

    def __init__(self, it: BaseGroupChat, path: str) -> None:
        super().__init__(it, path)
        for member in internals.participants(it):
            self.members[member.name] = member_of(member, self.below(member.name))
        condition = internals.termination_condition(it)
        self._counters = None if condition is None else Counters(condition)
        self._patches = Patches()
        self.manager: Any = None
        self.containers: list[Any] = []  # of its members

    @property
    def stops_between_turns(self) -> bool:
        """Whether its runtime is its own, and can be stopped between turns."""
        return self.manager is not None and internals.has_own_runtime(self.it)

    async def attach(self) -> None:
        await super().attach()
        self.manager = await internals.manager_of(self.it)
        self.containers = await internals.containers_of(self.it)

    async def save_own(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._counters is not None:
            found["termination"] = await self._counters.save()
        groups = internals.triggered_groups(self.manager)
        if any(groups.values()):
            found["groups"] = {node: sorted(names) for node, names in groups.items() if names}
        return found

    async def load_own(self, saved: dict[str, Any]) -> None:
        if self._counters is not None:
            await self._counters.load(saved.get("termination"))
        if self.manager is not None:
            # A run that was broken off leaves the names of those who were to speak.
            internals.reset_manager(self.manager, turns=False)
            groups = {node: set(names) for node, names in saved.get("groups", {}).items()}
            internals.set_triggered_groups(self.manager, groups)

    async def restart(self) -> None:
        """Count from the beginning, as after a run that ended."""
        condition = internals.termination_condition(self.it)
        if condition is not None:
            await condition.reset()
        if self.manager is not None:
            internals.reset_manager(self.manager, turns=True)

    async def clear_managers(self) -> None:
        """Clear the contexts of managers, to which AutoGen's ``load_state`` adds."""
        for member in self:
            context = internals.model_context(getattr(member, "manager", None))
            if context is not None:
                await context.clear()

    def record(self, log: TurnLog, idempotent: frozenset[str], *, retry: bool) -> None:
        super().record(log, idempotent, retry=retry)
        for name in ("pause", "resume"):
            self._only_when_running(name)
        if self.manager is None:
            return
        _record_client(self.manager, log, self.below(MANAGER), lambda: bool(self.path))
        for member in self.members.values():
            client = internals.model_client(member.it)
            if isinstance(client, RecordingClient):
                client.is_eager = self._or_several_speak(client.is_eager)

    def _only_when_running(self, name: str) -> None:
        """AutoGen waits for ever for a team that has never run, if it was saved or loaded."""
        own: Callable[[], Any]

        async def call() -> None:
            runtime = internals.runtime_of(self.it)
            if internals.has_own_runtime(self.it) and internals.is_runtime_done(runtime):
                done = f"{name.removesuffix('e')}ed"
                msg = f"The group chat is not running. It must be run before it can be {done}."
                raise RuntimeError(msg)
            await own()

        own = self._patches.put(self.it, name, call)

    def _or_several_speak(self, is_eager: Callable[[], bool]) -> Callable[[], bool]:
        """Of several who speak at once, the first to end has the longest to wait."""
        return lambda: is_eager() or len(internals.active_speakers(self.manager)) > 1

    def release(self) -> None:
        super().release()
        self._patches.release()
        if self.manager is not None:
            _release_client(self.manager)


def member_of(it: Any, path: str = "") -> Member:
    """*it*, at *path*."""
    if isinstance(it, BaseGroupChat):
        return TeamMember(it, path)
    if isinstance(it, BaseChatAgent):
        return AgentMember(it, path)
    return Member(it, path)


def members_of(it: Any) -> list[Member]:
    """*it* and all within it; `TypeError` if it is neither an agent nor a team."""
    member = member_of(it)
    if not isinstance(member, (AgentMember, TeamMember)):
        msg = f"Agents and teams of AutoGen can be kept; not a {type(it).__name__}."
        raise TypeError(msg)
    return list(member)


def factory_of(it: Any, types: Iterable[type[Any]]) -> MessageFactory:
    """What makes messages of what is stored: AutoGen's own, an agent's, and *types*."""
    if isinstance(it, BaseGroupChat):
        return internals.message_factory(it)
    factory = MessageFactory()
    content = internals.output_content_type(it)
    known: list[Any] = [] if content is None else [StructuredMessage.__class_getitem__(content)]
    for kind in (*known, *types):
        if not factory.is_registered(kind):
            factory.register(kind)
    return factory


def _record_client(it: Any, log: TurnLog, path: str, is_eager: Callable[[], bool]) -> None:
    client = internals.model_client(it)
    if client is not None:
        internals.replace_model_client(it, RecordingClient(client, log.actor(path), is_eager))


def _release_client(it: Any) -> None:
    client = internals.model_client(it)
    if isinstance(client, RecordingClient):
        internals.replace_model_client(it, client.inner)


def _has_content(state: dict[str, Any]) -> bool:
    """Whether the state of a workbench has more than the names of its tools."""
    return any(value for name, value in state.items() if name not in ("type", "tools")) or any(
        dict(state.get("tools") or {}).values()
    )


# -- termination conditions ------------------------------------------------------------------------


class Counters:
    """How far a termination condition has counted, and those that it is made of.

    A counter is what has changed since the condition was made: how far it may count is the
    program's to say, not the stored state's.
    """

    def __init__(self, condition: Any) -> None:
        self._condition = condition
        self._first = internals.counter_attributes(condition)
        self._inner = [Counters(inner) for inner in internals.inner_conditions(condition)]

    async def save(self) -> dict[str, Any]:
        """How far it has come."""
        condition = self._condition
        found: dict[str, Any] = {"class": type(condition).__name__}
        own = getattr(condition, "save_state", None)
        if own is not None:
            found["own"] = await _awaited(own())
            return found
        now = internals.counter_attributes(condition)
        counted = {name: now[name] for name in now if now[name] != self._first.get(name)}
        if counted:
            found["counted"] = counted
        if isinstance(condition, TimeoutTermination):
            found["elapsed"] = time.monotonic() - internals.start_time(condition)
        if stops := internals.stop_messages(condition):
            found["stops"] = [message.dump() for message in stops]
        if self._inner:
            found["conditions"] = [await inner.save() for inner in self._inner]
        return found

    async def load(self, saved: dict[str, Any] | None) -> None:
        """Be as far as *saved* says; at the beginning, if that is about another condition."""
        condition = self._condition
        if saved is None or saved.get("class") != type(condition).__name__:
            await condition.reset()
            return
        if "own" in saved and hasattr(condition, "load_state"):
            await _awaited(condition.load_state(saved["own"]))
            return
        counted = saved.get("counted", {})
        for name, value in self._first.items():
            setattr(condition, name, self._checked(name, counted.get(name, value)))
        if isinstance(condition, TimeoutTermination):
            internals.set_start_time(condition, time.monotonic() - saved.get("elapsed", 0))
        if internals.stop_messages(condition) is not None:
            stops = [StopMessage.model_validate(message) for message in saved.get("stops", ())]
            internals.set_stop_messages(condition, stops)
        inner: list[Any] = saved.get("conditions", [])
        if len(inner) != len(self._inner):
            inner = [None] * len(self._inner)
        for counters, state in zip(self._inner, inner, strict=True):
            await counters.load(state)

    def _checked(self, name: str, value: Any) -> Any:
        """*value* if it can be that of *name*: what is stored may have been altered."""
        first = self._first[name]
        # A class of somebody's own may put text where it had a number.
        is_own = not type(self._condition).__module__.startswith("autogen_")
        allowed = (bool, int, float, str, type(None)) if is_own or first is None else type(first)
        if isinstance(value, allowed):
            return value
        raise TypeError(f"{name} of {type(self._condition).__name__} is a {type(value).__name__}")


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


# -- save_state, faster ----------------------------------------------------------------------------

#: After so many times AutoGen is called anyway.
TRUSTED = 100

_FLAT = frozenset({str, bool, type(None)})
_ITEMS = frozenset({FunctionCall, FunctionExecutionResult})


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """A copy of a *state*, of what JSON has."""
    try:
        return fresh(state)  # type: ignore[no-any-return]
    except TypeError:
        return plain(state)  # type: ignore[no-any-return]


class StateDump:
    """What AutoGen's ``save_state`` of *it*, an agent or a team, returns; a copy, not to change.

    AutoGen dumps every message of an agent's context each time, which takes longer than all that is
    stored of a turn. Here only new messages are dumped. An earlier dump is used again if its
    message is the same in every field; on any doubt AutoGen is called.
    """

    def __init__(self, it: Any) -> None:
        self._it = it
        self._trust = 0  # how often AutoGen need not be called yet
        self._frame: dict[str, Any] = {}
        self._dumped: list[dict[str, Any]] = []  # of each message
        self._classes: list[type] = []
        self._fields: list[dict[str, Any]] = []  # of which it was made
        self._items: dict[int, list[dict[str, Any]]] = {}  # and those of calls and results in it

    async def __call__(self) -> dict[str, Any]:
        """The state as it is now."""
        context = self._simple_context()
        if self._trust == 0 or context is None or not self._is_unchanged(context):
            return await self._save_state()
        self._trust -= 1
        new = internals.messages_of(context)[len(self._dumped) :]
        if new:
            dumped = ChatCompletionContextState(messages=new).model_dump()
            self._remember(new, copied(dumped)["messages"])
        return {**self._frame, "llm_context": {"messages": list(self._dumped)}}

    async def _save_state(self) -> dict[str, Any]:
        state = copied(dict(await self._it.save_state()))
        self._trust, self._dumped, self._classes, self._fields = 0, [], [], []
        self._items = {}
        context = self._simple_context()
        if context is not None:
            self._frame, self._trust = {**state, "llm_context": None}, TRUSTED
            self._remember(internals.messages_of(context), state["llm_context"]["messages"])
        return state

    def _simple_context(self) -> ChatCompletionContext | None:
        """Its context, if its state is the context's messages and is made as AutoGen does it."""
        it, context = self._it, internals.model_context(self._it)
        is_simple = (
            isinstance(it, AssistantAgent)
            and type(it).save_state is AssistantAgent.save_state
            and context is not None
            and type(context).save_state is ChatCompletionContext.save_state
            and "save_state" not in (vars(it).keys() | vars(context).keys())
        )
        return context if is_simple else None

    def _remember(self, messages: list[Any], dumped: list[dict[str, Any]]) -> None:
        for number, message in enumerate(messages, len(self._dumped)):
            fields = dict(getattr(message, "__dict__", {}))
            self._fields.append(fields)
            if fields and all(value.__class__ in _FLAT for value in fields.values()):
                continue
            items = _item_fields(fields.get("content"))
            if items is None:  # a picture, for instance
                self._trust = 0
            else:
                self._items[number] = items
        self._classes += map(type, messages)
        self._dumped += dumped

    def _is_unchanged(self, context: ChatCompletionContext) -> bool:
        """Whether every message that was dumped is there still, and the same."""
        messages = internals.messages_of(context)[: len(self._dumped)]
        return (
            list(map(type, messages)) == self._classes
            and list(map(vars, messages)) == self._fields
            and all(_item_fields(messages[at].content) == it for at, it in self._items.items())
        )


def _item_fields(content: Any) -> list[dict[str, Any]] | None:
    """The fields of the calls or results that *content* is a list of; None if it is another."""
    if content.__class__ is not list or not all(item.__class__ in _ITEMS for item in content):
        return None
    return [dict(vars(item)) for item in content]
