"""Rules of retention, while others write: what somebody has come back to stays."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import limpet
from limpet.backends.contract import Key
from limpet.erasure.retention import Rule
from limpet.errors import LeaseHeld
from tests.support import places
from tests.support.filled import fill_old
from tests.support.places import Where

where = places.where


def just_before_a_delete(
    store: limpet.Store, act: Callable[[Key], object], patch: pytest.MonkeyPatch
) -> None:
    """Let *act* happen when *store* has looked at a journal and is about to delete it."""

    def delete(key: Key, real: Any = store.backend.delete, **how: Any) -> Any:
        act(key)
        return real(key, **how)

    patch.setattr(store.backend, "delete", delete)


def test_what_is_added_at_the_last_moment_stays(
    where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was acknowledged; and the journal is not old any more."""
    with limpet.open(where.url) as store, limpet.open(where.url) as other:
        fill_old(store, "note", "a")
        store.set_retention("note 1d")
        add = lambda key: other.journal("note", key.id).append(("x", "new"))  # noqa: E731 - a word
        with monkeypatch.context() as patch:
            just_before_a_delete(store, add, patch)
            assert store.apply_retention().count == 0
        assert [entry.body for entry in store.journal("note", "a").read()][1:] == ["new"]
        assert store.apply_retention().count == 0


def test_what_is_taken_up_at_the_last_moment_stays_with_its_results(
    where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that opens a task again finds in it what its steps have put apart."""
    with limpet.open(where.url) as store, limpet.open(where.url) as other:
        for kind in ("task", "task-result"):
            fill_old(store, kind, "t", status="done")
        store.set_retention("task 1d")
        leases = []

        def take(key: Key) -> None:
            if key.kind == "task":
                leases.append(other.backend.acquire(key, "worker", 60))

        with monkeypatch.context() as patch:
            just_before_a_delete(store, take, patch)
            assert store.apply_retention().count == 0
        assert store.apply_retention().count == 0
        (lease,) = leases
        with pytest.raises(LeaseHeld):
            other.backend.acquire(Key("default", "task", "t"), "another", 60)
        assert len(store.journal("task-result", "t").read()) == 1
        store.backend.release(Key("default", "task", "t"), lease)
        assert [one.kind for one in store.apply_retention().journals] == ["task", "task-result"]
        assert store.backend.head(Key("default", "task-result", "t")) is None


def test_what_is_labelled_at_the_last_moment_is_looked_at_again() -> None:
    """To label is no entry, and makes nothing younger: but the rule may not mean it any more."""
    with limpet.open("memory:") as store:
        for id_ in "abc":
            fill_old(store, "note", id_, labels={"hold": "no"})
        store.set_retention("note label:hold=no 1d")
        real = store.backend.delete

        def delete(key: Key, **how: Any) -> Any:
            store.journal("note", "c").append(labels={"hold": "yes"})
            return real(key, **how)

        store.backend.delete = delete  # type: ignore[method-assign]
        assert [one.id for one in store.apply_retention().journals] == ["a", "b"]
        store.backend.delete = real  # type: ignore[method-assign]
        store.set_retention("note 1d")
        assert [one.id for one in store.apply_retention().journals] == ["c"]


@pytest.mark.parametrize("label", ["user=Ada Lovelace", "it's", 'a "b" c', "a\\b", "x=y=z"])
def test_a_rule_is_what_was_set_whatever_its_label(label: str) -> None:
    """Labels have spaces and quotes, and a rule is stored as one line."""
    rule = Rule("conversation", 3600, label=label)
    with limpet.open("memory:") as store:
        store.set_retention(rule)
        assert store.retention() == [rule]
        store.set_retention(*map(str, store.retention()))
        assert store.retention() == [rule]


@pytest.mark.parametrize(
    "wrong", [Rule("conversation", 0.5), "limpet-audit 1d", "conversation 'label:x 1d", "x", ""]
)
def test_a_rule_that_cannot_hold_is_refused(wrong: Any) -> None:
    """And those that there are stay."""
    with limpet.open("memory:") as store:
        store.set_retention("task 1d")
        with pytest.raises(ValueError, match=r"For example|seconds|no age"):
            store.set_retention(wrong)
        assert [str(rule) for rule in store.retention()] == ["task 1d"]


def test_whoever_writes_while_rules_are_applied_loses_nothing(where: Where) -> None:
    """A journal goes before a message of today, or not at all."""
    ids = [f"n{number:02}" for number in range(24)]
    with limpet.open(where.url) as store, limpet.open(where.url) as other:
        for id_ in ids:
            fill_old(store, "note", id_)
        store.set_retention("note 1d")

        def write(writer: int) -> None:
            for id_ in ids[:: 1 if writer % 2 else -1]:
                other.journal("note", id_).append(("x", writer))

        with ThreadPoolExecutor(5) as pool:
            applying = pool.submit(store.apply_retention)
            list(pool.map(write, range(4)))
            gone = {one.id for one in applying.result().journals}
        for id_ in ids:
            old = [] if id_ in gone else [{"role": "user", "content": "x"}]
            found = [entry.body for entry in store.journal("note", id_).read()]
            assert found[: len(old)] == old
            assert sorted(found[len(old) :]) == [0, 1, 2, 3]
