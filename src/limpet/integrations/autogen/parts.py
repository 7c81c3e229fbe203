"""An agent or a team and all that it is made of: what AutoGen saves of it, and what it forgets."""

# ruff: noqa: SLF001 - what AutoGen does not save is in attributes that it calls private

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from autogen_agentchat.agents import (
    BaseChatAgent,
    CodeExecutorAgent,
    MessageFilterAgent,
    SocietyOfMindAgent,
)
from autogen_agentchat.base import Response
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import AgentId, SingleThreadedAgentRuntime
from autogen_core.code_executor import CodeExecutor
from autogen_core.models import ChatCompletionClient

from limpet.errors import TaskHalted
from limpet.integrations.autogen.counters import Counters
from limpet.integrations.autogen.hooks import Hooks
from limpet.integrations.autogen.log import as_exception
from limpet.integrations.autogen.recorded import (
    RecordedClient,
    RecordedExecutor,
    RecordedTools,
    recorded_tools,
)
from limpet.integrations.autogen.tools import as_steps, halt_in, listen, listen_to_agent, runners_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from autogen_agentchat.messages import MessageFactory

    from limpet.integrations.autogen.log import Log

__all__ = ["MANAGER", "AgentPart", "Part", "TeamPart", "part_of", "parts_of"]

#: The place of a team's manager among its participants; none of them can be called so.
MANAGER = "@manager"


class Part:
    """One agent or team: where it sits, and what AutoGen's ``save_state`` leaves out."""

    def __init__(self, it: Any, path: str) -> None:
        self.it = it
        self.path = path
        self.parts: dict[str, Part] = {}

    def __iter__(self) -> Iterator[Part]:
        """This one and all within it."""
        yield self
        for part in self.parts.values():
            yield from part

    def below(self, name: str) -> str:
        """The path of what is called *name* within it."""
        return f"{self.path}/{name}" if self.path else name

    async def attach(self) -> None:
        """Get hold of what only comes to be when it is used."""
        for part in self.parts.values():
            await part.attach()

    async def save(self) -> dict[str, Any]:
        """What is to be kept besides what AutoGen saves."""
        found = await self._save()
        parts = {name: await part.save() for name, part in self.parts.items()}
        parts = {name: saved for name, saved in parts.items() if saved}
        return {**found, "parts": parts} if parts else found

    async def load(self, saved: dict[str, Any]) -> None:
        """Take it back. What is not in *saved* is as it was made."""
        await self._load(saved)
        for name, part in self.parts.items():
            await part.load(saved.get("parts", {}).get(name, {}))

    async def _save(self) -> dict[str, Any]:
        return {}

    async def _load(self, saved: dict[str, Any]) -> None:
        pass

    def record(self, log: Log, again: frozenset[str]) -> None:
        """Let all that models and tools do in it go to *log*."""
        for part in self.parts.values():
            part.record(log, again)

    def release(self) -> None:
        """Let it be as it was."""
        for part in self.parts.values():
            part.release()


class AgentPart(Part):
    """An agent."""

    def __init__(self, it: Any, path: str) -> None:
        super().__init__(it, path)
        if isinstance(it, SocietyOfMindAgent):
            self.parts["team"] = part_of(it._team, self.below("team"))
        if isinstance(it, MessageFilterAgent):
            self.parts["wrapped"] = part_of(it._wrapped_agent, self.below("wrapped"))
        # These have a model context, and do not save it.
        self._forgets = isinstance(it, (SocietyOfMindAgent, CodeExecutorAgent))
        self._hooks = Hooks()
        #: The id of the message that it last answered with.
        self.answer: str | None = None

    async def _save(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._forgets:
            found["context"] = dict(await self.it._model_context.save_state())
        if isinstance(self.it, MessageFilterAgent):
            found["wrapped"] = dict(await self.parts["wrapped"].it.save_state())
        tools = [dict(await bench.save_state()) for bench in self._benches()]
        if any(_says_something(state) for state in tools):
            found["tools"] = tools
        return found

    async def _load(self, saved: dict[str, Any]) -> None:
        if self._forgets:
            await self.it._model_context.load_state(saved.get("context", {}))
        if saved.get("wrapped"):
            await self.parts["wrapped"].it.load_state(saved["wrapped"])
        for bench, state in zip(self._benches(), saved.get("tools", ()), strict=False):
            await bench.load_state(state)

    def _benches(self) -> list[Any]:
        return list(getattr(self.it, "_workbench", None) or ())

    def record(self, log: Log, again: frozenset[str]) -> None:
        super().record(log, again)
        actor = log.actor(self.path)
        _record_client(self.it, log, self.path, lambda: "/" in self.path)
        if benches := self._benches():
            steps = [as_steps(bench, self._hooks) for bench in benches]
            self._listen(self, [])
            self.it._workbench = [
                recorded_tools(bench, actor, again, names)
                for bench, names in zip(benches, steps, strict=True)
            ]
        if isinstance(getattr(self.it, "_code_executor", None), CodeExecutor):
            executor = RecordedExecutor(self.it._code_executor, actor, again)
            self.it._code_executor = executor
        self._actor = actor
        self._answers = self._hooks.put(self.it, "on_messages_stream", self._answered)

    def _listen(self, part: Part, known: list[Any]) -> None:
        """Hear of what the tools of *part* raise, and those of agents that are tools of it."""
        benches = part._benches() if isinstance(part, AgentPart) else []
        if isinstance(part, AgentPart) and part is not self and part.it not in known:
            known.append(part.it)
            listen_to_agent(part.it, self._hooks)
        for bench in benches:
            if bench in known:  # two may be tools of each other
                continue
            known.append(bench)
            listen(bench, self._hooks)
            for runner in runners_in(bench):
                for inner in part_of(runner):
                    self._listen(inner, known)

    async def _answered(self, messages: Any, cancellation_token: Any) -> AsyncGenerator[Any, None]:
        """The agent's own answer; but when the turn cannot go on, it says no more."""
        log = self._actor.log
        try:
            async with aclosing(self._answers(messages, cancellation_token)) as items:
                async for item in items:
                    if log.is_open and not self._actor.busy:  # other tools come to their end
                        log.check()
                    if isinstance(item, Response):
                        self.answer = item.chat_message.id
                    yield item
        except (Exception, TaskHalted) as error:
            halt = halt_in(error)  # AutoGen may have made another error of it
            if halt is not None and log.is_open:
                log.refuse(halt)
                stop = as_exception(halt)
                raise stop from stop.__cause__
            raise

    def release(self) -> None:
        super().release()
        self._hooks.release()
        _release_client(self.it)
        if any(isinstance(bench, RecordedTools) for bench in self._benches()):
            self.it._workbench = [bench.inner for bench in self._benches()]
        if isinstance(getattr(self.it, "_code_executor", None), RecordedExecutor):
            self.it._code_executor = self.it._code_executor.inner


class TeamPart(Part):
    """A group chat of AutoGen's, with its manager."""

    def __init__(self, it: BaseGroupChat, path: str) -> None:
        super().__init__(it, path)
        for member in it._participants:
            self.parts[member.name] = part_of(member, self.below(member.name))
        condition = it._termination_condition
        self._counters = None if condition is None else Counters(condition)
        self.manager: Any = None

    @property
    def factory(self) -> MessageFactory:
        """What makes its messages of what is stored."""
        return self.it._message_factory  # type: ignore[no-any-return]

    @property
    def is_steered(self) -> bool:
        """Whether its runtime is its own, and can be stopped between turns."""
        return self.manager is not None and bool(self.it._embedded_runtime)

    async def attach(self) -> None:
        await super().attach()
        team = self.it
        if not team._initialized:
            await team._init(team._runtime)
        if isinstance(team._runtime, SingleThreadedAgentRuntime):
            address = AgentId(team._group_chat_manager_topic_type, team._team_id)
            self.manager = await team._runtime.try_get_underlying_agent_instance(address)

    async def _save(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._counters is not None:
            found["termination"] = await self._counters.save()
        groups = getattr(self.manager, "_triggered_activation_groups", None) or {}
        if any(groups.values()):
            found["groups"] = {node: sorted(names) for node, names in groups.items() if names}
        return found

    async def _load(self, saved: dict[str, Any]) -> None:
        if self._counters is not None:
            await self._counters.load(saved.get("termination"))
        if self.manager is None:
            return
        # A run that was broken off leaves the names of those who were to speak.
        self.manager._active_speakers = []
        if hasattr(self.manager, "_triggered_activation_groups"):
            groups = {node: set(names) for node, names in saved.get("groups", {}).items()}
            for node, names in groups.items():
                if not names <= self.manager._remaining[node].keys():
                    raise LookupError(f"the graph has no such groups at {node!r}")
            self.manager._triggered_activation_groups = groups

    async def restart(self) -> None:
        """Count from the beginning, as after a run that ended."""
        if self.it._termination_condition is not None:
            await self.it._termination_condition.reset()
        if self.manager is not None:
            self.manager._current_turn = 0
            self.manager._active_speakers = []

    async def empty(self) -> None:
        """Forget what AutoGen's ``load_state`` would add to instead of replacing it."""
        for part in self:
            context = getattr(getattr(part, "manager", None), "_model_context", None)
            if context is not None:
                await context.clear()

    def record(self, log: Log, again: frozenset[str]) -> None:
        super().record(log, again)
        if self.manager is not None:
            _record_client(self.manager, log, self.below(MANAGER), lambda: bool(self.path))
            # Of several who speak at once, the first to end has the longest to wait.
            for part in self.parts.values():
                client = getattr(part.it, "_model_client", None)
                if isinstance(client, RecordedClient):
                    client.is_eager = self._eager(client.is_eager)

    def _eager(self, already: Callable[[], bool]) -> Callable[[], bool]:
        return lambda: already() or len(self.manager._active_speakers) > 1

    def release(self) -> None:
        super().release()
        if self.manager is not None:
            _release_client(self.manager)


def part_of(it: Any, path: str = "") -> Part:
    """The part that *it* is."""
    if isinstance(it, BaseGroupChat):
        return TeamPart(it, path)
    if isinstance(it, BaseChatAgent):
        return AgentPart(it, path)
    return Part(it, path)


def parts_of(it: Any) -> list[Part]:
    """*it* and all within it, if it is an agent or a team."""
    part = part_of(it)
    if not isinstance(part, (AgentPart, TeamPart)):
        msg = f"Agents and teams of AutoGen can be kept; not a {type(it).__name__}."
        raise TypeError(msg)
    return list(part)


def _record_client(it: Any, log: Log, path: str, eager: Callable[[], bool]) -> None:
    client = getattr(it, "_model_client", None)
    if isinstance(client, ChatCompletionClient):
        it._model_client = RecordedClient(client, log.actor(path), eager)


def _release_client(it: Any) -> None:
    if isinstance(getattr(it, "_model_client", None), RecordedClient):
        it._model_client = it._model_client.inner


def _says_something(state: dict[str, Any]) -> bool:
    """Whether a workbench has more to say than the names of its tools."""
    return any(value for name, value in state.items() if name not in ("type", "tools")) or any(
        dict(state.get("tools") or {}).values()
    )
