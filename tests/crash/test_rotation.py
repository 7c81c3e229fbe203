"""Keys are rotated while processes write, read and are killed: nothing is unreadable meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet.crypto.keys import Keys
from limpet.crypto.rotation import rotate, status
from limpet.crypto.sealed import Sealed
from limpet.testing.crash import seeded
from tests.support import places

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from limpet import Store
    from tests.support.places import Where

where = places.where

pytestmark = pytest.mark.slow

#: Appends to journals of its own and to one that all share, and says what was acknowledged.
WRITER = """
import sys, limpet
name, count = sys.argv[2], 0
with limpet.open(sys.argv[1]) as store:
    while True:
        count += 1
        for id in (f"{name}-{count // 5}", "shared"):
            store.journal("note", id).append(("said", f"{name} {count}"))
            print(id, name, count, flush=True)
"""

#: Adds a key, makes it the current one and rotates, again and again.
ROTATOR = """
import sys, limpet
from limpet.crypto.keys import Keys
from limpet.crypto.rotation import rotate
file = sys.argv[2]
while True:
    Keys.load(file).with_new().save(file)
    with limpet.open(sys.argv[1]) as store:
        needs = rotate(store.backend)
        assert not needs.unknown, needs.unknown
    print(needs.rewrapped, flush=True)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file of keys, which every process uses."""
    path = str(tmp_path / "keys")
    Keys.generate().save(path)
    monkeypatch.setenv("LIMPET_KEYS", path)
    return path


class Child:
    """A program that runs until it is killed, and what it has said until then."""

    def __init__(self, program: str, *arguments: str, said: Path) -> None:
        self._said = said
        with said.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program, *arguments], stdout=output, env=dict(os.environ)
            )

    def lines(self) -> list[str]:
        """What was said in whole lines."""
        return self._said.read_text().split("\n")[:-1]

    def kill(self) -> None:
        """With SIGKILL; it must not have ended before by itself."""
        assert self._process.poll() is None
        self.end()

    def end(self) -> None:
        """Whatever it does."""
        self._process.kill()
        self._process.wait()


def heard(store: Store) -> Iterator[tuple[str, str]]:
    """Every journal's id and entry, all of which can be read."""
    for head in store.backend.heads("default", "note"):
        for entry in store.journal("note", head.key.id).read():
            yield head.key.id, entry.body


def unheard(acknowledged: list[str], store: Store) -> list[str]:
    """What was acknowledged, and is not there exactly once."""
    found = Counter(heard(store))
    return [one for one in acknowledged if found[tuple(one.split(" ", 1))] != 1]  # type: ignore[index]


def test_rotation_goes_on_under_load_and_kills(where: Where, file: str, tmp_path: Path) -> None:
    """What was acknowledged is there once, at any moment; in the end by the last key alone."""
    limpet.open(where.url).close()
    with ExitStack() as stack:
        random = stack.enter_context(seeded())

        def start(program: str, name: str, *arguments: str) -> Child:
            child = Child(program, where.url, *arguments, said=tmp_path / name)
            stack.callback(child.end)
            return child

        writers = [start(WRITER, f"w{number}", f"w{number}") for number in range(2)]
        for kills in range(6):
            rotator = start(ROTATOR, f"rotator{kills}", file)
            for _ in range(2):
                acknowledged = [line for writer in writers for line in writer.lines()]
                with limpet.open(where.url) as store:
                    assert unheard(acknowledged, store) == []
            time.sleep(random.uniform(0.2, 1.0))
            rotator.kill()
            if kills % 2:  # a writer dies too, perhaps as it begins a journal
                number, name = random.randrange(2), f"w{kills}-again"
                writers[number].kill()
                writers[number] = start(WRITER, name, name)
        for writer in writers:
            writer.kill()
    acknowledged = [
        line for path in tmp_path.glob("w*") for line in path.read_text().split("\n")[:-1]
    ]
    assert len(acknowledged) > 10
    with limpet.open(where.url) as store:
        backend: Any = store.backend
        assert isinstance(backend, Sealed)
        needs = rotate(backend)
        assert needs.unknown == []
        assert list(status(backend).journals) == [backend.keys.current]
    last = Keys.load(file)
    only = Keys({last.current: last.secret(last.current)})
    with limpet.open(where.url, keys=only) as store:
        assert unheard(acknowledged, store) == []


def test_a_rotation_that_is_interrupted_goes_on(where: Where, file: str) -> None:
    """What is done is passed over; what still needs the old key is named."""
    with limpet.open(where.url) as store:
        for number in range(6):
            store.journal("note", f"n{number}").append(("said", number))
    Keys.load(file).with_new().save(file)

    class Enough(Exception):
        """Somebody has interrupted it."""

    done = []

    def stop(more: int) -> None:
        done.append(more)
        if len(done) == 4:
            raise Enough

    with limpet.open(where.url) as store:
        backend: Any = store.backend
        with pytest.raises(Enough):
            rotate(backend, stop)
        needs = status(backend)
        assert needs.journals == {1: 3, 2: 4}  # the marker is one of them
        assert len(needs.named[1]) == 3
        assert rotate(backend).rewrapped == 3
        assert status(backend).journals == {2: 7}
        assert rotate(backend).rewrapped == 0
        assert [entry.body for entry in store.journal("note", "n5").read()] == [5]
