"""Files that were cut off or altered: a typed error or what is left of them, never wrong data."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import limpet
from limpet.backends.contract import Append, Head, Key, Record
from limpet.backends.file import FileBackend, disk
from limpet.backends.file.directory import name_of
from limpet.core.codec import Codec
from limpet.testing.crash import seeded, soak

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

KEY = Key("default", "conversation", "alice")
HASHED = Key("default", "conversation", "Zoë/1")
KEYS = [KEY, HASHED, Key("Acme", "task", "report-42")]

#: Places at which files are cut off, and at which bits are flipped.
EXPERIMENTS = 500

Typed = (limpet.errors.StoreCorrupt, limpet.errors.NotAStore)


class Original:
    """A store with a few journals, and what was in it before anything was damaged."""

    def __init__(self, root: Path) -> None:
        self.root = root
        codec = Codec(compress_over=None)
        body = b""
        backend = FileBackend(str(root), durability="normal")
        for key in KEYS:
            for number in range(12):
                said = {"role": "user", "content": f"{number} é \\ " * (1 + number % 4)}
                body = codec.encode([("message", said)] * (1 + number % 3))
                binary = bytes(range(256)) if number == 5 else body
                request = Append(key=key, body=binary, count=1 + number % 3, id=f"id-{number}")
                backend.append(request)
            backend.append(Append(key=key, status="open", labels={"team": "red"}))
            backend.append(Append(key=key, body=body, count=2))
        backend.compact(HASHED, 4)
        self.records = {key: backend.read(key) for key in KEYS}
        self.heads = {key: backend.head(key) for key in KEYS}
        backend.close()

    def path(self, key: Key, root: Path | None = None) -> Path:
        """The file of a journal, here or in a copy."""
        return (root or self.root) / f"{name_of(key)}.jsonl"

    def copied(self, key: Key, content: bytes) -> FileBackend:
        """The store with another *content* of one journal's file, open."""
        root = self.root.parent / "damaged"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self.root, root)
        self.path(key, root).write_bytes(content)
        return FileBackend(str(root))

    def content(self, key: Key) -> bytes:
        """What is in the file of a journal."""
        return self.path(key).read_bytes()


@pytest.fixture
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the disk: here no power is lost."""
    monkeypatch.setattr(disk, "sync", lambda _: None)
    monkeypatch.setattr(disk, "sync_directory", lambda _: None)


@pytest.fixture
def original(tmp_path: Path) -> Original:
    """A store with a few journals."""
    return Original(tmp_path / "state")


def outcome(call: Callable[[], list[Record] | Head | None]) -> object:
    """What comes of a call, or the kind of its error."""
    try:
        return call()
    except Typed as error:
        return type(error)


def check_others(backend: FileBackend, original: Original, damaged: Key) -> None:
    """What happened to one journal is nothing to the others."""
    for key in KEYS:
        if key != damaged:
            assert backend.read(key) == original.records[key]


def check_repaired(backend: FileBackend, original: Original, key: Key, *, most: int) -> None:
    """After a repair nothing is wrong any more, and at most so many records are missing."""
    backend.repair()
    assert [fact for fact in backend.facts(deep=True) if not fact.ok] == []
    assert backend.repair() == []
    records = backend.read(key)
    assert [record for record in records if record not in original.records[key]] == []
    missing = len(original.records[key]) - len(records)
    assert missing <= most or not records
    gone = {number for first, last in backend.lost(key) for number in range(first, last + 1)}
    kept = {number for r in records for number in range(r.seq - r.count + 1, r.seq + 1)}
    assert not gone & kept
    check_goes_on(backend, key, records)
    check_others(backend, original, key)


def check_goes_on(backend: FileBackend, key: Key, records: list[Record]) -> None:
    """The next append is numbered over all that are there, and can be read with them."""
    done = backend.append(Append(key=key, body=b"new", count=1))
    assert not records or done.seq > records[-1].seq
    assert [record.body for record in backend.read(key)] == [*(r.body for r in records), b"new"]
    assert backend.read(key, reverse=True) == backend.read(key)[::-1]
    backend.compact(key, done.seq)
    assert [record.body for record in backend.read(key)] == [b"new"]


# -- cut off ---------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.usefixtures("_unsynced")
def test_a_file_cut_off_anywhere_gives_what_is_left_or_a_typed_error(original: Original) -> None:
    """A prefix of what was there, to the byte; also after a repair, and after the next append."""
    with seeded() as rng:
        for number in range(EXPERIMENTS * soak()):
            key = rng.choice(KEYS)
            content = original.content(key)
            backend = original.copied(key, content[: rng.randrange(len(content))])
            try:
                found = outcome(lambda: backend.read(key))  # noqa: B023 - called at once
                wanted = original.records[key]
                assert found in Typed or found == wanted[: len(found)]  # type: ignore[arg-type]
                if number % 2:
                    check_repaired(backend, original, key, most=len(wanted))
                elif isinstance(found, list):
                    check_goes_on(backend, key, found)
                    check_others(backend, original, key)
            finally:
                backend.close()


@pytest.mark.parametrize("lines", [0, 0.01, 0.5, 0.999, 1, 1.1])
def test_a_file_without_a_record_is_damaged(original: Original, lines: float) -> None:
    """It comes to be with its first one, or not at all; the first line alone is no journal."""
    content = original.content(KEY)
    backend = original.copied(KEY, content[: int(lines * (content.index(b"\n") + 1))])
    for call in (lambda: backend.read(KEY), lambda: backend.append(Append(key=KEY, count=1))):
        with pytest.raises(limpet.errors.StoreCorrupt, match=r"alice.jsonl, line [12], is damaged"):
            call()
    assert "damaged" in {fact.name for fact in backend.facts(deep=True) if not fact.ok}
    check_repaired(backend, original, KEY, most=20)
    backend.close()


# -- altered ---------------------------------------------------------------------------------------


def flipped(content: bytes, rng: Random, *, bits: int = 1) -> bytes:
    """*content* with other bits at random places."""
    data = bytearray(content)
    for _ in range(bits):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


@pytest.mark.soak
@pytest.mark.usefixtures("_unsynced")
def test_a_flipped_bit_is_noticed_wherever_it_is(original: Original) -> None:
    """By whoever reads there; and a repair costs no more than the lines that it is in."""
    with seeded() as rng:
        for number in range(EXPERIMENTS * soak()):
            key = rng.choice(KEYS)
            backend = original.copied(key, flipped(original.content(key), rng))
            try:
                assert outcome(lambda: backend.read(key, limit=1000)) in Typed  # noqa: B023
                assert outcome(lambda: backend.head(key)) in (  # noqa: B023
                    *Typed,
                    original.heads[key],
                )
                if number % 2:
                    check_others(backend, original, key)
                    check_repaired(backend, original, key, most=2)
            finally:
                backend.close()


@pytest.mark.soak
@pytest.mark.usefixtures("_unsynced")
def test_whatever_is_done_to_a_file_a_repair_leaves_only_what_was_written(
    original: Original,
) -> None:
    """Many bits, sectors of zeros, lines removed, doubled and in another order."""
    with seeded() as rng:
        for _ in range(200 * soak()):
            key = rng.choice(KEYS)
            backend = original.copied(key, worse(original.content(key), rng))
            try:
                outcome(lambda: backend.read(key))  # noqa: B023
                backend.repair()
                assert [fact for fact in backend.facts(deep=True) if not fact.ok] == []
                records = backend.read(key)
                assert [r for r in records if r not in original.records[key]] == []
                check_goes_on(backend, key, records)
                check_others(backend, original, key)
            finally:
                backend.close()


def worse(content: bytes, rng: Random) -> bytes:
    """*content*, treated badly in one of many ways."""
    lines = content.splitlines(keepends=True)
    place = rng.randrange(len(lines))
    start = rng.randrange(len(content))
    match rng.randrange(7):
        case 0:
            return flipped(content, rng, bits=rng.randint(2, 20))
        case 1:
            size = rng.choice([100, 512, 4096])
            return (
                content[:start] + bytes(min(size, len(content) - start)) + content[start + size :]
            )
        case 2:
            del lines[place : place + rng.randint(1, 3)]
        case 3:
            lines[place:place] = rng.choices(lines, k=2)
        case 4:
            rng.shuffle(lines)
        case 5:
            lines[place:place] = [b"<<<<<<< HEAD\n"]
        case _:
            lines = [line.replace(b"\n", b"\r\n") for line in lines]
    return b"".join(lines)


def test_damage_in_the_middle_names_the_file_and_the_line(original: Original) -> None:
    """And says what to do. The end of the journal can be read, and written, all the same."""
    content = original.content(KEY).replace(b'"seq":7,', b'"seq":8,', 1)
    line = content[: content.index(b'"seq":8,')].count(b"\n") + 1
    backend = original.copied(KEY, content)
    path = original.path(KEY, Path(backend.path))
    with pytest.raises(
        limpet.errors.StoreCorrupt,
        match=rf"alice.jsonl, line {line}, is damaged: .* checksum.*doctor --repair",
    ):
        backend.read(KEY)
    assert backend.head(KEY) == original.heads[KEY]
    assert backend.read(KEY, reverse=True, limit=3) == original.records[KEY][:-4:-1]
    assert path.read_bytes() == content
    backend.append(Append(key=KEY, body=b"new", count=1))
    assert path.read_bytes().startswith(content)
    facts = [fact for fact in backend.facts(deep=True) if not fact.ok]
    assert [fact.name for fact in facts] == ["damaged"]
    assert f"line {line}" in facts[0].value
    backend.close()


def test_a_missing_line_is_noticed(original: Original) -> None:
    """Every line is as it was written, but one of them is not there."""
    lines = original.content(KEY).splitlines(keepends=True)
    backend = original.copied(KEY, b"".join(lines[:4] + lines[5:]))
    for how in ({}, {"reverse": True}, {"after": 5}):
        with pytest.raises(limpet.errors.StoreCorrupt, match=r"line 5.*missing before it: entry 7"):
            backend.read(KEY, **how)
    backend.close()


def test_a_file_of_somebody_else_is_left_alone(original: Original) -> None:
    """It may be the only copy of something; a repair gives it another name, and no more."""
    notes = b'{"buy": "milk"}\n{"call": "home"}\n'
    backend = original.copied(KEY, notes)
    path = original.path(KEY, Path(backend.path))
    with pytest.raises(limpet.errors.NotAStore, match=r"alice.jsonl does not begin as"):
        backend.append(Append(key=KEY, body=b"x", count=1))
    assert path.read_bytes() == notes
    backend.repair()
    assert path.with_name("alice.jsonl.damaged-1").read_bytes() == notes
    backend.close()


def test_a_damaged_journal_can_be_deleted(original: Original) -> None:
    """And begun anew."""
    backend = original.copied(KEY, b"nothing of ours\n")
    assert backend.delete(KEY) is True
    assert backend.append(Append(key=KEY, body=b"x", count=1)).seq == 1
    backend.close()


# -- repair ----------------------------------------------------------------------------------------


def test_a_repair_keeps_every_byte_somewhere(original: Original) -> None:
    """Good lines where they were, as they were; bad ones in the file beside."""
    lines = original.content(KEY).splitlines(keepends=True)
    for place in (3, 4, 8):
        lines[place] = lines[place].replace(b'"count"', b'"Count"')
    torn = lines[5][:30]
    backend = original.copied(KEY, b"".join(lines) + torn)
    path = original.path(KEY, Path(backend.path))
    (done,) = backend.repair()
    assert "lines 4, 5, 9 and an unfinished last line" in done
    aside = path.with_name("alice.jsonl.damaged-1")
    assert aside.read_bytes() == b"".join([lines[3], lines[4], lines[8], torn])
    assert aside.stat().st_mode & 0o777 == 0o600
    kept = path.read_bytes().splitlines(keepends=True)
    good = [line for place, line in enumerate(lines) if place not in (0, 3, 4, 8)]
    assert [line for line in kept if line in good] == good
    added = [line for line in kept[1:] if line not in good]
    assert [b'"lost":' in line for line in added] == [True, True]
    backend.close()


def test_what_was_lost_does_not_count_as_stored(original: Original) -> None:
    """Before a compaction and after it, on either side of the gap."""
    content = original.content(KEY).replace(b'"seq":7,', b'"seq":8,', 1)
    backend = original.copied(KEY, content)
    backend.repair()
    assert backend.lost(KEY) == [(7, 7)]
    for before in (0, 3, 6, 9, 13, 100):
        backend.compact(KEY, before)
        head = backend.head(KEY)
        assert head is not None
        assert head.size == sum(len(record.body) for record in backend.read(KEY)), before
        assert [fact for fact in backend.facts(deep=True) if not fact.ok] == []
    backend.close()


def test_a_repaired_journal_is_the_same_incarnation(original: Original) -> None:
    """Whoever knew it goes on; where that cannot be read any more, it is a new one."""
    content, head = original.content(KEY), original.heads[KEY]
    assert head is not None
    name = head.incarnation.encode()
    for damaged, same in (
        (content.replace(b'"seq":7,', b'"seq":8,', 1), True),
        (content.replace(b'"created"', b'"Created"', 1), True),
        (content.replace(b'"incarnation":"' + name, b'"incarnation:"' + name, 1), False),
    ):
        backend = original.copied(KEY, damaged)
        backend.repair()
        found = backend.head(KEY)
        assert found is not None
        assert (found.incarnation == head.incarnation) is same
        assert found.incarnation
        backend.close()


def test_numbers_that_were_lost_are_not_given_out_again(original: Original) -> None:
    """Whoever remembers one would take a new entry for an old one."""
    last = original.records[KEY][-1]
    lines = original.content(KEY).splitlines(keepends=True)
    lines[-1] = lines[-1].replace(b'"total_bytes"', b'"Total_bytes"')
    backend = original.copied(KEY, b"".join(lines))
    with pytest.raises(limpet.errors.StoreCorrupt):
        backend.append(Append(key=KEY, body=b"x", count=1))
    backend.repair()
    assert backend.lost(KEY) == [(last.seq - last.count + 1, last.seq)]
    assert backend.append(Append(key=KEY, body=b"x", count=1)).seq == last.seq + 1
    head = backend.head(KEY)
    assert head is not None
    assert (head.status, head.labels) == ("open", {"team": "red"})
    backend.close()


@pytest.mark.parametrize("key", KEYS)
def test_a_damaged_first_line_is_made_again_from_the_name(original: Original, key: Key) -> None:
    """What a hash confirms can be believed."""
    content = original.content(key).replace(b'"created"', b'"Created"', 1)
    backend = original.copied(key, content)
    with pytest.raises(limpet.errors.StoreCorrupt, match=r"line 1, is damaged"):
        backend.read(key)
    backend.repair()
    assert backend.read(key) == original.records[key]
    backend.close()


def test_a_journal_whose_key_cannot_be_known_is_set_aside_whole(original: Original) -> None:
    """A hash cannot be undone."""
    content = original.content(HASHED).replace("Zoë".encode(), b"Zoa", 1)
    backend = original.copied(HASHED, content)
    (done,) = backend.repair()
    assert "nothing of it could be kept" in done
    path = original.path(HASHED, Path(backend.path))
    assert path.with_name(f"{path.name}.damaged-1").read_bytes() == content
    assert backend.read(HASHED) == []
    assert [head.key.id for head in backend.scan("default", "conversation").heads] == ["alice"]
    backend.close()


def test_a_repair_that_is_cut_short_can_be_repeated(
    original: Original, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the new file is whole the old one stands."""
    content = original.content(KEY).replace(b'"seq":7,', b'"seq":8,', 1)
    backend = original.copied(KEY, content)
    path = original.path(KEY, Path(backend.path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", _fail)
        with pytest.raises(limpet.StoreUnavailable):
            backend.repair()
    assert path.read_bytes() == content
    backend.repair()
    assert [fact for fact in backend.facts(deep=True) if not fact.ok] == []
    assert len(list(path.parent.glob("alice.jsonl.damaged-*"))) == 2
    backend.close()


def test_a_repair_takes_no_name_that_is_in_use(original: Original) -> None:
    """Not even that of a link to nowhere."""
    backend = original.copied(KEY, original.content(KEY).replace(b'"seq":7,', b'"seq":8,', 1))
    path = original.path(KEY, Path(backend.path))
    path.with_name("alice.jsonl.damaged-1").symlink_to("nowhere")
    (done,) = backend.repair()
    assert done.endswith("alice.jsonl.damaged-2.")
    backend.close()


def _fail(*_: object) -> None:
    raise OSError(5, "Input/output error")


def test_a_healthy_store_is_not_touched_by_a_repair(original: Original) -> None:
    """Not a byte."""
    backend = FileBackend(str(original.root))
    before = {path: path.read_bytes() for path in original.root.rglob("*.jsonl")}
    assert backend.repair() == []
    assert {path: path.read_bytes() for path in original.root.rglob("*.jsonl")} == before
    backend.close()


# -- what git does to files ------------------------------------------------------------------------


@pytest.mark.parametrize("key", KEYS)
def test_ends_of_lines_may_be_those_of_windows(original: Original, key: Key) -> None:
    """With core.autocrlf, git makes them so, and makes ours of them again."""
    content = original.content(key).replace(b"\n", b"\r\n")
    for end in (0, 1):  # an editor may leave out the last
        backend = original.copied(key, content[: len(content) - end])
        assert backend.repair() == []
        assert [fact for fact in backend.facts(deep=True) if not fact.ok] == []
        assert backend.head(key) == original.heads[key]
        assert backend.read(key) == original.records[key]
        check_goes_on(backend, key, original.records[key])
        backend.close()


@pytest.mark.parametrize("marks", [True, False])
@pytest.mark.parametrize("theirs", ["they", "somebody else"])
def test_two_histories_that_were_merged_are_not_mixed(
    original: Original, theirs: str, *, marks: bool
) -> None:
    """Theirs would seem to answer ours; so one stays, and the other is set aside whole."""
    base = original.content(KEY)
    ours, other = _later(original, "we, 1", "we, 2"), _later(original, *(theirs + x for x in "123"))
    around = [b"<<<<<<< HEAD\n", b"=======\n", b">>>>>>> theirs\n"] if marks else [b"", b"", b""]
    backend = original.copied(KEY, base + around[0] + ours + around[1] + other + around[2])
    with pytest.raises(limpet.errors.StoreCorrupt):
        backend.read(KEY)
    assert len(backend.repair()) == 1
    said = [record.body for record in backend.read(KEY)]
    assert said == [*(record.body for record in original.records[KEY]), b"we, 1", b"we, 2"]
    path = original.path(KEY, Path(backend.path))
    assert path.read_bytes() == base + ours
    aside = path.with_name("alice.jsonl.damaged-1").read_bytes()
    assert aside == around[0] + around[1] + other + around[2]
    assert backend.repair() == []
    backend.close()


def test_a_line_of_another_history_is_found_even_where_its_number_fits(original: Original) -> None:
    """As after a merge by hand that took the first half from one side, the second from another."""
    base = original.content(KEY)
    ours, other = _later(original, "we"), _later(original, "somebody else", "and again")
    backend = original.copied(KEY, base + ours + b"".join(other.splitlines(keepends=True)[1:]))
    assert [fact.name for fact in backend.facts(deep=True) if not fact.ok] == ["damaged"]
    backend.repair()
    assert original.path(KEY, Path(backend.path)).read_bytes() == base + ours
    backend.close()


def test_lines_that_are_there_twice_are_set_aside_and_the_rest_goes_on(original: Original) -> None:
    """A merge that takes both sides repeats what they have in common."""
    lines = original.content(KEY).splitlines(keepends=True)
    backend = original.copied(KEY, b"".join([*lines[:6], *lines[2:]]))
    backend.repair()
    assert backend.read(KEY) == original.records[KEY]
    backend.close()


def _later(original: Original, *said: str) -> bytes:
    """The lines of what might have been said next."""
    content = original.content(KEY)
    backend = original.copied(KEY, content)
    for text in said:
        backend.append(Append(key=KEY, body=text.encode(), count=1))
    backend.close()
    return original.path(KEY, Path(backend.path)).read_bytes()[len(content) :]


# -- seen while it happens -------------------------------------------------------------------------


def test_a_reader_is_not_alarmed_by_an_append_that_is_being_undone(
    original: Original, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines come, go and come again under its eyes; it sees only those that stay."""
    backend = original.copied(KEY, original.content(KEY))
    real = disk.write_all
    stop = threading.Event()

    def partly(handle: int, data: bytes) -> None:
        os.write(handle, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    def write() -> None:
        for number in range(300):
            fails = number % 3 > 0
            monkeypatch.setattr(disk, "write_all", partly if fails else real)
            request = Append(key=KEY, body=b"x" * (50 + number), count=1)
            try:
                backend.append(request)
            except limpet.errors.StoreFull:
                assert fails
        stop.set()

    def read() -> int:
        times = 0
        while not stop.is_set():
            records = backend.read(KEY)
            assert records[: len(original.records[KEY])] == original.records[KEY]
            times += 1
        return times

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        pool.submit(write).result()
        assert min(reader.result() for reader in readers) > 0
    assert len(backend.read(KEY)) == len(original.records[KEY]) + 100
    backend.close()
