"""How a damaged history is made whole: what happens to each call, and where each result goes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limpet.llm.messages import tidying as _tidying
from limpet.llm.messages.pairs import CHAT, SERVER, TOOL_USE, Call, Pairs, Result
from limpet.llm.messages.shape import (
    ITEM_CALLS,
    ITEM_RESULTS,
    binds_next,
    blocks_of,
    is_result,
    kind_of,
    role_of,
)
from limpet.llm.messages.stubs import can_stub, stub

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from limpet.llm.messages.shape import Shape

    Message = Mapping[str, Any]

__all__ = ["Mender", "Repair", "fitting"]

#: Characters that an id may have; items may have 64.
MOST = {CHAT: 40}
_NOT_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")


class Repair(Struct, frozen=True):
    """One thing that was wrong: in which message, which call, and what was done, in words."""

    index: int
    kind: str
    what: str
    call_id: str | None = None
    name: str | None = None


class Mender:
    """Goes through a history once, and gives out what a provider takes."""

    def __init__(
        self, messages: Sequence[Message], shape: Shape | None, *, rule: str, keep_open: bool
    ) -> None:
        self._repairs: list[Repair] = []
        self._shape = shape
        self._rule = rule
        self._given = _tidying.before(messages, shape, self._note)
        self._pairs = Pairs(self._given)
        self._turns = _turns(self._given)
        self._open_from = _last_turn(self._given) if keep_open else len(self._given)
        self._calls: dict[int, list[Call]] = {}
        self._stubbed: set[Call] = set()
        self._dropped: set[Call] = set()
        self._results: dict[int, list[Result]] = {}
        self._out: _tidying.Numbered = []
        self._reasoning: list[int] = []  # held back until it is known what follows
        self._late: _tidying.Numbered = []  # items to go in before the next speaker
        self._due: list[Call] = []  # calls of the turn that the next message has to answer

    def run(self) -> tuple[_tidying.Numbered, list[Repair]]:
        """The history, each message with the numbers of those it is made of; what was done."""
        self._decide()
        index = 0
        while index < len(self._given):
            index = self._step(index)
        self._settle(None)
        self._note_lost()
        mended = _tidying.after(self._out, self._shape, self._note)
        return mended, sorted(self._repairs, key=lambda repair: repair.index)

    # -- what happens to each call --------------------------------------------------------------

    def _decide(self) -> None:
        self._part_server_tools()
        for call in self._pairs.calls:
            self._calls.setdefault(call.index, []).append(call)
            if call.repeats:
                self._drop(call, "repeated_call", "was stored twice; left out here")
            elif call.result is None and call.index < self._open_from:
                self._unanswered(call)
        for result in self._pairs.results:
            self._results.setdefault(result.index, []).append(result)
        self._rename()

    def _part_server_tools(self) -> None:
        """A provider's own tool answers in the same turn, and not before it was called."""
        turns = self._turns
        for call in self._pairs.calls:
            result = call.result
            if call.family == SERVER and result is not None:
                same = turns[call.index] == turns[result.index]
                if not (same and call.place < result.place):
                    call.result = result.call = None

    def _unanswered(self, call: Call) -> None:
        if call.family == "program" or (call.family == SERVER and self._ends_with(call)):
            return  # the provider goes on with it
        if self._rule == "drop" or not can_stub(call.family):
            self._drop(call, "unanswered_call", "has no result; left out")
        else:
            self._stubbed.add(call)
            self._note_call(call, "unanswered_call", "has no result; answered as interrupted")

    def _ends_with(self, call: Call) -> bool:
        """Whether *call* is of the last turn, and nothing beside it will make another one."""
        turns = self._turns
        mine = [other for other in self._pairs.calls if turns[other.index] == turns[call.index]]
        last = turns[call.index] == max(turns, default=0)
        return last and not any(other.family == TOOL_USE for other in mine)

    def _drop(self, call: Call, kind: str, what: str) -> None:
        self._dropped.add(call)
        self._note_call(call, kind, what)

    def _rename(self) -> None:
        """Give calls ids that are their own, where a provider wants that, and that it takes."""
        used: set[tuple[object, str]] = set()
        numbers: dict[tuple[object, str], int] = {}  # how often an id has come
        for call in self._pairs.calls:
            if call in self._dropped:
                continue
            scope = _scope(call)
            id_ = fitting(call.id, call.family)
            while (scope, id_) in used:
                number = numbers[scope, call.id] = numbers.get((scope, call.id), 1) + 1
                id_ = fitting(f"{call.id}_{number}", call.family)
            used.add((scope, id_))
            if id_ != call.id:
                call.new_id = id_
                self._note_call(call, "renamed_call", f"is now {id_!r}: its id was taken or unfit")

    # -- one message after the other -----------------------------------------------------------

    def _step(self, index: int) -> int:
        """Deal with the message at *index*; where to go on."""
        message = self._given[index]
        kind = kind_of(message)
        if not message:
            return index + 1
        if binds_next(message):
            self._reasoning.append(index)
        elif kind in ITEM_CALLS or kind in ITEM_RESULTS:
            self._item(index, message)
        elif message.get("role") == "tool":
            pass  # it has come with its call, or does not come
        elif message.get("role") == "user":
            return self._turn_of_user(index)
        else:
            self._settle(message)
            self._speech(index, message)
        return index + 1

    def _item(self, index: int, item: Message) -> None:
        calls = self._calls.get(index, [])
        results = self._results.get(index, [])
        if calls and calls[0] in self._dropped:
            return  # and the reasoning before it waits for another item of the same turn
        self._settle(item)
        if results:
            self._item_result(results[0], item)
            return
        self._put(index, _renamed_item(item, calls[0].new_id) if calls else item)
        for call in calls:
            if call in self._stubbed:
                self._late.append(((index,), stub(call, call.new_id or call.id)))
            elif call.result is not None and call.result.index < index:
                moved = _renamed_item(self._given[call.result.index], call.new_id)
                self._late.append(((call.result.index,), dict(moved)))
                self._note_result(call.result, "moved_result", "came before its call; moved")

    def _item_result(self, result: Result, item: Message) -> None:
        call = result.call
        if call is not None and call not in self._dropped and call.index < result.index:
            self._put(result.index, _renamed_item(item, call.new_id))

    def _speech(self, index: int, message: Message) -> None:
        """A message of the assistant's, of the system's, or of another kind."""
        calls = self._calls.get(index, [])
        self._put(index, self._edited(index, message))
        chat = [call for call in calls if call.family == CHAT and call not in self._dropped]
        self._put_results(chat)
        self._due += [call for call in calls if call.family == TOOL_USE]

    def _put_results(self, calls: list[Call]) -> None:
        """The results of one message's *calls*, just behind it."""
        answered = sorted((c for c in calls if c.result is not None), key=_answered_at)
        for call in answered:
            result = call.result
            assert result is not None  # noqa: S101 - the line above has seen to it
            given = self._given[result.index]
            if call.new_id is not None:
                given = {**given, "tool_call_id": call.new_id}
            self._put(result.index, given)
            if not self._only_results_between(call.index, result.index):
                self._note_result(result, "moved_result", "did not stand behind its call; moved")
        for call in calls:
            if call in self._stubbed:
                self._put(call.index, stub(call, call.new_id or call.id))

    def _only_results_between(self, start: int, end: int) -> bool:
        between = self._given[start + 1 : end]
        return start < end and all(m.get("role") == "tool" for m in between if m)

    # -- turns of the user, who answers calls in Anthropic's shape -----------------------------

    def _turn_of_user(self, start: int) -> int:
        """All that the user says at once, with the results that are due in front."""
        end = start
        while end < len(self._given) and _of_user(self._given[end]):
            end += 1
        due, self._due = [call for call in self._due if call not in self._dropped], []
        self._settle(self._given[start])
        in_place = self._leading(start, end)
        wanted = [call.result for call in due if call.result is not None]
        whole = not any(call in self._stubbed for call in due) and (
            sorted(wanted, key=_place) == in_place == self._all_results(start, end)
        )
        if not whole and due:
            self._put_due(due, {result.place for result in in_place})
        for index in range(start, end):
            if self._given[index]:
                keep = due if whole else []
                self._put(index, self._edited(index, self._given[index], keep))
        return end

    def _all_results(self, start: int, end: int) -> list[Result]:
        return [result for index in range(start, end) for result in self._results.get(index, [])]

    def _leading(self, start: int, end: int) -> list[Result]:
        """The results that stand before anything else that is said."""
        found: list[Result] = []
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

    def _put_due(self, due: list[Call], in_place: set[tuple[int, int]]) -> None:
        """A message with the results of *due*; Anthropic takes those of one role as one."""
        blocks: list[Any] = []
        for call in sorted((c for c in due if c.result is not None), key=_answered_at):
            result = call.result
            assert result is not None  # noqa: S101 - the line above has seen to it
            blocks.append(self._result_block(call, result))
            if result.place not in in_place:
                self._note_result(result, "moved_result", "did not follow its call; moved")
        blocks += [stub(call, call.new_id or call.id) for call in due if call in self._stubbed]
        if blocks:
            results = [call.result.index for call in due if call.result is not None]
            self._put(due[0].index, {"role": "user", "content": blocks}, *results)

    def _result_block(self, call: Call, result: Result) -> Any:
        block = self._given[result.index]["content"][result.block]
        return block if call.new_id is None else {**block, "tool_use_id": call.new_id}

    # -- giving out ------------------------------------------------------------------------------

    def _put(self, index: int, message: Message | None, *others: int) -> None:
        """Give out *message*, made of the one at *index* and *others*, unless nothing is left."""
        if message:
            made_of = tuple(sorted({index, *others}))
            self._out.append((made_of, message if isinstance(message, dict) else dict(message)))

    def _settle(self, upcoming: Message | None) -> None:
        """Give out what has waited for *upcoming*, the next message, or for the end (None)."""
        own = upcoming is not None and role_of(upcoming) == "assistant"
        for index in self._reasoning:
            if own:
                self._put(index, self._given[index])
            else:
                what = "a reasoning item without what it led to; left out"
                self._note(index, "orphan_reasoning", what)
        self._reasoning.clear()
        if not own:
            self._out += self._late
            self._late.clear()
            due, self._due = [call for call in self._due if call not in self._dropped], []
            if due:
                self._put_due(due, set())

    def _edited(self, index: int, message: Message, keep: Iterable[Call] = ()) -> Message | None:
        """*message* without calls that are dropped and results that go elsewhere or nowhere.

        *keep*: calls whose results stay in it. None if nothing is left.
        """
        chat = [call for call in self._calls.get(index, []) if call.family == CHAT]
        key = "tool_calls" if chat else "content"
        parts = message.get(key)
        if not isinstance(parts, list):
            return message
        edits = self._edits(index, {call.result for call in keep})
        edited = [edits.get(number, part) for number, part in enumerate(parts)]
        if all(new is old for new, old in zip(edited, parts, strict=True)):
            return message
        return _tidying.left({**message, key: [part for part in edited if part is not None]})

    def _edits(self, index: int, stay: set[Result | None]) -> dict[int | None, Any]:
        """By number, the parts of message *index* that change; None for one that goes."""
        edits: dict[int | None, Any] = {}
        for call in self._calls.get(index, []):
            if call in self._dropped:
                edits[call.block] = None
            elif call.new_id is not None:
                edits[call.block] = {**call.body, "id": call.new_id}
        for result in self._results.get(index, []):
            call_ = result.call
            if call_ is None or not (call_.family == SERVER or result in stay):
                edits[result.block] = None
            elif call_.new_id is not None:
                edits[result.block] = self._result_block(call_, result)
        return edits

    # -- saying what was done --------------------------------------------------------------------

    def _note_lost(self) -> None:
        for result in self._pairs.results:
            call = result.call
            if call is None and self._pairs.knows(result):
                self._note_result(result, "duplicate_result", "is a second one; left out")
            elif call is None:
                self._note_result(result, "orphan_result", "answers no call; left out")

    def _note_call(self, call: Call, kind: str, what: str) -> None:
        named = f" to {call.name}" if call.name else ""
        words = f"the call {call.id!r}{named} {what}"
        self._note(call.index, kind, words, call_id=call.id, name=call.name)

    def _note_result(self, result: Result, kind: str, what: str) -> None:
        name = None if result.call is None else result.call.name
        words = f"the result of {result.id!r} {what}"
        self._note(result.index, kind, words, call_id=result.id, name=name)

    def _note(
        self,
        index: int,
        kind: str,
        what: str,
        call_id: str | None = None,
        name: str | None = None,
    ) -> None:
        self._repairs.append(Repair(index, kind, what, call_id, name))


def fitting(id_: str, family: str) -> str:
    """*id_* if a provider takes it for a call of this *family*, else one made of it."""
    bad, most = (_NOT_IN_ID, None) if family in (TOOL_USE, SERVER) else (None, MOST.get(family, 64))
    fit = bad.sub("_", id_) if bad else id_
    if not fit or (most is not None and len(fit) > most):
        # As good as its own, and the same each time: results are known by it too.
        import hashlib  # noqa: PLC0415 - slow to import, and ids are hardly ever too long

        fit = "call_" + hashlib.blake2b(id_.encode(), digest_size=12).hexdigest()
    return fit


def _scope(call: Call) -> object:
    """Within what an id is used once: Chat Completions has it so within a message."""
    if call.family == CHAT:
        return call.index
    return "blocks" if call.family in (TOOL_USE, SERVER) else "items"


def _renamed_item(item: Message, id_: str | None) -> Message:
    if id_ is None:
        return item
    keys = ITEM_RESULTS.get(kind_of(item)) or (ITEM_CALLS[kind_of(item)],)
    key = next(key for key in keys if isinstance(item.get(key), str))
    return {**item, key: id_}


def _answered_at(call: Call) -> tuple[int, int]:
    return call.place if call.result is None else call.result.place


def _place(result: Result) -> tuple[int, int]:
    return result.place


def _of_user(message: Message) -> bool:
    return not message or message.get("role") == "user"


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
