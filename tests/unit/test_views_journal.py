"""Views of a journal entry by entry, and of a document: what they show, and what they cost."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet.backends.contract import Append
from limpet.core.ids import make_key
from limpet.core.runtime import run_to_end
from limpet.errors import NotFound
from limpet.views.document import at_path, outline
from limpet.views.heads import head_of
from limpet.views.journal import entry_view, journal_page

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from limpet.backends.contract import Record
    from limpet.views.journal import EntryView, JournalPage


@pytest.fixture(params=["{}/agents.db", "file:{}/state", "memory:"], ids=["sqlite", "file", "mem"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[limpet.Store]:
    """A store of each sort: one that splits large appends, one that does not, one in memory."""
    with limpet.open(request.param.format(tmp_path)) as opened:
        yield opened


def page(store: limpet.Store, id_: str = "x", **options: Any) -> JournalPage:
    """A page of entries."""
    scope = store.scope.as_sync()
    return run_to_end(journal_page(scope, run_to_end(head_of(scope, "note", id_)), **options))


def entry(store: limpet.Store, seq: int, id_: str = "x") -> EntryView:
    """One entry."""
    scope = store.scope.as_sync()
    return run_to_end(entry_view(scope, run_to_end(head_of(scope, "note", id_)), seq))


def numbers(found: JournalPage) -> list[int]:
    """Those of the entries on a page."""
    return [one.seq for one in found.entries]


@contextmanager
def counted(store: limpet.Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The reads of a block: to each its records, and the bytes of them."""
    found = [0, 0, 0]
    read = store.backend.read

    def count(*args: Any, **options: Any) -> list[Record]:
        records = read(*args, **options)
        found[0] += 1
        found[1] += len(records)
        found[2] += sum(len(record.body) for record in records)
        return records

    with monkeypatch.context() as patched:
        patched.setattr(store.backend, "read", count)
        yield found


def test_pages_go_backwards_by_number_and_have_every_entry_once(store: limpet.Store) -> None:
    """However many entries lie in one record."""
    journal = store.journal("note", "x")
    journal.append(*(("added", number) for number in range(70)))
    for number in range(30):
        journal.append(("added", number), ("seen", {"n": number}))
    every, before = [], None
    for expected in (50, 50, 30):
        found = page(store, before=before)
        assert len(found.entries) == expected
        every += numbers(found)
        before = found.older
    assert before is None
    assert every == list(range(130, 0, -1))
    assert page(store, before=3).older is None
    assert [(one.type, one.text) for one in page(store, limit=2).entries] == [
        ("seen", '{"n":29}'),
        ("added", "29"),
    ]


def test_a_filter_looks_at_so_many_entries_and_says_where_to_go_on(store: limpet.Store) -> None:
    """Its cost is bounded, whether or not anything fits."""
    journal = store.journal("note", "x")
    journal.append(("rare", "A needle"))
    journal.append(*(("added", f"hay {number}") for number in range(2_500)))
    found = page(store, text="NEEDLE")
    assert (found.entries, found.searched, found.older) == ([], 1_000, 1_502)
    found = page(store, text="needle", before=found.older)
    found = page(store, text="needle", before=found.older)
    assert (numbers(found), found.searched, found.older) == ([1], 501, None)
    assert numbers(page(store, type="rare", before=2)) == [1]
    assert len(page(store, text="hay").entries) == 50
    assert page(store, type="rare", text="hay", before=40).entries == []


def test_the_first_and_the_next_page_cost_the_same_however_long_the_journal(
    store: limpet.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In reads, records and bytes."""
    costs = []
    for id_, length in (("short", 100), ("long", 100_000)):
        journal = store.journal("note", id_)
        for start in range(0, length, 10_000):
            key = make_key(store.tenant, "note", id_)
            portion = min(length, start + 10_000) - start
            bodies = [(1, store.scope.store.codec.encode([("added", "x" * 100)]))] * (portion - 1)
            last = store.scope.store.codec.encode([("added", "x" * 100)])
            if store.backend.splits:
                store.backend.append(Append(key=key, earlier=bodies, body=last, count=1))
            else:
                journal.append(*[("added", "x" * 100)] * portion)
        with counted(store, monkeypatch) as cost:
            older = page(store, id_).older
        with counted(store, monkeypatch) as next_cost:
            assert page(store, id_, before=older).older == (length - 99 if length > 100 else None)
        costs.append((cost, next_cost))
    if store.backend.splits:  # elsewhere these are two records of 10,000 entries each, and no more
        for short, long in zip(*costs, strict=True):
            assert long[0] <= short[0] + 1
            assert long[1] <= short[1] * 1.3
            assert long[2] <= short[2] * 1.3
    else:
        assert max(cost[1] for both in costs for cost in both) <= 4


def test_large_entries_make_a_shorter_page(store: limpet.Store) -> None:
    """What a page reads is bounded in bytes, too; the rest is on the next."""
    journal = store.journal("note", "x")
    texts = [
        f"{number} " + "".join(f"{number * n:x}" for n in range(100_000)) for number in range(20)
    ]
    for text in texts:
        journal.append(("added", text))
    every, before = [], None
    while True:
        found = page(store, before=before)
        every += numbers(found)
        before = found.older
        if before is None:
            break
        assert 0 < len(found.entries) < 20
    assert every == list(range(20, 0, -1))


def test_an_entry_is_shown_whole_with_what_was_stored_with_it() -> None:
    """Its neighbours are those by number; one that is not there is said to be."""
    with limpet.open("memory:") as store:
        journal = store.journal("note", "x")
        journal.append(("added", 1))
        journal.append(("added", {"a": [1]}), ("seen", 2), id="mine")
        found = entry(store, 2)
        assert (found.type, found.body, found.given_id) == ("added", {"a": [1]}, "mine")
        assert (found.first, found.last, found.previous, found.next) == (2, 3, 1, 3)
        assert (entry(store, 1).previous, entry(store, 3).next) == (None, None)
        assert entry(store, 1).given_id is None
        for seq in (0, 4):
            with pytest.raises(NotFound, match=rf"no entry {seq} in note 'x': it has 1 to 3"):
                entry(store, seq)
        journal.compact(before=2)
        with pytest.raises(NotFound, match="it has 2 to 3"):
            entry(store, 1)
        assert numbers(page(store)) == [3, 2]


def test_what_cannot_be_read_is_shown_in_its_place(tmp_path: Path) -> None:
    """The other entries are there; a page never fails for one of them."""
    with limpet.open(tmp_path / "agents.db") as store:
        journal = store.journal("note", "x")
        for number in range(1, 6):
            journal.append(("added", number))
        key = make_key(store.tenant, "note", "x")
        store.backend.append(Append(key=key, body=b"\xffrubbish", count=2))
        journal.append(("added", 8))
        found = page(store)
        assert [(one.first, one.seq, one.type) for one in found.entries[:3]] == [
            (8, 8, "added"),
            (6, 7, ""),
            (5, 5, "added"),
        ]
        assert len(found.entries) == 7
        assert entry(store, 7).damage
        assert entry(store, 7).type == ""


# -- documents -------------------------------------------------------------------------------------


def test_a_document_is_cut_with_the_way_to_the_rest() -> None:
    """Long lists, long texts, and what is deep."""
    document = {"a/b": {"c~d": list(range(250))}, "text": "x" * 3_000, "none": None}
    root = outline(document)
    assert (root.text, [one.key for one in root.inner]) == ("3 keys", ["a/b", "text", "none"])
    inner = root.inner[0].inner[0]
    assert (inner.path, inner.text, len(inner.inner), inner.left) == (
        "/a~1b/c~0d",
        "250 items",
        100,
        150,
    )
    rest = outline(at_path(document, inner.path), inner.path, start=100)
    assert [rest.inner[0].text, rest.inner[0].path, rest.left] == ["100", "/a~1b/c~0d/100", 50]
    assert (len(root.inner[1].text), root.inner[1].cut) == (2_000, 1_000)
    assert (root.inner[2].text, root.inner[2].kind) == ("null", "value")
    with pytest.raises(NotFound):
        at_path(document, "/a~1b/c~0d/250")
    with pytest.raises(NotFound):
        at_path(document, "/text/1/2")


def test_an_outline_is_small_however_large_the_document() -> None:
    """What is near the top comes first."""
    deep: Any = "end"
    for _ in range(300):
        deep = {"in": deep}
    document = {f"key {n}": {"list": [[n] * 50] * 50, "deep": deep} for n in range(50)}

    def size(node: Any) -> int:
        return 1 + sum(map(size, node.inner))

    root = outline(document)
    assert len(root.inner) == 50
    assert size(root) <= 400
