"""Encryption with redaction, erasure, retention and audit: each does what it says, together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import limpet
from limpet.core import audit
from limpet.core.runtime import run_to_end
from limpet.crypto.rotation import rotate, status
from limpet.crypto.sealed import Sealed
from limpet.errors import KeyMissing
from limpet.transfer.backup import backup
from tests.models.test_redaction import everything_in
from tests.support import places
from tests.support.commands import run

if TYPE_CHECKING:
    from pathlib import Path

    from limpet import Store
    from tests.support.places import Where

where = places.where

NAME = "Ada Lovelace"
SECRET = "sk-proj-Zq8vT1mN4xW7cB2kL9dF"  # noqa: S105 - what must be redacted


@pytest.fixture(autouse=True)
def keys_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """New keys, which every command takes; and a place for indexes, in which nothing may be."""
    path = tmp_path / "secret" / "keys"
    path.parent.mkdir()
    limpet.Keys.generate().save(path)
    monkeypatch.setenv("LIMPET_KEYS", str(path))
    monkeypatch.setenv("LIMPET_CACHE", str(tmp_path / "cache"))
    return path


def write_everything(store: Store) -> None:
    """Of every model, with her name and a key of an API's in it."""
    text = f"{NAME} uses {SECRET}"
    chat = store.conversation("team")
    chat.append({"role": "user", "content": text}, {"role": "assistant", "content": "Noted"})
    store.conversation("hers").append({"role": "user", "content": f"I am {NAME}"})
    store.state("settings").save({"who": text, "n": 1})
    store.state("settings").save({"who": text, "n": 2})
    with store.task("report", f"Write about {text}") as task:
        task.step("look", lambda: {"found": text})
        task.finish(text)
    store.memory("facts").remember(text)
    store.memory("facts").remember("The office is in Paris")


def test_everything_works_together_on_every_store(where: Where) -> None:
    """Written, found, forgotten, swept, examined, verified and rotated: with one key in the end."""
    with limpet.open(where.url, redact=["secrets"], audit=True) as store:
        backend = store.backend
        assert isinstance(backend, Sealed)
        write_everything(store)
        assert store.conversation("team").messages()[0]["content"].startswith(f"{NAME} uses [redac")
        assert {hit.id for hit in store.search_conversations(NAME)} == {"team", "hers"}
        assert len(store.memory("facts").recall(NAME)) >= 1

        planned = store.forget(conversation="hers", dry_run=True)
        assert any("limpet keys rotate" in one for one in planned.remains)
        store.forget(conversation="hers")
        done = store.forget(subject=NAME)
        assert len(done.memories["facts"]) == 1
        stays = {one.stays for one in done.mentions}
        assert stays == (
            {None} if backend.rewrites else {"this store cannot change what is stored"}
        )
        found = {hit.id for hit in store.search_conversations(NAME)}
        assert found == (set() if backend.rewrites else {"team"})
        assert [one.text for one in store.memory("facts").list()] == ["The office is in Paris"]
        assert store.conversation("team").messages()[1]["content"] == "Noted"
        assert store.state("settings").load()["n"] == 2
        assert store.task("report").checkpoint().status == "done"

        store.set_retention("note 1s", "task 365d")
        store.as_tenant("other").set_retention("note 1s")
        assert store.apply_retention().count == 0
    # Of DynamoDB Local the doctor says that it is not durable.
    examined = run("doctor", "--store", where.url, code=int(where.name == "dynamodb"))
    assert "all readable" in examined.output
    run("show", "team", "--store", where.url)
    run("audit", "verify", "--store", where.url)
    with limpet.open(where.url, audit=True) as store:
        assert run_to_end(audit.verify(store.scope)).problem is None

    run("keys", "new")
    before = json.loads(run("keys", "status", "--json", "--store", where.url).stdout)
    run("keys", "rotate", "--store", where.url)
    after = json.loads(run("keys", "status", "--json", "--store", where.url).stdout)
    assert (list(before["journals"]), list(after["journals"])) == (["1"], ["2"])
    # Also what stores keep for themselves, of every tenant: acts, rules, and that it is encrypted.
    own = {("default", "limpet-audit"), ("default", "limpet-retention")}
    own |= {("other", "limpet-retention"), ("limpet", "limpet-encryption")}
    with limpet.open(where.url) as store:
        backend = store.backend
        assert isinstance(backend, Sealed)
        assert own <= set(backend.inner.kinds())
        counted = sum(len(list(backend.inner.heads(*one))) for one in backend.inner.kinds())
        assert status(backend).journals == {2: counted} == {2: after["journals"]["2"]}
    run("keys", "retire", "1", "--store", where.url)
    run("audit", "verify", "--store", where.url)
    with limpet.open(where.url) as store:
        assert run_to_end(audit.verify(store.scope)).acts > 1
        assert [str(rule) for rule in store.retention()] == ["note 1s", "task 365d"]


@pytest.mark.parametrize("url", ["sqlite:{}/agents.db", "file:{}/agents"])
def test_a_backup_from_before_ends_with_the_key_that_it_was_made_under(
    url: str, tmp_path: Path, keys_file: Path
) -> None:
    """Until then whoever has that key reads there what was forgotten; afterwards nobody."""
    live, kept = tmp_path / "live", tmp_path / "kept"
    live.mkdir()
    kept.mkdir()
    with limpet.open(url.format(live), redact=["secrets"]) as store:
        write_everything(store)
        store.search_conversations(NAME)
        store.memory("facts").recall(NAME)
    target = url.format(kept)
    backup(url.format(live), target)
    with limpet.open(url.format(live)) as store:
        receipt = store.forget(subject=NAME).receipt()
        store.forget(conversation="hers")
    assert any("rotate" in one for one in receipt["remains"])
    for place in (live, kept, tmp_path / "cache"):
        there = everything_in(place)
        assert NAME.encode() not in there
        assert SECRET.encode() not in there

    with limpet.open(target, readonly=True) as store:  # a backup has its data keys with it
        assert store.conversation("hers").messages()[0]["content"] == f"I am {NAME}"
    run("keys", "new")
    run("keys", "rotate", "--store", url.format(live))
    run("keys", "retire", "1", "--store", url.format(live))
    (keys_file.parent / "keys.retired-1").unlink()
    with pytest.raises(KeyMissing, match="encrypted under key 1, and there is only 2"):
        limpet.open(target, readonly=True)
    with limpet.open(url.format(live)) as store:
        assert store.conversation("team").messages()[0]["content"] == "[forgotten]"


def test_a_deleted_journal_leaves_no_data_key(tmp_path: Path) -> None:
    """It is in the head, and goes with it: out of the file, too."""
    path = tmp_path / "agents.db"
    with limpet.open(path) as store:
        backend = store.backend
        assert isinstance(backend, Sealed)
        store.conversation("hers").append({"role": "user", "content": "Hello"})
        store.conversation("other").append({"role": "user", "content": "Hello"})
        (head,) = [
            one for one in backend.inner.heads("default", "conversation") if one.key.id == "hers"
        ]
        wrapped = head.labels["\x1fkey"].encode()
        assert wrapped in everything_in(tmp_path)
        assert store.forget(conversation="hers").scrubbed
        assert wrapped not in everything_in(tmp_path)


def test_rotation_goes_over_every_tenant_and_kind(tmp_path: Path, keys_file: Path) -> None:
    """One that was forgotten would be lost with the old key."""
    with limpet.open(tmp_path / "agents.db", audit=True) as store:
        for tenant in ("a", "b"):
            one = store.as_tenant(tenant)
            one.conversation("c").append({"role": "user", "content": "x"})
            one.set_retention("task 30d")
            run_to_end(audit.begin(one.scope, via="test", who=None))
    limpet.Keys.load(keys_file).with_new().save(keys_file)
    with limpet.open(tmp_path / "agents.db") as store:
        backend = store.backend
        assert isinstance(backend, Sealed)
        assert rotate(backend).rewrapped == 8  # three of each tenant, acts of ours, the marker
