"""Histories that a crash has damaged, made such that a provider takes them again.

Providers refuse a whole history for one tool call without its result, or one result without its
call. `repair` finds what is wrong by a rule that the caller chooses, and says what it did. It
changes no message that it is given, and what is whole comes back as it was.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from limpet.errors import BrokenHistory
from limpet.llm.messages.shape import (
    CHAT,
    ITEM_CALLS,
    ITEM_RESULTS,
    LEGACY,
    SERVER,
    TOOL_USE,
    CallSite,
    binds_next,
    blocks_of,
    is_result,
    kind_of,
    role_of,
    shape_of_all,
    sites_in,
)
from limpet.llm.messages.tidy import remaining, tidy_each, tidy_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from limpet.llm.messages.shape import ResultSite, Shape
    from limpet.llm.messages.tidy import Made

    Rule = Literal["stub", "drop", "raise"]
    Message = Mapping[str, Any]

__all__ = [
    "INTERRUPTED",
    "REDACTED",
    "Repair",
    "Repaired",
    "check_options",
    "repair",
    "repair_made",
]

#: What comes of where a window was cut, or was said so by the model: no damage, and no error. There
#: are models that number their calls anew in every reply.
HARMLESS = frozenset(
    {
        *("headless", "trailing_space", "empty_message", "empty_text", "orphan_reasoning"),
        "renamed_call",
    }
)
#: Repairs that an error lists; more of them say nothing new.
LISTED = 10

#: Characters that the id of a call may have in Chat Completions, and in items.
MOST_IN_CHAT, MOST_IN_ITEM = 40, 64
_NOT_IN_ID = r"[^a-zA-Z0-9_-]"


class Repair(Struct, frozen=True):
    """One thing that was wrong: in which message, which call, and what was done, in words."""

    index: int
    kind: str
    what: str
    call_id: str | None = None
    name: str | None = None


class Repaired(Struct, frozen=True):
    """A history that a provider takes, and what was done to make it so."""

    messages: list[dict[str, Any]]
    repairs: list[Repair]

    def __repr__(self) -> str:
        return f"Repaired({len(self.messages)} messages, repairs={self.repairs!r})"


def repair(
    messages: Sequence[Mapping[str, Any]],
    rule: Rule = "stub",
    *,
    shape: Shape | None = None,
    keep_open: bool = False,
) -> Repaired:
    """*messages* with every tool call answered once, where its provider looks for the answer.

    *rule* says what to do with a call that has no result: ``stub`` answers it with words that say
    that it was interrupted, ``drop`` leaves the call out (not what was said beside it), ``raise``
    raises `BrokenHistory`. A result without a call is left out, one in the wrong place is moved.
    *shape*: whose rules; by default those of the shape that the messages have. With *keep_open*,
    calls at the very end may still wait for their results.

    >>> cut = {"type": "function_call", "call_id": "c1", "name": "pay", "arguments": "{}"}
    >>> repair([{"role": "user", "content": "Pay."}, cut], "drop").messages
    [{'role': 'user', 'content': 'Pay.'}]
    """
    check_options(rule, shape)
    made, repairs = repair_made(
        messages, shape or shape_of_all(messages), rule, keep_open=keep_open
    )
    return Repaired([message for _, message in made], repairs)


def repair_made(
    messages: Sequence[Message], shape: Shape | None, rule: Rule, *, keep_open: bool
) -> tuple[Made, list[Repair]]:
    """`repair`, with the numbers of the messages that each is made of."""
    made, repairs = _Repairer(messages, shape, rule=rule, keep_open=keep_open).run()
    damage = [found for found in repairs if found.kind not in HARMLESS]
    if damage and rule == "raise":
        listed = [f"- message {found.index}: {found.what}" for found in damage[:LISTED]]
        if len(damage) > LISTED:
            listed.append(f"- and {len(damage) - LISTED:,} more")
        msg = "\n".join(
            [
                "No provider would take these messages as they are:",
                *listed,
                'repair="stub" or repair="drop" makes them whole; neither changes what is stored.',
            ]
        )
        raise BrokenHistory(msg, damage)
    return made, repairs


def check_options(rule: object, shape: object) -> None:
    """`ValueError` if *rule* or *shape* is none of those that there are."""
    if rule not in ("stub", "drop", "raise"):
        raise ValueError(f'repair={rule!r}: a rule is "stub", "drop" or "raise".')
    if shape not in (None, "chat", "responses", "anthropic"):
        raise ValueError(f'shape={shape!r}: a shape is "chat", "responses" or "anthropic".')


# -- stubs: results that stand in for those that a crash has taken, and claim nothing --------------

#: What a model reads in place of a result.
INTERRUPTED = (
    "[limpet: this call was interrupted, and no result of it was recorded. "
    "It is not known whether it took effect.]"
)
#: The same of a call of which the store does not have all that the model wrote.
REDACTED = (
    "[limpet: this call was not made. Something in its arguments was replaced when it was stored, "
    "such as a secret or an address, or was forgotten since. If it is still needed, call the tool "
    "again with all of them.]"
)


def _text_output(kind: str) -> Callable[[str], dict[str, Any]]:
    return lambda id_: {"type": kind, "call_id": id_, "output": INTERRUPTED}


def _shell_output(id_: str) -> dict[str, Any]:
    # It has to end somehow: a code that no command has, and the words where a model reads them.
    outcome = {"type": "exit", "exit_code": -1}
    output = [{"stdout": "", "stderr": INTERRUPTED, "outcome": outcome}]
    return {"type": "shell_call_output", "call_id": id_, "output": output}


#: By family, the result for a call of this id. Some have none: a computer's is a screenshot, and a
#: provider's own tools are answered by the provider.
_STUBS: dict[str, Callable[[str], dict[str, Any]]] = {
    CHAT: lambda id_: {"role": "tool", "tool_call_id": id_, "content": INTERRUPTED},
    TOOL_USE: lambda id_: {
        "type": "tool_result",
        "tool_use_id": id_,
        "content": INTERRUPTED,
        "is_error": True,
    },
    "function_call": _text_output("function_call_output"),
    "custom_tool_call": _text_output("custom_tool_call_output"),
    "local_shell_call": lambda id_: {
        "type": "local_shell_call_output",
        "id": id_,
        "output": INTERRUPTED,
        "status": "incomplete",
    },
    "shell_call": _shell_output,
    "apply_patch_call": lambda id_: {
        "type": "apply_patch_call_output",
        "call_id": id_,
        "status": "failed",
        "output": INTERRUPTED,
    },
    "tool_search_call": lambda id_: {
        "type": "tool_search_output",
        "call_id": id_,
        "tools": [],
        "status": "incomplete",
    },
    # Nobody has said yes, and what nobody approved is not done.
    "mcp_approval_request": lambda id_: {
        "type": "mcp_approval_response",
        "approval_request_id": id_,
        "approve": False,
        "reason": INTERRUPTED,
    },
}


# -- pairs: which result belongs to which call -----------------------------------------------------


class _Placed:
    """A call or a result in a history."""

    def __init__(self, index: int, site: CallSite | ResultSite) -> None:
        self.index = index
        self.block = site.block
        self.family = site.family
        self.id = site.id
        self.body = site.body
        self.name = site.name if isinstance(site, CallSite) else None

    @property
    def key(self) -> tuple[str, str]:
        """What a call and its result have in common."""
        return self.family, self.id

    @property
    def place(self) -> tuple[int, int]:
        """What they are ordered by."""
        return self.index, -1 if self.block is None else self.block


class _Call(_Placed):
    """A tool call, with its result once that is known."""

    result: _Result | None = None
    repeats = False  # the same call as another one, which stays
    new_id: str | None = None

    @property
    def answered_at(self) -> tuple[int, int]:
        """Where its result is."""
        return self.place if self.result is None else self.result.place

    def stub(self) -> dict[str, Any]:
        """The result, message or block, that stands in for its own."""
        return _STUBS[self.family](self.new_id or self.id)


class _Result(_Placed):
    """The result of a call, with its call once that is known."""

    call: _Call | None = None


class _Pairs:
    """The calls and the results of a history, matched as far as that is possible."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.calls: list[_Call] = []
        self.results: list[_Result] = []
        self._open: dict[tuple[str, str], list[_Call]] = {}  # unanswered, the newest last
        # To the newest call before it, because some models number their calls anew in each turn;
        # and only when all have had their turn, to a call behind it.
        for index, message in enumerate(messages):
            for site in sites_in(message):
                if site.family == LEGACY:
                    continue  # providers no longer look at those
                if isinstance(site, CallSite):
                    call = _Call(index, site)
                    self.calls.append(call)
                    self._open.setdefault(call.key, []).append(call)
                else:
                    result = _Result(index, site)
                    self.results.append(result)
                    self._answer(result)
        for result in self.results:
            if result.call is None:
                self._answer(result, first=True)
        self._mark_repeats(messages)

    def _answer(self, result: _Result, *, first: bool = False) -> None:
        """Join *result* to an unanswered call of its id: of the newest message, or the *first*."""
        waiting = self._open.get(result.key)
        if not waiting:
            return
        at = 0 if first else len(waiting) - 1
        while at and not first and waiting[at - 1].index == waiting[at].index:
            at -= 1
        call = waiting.pop(at)
        call.result, result.call = result, call

    def knows(self, result: _Result) -> bool:
        """Whether there is a call that *result* could have answered, had another not been first."""
        return result.key in self._open

    def _mark_repeats(self, messages: Sequence[Message]) -> None:
        """Mark unanswered calls that somebody stored twice.

        Only those between which nobody else spoke: later, the same call is a new one.
        """
        spoken: list[int] = []  # for each message, how many a person has said up to it
        answering = {result.index for result in self.results}
        count = 0
        for index, message in enumerate(messages):
            count += message.get("role") == "user" and index not in answering
            spoken.append(count)
        groups: dict[tuple[object, ...], list[_Call]] = {}
        for call in self.calls:
            groups.setdefault((*call.key, spoken[call.index]), []).append(call)
        for calls in groups.values():
            stay = [call for call in calls if call.result is not None]
            for call in calls if len(calls) > 1 else ():
                if call.result is None:
                    call.repeats = any(other.body == call.body for other in stay)
                    stay += [] if call.repeats else [call]


# -- the repair itself -----------------------------------------------------------------------------


class _Repairer:
    """Goes through a history once, and gives out what a provider takes."""

    def __init__(
        self, messages: Sequence[Message], shape: Shape | None, *, rule: Rule, keep_open: bool
    ) -> None:
        self._repairs: list[Repair] = []
        self._shape = shape
        self._rule = rule
        self._given = tidy_each(messages, shape, self._note)
        self._pairs = _Pairs(self._given)
        self._turns = _turns(self._given)
        self._open_from = _last_turn(self._given) if keep_open else len(self._given)
        self._calls: dict[int, list[_Call]] = {}
        self._stubbed: set[_Call] = set()
        self._dropped: set[_Call] = set()
        self._results: dict[int, list[_Result]] = {}
        self._out: Made = []
        self._reasoning: list[int] = []  # held back until it is known what follows
        self._late: Made = []  # items to go in before the next speaker
        self._awaited: list[_Call] = []  # calls of the turn that the next message has to answer

    def run(self) -> tuple[Made, list[Repair]]:
        """The history, each message with the numbers of those it is made of; what was done."""
        self._decide()
        index = 0
        while index < len(self._given):
            index = self._step(index)
        self._flush(None)
        for result in self._pairs.results:
            if result.call is None and self._pairs.knows(result):
                self._note_result(result, "duplicate_result", "is a second one; left out")
            elif result.call is None:
                self._note_result(result, "orphan_result", "answers no call; left out")
        made = tidy_turns(self._out, self._shape, self._note)
        return made, sorted(self._repairs, key=lambda repair: repair.index)

    # -- what happens to each call --------------------------------------------------------------

    def _decide(self) -> None:
        turns = self._turns
        for call in self._pairs.calls:
            result = call.result
            # A provider's own tool answers in the same turn, and not before it was called.
            if call.family == SERVER and result is not None:
                same = turns[call.index] == turns[result.index]
                if not (same and call.place < result.place):
                    call.result = result.call = None
        for call in self._pairs.calls:
            self._calls.setdefault(call.index, []).append(call)
            if call.repeats:
                self._drop(call, "repeated_call", "was stored twice; left out here")
            elif call.result is None and call.index < self._open_from:
                if call.family == "program" or (call.family == SERVER and self._ends_with(call)):
                    continue  # the provider goes on with it
                if self._rule == "drop" or call.family not in _STUBS:
                    self._drop(call, "unanswered_call", "has no result; left out")
                else:
                    self._stubbed.add(call)
                    what = "has no result; answered as interrupted"
                    self._note_call(call, "unanswered_call", what)
        for result in self._pairs.results:
            self._results.setdefault(result.index, []).append(result)
        self._rename()

    def _ends_with(self, call: _Call) -> bool:
        """Whether *call* is of the last turn, and nothing beside it will make another one."""
        turns = self._turns
        beside = [other for other in self._pairs.calls if turns[other.index] == turns[call.index]]
        last = turns[call.index] == max(turns, default=0)
        return last and not any(other.family == TOOL_USE for other in beside)

    def _drop(self, call: _Call, kind: str, what: str) -> None:
        self._dropped.add(call)
        self._note_call(call, kind, what)

    def _rename(self) -> None:
        """Give calls ids that are their own, where a provider wants that, and that it takes."""
        used: set[tuple[object, str]] = set()
        numbers: dict[tuple[object, str], int] = {}  # how often an id has come
        for call in self._pairs.calls:
            if call in self._dropped:
                continue
            # Within what an id is used once: Chat Completions has it so within a message.
            scope: object = "blocks" if call.family in (TOOL_USE, SERVER) else "items"
            scope = call.index if call.family == CHAT else scope
            id_ = _fitting(call.id, call.family)
            while (scope, id_) in used:
                number = numbers[scope, call.id] = numbers.get((scope, call.id), 1) + 1
                id_ = _fitting(f"{call.id}_{number}", call.family)
            used.add((scope, id_))
            if id_ != call.id:
                call.new_id = id_
                self._note_call(call, "renamed_call", f"is now {id_!r}: its id was taken or unfit")

    # -- one message after the other -----------------------------------------------------------

    def _step(self, index: int) -> int:
        """Deal with the message at *index*; where to go on."""
        message = self._given[index]
        kind, role = kind_of(message), message.get("role")
        if not message:
            return index + 1
        if binds_next(message):
            self._reasoning.append(index)
        elif kind in ITEM_CALLS or kind in ITEM_RESULTS:
            self._item(index, message)
        elif role == "tool":
            pass  # it has come with its call, or does not come
        elif role == "user":
            return self._turn_of_user(index)
        else:
            self._speech(index, message)
        return index + 1

    def _item(self, index: int, item: Message) -> None:
        calls = self._calls.get(index, [])
        results = self._results.get(index, [])
        if calls and calls[0] in self._dropped:
            return  # and the reasoning before it waits for another item of the same turn
        self._flush(item)
        if results:
            answered = results[0].call
            if answered and answered not in self._dropped and answered.index < index:
                self._put(index, _renamed_item(item, answered.new_id))
            return
        self._put(index, _renamed_item(item, calls[0].new_id) if calls else item)
        for call in calls:
            if call in self._stubbed:
                self._late.append(((index,), call.stub()))
            elif call.result is not None and call.result.index < index:
                moved = _renamed_item(self._given[call.result.index], call.new_id)
                self._late.append(((call.result.index,), dict(moved)))
                self._note_result(call.result, "moved_result", "came before its call; moved")

    def _speech(self, index: int, message: Message) -> None:
        """A message of the assistant's, of the system's, or of another kind."""
        self._flush(message)
        calls = self._calls.get(index, [])
        self._put(index, self._edited(index, message))
        # The results of Chat Completions stand just behind it.
        chat = [call for call in calls if call.family == CHAT and call not in self._dropped]
        for call in sorted(chat, key=lambda call: call.answered_at):
            result = call.result
            if result is None:
                continue
            given = self._given[result.index]
            if call.new_id is not None:
                given = {**given, "tool_call_id": call.new_id}
            self._put(result.index, given)
            between = self._given[index + 1 : result.index]
            in_place = index < result.index and all(m.get("role") == "tool" for m in between if m)
            if not in_place:
                self._note_result(result, "moved_result", "did not stand behind its call; moved")
        for call in chat:
            if call in self._stubbed:
                self._put(index, call.stub())
        self._awaited += [call for call in calls if call.family == TOOL_USE]

    # -- turns of the user, who answers calls in Anthropic's shape -----------------------------

    def _turn_of_user(self, start: int) -> int:
        """All that the user says at once, with the results that are awaited in front."""
        end = start
        while end < len(self._given):
            message = self._given[end]
            if message and message.get("role") != "user":  # nothing may be left of it
                break
            end += 1
        awaited = self._take_awaited()
        self._flush(self._given[start])
        in_place = self._leading(start, end)
        every = [result for index in range(start, end) for result in self._results.get(index, [])]
        wanted = [call.result for call in awaited if call.result is not None]
        whole = not any(call in self._stubbed for call in awaited) and (
            sorted(wanted, key=lambda result: result.place) == in_place == every
        )
        if not whole:
            self._put_awaited(awaited, {result.place for result in in_place})
        for index in range(start, end):
            if self._given[index]:
                stay = awaited if whole else []
                self._put(index, self._edited(index, self._given[index], stay))
        return end

    def _leading(self, start: int, end: int) -> list[_Result]:
        """The results that stand before anything else that is said."""
        found: list[_Result] = []
        for index in range(start, end):
            results = self._results.get(index, [])
            content = self._given[index].get("content")
            size = len(content) if isinstance(content, list) else 1
            for number in range(size if self._given[index] else 0):
                if number < len(results) and results[number].block == number:
                    found.append(results[number])
                else:
                    return found
        return found

    def _take_awaited(self) -> list[_Call]:
        awaited = [call for call in self._awaited if call not in self._dropped]
        self._awaited = []
        return awaited

    def _put_awaited(self, awaited: list[_Call], in_place: set[tuple[int, int]]) -> None:
        """A message with the results of *awaited*; Anthropic takes those of one role as one."""
        blocks: list[Any] = []
        made_of: list[int] = []
        for call in sorted(awaited, key=lambda call: call.answered_at):
            if call.result is None:
                continue
            blocks.append(_renamed_result(call.result, call))
            made_of.append(call.result.index)
            if call.result.place not in in_place:
                self._note_result(call.result, "moved_result", "did not follow its call; moved")
        blocks += [call.stub() for call in awaited if call in self._stubbed]
        if blocks:
            self._put(awaited[0].index, {"role": "user", "content": blocks}, *made_of)

    # -- giving out ------------------------------------------------------------------------------

    def _put(self, index: int, message: Message | None, *others: int) -> None:
        """Give out *message*, made of the one at *index* and *others*, unless nothing is left."""
        if message:
            made_of = tuple(sorted({index, *others}))
            self._out.append((made_of, message if isinstance(message, dict) else dict(message)))

    def _flush(self, upcoming: Message | None) -> None:
        """Give out what has waited for *upcoming*, the next message, or for the end (None)."""
        of_model = upcoming is not None and role_of(upcoming) == "assistant"
        for index in self._reasoning:
            if of_model:
                self._put(index, self._given[index])
            else:
                what = "a reasoning item without what it led to; left out"
                self._note(index, "orphan_reasoning", what)
        self._reasoning.clear()
        if not of_model:
            self._out += self._late
            self._late.clear()
            self._put_awaited(self._take_awaited(), set())

    def _edited(self, index: int, message: Message, keep: Iterable[_Call] = ()) -> Message | None:
        """*message* without calls that are dropped and results that go elsewhere or nowhere.

        *keep*: calls whose results stay in it. None if nothing is left.
        """
        calls = self._calls.get(index, [])
        key = "tool_calls" if any(call.family == CHAT for call in calls) else "content"
        parts = message.get(key)
        if not isinstance(parts, list):
            return message
        edits: dict[
            int | None, Any
        ] = {}  # by number, the parts that change; None for one that goes
        for call in calls:
            if call in self._dropped:
                edits[call.block] = None
            elif call.new_id is not None:
                edits[call.block] = {**call.body, "id": call.new_id}
        stay = {call.result for call in keep}
        for result in self._results.get(index, []):
            answered = result.call
            if answered is None or not (answered.family == SERVER or result in stay):
                edits[result.block] = None
            elif answered.new_id is not None:
                edits[result.block] = _renamed_result(result, answered)
        edited = [edits.get(number, part) for number, part in enumerate(parts)]
        if all(new is old for new, old in zip(edited, parts, strict=True)):
            return message
        return remaining({**message, key: [part for part in edited if part is not None]})

    # -- recording what was done -----------------------------------------------------------------

    def _note_call(self, call: _Call, kind: str, what: str) -> None:
        named = f" to {call.name}" if call.name else ""
        self._note(call.index, kind, f"the call {call.id!r}{named} {what}", call.id, call.name)

    def _note_result(self, result: _Result, kind: str, what: str) -> None:
        name = None if result.call is None else result.call.name
        self._note(result.index, kind, f"the result of {result.id!r} {what}", result.id, name)

    def _note(
        self,
        index: int,
        kind: str,
        what: str,
        call_id: str | None = None,
        name: str | None = None,
    ) -> None:
        self._repairs.append(Repair(index, kind, what, call_id, name))


def _fitting(id_: str, family: str) -> str:
    """*id_* if a provider takes it for a call of this *family*, else one made of it."""
    if family in (TOOL_USE, SERVER):
        fit, most = re.sub(_NOT_IN_ID, "_", id_), None
    else:
        fit, most = id_, MOST_IN_CHAT if family == CHAT else MOST_IN_ITEM
    if not fit or (most is not None and len(fit) > most):
        # As good as its own, and the same each time: results are known by it too.
        import hashlib  # noqa: PLC0415 - slow to import, and ids are hardly ever too long

        fit = "call_" + hashlib.blake2b(id_.encode(), digest_size=12).hexdigest()
    return fit


def _renamed_item(item: Message, id_: str | None) -> Message:
    if id_ is None:
        return item
    keys = ITEM_RESULTS.get(kind_of(item)) or (ITEM_CALLS[kind_of(item)],)
    key = next(key for key in keys if isinstance(item.get(key), str))
    return {**item, key: id_}


def _renamed_result(result: _Result, call: _Call) -> Message:
    """The block of *result*, by the id that its *call* now has."""
    return result.body if call.new_id is None else {**result.body, "tool_use_id": call.new_id}


def _turns(messages: Sequence[Message]) -> list[int]:
    """For each message the number of its turn: those of one role that follow each other."""
    numbers: list[int] = []
    role, number = "", 0
    for message in messages:
        now = role_of(message) if message else role
        number += now != role
        role = now
        numbers.append(number)
    return numbers


def _last_turn(messages: Sequence[Message]) -> int:
    """From which index on nobody but the assistant, and tools, have said anything."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message and role_of(message) not in ("assistant", "tool", "function"):
            blocks = blocks_of(message)
            if not (blocks and all(map(is_result, blocks))):
                return index + 1
    return 0
