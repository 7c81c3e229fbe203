"""A directory of JSON Lines: the contract, what people find in it, and who else may be at work."""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

import limpet
from limpet.backends.contract import Append, Head, Key, Record
from limpet.backends.file import FileBackend, directory, disk, writing
from limpet.backends.file.directory import name_of
from limpet.backends.file.format import decode_line, encode, is_whole, record_line
from limpet.testing.conformance import BackendContract
from limpet.testing.leaks import nothing_left
from limpet.testing.machine import contract_machine
from tests.support.paths import DATA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from limpet.backends.contract import Backend

HELLO = {"role": "user", "content": "hello"}
KEY = Key("default", "note", "one")


class TestFile(BackendContract):
    """A directory."""

    backend = FileBackend

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        """A directory of its own for each test."""
        return f"file:{tmp_path}/state"


@contextmanager
def a_directory() -> Iterator[Callable[[], Backend]]:
    """A place for files, in memory where that can be had: nothing here has to outlast the test."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - a private one in it
    with TemporaryDirectory(dir=memory) as directory:
        yield lambda: FileBackend(f"{directory}/state")


TestFileMachine = pytest.mark.slow(contract_machine(a_directory, examples=60))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where a store may be."""
    return tmp_path / "state"


@pytest.fixture
def backend(root: Path) -> Iterator[FileBackend]:
    """A store that is open."""
    opened = FileBackend(str(root))
    yield opened
    opened.close()


def add(backend: Backend, body: bytes = b"x", key: Key = KEY, **request: Any) -> int:
    """Append one record; its number."""
    return backend.append(Append(**{"key": key, "body": body, "count": 1, **request})).seq


def lines(path: Path) -> list[Any]:
    """A file as any program can read it."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def python(code: str, *args: object, **how: Any) -> subprocess.Popen[str]:
    """A child that runs *code*."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **how)


def finish(child: subprocess.Popen[str]) -> str:
    """What the child printed, if it ended well and in time."""
    try:
        out, _ = child.communicate(timeout=60)
    finally:
        child.kill()  # if it hangs, it does so alone
    assert child.returncode == 0, out
    return out


# -- for people ------------------------------------------------------------------------------------


def test_a_conversation_can_be_read_with_any_editor(root: Path) -> None:
    """One file, one line a turn, the words as they were said."""
    with limpet.open(f"file:{root}") as store:
        chat = store.conversation("alice", labels={"team": "red"})
        chat.append({"role": "user", "content": "Grüße 😀"}, id="turn-1")
        chat.append({"role": "assistant", "content": "x" * 20_000}, HELLO)
    header, first, second = lines(root / "default" / "conversation" / "alice.jsonl")
    assert header["format"] == 1
    assert (header["tenant"], header["kind"], header["id"]) == ("default", "conversation", "alice")
    assert (first["seq"], first["count"], first["id"]) == (1, 1, "turn-1")
    assert first["body"] == ["message", {"role": "user", "content": "Grüße 😀"}]
    assert first["at"].endswith("Z")
    assert (second["seq"], second["labels"]) == (3, {"team": "red"})
    assert second["body"][1]["content"] == "x" * 20_000


def test_a_journals_attributes_can_be_read_in_its_last_line(
    backend: FileBackend, root: Path
) -> None:
    """Meta as JSON, times as text; and in the first line, which of its lives this is."""
    meta = b'{"start":12,"text":"\\u00e9 \xc3\xa9"}'
    done = add(backend, status="open", labels={"a": "b"}, meta=meta, ttl=90, id="first")
    header, line = lines(root / "default" / "note" / "one.jsonl")
    head = backend.head(KEY)
    assert head is not None
    assert header["incarnation"] == head.incarnation
    assert (header["first"], header["dropped_bytes"]) == (1, 0)
    assert (line["seq"], line["id"], line["total_bytes"]) == (done, "first", 1)
    assert (line["status"], line["labels"], line["ttl"]) == ("open", {"a": "b"}, 90)
    assert line["meta"] == {"start": 12, "text": "é é"}
    assert line["expires"].endswith("Z")
    assert head.meta == meta


@pytest.mark.parametrize("meta", [b'{"a":\n1}', b" {}", b"{", b"\xff", b"", b'{"a":1}\r'])
def test_meta_that_is_no_json_on_one_line_comes_back_to_the_byte_all_the_same(
    backend: FileBackend, root: Path, meta: bytes
) -> None:
    """In the journal, and while there is only a lease."""
    add(backend, meta=meta)
    other = KEY._replace(id="leased")
    lease = backend.acquire(other, "me", 60)
    backend.append(Append(key=other, meta=meta, epoch=lease.epoch))
    backend.renew(other, lease, 60)
    add(backend, key=other)
    for key in (KEY, other):
        head = backend.head(key)
        assert head is not None
        assert head.meta == meta
        assert "meta_base64" in lines(root / f"{name_of(key)}.jsonl")[-1]


def test_a_lease_says_who_may_write_what_and_for_how_long(backend: FileBackend, root: Path) -> None:
    """For people who look for what is in the way."""
    key = KEY._replace(id="Zoë/1")
    backend.acquire(key, "ann on host, process 7", 60)
    (path,) = (root / ".limpet" / "journals").rglob("*.lease")
    (found,) = lines(path)
    assert (found["tenant"], found["kind"], found["id"]) == key
    assert found["holder"] == "ann on host, process 7"
    assert found["until"].endswith("Z")


def test_the_last_line_tells_where_a_task_stands(root: Path) -> None:
    """`tail -n 1` is enough."""
    with limpet.open(f"file:{root}") as store, store.task("report", "Write it") as task:
        task.step("fetch", int)
        path = root / "default" / "task" / "report.jsonl"
        assert lines(path)[-1]["status"] == "open"
        task.finish("done")
        assert lines(path)[-1]["status"] == "done"


def test_files_and_directories_are_their_owners_only(root: Path) -> None:
    """Whatever the umask is."""
    old = os.umask(0)
    try:
        with limpet.open(f"file:{root}/a/b") as store, store.task("t", "goal"):
            store.conversation("Ä").append(HELLO)
    finally:
        os.umask(old)
    for path in [root, *root.rglob("*")]:
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def test_what_changes_by_itself_is_kept_out_of_version_control(root: Path) -> None:
    """Locks and leases; a task that is held for long changes no file that people track."""
    with limpet.open(f"file:{root}") as store:
        key = Key("default", "task", "t")
        add(store.backend, key=key)
        tracked = {path: path.read_bytes() for path in root.rglob("*") if _is_tracked(root, path)}
        lease = store.backend.acquire(key, "me", 60)
        for _ in range(10):
            lease = store.backend.renew(key, lease, 60)
        store.backend.release(key, lease)
        assert all(path.read_bytes() == content for path, content in tracked.items())
        assert {p for p in root.rglob("*") if _is_tracked(root, p)} == set(tracked)
        assert len(list((root / ".limpet" / "journals").rglob("*.lease"))) == 1
    assert (root / ".limpet" / ".gitignore").read_text() == "*\n"


def _is_tracked(root: Path, path: Path) -> bool:
    return path.is_file() and ".limpet" not in path.relative_to(root).parts


def test_compacting_leaves_the_lines_that_stay_as_they_were(
    backend: FileBackend, root: Path
) -> None:
    """A difference that people can read: some lines are gone."""
    for number in range(6):
        add(backend, b"%d" % number, status="open")
    path = root / "default" / "note" / "one.jsonl"
    before = path.read_bytes().splitlines()
    backend.compact(KEY, 4)
    assert path.read_bytes().splitlines()[1:] == before[4:]


# -- bodies ----------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.binary(max_size=40) | st.text().map(str.encode))
def test_any_bytes_come_back_from_a_line(body: bytes) -> None:
    """Also those that are nearly JSON."""
    _check_round_trip(body)


@given(st.binary(min_size=4, max_size=4), json_values, st.binary(min_size=4, max_size=4))
def test_json_within_a_body_is_shown_as_it_is(head: bytes, value: Any, tail: bytes) -> None:
    """Spaces, escapes and numbers included."""
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    raw = _check_round_trip(head + text + tail)
    assert b'"body":' + text in raw


@pytest.mark.parametrize(
    "text",
    [b"[1]\n", b"[1,\r2]", b" [1]", b"[1] ", b'["\xff"]', b"", b"1,2", b'1,"seq":9', b"[", b"NaN"],
)
def test_what_would_not_come_back_as_it_is_goes_as_base64(text: bytes) -> None:
    """Other line ends, space around it, no UTF-8, no JSON, an attempt to add fields."""
    assert b'"body_base64":' in _check_round_trip(b"abcd" + text + b"efgh")


def _check_round_trip(body: bytes) -> bytes:
    head = Head(KEY, "abc", 1, 1, len(body), 1, 1)
    raw = encode(record_line(head, 0, Record(1, 1, 1, body))).removesuffix(b"\n")
    assert b"\n" not in raw
    assert is_whole(raw)
    raw.decode("utf-8")
    line = decode_line(raw)
    assert (line.record_body(), line.seq) == (body, 1)
    return raw


# -- names -----------------------------------------------------------------------------------------


@given(st.lists(st.text(min_size=1).map(lambda text: text[:128]), unique=True))
def test_no_two_keys_share_a_file_whatever_the_file_system_makes_of_names(ids: list[str]) -> None:
    """Small letters, digits and a few signs; short; never a path of its own."""
    found = [name_of(Key("default", "note", id_)) for id_ in ids if _is_text(id_)]
    assert len({name.casefold() for name in found}) == len(found)
    for name in found:
        tenant, kind, id_ = name.split("/")
        assert (tenant, kind) == ("default", "note")
        assert len(id_) <= 80
        assert set(id_) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.@+-~")
        assert id_[0] not in ".-"


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@pytest.mark.parametrize("id_", ["../../../x", "/etc/passwd", "..", ".limpet", "CON", "nul.txt"])
def test_an_id_is_never_a_path(backend: FileBackend, root: Path, id_: str) -> None:
    """What is readable of it, and a hash; the true one is inside."""
    for key in (Key("default", "note", id_), Key(id_, "note", "x")):
        add(backend, key=key)
        path = (root / f"{name_of(key)}.jsonl").resolve()
        assert path.is_relative_to(root)
        assert "~" in name_of(key)
        header = backend.head(key)
        assert header is not None
        assert header.key == key
    assert sorted(backend.kinds()) == sorted([("default", "note"), (id_, "note")])


def test_a_file_that_was_copied_or_renamed_is_refused(backend: FileBackend, root: Path) -> None:
    """It says whose it is, and where it belongs."""
    add(backend)
    directory = root / "default" / "note"
    (directory / "two.jsonl").write_bytes((directory / "one.jsonl").read_bytes())
    two = KEY._replace(id="two")
    for call in (
        lambda: backend.read(two),
        lambda: backend.head(two),
        lambda: add(backend, key=two),
    ):
        with pytest.raises(
            limpet.errors.StoreCorrupt, match=r"two.jsonl is the journal of note 'one'"
        ):
            call()
    assert backend.head(KEY) is not None


def test_a_symbolic_link_is_not_followed(backend: FileBackend, root: Path, tmp_path: Path) -> None:
    """Whoever has placed it there, in a repository perhaps, could have us write anywhere."""
    add(backend)
    journal = root / "default" / "note" / "one.jsonl"
    outside = journal.rename(tmp_path / "outside.jsonl")
    before = outside.read_bytes()
    journal.symlink_to(outside)
    for call in (lambda: backend.read(KEY), lambda: backend.head(KEY), lambda: add(backend)):
        with pytest.raises(limpet.errors.NotAStore, match=r"one.jsonl is a symbolic link"):
            call()
    wrong = [fact for fact in backend.facts(deep=True) if not fact.ok]
    assert [fact.name for fact in wrong] == ["link"]
    assert "one.jsonl" in wrong[0].value
    assert (backend.repair(), backend.sweep()) == ([], 0)
    assert backend.kinds() == [("default", "note")]
    assert backend.delete(KEY) is True
    assert outside.read_bytes() == before
    assert add(backend) == 1


@pytest.mark.parametrize("name", ["one.new", ".one.lease.new", "one.lease"])
def test_a_link_in_the_place_of_a_file_that_is_being_written_is_not_followed(
    backend: FileBackend, root: Path, tmp_path: Path, name: str
) -> None:
    """It would be cut off, and filled with a journal."""
    outside = tmp_path / "thesis.txt"
    outside.write_text("Chapter 1")
    directory = root / ".limpet" / "journals" / "default" / "note"
    directory.mkdir(parents=True)
    (directory / name).symlink_to(outside)
    with pytest.raises(limpet.errors.NotAStore, match="symbolic link"):
        add(backend, epoch=backend.acquire(KEY, "me", 60).epoch)
    assert outside.read_text() == "Chapter 1"


@pytest.mark.parametrize(
    "name",
    [
        *("default", "default/note", ".limpet", ".limpet/locks", ".limpet/journals"),
        *(".limpet/journals/default", ".limpet/journals/default/note"),
    ],
)
def test_a_link_in_the_place_of_a_directory_is_not_followed(
    root: Path, tmp_path: Path, name: str
) -> None:
    """What is beyond it is neither read nor written, repaired or swept."""
    with closing(FileBackend(str(root))) as backend:
        add(backend)
        backend.acquire(KEY, "me", 60)
    outside = (root / name).rename(tmp_path / "outside")
    (root / name).symlink_to(outside)
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    with closing(FileBackend(str(root))) as backend:
        for call in (
            lambda: backend.read(KEY),
            lambda: backend.head(KEY),
            lambda: backend.scan("default", "note"),
            lambda: add(backend),
            lambda: backend.acquire(KEY, "me", 60),
            lambda: backend.delete(KEY),
        ):
            with pytest.raises(limpet.errors.NotAStore, match="is a symbolic link"):
                call()
        if name.startswith("default"):
            wrong = [fact for fact in backend.facts(deep=True) if not fact.ok]
            assert [fact.name for fact in wrong] == ["link"]
            assert str(root / name) in wrong[0].value
            backend.repair()
        with suppress(limpet.errors.NotAStore):
            backend.sweep()
    assert {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == before


def test_a_new_store_does_not_write_through_a_link(root: Path, tmp_path: Path) -> None:
    """A directory with nothing but hidden files in it becomes a store, and one may be a link."""
    root.mkdir()
    (tmp_path / "outside").mkdir()
    (root / ".limpet").symlink_to(tmp_path / "outside")
    with pytest.raises(limpet.errors.NotAStore, match="symbolic link"):
        FileBackend(str(root))
    assert list((tmp_path / "outside").iterdir()) == []


# -- opening ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["file:state", "file:state/", "file:{}", "file://{}", "file:{}/"])
def test_a_store_can_be_named_in_several_ways(
    root: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here, or anywhere; with or without the slash."""
    monkeypatch.chdir(root.parent)
    with limpet.open(url.format(root)) as store:
        store.conversation("a").append(HELLO)
    assert (root / "default" / "conversation" / "a.jsonl").exists()


@pytest.mark.parametrize("url", ["file:", "file://", "file://host/state", "file:x?color=red"])
def test_a_url_that_names_no_directory_is_refused(url: str) -> None:
    """Before anything comes to be."""
    with pytest.raises(limpet.errors.InvalidURL):
        limpet.open(url)


@pytest.mark.parametrize("make", [False, True])
@pytest.mark.parametrize("options", [{"create": False}, {"readonly": True}])
def test_a_store_that_is_not_there_is_not_created_unasked(
    root: Path, *, make: bool, options: dict[str, bool]
) -> None:
    """Neither the directory, nor anything in it."""
    if make:
        root.mkdir()
    with pytest.raises(limpet.errors.StoreNotFound, match="no store at"):
        FileBackend(str(root), **options)  # type: ignore[arg-type]
    assert list(root.parent.rglob("*")) == ([root] if make else [])


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    """The message says how to open it if it is a SQLite store."""
    path = tmp_path / "agents.db"
    path.write_bytes(b"")
    with pytest.raises(limpet.errors.NotAStore, match=r"is a file.*sqlite:"):
        limpet.open(f"file:{path}")
    with pytest.raises(limpet.errors.NotAStore, match=r"agents.db is not a directory"):
        limpet.open(f"file:{path}/state")


@pytest.mark.parametrize("marker", [None, "", "{}", "[]", '{"limpet":"journal","format":1}'])
def test_a_directory_with_other_things_in_it_is_left_as_it_is(
    tmp_path: Path, marker: str | None
) -> None:
    """A wrong name must not fill somebody's home with our files."""
    (tmp_path / "thesis.txt").write_text("Chapter 1")
    if marker is not None:
        (tmp_path / "limpet.json").write_text(marker)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(limpet.errors.NotAStore, match=r"no limpet.json"):
        limpet.open(f"file:{tmp_path}")
    assert sorted(tmp_path.iterdir()) == before


def test_an_empty_directory_under_version_control_becomes_a_store(root: Path) -> None:
    """Hidden files are not ours, and not in the way."""
    (root / ".git").mkdir(parents=True)
    with limpet.open(f"file:{root}") as store:
        assert store.conversation("a").append(HELLO) == 1


def test_a_store_cloned_without_its_private_directory_goes_on(root: Path) -> None:
    """As `git clone` and `git clean` leave it; also while it is open."""
    with limpet.open(f"file:{root}") as store:
        store.conversation("a").append(HELLO)
        shutil.rmtree(root / ".limpet")
        assert store.conversation("a").append(HELLO) == 2
        shutil.rmtree(root / ".limpet")
        with limpet.open(f"file:{root}") as other:
            assert other.conversation("a").append(HELLO) == 3
        assert store.conversation("a").append(HELLO) == 4


def test_a_store_of_a_newer_release_is_refused(root: Path) -> None:
    """The directory as a whole, or one file in it."""
    with limpet.open(f"file:{root}") as store:
        store.conversation("a").append(HELLO)
    path = root / "default" / "conversation" / "a.jsonl"
    newer = path.read_bytes().replace(b'"format":1', b'"format":9', 1)
    header = newer.partition(b"\n")[0]
    sealed = header[:-18] + b',"crc":"%08x"}' % crc32(header[:-18])
    assert is_whole(sealed)
    path.write_bytes(newer.replace(header, sealed))
    with (
        limpet.open(f"file:{root}") as store,
        pytest.raises(limpet.errors.SchemaTooNew, match=r"format 9.*reads up to 1(?s:.*)Upgrade"),
    ):
        store.conversation("a").messages()
    with limpet.open(f"file:{root}") as store:
        facts = [fact for fact in store.backend.facts(deep=True) if not fact.ok]
        assert [(fact.name, fact.advice) for fact in facts] == [("newer", "Upgrade limpet.")]
    (root / "limpet.json").write_text('{"limpet":"store","format":9}')
    with pytest.raises(limpet.errors.SchemaTooNew, match=r"format 9.*reads up to 1(?s:.*)Upgrade"):
        limpet.open(f"file:{root}")


def test_a_store_opened_for_reading_changes_nothing(root: Path) -> None:
    """With readonly=True; not even a lock is made."""
    with limpet.open(f"file:{root}") as store:
        store.conversation("a").append(HELLO)
    shutil.rmtree(root / ".limpet")
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    with limpet.open(f"file:{root}", readonly=True) as store:
        assert store.conversation("a").length() == 1
        assert [chat.id for chat in store.conversations()] == ["a"]
        store.backend.facts(deep=True)
        for write in (
            lambda: store.conversation("a").append(HELLO),
            lambda: store.backend.acquire(KEY, "me", 60),
            lambda: store.backend.delete(KEY),
            store.sweep,
        ):
            with pytest.raises(limpet.errors.StoreReadOnly, match="readonly=True"):
                write()
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_a_directory_that_cannot_be_written_says_so_and_can_be_read(root: Path) -> None:
    """For a user who may not write: the root user may always, so this runs as nobody."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    with limpet.open(f"file:{root}") as store:
        store.conversation("a").append(HELLO)
    for path in [root, *root.rglob("*")]:
        path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
    for parent in root.parents:
        if parent.stat().st_uid == 0 and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o555)
    code = """
        import os, sys, logging
        import urllib.parse, limpet
        url = "file:" + sys.argv[1]
        with limpet.open(url, readonly=True) as store:
            store.conversation("a").messages()  # all is imported while it can be
        os.setgid(65534); os.setuid(65534)
        for name in (url, url + "/../other"):
            try:
                limpet.open(name)
            except limpet.errors.StoreReadOnly as error:
                print("refused:", error)
        with limpet.open(url, readonly=True) as store:
            print("read:", len(store.conversation("a").messages()))
    """
    out = finish(python(code, root))
    assert out.count("refused: ") == 2
    assert "read-only for this user" in out
    assert "read: 1" in out


def test_the_disk_says_what_is_wrong(backend: FileBackend, root: Path) -> None:
    """A store that has been removed while it was open."""
    add(backend)
    shutil.rmtree(root)
    with pytest.raises(limpet.errors.StoreNotFound, match="no longer there"):
        add(backend)
    assert not root.exists()


@pytest.mark.parametrize("release", sorted(DATA.glob("files-*")))
def test_what_an_older_release_wrote_can_be_read(release: Path, tmp_path: Path) -> None:
    """For ever: one directory for each release that changed what is stored."""
    root = shutil.copytree(release, tmp_path / "old")
    with limpet.open(f"file:{root}", tenant="acme") as store:
        chat = store.conversation("alice")
        assert chat.messages() == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "I prefer e-mail. 😀"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]},
            {"role": "tool", "tool_call_id": "c1", "content": "x" * 20_000},
        ]
        assert chat.info().labels == {"team": "red"}
        with store.task("report-42") as task:
            assert task.step("fetch", pytest.fail) == [1, 2, {"n": None}]
            assert [step.name for step in task.remaining()] == ["write"]
        assert [info.id for info in store.tasks(status="done")] == ["done-1"]
        backend = store.backend
        assert isinstance(backend, FileBackend)
        note = Key("acme", "note", "Zoë/1")
        assert [(r.seq, r.id, r.body[:2]) for r in backend.read(note)] == [
            (6, "id-2", b"\x02\x03"),
            (8, "id-3", b"\x03\x04"),
            (10, "id-4", b"\x04\x05"),
        ]
        head = backend.head(note)
        assert head is not None
        assert (head.seq, head.first, head.size, head.status) == (10, 5, 120, "open")
        assert (head.labels, head.ttl) == ({"n": "4"}, 3_000_000_000_500_000)
        assert head.expires == head.updated + 3_000_000_000_500_000
        assert backend.lost(note._replace(id="repaired")) == [(2, 2)]
        wrong = {fact.name for fact in backend.facts(deep=True) if not fact.ok}
        assert wrong <= {"directory mode"}  # as whoever has checked it out would have it


# -- how much is read ------------------------------------------------------------------------------


def test_the_end_of_a_long_journal_is_found_without_reading_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Head, last messages, a page from the middle, and the next append, in a new process."""
    backend = FileBackend(str(root), durability="normal")
    for number in range(3000):
        add(backend, b"%04d" % number + b"x" * 500)
    backend.close()
    path = root / "default" / "note" / "one.jsonl"
    assert path.stat().st_size > 2_000_000
    read = 0
    real = os.pread

    def pread(handle: int, size: int, offset: int) -> bytes:
        nonlocal read
        read += size
        return real(handle, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    backend = FileBackend(str(root))
    for call, most in (
        (lambda: backend.head(KEY), 20_000),
        (lambda: backend.read(KEY, reverse=True, limit=5), 40_000),
        (lambda: backend.read(KEY, after=2990), 300_000),
        (lambda: backend.read(KEY, after=1500, limit=5), 600_000),
        (lambda: backend.read(KEY, upto=700, reverse=True, limit=5), 600_000),
        (lambda: backend.scan("default", "note"), 20_000),
        (lambda: add(backend), 20_000),
        (lambda: add(backend), 0),
    ):
        read = 0
        call()
        assert read <= most
    backend.close()


@pytest.mark.parametrize("sizes", [[10], [10, 100_000], [300_000, 10, 10, 5]])
def test_any_entry_of_a_long_journal_is_found(root: Path, sizes: list[int]) -> None:
    """By its number, forward and backward, among lines long and short."""
    backend = FileBackend(str(root), durability="normal")
    for number in range(400 if len(sizes) == 1 else 24):
        add(backend, b"x" * sizes[number % len(sizes)], count=1 + number % 3, status=f"{number}")
        add(backend, b"", count=0, status="between")
    everything = backend.read(KEY)
    last = everything[-1].seq
    for after in range(0, last + 1, 1 if last < 100 else 37):
        wanted = [record for record in everything if record.seq > after]
        assert backend.read(KEY, after=after) == wanted
        upto = [record for record in everything if record.seq - record.count < after]
        assert backend.read(KEY, upto=after, reverse=True, limit=7) == upto[::-1][:7]
    backend.close()


def counted(patch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[str]:
    """Grows by one with each call of a function."""
    calls: list[str] = []
    real = getattr(module, name)

    def call(*args: Any) -> Any:
        calls.append(name)
        return real(*args)

    patch.setattr(module, name, call)
    return calls


def test_a_new_id_is_looked_for_without_reading_every_line(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more conversations than are kept open, most are asked for one id and closed again."""
    known = ["é" + "x" * 400, 'quo"te', "back\\slash", "plain"]
    backend = FileBackend(str(root), durability="normal")
    for number in range(30):
        add(backend, b"x" * 50, id=known[number] if number < len(known) else None)
    backend.close()
    read = counted(monkeypatch, writing, "_ids_in")
    monkeypatch.setattr(writing, "CHUNK", 450)  # so that ids lie across
    for number, id_ in enumerate(known, 1):
        backend = FileBackend(str(root), durability="normal")
        new = add(backend, id=f"new-{number}")
        assert new == 30 + number
        assert not read
        assert add(backend, id=id_) == number
        assert add(backend, id=f"new-{number}") == new
        assert len(read) == 1  # from then on they are known
        read.clear()
        backend.close()
    backend = FileBackend(str(root), durability="normal")
    for number in range(50):
        add(backend, id=f"many-{number}")
    assert len(read) == 1
    backend.close()


def test_the_pages_of_a_scan_share_one_listing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a scan would cost the square of what is there; what comes or goes meanwhile is seen."""
    backend = FileBackend(str(root), durability="normal")
    for number in range(25):
        add(backend, key=KEY._replace(id=f"n{number:02}"))
    listed = counted(monkeypatch, directory, "names")
    found = [head.key.id for head in backend.heads("default", "note", limit=3)]
    assert found == [f"n{number:02}" for number in range(25)]
    assert len(listed) == 1
    heads = backend.heads("default", "note", prefix="n1", limit=3)
    first = [next(heads).key.id for _ in range(3)]
    backend.delete(KEY._replace(id="n14"))
    add(backend, key=KEY._replace(id="n10-late"))
    add(backend, key=KEY._replace(id="n15-late"))
    os.utime(root / "default" / "note", ns=(1, 1))  # however coarse the clock of the disk is
    rest = [head.key.id for head in heads]
    assert first + rest == [
        *("n10", "n11", "n12", "n13", "n15", "n15-late", "n16", "n17", "n18", "n19")
    ]
    backend.close()


def test_a_lease_is_known_however_much_is_set_before_the_first_record(
    backend: FileBackend,
) -> None:
    """What a journal is to begin with lies in the lease's file, and its holder stays the holder."""
    lease = backend.acquire(KEY, "me", 60)
    labels = {f"{number:03}": "x" * 250 for number in range(500)}
    backend.append(Append(key=KEY, labels=labels, epoch=lease.epoch))
    backend.append(Append(key=KEY, body=b"a", count=1, epoch=lease.epoch))
    head = backend.head(KEY)
    assert head is not None
    assert head.labels == labels


# -- threads and processes -------------------------------------------------------------------------


def test_processes_share_a_directory_and_lose_nothing(root: Path) -> None:
    """Four of them, on one conversation and on their own, some with ids and some without."""
    code = """
        import sys, limpet
        with limpet.open("file:" + sys.argv[1]) as store:
            for number in range(60):
                message = {"role": "user", "content": f"{sys.argv[2]}:{number}"}
                id = f"{sys.argv[2]}-{number}" if sys.argv[2] < "p2" else None
                store.conversation("all").append(message, id=id)
                store.conversation(sys.argv[2]).append(message)
    """
    for child in [python(code, root, f"p{number}") for number in range(4)]:
        finish(child)
    with limpet.open(f"file:{root}") as store:
        said = [message["content"] for message in store.conversation("all").messages()]
        for name in ("p0", "p1", "p2", "p3"):
            own = [f"{name}:{number}" for number in range(60)]
            assert [text for text in said if text.startswith(name)] == own
            assert store.conversation(name).length() == 60
        again = {"role": "user", "content": "p1:30"}
        assert store.conversation("all").append(again, id="p1-30") == said.index("p1:30") + 1


def test_two_stores_of_one_process_keep_each_other_out(root: Path) -> None:
    """Opened twice, as a library within an application may do."""
    backends = [FileBackend(str(root)) for _ in range(2)]

    def write(number: int) -> int:
        return add(backends[number % 2], id=f"{number}")

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(write, range(60))) == list(range(1, 61))
    assert backends[0].append(Append(key=KEY, body=b"x", count=1, id="7")).repeated
    backends[0].delete(KEY)
    assert add(backends[1]) == 1
    backends[1].compact(KEY, 2)
    assert add(backends[0]) == 2
    for backend in backends:
        backend.close()


def test_what_another_process_deletes_and_makes_again_is_seen(backend: FileBackend) -> None:
    """The file that we have open is then no longer the journal."""
    for _ in range(3):
        add(backend, id="same")
    other = FileBackend(backend.path)
    other.delete(KEY)
    assert add(other) == 1
    assert add(backend, id="same") == 2
    other.compact(KEY, 2)
    assert add(backend) == 3
    head = other.head(KEY)
    assert head is not None
    assert (head.seq, head.first) == (3, 2)
    other.close()


def test_readers_do_not_wait_for_a_writer_that_hangs(root: Path) -> None:
    """Writers do, as long as they were told to."""
    with limpet.open(f"file:{root}", timeout=0.05) as store:
        store.conversation("a").append(HELLO)
        code = """
            import sys, time, limpet
            from limpet.backends.contract import Key
            with limpet.open("file:" + sys.argv[1]) as store:
                paths = store.backend._directory.paths(Key("default", "conversation", "a"))
                def hold():
                    print("held", flush=True)
                    time.sleep(60)
                store.backend._stripes[paths.stripe].lock.run(hold)
        """
        child = python(code, root)
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "held\n"
            assert store.conversation("a").length() == 1
            assert [chat.id for chat in store.conversations()] == ["a"]
            with pytest.raises(limpet.errors.StoreBusy, match="held the write lock"):
                store.conversation("a").append(HELLO)
        finally:
            child.kill()
            child.communicate()
        assert store.conversation("a").append(HELLO) == 2


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_store_of_its_own(root: Path) -> None:
    """Both go on writing the same conversation, with other threads at work while it forks."""
    with limpet.open(f"file:{root}") as store:
        stop = threading.Event()
        thread = threading.Thread(target=_write_until, args=(store, stop))
        thread.start()
        children = [_fork(store, f"child{number}") for number in range(4)]
        for child in children:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        stop.set()
        thread.join()
        store.conversation("all").append(HELLO)
        said = [message["content"] for message in store.conversation("all").messages()]
        for number in range(4):
            assert said.count(f"child{number}") == 20
        assert len(said) == store.conversation("all").info().position
        assert [fact for fact in store.backend.facts(deep=True) if not fact.ok] == []


def _write_until(store: limpet.Store, stop: threading.Event) -> None:
    while not stop.is_set():
        store.conversation("all").append(HELLO)


def _fork(store: limpet.Store, name: str) -> int:
    child = os.fork()
    if child:
        return child
    try:
        for _ in range(20):
            store.conversation("all").append({"role": "user", "content": name})
        store.close()
    except BaseException:  # noqa: BLE001 - a child of pytest must never go on as pytest
        os._exit(1)
    os._exit(0)


def test_few_files_are_kept_open_however_many_are_written(backend: FileBackend) -> None:
    """A service has thousands of conversations, and a limit on open files."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(300):
        add(backend, key=KEY._replace(id=f"n{number}"))
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 16 * 5
    assert len(backend.scan("default", "note", limit=1000).heads) == 300


@pytest.mark.slow
def test_a_store_that_is_dropped_and_not_closed_leaves_nothing_open(root: Path) -> None:
    """As a program does that opens one for each request."""
    with nothing_left():
        backend = FileBackend(str(root))
        add(backend)
        del backend
        gc.collect()


# -- disks that are full or broken -----------------------------------------------------------------


class Sabotage:
    """Makes the next calls of a function of `disk` fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def fail(self, name: str, error: int, *, after: int = 0, partly: int = 0) -> None:
        """Let *after* calls pass, then raise *error*; of what is to be written, do *partly*."""
        real = getattr(disk, name)
        left = after

        def call(*args: Any) -> Any:
            nonlocal left
            left -= 1
            if left >= 0:
                return real(*args)
            if partly:
                os.write(args[0], args[1][:partly])
            raise OSError(error, os.strerror(error))

        self._patch.setattr(disk, name, call)

    def heal(self) -> None:
        """Everything works again."""
        self._patch.undo()


@pytest.fixture
def sabotage(monkeypatch: pytest.MonkeyPatch) -> Sabotage:
    """A disk that fails on demand."""
    return Sabotage(monkeypatch)


@pytest.mark.parametrize("partly", [0, 1, 50, 10_000])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_leaves_nothing_half_written(
    backend: FileBackend, root: Path, sabotage: Sabotage, partly: int, code: int
) -> None:
    """The call raises, what was there is there, and with room again the next append is fine."""
    path = root / "default" / "note" / "one.jsonl"
    add(backend, id="first")
    before = path.read_bytes()
    sabotage.fail("write_all", code, partly=partly)
    for key in (KEY, KEY._replace(id="new")):
        with pytest.raises(limpet.errors.StoreFull, match=r"no room left .* Free some space"):
            add(backend, b"y" * 500, key)
    assert path.read_bytes() == before
    assert backend.head(KEY._replace(id="new")) is None
    sabotage.heal()
    assert add(backend) == 2
    assert add(backend, key=KEY._replace(id="new")) == 1
    assert [fact for fact in backend.facts(deep=True) if not fact.ok] == []
    assert list(root.rglob("*.new")) == []


def test_a_disk_that_is_really_full_loses_nothing(root: Path) -> None:
    """The system's own limit on the size of a file, in a process of its own."""
    code = """
        import resource, sys, limpet
        with limpet.open("file:" + sys.argv[1]) as store:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 100_000))
            count = 0
            try:
                while True:
                    store.conversation("a").append({"role": "user", "content": "x" * 700})
                    count += 1
            except limpet.errors.StoreFull:
                print(count)
            assert store.conversation("a").length() == count
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
            store.conversation("a").append({"role": "user", "content": "x" * 700})
            assert [fact for fact in store.backend.facts(deep=True) if not fact.ok] == []
    """
    count = int(finish(python(code, root)))
    with limpet.open(f"file:{root}") as store:
        assert store.conversation("a").length() == count + 1 > 10


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_after_a_failed_sync_the_journal_is_written_anew_before_it_goes_on(
    backend: FileBackend, root: Path, sabotage: Sabotage, code: int
) -> None:
    """The system forgets what it could not write, and would call the next sync a success."""
    path = root / "default" / "note" / "one.jsonl"
    add(backend, b"acknowledged")
    file = path.stat().st_ino
    sabotage.fail("sync", code)
    with pytest.raises(limpet.StoreUnavailable, match="may be there"):
        add(backend, b"in doubt", id="d")
    for _ in range(2):
        with pytest.raises((limpet.StoreUnavailable, limpet.errors.StoreFull)):
            add(backend, b"in doubt", id="d")
    assert [record.body for record in backend.read(KEY)] == [b"acknowledged"]
    sabotage.heal()
    assert add(backend, b"in doubt", id="d") == 2
    assert path.stat().st_ino != file
    other = FileBackend(backend.path)
    assert [record.body for record in other.read(KEY)] == [b"acknowledged", b"in doubt"]
    other.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_a_new_journal_whose_name_could_not_be_synced_is_asked_for_again(
    backend: FileBackend, sabotage: Sabotage, code: int
) -> None:
    """It may be there, and that is said; under its id it is there once, whatever became of it."""
    add(backend, key=KEY._replace(id="another"))  # so that there is a directory for it
    sabotage.fail("sync_directory", code)
    for _ in range(2):
        with pytest.raises(limpet.StoreUnavailable, match="may be there"):
            add(backend, id="d")
    assert [record.seq for record in backend.read(KEY)] == [1]
    sabotage.heal()
    add(backend, id="d")
    assert [record.seq for record in backend.read(KEY)] == [1]


@pytest.mark.parametrize("name", ["write_all", "sync", "sync_directory"])
@pytest.mark.parametrize("after", range(3))
def test_a_compaction_or_deletion_that_fails_loses_nothing(
    backend: FileBackend, sabotage: Sabotage, name: str, after: int
) -> None:
    """The old file stands until the new one is whole."""
    for number in range(5):
        add(backend, b"%d" % number)
    sabotage.fail(name, errno.EIO, after=after)
    try:
        backend.compact(KEY, 3)
    except limpet.StoreUnavailable:
        assert [record.seq for record in backend.read(KEY)][-3:] == [3, 4, 5]
    sabotage.heal()
    assert add(backend) == 6
    assert backend.delete(KEY) is True


def test_an_interrupt_in_the_middle_of_an_append_leaves_it_undone(
    backend: FileBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C; the next append is fine."""
    add(backend)

    def interrupted(handle: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(disk, "sync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            add(backend, b"y")
    assert add(backend, b"z") == 2
    assert [record.body for record in backend.read(KEY)] == [b"x", b"z"]


def test_a_sweep_clears_away_what_a_killed_compaction_has_left(
    backend: FileBackend, root: Path
) -> None:
    """It may be as large as the journal."""
    add(backend)
    spare = root / ".limpet" / "journals" / "default" / "note" / "one.new"
    spare.write_bytes(b"half of it")
    assert backend.sweep() == 0
    assert not spare.exists()
    assert [record.seq for record in backend.read(KEY)] == [1]


# -- synced ----------------------------------------------------------------------------------------


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files and directories, in the order in which they are synced."""
    found: list[str] = []
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)

        def call(handle: int, real: Any = real) -> None:
            found.append(Path(f"/proc/self/fd/{handle}").readlink().name)
            real(handle)

        monkeypatch.setattr(os, name, call)
    return found


def test_every_append_is_synced_and_so_is_the_name_of_a_new_file(
    root: Path, synced: list[str]
) -> None:
    """A synced file without a name is gone after a power loss."""
    backend = FileBackend(str(root))
    assert {"state", root.parent.name} <= set(synced)
    synced.clear()
    add(backend)
    # The file before it has its name, then every directory on the way to it.
    assert synced == ["state", "default", "one.new", "state", "default", "note"]
    synced.clear()
    add(backend)
    assert synced == ["one.jsonl"]
    backend.close()
    backend = FileBackend(str(root))
    synced.clear()
    add(backend)
    # Whoever made the file may have died before its name was durable.
    assert synced == ["state", "default", "note", "one.jsonl"]
    backend.close()


def test_a_repeated_append_is_durable_before_it_is_acknowledged(
    root: Path, synced: list[str]
) -> None:
    """Its first writer may have been killed between the write and the sync."""
    first = FileBackend(str(root), durability="normal")
    add(first, id="a")
    second = FileBackend(str(root))
    synced.clear()
    assert second.append(Append(key=KEY, body=b"x", count=1, id="a")).repeated
    assert synced[-1] == "one.jsonl"
    synced.clear()
    assert second.append(Append(key=KEY, body=b"x", count=1, id="a")).repeated
    first.close()
    second.close()


def test_durability_can_be_given_up_and_is_then_reported(root: Path, synced: list[str]) -> None:
    """For tests, or what can be had again."""
    with limpet.open(f"file:{root}?durability=normal") as store:
        store.conversation("a").append(HELLO)
        synced.clear()
        store.conversation("a").append(HELLO)
        assert synced == []
        facts = {fact.name: fact for fact in store.backend.facts()}
        assert not facts["durability"].ok
    with pytest.raises(limpet.errors.InvalidURL, match="durability"):
        limpet.open(f"file:{root}?durability=some")


# -- what is dropped -------------------------------------------------------------------------------


def test_an_unfinished_last_line_is_dropped_with_a_note(
    backend: FileBackend, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its writer was killed in the middle of it; nobody was told that it is safe."""
    add(backend)
    path = root / "default" / "note" / "one.jsonl"
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(whole.splitlines()[1][:40])
    assert [record.seq for record in backend.read(KEY)] == [1]
    facts = [fact for fact in backend.facts(deep=True) if fact.name == "unfinished"]
    assert [(fact.ok, "line 3: 40 bytes" in fact.value) for fact in facts] == [(True, True)]
    assert "if no process died, restore a backup" in facts[0].advice
    with caplog.at_level(logging.WARNING, "limpet"):
        assert add(backend) == 2
    assert "one.jsonl: the last line has no end" in caplog.text
    assert "40 bytes" in caplog.text
    assert path.read_bytes().startswith(whole)
    assert [record.seq for record in backend.read(KEY)] == [1, 2]


def test_a_last_line_that_lacks_only_its_end_is_kept(backend: FileBackend, root: Path) -> None:
    """All of it is there."""
    add(backend)
    add(backend)
    path = root / "default" / "note" / "one.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    assert [record.seq for record in backend.read(KEY)] == [1, 2]
    assert add(backend) == 3
    assert [record.seq for record in backend.read(KEY)] == [1, 2, 3]
    path.write_bytes(path.read_bytes()[:-1])
    assert backend.compact(KEY, 2) == 1
    assert add(backend) == 4
    path.write_bytes(path.read_bytes()[:-1])
    assert backend.compact(KEY, 9) == 3
    assert add(backend) == 5
    assert [fact for fact in backend.facts(deep=True) if not fact.ok] == []
