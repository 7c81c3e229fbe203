"""Migrations: older states become newer ones on the way in, or it is said what is missing."""

import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import FingerprintChange, Migrations, NotStorable, Store
from limpet.errors import (
    ChangedWarning,
    MigrationFailed,
    NoMigration,
    StateChanged,
    StateTooNew,
    WrongState,
)
from tests.support import stores
from tests.support.paths import ROOT
from tests.support.stores import Place, call, user

place, store, everywhere = stores.place, stores.store, stores.everywhere

AGENT = {"type": "AssistantAgentState", "version": "1.0.0", "llm_context": {"messages": []}}
TEAM = {"type": "TeamState", "version": "1.0.0", "agent_states": {}}


def listed(document: Any) -> Any:
    """Version 2 has a list of tickets."""
    document["tickets"] = [document.pop("ticket")]
    return document


def named(document: Any) -> Any:
    """Version 3 has a name for each."""
    return {"tickets": {f"t{number}": number for number in document["tickets"]}}


@pytest.fixture
def known() -> Migrations:
    """The migrations of a program."""
    made = Migrations()
    made.migration("support", 1, 2)(listed)
    made.migration("support", 2, 3)(named)
    return made


# -- chains ----------------------------------------------------------------------------------------


def test_an_old_state_is_brought_to_this_version_step_by_step(
    everywhere: Place, known: Migrations
) -> None:
    """By the functions that the program has, when it is loaded; and nothing is written by that."""
    store = everywhere.open()
    store.state("support").save({"ticket": 7})
    state = store.state("support", version=3, migrations=known)
    assert state.load() == {"tickets": {"t7": 7}}
    assert state.at(1) == {"tickets": {"t7": 7}}
    assert state.at(1, migrate=False) == {"ticket": 7}
    assert state.info().position == 1
    assert store.state("support", version=2, migrations=known).load() == {"tickets": [7]}
    assert store.state("support").load() == {"ticket": 7}


def test_the_next_save_is_of_the_new_version_and_a_whole_copy(
    store: Store, known: Migrations
) -> None:
    """What was saved before is in the history, as it was."""
    store.state("support").save({"ticket": 7, "log": "x" * 500})
    state = store.state("support", version=2, migrations=known)
    document = state.load()
    assert state.save(document) == 2  # the same document would be a change: of its version
    assert [(one.version, one.full) for one in state.history()] == [(1, True), (2, True)]
    assert state.load() == document
    assert state.info().version == 2
    assert state.save(document) == 2
    assert state.at(1, migrate=False) == {"ticket": 7, "log": "x" * 500}
    assert state.restore(1) == 3
    assert state.load() == document
    assert state.history()[-1].version == 1


def test_steps_may_leave_versions_out(store: Store) -> None:
    """The way with the fewest steps is taken, and one that leads nowhere is not."""
    known = Migrations()
    for since, to in ((1, 2), (2, 3), (1, 3), (3, 5), (1, 4)):
        known.migration("a", since, to)(lambda path, step=(since, to): [*path, list(step)])
    store.state("a").save([])
    assert store.state("a", version=5, migrations=known).load() == [[1, 3], [3, 5]]
    assert known.newest(("a",), 1) == 5
    assert known.newest(("b",), 1) == 1


def test_states_are_known_by_id_by_type_or_by_how_their_ids_begin(store: Store) -> None:
    """The nearest name counts."""
    known = Migrations()

    def said(word: str) -> Callable[[Any], Any]:
        return lambda document: {**document, "by": word}

    known.migration("support/zoë", 1, 2)(said("id"))
    known.migration("support/*", 1, 2)(said("beginning"))
    known.migration("Support", 1, 2)(said("type"))
    for id_, type_, by in (
        ("support/zoë", "Support", "id"),
        ("support/ann", "Support", "beginning"),
        ("case-1", "Support", "type"),
    ):
        store.state(id_, type=type_).save({})
        found = store.state(id_, version=2, type=type_, migrations=known).load()
        assert found == {"by": by}
        assert store.state(id_, version=2, migrations=known).load() == {"by": by}
    store.state("other").save({})
    with pytest.raises(NoMigration):
        store.state("other", version=2, migrations=known).load()


def test_migrations_of_the_whole_program_need_no_name(store: Store) -> None:
    """A decorator, as in the documentation."""
    decorate = limpet.migration("test of the whole program", 1, 2)
    assert decorate(listed) is listed
    store.state("test of the whole program").save({"ticket": 7})
    assert store.state("test of the whole program", version=2).load() == {"tickets": [7]}


def test_a_migration_may_be_async_in_an_async_program(place: Place, store: Store) -> None:
    """Though it had better be a plain function of its document."""

    async def slowly(document: Any) -> Any:
        return [*document, "later"]

    known = Migrations()
    known.migration("a", 1, 2)(slowly)
    store.state("a").save([])
    state = store.state("a", version=2, migrations=known)
    if place.is_async:
        assert state.load() == ["later"]
    else:
        with pytest.raises(MigrationFailed, match="open_async"):
            state.load()


# -- what goes wrong -------------------------------------------------------------------------------


def test_a_missing_link_says_what_to_register(store: Store, known: Migrations) -> None:
    """Word for word."""
    store.state("support").save({"ticket": 7})
    with pytest.raises(NoMigration) as caught:
        store.state("support", version=5, migrations=known).load()
    text = str(caught.value)
    assert "was saved as version 1, and this program reads version 5" in text
    assert "'support' 1 → 2 (listed), 'support' 2 → 3 (named), but none from 3 on" in text
    assert '@limpet.migration("support", 3, 5)\ndef upgrade(document): ...' in text
    with pytest.raises(NoMigration, match="No migration begins there"):
        store.state("support", version=2, migrations=Migrations()).load()


def test_a_state_of_a_newer_program_is_not_read_by_an_older(store: Store) -> None:
    """Nor written over: the older one is to be updated."""
    store.state("a", version=3).save({"new": 1})
    old = store.state("a", version=2)
    for attempt in (old.load, lambda: old.at(1), lambda: old.save({"old": 1})):
        with pytest.raises(StateTooNew, match="saved as version 3"):
            attempt()
    assert old.at(1, migrate=False) == {"new": 1}
    assert old.info().position == 1


def broken(document: Any) -> Any:
    """Raises."""
    return document["nobody has this"]


def forgetful(document: Any) -> None:
    """Returns nothing."""
    document["tickets"] = []


def unstorable(document: Any) -> Any:
    """Makes what no store can keep."""
    return {**document, "lock": object()}


def not_a_number(document: Any) -> Any:
    """The same, in silence."""
    return {**document, "score": float("nan")}


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (broken, r"'support' 2 → 3 \(broken\) .* raised KeyError: 'nobody has this'"),
        (forgetful, "returned None: a migration returns the document"),
        (unstorable, r"cannot be stored: state\['lock'\] is an object"),
        (not_a_number, r"cannot be stored: state\['score'\] is nan"),
    ],
)
def test_a_migration_that_fails_is_named_and_nothing_is_written(
    store: Store, function: Callable[[Any], Any], why: str
) -> None:
    """What was saved is as it was, for the next attempt."""
    known = Migrations()
    known.migration("support", 1, 2)(listed)
    known.migration("support", 2, 3)(function)
    store.state("support").save({"ticket": 7})
    state = store.state("support", version=3, migrations=known)
    for _ in range(2):
        with pytest.raises(MigrationFailed, match=why):
            state.load()
    assert state.at(1, migrate=False) == {"ticket": 7}
    assert state.info().position == 1


@pytest.mark.parametrize(
    ("name", "since", "to", "why"),
    [
        ("", 1, 2, "a name"),
        (7, 1, 2, "a name"),
        ("a", 2, 2, "newer version"),
        ("a", 2, 1, "newer version"),
        ("a", "1", 2, "whole number"),
        ("a", True, 2, "whole number"),
        ("a", -1, 2, "whole number"),
    ],
)
def test_what_cannot_be_a_migration_is_refused(name: Any, since: Any, to: Any, why: str) -> None:
    """When it is registered, not when it is needed."""
    with pytest.raises(ValueError, match=why):
        Migrations().migration(name, since, to)


def test_two_migrations_for_one_step_are_refused(known: Migrations) -> None:
    """Which of them would run? One that is only imported again is no other."""
    known.migration("support", 1, 2)(listed)
    with pytest.raises(ValueError, match=r"'support' 1 → 2 \(named\)"):
        known.migration("support", 1, 2)(named)

    def upgrade(number: int) -> Callable[[Any], Any]:  # the same name at two places of a file
        if number == 1:

            def upgrade(document: Any) -> Any:
                return document
        else:

            def upgrade(document: Any) -> Any:
                return [document]

        return upgrade

    known.migration("other", 1, 2)(upgrade(1))
    known.migration("other", 1, 2)(upgrade(1))
    with pytest.raises(ValueError, match="two migrations"):
        known.migration("other", 1, 2)(upgrade(2))


@pytest.mark.parametrize("version", ["2", None, 1.5, True, -1])
def test_a_version_is_a_whole_number(store: Store, version: Any) -> None:
    """Frameworks have versions of their own; this one is the user's."""
    with pytest.raises(ValueError, match="A version is a whole number"):
        store.state("a", version=version)


# -- types -----------------------------------------------------------------------------------------


class Framework:
    """An agent of a framework: it takes any state, and forgets what it had."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def save_state(self) -> dict[str, Any]:
        """What it is now."""
        return self.state

    def load_state(self, state: dict[str, Any]) -> None:
        """Whatever comes."""
        self.state = state


def test_the_state_of_a_team_is_refused_by_an_agent(store: Store) -> None:
    """AutoGen itself takes it, and wipes the history."""
    store.state("a").save(Framework(TEAM))
    agent = Framework(AGENT)
    with pytest.raises(
        WrongState, match="of type 'TeamState', and 'AssistantAgentState' was asked"
    ):
        store.state("a").load(into=agent)
    assert agent.state == AGENT
    with pytest.raises(WrongState):
        store.state("a", type="AssistantAgentState").load()
    assert store.state("a", type="TeamState").load() == TEAM
    team = Framework(TEAM)
    assert store.state("a").load(into=team) == TEAM


def test_a_state_does_not_become_another_unseen(store: Store) -> None:
    """One id for an agent and for a team is a mistake; a new version may be another type."""
    state = store.state("a")
    state.save(AGENT)
    with pytest.raises(WrongState, match="cannot be saved in its place"):
        state.save(TEAM)
    assert state.load() == AGENT
    known = Migrations()
    known.migration("a", 1, 2)(lambda _: TEAM)
    newer = store.state("a", version=2, type="TeamState", migrations=known)
    assert newer.load() == TEAM
    newer.save(TEAM)
    assert newer.history()[-1].type == "TeamState"


def test_what_a_migration_has_made_is_what_an_object_must_take(store: Store) -> None:
    """The type counts that the document has now, not the one that it was saved as."""
    known = Migrations()
    known.migration("a", 1, 2)(lambda _: TEAM)
    store.state("a").save(AGENT)
    state, team = store.state("a", version=2, migrations=known), Framework(TEAM)
    assert state.load(into=team) == TEAM
    with pytest.raises(WrongState, match="of type 'TeamState'"):
        state.load(into=Framework(AGENT))


def test_a_type_can_be_given_to_anything(store: Store) -> None:
    """Then it is kept, and asked for."""
    store.state("a", type="basket").save({"apples": 1})
    assert store.state("a").load() == {"apples": 1}
    store.state("a").save({"apples": 2})
    assert store.state("a").history()[-1].type == "basket"
    with pytest.raises(WrongState):
        store.state("a", type="crate").load()
    for type_ in ("clerk", None):  # of what says another of itself, too
        clerk = store.state("clerk", type=type_)
        clerk.save(AGENT)
        assert clerk.load(into=Framework(AGENT)) == AGENT
    known = Migrations()
    known.migration("clerk", 1, 2)(lambda document: {**document, "two": 2})
    newer = store.state("clerk", type="clerk", version=2, migrations=known)
    assert newer.load() == AGENT | {"two": 2}
    with pytest.raises(NotStorable, match="type is text, not 7"):
        store.state("a", type=7)  # type: ignore[arg-type]


# -- what it depends on ----------------------------------------------------------------------------

BEFORE = {
    "name": "support",
    "prompt": "Be brief.",
    "model": "small",
    "tools": [
        {"type": "function", "function": {"name": "look_up", "parameters": {}}},
        {"name": "send", "parameters": {"to": "text"}},
        "now",
    ],
    "temperature": 0.5,
}
AFTER = {
    "name": "support",
    "prompt": "Be kind.",
    "model": "large",
    "tools": {"send": {"parameters": {"to": "address"}}, "now": None, "search": {}},
    "temperature": 0.7,
}


def test_what_has_changed_is_told_in_parts(store: Store) -> None:
    """Tools by name; and of those that are gone, which the saved history still calls."""
    state = store.state("a")
    state.save({"messages": [user("Hello"), call("c1")]}, fingerprint=BEFORE)
    assert state.check(BEFORE) is None
    change = state.check(AFTER)
    assert change is not None
    assert change.prompt == ("Be brief.", "Be kind.")
    assert change.model == ("small", "large")
    assert (change.name, change.type) == (None, None)
    assert change.tools_added == ["search"]
    assert change.tools_removed == ["look_up"]
    assert change.tools_changed == ["send"]
    assert change.still_called == ["look_up"]
    assert change.others == {"temperature": (0.5, 0.7)}
    assert "the saved history still calls look_up, which is gone" in str(change)
    assert "Be kind" not in str(change)


@pytest.mark.parametrize(
    "message",
    [
        call("c1"),
        {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": "{}"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look_up"}]},
        {"role": "assistant", "function_call": {"name": "look_up", "arguments": "{}"}},
        {"type": "AssistantMessage", "content": [{"id": "c1", "name": "look_up", "arguments": ""}]},
    ],
    ids=["chat", "responses", "anthropic", "before there were ids", "autogen"],
)
def test_calls_are_found_wherever_they_are(store: Store, message: dict[str, Any]) -> None:
    """In the histories of every framework, however deep."""
    state = store.state("a")
    document = {"agents": {"x": {"agent_state": {"llm_context": {"messages": [message]}}}}}
    state.save(document, fingerprint={"tools": ["look_up", "other"]})
    change = state.check({"tools": []})
    assert change is not None
    assert change.still_called == ["look_up"]


def test_a_team_is_compared_member_by_member(store: Store) -> None:
    """Each with its own prompt and tools."""
    state = store.state("a")
    was = {"type": "Team", "members": {"a": {"model": "x"}, "b": {"model": "y"}, "gone": {}}}
    is_ = {"type": "Team", "members": {"a": {"model": "x"}, "b": {"model": "z"}, "new": {}}}
    state.save(TEAM, fingerprint=was)
    change = state.check(is_)
    assert change is not None
    assert change.members_added == ["new"]
    assert change.members_removed == ["gone"]
    assert list(change.members) == ["b"]
    assert change.members["b"].model == ("y", "z")
    assert str(change) == ("new members: new; members that are gone: gone; b: model 'y' is now 'z'")


@pytest.mark.parametrize(
    ("was", "is_", "told"),
    [
        ({"members": ["a", "b"]}, {"members": ["a"]}, "members that are gone: b"),
        ({"members": {"a": "x"}}, {"members": {"a": "y"}}, "a: type 'x' is now 'y'"),
        ({"members": "two"}, {"members": "three"}, "also other: members"),
        ({"tools": "all"}, {"tools": ["send"]}, "new tools: send; also other: tools"),
    ],
)
def test_a_fingerprint_of_another_form_is_compared_too(
    store: Store, was: dict[str, Any], is_: dict[str, Any], told: str
) -> None:
    """It is the user's to make."""
    state = store.state("a")
    state.save({}, fingerprint=was)
    assert str(state.check(is_)) == told
    assert state.check(was) is None


def test_loading_what_has_changed_warns(store: Store) -> None:
    """Once the agent is another, its history may not fit it; that is worth a word."""
    state = store.state("a")
    state.save(AGENT, fingerprint=BEFORE)
    with pytest.warns(ChangedWarning, match="model 'small' is now 'large'") as caught:
        assert state.load(fingerprint=AFTER) == AGENT
    assert caught[0].filename.endswith((".py",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert state.load(fingerprint=BEFORE) == AGENT
        assert state.load(fingerprint=AFTER, on_change="ignore") == AGENT
        assert state.load() == AGENT
    with pytest.raises(StateChanged, match="the prompt is another") as raised:
        state.load(fingerprint=AFTER, on_change="raise")
    assert isinstance(raised.value.change, FingerprintChange)
    with pytest.raises(ValueError, match="on_change is"):
        state.load(on_change="shout")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="returns the document"):
        state.load(fingerprint=AFTER, on_change=lambda _change, _document: None)
    with pytest.raises(TypeError, match="A fingerprint is a dict"):
        state.load(fingerprint=["model"])  # type: ignore[call-overload]


def test_a_change_can_be_handled(place: Place, store: Store) -> None:
    """By a function that gets what has changed and the document, after all migrations."""
    seen: list[FingerprintChange] = []

    def without_calls(change: FingerprintChange, document: Any) -> Any:
        seen.append(change)
        return document | {"handled": True}

    async def awaited(change: FingerprintChange, document: Any) -> Any:
        return without_calls(change, document)

    known = Migrations()
    known.migration("a", 1, 2)(lambda document: {**document, "two": 2})
    store.state("a").save({"one": 1}, fingerprint=BEFORE)
    state = store.state("a", version=2, migrations=known)
    handle: Any = awaited if place.is_async else without_calls
    found = state.load(fingerprint=AFTER, on_change=handle)
    assert found == {"one": 1, "two": 2, "handled": True}
    assert seen[0].model == ("small", "large")
    state.save(found, fingerprint=AFTER)
    assert state.check(AFTER) is None
    assert state.check(BEFORE) is not None


def test_what_handles_a_change_may_save_it(place: Place, store: Store) -> None:
    """It is the user's function, and the state his own."""
    state = store.state("a")
    state.save({"one": 1}, fingerprint=BEFORE)

    def anew(_change: FingerprintChange, document: Any) -> Any:
        state.save(document, fingerprint=AFTER)
        return document

    if not place.is_async:
        assert state.load(fingerprint=AFTER, on_change=anew) == {"one": 1}
        assert state.check(AFTER) is None


def test_a_fingerprint_stays_until_there_is_another(store: Store) -> None:
    """It need not be told at every save, and is written only when it changes."""
    state = store.state("a")
    state.save(AGENT | {"log": "x" * 2000}, fingerprint=BEFORE)
    state.save(AGENT | {"log": "x" * 2001})
    state.save(AGENT | {"log": "x" * 2001}, fingerprint=BEFORE)
    assert state.info().position == 2
    state.save(AGENT | {"log": "x" * 2001}, fingerprint=AFTER)
    assert state.info().position == 3
    assert [one.fingerprint for one in state.history()] == [BEFORE, BEFORE, AFTER]
    assert store.state("a").check(AFTER) is None
    state.save(AGENT | {"log": "x" * 2002}, fingerprint={})
    assert state.history()[-1].fingerprint == {}
    other = store.state("b")
    other.save(AGENT)
    assert other.check(AFTER) is None
    other.save(AGENT | {"log": ""}, fingerprint=AFTER)
    other.restore(1)  # as it was: of that save nobody knew what it depends on
    assert [one.fingerprint for one in other.history()] == [None, AFTER, None]


# -- the pages -------------------------------------------------------------------------------------


def blocks(name: str) -> list[tuple[str, str]]:
    """The examples of a page: language and text."""
    page = (ROOT / "docs" / name).read_text("utf-8")
    return re.findall(r"^```(\w+)\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["state.md", "migrations.md"])
def test_the_examples_of_the_page_do_as_shown(name: str, tmp_path: Path) -> None:
    """One after the other, as somebody would who types them in; and print what stands there."""
    found = blocks(name)
    python = [code for language, code in found if language == "python"]
    (tmp_path / "all.py").write_text("\n".join([*python, "store.close()"]), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "all.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for shown in (text for language, text in found if language == "text"):
        assert shown in done.stdout


APP = """
import limpet

@limpet.migration("case/*", 1, 2)
def with_a_priority(document):
    return document | {"priority": "normal"}
"""


@pytest.mark.slow
def test_the_commands_of_the_page_print_what_is_shown(tmp_path: Path) -> None:
    """With the states that its examples have left."""
    (tmp_path / "app.py").write_text(APP)
    with limpet.open(tmp_path / "limpet.db") as store:
        store.state("support", version=3).save({"customer": {"name": "Zoë"}, "tickets": [7]})
        store.state("case/7").save({"about": "an invoice"})
    (session,) = (text for language, text in blocks("migrations.md") if language == "console")
    for step in session.split("$ ")[1:]:
        command, _, output = step.partition("\n")
        arguments = [sys.executable, "-m", "limpet", *command.split()[1:]]
        done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == (output, "")
