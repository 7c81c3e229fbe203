"""The shapes of documents, and what each means: messages, states of AutoGen, checkpoints, chats.

Pure functions from JSON to what our models store. Nothing here is ever executed or looked up by a
name in the data: whatever is imported is data.
"""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Struct, field

from limpet.conversations.conversation import KIND as CONVERSATION
from limpet.core.calls import Call
from limpet.core.ids import check_id
from limpet.errors import NotImportable
from limpet.states.format import KIND as STATE
from limpet.tasks import entries as kinds
from limpet.tasks.entries import item_name, numbered
from limpet.tasks.record import calls_meta
from limpet.tasks.retry import ASK
from limpet.tasks.state import Large

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "ImportedTask",
    "agents",
    "chatgpt_messages",
    "is_autogen",
    "is_chatgpt",
    "is_checkpoint",
    "is_messages",
    "is_shown",
    "messages_of",
    "shown_checkpoint",
    "task_of",
    "without_half",
]

Message = dict[str, Any]


# -- messages --------------------------------------------------------------------------------------

# As LangChain writes a history to a file: {"type": "human", "data": {"content": …}}; or flat, as
# model_dump() of a message has it: {"type": "human", "content": …}.
_LANGCHAIN = {
    "human": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "function",
}


# A message has one of these; a list of people and their roles has not.
_CONTENTS = {"content", "parts", "tool_calls", "function_call"}


def is_messages(value: object) -> bool:
    """Whether *value* is a list of messages."""
    if not isinstance(value, list) or not value:
        return False
    if all(_is_langchain(item) or _is_autogen_message(item) for item in value):
        return True
    if not all(isinstance(item, dict) and _has(item, "role", "type") for item in value):
        return False
    return any(_has(item, "role") and item.keys() & _CONTENTS for item in value)


def _has(item: Message, *names: str) -> bool:
    return any(isinstance(item.get(name), str) for name in names)


def _is_langchain(item: object) -> bool:
    if not isinstance(item, dict) or str(item.get("type")) not in _LANGCHAIN or "role" in item:
        return False
    return "content" in _langchain_data(item)


def _langchain_data(item: Message) -> Message:
    return item["data"] if isinstance(item.get("data"), dict) else item


def _is_autogen_message(item: object) -> bool:
    return isinstance(item, dict) and str(item.get("type")) in _AUTOGEN and "role" not in item


def messages_of(items: list[Any]) -> list[Message]:
    """Messages as the OpenAI SDK has them; those that have a role are left as they are."""
    found: list[Message] = []
    for item in items:
        if _is_langchain(item):
            found.append(_from_langchain(_LANGCHAIN[item["type"]], _langchain_data(item)))
        elif _is_autogen_message(item):
            found += _AUTOGEN[item["type"]](item)
        else:
            found.append(item)
    return found


def _from_langchain(role: str, data: Message) -> Message:
    message: Message = {"role": role, "content": data["content"]}
    calls = data.get("tool_calls")
    if role == "assistant" and isinstance(calls, list) and calls:
        message["content"] = data["content"] or None
        message["tool_calls"] = [
            _call(call.get("id"), call.get("name"), call.get("args"))
            for call in calls
            if isinstance(call, dict)
        ]
    if role == "tool":
        message["tool_call_id"] = data.get("tool_call_id")
    return message


def _call(id_: Any, name: Any, arguments: Any) -> Message:
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


# -- what was cut off ------------------------------------------------------------------------------

# Of these in a list what is whole is worth having: conversations; of a message half is nothing.
_LONG = ("messages", "mapping", "records")


def without_half(document: Any, path: list[Any]) -> Any:
    """*document*, whose end is missing, without the first thing on *path* that must be whole.

    *path* leads to the innermost object or list of which the end is missing.
    """
    if isinstance(document, dict) and is_messages([document]):
        return {}
    here, name, fields = document, None, False
    for key, inner in zip_longest(path, path[1:]):
        if fields:
            half = True
        elif isinstance(here, list):
            half = isinstance(here[key], dict) and inner not in _LONG
        elif is_checkpoint(here):
            fields = any(key in _FIELDS[name] for name in _IN_PARTS)
            half = not fields
        else:
            half = name == "mapping"  # of ChatGPT's, from id to message
        if half:
            del here[key]
            break
        here, name = here[key], key
    return document


# -- AutoGen ---------------------------------------------------------------------------------------


def is_autogen(value: object) -> bool:
    """Whether *value* is what ``save_state()`` of an agent or a team of AutoGen 0.4+ returns."""
    if not isinstance(value, dict) or not str(value.get("type")).endswith("State"):
        return False
    parts = ("llm_context", "agent_state", "agent_states", "inner_team_state", "message_thread")
    return any(isinstance(value.get(part), (dict, list)) for part in parts)


def agents(state: Message, path: str = "") -> Iterator[tuple[str, list[Message]]]:
    """Each agent in *state* that has a model context: its path ("" or "/name"), its messages."""
    context = state.get("llm_context")
    if isinstance(context, dict) and isinstance(context.get("messages"), list):
        found = messages_of([item for item in context["messages"] if isinstance(item, dict)])
        if found:
            yield path, found
    for part in ("agent_state", "inner_team_state"):
        if isinstance(state.get(part), dict):
            yield from agents(state[part], path)
    team = state.get("agent_states")
    for name, member in team.items() if isinstance(team, dict) else ():
        if isinstance(member, dict):  # early versions wrote "name/id of the team"
            yield from agents(member, f"{path}/{name.partition('/')[0]}")


def _from_user(item: Message) -> Iterator[Message]:
    def convert(part: Any) -> Any:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        if isinstance(part, dict) and isinstance(part.get("data"), str):
            url = f"data:image/png;base64,{part['data']}"
            return {"type": "image_url", "image_url": {"url": url}}
        return part

    content = item.get("content")
    if isinstance(content, list):
        content = [convert(part) for part in content]
    message: Message = {"role": "user", "content": content}
    if item.get("source") not in (None, "user"):  # another agent of the team
        message["name"] = item["source"]
    yield message


def _from_assistant(item: Message) -> Iterator[Message]:
    content = item.get("content")
    if not isinstance(content, list):
        yield {"role": "assistant", "content": content}
        return
    calls = [
        _call(call.get("id"), call.get("name"), call.get("arguments"))
        for call in content
        if isinstance(call, dict)
    ]
    yield {"role": "assistant", "content": item.get("thought"), "tool_calls": calls}


def _from_results(item: Message) -> Iterator[Message]:
    results = item.get("content")
    for result in results if isinstance(results, list) else ():
        if isinstance(result, dict):
            content = result.get("content")
            yield {"role": "tool", "tool_call_id": result.get("call_id"), "content": content}


_AUTOGEN: dict[str, Callable[[Message], Iterator[Message]]] = {
    "SystemMessage": lambda item: iter([{"role": "system", "content": item.get("content")}]),
    "UserMessage": _from_user,
    "AssistantMessage": _from_assistant,
    "FunctionExecutionResultMessage": _from_results,
}


# -- ChatGPT ---------------------------------------------------------------------------------------


def is_chatgpt(value: object) -> bool:
    """Whether *value* is a conversation of the ``conversations.json`` that ChatGPT exports."""
    mapping = value.get("mapping") if isinstance(value, dict) else None
    if not isinstance(mapping, dict) or not mapping:
        return False
    return all(isinstance(node, dict) and "parent" in node for node in mapping.values())


def chatgpt_messages(chat: Message) -> list[Message]:
    """What was said in a *chat*, a tree of messages: along the branch that was shown last.

    By the user, and to the user: what the assistant and its tools said to each other has no ids by
    which a call and its result belong together.
    """
    mapping = chat["mapping"]
    # Without a word on that, the newest.
    at, found = chat.get("current_node"), []
    at = at if isinstance(at, str) and at in mapping else next(reversed(mapping))
    seen: set[str] = set()
    while isinstance(at, str) and at in mapping and at not in seen:
        seen.add(at)
        found.append(mapping[at].get("message"))
        at = mapping[at]["parent"]
    return [
        {"role": role, "content": text}
        for message in reversed(found)
        for role, text in _chatgpt_said(message)
    ]


def _chatgpt_said(message: Any) -> Iterator[tuple[str, str]]:
    """The role and the text of one message, if it has both, and people were to see it."""
    parts = ("author", "content", "metadata")
    known = message if isinstance(message, dict) else {}
    author, content, about = (p if isinstance(p := known.get(n), dict) else {} for n in parts)
    hidden = about.get("is_visually_hidden_from_conversation")
    if author.get("role") not in ("user", "assistant") or hidden:
        return
    if known.get("recipient") not in (None, "all"):
        return
    texts = content.get("parts") if isinstance(content.get("parts"), list) else []
    text = "\n".join(part for part in texts or () if isinstance(part, str))
    if text.strip():
        yield author["role"], text


# -- `limpet show --json` --------------------------------------------------------------------------

#: What is shown of each kind.
_SHOWN = {
    CONVERSATION: ("messages", list),
    kinds.KIND: ("checkpoint", dict),
    STATE: ("document", object),
}


def is_shown(value: object) -> bool:
    """Whether *value* is what ``limpet show --json`` prints of a conversation, task or state."""
    if not isinstance(value, dict) or not {"position", "entries", "held_by"} <= value.keys():
        return False
    part, type_ = _SHOWN.get(str(value.get("kind")), ("", object))
    return isinstance(value.get("id"), str) and part in value and isinstance(value[part], type_)


def shown_checkpoint(document: Message) -> Message:
    """The checkpoint in it, with what is shown besides of doubts and waits."""
    known = {"in_doubt": document.get("in_doubt"), "waiting_for": document.get("waits")}
    # A checkpoint has no place for these, so that all of it is stored as well.
    names = ("submitted", "deadline", "progress", "tried", "skipped", "replans")
    return {**document["checkpoint"], **known, **{n: document[n] for n in names if n in document}}


# -- checkpoints -----------------------------------------------------------------------------------

# What people call each field; the first is ours.
_FIELDS = {
    "task_id": ("task_id", "id"),
    "agent_id": ("agent_id", "agent", "agent_name"),
    "goal": ("goal", "objective", "task_description"),
    "plan": ("plan", "steps"),
    "completed": ("completed", "completed_steps"),
    "results": ("results", "intermediate_results", "step_results"),
    "decisions": ("decisions",),
    "discoveries": ("discoveries", "findings"),
    "outcome": ("outcome",),
    "error": ("error",),
    "in_doubt": ("in_doubt",),
    "waiting_for": ("waiting_for",),
    "created_at": ("created_at",),
    "updated_at": ("updated_at", "timestamp"),
}
#: Of these what is whole can be taken, if the end of one is missing.
_IN_PARTS = ("completed", "results", "decisions", "discoveries")
_STEP_NAMES = ("name", "step", "step_name", "title", "task", "action", "description")
_STEP_NUMBERS = ("id", "step_id", "index", "number", "step_number")
_RESULTS = ("result", "output", "observation")
_DECISIONS = ("decision", "choice", "chosen")
_REASONS = ("because", "reason", "reasoning", "rationale", "why")
_DISCOVERIES = ("discovery", "finding", "fact", "text", "content")
_ENDED = ("completed", "complete", "done", "finished", "success")
_COUNTERS = ("current_step", "step_index", "current_index", "current_step_index")
#: What stands in a checkpoint for a result that is stored apart has these.
_APART = Large(0, 0, "").summary().keys()


class ImportedTask(Struct):
    """A checkpoint as the entries that a task would have written, and notes for whoever imports it.

    ``complete``: every field of it has found its place.
    """

    id: str | None
    entries: list[tuple[str, Any]]
    status: str = kinds.OPEN
    meta: bytes | None = None
    labels: dict[str, str] = field(default_factory=dict)
    created: int | None = None
    updated: int | None = None
    complete: bool = True
    notes: list[str] = field(default_factory=list)

    @property
    def about(self) -> str:
        """What is done, and what is next."""
        done = [body["name"] for kind, body in self.entries if kind == kinds.STEP]
        plans = [body["steps"] for kind, body in self.entries if kind == kinds.PLANNED]
        names = _step_names(plans[0]) if plans else []
        left = [name for name in names if name not in done]
        told = f"{len(names) - len(left)} of {len(names)} steps done"
        if not names:
            told = "1 step done" if len(done) == 1 else f"{len(done)} steps done"
        if self.status != kinds.OPEN:
            return f"{told}, {self.status}"
        return told + (f", next is {left[0]!r}" if left else "")


def is_checkpoint(value: object) -> bool:
    """Whether *value* looks like the checkpoint of a task."""
    if not isinstance(value, dict):
        return False
    names = {
        name for name, known in _FIELDS.items() if any(value.get(k) is not None for k in known)
    }
    return bool(names & {"goal", "task_id"}) and bool(names & {"plan", "completed", "results"})


def task_of(document: Message, goal: str | None = None, *, cut: bool = False) -> ImportedTask:
    """The task that *document* is a checkpoint of; *goal*, if it has none.

    *cut*: its end is missing, and with that perhaps what says that a step is done, or in doubt.
    """
    fields = _Fields(document)
    goal = fields.take("goal") or goal
    if not isinstance(goal, str):
        raise NotImportable("This checkpoint has no goal. Give it one with --goal.")
    agent = fields.text("agent_id")
    steps = _Steps(fields, cut=cut)
    entries: list[tuple[str, Any]] = [(kinds.CREATED, {"goal": goal, "agent": agent})]
    if steps.plan:
        entries.append((kinds.PLANNED, {"steps": steps.plan}))
    entries += [
        (kinds.STEP, {"name": name, "result": result, "took": 0.0})
        for name, result in steps.done.items()
    ]
    for entry in _learned(fields):
        if entry not in entries:
            entries.append(entry)
    calls = _in_doubt(fields, steps)
    entries += [(kinds.BEGAN, msgspec.to_builtins(call)) for call in calls.values()]
    ending = _Ending(fields, calls, cut=cut)
    labels = {} if agent is None else {"agent": check_id(agent, "agent id", 128)}
    if ending.due is not None:
        labels[kinds.DUE] = ending.due
    return ImportedTask(
        id=fields.text("task_id"),
        entries=entries + ending.entries,
        status=ending.status,
        # Of a task that is done nobody is asked about its calls any more.
        meta=None if ending.status == kinds.DONE else calls_meta(calls),
        labels=labels,
        created=fields.time("created_at"),
        updated=fields.time("updated_at"),
        complete=fields.complete and not fields.left,
        notes=fields.notes,
    )


class _Fields:
    """The fields of a checkpoint, by our names; ``left`` are those that nobody asked for."""

    def __init__(self, document: Message) -> None:
        self.document = document
        # Nothing, an empty list, and that a task is open: nothing is lost with these.
        self.left = {
            key
            for key, value in document.items()
            if value not in (None, [], {}) and (key, value) != ("status", kinds.OPEN)
        }
        self.complete = True
        self.notes: list[str] = []

    def take(self, name: str) -> Any:
        """A field, by whatever name it has; None if it is not there."""
        found = [key for key in _FIELDS[name] if self.document.get(key) is not None]
        if len(found) > 1 and name != "task_id":
            raise NotImportable(f"Both {found[0]!r} and {found[1]!r} are there. Leave one of them.")
        self.left.difference_update(found[:1])
        return self.document[found[0]] if found else None

    def list(self, name: str) -> list[Any]:
        """A field that is a list."""
        found = self.take(name)
        if found is not None and not isinstance(found, list):
            raise NotImportable(f"{name!r} is not a list, but {_excerpt(found)}.")
        return found or []

    def covers(self, items: Any, *known: tuple[str, ...]) -> None:
        """Notice dicts among *items* that say more than one of each of the *known* words."""
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict):
                understood = sum(_first(item, names) is not None for names in known)
                self.complete &= understood == sum(value is not None for value in item.values())

    def text(self, name: str) -> str | None:
        """A field that is text, a number, or something with a name."""
        found = self.take(name)
        if isinstance(found, dict):
            self.complete = False
            found = _first(found, ("name", "id"))
        return None if found is None else str(found) or None

    def time(self, name: str) -> int | None:
        """A time, in microseconds: ISO 8601, or seconds since 1970. One without a zone is local."""
        found = self.take(name)
        if found is None:
            return None
        try:
            is_text = isinstance(found, str)
            seconds = datetime.fromisoformat(found).timestamp() if is_text else float(found)
        except (TypeError, ValueError, OverflowError, OSError):
            seconds = 0.0
        if isinstance(found, bool) or not 0 < seconds <= time.time():  # nor one that is to come
            self.complete = False
            return None
        return round(seconds * 1e6)


class _Steps:
    """The plan, and what is done of it."""

    def __init__(self, fields: _Fields, *, cut: bool) -> None:
        self._fields = fields
        self._cut = cut
        self.plan = [_planned(item, at) for at, item in enumerate(fields.list("plan"))]
        self.names = _step_names(self.plan)
        completed = fields.take("completed")
        results = fields.take("results")
        self._first = self._first_position(completed, results)
        self.done = self._done(completed, results)
        #: Of these nobody knows whether they happened: the end of the file would have said it.
        self.unknown: list[str] = []
        if cut:
            named = dict.fromkeys([*self.names, *self.done])
            self.unknown = [name for name in named if self.done.get(name) is None]
            self.done = {name: self.done[name] for name in named if name not in self.unknown}
            if self.unknown:
                names = ", ".join(self.unknown)
                fields.notes.append(f"in doubt, as no result of theirs is left: {names}")
        fields.covers(completed, _STEP_NAMES, _RESULTS)
        fields.covers(results, _STEP_NAMES, _RESULTS)
        for name, result in self.done.items():
            check_id(name, "step name")
            if isinstance(result, dict) and result.keys() == _APART:
                raise NotImportable(
                    f"Of the large result of step {name!r} it has only the beginning. Export the "
                    "task whole: `limpet export --kind task`."
                )
        if self.names and (odd := [name for name in self.done if name not in self.names]):
            fields.notes.append(f"done, and not in the plan: {', '.join(odd)}")

    def _done(self, completed: Any, results: Any) -> dict[str, Any]:
        by_name = self._results(results, completed)
        if completed is None:
            done = self._done_by_plan() or by_name
            # A number of the step that is next says nothing of what was done.
            document = self._fields.document
            counter = next((name for name in _COUNTERS if document.get(name)), None)
            if counter is not None and not done:
                raise NotImportable(
                    f"It says {counter!r} = {document[counter]!r}, but not which steps are done. "
                    'Add "completed": [the names of those that are].'
                )
        elif isinstance(completed, list):
            done = self._by_name(completed, [_result_beside(c) for c in completed])
        else:
            raise NotImportable(f"'completed' is not a list of steps, but {_excerpt(completed)}.")
        known = self.names if completed is None else done
        for name in by_name:
            if known and name not in known and (once := name.rpartition("#")[0]) in by_name:
                msg = f"'results' has more than one of step {once!r}. Leave the one that counts."
                raise NotImportable(msg)
        if extra := [name for name in by_name if name not in done]:
            self._fields.complete = False
            self._fields.notes.append(f"results of no completed step: {', '.join(extra)}")
        return {name: by_name.get(name, result) for name, result in done.items()}

    def _results(self, results: Any, completed: Any) -> dict[str, Any]:
        if isinstance(results, dict):
            return self._by_name(list(results), list(results.values()))
        if not isinstance(results, list):
            if results is not None:
                raise NotImportable(f"'results' are not by step, but {_excerpt(results)}.")
            return {}
        step = _STEP_NAMES + _STEP_NUMBERS
        if all(isinstance(r, dict) and _first(r, step) is not None for r in results):
            return self._by_name(results, [_result_beside(r) for r in results])
        if isinstance(completed, list) and len(completed) == len(results):
            return self._by_name(completed, results)
        msg = "'results' is a list that does not say which step each is of. Make it a dict by step."
        raise NotImportable(msg)

    def _by_name(self, steps: list[Any], results: list[Any]) -> dict[str, Any]:
        """The *results* of *steps*, in their order: the second of one step is of its second run."""
        seen: dict[str, int] = {}
        return {numbered(self._name(s), seen): r for s, r in zip(steps, results, strict=True)}

    def _done_by_plan(self) -> dict[str, Any]:
        """The steps that the plan itself says are done."""
        return {
            name: _result_beside(item)
            for name, item in zip(self.names, self.plan, strict=True)
            if isinstance(item, dict)
            and (item.get("status") in _ENDED or True in (item.get("done"), item.get("completed")))
        }

    def _name(self, step: Any) -> str:
        """Which step is meant: by its name, or by its number in the plan."""
        found = step
        if isinstance(step, dict):
            found, number = _first(step, _STEP_NAMES), _first(step, _STEP_NUMBERS)
            at = self._at(number)
            if at is not None and found in (None, item_name(self.plan[at])):
                return self.names[at]  # which may be one of several of that name
            found = number if found is None else found
        if str(found) in self.names:  # a step may be called "1"
            return str(found)
        at = self._at(found)
        if at is not None:
            return self.names[at]
        in_plan = _position(found) in range(len(self.plan) + 1) and not self._numbered()
        if in_plan and self.plan and self._first is None:
            raise NotImportable(
                f"Which step is {step!r}? The plan has {len(self.plan)}, and whether they are "
                "counted from 0 or from 1 cannot be told. Give the step's name."
            )
        if self._cut and not self.plan and _position(found) is not None:
            raise NotImportable(f"Which step is {step!r}? The plan that it counts in was cut off.")
        if not isinstance(found, str) or (self._first is not None and found.isdecimal()):
            msg = f"Which step is {step!r}? None in the plan has that number. Give the step's name."
            raise NotImportable(msg)
        return found

    def _at(self, number: Any) -> int | None:
        """Where in the plan the step of that *number* is: its own, or its position."""
        for at, item in enumerate(self.plan):
            if number is not None and str(number) in _numbers(item):
                return at
        position = _position(number)
        if position is None or self._first is None:
            return None
        at = position - self._first
        return at if 0 <= at < len(self.plan) else None

    def _first_position(self, completed: Any, results: Any) -> int | None:
        """What positions in the plan are counted from; None where that is not certain.

        Where there is a 0, from 0; where there is one as high as the plan is long, from 1.
        """
        if not self.plan or self._numbered():
            return None
        steps = [*completed] if isinstance(completed, list) else []
        if isinstance(results, list):  # one that is a number may be a result
            steps += [result for result in results if isinstance(result, dict)]
        elif isinstance(results, dict):
            steps += results
        found = {
            _position(_first(step, _STEP_NUMBERS) if isinstance(step, dict) else step)
            for step in steps
            if str(step) not in self.names
        }
        return 0 if 0 in found else 1 if len(self.plan) in found else None

    def _numbered(self) -> bool:
        """Whether steps of the plan have numbers of their own."""
        return any(map(_numbers, self.plan))


def _planned(item: Any, at: int) -> Any:
    """A step as a plan of ours has it: a name, or a dict with a name."""
    if isinstance(item, dict) and "name" not in item:
        name = _first(item, _STEP_NAMES)
        item = item if name is None else {"name": name, **item}
    if not isinstance(item, str) and not (isinstance(item, dict) and "name" in item):
        raise NotImportable(f"plan[{at}] is not a step with a name, but {_excerpt(item)}.")
    check_id(item_name(item), "step name")
    return item


def _step_names(plan: list[Any]) -> list[str]:
    """The names of the steps of a *plan*; the second of one name has a number."""
    seen: dict[str, int] = {}
    return [numbered(item_name(item), seen) for item in plan]


def _numbers(item: Any) -> list[str]:
    """What a step of a plan is numbered with."""
    found = [item.get(name) for name in _STEP_NUMBERS] if isinstance(item, dict) else []
    return [str(number) for number in found if number is not None]


def _position(value: Any) -> int | None:
    """A position in a plan, which may be a key of JSON."""
    if isinstance(value, str) and re.fullmatch("[0-9]{1,6}", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _result_beside(step: Any) -> Any:
    """The result that stands beside a step's name, if one does."""
    return _first(step, _RESULTS) if isinstance(step, dict) else None


def _first(item: Message, names: tuple[str, ...]) -> Any:
    return next((item[name] for name in names if item.get(name) is not None), None)


def _learned(fields: _Fields) -> Iterator[tuple[str, Any]]:
    """The decisions, then the discoveries."""
    items = fields.list("decisions")
    fields.covers(items, _DECISIONS, _REASONS)
    for item in items:
        what = _first(item, _DECISIONS) if isinstance(item, dict) else item
        because = _first(item, _REASONS) if isinstance(item, dict) else None
        body = {"decision": _text(item if what is None else what), "because": None}
        if what is not None and because is not None:
            body["because"] = _text(because)
        yield kinds.DECIDED, body
    items = fields.list("discoveries")
    fields.covers(items, _DISCOVERIES)
    for item in items:
        what = _first(item, _DISCOVERIES) if isinstance(item, dict) else item
        yield kinds.DISCOVERED, {"discovery": _text(item if what is None else what)}


def _in_doubt(fields: _Fields, steps: _Steps) -> dict[str, Call]:
    """The steps in doubt: their names, or what is known of each by its name."""
    # Where its policy is not known: the one by which nothing happens twice.
    calls = {name: Call(name, policy=ASK) for name in steps.unknown}
    found = fields.take("in_doubt")
    if found is not None and not isinstance(found, (list, dict)):
        raise NotImportable(f"'in_doubt' is not a list of steps, but {_excerpt(found)}.")
    for name in found or ():
        if not isinstance(name, str):
            raise NotImportable(f"'in_doubt' has {_excerpt(name)}, which is no step's name.")
        about = found[name] if isinstance(found, dict) else None
        known = about if isinstance(about, dict) else {}
        policy, error = known.get("policy") or ASK, known.get("error")
        if name not in steps.done:
            check_id(name, "step name")
            calls[name] = Call(name, policy=str(policy), error=error and _text(error))
    return calls


class _Wait(Struct):
    """A wait, as it must be in a file."""

    kind: Literal["signal", "sleep", "ask", "child"]
    until: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    signal: str | None = None


class _Ending:
    """How the work has ended, or what halted it: the last entries, and the status."""

    def __init__(self, fields: _Fields, calls: dict[str, Call], *, cut: bool) -> None:
        self.status = kinds.OPEN
        self.entries: list[tuple[str, Any]] = []
        self.due: str | None = None
        self._fields = fields
        told = fields.document.get("status")
        waits = fields.take("waiting_for") or []
        found = fields.take("error")
        error = None if found is None else _text(found)
        if told == kinds.FORKING:
            raise NotImportable("It is half a fork. Finish the fork first, by the same fork().")
        if told in (kinds.DONE, kinds.FAILED, kinds.CANCELLED, kinds.PAUSED, kinds.WAITING):
            self.status = told
            fields.left.discard("status")
        if cut and self.status == kinds.DONE and "outcome" not in fields.document:
            self.status = kinds.OPEN  # the first outcome stays, so it must not be a wrong one
            fields.notes.append("it was done, and its outcome is cut off: finish it again")
        if self.status == kinds.DONE:
            self.entries.append((kinds.FINISHED, {"outcome": fields.take("outcome")}))
        elif self.status == kinds.FAILED:
            self.entries.append((kinds.FAILED, {"error": error or "It failed before the import."}))
        elif self.status == kinds.CANCELLED:
            self.entries.append((kinds.CANCELLED, {"because": error}))
        elif error is not None:
            self.entries.append((kinds.STOPPED, {"error": error}))
        if self.status == kinds.PAUSED:
            self.entries.append((kinds.PAUSED, {"because": None}))
        if self.status == kinds.WAITING:
            self._wait(waits, calls)

    def _wait(self, names: Any, calls: dict[str, Call]) -> None:
        """What it waits for: *names*, or what is known of each wait by its name."""
        try:
            found = msgspec.convert(names, dict[str, _Wait] | list[str])
        except msgspec.ValidationError as error:
            raise NotImportable(f"'waiting_for' is not what a task waits for: {error}.") from error
        waits = found if isinstance(found, dict) else {n: _Wait("ask") for n in found if n in calls}
        others = [name for name in found if name not in waits]
        if others or not waits:
            # Whoever opens it comes to the same wait, and that is of a kind again.
            self.status = kinds.OPEN
            self._fields.notes += [f"it waits again when it comes to {name!r}" for name in others]
            return
        for name, wait in waits.items():
            until = wait.until and wait.until.isoformat()
            body = {"name": name, "kind": wait.kind, "until": until, "away": True}
            if wait.signal is not None:
                body["signal"] = wait.signal
            self.entries.append((kinds.WAITING, body))
        moments = [wait.until for wait in waits.values() if wait.until is not None]
        self.due = min(moments).isoformat() if moments else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _excerpt(value: Any) -> str:
    return f"{json.dumps(value, ensure_ascii=False):.60}"
