"""Tests of forgetting: what is gone is gone, from every file, and nothing else goes with it."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import limpet
from limpet.core.codec import Codec
from limpet.errors import InvalidId
from limpet.memory import forget
from limpet.memory.entries import LONGEST, MemoryEntry, contexts_quoting
from limpet.memory.forget import surviving
from limpet.memory.vectors import pack
from tests.support import stores
from tests.support.paths import ROOT
from tests.support.scopes import Scopes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from limpet import Memory, Store

cache = stores.cache

SAID = "xylophone-4711 belongs to nobody"


@pytest.fixture(params=["sqlite:{}/agents.db", "file:{}/agents"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Stores whose files can be searched."""
    return str(request.param.format(tmp_path))


def files_with(directory: Path, *words: bytes) -> list[tuple[str, bytes]]:
    """The files below *directory* that hold one of *words*, and which."""
    found = []
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        with contextlib.suppress(FileNotFoundError):  # what was of use to a store that is closed
            data = path.read_bytes()
            found += [(path.name, word) for word in words if word in data]
    return found


def test_no_byte_of_what_is_forgotten_is_left(url: str, tmp_path: Path) -> None:
    """Neither in the store's files nor in any index; what others have stays.

    Stored without compression, and looked for by stem, as an index of words has it; by all else
    that was said of it, by its ids and by its vector.
    """
    scopes = Scopes(partial(limpet.open, url, codec=Codec(compress_over=None)), embed=counted)
    memory = scopes.memory
    filler = [f"filler number {n} {'x' * 300}" for n in range(50)]
    memory.remember_all(filler[:25])
    about: dict[str, Any] = {
        "source": "of-4712",
        "by": "by-4712",
        "tags": ["tag-4712"],
        "key": "key-4712",
    }
    made = memory.remember(SAID, context="quagga", **about)
    near = memory.remember(
        "what was said next", context="before: xylophone-4711  belongs to\nnobody"
    )
    newer = memory.update(made.id, f"{SAID}, they say", because="quagga")
    memory.contradict(newer.id, near.id, because="quagga")
    memory.confirm(newer.id, by="by-4712")
    memory.remember_all(filler[25:])
    memory.embed()
    index = memory._core._indexed.open_index()
    vector = (
        "SELECT value FROM vector JOIN passage USING (p) JOIN memory USING (n) WHERE id IN (?, ?)"
    )
    vectors = [value for (value,) in index.run(vector, (made.id, newer.id))]
    ids = [one.id.encode() for one in (made, newer)]
    words = [b"xyloph", b"quagg", b"-4711", b"-4712", *vectors, *ids]
    assert len(vectors) == 2
    assert {word for _, word in files_with(tmp_path, *words)} == set(words)
    receipt = memory.forget(made.id)
    assert len(receipt.ids) == 2
    assert receipt.contexts == (near.id,)
    assert (receipt.vectors, receipt.entries, receipt.scrubbed) == (2, 5, True)
    assert receipt.bytes > 0
    assert files_with(tmp_path, *words) == []
    assert memory.get(near.id).context is None
    assert memory.recall("xylophone", min_score=0.3) == []
    assert len(memory.list()) == 51
    scopes.check()
    for store in (scopes.store, scopes.rival):
        store.close()
    assert files_with(tmp_path, *words) == []


def counted(texts: list[str]) -> list[list[float]]:
    """A model of a kind: how often each of some letters is there."""
    return [[text.count(letter) + 0.1 for letter in "xyaeno"] for text in texts]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store in a file, with neighbours."""
    scopes = Scopes(partial(limpet.open, tmp_path / "agents.db"), "one")
    yield scopes.store
    scopes.check()
    scopes.store.close()
    scopes.rival.close()


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
    assert memory.list() == []
    with pytest.raises(ValueError, match="Say what to forget"):
        memory.forget()


TAGS = ("zoë", "ZOE", "Zoe")


def test_a_subject_is_a_name_and_not_a_stem(store: Store) -> None:
    """What is gone is gone: only what has those words, with or without an ending, goes."""
    memory = store.memory("one")
    kept = [memory.remember(text) for text in ("The university", "Marianne", "an ad by Adams")]
    cases = {
        "Universal": ["Universal makes films", "we like universal's films", "UNIVERSALS"],
        "ada lovelace": ["met Ada-Lovelace", "Ádá\nLovelace"],
        "天気": ["今日は天気がいい"],
        "WEISS": ["Herr Weiß wohnt hier", "Frau Weiss auch"],
        "Groß": ["GROSS is his name"],
        "οδός": ["οδός".upper()],
        "office": ["the of\ufb01ce"],
    }
    for subject, said in cases.items():
        made = memory.remember_all(said)
        assert set(memory.forget(subject=subject).ids) == {one.id for one in made}
    tagged = [memory.remember(f"note {number}", tags=[tag]).id for number, tag in enumerate(TAGS)]
    assert set(memory.forget(subject="Zoë").ids) == set(tagged)
    assert {one.id for one in memory.list()} == {one.id for one in kept}
    assert not memory.forget(subject=".")  # only signs, and no name
    for wrong in ("", " ", "\ud800"):
        with pytest.raises(InvalidId):
            memory.forget(subject=wrong)


def test_a_name_is_told_from_others_by_its_signs(store: Store) -> None:
    """C++ is not C; but a full stop, a hyphen or a hash tag makes nobody another."""
    memory = store.memory("one")
    cases = {
        "C++": ["C++11 it is", "C/C++."],
        "C#": ["they know C#"],
        "C": ["plan C.", "C-style"],
        ".NET": [".NET runs it"],
        "net": ["a safety net"],
        "node.js": ["Node.js, no less"],
        "node": ["a node of the graph"],
        "AT&T": ["AT&T called"],
        "\N{UNICORN FACE} Ltd": ["the \N{UNICORN FACE} Ltd"],
        "Ada": ["ada@example.org", "#Ada#", "Bob+Ada", "we met ada.she left", "ADA's"],
    }
    made = {name: [one.id for one in memory.remember_all(said)] for name, said in cases.items()}
    memory.remember_all(["an example.net site", "at T", "Acme Ltd"])
    for name, ids in made.items():
        assert (name, set(memory.forget(subject=name).ids)) == (name, set(ids))
    assert len(memory.list()) == 3


def test_an_older_version_that_expires_leaves_the_newer(store: Store) -> None:
    """What counts now is not gone because what it replaced would be."""
    memory = store.memory("one")
    old = memory.remember("the code is 5", ttl=0.001)
    new = memory.update(old.id, "the code is 6")
    memory.remember("the code is 6")
    assert old.expires_at is not None
    while datetime.now(UTC) <= old.expires_at:
        pass
    gone = memory.forget(expired=True).ids
    assert (old.id in gone) == (new.id in gone)
    assert [one.text for one in memory.list()] == ["the code is 6"]


def test_only_a_context_that_quotes_it_goes_with_it(store: Store) -> None:
    """A short text is a part of many a word."""
    memory = store.memory("one")
    short = memory.remember("no")
    quoting = memory.remember("they left", context="asked, they said no.")
    other = memory.remember("they stayed", context="they know nothing")
    assert memory.forget(short.id).contexts == (quoting.id,)
    assert memory.get(other.id).context == "they know nothing"


def test_a_context_that_quotes_a_part_of_it_goes_with_it(store: Store) -> None:
    """Whatever stands around that part, and however it was cut."""
    memory = store.memory("one")
    words = "the zebra belongs to nobody, " + "and more was said of it at some length, " * 8
    long = memory.remember(words)
    for number, start in enumerate(range(3, 200, 28)):
        memory.remember(f"answer {number}", context=f"Before:  {words[start : start + 60]} …and on")
    assert len(memory.forget(long.id).contexts) == 8
    assert {one.context for one in memory.list()} == {None}


def test_a_vector_that_is_made_while_words_are_forgotten_is_not_kept(store: Store) -> None:
    """To embed takes a while; what it read of a context may be gone by then."""
    words = store.memory("one")
    gone = words.remember(SAID)
    kept = words.remember("it is so", context=f"they said: {SAID}")

    def slow(texts: list[str]) -> list[list[float]]:
        if any(SAID in text for text in texts):
            words.forget(gone.id)
        return counted(texts)

    memory = store.memory("one", embed=slow)
    assert memory.embed() == 3
    assert (memory.stats().embedded, memory.get(kept.id).context) == (1, None)
    (value,) = memory._core._indexed.open_index().run("SELECT value FROM vector")
    assert value == (pack(counted([kept.text]))[0],)


def test_the_longest_memory_does_not_hinder_forgetting(store: Store) -> None:
    """What could be written can be written again."""
    memory = store.memory("one")
    memory.remember("\0" * (LONGEST - 1) + "x")
    gone = memory.remember("zebra")
    assert memory.forget(gone.id).ids == (gone.id,)
    assert len(memory.list()) == 1


def test_what_was_made_from_it_goes_too(store: Store) -> None:
    """And what else that was made from counts again."""
    memory = store.memory("one")
    a = memory.remember("zebra eats green grass daily")
    b = memory.remember("zebra eats green grass often")
    (made,) = memory.consolidate(lambda _: "zebras eat grass")
    assert set(memory.forget(a.id).ids) == {a.id, made.id}
    assert [one.id for one in memory.list()] == [b.id]
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
    memory.mark_used(two.id, gone.id)
    memory.contradict(two.id, "zebra three")
    before = sorted(memory.list(superseded=True), key=lambda m: m.id)
    memory.forget(gone.id)
    after = sorted(memory.list(superseded=True), key=lambda m: m.id)
    assert after == [m for m in before if m.id != gone.id]
    memory.reindex()
    assert sorted(memory.list(superseded=True), key=lambda m: m.id) == after


def test_others_may_write_while_a_journal_is_rewritten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each portion is written only behind what is known; what came between counts."""
    monkeypatch.setattr(forget, "PORTION", 10)
    memory, rival = store.memory("one"), store.memory("one")
    made = [memory.remember(f"zebra {n}") for n in range(6)]
    acts: list[Callable[[], object]] = [
        lambda: rival.remember("zebra new"),
        lambda: rival.update(made[5].id, "zebra five"),
        lambda: rival.mark_used(made[4].id),
        lambda: rival.forget(made[3].id),
    ]
    real = forget._next_portion

    def meanwhile(pending: list[MemoryEntry]) -> list[MemoryEntry]:
        if acts:
            acts.pop(0)()
        return real(pending)

    monkeypatch.setattr(forget, "_next_portion", meanwhile)
    memory.forget(made[0].id)
    expected = {"zebra 1", "zebra 2", "zebra 4", "zebra five", "zebra new"}
    for _ in range(2):
        assert {one.text for one in memory.list()} == expected
        assert memory.get(made[4].id).uses == 1
        memory.reindex()


def test_nothing_of_a_deleted_journal_is_moved_to_the_one_that_takes_its_place(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted while it is rewritten, and begun again up to the same number, it is another one."""
    memory, rival = store.memory("one"), store.memory("one")
    gone, _ = memory.remember_all(["zebra", "giraffe"])
    real = forget._next_portion

    def meanwhile(pending: list[MemoryEntry]) -> list[MemoryEntry]:
        monkeypatch.setattr(forget, "_next_portion", real)
        store.journal("memory", "one").delete()
        rival.remember_all(["lion", "tiger", "puma"])
        return real(pending)

    monkeypatch.setattr(forget, "_next_portion", meanwhile)
    memory.forget(gone.id)
    assert {one.text for one in memory.list(superseded=True)} == {"lion", "tiger", "puma"}


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[tuple[Memory, Memory]]:
    """One memory as two processes have it, each with a connection of its own to one index."""
    url = tmp_path / "agents.db"
    with limpet.open(url, tenant="acme") as one, limpet.open(url, tenant="acme") as other:
        scopes = Scopes(partial(limpet.open, url))
        yield one.memory("one"), other.memory("one")
        scopes.check()


def test_what_others_say_while_a_journal_is_rewritten_still_holds_in_an_index_made_from_it(
    processes: tuple[Memory, Memory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update, a use, the same words again: of what is written behind them, none is lost."""
    memory, rival = processes
    gone, price, used, told = (
        memory.remember(text, tags=["first"])
        for text in ("to be forgotten", "the price is ten", "zebra used", "zebra told")
    )
    acts: list[Callable[[], object]] = [
        lambda: rival.update(price.id, "the price is twenty"),
        lambda: rival.confirm(used.id),
        lambda: rival.remember("zebra told", tags=["again"]),
        lambda: rival.contradict(used.id, told.id),
    ]
    real = forget._next_portion

    def meanwhile(pending: list[MemoryEntry]) -> list[MemoryEntry]:
        while acts:
            acts.pop(0)()
        return real(pending)

    monkeypatch.setattr(forget, "_next_portion", meanwhile)
    memory.forget(gone.id)
    for _ in range(2):
        assert [hit.text for hit in memory.recall("price")] == ["the price is twenty"]
        assert memory.get(used.id).confirmed == 1
        assert memory.get(used.id).contradicted_by == (told.id,)
        assert (memory.get(told.id).at, memory.get(told.id).tags) == (told.at, ("first",))
        memory.reindex()


def test_what_is_made_from_a_memory_while_it_is_forgotten_goes_too(
    processes: tuple[Memory, Memory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes is decided by what is there when it is said, not by what was there before."""
    memory, rival = processes
    made = memory.remember("Ada lives in Paris")
    real = forget._select

    def meanwhile(*values: Any) -> Any:
        found = real(*values)
        monkeypatch.setattr(forget, "_select", real)
        rival.update(made.id, "Ada lives in Paris, in the rue Cujas")
        return found

    monkeypatch.setattr(forget, "_select", meanwhile)
    assert len(memory.forget(made.id).ids) == 2
    assert memory.list(superseded=True) == rival.list(superseded=True) == []


def test_a_busy_writer_does_not_keep_others_from_forgetting(
    processes: tuple[Memory, Memory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look for what goes takes its time: not all over again for whatever was written."""
    memory, rival = processes
    made = memory.remember("Ada lives in Paris")
    real, asked = forget._select, []

    def meanwhile(*values: Any) -> Any:
        asked.append(1)
        found = real(*values)
        rival.remember(f"zebra {len(asked)}")
        return found

    monkeypatch.setattr(forget, "_select", meanwhile)
    assert memory.forget(made.id).ids == (made.id,)
    assert len(asked) == 1
    memory.reindex()
    assert [one.text for one in memory.list(superseded=True)] == ["zebra 1"]


def quoted_slowly(texts: list[str], context: str) -> bool:
    """What `contexts_quoting` says, text by text and sign by sign."""
    within = " ".join(context.split())
    for text in (" ".join(text.split()) for text in texts):
        pieces = {text[at : at + 20] for at in range(0, len(text) - 19, 20)}
        if any(within[at : at + 20] in pieces for at in range(len(within) - 19)):
            return True
        if len(within) >= 20 and within in text:
            return True
        if re.search(rf"(?<!\w){re.escape(text)}(?!\w)", within):
            return True
    return False


@given(
    st.lists(st.text("ab .\n", max_size=70).filter(str.strip), max_size=5),
    st.lists(st.text("ab .\n", max_size=90), max_size=5),
)
@settings(max_examples=300)
def test_contexts_are_compared_with_many_texts_as_each_with_each(
    texts: list[str], contexts: list[str]
) -> None:
    """Many may be forgotten at once: to look for each of them in every context takes minutes."""
    expected = {c for c in contexts if c and quoted_slowly(texts, c)}
    assert contexts_quoting(texts, contexts) == expected


WORDS = ["a", "b", "c", "d"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["remember", "forget", "use", "update"]), st.sampled_from(WORDS)),
        max_size=12,
    )
)
@settings(max_examples=40)
def test_an_index_that_followed_is_as_one_that_was_made_anew(acts: list[tuple[str, str]]) -> None:
    """It is derived: how often it was brought up to date does not matter, nor do rewritings."""
    with limpet.open("memory:", tenant="x") as store, limpet.open("memory:") as rival:
        memory = store.memory("one")
        rival.memory("one").remember("zebra")
        known: dict[str, str] = {}
        for act, word in acts:
            if act == "remember":
                known[word] = memory.remember(f"zebra {word}").id
            elif word in known and act == "use":
                memory.mark_used(known[word])
            elif word in known and act == "update":
                memory.update(known[word], f"zebra {word}{word}")
            elif word in known:
                gone = set(memory.forget(known[word]).ids)
                known = {key: id_ for key, id_ in known.items() if id_ not in gone}
        followed = memory.list(superseded=True), memory.recall("zebra a b", k=9)
        memory.reindex()
        assert memory.list(superseded=True) == followed[0]
        again = memory.recall("zebra a b", k=9)
        assert [hit.id for hit in again] == [hit.id for hit in followed[1]]
        assert len(rival.memory("one").list()) == 1


def test_a_rewriting_keeps_each_entry_once() -> None:
    """However often it was begun before."""
    said = MemoryEntry(1, 5, "remembered", {"id": "m-1", "text": "one", "kind": "fact"})
    other = MemoryEntry(2, 6, "remembered", {"id": "m-2", "text": "two", "kind": "fact"})
    assert surviving([said, other, said]) == [said, other]
    forgotten = MemoryEntry(3, 7, "forgotten", {"ids": ["m-1"]})
    assert surviving([said, other, forgotten]) == [other]
    assert surviving([said, other, forgotten, said]) == [said, other]


CHILD = """
import os, signal, sys
import limpet
from tests.models.memory.test_memory import checkpoint
from tests.models.memory.test_memory_forget import SAID
from tests.support.paths import ROOT

url, act = sys.argv[1:]

def watched(store, name, boundary, seen=[0]):
    real = getattr(type(store.backend), name)
    def passed():
        if seen[0] == boundary:
            os.kill(os.getpid(), signal.SIGKILL)
        seen[0] += 1
    def call(self, *args, **kwargs):
        passed()
        done = real(self, *args, **kwargs)
        passed()
        return done
    setattr(type(store.backend), name, call)

def doomed(boundary):
    with limpet.open(url.format(boundary), tenant="acme") as store:
        for name in ("append", "compact", "scrub"):
            watched(store, name, boundary)
        memory = store.memory("one")
        if act == "forget":
            memory.forget(subject="xylophone-4711")
        else:
            memory.learn(checkpoint())

boundary, status = 0, None
while status != 0:
    with limpet.open(url.format(boundary), tenant="acme") as store:
        store.memory("one").remember_all([SAID, "zebra", "giraffe"])
    pid = os.fork()
    if pid == 0:
        doomed(boundary)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL), status
    boundary += 1
print(boundary)
"""


def killed(template: str, act: str) -> int:
    """How many processes did *act*: each was killed one boundary later, and the last not at all."""
    root = ROOT
    command = [sys.executable, "-c", CHILD, template, act]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.fixture(params=["sqlite:{}/{{}}.db", "file:{}/{{}}"])
def several(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Stores for as many processes, whose files can be searched."""
    return str(request.param.format(tmp_path))


@pytest.mark.slow
def test_killed_while_forgetting_it_is_finished_by_the_next(several: str, tmp_path: Path) -> None:
    """Once it was said it holds; asked again nothing is left of it; the rest is never lost."""
    count = killed(several, "forget")
    assert count > 8
    for number in range(count):
        scopes = Scopes(partial(limpet.open, several.format(number)), "one")
        memory = scopes.memory
        left = [one.text for one in memory.list()]
        assert {"zebra", "giraffe"} <= set(left)
        assert len(left) == len(set(left))
        memory.forget(subject="xylophone-4711")
        assert sorted(one.text for one in memory.list()) == ["giraffe", "zebra"]
        said = [entry.body for entry in scopes.store.journal("memory", "one").read()]
        assert "xylophone" not in str(said)
        scopes.check()
        scopes.store.close()
        scopes.rival.close()
    assert files_with(tmp_path, b"xyloph") == []


@pytest.mark.slow
def test_killed_while_learning_nothing_is_lost_or_doubled(several: str) -> None:
    """Who finishes the task again teaches it again, and finds what is there."""
    from tests.models.memory.test_memory import checkpoint  # noqa: PLC0415 - as the child does

    for number in range(killed(several, "learn")):
        scopes = Scopes(partial(limpet.open, several.format(number)), "one")
        made = scopes.memory.learn(checkpoint())
        assert len(scopes.memory.list()) == len(made) + 3 == 7
        assert scopes.memory.stats().position == 7
        scopes.check()
        scopes.store.close()
        scopes.rival.close()
