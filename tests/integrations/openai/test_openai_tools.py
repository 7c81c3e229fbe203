"""Tools of an OpenAI chat: described, run once, and taken up again after a crash."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from typing import TYPE_CHECKING, Any, Literal

import pytest
from openai import OpenAI

import limpet
from limpet import LeaseLost
from limpet.conversations.transcript import ConversationMeta
from limpet.core.calls import SKIPPED, Resolution, all_in_doubt, resolve_call
from limpet.core.runtime import run_to_end
from limpet.errors import LeaseHeld, NotFound
from limpet.integrations.openai import (
    CallsInDoubt,
    Chat,
    TooManyRounds,
    tool,
)
from limpet.integrations.openai.turn import TurnLock
from limpet.llm.messages.repair import INTERRUPTED
from limpet.tasks.steps import INTERRUPTS
from limpet.testing.providers import check_chat, check_responses
from tests.support import openai_rig
from tests.support.openai_rig import HELLO, Cut, Rig, Till, cut_short, paying
from tests.support.openai_server import Answer, Request, Server
from tests.support.stores import Place, user

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

rig, one_by_one = openai_rig.rig, openai_rig.one_by_one

# -- tools -----------------------------------------------------------------------------------------


def test_tools_run_and_the_model_is_told(rig: Rig) -> None:
    """Calls first, then each result, then the answer."""
    till = Till()
    with Server(brain=paying) as server:
        reply = rig.chat(server, tools=[till.pay]).send("Pay bills 1 and 2.")
    assert reply.text == "Done: paid 1; paid 2."
    assert till.paid == [1, 2]
    assert [(made.name, json.loads(made.arguments), made.result) for made in reply.calls] == [
        ("pay", {"bill": 1}, "paid 1"),
        ("pay", {"bill": 2}, "paid 2"),
    ]
    assert reply.usage.requests == 2
    (check_chat if rig.api == "chat" else check_responses)(rig.messages())


def test_a_tool_is_described_by_its_signature_and_docstring(rig: Rig) -> None:
    """The model reads what people read."""

    def find(place: str, kind: Literal["café", "bar"] = "bar", limit: int | None = None) -> str:
        """Find a place.

        Args:
            place: where to look
            limit (int): how many
        """
        return f"{place} {kind} {limit}"

    with Server(Answer("Yes.")) as server:
        rig.chat(server, tools=[find]).send(HELLO)
    (described,) = server.requests[0].body["tools"]
    described = described.get("function", described)
    assert (described["name"], described["description"]) == ("find", "Find a place.")
    parameters = described["parameters"]
    assert parameters["required"] == ["place"]
    assert parameters["properties"]["place"] == {"type": "string", "description": "where to look"}
    assert parameters["properties"]["kind"]["enum"] == ["café", "bar"]
    assert parameters["properties"]["limit"]["description"] == "how many"
    assert tool(find).arguments('{"place": "Rome", "limit": "3"}') == {"place": "Rome", "limit": 3}


@pytest.mark.slow
@pytest.mark.parametrize("whole", ["parameters", "chat", "responses"])
def test_a_tool_can_be_described_by_hand(rig: Rig, whole: str) -> None:
    """By its parameters, or as either API has a whole tool."""
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}}
    named = {"name": "double", "description": "Twice as much.", "parameters": parameters}
    schema: dict[str, Any] = {
        "parameters": parameters,
        "chat": {"type": "function", "function": named},
        "responses": {"type": "function", **named},
    }[whole]

    def double(**given: Any) -> int:
        return int(given["n"]) * 2

    with Server(Answer(calls=(("double", {"n": 4}),)), Answer("8")) as server:
        rig.chat(server, tools=[tool(double, schema=schema)]).send("Twice four?")
    assert rig.results() == ["8"]


def test_tools_of_the_provider_are_passed_on(rig: Rig) -> None:
    """It runs them itself."""
    with Server(Answer("Yes.")) as server:
        rig.chat(server, tools=[Till().pay, {"type": "web_search"}]).send(HELLO)
    assert server.requests[0].body["tools"][1] == {"type": "web_search"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ((("nap", {}),), "There is no tool 'nap'. The tools are: pay."),
        ((("pay", "{"),), "pay cannot be called like this: Invalid JSON"),
        ((("pay", {"bill": "x"}),), "pay cannot be called like this: bill: "),
        ((("pay", {"bill": 1, "tip": 2}),), "pay cannot be called like this: tip: "),
    ],
    ids=["unknown", "no-json", "wrong-type", "too-many"],
)
def test_a_call_that_cannot_be_made_is_answered_with_the_reason(
    rig: Rig, calls: tuple[tuple[str, Any], ...], told: str
) -> None:
    """The model made the mistake, and can make good for it."""
    till = Till()
    with Server(Answer(calls=calls), Answer("Sorry.")) as server:
        rig.chat(server, tools=[till.pay]).send(HELLO)
    (result,) = rig.results()
    assert json.loads(result)["error"].startswith(told)
    assert till.paid == []


def test_a_call_that_was_cut_off_before_its_arguments_is_not_made(rig: Rig) -> None:
    """No arguments are not the defaults; but for a tool that takes none they are all."""
    done: list[str] = []

    def wipe(what: str = "everything") -> str:
        """Wipe a disk."""
        done.append(what)
        return "wiped"

    def now() -> str:
        """Say the time."""
        return "12:00"

    calls = (("now", ""), ("wipe", ""))
    with Server(Answer(calls=calls, finish="length"), Answer("Sorry.")) as server:
        rig.chat(server, tools=[wipe, now]).send("Wipe the temporary files.")
    time, refused = sorted(rig.results())
    assert (time, done) == ("12:00", [])
    assert "wipe cannot be called like this: there are no arguments" in refused
    assert server.refused == []


def test_an_error_in_a_tool_is_told_to_the_model_as_data(rig: Rig) -> None:
    """It is a result like any other."""
    till = Till(fails=True)
    with Server(brain=paying) as server:
        rig.chat(server, tools=[till.pay]).send(HELLO)
    assert rig.results() == ['{"error":"ValueError: no money"}'] * 2
    assert till.paid == [1, 2]


class TimeIsUp(Exception):
    """By what an engine asks a run to end, as Celery does with its soft time limit."""


@pytest.fixture
def _engine() -> Iterator[None]:
    """An engine that asks a run to end like that."""
    INTERRUPTS.add(TimeIsUp)
    yield
    INTERRUPTS.discard(TimeIsUp)


@pytest.mark.usefixtures("_engine")
@pytest.mark.parametrize("within", ["no task", "a task", "an effect"])
def test_what_asks_a_run_to_end_is_not_told_to_the_model(rig: Rig, within: str) -> None:
    """It ends the turn: the tool has not failed, and the next run goes on from there."""
    times = [TimeIsUp(), None]

    def look() -> str:
        """Look."""
        error = times.pop(0)
        if error is not None:
            raise error
        return "all is well"

    store = rig.place.open()
    looked = limpet.effect(in_doubt="retry")(look) if within == "an effect" else look
    known = [tool(looked, idempotent=True)]

    def turn(server: Server) -> str:
        with contextlib.ExitStack() as stack:
            options: dict[str, Any] = {}
            if within != "no task":
                options["task"] = stack.enter_context(store.task("t", "Look"))
            return str(rig.chat(server, tools=known, **options).send("Look.").text)

    with Server(Answer(calls=(("look", ""),)), Answer("It is.")) as server:
        with pytest.raises(TimeIsUp):
            turn(server)
        assert (rig.results(), len(server.requests)) == ([], 1)
        if within != "no task":
            assert store.task("t").info().status == "open"
        assert turn(server) == "It is."
    assert rig.results() == ["all is well"]


def test_results_that_are_no_text_become_json(rig: Rig) -> None:
    """Of what cannot become JSON the model is told that it is there: it need not ask again."""

    def look(what: str) -> Any:
        """Look."""
        return {"data": {"found": [1, None]}, "thing": object()}[what]

    def pick() -> Any:
        """Pick the first of none."""
        return next(iter(()))

    calls: Any = (("look", {"what": "data"}), ("look", {"what": "thing"}), ("pick", {}))
    with Server(Answer(calls=calls), Answer("I see.")) as server:
        rig.chat(server, tools=[look, pick]).send(HELLO)
    data, thing, none = rig.results()
    assert json.loads(none)["error"] == "RuntimeError: the tool raised StopIteration"
    assert data == '{"found":[1,null]}'
    assert "has run, but the model cannot be shown its result" in json.loads(thing)["error"]


def test_async_tools_run_side_by_side(tmp_path: Path) -> None:
    """Each result is stored when it is there, not when all are."""
    rig = Rig(Place("sqlite", "async", tmp_path), "chat")
    met = asyncio.Barrier(2)

    async def pay(bill: int) -> str:
        """Pay a bill."""
        await asyncio.wait_for(met.wait(), 5)  # one alone would wait for ever
        return f"paid {bill}"

    with Server(brain=paying) as server:
        assert rig.chat(server, tools=[pay]).send(HELLO).text.startswith("Done: paid")
    rig.close()


def test_when_one_tool_ends_the_turn_the_others_do_not_run_on(tmp_path: Path) -> None:
    """Nothing goes on in the background after send has raised."""
    rig = Rig(Place("sqlite", "async", tmp_path), "chat")
    ended: list[str] = []

    async def pay(bill: int) -> str:
        """Pay a bill."""
        if bill == 1:
            raise Cut
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return ""

    with Server(brain=paying) as server, pytest.raises(Cut):
        rig.chat(server, tools=[pay]).send(HELLO)
    rig.place._loop.run_until_complete(asyncio.sleep(0.01))
    assert ended == ["cancelled"]
    rig.close()


def test_a_model_that_only_ever_calls_tools_is_stopped(rig: Rig) -> None:
    """And may go on if somebody wants it to."""
    till = Till()
    with Server(brain=lambda _: Answer(calls=(("pay", {"bill": 1}),))) as server:
        with pytest.raises(TooManyRounds, match="3 times"):
            rig.chat(server, tools=[till.pay], max_rounds=3).send(HELLO)
        assert len(till.paid) == 3
        with pytest.raises(TooManyRounds):
            rig.chat(server, tools=[till.pay], max_rounds=1).resume()
    assert len(till.paid) == 4
    assert server.refused == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["send", "stream"])
def test_what_was_called_in_the_last_round_is_run_and_resume_goes_on(rig: Rig, how: str) -> None:
    """So many requests and no more; and nothing is left in doubt, for which nobody was killed."""
    till = Till()

    def brain(request: Request) -> Answer:
        paid = len(request.results)
        return Answer("Done.") if paid == 3 else Answer(calls=(("pay", {"bill": paid + 1}),))

    with Server(brain=brain) as server:
        chat = rig.chat(server, tools=[till.pay], max_rounds=2, in_doubt="ask")
        with pytest.raises(TooManyRounds, match="2 times"):
            list(getattr(chat, how)(HELLO))
        assert len(server.requests) == 2
        assert rig.results() == ["paid 1", "paid 2"]
        reply = rig.chat(server, tools=[till.pay], max_rounds=2, in_doubt="ask").resume()
    assert (reply.text, till.paid, len(server.requests)) == ("Done.", [1, 2, 3], 4)
    assert server.refused == []


def test_async_tools_need_an_async_store(tmp_path: Path) -> None:
    """Said when the chat is made, not when the model calls."""

    async def pay(bill: int) -> str:
        """Pay a bill."""
        return str(bill)

    with Server() as server:
        rig = Rig(Place("sqlite", "sync", tmp_path), "chat")
        with pytest.raises(TypeError, match="open_async"):
            rig.chat(server, tools=[pay])
        rig.close()


def test_tools_that_no_model_could_call_are_refused() -> None:
    """When they are given, with what to do about it."""

    def anything(*args: Any) -> None:
        """Anything."""

    def pay() -> None:
        """Pay."""

    with pytest.raises(TypeError, match=r"\*args"):
        tool(anything)
    with pytest.raises(ValueError, match="cannot be a tool's name"):
        tool(pay, name="pay it!")
    client: Any = OpenAI(api_key="none")
    with limpet.open("memory:") as store:
        chat = store.conversation("alice")
        with pytest.raises(ValueError, match="Two tools are named 'pay'"):
            Chat(client, chat, model="m", tools=[pay, pay])
        with pytest.raises(ValueError, match="no function behind the tool 'pay'"):
            Chat(client, chat, model="m", tools=[{"type": "function", "name": "pay"}])
    client.close()


# -- tool loops that were cut short ----------------------------------------------------------------


def test_calls_that_were_not_begun_are_run_by_resume(one_by_one: Rig) -> None:
    """And the one that was in doubt is not run again: the model is told so."""
    till = Till()
    with Server(brain=paying) as server:
        cut_short(one_by_one, server, till, at=1)
        reply = one_by_one.chat(server, tools=[till.pay]).resume()
    assert till.paid == [1, 2]
    assert [made.result for made in reply.calls] == [INTERRUPTED, "paid 2"]
    assert server.refused == []


def test_the_same_question_again_finishes_the_tool_loop(one_by_one: Rig) -> None:
    """A program that simply starts again does the right thing."""
    till = Till()
    with Server(brain=paying) as server:
        cut_short(one_by_one, server, till, at=2)
        reply = one_by_one.chat(server, tools=[till.pay]).send("Pay bills 1 and 2.")
    assert till.paid == [1, 2]
    assert [made.result for made in reply.calls] == ["paid 1", INTERRUPTED]
    assert [m["role"] for m in one_by_one.messages()].count("user") == 1


def test_a_call_in_doubt_is_run_again_if_the_tool_is_idempotent(rig: Rig) -> None:
    """Which is for its author to say."""
    till = Till()
    with Server(brain=paying) as server:
        cut_short(rig, server, till, at=1)
        reply = rig.chat(server, tools=[tool(till.pay, idempotent=True)]).resume()
    assert sorted(till.paid)[:2] == [1, 1]
    assert [made.result for made in reply.calls] == ["paid 1", "paid 2"]


def test_when_the_user_goes_on_what_was_cut_short_is_not_run(one_by_one: Rig) -> None:
    """He may have said to stop."""
    till = Till()
    with Server(brain=lambda r: Answer("Fine.") if r.asked == "Stop!" else paying(r)) as server:
        cut_short(one_by_one, server, till, at=1)
        assert one_by_one.chat(server, tools=[till.pay]).send("Stop!").text == "Fine."
    assert till.paid == [1]
    doubtful, not_run = one_by_one.results()
    assert doubtful == INTERRUPTED
    assert "It had no effect" in not_run
    assert server.refused == []


def test_the_user_goes_on_though_a_call_could_run_again(one_by_one: Rig) -> None:
    """It is not run, and the model is not told that it had no effect."""
    till = Till()
    with Server(brain=lambda r: Answer("Fine.") if r.asked == "Stop!" else paying(r)) as server:
        cut_short(one_by_one, server, till, at=1)
        one_by_one.chat(server, tools=[tool(till.pay, idempotent=True)]).send("Stop!")
    assert till.paid == [1]
    assert one_by_one.results()[0] == INTERRUPTED


def test_a_model_may_number_its_calls_anew_in_every_reply(one_by_one: Rig) -> None:
    """Each is a call of its own, whatever it is called."""
    till = Till()

    def brain(request: Request) -> Answer:
        server.numbers = itertools.count(1)  # call_1, once more
        paid = len(request.results)
        return Answer("Done.") if paid == 3 else Answer(calls=(("pay", {"bill": paid}),))

    with Server(brain=brain) as server:
        reply = one_by_one.chat(server, tools=[till.pay]).send(HELLO)
    assert till.paid == [0, 1, 2]
    assert [made.result for made in reply.calls] == ["paid 0", "paid 1", "paid 2"]
    assert server.refused == []


def test_calls_in_doubt_can_be_an_error_and_be_resolved(one_by_one: Rig) -> None:
    """By somebody who has found out."""
    till = Till()
    with Server(brain=paying) as server:
        cut_short(one_by_one, server, till, at=1)
        careful = one_by_one.chat(server, tools=[till.pay], in_doubt="ask")
        with pytest.raises(CallsInDoubt, match="pay") as raised:
            careful.resume()
        with pytest.raises(CallsInDoubt):
            careful.send("Something else")
        (doubtful,) = raised.value.calls
        with pytest.raises(NotFound, match=f"'call_99' .* is not in doubt. .* {doubtful.id}"):
            careful.resolve("call_99", "done", result="no")
        with pytest.raises(ValueError, match="done, retry, skip"):
            careful.resolve(doubtful.id, "perhaps")
        careful.resolve(doubtful.id, "done", result={"paid": True}, by="maria")
        reply = careful.resume()
    assert till.paid == [1, 2]
    assert [made.result for made in reply.calls] == ['{"paid":true}', "paid 2"]


def test_calls_in_doubt_can_be_left_out(rig: Rig) -> None:
    """The model is then not told that it made them."""
    till = Till()
    with Server(brain=paying) as server:
        cut_short(rig, server, till, at=1)
        reply = rig.chat(server, tools=[till.pay], repair="drop").resume()
        rig.chat(server, repair="drop").send("Thanks.")
    assert reply.text.startswith("Done")
    assert "dropped" in rig.entries()
    assert server.refused == []


def test_a_tool_whose_code_is_gone_is_told_so(one_by_one: Rig) -> None:
    """The program may have changed since."""
    till = Till()
    with Server(brain=paying) as server:
        cut_short(one_by_one, server, till, at=1)
        reply = one_by_one.chat(server).resume()
    doubtful, gone = [made.result for made in reply.calls]
    assert doubtful == INTERRUPTED
    assert "There is no tool 'pay'" in gone


def test_a_chat_that_slept_through_a_takeover_writes_nothing_more(one_by_one: Rig) -> None:
    """What its tool did is in doubt, and the model is told so by whoever goes on."""
    till = Till()
    store = one_by_one.place.open()

    def pay(bill: int) -> str:
        """Pay a bill."""
        key = store.journal("conversation", "alice").key
        head = store.backend.head(key)
        assert head is not None
        assert head.lease is not None
        taken = store.backend.acquire(key, "somebody else", 60, over=head.lease.epoch)
        store.backend.release(key, taken)
        return till.pay(bill)

    with Server(brain=paying) as server:
        with pytest.raises(LeaseLost):
            one_by_one.chat(server, tools=[pay]).send("Pay bills 1 and 2.")
        reply = one_by_one.chat(server, tools=[till.pay]).resume()
    assert till.paid == [1, 2]
    assert [made.result for made in reply.calls] == [INTERRUPTED, "paid 2"]
    assert server.refused == []


# -- calls in doubt, as people see them ------------------------------------------------------------


def doubts(rig: Rig) -> list[Any]:
    """What another process is told of the whole store."""
    return run_to_end(all_in_doubt(rig.place.beside().scope))


def resolve(rig: Rig, doubt: Any, how: Any, result: Any = None) -> None:
    """What a person says there."""
    resolution = Resolution(doubt.call.id, how, result, by="maria")
    run_to_end(resolve_call(rig.place.beside().scope, doubt.kind, doubt.id, resolution))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "result", "told"),
    [
        ("done", {"paid": True}, '{"paid":true}'),
        ("done", "paid by hand", "paid by hand"),
        ("retry", None, "paid 1"),
        ("skip", None, SKIPPED),
    ],
    ids=["done-data", "done", "retry", "skip"],
)
def test_a_call_in_doubt_is_listed_and_the_chat_goes_by_what_a_person_says(
    rig: Rig, how: Any, result: Any, told: str
) -> None:
    """Through the functions that serve every kind of journal."""
    till = Till()
    with Server(brain=paying) as server:
        cut_short(rig, server, till, at=1)
        found = doubts(rig)
        # On an async store tools run side by side, and both of them had begun.
        assert [(doubt.kind, doubt.id, doubt.call.name) for doubt in found] == [
            ("conversation", "alice", "pay")
        ] * (2 if rig.place.is_async else 1)
        resolve(rig, found[0], how, result)
        assert doubts(rig) == found[1:]
        with pytest.raises(NotFound, match="is not in doubt"):
            resolve(rig, found[0], how, result)
        reply = rig.chat(server, tools=[till.pay]).resume()
    second = INTERRUPTED if rig.place.is_async else "paid 2"
    assert [made.result for made in reply.calls] == [told, second]
    assert till.paid.count(1) == (2 if how == "retry" else 1)
    assert doubts(rig) == []
    assert rig.entries().count("resolved") == 1
    assert server.refused == []


def test_a_call_in_doubt_is_in_doubt_in_a_fork_too(rig: Rig) -> None:
    """Or a chat in the fork would make it a second time, as if it had not begun."""
    till = Till()
    with Server(brain=paying) as server:
        cut_short(rig, server, till, at=1)
        here = doubts(rig)
        rig.place.open().conversation("alice").fork("bob")
        both = doubts(rig)
        assert [doubt.id for doubt in both] == ["alice"] * len(here) + ["bob"] * len(here)
        paid = list(till.paid)
        with pytest.raises(CallsInDoubt, match=r"pay \(call_\d\)"):
            rig.chat(server, "bob", tools=[till.pay], in_doubt="ask").resume()
        for doubt in both[len(here) :]:
            resolve(rig, doubt, "done", "paid")
        rig.chat(server, "bob", tools=[till.pay], in_doubt="ask").resume()
    assert till.paid[: len(paid)] == paid
    assert till.paid.count(1) == 1
    assert doubts(rig) == here


@pytest.mark.parametrize("by", ["send", "stream", "resume"])
def test_a_chat_asks_until_a_person_has_said(one_by_one: Rig, by: str) -> None:
    """Then any way to go on goes on."""
    till = Till()
    ask = "Pay bills 1 and 2."
    with Server(brain=paying) as server:
        cut_short(one_by_one, server, till, at=2)
        careful = one_by_one.chat(server, tools=[till.pay], in_doubt="ask")
        go_on: Any = {
            "send": lambda: careful.send(ask),
            "stream": lambda: list(careful.stream(ask)),
            "resume": careful.resume,
        }[by]
        for _ in range(2):
            with pytest.raises(CallsInDoubt, match=r"pay \(call_\d\).*chat\.resolve"):
                go_on()
        (doubt,) = doubts(one_by_one)
        assert (doubt.call.policy, doubt.call.attempt) == ("skip", 1)
        resolve(one_by_one, doubt, "done", "paid 2, she said")
        go_on()
    assert till.paid == [1, 2]
    assert one_by_one.results() == ["paid 1", "paid 2, she said"]


def test_a_chat_can_retry_whatever_is_in_doubt(rig: Rig) -> None:
    """As if all its tools were idempotent."""
    till = Till()
    with Server(brain=paying) as server:
        cut_short(rig, server, till, at=1)
        reply = rig.chat(server, tools=[till.pay], in_doubt="retry").resume()
    assert [made.result for made in reply.calls] == ["paid 1", "paid 2"]
    assert till.paid.count(1) == 2
    assert doubts(rig) == []


@pytest.mark.slow
@pytest.mark.parametrize("in_doubt", ["skip", "retry"])
def test_what_a_person_says_at_the_last_moment_counts(
    rig: Rig, in_doubt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the reading of a turn and the first thing that is written of it."""
    till = Till()
    read, reads = TurnLock.turn, itertools.count(1)

    async def turn(self: TurnLock) -> Any:
        found = await read(self)
        # First it is found out whether there is something to resume, then the tools run.
        for doubt in doubts(rig) if next(reads) == 2 else ():
            resolve(rig, doubt, "done", "paid by hand")
        return found

    with Server(brain=paying) as server:
        cut_short(rig, server, till, at=1)
        monkeypatch.setattr(TurnLock, "turn", turn)
        rig.chat(server, tools=[till.pay], in_doubt=in_doubt).resume()
    assert till.paid.count(1) == 1
    assert rig.results()[0] == "paid by hand"
    assert server.refused == []


def test_a_call_that_was_popped_is_no_longer_in_doubt(one_by_one: Rig) -> None:
    """Nobody has made it, as far as the conversation goes; and the model is asked again."""
    till = Till()
    with Server(brain=paying) as server:
        cut_short(one_by_one, server, till, at=1)
        one_by_one.place.beside().conversation("alice").pop()
        assert doubts(one_by_one) == []
        server.numbers = itertools.count(1)  # the same ids once more
        careful = one_by_one.chat(server, tools=[till.pay], in_doubt="ask")
        reply = careful.resume()
    assert [made.result for made in reply.calls] == ["paid 1", "paid 2"]
    assert till.paid == [1, 1, 2]
    assert server.refused == []


def test_a_tool_that_is_running_is_not_in_doubt(rig: Rig) -> None:
    """And nobody can say what became of it."""
    seen: list[Any] = []

    def pay(bill: int) -> str:
        """Pay a bill."""
        seen.extend(doubts(rig))
        with limpet.open(rig.place.url) as store:
            head = store.backend.head(store.journal("conversation", "alice").key)
            calls = ConversationMeta.of(head).calls
            assert {call.name for call in calls.values()} == {"pay"}
            resolution = Resolution(next(iter(calls)), "done")
            with pytest.raises(LeaseHeld, match="is running, by a chat"):
                run_to_end(resolve_call(store.scope, "conversation", "alice", resolution))
        return f"paid {bill}"

    with Server(brain=paying) as server:
        rig.chat(server, tools=[pay]).send(HELLO)
    assert seen == []
    assert rig.results() == ["paid 1", "paid 2"]


@pytest.mark.parametrize(
    ("how", "told"), [("done", "paid by hand"), ("retry", INTERRUPTED), ("skip", SKIPPED)]
)
def test_when_the_user_goes_on_the_model_is_told_what_a_person_said(
    one_by_one: Rig, how: Any, told: str
) -> None:
    """And nothing is run."""
    till = Till()
    with Server(brain=lambda r: Answer("Fine.") if r.asked == "Stop!" else paying(r)) as server:
        cut_short(one_by_one, server, till, at=1)
        result = "paid by hand" if how == "done" else None
        resolve(one_by_one, doubts(one_by_one)[0], how, result)
        one_by_one.chat(server, tools=[till.pay]).send("Stop!")
    assert till.paid == [1]
    assert one_by_one.results()[0] == told
    assert "It had no effect" in one_by_one.results()[1]
    assert server.refused == []


@pytest.mark.parametrize("resolved", [False, True])
def test_a_call_stays_in_doubt_though_another_program_has_spoken_for_the_user(
    one_by_one: Rig, *, resolved: bool
) -> None:
    """It is not forgotten for lying before what the user said last."""
    till = Till()
    with Server(brain=lambda r: Answer("Good.") if r.asked == "Hello?" else paying(r)) as server:
        cut_short(one_by_one, server, till, at=1)
        if resolved:
            resolve(one_by_one, doubts(one_by_one)[0], "done", "paid by hand")
        one_by_one.place.beside().conversation("alice").append(user("Hello?"))
        chat = one_by_one.chat(server, tools=[till.pay], in_doubt="ask")
        if not resolved:
            with pytest.raises(CallsInDoubt):
                chat.resume()
            resolve(one_by_one, doubts(one_by_one)[0], "done", "paid by hand")
        assert chat.resume().text == "Good."
        assert chat.resume() is None
    assert till.paid == [1], "the second had not begun, and the user has gone on"
    assert one_by_one.results() == ["paid by hand"]
    assert "paid by hand" in str(server.requests[-1].body)
    assert doubts(one_by_one) == []
    assert server.refused == []


# -- tools as steps of a task ----------------------------------------------------------------------


def test_with_a_task_each_call_is_a_step(rig: Rig) -> None:
    """Known by its tool and its id."""
    till = Till()
    with (
        Server(brain=paying) as server,
        rig.place.open().task("bills", "Pay the bills") as task,
    ):
        reply = rig.chat(server, tools=[till.pay], task=task).send(HELLO)
        results = {f"pay:{made.id}": made.result for made in reply.calls}
        assert task.results == results
    assert till.paid == [1, 2]


def test_a_step_that_is_done_is_not_run_again_though_the_chat_never_heard(one_by_one: Rig) -> None:
    """The process died between the two records."""
    till = Till()
    with (
        Server(brain=paying) as server,
        one_by_one.place.open().task("bills", "Pay the bills") as task,
    ):
        lost_result(one_by_one.chat(server, tools=[till.pay], task=task))
        assert till.paid == [1]
        # Within the same block: not a second step of the same name.
        reply = one_by_one.chat(server, tools=[till.pay], task=task).resume()
    assert till.paid == [1, 2]
    assert [made.result for made in reply.calls] == ["paid 1", "paid 2"]


def test_a_call_that_was_a_step_is_not_run_again_by_a_chat_without_the_task(
    one_by_one: Rig,
) -> None:
    """It knows that the call was begun, and no more."""
    till = Till()

    def pay(bill: int) -> str:
        """Pay a bill."""
        till.pay(bill)
        raise Cut

    with Server(brain=paying) as server:
        with (
            pytest.raises(Cut),
            one_by_one.place.open().task("bills", "Pay the bills") as task,
        ):
            one_by_one.chat(server, tools=[pay], task=task).send(HELLO)
        reply = one_by_one.chat(server, tools=[till.pay]).resume()
    assert till.paid == [1, 2]
    assert [made.result for made in reply.calls] == [INTERRUPTED, "paid 2"]


def test_when_the_user_goes_on_what_a_step_has_done_is_told(one_by_one: Rig) -> None:
    """The task knows, though the conversation never heard."""
    till = Till()
    with (
        Server(brain=lambda r: Answer("Fine.") if r.asked == "Stop!" else paying(r)) as server,
        one_by_one.place.open().task("bills", "Pay the bills") as task,
    ):
        lost_result(one_by_one.chat(server, tools=[till.pay], task=task))
        one_by_one.chat(server, tools=[till.pay], task=task).send("Stop!")
    done, not_run = one_by_one.results()
    assert (till.paid, done) == ([1], "paid 1")
    assert "It had no effect" in not_run
    assert server.refused == []


def lost_result(chat: Any) -> None:
    """Send, and let the process end between a step's record and the chat's."""
    runner = chat._core._tools
    first = runner._perform

    async def lost(*args: Any) -> Any:
        await first(*args)
        raise Cut

    runner._perform = lost
    with pytest.raises(Cut):
        chat.send(HELLO)


def test_a_step_in_doubt_is_told_to_the_model(one_by_one: Rig) -> None:
    """By default, as it is without a task."""
    till = Till()

    def pay(bill: int) -> str:
        """Pay a bill."""
        till.pay(bill)
        raise Cut

    with Server(brain=paying) as server:
        with (
            pytest.raises(Cut),
            one_by_one.place.open().task("bills", "Pay the bills") as task,
        ):
            one_by_one.chat(server, tools=[pay], task=task).send(HELLO)
        with one_by_one.place.open().task("bills") as task:
            reply = one_by_one.chat(server, tools=[till.pay], task=task).resume()
    assert till.paid == [1, 2]
    assert [made.result for made in reply.calls] == [INTERRUPTED, "paid 2"]


def test_the_settings_of_an_effect_are_honoured(one_by_one: Rig) -> None:
    """Also without task=, when one is open."""
    till = Till()
    looked: list[str] = []

    def verify(key: str) -> str | None:
        looked.append(key)
        return "paid before"

    settings: Any = {"in_doubt": "verify", "verify": verify}

    def pay(bill: int) -> str:
        """Pay a bill."""
        till.pay(bill)
        raise Cut

    with Server(brain=paying) as server:
        with (
            pytest.raises(Cut),
            one_by_one.place.open().task("bills", "Pay the bills"),
        ):
            one_by_one.chat(server, tools=[limpet.effect(**settings)(pay)]).send(HELLO)
        with one_by_one.place.open().task("bills"):
            sure = tool(limpet.effect(**settings)(till.pay), name="pay")
            reply = one_by_one.chat(server, tools=[sure]).resume()
    assert till.paid == [1, 2]
    assert [made.result for made in reply.calls] == ["paid before", "paid 2"]
    head: Any = one_by_one.place.open().journal("task", "bills").head()
    assert looked == [f"default:bills:{head.incarnation}:pay:{reply.calls[0].id}"]


def test_an_effect_that_asks_a_person_halts_the_chat_until_one_has_said(one_by_one: Rig) -> None:
    """Nothing went wrong, and nothing is lost."""
    till = Till()

    def pay(bill: int) -> str:
        """Pay a bill."""
        till.pay(bill)
        raise Cut

    with Server(brain=paying) as server:
        with (
            pytest.raises(Cut),
            one_by_one.place.open().task("bills", "Pay the bills") as task,
        ):
            one_by_one.chat(server, tools=[limpet.effect(pay)], task=task).send(HELLO)
        sure = tool(limpet.effect(till.pay), name="pay")
        store = one_by_one.place.open()
        with pytest.raises(limpet.TaskWaiting) as waiting, store.task("bills") as task:
            one_by_one.chat(server, tools=[sure], task=task).resume()
        store.resolve("bills", waiting.value.waits_for, "done", result="paid, she said")
        with store.task("bills") as task:
            reply = one_by_one.chat(server, tools=[sure], task=task).resume()
    assert till.paid == [1, 2]
    assert [made.result for made in reply.calls] == ["paid, she said", "paid 2"]
