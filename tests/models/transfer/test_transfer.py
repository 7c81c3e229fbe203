"""Tests of export and import: a conversation as a file is the same conversation."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet import Conflict
from limpet.errors import ConversationNotFound, NotImportable, TaskNotFound
from limpet.transfer import copy as copying
from limpet.transfer import export as _transfer
from limpet.transfer import imports as importing
from tests.support import places

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.places import Where

where = places.where


def user(content: Any) -> dict[str, Any]:
    """A message of the user's."""
    return {"role": "user", "content": content}


def fill(store: limpet.Store) -> None:
    """Conversations with all that can be in one."""
    chat = store.conversation("alice", labels={"team": "red"}, ttl=10_000)
    chat.append(user("Hello"), {"role": "assistant", "content": "Hi"}, id="turn-1")
    chat.append(user("Remember this"), pin=True)
    chat.append(user("Not this"))
    chat.pop()
    chat.fork("alice/2")
    cleared = store.conversation("bob")
    cleared.append(user("old"))
    cleared.clear()
    cleared.append(user("new"))
    long = store.conversation("carol")
    for number in range(120):
        long.append(user(f"{number}"))


def through_json(found: Any) -> Any:
    """As it comes from a file."""
    return json.loads(json.dumps(found))


def exported(store: limpet.Store, form: str, *ids: str) -> Any:
    """An export, as it comes from a file."""
    heads = _transfer.heads(store, ids)
    if form == "json":
        return through_json(_transfer.document(store, heads))
    return [through_json(line) for line in _transfer.lines(store, heads)]


@pytest.fixture
def source() -> Iterator[limpet.Store]:
    """A store to export from."""
    with limpet.open("memory:") as store:
        fill(store)
        yield store


@pytest.fixture
def target(tmp_path: Path) -> Iterator[limpet.Store]:
    """A store to import into."""
    with limpet.open(tmp_path / "target.db") as store:
        yield store


def assert_same(one: limpet.Store, other: limpet.Store) -> None:
    """Everything that can be known of their conversations is the same."""
    infos = list(one.conversations())
    assert [_facts(i) for i in infos] == [_facts(i) for i in other.conversations()]
    for info in infos:
        ours, theirs = (store.journal("conversation", info.id).read() for store in (one, other))
        assert ours == theirs
        chats = (store.conversation(info.id) for store in (one, other))
        mine, their = ((c.messages(), c.pinned(), c.window(max_tokens=50)) for c in chats)
        assert mine == their


def _facts(info: Any) -> Any:
    """All but the size: how a body is compressed is the store's own matter."""
    return (info.id, info.position, info.created_at, info.updated_at, info.expires_at, info.labels)


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_an_export_comes_back_as_the_same_conversations(
    source: limpet.Store, target: limpet.Store, form: str
) -> None:
    """Positions, times, labels, expiry, pins, forks, and what was taken back."""
    done = _transfer.put(target, exported(source, form))
    assert {copied.outcome for copied in done} == {copying.NEW}
    assert_same(source, target)


def test_an_export_goes_into_every_backend_and_out_again(
    source: limpet.Store, where: Where
) -> None:
    """What was written on a laptop is read on a server."""
    with limpet.open(where.url) as store:
        _transfer.put(store, exported(source, "jsonl"))
        assert_same(source, store)
        assert exported(store, "json") == exported(source, "json")


def test_importing_again_adds_nothing(source: limpet.Store, target: limpet.Store) -> None:
    """And finishes what was interrupted."""
    lines = exported(source, "jsonl", "carol")
    part = copy.deepcopy(lines)
    del part[60:-1]
    part[0]["position"] = part[-2]["seq"]
    assert [c.outcome for c in _transfer.put(target, part)] == [copying.NEW]
    assert [c.outcome for c in _transfer.put(target, lines)] == [copying.CONTINUED]
    assert [c.outcome for c in _transfer.put(target, lines)] == [copying.SAME]
    assert len(target.conversation("carol").messages()) == 120


def test_an_append_that_is_retried_after_the_move_is_known(
    source: limpet.Store, target: limpet.Store
) -> None:
    """The ids of appends go with the conversation."""
    _transfer.put(target, exported(source, "json", "alice"))
    chat = target.conversation("alice")
    again = user("Hello"), {"role": "assistant", "content": "Hi"}
    assert chat.append(*again, id="turn-1") == 2
    assert len(chat.messages()) == 3


def test_another_conversation_of_that_name_is_left_alone(
    source: limpet.Store, target: limpet.Store
) -> None:
    """It can come in under another."""
    target.conversation("bob").append(user("mine"))
    document = exported(source, "json", "bob")
    assert [c.outcome for c in _transfer.put(target, document)] == [copying.DIFFERS]
    assert target.conversation("bob").messages() == [user("mine")]
    _transfer.put(target, document, id="bob-2")
    assert target.conversation("bob-2").messages() == [user("new")]


def test_a_dry_run_writes_nothing(source: limpet.Store, target: limpet.Store) -> None:
    """One can look first."""
    done = _transfer.put(target, exported(source, "json"), dry_run=True)
    assert {copied.outcome for copied in done} == {copying.NEW}
    assert list(target.conversations()) == []


def test_what_has_expired_meanwhile_is_left_out(target: limpet.Store) -> None:
    """An old file does not bring back what was to go."""
    with limpet.open("memory:") as store:
        store.conversation("alice", ttl=60).append(user("Hello"))
        document = exported(store, "json")
    (found,) = document["conversations"]
    for name in ("created_at", "updated_at", "expires_at"):
        found[name] = found[name].replace("202", "200", 1)
    found["records"][0]["at"] = found["created_at"]
    (copied,) = _transfer.put(target, document)
    assert (copied.outcome, copied.why) == (copying.GONE, "Its time to live is over.")


def test_an_export_is_for_one_tenant_and_goes_to_another(source: limpet.Store) -> None:
    """The file does not say whose it was."""
    with limpet.open("memory:", tenant="acme") as store:
        _transfer.put(store, exported(source, "json"))
        assert len(list(store.conversations())) == 4
    assert "default" not in json.dumps(exported(source, "json"))


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda lines: lines.pop(-2), "'carol' is cut off: it ends at 119, and not at 120"),
        (lambda lines: lines.pop(), "It is cut off: the line that ends an export is missing"),
        (lambda lines: lines[-1].update(journals=2), "There are 1 of 2 journals before line 122"),
        (lambda lines: lines.pop(5), "'carol' has a gap behind 4: lines are missing"),
        (lambda lines: lines[0].update(version=2), "It has version 2, and this release reads 1"),
        (lambda lines: lines[0].pop("labels"), "line 1 is damaged: .*`labels`"),
        (lambda lines: lines[3].pop("at"), r"line 1 is damaged: .*`at` - at `\$.records\[2\]`"),
        (lambda lines: lines.insert(1, 7), "Line 2 is nothing that a conversation has"),
        (lambda lines: lines.extend(list(lines)), "have the same id"),
        (lambda lines: lines.__delitem__(slice(1, -1)), "'carol' has nothing in it"),
    ],
    ids=["cut", "end", "count", "gap", "version", "labels", "time", "line", "twice", "empty"],
)
def test_a_damaged_file_is_refused_whole(
    source: limpet.Store, target: limpet.Store, harm: Any, why: str
) -> None:
    """Half a conversation is not imported as if it were one."""
    lines = exported(source, "jsonl", "carol")
    harm(lines)
    with pytest.raises(NotImportable, match=why):
        _transfer.put(target, lines)
    assert list(target.conversations()) == []


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        ({"created_at": "2026-01-01T00:00:00"}, "timezone.*`\\$.created_at`"),
        ({"created_at": "1969-12-31T00:00:00Z"}, "created_at is 1969-12-31"),
        ({"updated_at": "9999-12-31T23:00:00-23:00"}, "updated_at is 9999-12-31"),
        ({"expires_at": "0001-01-01T00:00:00+23:00"}, "expires_at is 0001-01-01"),
        ({"ttl": 1e30}, "`\\$.ttl`"),
        ({"ttl": -5}, "`\\$.ttl`"),
        ({"first": 0}, "`\\$.first`"),
        ({"incarnation": None}, "`\\$.incarnation`"),
        ({"incarnation": " x"}, "cannot be a journal's incarnation"),
        ({"position": 1e300}, "`\\$.position`"),
        ({"labels": {"a\x1b": "b"}}, "cannot be a label"),
        ({"labels": 5}, "`\\$.labels`"),
        ({"id": " alice"}, "cannot be a conversation id"),
        ({"meta": {"start": "x"}}, "`\\$.meta.start`"),
        ({"meta": {"pins": [-3]}}, "`\\$.meta.pins"),
        ({"meta": {"gaps": [[5]]}}, "`\\$.meta.gaps"),
        ({"meta": {"summary": 1e300}}, "`\\$.meta.summary`"),
        ({"meta": {"forking": 1}}, "`\\$.meta.forking`"),
        ({"meta": {"calls": {"c1": 5}}}, "`\\$.meta.calls"),
        ({"meta": "odd"}, "`\\$.meta`"),
        ({"meta": {"start": 9_999}}, "its meta speaks of 9999, and it ends at"),
        ({"meta": {"pins": [1, 8_888]}}, "its meta speaks of 8888, and it ends at"),
        ({"status": "a\0b"}, "cannot be a status"),
        ({"records": 5}, "`\\$.records`"),
        (
            {"records": [{"seq": 1, "at": "2026-01-01T00:00:00Z", "entries": [["message"]]}]},
            "entries",
        ),
    ],
)
def test_what_no_store_has_written_is_named(
    source: limpet.Store, harm: dict[str, Any], why: str
) -> None:
    """A file may come from anybody: it ends in no traceback, and not in the store."""
    document = exported(source, "json", "alice")
    document["conversations"][0].update(harm)
    with limpet.open("memory:") as target:
        with pytest.raises(NotImportable, match=f"^Conversation 1 of it is damaged: .*{why}"):
            _transfer.put(target, document)
        assert list(target.conversations()) == []


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("message", 5),
        ("copied", None),
        ("summary", {"upto": 1, "messages": "many", "text": None}),
        ("shortened", {"upto": 1}),
        ("repaired", {"repairs": [{"position": 1}]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_entry_that_no_conversation_has_is_named(
    source: limpet.Store, target: limpet.Store, kind: str, body: Any
) -> None:
    """It would be found by the first window; those of types that nobody knows are kept."""
    lines = exported(source, "jsonl", "bob")
    lines[1]["entries"] = [["of-a-later-release", 5]]
    _transfer.put(target, lines, id="later")
    assert target.conversation("later").window(max_tokens=50) == [user("new")]
    lines[1]["entries"] = [[kind, body]]
    with pytest.raises(NotImportable, match=f"line 1 is damaged: its entry 2, a {kind}: "):
        _transfer.put(target, lines)


@pytest.mark.parametrize("every", [None, 5, {"a": 1}, [5]], ids=["none", "5", "object", "of 5"])
def test_a_document_without_its_conversations_is_refused(every: Any) -> None:
    """Not by the way in which Python fails."""
    document = {"limpet": "conversations", "version": 1, "conversations": every}
    with limpet.open("memory:") as store, pytest.raises(NotImportable, match="damaged"):
        _transfer.put(store, document)


def test_two_records_of_one_id_are_refused(source: limpet.Store, target: limpet.Store) -> None:
    """The second would be taken for the first, said again."""
    lines = exported(source, "jsonl", "carol")
    lines[1]["id"] = lines[2]["id"] = "turn"
    with pytest.raises(NotImportable, match="two of its records have the id 'turn'"):
        _transfer.put(target, lines)


@pytest.mark.parametrize("others", [0, 5, -5, None])
def test_messages_are_counted_and_not_believed(
    source: limpet.Store, target: limpet.Store, others: int | None
) -> None:
    """Whoever wrote the file, a conversation is as long as it is."""
    document = exported(source, "json", "alice")
    document["conversations"][0]["meta"] = None if others is None else {"others": others}
    _transfer.put(target, document)
    chat = target.conversation("alice")
    assert chat.length() == len(chat.messages()) > 0


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_an_export_that_is_cut_short_says_so(source: limpet.Store, form: str) -> None:
    """A file that looks whole, and is not, would be found out too late."""
    heads = list(_transfer.heads(source, ["carol", "bob"]))
    source.journal("conversation", "carol").compact(50)
    source.conversation("bob").delete()
    write = _transfer.lines if form == "jsonl" else _transfer.document
    for head in heads:
        with pytest.raises(Conflict, match=r"cannot be exported whole: the entries behind [01] "):
            list(write(source, [head]))


def test_what_a_repair_took_out_is_missing_in_an_export(tmp_path: Path) -> None:
    """Nor can it be exported again: what is left are the messages."""
    with limpet.open(f"file:{tmp_path / 'state'}?durability=normal") as store:
        chat = store.conversation("alice")
        for text in ("one", "two", "three"):
            chat.append(user(text))
        (file,) = (tmp_path / "state").rglob("alice.jsonl")
        file.write_bytes(file.read_bytes().replace(b"two", b"tow"))
        store.backend.repair()
        with pytest.raises(limpet.errors.StoreCorrupt, match=r"behind 1 were damaged.*--messages"):
            exported(store, "jsonl")
        (left,) = _transfer.messages_lines(store, _transfer.heads(store))
        assert left["messages"] == [user("one"), user("three")]


# -- cut off ---------------------------------------------------------------------------------------


def test_an_export_cut_between_two_conversations_is_refused(
    source: limpet.Store, target: limpet.Store
) -> None:
    """It looks whole, and is fewer."""
    lines = exported(source, "jsonl")
    last = max(number for number, line in enumerate(lines) if line.get("limpet") == "conversation")
    with pytest.raises(NotImportable, match="the line that ends an export is missing"):
        _transfer.put(target, lines[:last])
    assert list(target.conversations()) == []
    done = _transfer.put(target, lines[:last], salvage=True)
    assert [copied.key.id for copied in done] == ["alice", "alice/2", "bob"]


def test_exports_may_follow_one_another_in_a_file(
    source: limpet.Store, target: limpet.Store
) -> None:
    """As `cat` makes them."""
    _transfer.put(target, [*exported(source, "jsonl", "bob"), *exported(source, "jsonl", "carol")])
    assert [info.id for info in target.conversations()] == ["bob", "carol"]
    assert _transfer.put(target, [{"limpet": "end", "journals": 0}]) == []


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_of_an_export_that_was_cut_off_what_is_whole_can_be_had(
    source: limpet.Store, target: limpet.Store, form: str
) -> None:
    """Up to the last whole message; the whole file goes on from there."""
    source.conversation("carol").pin(115)
    found = exported(source, form)
    text = json.dumps(found) if form == "json" else "\n".join(map(json.dumps, found))
    cut = text.index('"content": "100"')
    left, where = importing.salvage(text[:cut].encode())
    assert where is not None
    done = _transfer.put(target, left, salvage=True)
    assert [copied.key.id for copied in done] == ["alice", "alice/2", "bob", "carol"]
    chat = target.conversation("carol")
    assert chat.messages() == [user(f"{number}") for number in range(100)]
    assert chat.length() == 100
    assert chat.pinned() == []
    assert [c.outcome for c in _transfer.put(target, found)][-1] == copying.CONTINUED
    assert_same(source, target)


# -- tasks -----------------------------------------------------------------------------------------


#: A result that is stored apart.
LARGE = "x" * 20_000


def work(store: limpet.Store) -> None:
    """Tasks with all that can be in one: done, halted, in doubt, with a large result."""

    def die() -> None:
        raise KeyboardInterrupt

    with store.task("done", goal="Read", labels={"team": "red"}) as task:
        task.step("crawl", lambda: LARGE)
        task.finish({"rows": 3})
    with contextlib.suppress(KeyboardInterrupt), store.task("pay", goal="Pay", ttl=1_000) as task:
        task.plan(["look", "charge"])
        task.step("look", lambda: 17)
        task.decide("by card", because="it is quick")
        task.step("charge", die, in_doubt="ask")
    with contextlib.suppress(limpet.TaskWaiting), store.task("wait", goal="Wait") as task:
        task.wait_for("approval", timeout=5_000)
    store.submit("report", "sub", goal="Report", input={"n": 1})


def exported_tasks(store: limpet.Store, form: str, *ids: str) -> Any:
    """The same for tasks."""
    heads = _transfer.heads(store, ids, kind="task")
    if form == "json":
        return through_json(_transfer.document(store, heads, "task"))
    return [through_json(line) for line in _transfer.lines(store, heads)]


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_tasks_come_back_from_an_export_as_the_same(form: str, where: Where) -> None:
    """With their doubts, waits, outcomes and large results, in any store."""
    with limpet.open("memory:") as source, limpet.open(where.url) as target:
        work(source)
        done = _transfer.put(target, exported_tasks(source, form))
        assert {copied.outcome for copied in done} == {copying.NEW}
        assert [_task_facts(i) for i in source.tasks()] == [_task_facts(i) for i in target.tasks()]
        for info in source.tasks():
            one, other = (store.task(info.id) for store in (source, target))
            assert one.checkpoint() == other.checkpoint()
            assert one.versions.list() == other.versions.list()
        with target.task("done") as task:
            assert task.load("crawl") == LARGE
        assert [(one.id, one.call.id) for one in target.in_doubt()] == [("pay", "charge")]
        assert exported_tasks(target, form) == exported_tasks(source, form)
        again = _transfer.put(target, exported_tasks(source, form))
        assert {copied.outcome for copied in again} == {copying.SAME}
        target.resolve("pay", "charge", "done", result="receipt")
        with target.task("pay") as task:
            assert task.step("charge", lambda: "twice", in_doubt="ask") == "receipt"


def _task_facts(info: Any) -> Any:
    return (*_facts(info), info.status, info.kind, info.due)


def test_a_task_can_have_another_id_with_its_large_results(target: limpet.Store) -> None:
    """They are found by the task's."""
    with limpet.open("memory:") as source:
        work(source)
        _transfer.put(target, exported_tasks(source, "jsonl", "done"), id="other")
        with pytest.raises(TaskNotFound, match="There is no task 'missing'"):
            exported_tasks(source, "jsonl", "missing")
    with target.task("other") as task:
        assert task.load("crawl") == LARGE


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda lines: lines[1].update(entries=[["created", 5]]), "its entry 1, a created"),
        (lambda lines: lines[2]["entries"][0][1].pop("steps"), "its entry 2, a planned"),
        (lambda lines: lines[1].update(entries=[["decided", {"decision": "x"}]]), "the beginning"),
    ],
    ids=["created", "planned", "beginning"],
)
def test_a_damaged_task_is_refused_with_the_place(
    target: limpet.Store, harm: Any, why: str
) -> None:
    """Whoever opened it would find out later."""
    with limpet.open("memory:") as source:
        work(source)
        lines = exported_tasks(source, "jsonl", "pay")
    harm(lines)
    with pytest.raises(NotImportable, match=f"The task that begins in line 1 is damaged: {why}"):
        _transfer.put(target, lines)
    assert list(target.tasks()) == []


def test_a_task_that_was_cut_off_is_left_out(target: limpet.Store) -> None:
    """As it was earlier, it would do again what it has done since."""
    with limpet.open("memory:") as source:
        work(source)
        lines = exported_tasks(source, "jsonl", "pay", "done")
    assert [line["limpet"] for line in lines if "limpet" in line] == [
        *("task", "task-result", "task", "end")
    ]
    for left in (lines[:-2], lines[:8], lines[:-1]):
        done = _transfer.put(target, left, salvage=True)
        assert done[0].key.id == "pay"
    assert [info.id for info in target.tasks()] == ["done", "pay"]


def test_several_conversations_cannot_have_one_id(
    source: limpet.Store, target: limpet.Store
) -> None:
    """An id is for one."""
    with pytest.raises(NotImportable, match="It has 4 journals"):
        _transfer.put(target, exported(source, "json"), id="x")


def test_only_messages_are_what_models_take(source: limpet.Store) -> None:
    """Without positions and times."""
    heads = _transfer.heads(source, ["alice", "bob"])
    assert list(_transfer.messages_lines(source, heads)) == [
        {"id": "alice", "messages": source.conversation("alice").messages()},
        {"id": "bob", "messages": [user("new")]},
    ]


def test_conversations_are_chosen_by_id_prefix_or_label(source: limpet.Store) -> None:
    """And one that is not there is named."""
    assert [h.key.id for h in _transfer.heads(source, prefix="alice")] == ["alice", "alice/2"]
    red = _transfer.heads(source, labels={"team": "red"})
    assert [head.key.id for head in red] == ["alice", "alice/2"]
    with pytest.raises(ConversationNotFound, match="'nobody'"):
        list(_transfer.heads(source, ["nobody"]))
