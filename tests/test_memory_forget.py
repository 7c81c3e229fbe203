"""Tests of forgetting: what is gone is gone, from every file, and nothing else goes with it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.memory import rewriting
from holdfast.memory.entries import Told, living

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import Store

SAID = "xylophone-4711 belongs to nobody"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The index lies where the test can see it, and nowhere else."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("HOLDFAST_CACHE", str(directory))
    return directory


@pytest.fixture(params=["sqlite:{}/agents.db", "file:{}/agents"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Stores whose files can be searched."""
    return str(request.param.format(tmp_path))


def files_with(directory: Path, word: bytes) -> list[str]:
    """The files below *directory* that hold *word*."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return [path.name for path in files if word in path.read_bytes()]


def test_no_byte_of_what_is_forgotten_is_left(url: str, tmp_path: Path) -> None:
    """Neither in the store's files nor in any index; what others have stays."""
    with holdfast.open(url, tenant="acme") as store, holdfast.open(url, tenant="b") as rival:
        memory = store.memory("one", embed=counted)
        others = [store.memory("two"), rival.memory("one")]
        for other in others:
            other.remember("quite another text")
        memory.remember_all([f"filler number {n} {'x' * 300}" for n in range(50)])
        made = memory.remember(SAID, source="s")
        near = memory.remember("what was said next", context=f"before: {SAID}")
        memory.update(made.id, f"{SAID}, they say")
        assert memory.recall("xylophone", k=1)
        assert files_with(tmp_path, b"xylophone") != []
        receipt = memory.forget(made.id)
        assert len(receipt.ids) == 2
        assert receipt.contexts == (near.id,)
        assert receipt.vectors == 2
        assert receipt.entries == 3
        assert receipt.bytes > 0
        assert files_with(tmp_path, b"xylophone") == []
        assert memory.get(near.id).context is None
        assert memory.recall("xylophone", min_score=0.3) == []
        assert len(memory.all()) == 51
        assert [len(other.all()) for other in others] == [1, 1]
    assert files_with(tmp_path, b"xylophone") == []


def counted(texts: list[str]) -> list[list[float]]:
    """A model of a kind: how often each of some letters is there."""
    return [[text.count(letter) + 0.1 for letter in "xyaeno"] for text in texts]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """An empty store in a file."""
    with holdfast.open(tmp_path / "agents.db") as opened:
        opened.memory("other").remember("zebra elsewhere", tags=["t"], source="s")
        yield opened
        assert len(opened.memory("other").all()) == 1


def test_forgetting_by_source_tag_and_subject(store: Store) -> None:
    """Several conditions narrow it down; without any it is a mistake."""
    memory = store.memory("one")
    a = memory.remember("Ada likes tea", source="s", tags=["drinks"])
    b = memory.remember("Bob likes Ada", source="t", tags=["people"])
    c = memory.remember("Carol likes tea", source="s", tags=["people"])
    d = memory.remember("Dan", tags=["Ada"])
    assert memory.forget(source="s", tag="people").ids == (c.id,)
    assert not memory.forget(source="nothing")
    assert set(memory.forget(subject="Ada").ids) == {a.id, b.id, d.id}
    assert memory.all() == []
    with pytest.raises(ValueError, match="Say what to forget"):
        memory.forget()


def test_what_was_made_from_it_goes_too(store: Store) -> None:
    """And what else that was made from counts again."""
    memory = store.memory("one")
    a = memory.remember("zebra eats green grass daily")
    b = memory.remember("zebra eats green grass often")
    (made,) = memory.consolidate(lambda _: "zebras eat grass")
    assert set(memory.forget(a.id).ids) == {a.id, made.id}
    assert [one.id for one in memory.all()] == [b.id]
    assert memory.get(b.id).superseded_by is None


def test_what_was_forgotten_can_be_told_again(store: Store) -> None:
    """Forgotten is not forbidden."""
    memory = store.memory("one")
    made = memory.remember("zebra", key="k")
    memory.forget(made.id)
    assert memory.remember("zebra", key="k").id == made.id
    assert [hit.id for hit in memory.recall("zebra")] == [made.id]


def test_the_rest_is_as_it_was(store: Store) -> None:
    """Times, uses, versions and links outlive a rewriting, here and in an index made from it."""
    memory = store.memory("one")
    gone = memory.remember("to be forgotten")
    one = memory.remember("zebra one", tags=["t"], source="s", trust=0.5, key="k", ttl=9_000)
    two = memory.update(one.id, "zebra two", because="so")
    memory.confirm(two.id)
    memory.used(two.id, gone.id)
    memory.contradict(two.id, "zebra three")
    before = sorted(memory.all(superseded=True), key=lambda m: m.id)
    memory.forget(gone.id)
    after = sorted(memory.all(superseded=True), key=lambda m: m.id)
    assert after == [m for m in before if m.id != gone.id]
    memory.reindex()
    assert sorted(memory.all(superseded=True), key=lambda m: m.id) == after


def test_others_may_write_while_a_journal_is_rewritten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each portion is written only behind what is known; what came between counts."""
    monkeypatch.setattr(rewriting, "PORTION", 10)
    memory, rival = store.memory("one"), store.memory("one")
    made = [memory.remember(f"zebra {n}") for n in range(6)]
    acts: list[Callable[[], object]] = [
        lambda: rival.remember("zebra new"),
        lambda: rival.update(made[5].id, "zebra five"),
        lambda: rival.used(made[4].id),
        lambda: rival.forget(made[3].id),
    ]
    real = rewriting._portion

    def meanwhile(pending: list[Told]) -> list[Told]:
        if acts:
            acts.pop(0)()
        return real(pending)

    monkeypatch.setattr(rewriting, "_portion", meanwhile)
    memory.forget(made[0].id)
    expected = {"zebra 1", "zebra 2", "zebra 4", "zebra five", "zebra new"}
    for _ in range(2):
        assert {one.text for one in memory.all()} == expected
        assert memory.get(made[4].id).uses == 1
        memory.reindex()


WORDS = ["a", "b", "c", "d"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["remember", "forget", "use", "update"]), st.sampled_from(WORDS)),
        max_size=12,
    )
)
@settings(max_examples=40, deadline=None)
def test_an_index_that_followed_is_as_one_that_was_made_anew(acts: list[tuple[str, str]]) -> None:
    """It is derived: how often it was brought up to date does not matter, nor do rewritings."""
    with holdfast.open("memory:", tenant="x") as store, holdfast.open("memory:") as rival:
        memory = store.memory("one")
        rival.memory("one").remember("zebra")
        known: dict[str, str] = {}
        for act, word in acts:
            if act == "remember":
                known[word] = memory.remember(f"zebra {word}").id
            elif word in known and act == "use":
                memory.used(known[word])
            elif word in known and act == "update":
                memory.update(known[word], f"zebra {word}{word}")
            elif word in known:
                gone = set(memory.forget(known[word]).ids)
                known = {key: id_ for key, id_ in known.items() if id_ not in gone}
        followed = memory.all(superseded=True), memory.recall("zebra a b", k=9)
        memory.reindex()
        assert memory.all(superseded=True) == followed[0]
        again = memory.recall("zebra a b", k=9)
        assert [hit.id for hit in again] == [hit.id for hit in followed[1]]
        assert len(rival.memory("one").all()) == 1


def test_a_rewriting_keeps_each_entry_once() -> None:
    """However often it was begun before."""
    said = Told(1, 5, "remembered", {"id": "m-1", "text": "one", "kind": "fact"})
    other = Told(2, 6, "remembered", {"id": "m-2", "text": "two", "kind": "fact"})
    assert living([said, other, said]) == [said, other]
    forgotten = Told(3, 7, "forgotten", {"ids": ["m-1"]})
    assert living([said, other, forgotten]) == [other]
    assert living([said, other, forgotten, said]) == [said, other]


CHILD = """
import os, signal, sys
import holdfast
from holdfast.backends.base import Backend

url, act, boundary = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = holdfast.open(url, tenant="acme")
seen = 0

def watched(name):
    real = getattr(type(store.backend), name)
    def call(self, *args, **kwargs):
        global seen
        for _ in range(2):  # before it, and after
            if seen == boundary:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1
            if _ == 0:
                done = real(self, *args, **kwargs)
        return done
    setattr(type(store.backend), name, call)

for name in ("append", "compact"):
    watched(name)
memory = store.memory("one")
if act == "forget":
    memory.forget(subject="xylophone")
else:
    from tests.test_memory import checkpoint
    memory.learn(checkpoint())
print("done")
"""


def killed(url: str, act: str, boundary: int) -> bool:
    """Whether a process that does *act* came to that boundary, where it was killed."""
    root = Path(__file__).parent.parent
    command = [sys.executable, "-c", CHILD, url, act, str(boundary)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


@pytest.mark.parametrize("boundary", range(8))
def test_killed_while_forgetting_it_is_finished_by_the_next(url: str, boundary: int) -> None:
    """Once it was said it holds; the rest is never lost, never doubled."""
    with holdfast.open(url, tenant="acme") as store, holdfast.open(url, tenant="b") as rival:
        rival.memory("one").remember(SAID)
        store.memory("one").remember_all([SAID, "zebra", "giraffe"])
    reached = killed(url, "forget", boundary)
    with holdfast.open(url, tenant="acme") as store, holdfast.open(url, tenant="b") as rival:
        memory = store.memory("one")
        left = {one.text for one in memory.all()}
        assert {"zebra", "giraffe"} <= left
        assert reached or SAID not in left
        memory.forget(subject="zebra")
        memory.forget(subject="xylophone")
        assert [one.text for one in memory.all()] == ["giraffe"]
        said = [entry.body for entry in store.journal("memory", "one").read()]
        assert "xylophone" not in str(said)
        assert len(rival.memory("one").all()) == 1


@pytest.mark.parametrize("boundary", range(3))
def test_killed_while_learning_nothing_is_lost_or_doubled(url: str, boundary: int) -> None:
    """Who finishes the task again teaches it again, and finds what is there."""
    from tests.test_memory import checkpoint  # noqa: PLC0415 - as the child does

    killed(url, "learn", boundary)
    with holdfast.open(url, tenant="acme") as store:
        store.memory("two").remember("zebra")
        memory = store.memory("one")
        made = memory.learn(checkpoint())
        assert len(memory.all()) == len(made) == 4
        assert store.journal("memory", "one").head().seq == 4  # type: ignore[union-attr]
        assert len(store.memory("two").all()) == 1
