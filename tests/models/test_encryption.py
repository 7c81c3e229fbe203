"""Encrypted stores, as programs and people use them."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet.backends.contract import Append, Key
from limpet.backends.sqlite.backend import SqliteBackend
from limpet.backends.url import connect
from limpet.core.codec import COMPRESSED
from limpet.crypto.opening import MARKER
from limpet.crypto.sealed import END, Sealed
from limpet.errors import (
    InvalidKeys,
    KeyMissing,
    NotEncrypted,
    StoreExists,
    Tampered,
    Unreadable,
)
from limpet.transfer.backup import backup, restore
from limpet.transfer.copy import copy
from limpet.transfer.salvage import salvage
from tests.support import releases
from tests.support.commands import run
from tests.support.paths import DATA

if TYPE_CHECKING:
    from limpet import Keys, Store

SECRET = "Ada's-secret-7f3a"  # noqa: S105 - what must not be found anywhere


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of its own, with a place for indexes in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIMPET_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LIMPET_KEYS", raising=False)
    return tmp_path


@pytest.fixture
def keys(here: Path) -> Keys:
    """New ones, in the file keys."""
    limpet.Keys.generate().save("keys")
    return limpet.Keys.load("keys")


def use_every_model(store: Store) -> None:
    """Write the secret wherever content goes."""
    chat = store.conversation("alice")
    chat.append({"role": "user", "content": f"I am {SECRET}"})
    chat.append({"role": "assistant", "content": f"{SECRET} " * 400})
    chat.pin(1)
    store.state("settings").save({"who": SECRET})
    store.state("settings").save({"who": SECRET, "more": [SECRET]})
    with store.task("report", f"Write about {SECRET}") as task:
        assert task.step("look", lambda: {"found": SECRET}) == {"found": SECRET}
        task.step("large", lambda: SECRET * 10_000)
        task.finish(SECRET)
    store.memory("acme").remember(f"Likes {SECRET}")
    assert len(store.memory("acme").recall(SECRET)) == 1
    assert [hit.id for hit in store.search_conversations(SECRET)] == ["alice", "alice"]


def check_every_model(store: Store) -> None:
    """What was written is there."""
    chat = store.conversation("alice")
    assert [m["content"] for m in chat.messages()] == [f"I am {SECRET}", f"{SECRET} " * 400]
    assert [position for position, _ in chat.pinned()] == [1]
    assert store.state("settings").load() == {"who": SECRET, "more": [SECRET]}
    checkpoint = store.task("report").checkpoint()
    assert (checkpoint.goal, checkpoint.outcome) == (f"Write about {SECRET}", SECRET)
    assert len(store.memory("acme").list()) == 1


def files_with(text: str, where: Path) -> list[str]:
    """The files somewhere below *where* that have *text* in them."""
    paths = [path for path in where.rglob("*") if path.is_file() and path.name != "keys"]
    return [path.name for path in paths if text.encode() in path.read_bytes()]


# -- what is in it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["sqlite:agents.db", "file:agents"])
def test_nothing_of_what_is_stored_can_be_read_anywhere(url: str, here: Path, keys: Keys) -> None:
    """Not in the store, not in its log, and not in an index beside it."""
    with limpet.open(url, keys=keys) as store:
        use_every_model(store)
        assert files_with(SECRET, here) == []
    with limpet.open(url, keys="keys") as store:
        check_every_model(store)
    assert files_with(SECRET, here) == []
    assert files_with("alice", here)  # ids are outside


def test_pseudonyms_keep_ids_and_labels_to_those_with_keys(here: Path, keys: Keys) -> None:
    """For who cannot have a name in an id."""
    with limpet.open("agents.db", keys=keys) as store:
        name = keys.pseudonym("ada@example.com")
        chat = store.conversation(name, labels={"customer": keys.pseudonym("Ada Lovelace")})
        chat.append({"role": "user", "content": "Hello"})
        assert [
            one.id
            for one in store.conversations(labels={"customer": keys.pseudonym("Ada Lovelace")})
        ]
    assert files_with("ada@example.com", here) == files_with("Ada Lovelace", here) == []


def test_an_async_store_is_encrypted_as_well(here: Path, keys: Keys) -> None:
    """Also where many tasks write at the same time."""

    async def write() -> list[int]:
        async with limpet.open_async("agents.db", keys=keys) as store:
            chats = [store.conversation(f"c{number % 3}") for number in range(30)]
            done = [chat.append({"role": "user", "content": SECRET}) for chat in chats]
            return list(await asyncio.gather(*done))

    assert sorted(asyncio.run(write())) == sorted(list(range(1, 11)) * 3)
    assert files_with(SECRET, here) == []
    with limpet.open("agents.db", keys=keys) as store:
        assert [len(store.conversation(f"c{number}").messages()) for number in range(3)] == [10] * 3


def test_rows_of_ones_own_go_with_an_encrypted_record(keys: Keys) -> None:
    """In one transaction, as without encryption; the rows are the program's affair."""
    with limpet.open("agents.db", keys=keys) as store:
        with store.task("pay", "Pay") as task:

            def pay(connection: Any) -> str:
                connection.execute("CREATE TABLE paid (what)")
                connection.execute("INSERT INTO paid VALUES ('it')")
                return SECRET

            assert task.transaction("pay", pay) == SECRET
        with store.task("pay") as task:
            assert task.transaction("pay", pay) == SECRET  # it was done, and recorded


def test_compression_can_be_off(keys: Keys) -> None:
    """Where what is stored is partly a stranger's, sizes can tell what is in it."""
    body = {"role": "user", "content": "a" * 20_000}
    sizes = {}
    for name, codec in (("on", None), ("off", limpet.Codec(compress_over=None))):
        with limpet.open(f"{name}.db", keys=keys, codec=codec) as store:
            store.conversation("alice").append(body)
            backend: Any = store.backend
            (record,) = backend.read(Key("default", "conversation", "alice"))
            assert bool(record.body[1] & COMPRESSED) == (name == "on")
            (stored,) = backend.inner.read(Key("default", "conversation", "alice"))
            sizes[name] = len(stored.body)
    assert sizes["on"] < 1_000
    assert sizes["off"] > 20_000


# -- opening it as what it is ----------------------------------------------------------------------


@pytest.mark.parametrize("url", ["sqlite:agents.db", "file:agents"])
def test_an_encrypted_store_is_refused_without_its_keys(url: str, keys: Keys) -> None:
    """When it is opened, by name, whatever one wants to do."""
    with limpet.open(url, keys=keys) as store:
        store.conversation("alice").append({"role": "user", "content": "Hello"})
    for readonly in (False, True):
        with pytest.raises(KeyMissing, match="LIMPET_KEYS"):
            limpet.open(url, readonly=readonly)
        with pytest.raises(KeyMissing):
            limpet.open_async(url, readonly=readonly)
    with pytest.raises(KeyMissing, match="not those of the store"):
        limpet.open(url, keys=limpet.Keys.generate())
    with pytest.raises(KeyMissing, match="under key 1"):
        limpet.open(url, keys=limpet.Keys({2: b"2" * 32}))


def test_a_plain_store_is_refused_with_keys(keys: Keys) -> None:
    """Nothing is written to it; it stays what it is."""
    with limpet.open("agents.db") as store:
        store.conversation("alice").append({"role": "user", "content": "Hello"})
    for readonly in (False, True):
        with pytest.raises(NotEncrypted, match="limpet copy"):
            limpet.open("agents.db", keys=keys, readonly=readonly)
    with limpet.open("agents.db") as store:
        assert len(store.conversation("alice").messages()) == 1
        assert store.backend.kinds() == [("default", "conversation")]


def test_an_empty_store_becomes_an_encrypted_one(keys: Keys) -> None:
    """Nothing is lost by that, and nobody sees the journal that says so."""
    limpet.open("agents.db").close()
    with limpet.open("agents.db", keys=keys, readonly=True) as store:
        assert list(store.conversations()) == []
    with limpet.open("agents.db", keys=keys) as store:
        assert store.backend.kinds() == []
        assert isinstance(store.backend, Sealed)
    with pytest.raises(KeyMissing):
        limpet.open("agents.db")


def test_a_plain_record_in_an_encrypted_store_is_refused(keys: Keys) -> None:
    """Somebody has written to it without keys, past everything that keeps people from that."""
    with limpet.open("agents.db", keys=keys) as store:
        store.conversation("alice").append({"role": "user", "content": "Hello"})
    raw = SqliteBackend("agents.db")
    body = limpet.Codec().encode([("message", {"role": "user", "content": "forged"})])
    raw.append(Append(key=Key("default", "conversation", "alice"), body=body, count=1))
    raw.append(Append(key=Key("default", "conversation", "bob"), body=body, count=1))
    raw.close()
    with limpet.open("agents.db", keys=keys) as store:
        for name in ("alice", "bob"):
            with pytest.raises(NotEncrypted, match="is not encrypted"):
                store.conversation(name).messages()
            with pytest.raises(NotEncrypted):
                store.conversation(name).append({"role": "user", "content": "more"})


def test_a_sealed_body_in_a_plain_store_is_named() -> None:
    """As what it is, not as damage."""
    with limpet.open("sealed.db", keys=limpet.Keys({1: b"1" * 32})) as store:
        store.conversation("alice").append({"role": "user", "content": "Hello"})
        backend: Any = store.backend
        key = Key("default", "conversation", "alice")
        (record,) = backend.inner.read(key)
    with limpet.open("plain.db") as store:
        store.backend.append(Append(key=key, body=record.body, count=1))
        with pytest.raises(KeyMissing, match="encrypted"):
            store.conversation("alice").messages()


def test_the_environment_names_keys_for_every_way_to_open(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not for a store of this process alone."""
    monkeypatch.setenv("LIMPET_KEYS", "keys")
    for store in (limpet.open("agents.db"), limpet.open("agents.db", tenant="acme")):
        with store:
            assert isinstance(store.backend, Sealed)
    with limpet.open("memory:") as store:
        assert not isinstance(store.backend, Sealed)
    with limpet.open("memory:", keys=keys) as store:
        use_every_model(store)
        check_every_model(store)
    monkeypatch.setenv("LIMPET_KEYS", "nowhere")
    with pytest.raises(InvalidKeys, match="nowhere"):
        limpet.open("agents.db")


def test_a_changed_marker_is_noticed(keys: Keys) -> None:
    """It is sealed as everything else."""
    limpet.open("agents.db", keys=keys).close()
    raw = SqliteBackend("agents.db")
    head = raw.head(MARKER)
    assert head is not None
    raw.rewrite(MARKER, {}, expect=head.expect, note=b"another")
    raw.close()
    with pytest.raises(KeyMissing):
        limpet.open("agents.db", keys=keys)


@pytest.mark.parametrize("release", sorted(DATA.glob("encrypted-*.db")))
def test_what_an_older_release_encrypted_can_be_read(release: Path) -> None:
    """With its notes where they were then; what is added has them where they are now."""
    shutil.copy(release, "agents.db")
    with limpet.open("agents.db", tenant="acme", keys=releases.KEYS) as store:
        chat = store.conversation("alice")
        assert [message["role"] for message in chat.messages()] == [
            *("system", "user", "assistant", "tool")
        ]
        assert [entry.body for entry in store.journal("note", "cut").read()] == list(range(10, 40))
        assert store.task("done-1").checkpoint().results == {"only": "result"}
        assert chat.append({"role": "user", "content": "more"}) == 5
        key = Key("acme", "conversation", "alice")
        backend: Any = store.backend
        head = backend.inner.head(key)
        assert (END in head.labels, head.note is None) == (False, False)
    with limpet.open("agents.db", tenant="acme", keys=releases.KEYS) as store:
        assert len(store.conversation("alice").messages()) == 5
        store.conversation("alice").append({"role": "user", "content": "and more"})


@pytest.mark.parametrize("release", sorted(DATA.glob("encrypted-*.db")))
def test_a_cut_in_what_an_older_release_encrypted_is_noticed(release: Path) -> None:
    """As ever."""
    shutil.copy(release, "agents.db")
    SqliteBackend("agents.db").close()  # which brings it up to date
    database = sqlite3.connect("agents.db")
    database.execute("DELETE FROM limpet_index WHERE seq = 40")
    database.execute("DELETE FROM limpet_index_recent WHERE seq = 40")
    database.execute("DELETE FROM limpet_records WHERE seq = 40")
    database.commit()
    database.close()
    with limpet.open("agents.db", tenant="acme", keys=releases.KEYS) as store:
        with pytest.raises(Tampered, match="ends at 39, and was at 40"):
            store.journal("note", "cut").read()
        assert len(store.conversation("alice").messages()) == 4


# -- whole stores ----------------------------------------------------------------------------------


def copied(source: Store, target: Store) -> None:
    """Copy all of it."""
    found = list(copy(source.backend, target.backend))
    assert found
    assert [one.why for one in found if not one.ok] == []


@pytest.mark.parametrize("target", ["sqlite:new.db", "file:new"])
def test_what_is_copied_without_keys_has_its_notes(target: str, keys: Keys) -> None:
    """As a backup is made, journal by journal, where a store has no such moment; and goes on."""
    with limpet.open("agents.db", keys=keys) as store:
        use_every_model(store)
        store.journal("note", "cut").append(*[("n", number) for number in range(40)])
        store.journal("note", "cut").compact(41)
    for number in range(2):
        with closing(SqliteBackend("agents.db")) as raw, closing(connect(target)) as new:
            found = list(copy(raw, new))
            assert [one.why for one in found if not one.ok] == []
        with limpet.open(target, keys=keys) as copied_store:
            check_every_model(copied_store)
            assert copied_store.journal("note", "cut").read() == []
        with limpet.open("agents.db", keys=keys) as store:
            store.journal("note", "more").append(("n", number))


@pytest.mark.parametrize("target", ["sqlite:new.db", "file:new"])
def test_a_copy_is_encrypted_anew(target: str, here: Path, keys: Keys) -> None:
    """Under data keys of its own, and under other keys if that is asked for."""
    others = limpet.Keys.generate()
    with limpet.open("agents.db", keys=keys) as store, limpet.open(target, keys=others) as new:
        use_every_model(store)
        store.journal("note", "cut").append(*[("n", number) for number in range(40)])
        store.journal("note", "cut").compact(30)
        copied(store, new)
        copied(store, new)  # and finds it complete
    with limpet.open(target, keys=others) as new:
        check_every_model(new)
        assert [entry.body for entry in new.journal("note", "cut").read()][-1] == 39
        assert new.conversation("alice").append({"role": "user", "content": "more"}) == 4
    assert files_with(SECRET, here) == []
    with pytest.raises(KeyMissing):
        limpet.open(target, keys=keys)


def test_a_plain_store_is_copied_into_an_encrypted_one_and_back(
    here: Path, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command; back only where that is said."""
    with limpet.open("plain.db") as store:
        use_every_model(store)
    monkeypatch.setenv("LIMPET_KEYS", "keys")
    run("copy", "plain.db", "new/encrypted.db")
    assert files_with(SECRET, here / "new") == []
    with limpet.open("new/encrypted.db") as store:
        check_every_model(store)
    run("copy", "new/encrypted.db", "back.db", "--decrypt")
    monkeypatch.delenv("LIMPET_KEYS")
    with limpet.open("back.db") as store:
        check_every_model(store)
    result = run("copy", "new/encrypted.db", "other.db", code=1)
    assert "KeyMissing" in result.stderr
    assert not Path("other.db").exists()


def test_a_backup_needs_no_keys_and_is_as_encrypted(here: Path, keys: Keys) -> None:
    """Also of another kind of store; what is restored goes on where it was."""
    with limpet.open("agents.db", keys=keys) as store:
        use_every_model(store)
    for target in ("backup.db", "file:backup"):
        backup("agents.db", target)
        with limpet.open(target, keys=keys, readonly=True) as store:
            check_every_model(store)
        with pytest.raises(KeyMissing):
            limpet.open(target)
    restore("file:backup", "agents.db", replace=True)
    with limpet.open("agents.db", keys=keys) as store:
        check_every_model(store)
        assert store.conversation("alice").append({"role": "user", "content": "more"}) == 4
    with pytest.raises(StoreExists):
        restore("backup.db", "agents.db")
    assert files_with(SECRET, here) == []


def test_forks_of_what_is_encrypted_have_keys_of_their_own(here: Path, keys: Keys) -> None:
    """And go on apart from each other."""
    with limpet.open("agents.db", keys=keys) as store:
        use_every_model(store)
        fork = store.conversation("alice").fork("bob")
        fork.append({"role": "user", "content": "More"})
        assert [len(store.conversation(name).messages()) for name in ("alice", "bob")] == [2, 3]
        backend: Any = store.backend
        wraps = {head.labels["\x1fkey"] for head in backend.inner.heads("default", "conversation")}
        assert len(wraps) == 2
    assert files_with(SECRET, here) == []


def test_an_export_needs_the_keys(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is plain text, as it says; an import is encrypted where the store is."""
    monkeypatch.setenv("LIMPET_KEYS", "keys")
    with limpet.open("agents.db") as store:
        use_every_model(store)
    exported = run("export", "alice", "--store", "agents.db").stdout
    assert SECRET in exported
    Path("chat.json").write_text(json.dumps([{"role": "user", "content": f"imported {SECRET}"}]))
    run("import", "chat.json", "--store", "new.db")
    assert SECRET not in Path("new.db").read_bytes().decode(errors="replace")
    monkeypatch.delenv("LIMPET_KEYS")
    refused = run("export", "alice", "--store", "agents.db", code=1)
    assert "KeyMissing" in refused.stderr


# -- damage ----------------------------------------------------------------------------------------


def damage(seq: int) -> None:
    """Change one byte of a record of alice's, as a disk might."""
    database = sqlite3.connect("agents.db")
    ((record, body),) = database.execute(
        "SELECT record, body FROM limpet_records WHERE seq = ? AND journal ="
        " (SELECT journal FROM limpet_journals WHERE id = 'alice')",
        (seq,),
    )
    changed = body[:40] + bytes([body[40] ^ 1]) + body[41:]
    database.execute("UPDATE limpet_records SET body = ? WHERE record = ?", (changed, record))
    database.commit()
    database.close()


@pytest.fixture
def damaged(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with a conversation of five, the third of which is damaged."""
    monkeypatch.setenv("LIMPET_KEYS", "keys")
    with limpet.open("agents.db") as store:
        for number in range(1, 6):
            store.conversation("alice").append({"role": "user", "content": f"Number {number}"})
        store.conversation("bob").append({"role": "user", "content": "Hello"})
    database = sqlite3.connect("agents.db")
    database.execute("PRAGMA journal_mode=DELETE")
    database.close()
    damage(3)


def test_the_doctor_names_what_is_not_as_it_was_written(damaged: None) -> None:
    """And nothing that is; without keys it says which are missing."""
    report = json.loads(run("doctor", "--store", "agents.db", "--json", code=1).stdout)
    assert [(one["journal"], one["seq"]) for one in report["unreadable"]] == [
        ("conversation/alice", 3)
    ]
    assert {"name": "encryption", "value": "AES-256-GCM, under key 1"}.items() <= next(
        fact for fact in report["facts"] if fact["name"] == "encryption"
    ).items()


def test_what_is_left_of_a_damaged_store_is_salvaged(damaged: None) -> None:
    """Encrypted again; what is lost is named."""
    with limpet.open("new.db") as new:
        found = {one.key.id: one for one in salvage("agents.db", new)}
        assert found["alice"].lost == ((3, 3),)
        texts = [message["content"] for message in new.conversation("alice").messages()]
        assert texts == ["Number 1", "Number 2", "Number 4", "Number 5"]
        assert isinstance(new.backend, Sealed)
    assert files_with("Number", Path("new.db").parent) == []


@pytest.mark.parametrize("note", ["NULL", "x''"])
def test_what_has_lost_its_notes_is_salvaged(damaged: None, note: str) -> None:
    """They say that nothing is missing; what is there is authentic without them."""
    database = sqlite3.connect("agents.db")
    database.execute(
        f"UPDATE limpet_index_recent SET note = {note} WHERE record = 0 AND journal IN"  # noqa: S608
        " (SELECT journal FROM limpet_journals WHERE kind = 'conversation')"
    )
    database.commit()
    database.close()
    with limpet.open("agents.db") as store, pytest.raises(Tampered, match="note"):
        store.conversation("bob").messages()
    with limpet.open("new.db") as new:
        found = {one.key.id: one for one in salvage("agents.db", new)}
        assert found["alice"].lost == ((3, 3),)
        texts = [message["content"] for message in new.conversation("alice").messages()]
        assert texts == ["Number 1", "Number 2", "Number 4", "Number 5"]
        assert len(new.conversation("bob").messages()) == 1


def test_salvage_without_keys_is_refused(damaged: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it would write could not be told from damage."""
    monkeypatch.delenv("LIMPET_KEYS")
    with limpet.open("new.db") as new, pytest.raises(KeyMissing):
        list(salvage("agents.db", new))


def test_a_damaged_record_is_a_typed_error(damaged: None) -> None:
    """Which is damage to whoever looks for damage."""
    with limpet.open("agents.db") as store:
        with pytest.raises(Tampered, match="ends at 3") as caught:
            store.conversation("alice").messages()
        assert isinstance(caught.value, Unreadable)
        assert len(store.conversation("bob").messages()) == 1


# -- the commands ----------------------------------------------------------------------------------


def test_keys_are_rotated_and_retired_by_commands(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What still needs an old key is named, and keeps it from going."""
    monkeypatch.setenv("LIMPET_KEYS", "keys")
    monkeypatch.setenv("LIMPET_URL", "agents.db")
    run("keys", "new")
    with limpet.open("agents.db") as store:
        use_every_model(store)
        run("keys", "new")
        refused = run("keys", "retire", "1", code=1)
        assert "Key 1 is still needed by" in refused.stderr
        assert "conversation/alice" in refused.stderr
        assert "current" in run("keys", "retire", "2", code=1).stderr
        assert json.loads(run("keys", "status", "--json").stdout)["journals"].keys() == {"1"}
        assert "encrypted under key 2" in run("keys", "rotate").stdout
        assert json.loads(run("keys", "status", "--json").stdout)["journals"].keys() == {"2"}
        assert "keys.retired-1" in run("keys", "retire", "1").stdout
        # The program that had it open goes on, and uses the new key.
        check_every_model(store)
        store.conversation("bob").append({"role": "user", "content": "Hello"})
    assert limpet.Keys.load("keys").numbers == [2]
    assert limpet.Keys.load("keys.retired-1").numbers == [1]
    with limpet.open("agents.db") as store:
        check_every_model(store)
        assert len(store.conversation("bob").messages()) == 1


def test_a_key_is_tried_out_before_it_is_the_current_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes to all machines first."""
    run("keys", "new", "keys")
    assert "the current key is 1" in run("keys", "new", "keys", "--spare").stdout
    assert limpet.Keys.load("keys").numbers == [1, 2]
    run("keys", "use", "2", "keys")
    assert limpet.Keys.load("keys").current == 2
    assert "No keys are named" in run("keys", "new", code=1).stderr
    monkeypatch.setenv("LIMPET_KEYS", "1=" + "A" * 43 + "=")
    assert "the keys themselves" in run("keys", "new", code=1).stderr


def test_a_journal_that_cannot_be_rotated_keeps_no_other_from_it(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, and the exit code is 1."""
    monkeypatch.setenv("LIMPET_KEYS", "keys")
    monkeypatch.setenv("LIMPET_URL", "agents.db")
    with limpet.open("agents.db") as store:
        for name in ("alice", "bob"):
            store.conversation(name).append({"role": "user", "content": "Hello"})
    raw = connect("agents.db")
    raw.append(Append(key=Key("default", "conversation", "alice"), labels={"\x1fkey": "AAAA"}))
    raw.close()
    run("keys", "new")
    result = run("keys", "rotate", code=1)
    assert "conversation/alice of tenant default" in result.stdout
    assert "cannot be told" in run("keys", "retire", "1", code=1).stderr
    with limpet.open("agents.db") as store:
        assert len(store.conversation("bob").messages()) == 1


def test_commands_that_need_keys_say_so() -> None:
    """Of a store that is not encrypted."""
    limpet.open("agents.db").close()
    for command in ("status", "rotate"):
        refused = run("keys", command, "--store", "agents.db", code=1)
        assert "LIMPET_KEYS" in refused.stderr


def test_a_sealed_backend_is_as_the_one_within() -> None:
    """It is made of that, and of no URL."""
    with pytest.raises(TypeError):
        Sealed.from_url("memory:")
    backend = Sealed(connect("memory:"), limpet.Keys({1: b"1" * 32}))
    assert (backend.blocks, backend.private, backend.overhead) == (False, True, 52)
