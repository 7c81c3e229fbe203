"""What the storage has lost or changed is noticed by whoever reads it, and never skipped."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest

import limpet
from limpet.backends.contract import Append, Key
from limpet.backends.file.backend import FileBackend
from limpet.backends.sqlite.backend import SqliteBackend
from limpet.backends.url import connect
from limpet.core.codec import Codec
from limpet.errors import StoreCorrupt, StoreWentBack, Unreadable
from limpet.workers.worker import Worker
from tests.support import places
from tests.support.commands import run
from tests.support.stores import user

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.places import Where

CHAT = Key("default", "conversation", "alice")
TASK = Key("default", "task", "report")

PLACES = [
    *("sqlite", "file"),
    *(pytest.param(name, marks=pytest.mark.server) for name in ("postgresql", "redis")),
]


@pytest.fixture(params=PLACES)
def where(request: pytest.FixtureRequest) -> Where:
    """A place of each kind of which a record can be taken out by hand."""
    return places.find(request.param, request)


def lose(url: str, key: Key, seq: int) -> None:
    """Take out the record that ends at *seq*, as no release of ours would."""
    with closing(connect(url)) as backend:
        if isinstance(backend, SqliteBackend):
            backend._database.writer().execute(
                "DELETE FROM limpet_records WHERE seq = ? AND journal ="
                " (SELECT journal FROM limpet_journals WHERE kind = ? AND id = ?)",
                (seq, key.kind, key.id),
            )
        elif isinstance(backend, FileBackend):
            path = Path(backend._directory.paths(key).journal)
            lines = path.read_bytes().splitlines(keepends=True)
            path.write_bytes(
                b"".join(line for line in lines if not line.startswith(b'{"seq":%d,' % seq))
            )
        else:
            lose_on_a_server(backend, key, seq)


def lose_on_a_server(backend: Any, key: Key, seq: int) -> None:
    """The same of PostgreSQL and Redis."""
    if hasattr(backend, "schema"):
        tables = f"{backend.schema}.limpet_records r USING {backend.schema}.limpet_journals j"
        backend._connections.rows(
            f"DELETE FROM {tables} WHERE r.journal = j.journal AND r.seq = %(seq)s"  # noqa: S608 - a test's
            " AND j.kind = %(kind)s AND j.id = %(id)s RETURNING r.seq",
            writes=True,
            seq=seq,
            kind=key.kind,
            id=key.id,
        )
    else:
        name = backend._keys.journal(key)
        backend._client.command(name, "HDEL", name, seq, writes=True)


def fill(url: str) -> None:
    """A conversation of five single messages and a task of five entries."""
    with limpet.open(url) as store:
        for number in range(1, 6):
            store.conversation("alice").append(user(str(number)))
        with store.task("report", goal="Report") as task:
            for name in ("a", "b", "c"):
                task.step(name, str, name)


READS: dict[str, Callable[[limpet.Store], object]] = {
    "messages": lambda store: store.conversation("alice").messages(),
    "everything": lambda store: store.conversation("alice").messages(everything=True),
    "items": lambda store: store.conversation("alice").items(),
    "a window": lambda store: store.conversation("alice").window(max_tokens=1000),
    "a fork": lambda store: store.conversation("alice").fork("bob"),
    "a search": lambda store: store.search_conversations("4"),
    "a journal": lambda store: store.journal("conversation", "alice").read(),
    "backwards": lambda store: store.journal("conversation", "alice").read(reverse=True),
}


@pytest.mark.parametrize("seq", [1, 3, 5])
def test_a_record_that_is_missing_is_noticed_by_every_read(where: Where, seq: int) -> None:
    """At the beginning, in the middle, at the end: nothing that was said is simply left out."""
    if (where.name, seq) == ("file", 5):
        pytest.skip("A file that ends earlier ends as if the writer had died: nobody can tell.")
    fill(where.url)
    lose(where.url, CHAT, seq)
    with limpet.open(where.url) as store:
        assert [info.id for info in store.conversations()] == ["alice"] or where.name == "file"
        for name, read in READS.items():
            with pytest.raises(StoreCorrupt, match=r"Entry|record|line|numbers"):
                pytest.fail(f"{name} gave {read(store)!r}")


NEWEST: dict[str, Callable[[limpet.Store], object]] = {
    "the last message": lambda store: store.conversation("alice").last(),
    "the last messages": lambda store: store.conversation("alice").messages(last=2),
    "a small window": lambda store: store.conversation("alice").window(max_tokens=12),
    "what is new": lambda store: store.conversation("alice").items(after=2),
    "a journal's news": lambda store: store.journal("conversation", "alice").read(after=2),
    "a journal's end": lambda store: store.journal("conversation", "alice").read(
        reverse=True, limit=2
    ),
    "pages": lambda store: list(store.journal("conversation", "alice").pages(after=1, size=2)),
    "a pop": lambda store: store.conversation("alice").pop(),
}


@pytest.mark.parametrize("where", [place for place in PLACES if place != "file"], indirect=True)
@pytest.mark.parametrize("name", NEWEST)
def test_a_newest_record_that_is_missing_is_noticed_by_who_reads_no_more_than_the_end(
    where: Where, name: str
) -> None:
    """The one before it is not taken for the last; sync and async."""
    fill(where.url)
    lose(where.url, CHAT, 5)

    async def last() -> object:
        async with limpet.open_async(where.url) as store:
            return await store.conversation("alice").last()

    with limpet.open(where.url) as store:
        with pytest.raises(StoreCorrupt, match=r"Entry 5|record"):
            pytest.fail(f"It gave {NEWEST[name](store)!r}")
        with pytest.raises(StoreCorrupt, match=r"Entry 5|record"):
            pytest.fail(f"It gave {asyncio.run(last())!r}")


@pytest.mark.parametrize("seq", [1, 2, 3])
def test_a_finished_step_of_which_the_record_is_missing_does_not_run_again(
    where: Where, seq: int
) -> None:
    """The task cannot be resumed, and says why; sync and async, and nobody holds it afterwards."""
    fill(where.url)
    lose(where.url, TASK, seq)
    ran: list[str] = []

    async def resumed() -> None:
        async with limpet.open_async(where.url) as store, store.task("report") as task:
            await task.step("a", ran.append, "a")

    with limpet.open(where.url) as store:
        with pytest.raises(StoreCorrupt), store.task("report") as task:
            task.step("a", ran.append, "a")
        with pytest.raises(StoreCorrupt):
            asyncio.run(resumed())
        assert ran == []
        assert store.backend.acquire(TASK, "another", 60).holder == "another"


@pytest.mark.parametrize("seq", [1, 2, 3, 4])
def test_a_state_of_which_a_save_is_missing_says_so_and_ends(where: Where, seq: int) -> None:
    """What needs the missing one is refused, at once; what does not is given."""
    if (where.name, seq) == ("file", 4):
        pytest.skip("A file that ends earlier ends as if the writer had died: nobody can tell.")
    document = {f"line {number}": "x" * 100 for number in range(50)}
    with limpet.open(where.url) as store:
        for number in range(1, 5):
            store.state("team").save({**document, "number": number})
    lose(where.url, Key("default", "state", "team"), seq)
    with limpet.open(where.url) as store:
        state = store.state("team")
        for position in range(seq, 5):
            with pytest.raises((StoreCorrupt, Unreadable)):
                pytest.fail(f"It gave {state.at(position)!r}")
        with pytest.raises((StoreCorrupt, Unreadable)):
            pytest.fail(f"It gave {state.load()!r}")
        if where.name != "file":
            assert [state.at(n)["number"] for n in range(1, seq)] == [*range(1, seq)]


def test_a_memory_of_which_a_record_is_missing_says_so(where: Where) -> None:
    """Whatever is asked of it: nothing that was learned is simply left out."""
    with limpet.open(where.url) as store:
        memory = store.memory("support")
        made = [memory.remember(f"The printer is in room {number}") for number in range(3)]
    lose(where.url, Key("default", "memory", "support"), 2)
    with limpet.open(where.url) as store:
        memory = store.memory("support")
        for read in (
            memory.reindex,  # first: what an index holds that was made before, it holds
            lambda: memory.recall("printer"),
            memory.list,
            lambda: memory.forget(made[0].id),
        ):
            with pytest.raises(StoreCorrupt):
                pytest.fail(f"It gave {read()!r}")


def test_what_is_missing_is_neither_exported_nor_copied_as_if_it_were_whole(
    where: Where, tmp_path: Path
) -> None:
    """A backup that leaves out what it could not read would be found out too late."""
    fill(where.url)
    for key, seq in ((CHAT, 3), (TASK, 2)):
        lose(where.url, key, seq)
    store = ("--store", where.url)
    for command in (
        [*store, "export", "alice"],
        [*store, "export", "alice", "--messages"],
        [*store, "show", "task/report"],
        [*store, "search", "4"],
        ["copy", where.url, f"sqlite:{tmp_path}/copied.db"],
    ):
        said = run(*command, code=1).output
        assert re.search(r"alice|report", said), said
    found = json.loads(run(*store, "doctor", "--json", code=1).stdout)["unreadable"]
    assert {problem["journal"] for problem in found} == {"conversation/alice", "task/report"}


def test_what_was_compacted_away_is_not_missing(where: Where) -> None:
    """A conversation that was cleared goes on."""
    fill(where.url)
    with limpet.open(where.url) as store:
        chat = store.conversation("alice")
        chat.clear()
        assert chat.messages() == []
        chat.append(user("6"))
        assert chat.messages() == [user("6")]
        assert [entry.body for entry in store.journal("conversation", "alice").read()][-1] == user(
            "6"
        )
        assert chat.window(max_tokens=1000) == [user("6")]


# -- what is there, and is not what we write -----------------------------------------------------


def seal(payload: bytes) -> bytes:
    """A body with this *payload*, and with the right checksum."""
    body = Codec().encode_run(["x"])
    assert body[4:-4] == b'["x"]'
    import zlib  # noqa: PLC0415 - only here

    return body[:4] + payload + zlib.crc32(body[:4] + payload, 0x2144DF1C).to_bytes(4, "little")


SHAPES = [
    *(b"5", b"null", b'"text"', b"[]", b"{}", b"[5]", b"[[]]", b"[[5]]", b'[["message"],5]'),
    *(b'["message",5]', b'["message",null]', b'["message",[]]', b"[" * 3000 + b"]" * 3000),
    *(b'["message",{}, {}]', b'["message"]'),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape[:20].decode())
@pytest.mark.parametrize("name", ["sqlite", "file"])
def test_a_sealed_record_of_another_shape_is_unreadable(
    name: str, shape: bytes, request: pytest.FixtureRequest
) -> None:
    """With the journal and the number, in every read: not a KeyError, not a RecursionError."""
    url = places.find(name, request).url
    with limpet.open(url) as store:
        store.conversation("alice").append(user("1"))
        store.backend.append(Append(key=CHAT, body=seal(shape), count=1))
        store.conversation("alice").append(user("3"))
        for name_, read in READS.items():
            if name_ in ("a journal", "backwards") and shape.startswith(b'["message",'):
                continue  # a journal of entries knows nothing of messages
            with pytest.raises(Unreadable, match=r"Entry \d of conversation 'alice'"):
                pytest.fail(f"{name_} gave {read(store)!r}")


@pytest.mark.parametrize(
    "shape",
    [
        *(b'["repaired",5]', b'["repaired",{}]', b'["repaired",{"repairs":[5]}]'),
        *(b'["shortened",null]', b'["shortened",{"upto":1}]'),
    ],
    ids=lambda shape: shape[:40].decode(),
)
def test_a_note_of_another_shape_is_unreadable(tmp_path: Path, shape: bytes) -> None:
    """A conversation's repairs cannot be listed, and the error says where to look."""
    with limpet.open(tmp_path / "agents.db") as store:
        store.conversation("alice").append(user("1"))
        store.backend.append(Append(key=CHAT, body=seal(shape), count=1))
        for read in (
            store.conversation("alice").repairs,
            lambda: store.conversation("alice").window(max_tokens=1000),
        ):
            with pytest.raises(Unreadable, match=r"Entry 2 of conversation 'alice'"):
                pytest.fail(f"It gave {read()!r}")


@pytest.mark.parametrize(
    "shape",
    [
        *(b"null", b"{}", b"5", b'{"model":"m"}'),
        b'{"model":"m","response_id":"r","seconds":1,"usage":5}',
        b'{"model":"m","response_id":"r","seconds":1,"usage":{"input_tokens":[]}}',
    ],
    ids=lambda shape: shape[:40].decode(),
)
def test_a_chats_request_of_another_shape_is_unreadable(tmp_path: Path, shape: bytes) -> None:
    """What the conversation has cost cannot be said; it goes on."""
    openai = pytest.importorskip("openai")
    chats = pytest.importorskip("limpet.integrations.openai")
    with limpet.open(tmp_path / "agents.db") as store:
        store.conversation("alice").append(user("1"))
        body = seal(b'["request",' + shape + b"]")
        store.backend.append(Append(key=CHAT, body=body, count=1))
        client = openai.OpenAI(api_key="key", base_url="http://127.0.0.1:9")
        chat = chats.Chat(client, store.conversation("alice"), model="m")
        for read in (chat.requests, chat.usage):
            with pytest.raises(Unreadable, match=r"Entry 2 of conversation 'alice'"):
                pytest.fail(f"It gave {read()!r}")
        assert store.conversation("alice").messages() == [user("1")]


@pytest.mark.parametrize(
    "shape",
    [
        *(b'["step",5]', b'["step",{}]', b'["planned",{"steps":7}]', b"5"),
        b'["created",{"goal":"Report","deadline":1e308}]',
        b'["step",{"name":"b","large":{"seq":null,"size":1,"preview":""}}]',
    ],
    ids=lambda shape: shape[:40].decode(),
)
def test_a_tasks_entry_of_another_shape_is_unreadable(tmp_path: Path, shape: bytes) -> None:
    """The task can be listed, and says what is wrong when it is opened."""
    with limpet.open(f"sqlite:{tmp_path}/agents.db") as store:
        with store.task("report", goal="Report") as task:
            task.step("a", str, "a")
        store.backend.append(Append(key=TASK, body=seal(shape), count=1))
        for read in (
            lambda: store.task("report").checkpoint(),
            lambda: store.task("report").__enter__(),
        ):
            with pytest.raises(Unreadable, match=r"Entry 3 of task 'report'"):
                read()
        assert [info.id for info in store.tasks()] == ["report"]


DEEP = b"[" * 3000 + b"]" * 3000


@pytest.mark.parametrize(
    "shape",
    [
        *(b"5", b"null", b"[]", DEEP, b'["remembered"]', b'["remembered",5]', b'["remembered",{}]'),
        *(b'["remembered",{"id":"m","text":7,"kind":"fact"}]', b'["superseded",null]'),
        *(b'["contradicted",{"id":"m"}]', b'["used",{"ids":5}]', b'["confirmed",[]]'),
        *(b'["forgotten","m"]', b'["rewritten",5]', b'["rewritten",[1,2,"forgotten",5]]'),
        b'["rewritten",[1,99999999999999999999,"forgotten",{"ids":[]}]]',
    ],
    ids=lambda shape: shape[:40].decode(),
)
@pytest.mark.parametrize("name", ["sqlite", "file"])
def test_a_memorys_entry_of_another_shape_is_unreadable(
    name: str, shape: bytes, request: pytest.FixtureRequest
) -> None:
    """Whatever is asked of the memory; nothing of it is remembered as something else."""
    with limpet.open(places.find(name, request).url) as store:
        memory = store.memory("support")
        known = memory.remember("The printer is in room 7")
        body = seal(shape)
        store.backend.append(Append(key=Key("default", "memory", "support"), body=body, count=1))
        for read in (
            lambda: memory.recall("printer"),
            memory.list,
            memory.stats,
            lambda: memory.forget(known.id),
            lambda: memory.update(known.id, "It is in room 9"),
        ):
            with pytest.raises(Unreadable, match=r"Entry 2 of memory 'support'"):
                pytest.fail(f"It gave {read()!r}")


def test_what_a_newer_release_adds_to_a_memory_is_no_damage(tmp_path: Path) -> None:
    """It is left as it is, also when the memories beside it are forgotten."""
    with limpet.open(tmp_path / "agents.db") as store:
        memory = store.memory("support")
        known = memory.remember("The printer is in room 7")
        store.journal("memory", "support").append(("weighed", 5), ("weighed", {"id": known.id}))
        assert len(memory.recall("printer")) == 1
        memory.forget(known.id)
        assert memory.list() == []


@pytest.mark.parametrize(
    "shape",
    [
        b"5",
        b"null",
        DEEP,
        b'["saved"]',
        b'["saved",5]',
        b'["saved",{}]',
        b'["patched",{"patch":5}]',
    ],
    ids=lambda shape: shape[:40].decode(),
)
def test_a_states_entry_of_another_shape_is_unreadable(tmp_path: Path, shape: bytes) -> None:
    """The save before it can be had, and saving goes on."""
    with limpet.open(tmp_path / "agents.db") as store:
        state = store.state("agent")
        first = state.save({"a": 1})
        body = seal(shape)
        store.backend.append(Append(key=Key("default", "state", "agent"), body=body, count=1))
        with pytest.raises(Unreadable, match=r"State 'agent' at 2 .*(?i:entry 2)"):
            store.state("agent").load()
        assert store.state("agent").history()[0].position == first
        assert store.state("agent").at(first) == {"a": 1}
        assert store.state("agent").save({"a": 2}) == 3
        assert store.state("agent").load() == {"a": 2}


@pytest.mark.parametrize("shape", [b"5", DEEP, b'["message",5]', b'["message",null]'])
def test_a_sessions_entry_of_another_shape_is_unreadable(tmp_path: Path, shape: bytes) -> None:
    """The agents' SDK gets an error that says where, not items that are none."""
    agents = pytest.importorskip("limpet.integrations.openai_agents")

    async def main() -> None:
        async with limpet.open_async(tmp_path / "agents.db") as store:
            session = agents.LimpetSession(store, "alice")
            await session.add_items([{"role": "user", "content": "1"}])
            store.backend.append(Append(key=CHAT, body=seal(shape), count=1))
            with pytest.raises(Unreadable, match=r"Entry 2 of conversation 'alice'"):
                await session.get_items()

    asyncio.run(main())


@pytest.mark.parametrize("name", places.EVERYWHERE)
def test_a_task_that_begins_with_another_entry_is_unreadable(
    name: str, request: pytest.FixtureRequest
) -> None:
    """It is not tried for ever: an error, sync, async and for a worker, and nobody holds it."""
    url = places.find(name, request).url
    registry = limpet.Registry()
    registry.task("report")(lambda task: pytest.fail("it ran"))

    async def opened() -> None:
        async with limpet.open_async(url) as store:
            await store.task("report", goal="Report").__aenter__()

    with limpet.open(url) as store:
        labels = {"run": "report"}
        store.journal("task", "report").append(("unheard", {}), status="open", labels=labels)
        wrong = pytest.raises(
            Unreadable, match=r"Entry 1 of task 'report' .* begins with 'created'"
        )
        with wrong:
            store.task("report", goal="Report").__enter__()
        with wrong:
            store.task("report").checkpoint()
        with wrong:
            asyncio.run(opened())
        Worker(registry, store).run(until_idle=True)
        assert store.backend.acquire(TASK, "another", 60).holder == "another"


# -- a store that is as it was before ------------------------------------------------------------


class Backup:
    """A store as it was, and the way back to that, under whoever has it open."""

    def __init__(self, url: str, directory: Path) -> None:
        self._path = url.partition(":")[2]
        self._copy = str(directory / "copy")
        if Path(self._path).is_dir():
            shutil.copytree(self._path, self._copy)
        else:
            self._transfer(self._path, self._copy)

    def restore(self) -> None:
        """As ``git checkout`` does it to files, or SQLite's own ``.restore``."""
        if not Path(self._path).is_dir():
            self._transfer(self._copy, self._path)
            return
        for path in list(Path(self._path).rglob("*")):
            was = self._copy / path.relative_to(self._path)
            if path.is_file() and was.exists():
                shutil.copyfile(was, f"{path}.new")
                Path(f"{path}.new").replace(path)  # another file, as git makes it

    def _transfer(self, source: str, target: str) -> None:
        with (
            closing(apsw.Connection(source)) as old,
            closing(apsw.Connection(target)) as new,
            new.backup("main", old, "main") as backup,
        ):
            backup.step()


@pytest.mark.parametrize("name", ["sqlite", "file"])
def test_a_store_that_goes_back_under_an_open_task_is_noticed_at_its_next_write(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Nothing more is done, and what is stored can be resumed."""
    url = places.find(name, request).url
    ran: list[str] = []
    went_back = pytest.raises(StoreWentBack, match=r"was at 4 .* and is at 2")
    with limpet.open(url) as store:
        with store.task("report", goal="Report") as task:
            task.step("a", ran.append, "a")
            backup = Backup(url, tmp_path)
            task.step("b", ran.append, "b")
            task.step("c", ran.append, "c")
            backup.restore()
            for more in (
                lambda: task.step("paid", ran.append, "paid", in_doubt="ask"),
                lambda: task.step("d", ran.append, "d"),
                lambda: task.decide("go on"),
                lambda: task.finish("done"),
            ):
                with went_back:
                    more()
        assert ran == ["a", "b", "c"]
        with store.task("report") as task:
            assert list(task.results) == ["a"]
            assert not task.done
            task.step("b", ran.append, "b")
    assert ran == ["a", "b", "c", "b"]


def test_a_step_that_ended_in_a_store_that_went_back_is_recorded_and_the_last(
    tmp_path: Path,
) -> None:
    """It has happened, and is not to happen again; the next is not begun."""
    url = f"sqlite:{tmp_path}/agents.db"
    with limpet.open(url) as store:
        with store.task("report", goal="Report") as task:
            task.step("a", str, "a")
            backup = Backup(url, tmp_path)
            task.step("b", str, "b")
            with pytest.raises(StoreWentBack):
                task.step("c", backup.restore)
        with store.task("report") as task:
            assert list(task.results) == ["a", "c"]
