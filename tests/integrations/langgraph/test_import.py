"""``limpet import langgraph:…``: threads of SqliteSaver and PostgresSaver live on in a store."""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
import subprocess
import sys
import tracemalloc
from datetime import date
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from click.testing import CliRunner
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver, ShallowPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver

import limpet
from limpet.backends.contract import Append, Key
from limpet.cli import main
from limpet.integrations.langgraph import LimpetSaver
from limpet.integrations.langgraph.saver import KIND
from tests.support import langgraph_rehearsals as rehearsals
from tests.support.commands import run
from tests.support.langgraph_rehearsals import (
    GRAPHS,
    Colour,
    Invoice,
    chat,
    config,
    everything,
    say,
)
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_MODULE = "tests.support.langgraph_rehearsals"

ALLOW = ["--allow", f"{_MODULE}:Invoice", "--allow", f"{_MODULE}:Colour"]

_names = itertools.count(1)


class Origin:
    """A database that one of LangGraph's own checkpointers writes."""

    def __init__(self, kind: str, place: str) -> None:
        self.kind = kind
        self.place = place

    @property
    def name(self) -> str:
        """What the command calls it."""
        return f"langgraph:{self.place}"

    def saver(self) -> AbstractContextManager[Any]:
        """The checkpointer."""
        kind: Any = SqliteSaver if self.kind == "sqlite" else PostgresSaver
        opened: AbstractContextManager[Any] = kind.from_conn_string(self.place)
        return opened


def postgresql(request: pytest.FixtureRequest, *, setup: bool = True) -> Origin:
    """A new database on the server, with the tables of PostgresSaver."""
    server = request.getfixturevalue("postgresql_server")
    name = f"langgraph_{next(_names)}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    made = Origin("postgresql", server.url().removesuffix("/postgres") + f"/{name}")
    if setup:
        with made.saver() as saver:
            saver.setup()
    return made


def shallow(url: str) -> AbstractContextManager[Any]:
    """The saver that keeps one checkpoint of each thread."""
    return ShallowPostgresSaver.from_conn_string(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def origin(request: pytest.FixtureRequest, tmp_path: Path) -> Origin:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return Origin("sqlite", str(tmp_path / "checkpoints.sqlite"))
    return postgresql(request)


@pytest.mark.parametrize("name", GRAPHS)
def test_every_state_of_the_past_is_as_it_was_and_the_graph_goes_on(
    origin: Origin, name: str, tmp_path: Path
) -> None:
    """Who moves loses nothing: no state, no question to a person, no fork."""
    rehearsal = GRAPHS[name]
    with origin.saver() as saver:
        graph = rehearsal.build(saver)
        rehearsal.before(graph)
        before = everything(graph)
    target = str(tmp_path / "agents.db")
    allow = ALLOW if name == "types" else []
    run("import", origin.name, "--store", target, *allow)
    with LimpetSaver(target, allow=[Invoice, Colour]) as saver:
        graph = rehearsal.build(saver)
        assert everything(graph) == before
        rehearsal.after(graph)


def fill(saver: Any, thread: str = "alice", *texts: str) -> None:
    """Have a chat."""
    graph = chat(saver)
    for text in texts or ("one", "two"):
        say(graph, text, thread)


def history(target: str, thread: str = "alice") -> list[Any]:
    """All states of a chat in a store."""
    with LimpetSaver(target) as saver:
        return everything(chat(saver), thread)


def entries(target: str, thread: str = "alice") -> int:
    """How many entries a thread has in a store."""
    with limpet.open(target, create=False, readonly=True) as store:
        head = store.backend.head(Key("default", KIND, thread))
        return 0 if head is None else head.seq


@pytest.fixture
def target(tmp_path: Path) -> str:
    """Where there is no store yet."""
    return str(tmp_path / "agents.db")


@pytest.mark.parametrize("name", ["interrupts", "sends", "subgraphs"])
def test_writes_keep_the_paths_and_the_indexes_of_their_tasks(
    tmp_path: Path, target: str, name: str
) -> None:
    """By them LangGraph orders the writes of a step, and knows one that is made again."""
    origin = Origin("sqlite", str(tmp_path / "checkpoints.sqlite"))
    with origin.saver() as saver:
        GRAPHS[name].before(GRAPHS[name].build(saver))
        columns = "checkpoint_ns, checkpoint_id, task_path, task_id, idx, channel"
        before = set(saver.conn.execute(f"SELECT {columns} FROM writes"))  # noqa: S608 - from above
    run("import", origin.name, "--store", target)
    with LimpetSaver(target) as saver:
        saver.get_tuple(config())
        (thread,) = saver._threads.values()
        assert {
            (node.ns, node.id, write.path, write.task, write.index, write.channel)
            for node in thread.log.all_nodes()
            for write in thread.log.pending(node)
        } == before


def test_a_gap_that_an_interrupt_has_left_between_writes_is_kept(
    tmp_path: Path, target: str
) -> None:
    """Otherwise what the task writes when it is run again would be there twice."""
    origin = Origin("sqlite", str(tmp_path / "checkpoints.sqlite"))
    writes = [("a", 1), ("__interrupt__", "x"), ("__interrupt__", "x"), ("b", 2), ("c", 3)]
    task = "00000000-0000-0000-0000-000000000001"
    with origin.saver() as saver:
        at = saver.put(config(checkpoint_ns=""), empty_checkpoint(), {}, {})
        saver.put_writes(at, writes, task, "path")
    run("import", origin.name, "--store", target)
    with LimpetSaver(target) as saver:
        saver.put_writes(at, writes, task, "path")
        (found,) = saver.list(config())
    pending = found.pending_writes or []
    assert [write[1] for write in pending] == ["__interrupt__", "a", "b", "c"]


# -- going on ------------------------------------------------------------------------------------

_DIES = """
import os, signal, sys
from limpet.backends.sqlite.backend import SqliteBackend
from limpet.cli import main

left, append = int(sys.argv[1]), SqliteBackend.append

def dying(self, request):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.Signals[sys.argv[2]])
    return append(self, request)

SqliteBackend.append = dying
main(sys.argv[3:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("signal_", ["SIGKILL", "SIGINT"])
def test_an_import_that_was_ended_in_the_middle_goes_on_and_does_nothing_twice(
    tmp_path: Path, target: str, signal_: str
) -> None:
    """Who imports for hours may close the lid of the laptop."""
    origin = Origin("sqlite", str(tmp_path / "checkpoints.sqlite"))
    with origin.saver() as saver:
        fill(saver, "alice")
        fill(saver, "bob", "three")
        before = {thread: everything(chat(saver), thread) for thread in ("alice", "bob")}
    whole = str(tmp_path / "whole.db")
    run("import", origin.name, "--store", whole)
    for at in (1, 2, 3, 5, 5, 30):  # of what is left each time
        command = [sys.executable, "-c", _DIES, str(at), signal_]
        command += ["import", origin.name, "--store", target]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
        assert done.returncode in (0, 1, -9), done.stderr
    run("import", origin.name, "--store", target)
    for thread, states in before.items():
        assert history(target, thread) == states
        assert entries(target, thread) == entries(whole, thread)
    again = run("import", origin.name, "--store", target).output
    assert again.startswith("threads: 2 there already. 0 checkpoints, 0 pending writes stored;")


def test_what_came_to_the_source_since_is_imported_by_another_run(
    origin: Origin, target: str
) -> None:
    """The program may go on until the day it is switched over."""
    rehearsal = GRAPHS["interrupts"]
    with origin.saver() as saver:
        graph = rehearsal.build(saver)
        rehearsal.before(graph)
        run("import", origin.name, "--store", target)
        rehearsal.after(graph)
        before = everything(graph)
    said = run("import", origin.name, "--store", target).output
    assert said.startswith("threads: 1 finished.")
    with LimpetSaver(target) as saver:
        assert everything(rehearsal.build(saver)) == before
    assert run("import", origin.name, "--store", target).output.startswith("threads: 1 there alr")


def test_writes_that_came_to_a_task_since_are_added_to_those_it_had(
    tmp_path: Path, target: str
) -> None:
    """A checkpoint is imported while a step is under way: what its tasks write comes later."""
    origin = Origin("sqlite", str(tmp_path / "checkpoints.sqlite"))
    task = "00000000-0000-0000-0000-00000000000"
    with origin.saver() as saver:
        at = saver.put(config(checkpoint_ns=""), empty_checkpoint(), {}, {})
        saver.put_writes(at, [("a", 1)], f"{task}1", "path")
        run("import", origin.name, "--store", target)
        saver.put_writes(at, [("a", 1), ("b", {"x"}), ("c", 3)], f"{task}1", "path")
        saver.put_writes(at, [("__interrupt__", "x")], f"{task}1", "path")
        saver.put_writes(at, [("a", 4)], f"{task}2", "path")
        (before,) = saver.list(config())
    said = run("import", origin.name, "--store", target).output
    assert said.startswith("threads: 1 finished. 0 checkpoints, 4 pending writes stored;")
    with LimpetSaver(target) as saver:
        (found,) = saver.list(config())
    assert found == before
    assert len(found.pending_writes or ()) == 5


def test_a_thread_that_has_gone_on_in_the_store_is_left_alone(origin: Origin, target: str) -> None:
    """After the switch, nothing of the old database comes back."""
    with origin.saver() as saver:
        fill(saver, "alice")
        fill(saver, "bob")
    run("import", origin.name, "--store", target)
    with LimpetSaver(target) as saver:
        fill(saver, "alice", "three")
    before = history(target)
    said = run("import", origin.name, "--store", target).output
    assert "1 there already, 1 there already, and continued since." in said
    assert "Continued here since they were imported, and left alone:\n  thread/alice\n" in said
    with origin.saver() as saver:
        fill(saver, "alice", "another three")
    said = run("import", origin.name, "--store", target, code=1).output
    assert "thread/alice: It was continued there" in said
    assert history(target) == before


def test_a_thread_that_went_on_in_the_store_before_it_was_marked_is_left_alone(
    origin: Origin, target: str
) -> None:
    """Also where the last run was ended before it had noted that the thread was done."""
    rehearsal = GRAPHS["interrupts"]
    with origin.saver() as saver:
        rehearsal.before(rehearsal.build(saver))
    run("import", origin.name, "--store", target)
    with limpet.open(target) as store:
        key = Key("default", KIND, "alice")
        store.backend.append(Append(key=key, labels={"imported": None}))
    with LimpetSaver(target) as saver:
        rehearsal.after(rehearsal.build(saver))
    assert "continued since" in run("import", origin.name, "--store", target).output


def test_another_thread_of_that_id_is_refused_and_the_others_are_imported(
    origin: Origin, target: str
) -> None:
    """Two databases have a thread "alice" each: neither is overwritten."""
    with LimpetSaver(target) as saver:
        fill(saver, "alice", "somebody else")
    before = history(target)
    with origin.saver() as saver:
        fill(saver, "alice")
        fill(saver, "bob")
        states = everything(chat(saver), "bob")
    said = run("import", origin.name, "--store", target, code=1).output
    assert "threads: 1 imported, 1 left alone." in said
    assert "thread/alice: It was continued there" in said
    assert history(target) == before
    assert history(target, "bob") == states


def test_a_thread_that_differs_in_one_value_is_refused(tmp_path: Path, target: str) -> None:
    """The ids are the same and what is stored is not: somebody has edited the database."""
    origin = Origin("sqlite", str(tmp_path / "checkpoints.sqlite"))
    with origin.saver() as saver:
        fill(saver)
    run("import", origin.name, "--store", target)
    before = history(target)
    with sqlite3.connect(origin.place) as connection:
        connection.execute("UPDATE checkpoints SET metadata = json_set(metadata, '$.step', 77)")
        connection.execute("DELETE FROM writes WHERE idx = 2")
    connection.close()
    said = run("import", origin.name, "--store", target, code=1).output
    assert re.search(r"thread/alice: It has another checkpoint \S+ \(metadata step\)", said)
    assert history(target) == before


# -- the newest only -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["chat", "interrupts", "subgraphs", "sends", "deltas"])
def test_with_newest_a_thread_has_its_present_and_goes_on(
    origin: Origin, name: str, target: str
) -> None:
    """Where nobody travels in time, the past need not move."""
    rehearsal = GRAPHS[name]
    with origin.saver() as saver:
        graph = rehearsal.build(saver)
        rehearsal.before(graph)
        before = graph.get_state(config(), subgraphs=True)
        count = len(list(graph.get_state_history(config())))
    run("import", origin.name, "--store", target, "--newest")
    with LimpetSaver(target) as saver:
        graph = rehearsal.build(saver)
        assert graph.get_state(config(), subgraphs=True) == before
        assert len(list(graph.get_state_history(config()))) < count
    again = run("import", origin.name, "--store", target, "--newest").output
    assert again.startswith("threads: 1 there already.")
    said = run("import", origin.name, "--store", target, code=1).output
    assert "thread/alice: It has newer checkpoints without the older ones" in said
    with LimpetSaver(target) as saver:
        if name == "chat":
            assert say(rehearsal.build(saver), "four")["messages"][-1].content == "You said four."
        else:
            rehearsal.after(rehearsal.build(saver))


def test_newest_of_what_was_imported_whole_adds_nothing(origin: Origin, target: str) -> None:
    """All has the newest in it."""
    with origin.saver() as saver:
        fill(saver)
    run("import", origin.name, "--store", target)
    said = run("import", origin.name, "--store", target, "--newest").output
    assert said.startswith("threads: 1 there already.")


def test_with_newest_the_calls_of_subgraphs_that_are_over_stay_behind(
    origin: Origin, target: str
) -> None:
    """A thread of a thousand turns has called its subgraphs a thousand times."""
    rehearsal = GRAPHS["subgraphs"]
    with origin.saver() as saver:
        rehearsal.before(rehearsal.build(saver))
        spaces = {one.config["configurable"]["checkpoint_ns"] for one in saver.list(config())}
    run("import", origin.name, "--store", target, "--newest")
    with LimpetSaver(target) as saver:
        found = [one.config["configurable"]["checkpoint_ns"] for one in saver.list(config())]
    assert len(found) == len(set(found))
    assert len([ns for ns in spaces if ":" in ns]) == 2
    assert len([ns for ns in found if ":" in ns]) == 1
    assert {"", "keeper"} <= set(found)


# -- what cannot be had ----------------------------------------------------------------------------


def test_types_that_are_not_allowed_are_named_and_nothing_of_the_thread_is_written(
    origin: Origin, target: str
) -> None:
    """A database is not to run what somebody has put into it; and half a thread helps nobody."""
    with origin.saver() as saver:
        fill(saver, "bob")
        GRAPHS["types"].before(GRAPHS["types"].build(saver))
    said = run("import", origin.name, "--store", target, code=1).output
    module = "tests.support.langgraph_rehearsals"
    assert said.startswith("threads: 1 imported, 1 not imported.")
    assert f"  thread/alice: {module}:Colour, {module}:Invoice\n" in said
    assert f"  --allow {module}:Colour --allow {module}:Invoice\n" in said
    assert entries(target, "alice") == 0
    assert entries(target, "bob")
    # Of an object that is allowed, a part may not be.
    said = run("import", origin.name, "--store", target, *ALLOW[:2], code=1).output
    assert f"  --allow {module}:Colour\n" in said
    assert entries(target, "alice") == 0
    run("import", origin.name, "--store", target, *ALLOW)
    assert entries(target, "alice")


def test_an_object_that_cannot_be_made_again_is_named(
    origin: Origin, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LangGraph gives a dict in its place, also within another object, and says nothing."""
    with origin.saver() as saver:
        GRAPHS["types"].before(GRAPHS["types"].build(saver))
    # As a program has it in which a colour was renamed since.
    monkeypatch.setattr(rehearsals, "Colour", Enum("Colour", {"RED": "rouge"}))
    said = run("import", origin.name, "--store", target, *ALLOW, code=1).output
    assert f"thread/alice: Stored {_MODULE}:Colour cannot be made again" in said
    assert entries(target) == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("checkpoint = NULL", "The row of checkpoint {id} is NULL."),
        ("type = NULL", "The row of checkpoint {id} has no type."),
        ("checkpoint = X'c1ff00'", "The row of checkpoint {id} cannot be decoded (ValueError"),
        ("checkpoint = X'01'", "What is stored as checkpoint {id} is not that checkpoint."),
        (
            """checkpoint = '{"id": "' || checkpoint_id || '"}', type = 'json'""",
            "What is stored as checkpoint {id} is not that checkpoint.",
        ),
        ("metadata = X'7b7b'", "The metadata of checkpoint {id} is not JSON ("),
        ("metadata = '[]'", "The metadata of checkpoint {id} is not an object."),
        ("type = 'pickle'", "The row of checkpoint {id} is a pickle, which can run any code"),
        ("type = 'msgpack+aes'", "The row of checkpoint {id} is encrypted, and the import has"),
    ],
)
def test_a_damaged_row_of_sqlite_is_named_and_the_rest_is_imported(
    tmp_path: Path, target: str, change: str, said: str
) -> None:
    """One bad row is no reason to lose a thread."""
    origin = Origin("sqlite", str(tmp_path / "checkpoints.sqlite"))
    with origin.saver() as saver:
        fill(saver)
        before = list(saver.list(config()))
    bad = before[2]
    connection = sqlite3.connect(origin.place)
    connection.execute(
        f"UPDATE checkpoints SET {change} WHERE checkpoint_id = ?",  # noqa: S608 - from above
        (bad.checkpoint["id"],),
    )
    connection.commit()
    connection.close()
    output = run("import", origin.name, "--store", target, code=1).output
    assert output.startswith("threads: 1 imported. 5 checkpoints, ")
    assert f"  thread/alice: {said.format(id=bad.checkpoint['id'])}" in output
    with LimpetSaver(target) as saver:
        assert list(saver.list(config())) == [one for one in before if one is not bad]
    again = run("import", origin.name, "--store", target, code=1).output
    assert again.startswith("threads: 1 there already. 0 checkpoints, 0 pending writes stored;")


_NEWEST = {
    "checkpoint_blobs": "version = (SELECT max(version) FROM checkpoint_blobs)",
    "checkpoint_writes": "checkpoint_id = (SELECT max(checkpoint_id) FROM checkpoint_writes)",
    "checkpoints": "checkpoint_id = (SELECT max(checkpoint_id) FROM checkpoints)",
}


@pytest.mark.parametrize(
    ("table", "change", "said"),
    [
        (
            "checkpoint_blobs",
            "blob = NULL",
            r"Channel 'messages' of checkpoint \S+ is NULL\.",
        ),
        (
            "checkpoint_blobs",
            r"blob = '\xc1'",
            r"Channel 'messages' of checkpoint \S+ cannot be decoded \(ValueError",
        ),
        (
            "checkpoint_writes",
            r"blob = '\xc1'",
            r"Write 0 of task \S+ on checkpoint \S+ cannot be decoded \(ValueError",
        ),
        (
            "checkpoints",
            "checkpoint = '{}'",
            r"What is stored as checkpoint \S+ is not that checkpoint\.",
        ),
    ],
)
def test_a_damaged_row_of_postgresql_is_named_and_the_rest_is_imported(
    request: pytest.FixtureRequest, target: str, table: str, change: str, said: str
) -> None:
    """As above."""
    origin = postgresql(request)
    with origin.saver() as saver:
        fill(saver, "alice")
        before = list(saver.list(config()))
    with psycopg.connect(origin.place) as connection:
        newest = _NEWEST[table]
        connection.execute(f"UPDATE {table} SET {change} WHERE {newest}")  # noqa: S608 - from above
    output = run("import", origin.name, "--store", target, code=1).output
    assert output.startswith("threads: 1 imported. 5 checkpoints, ")
    found = re.search(rf"  thread/alice: {said}", output)
    assert found, output
    with LimpetSaver(target) as saver:
        kept = list(saver.list(config()))
    assert kept == [one for one in before if one.checkpoint["id"] not in found[0]]


def test_a_thread_of_which_nothing_can_be_read_is_named(tmp_path: Path, target: str) -> None:
    """And the others are imported."""
    origin = Origin("sqlite", str(tmp_path / "checkpoints.sqlite"))
    with origin.saver() as saver:
        fill(saver, "alice")
        fill(saver, "bob")
    connection = sqlite3.connect(origin.place)
    connection.execute("UPDATE checkpoints SET checkpoint = NULL WHERE thread_id = 'alice'")
    connection.commit()
    connection.close()
    said = run("import", origin.name, "--store", target, code=1).output
    assert said.startswith("threads: 1 imported, 1 not imported.")
    assert "  thread/alice: None of its checkpoints can be read.\n" in said


# -- what old versions have written ----------------------------------------------------------------


def test_checkpoints_of_the_first_versions_are_as_their_saver_reads_them(
    tmp_path: Path, target: str
) -> None:
    """JSON in place of MessagePack, numbers for versions, sends within, no table of writes."""
    path = tmp_path / "checkpoints.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE checkpoints (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '',"
        " checkpoint_id TEXT NOT NULL, parent_checkpoint_id TEXT, type TEXT, checkpoint BLOB,"
        " metadata BLOB, PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id))"
    )
    lc2 = {"lc": 2, "type": "constructor"}
    checkpoint = {
        "v": 1,
        "id": "1ef4f797-8335-6428-8001-8a1503f9b875",
        "ts": "2024-07-31T20:14:19.804150+00:00",
        "channel_values": {
            "day": {**lc2, "id": ["datetime", "date"], "args": [2024, 7, 31]},
            "said": "hello",
        },
        "channel_versions": {"day": 2, "said": 3},
        "versions_seen": {"node": {"said": 2}},
        "pending_sends": [{**lc2, "id": ["langgraph", "types", "Send"], "args": ["node", 1]}],
    }
    row = ("alice", "", checkpoint["id"], None, "json", json.dumps(checkpoint))
    metadata = json.dumps({"source": "loop", "step": 1, "writes": {"node": {"said": "hello"}}})
    connection.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, metadata))
    connection.commit()
    connection.close()
    run("import", f"langgraph:{path}", "--store", target)
    with SqliteSaver.from_conn_string(str(path)) as saver:
        (before,) = saver.list(config())
    with LimpetSaver(target) as saver:
        (found,) = saver.list(config())
    assert found.checkpoint == before.checkpoint
    assert found.checkpoint["channel_values"]["day"] == date(2024, 7, 31)
    assert found.metadata == {"source": "loop", "step": 1}


def test_a_type_in_old_json_that_is_not_allowed_is_named(tmp_path: Path, target: str) -> None:
    """Of old, too, nothing is made that is not allowed."""
    origin = Origin("sqlite", str(tmp_path / "checkpoints.sqlite"))
    with origin.saver() as saver:
        fill(saver)
    old = {"lc": 2, "type": "constructor", "id": [*_MODULE.split("."), "Colour"], "args": ["red"]}
    values = {"id": "1", "ts": "", "v": 1, "channel_versions": {}, "versions_seen": {}}
    connection = sqlite3.connect(origin.place)
    connection.execute(
        "INSERT INTO checkpoints VALUES ('bob', '', '1', NULL, 'json', ?, '{}')",
        (json.dumps({**values, "channel_values": {"colour": old}}),),
    )
    connection.commit()
    connection.close()
    said = run("import", origin.name, "--store", target, code=1).output
    assert f"  thread/bob: {_MODULE}:Colour\n" in said
    run("import", origin.name, "--store", target, *ALLOW)
    with LimpetSaver(target, allow=[Colour]) as saver:
        (found,) = saver.list(config("bob"))
    assert found.checkpoint["channel_values"] == {"colour": Colour.RED}


def test_sends_of_old_checkpoints_are_as_postgres_saver_reads_them(
    request: pytest.FixtureRequest, target: str
) -> None:
    """Before version 4 they were writes on the parent, and PostgresSaver puts them in."""
    origin = postgresql(request)
    with origin.saver() as saver:
        GRAPHS["sends"].before(GRAPHS["sends"].build(saver))
        with psycopg.connect(origin.place) as connection:
            connection.execute(
                "UPDATE checkpoints SET checkpoint = checkpoint || '{\"v\": 3}' #- "
                "'{channel_versions,__pregel_tasks}'"
            )
        before = list(saver.list(config()))
    assert any("__pregel_tasks" in one.checkpoint["channel_values"] for one in before)
    run("import", origin.name, "--store", target)
    with LimpetSaver(target) as saver:
        assert list(saver.list(config())) == before


@pytest.mark.filterwarnings("ignore:ShallowPostgresSaver is deprecated")
def test_the_tables_of_the_shallow_saver_are_read(
    request: pytest.FixtureRequest, target: str
) -> None:
    """It has one checkpoint of each thread."""
    origin = postgresql(request, setup=False)
    with shallow(origin.place) as saver:
        saver.setup()
        fill(saver)
        (before,) = saver.list(config())
    run("import", origin.name, "--store", target)
    with LimpetSaver(target) as saver:
        (found,) = saver.list(config())
        assert found.checkpoint == before.checkpoint
        assert found.metadata == before.metadata
        assert found.pending_writes == before.pending_writes
        say(chat(saver), "three")


# -- the source ------------------------------------------------------------------------------------


def test_the_source_is_only_read_and_may_be_in_use(tmp_path: Path, target: str) -> None:
    """Nobody has to stop a program to try an import."""
    origin = Origin("sqlite", str(tmp_path / "checkpoints.sqlite"))
    writer = """
from tests.support.langgraph_rehearsals import chat, say
from langgraph.checkpoint.sqlite import SqliteSaver
import sys
with SqliteSaver.from_conn_string(sys.argv[1]) as saver:
    for text in ("one", "two"):
        say(chat(saver), text)
    saver.conn.execute("BEGIN IMMEDIATE")
    print("written", flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", writer, origin.place]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "written\n"
        names = [origin.place, f"{origin.place}-wal"]
        before = [Path(name).read_bytes() for name in names]
        run("import", origin.name, "--store", target)
        assert [Path(name).read_bytes() for name in names] == before
        child.communicate()
    assert len(history(target)) > 6


def test_a_database_of_a_directory_that_cannot_be_written_is_read(
    tmp_path: Path, target: str
) -> None:
    """A backup may lie where nobody writes."""
    origin = Origin("sqlite", str(tmp_path / "kept" / "checkpoints.sqlite"))
    Path(origin.place).parent.mkdir()
    with origin.saver() as saver:
        fill(saver)
    Path(origin.place).parent.chmod(0o500)
    try:
        run("import", f"langgraph:sqlite:{origin.place}", "--store", target)
    finally:
        Path(origin.place).parent.chmod(0o700)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("langgraph:", "Name the database: langgraph:checkpoints.sqlite, or "),
        ("langgraph:nothing.sqlite", "There is no file nothing.sqlite."),
        ("langgraph:{path}/text", "text is not"),
        ("langgraph:{path}/other.db", "has no table of checkpoints that LangGraph's SqliteSaver"),
        ("langgraph:postgresql://127.0.0.1:1/none", "postgresql://127.0.0.1:1/none cannot be"),
    ],
)
def test_what_is_no_database_of_theirs_is_refused(
    tmp_path: Path, target: str, name: str, said: str
) -> None:
    """An error says what was looked for."""
    (tmp_path / "text").write_text("This is no database, but a text of some length.\n" * 99)
    sqlite3.connect(tmp_path / "other.db").close()
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE mine (id)")
    connection.close()
    done = run("import", name.format(path=tmp_path), "--store", target, code=1)
    assert said in done.output
    assert not Path(target).exists()


def test_a_postgresql_database_without_their_tables_is_refused(
    request: pytest.FixtureRequest, target: str
) -> None:
    """The password in its URL is not shown."""
    origin = postgresql(request, setup=False)
    said = run("import", origin.name, "--store", target, code=1).output
    assert "has no tables of LangGraph's PostgresSaver" in said
    assert "s3cret" not in said


def test_without_its_driver_the_extra_for_postgresql_is_named(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What to install is in the error."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    said = run("import", "langgraph:postgresql://nowhere/x", "--store", target, code=1).output
    assert "[postgres]" in said


@pytest.mark.parametrize(
    "options",
    [
        ["langgraph:x.sqlite", "--as", "state"],
        ["langgraph:x.sqlite", "--id", "x"],
        ["langgraph:x.sqlite", "--salvage"],
        ["-", "--id", "x", "--newest"],
        ["-", "--id", "x", "--allow", "a:b"],
    ],
)
def test_options_of_the_one_are_not_for_the_other(target: str, options: list[str]) -> None:
    """An option that would do nothing is an error."""
    said = run("import", *options, "--store", target, code=2).output
    assert "langgraph:" in said


@pytest.mark.parametrize(
    ("allow", "said"),
    [
        ("Invoice", "--allow names a class as MODULE:NAME, and not 'Invoice'."),
        ("tests.support.nothing:Invoice", "There is no module 'tests.support.nothing'"),
        ("tests.support.langgraph_rehearsals:Bill", "has no class 'Bill'"),
    ],
)
def test_a_class_to_allow_must_be_there(tmp_path: Path, target: str, allow: str, said: str) -> None:
    """Otherwise a typing error looks like a class that was not allowed."""
    origin = Origin("sqlite", str(tmp_path / "checkpoints.sqlite"))
    with origin.saver() as saver:
        fill(saver)
    done = CliRunner().invoke(main, ["import", origin.name, "--store", target, "--allow", allow])
    assert done.exit_code in (1, 2)
    assert said in done.output


# -- what is said ----------------------------------------------------------------------------------


def test_it_says_how_much_smaller_it_became(origin: Origin, target: str) -> None:
    """That is what people move for."""
    with origin.saver() as saver:
        fill(saver, "alice", *(f"{number} {'words ' * 500}" for number in range(20)))
    said = run("import", origin.name, "--store", target).output
    assert re.search(
        r"^size: [\d.]+ [KM]B there, [\d.]+ KB of records here, [\d.]+ times smaller\.$",
        said,
        re.MULTILINE,
    )


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(origin: Origin, target: str) -> None:
    """Everything is read, so that what cannot be had is known before."""
    with origin.saver() as saver:
        fill(saver)
        GRAPHS["types"].before(GRAPHS["types"].build(saver))
    said = run("import", origin.name, "--store", target, "--dry-run", code=1).output
    assert "Nothing was written." in said
    assert not Path(target).exists()


def test_a_dry_run_counts(origin: Origin, target: str) -> None:
    """As above."""
    with origin.saver() as saver:
        fill(saver)
        checkpoints = len(list(saver.list(config())))
    said = run("import", origin.name, "--store", target, "--dry-run").output
    assert said.startswith(f"threads: 1 would be imported. That is {checkpoints} checkpoints, ")


def test_programs_are_told_the_same(origin: Origin, target: str) -> None:
    """With --json."""
    with origin.saver() as saver:
        fill(saver, "bob")
        GRAPHS["types"].before(GRAPHS["types"].build(saver))
        checkpoints = len(list(saver.list(config("bob"))))
    done = run("import", origin.name, "--store", target, "--json", code=1)
    data = json.loads(done.stdout)
    assert data["threads"] == {"new": 1, "failed": 1}
    assert data["checkpoints"] == data["verified"] == checkpoints
    assert data["bytes"]["from"] > data["bytes"]["to"] > 0
    assert data["not_allowed"] == [f"{_MODULE}:Colour", f"{_MODULE}:Invoice"]
    assert [one["thread"] for one in data["problems"]] == ["alice"]
    assert data["ok"] is False


# -- size and shape --------------------------------------------------------------------------------


@pytest.mark.parametrize("thread", ["a/b:c d", "x" * 2000, "ü\n\t", "thread-id:1"])
def test_any_thread_id_is_imported(origin: Origin, target: str, thread: str) -> None:
    """Some programs put an address, or a whole sentence, there."""
    with origin.saver() as saver:
        fill(saver, thread)
        before = everything(chat(saver), thread)
    run("import", origin.name, "--store", target)
    with LimpetSaver(target) as saver:
        assert everything(chat(saver), thread) == before


@pytest.mark.slow
def test_memory_stays_flat_over_a_long_thread(tmp_path: Path, target: str) -> None:
    """A database of many GB is imported on a small machine: messages that are dicts, too."""
    origin = Origin("sqlite", str(tmp_path / "checkpoints.sqlite"))
    with origin.saver() as saver:
        versions: dict[str, Any] = {}
        said: list[dict[str, str]] = []
        parent: Any = config(checkpoint_ns="")
        for number in range(300):
            said.append({"role": "user", "content": f"{number} {'x' * 1000}"})
            versions = {"said": saver.get_next_version(versions.get("said"), None)}
            checkpoint = {**empty_checkpoint(), "channel_values": {"said": said}}
            checkpoint["channel_versions"] = versions
            parent = saver.put(parent, checkpoint, {"step": number}, versions)
    assert Path(origin.place).stat().st_size > 40_000_000
    tracemalloc.start()
    try:
        run("import", origin.name, "--store", target)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12_000_000


@pytest.mark.parametrize("kind", ["file", "postgresql"])
def test_any_store_takes_threads_over(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """Where they come from and where they go has nothing to do with each other."""
    origin = Origin("sqlite", str(tmp_path / "checkpoints.sqlite"))
    with origin.saver() as saver:
        fill(saver)
        before = everything(chat(saver))
    url = f"file:{tmp_path}/journals"
    if kind == "postgresql":
        url = request.getfixturevalue("postgresql_server").place()
    run("import", origin.name, "--store", url)
    assert history(url) == before
    assert run("import", origin.name, "--store", url).output.startswith("threads: 1 there already")
