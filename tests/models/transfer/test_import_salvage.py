"""What is whole in a file that was cut off can be imported; nothing else of it is."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies

import limpet
from limpet.errors import NotImportable
from limpet.transfer import imports as importing
from limpet.transfer.imports import salvage, understand
from tests.models.transfer.test_import import (
    AGENT,
    CHAT,
    CHECKPOINT,
    DOCUMENTS,
    TEAM,
    chat_of_chatgpt,
)
from tests.support.commands import run
from tests.support.stores import user

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def prefixes(document: Any, **style: Any) -> Iterator[bytes]:
    """The file in which *document* is, cut off at each place."""
    whole = json.dumps(document, **style).encode()
    return (whole[:end] for end in range(1, len(whole)))


def salvaged(data: bytes, **how: Any) -> list[importing.Item]:
    """What is made of the part of a file."""
    document, where = salvage(data, **how)
    assert where is not None
    return understand(document, name="file", cut=True)


def imported(store: limpet.Store, data: bytes) -> None:
    """Import it."""
    for item in salvaged(data):
        importing.put(store, item)


@pytest.mark.parametrize("style", [{}, {"indent": 2}, {"ensure_ascii": False}])
@pytest.mark.parametrize(
    "document",
    [[*CHAT, user('Grüße, "世界" \\ {[')], {"messages": CHAT}],
    ids=["list", "object"],
)
def test_the_whole_messages_before_the_cut_are_taken(document: Any, style: dict[str, Any]) -> None:
    """Wherever it is, also in the middle of a character: all that are whole, and no half one."""
    chat = document if isinstance(document, list) else document["messages"]
    last = 0
    for data in prefixes(document, **style):
        try:
            (item,) = salvaged(data)
        except NotImportable:
            assert last == 0
            continue
        found = [message for _, message in item.entries]
        assert found == chat[: len(found)]
        assert last <= len(found) <= last + 1
        last = len(found)
        assert item.about == ("1 message" if last == 1 else f"{last} messages")
    assert last == len(chat)


def test_the_whole_lines_before_the_cut_are_taken() -> None:
    """JSON Lines: a message a line, or a conversation."""
    data = "\n".join(json.dumps(message) for message in CHAT).encode()
    for end in range(data.index(b"\n") + 2, len(data)):
        document, where = salvage(data[:end], lines=True)
        whole = len(data[:end].splitlines()) - (where is not None)
        assert document == CHAT[:whole]
    chats = [{"id": name, "messages": CHAT} for name in ("a", "b")]
    data = "\n".join(map(json.dumps, chats)).encode()
    items = salvaged(data[:-30], lines=True)
    assert [(item.id, len(item.entries)) for item in items] == [("a", 5), ("b", 4)]


def test_a_line_that_is_cut_off_in_the_middle_of_a_file_is_refused() -> None:
    """What was to follow it, nobody knows."""
    data = b'{"role": "user", "content": "a"}\n{"role": "us\n{"role": "user", "content": "b"}\n'
    with pytest.raises(NotImportable, match=r"cut off in the middle \(line 2"):
        salvage(data)
    with pytest.raises(NotImportable, match="not JSON"):
        salvage(b'[{"role": "user", "content": oops}]')


def test_zeros_at_the_end_are_no_text() -> None:
    """As a power cut leaves a file whose length was written before its content."""
    whole = json.dumps(CHAT).encode()
    assert salvage(whole + bytes(100)) == (CHAT, None)
    document, where = salvage(whole[:-20] + bytes(100))
    assert document == CHAT[:-1]
    assert where is not None


def test_of_conversations_the_last_is_taken_as_far_as_it_is_whole() -> None:
    """By its id, or in a list of ChatGPT's."""
    data = json.dumps({"a": CHAT, "b": CHAT}).encode()[:-30]
    assert [(item.id, len(item.entries)) for item in salvaged(data)] == [("a", 5), ("b", 4)]
    data = json.dumps([chat_of_chatgpt("a"), chat_of_chatgpt("b")]).encode()
    data = data[: data.rindex(b'"a2"')]
    chats = [item for item in salvaged(data) if item.kind == "conversation"]
    assert [item.about for item in chats] == ["2 messages", "1 message"]


@pytest.mark.parametrize("document", [AGENT, TEAM], ids=["agent", "team"])
def test_a_state_of_autogen_is_taken_with_the_messages_that_are_whole(document: Any) -> None:
    """And the state has the same as the conversations."""
    whole = {item.id: item.entries for item in understand(document, name="file")}
    known: set[str] = set()
    for data in prefixes(document):
        with contextlib.suppress(NotImportable):
            items = salvaged(data)
            assert known <= {item.id for item in items}
            known = {item.id for item in items}
            for item in items:
                if item.kind == "conversation":
                    assert item.entries == whole[item.id][: len(item.entries)]
    assert known == set(whole)


def test_steps_of_a_checkpoint_without_a_result_are_in_doubt() -> None:
    """They may be done, or in doubt already: the end of the file would have said it."""
    data = json.dumps(CHECKPOINT).encode()
    data = data[: data.index(b'"count": 2')]
    with limpet.open("memory:") as store:
        (item,) = salvaged(data)
        assert item.notes == ["in doubt, as no result of theirs is left: count, write"]
        importing.put(store, item)
        point = store.task("report-42").checkpoint()
        assert point.results == {"fetch": {"rows": [1, 2]}}
        assert [one.call.id for one in store.in_doubt()] == ["count", "write"]
        ran: list[str] = []
        with contextlib.suppress(limpet.TaskWaiting), store.task("report-42") as task:
            task.step("count", ran.append, "a plain step is run again")
            task.step("write", ran.append, "an effect is asked about", in_doubt="ask")
        assert ran == ["a plain step is run again"]


def test_no_cut_of_a_checkpoint_makes_a_step_done_that_was_not() -> None:
    """Nor gives it half of a result, nor the task half of a plan."""
    with limpet.open("memory:") as store:
        with contextlib.suppress(limpet.TaskWaiting), store.task("pay", goal="Pay") as task:
            task.plan([{"name": "look", "url": "x"}, "charge", "mail"])
            task.step("look", lambda: {"sum": [17, 4]})
            task.wait_for("approval")
        whole = store.task("pay").checkpoint()
    seen = 0
    for data in prefixes(whole.to_dict()):
        with limpet.open("memory:") as store:
            try:
                imported(store, data)
            except NotImportable:
                assert seen == 0
                continue
            seen += 1
            found = store.task("pay").checkpoint()
            assert found.plan == whole.plan
            assert set(found.completed) <= {"look"}
            assert found.results in ({}, whole.results)
            assert {*found.completed, *found.in_doubt} == {"look", "charge", "mail"}
    assert seen > 100


def test_no_cut_of_a_done_task_gives_it_another_outcome() -> None:
    """Its first outcome stays for ever: where the file does not have it, the task is not done."""
    with limpet.open("memory:") as store:
        with store.task("pay", goal="Pay") as task:
            task.step("charge", lambda: 17)
            task.finish({"sum": [17, 4]})
        whole = store.task("pay").checkpoint()
    seen = set()
    for data in prefixes(whole.to_dict()):
        with limpet.open("memory:") as store, contextlib.suppress(NotImportable):
            (item,) = salvaged(data)
            importing.put(store, item)
            found = store.task("pay").checkpoint()
            assert found.status == "open" or found.outcome == whole.outcome
            assert (
                found.status == "done"
                or b'"status": "done"' not in data
                or any("its outcome is cut off" in note for note in item.notes)
            )
            seen.add(found.status)
    assert seen == {"open", "done"}


def test_no_cut_takes_a_position_in_the_plan_for_a_steps_name() -> None:
    """Step "0" of a plan that comes later in the file is one that nobody has heard of."""
    document = {"goal": "Pay", "results": {"0": {"sum": 17}, "1": 4}, "plan": ["charge", "mail"]}
    seen = 0
    for data in prefixes(document):
        with limpet.open("memory:") as store, contextlib.suppress(NotImportable):
            (item,) = salvaged(data)
            importing.put(store, item)
            seen += 1
            assert not {"0", "1"} & {*store.task(item.id).checkpoint().completed}
    assert seen


@pytest.mark.parametrize(
    "data", [b"[", b'[{"role": "user", "content": "Hel', b'"abc', b"tru", b"{"]
)
def test_a_file_of_which_nothing_is_whole_is_refused(data: bytes) -> None:
    """With a word on that."""
    with pytest.raises(NotImportable, match="nothing before that is whole"):
        salvage(data)


@pytest.mark.parametrize("lines", [False, True])
def test_half_of_an_only_message_is_nothing(*, lines: bool) -> None:
    """However much of it there is."""
    message = {"role": "assistant", "content": "x", "tool_calls": [{"id": "c1", "type": "f"}]}
    for data in prefixes(message):
        with pytest.raises(NotImportable):
            salvaged(data, lines=lines)


@pytest.mark.slow
@settings(max_examples=500)
@given(document=DOCUMENTS, lines=strategies.booleans(), data=strategies.data())
def test_whatever_is_cut_wherever_is_imported_or_refused_in_words(
    *, document: Any, lines: bool, data: strategies.DataObject
) -> None:
    """No cut ends in a traceback."""
    whole = json.dumps(document, indent=None if lines else 1).encode()
    part = whole[: data.draw(strategies.integers(0, len(whole)))]
    with limpet.open("memory:") as store, contextlib.suppress(limpet.LimpetError):
        left, where = salvage(part, lines=lines)
        for item in understand(left, name="file", cut=where is not None):
            assert importing.put(store, item)


def test_the_command_says_how_many_and_leaves_the_file_alone(tmp_path: Path) -> None:
    """What is refused without --salvage names it."""
    url, file = str(tmp_path / "agents.db"), tmp_path / "agent_memory.json"
    file.write_text(json.dumps(CHAT)[:-20])
    before = file.read_bytes(), file.stat().st_mtime_ns
    refused = run("--store", url, "import", str(file), code=1).stderr
    assert refused.startswith("NotImportable: agent_memory.json: It is cut off (line 1, column ")
    assert "--salvage" in refused
    done = run("--store", url, "import", str(file), "--salvage")
    assert done.stdout == "conversation/agent_memory: 4 messages; imported\n"
    assert "agent_memory.json is cut off (line 1, column " in done.stderr
    assert (file.read_bytes(), file.stat().st_mtime_ns) == before
    again = run("--store", url, "import", str(file), "--salvage").stdout
    assert again == "conversation/agent_memory: 4 messages; there already; nothing was added\n"


def test_any_file_can_be_salvaged_as_a_state(tmp_path: Path) -> None:
    """What is whole of it; of things in a list, those that are."""
    url, file = str(tmp_path / "agents.db"), tmp_path / "notes.json"
    file.write_text('{"topic": "x", "notes": {"a": 1, "b": [{"n": 1}, {"n": 2}, {"n": 3, "te')
    run("--store", url, "import", str(file), "--salvage", "--as", "state")
    with limpet.open(url) as store:
        whole = {"topic": "x", "notes": {"a": 1, "b": [{"n": 1}, {"n": 2}]}}
        assert store.state("notes").load() == whole


def test_the_command_salvages_an_export_that_was_cut_off_between_two_lines(tmp_path: Path) -> None:
    """Each line is whole, and the last is missing."""
    url, file = str(tmp_path / "agents.db"), tmp_path / "all.jsonl"
    with limpet.open(url) as store:
        for name in ("a", "b"):
            store.conversation(name).append(*CHAT)
    run("--store", url, "export", "-o", str(file))
    file.write_text("\n".join(file.read_text().splitlines()[:2]) + "\n")
    other = str(tmp_path / "other.db")
    assert "--salvage" in run("--store", other, "import", str(file), code=1).stderr
    done = run("--store", other, "import", str(file), "--salvage")
    assert "before the line that ends an export" in done.stderr
    assert done.stdout == "conversation/a: 5 entries; imported\n"
