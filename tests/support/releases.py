"""``python -m tests.support.releases``: write with this release what later ones must still read.

Into tests/data, beside what earlier releases wrote, when what is stored changes. The tests that
read it are called "what an older release wrote can be read".
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import limpet
from limpet.backends.contract import Append, Key
from limpet.backends.file.backend import FileBackend
from tests.support.paths import DATA

if TYPE_CHECKING:
    from pathlib import Path

#: What the encrypted store is written with.
KEYS = limpet.Keys({1: b"1" * 32})


def write_models(store: limpet.Store) -> None:
    """A conversation, an open task and a finished one."""
    store.conversation("alice", labels={"team": "red"}).append(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "I prefer e-mail. 😀"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "x" * 20_000},
    )
    with store.task("report-42", "Summarise open incidents") as task:
        task.plan(["fetch", "write"])
        task.step("fetch", lambda: [1, 2, {"n": None}])
        task.decide("use the replica", because="of the rate limit")
        task.discover("100 calls a minute")
    with store.task("done-1", "Be done") as task:
        task.step("only", lambda: "result")
        task.finish()


def write_notes(backend: FileBackend, root: Path) -> None:
    """Journals as only a backend's own interface makes them: shortened, repaired."""
    note = Key("acme", "note", "Zoë/1")
    for n in range(5):
        backend.append(
            Append(
                key=note,
                body=bytes([n, n + 1]) * 20,
                count=2,
                id=f"id-{n}",
                status="open",
                labels={"n": str(n)},
                ttl=3_000_000_000.5,
            )
        )
    backend.compact(note, 5)
    repaired = note._replace(id="repaired")
    for n in range(3):
        backend.append(Append(key=repaired, body=b"damage me %d" % n, count=1))
    (path,) = (root / "acme/note").glob("repaired*")
    lines = path.read_bytes().splitlines(keepends=True)
    (second,) = (at for at, line in enumerate(lines) if line.startswith(b'{"seq":2'))
    lines[second] = lines[second].replace(b'"count":1', b'"count":7')
    path.write_bytes(b"".join(lines))
    backend.repair()


def main(release: str) -> None:
    """Write tests/data/store-RELEASE.db, encrypted-RELEASE.db and files-RELEASE."""
    file, directory = DATA / f"store-{release}.db", DATA / f"files-{release}"
    encrypted = DATA / f"encrypted-{release}.db"
    file.unlink(missing_ok=True)
    encrypted.unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
    with limpet.open(file, tenant="acme") as store:
        write_models(store)
    with limpet.open(encrypted, tenant="acme", keys=KEYS) as store:
        write_models(store)
        cut = store.journal("note", "cut")
        for number in range(40):
            cut.append(("n", number))
        cut.compact(11)
    with limpet.open(f"file:{directory}", tenant="acme") as store:
        write_models(store)
        assert isinstance(store.backend, FileBackend)
        write_notes(store.backend, directory)
    for left in directory.rglob("*.lock"):
        left.unlink()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else limpet.__version__)
