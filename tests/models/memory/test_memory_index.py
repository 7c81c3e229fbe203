"""Tests of memory's index: it follows the journal, finds by words and meaning, and is derived."""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

import limpet
from limpet.backends.contract import Key
from limpet.core.codec import Codec
from limpet.errors import EmbeddingFailed, MissingExtra
from limpet.memory import embeddings, forget, indexed_journal, recall, vectors
from limpet.memory.embeddings import embedding_function, model_name
from limpet.memory.index import Index, open_index
from limpet.memory.indexed_journal import IndexedJournal
from limpet.memory.local_model import LocalModel, WordPieces
from limpet.memory.ranking import (
    Parts,
    Usual,
    activation,
    alike,
    score,
    shares,
    weight_of_words,
    words_of,
)
from limpet.memory.recall import any_of, terms
from tests.support import stores

if TYPE_CHECKING:
    from limpet import Memory, Store

cache = stores.cache

TOPICS = ("animal", "money", "place")
MEANT = {"zebra": 0, "horse": 0, "invoice": 1, "payment": 1, "berlin": 2, "city": 2}


def embed(texts: list[str]) -> list[list[float]]:
    """A model of three meanings."""
    found = []
    for text in texts:
        vector = [0.01, 0.01, 0.01]
        for word in text.casefold().split():
            if word in MEANT:
                vector[MEANT[word]] += 1
        found.append(vector)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """A store in a file, in which another namespace and another tenant have memories too."""
    url = str(tmp_path / "agents.db")
    with limpet.open(url, tenant="acme") as opened, limpet.open(url, tenant="b") as rival:
        others = [opened.memory("two", embed=embed), rival.memory("one", embed=embed)]
        for other in others:
            other.remember("a secret horse")
        yield opened
        for other in others:
            assert texts(other.recall("zebra", k=9)) == ["a secret horse"]


@pytest.fixture
def memory(store: Store) -> Memory:
    """An empty memory."""
    return store.memory("one")


def texts(found: list[Any]) -> list[str]:
    """What memories say."""
    return [one.text for one in found]


# -- meaning -------------------------------------------------------------------------------------


def test_memories_are_found_by_what_they_mean(store: Store) -> None:
    """Without a common word; and why says so."""
    memory = store.memory("one", embed=embed)
    memory.remember_all(["my horse is brown", "the payment is late", "a city by the sea"])
    hit, *_ = memory.recall("zebra")
    assert hit.text == "my horse is brown"
    assert hit.why.words == 0
    assert hit.why.meaning == pytest.approx(1, abs=0.05)
    assert "meaning" in str(hit.why)
    assert texts(memory.recall("invoice", kinds=["fact"], k=1)) == ["the payment is late"]
    assert memory.recall("invoice", kinds=["note"]) == []


def test_a_memory_is_found_by_its_words_before_it_is_embedded(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Embedding comes after the write, some at each recall, or all in the background."""
    monkeypatch.setattr(embeddings, "AT_RECALL", 2)
    monkeypatch.setattr(vectors, "BATCH", 2)
    memory = store.memory("one", embed=embed)
    memory.remember_all([f"the zebra {number}" for number in range(7)])
    assert len(memory.recall("zebra", k=9)) == 7
    assert memory.stats().embedded == 2
    seen: list[tuple[int, int]] = []
    assert memory.embed(lambda done, total: seen.append((done, total))) == 5
    assert seen == [(2, 5), (4, 5), (5, 5)]
    assert memory.stats().embedded == 7
    assert memory.embed() == 0


def test_another_model_embeds_anew(store: Store) -> None:
    """Vectors of two models are never compared."""

    def larger(texts: list[str]) -> list[list[float]]:
        return [[*vector, 0.5, 0.5] for vector in embed(texts)]

    store.memory("one", embed=embed).remember("my horse is brown")
    assert store.memory("one", embed=embed).recall("zebra")
    memory = store.memory("one", embed=larger)
    assert texts(memory.recall("zebra")) == ["my horse is brown"]
    assert memory.stats().model == model_name(larger)
    assert memory.stats().embedded == 1
    assert store.memory("one").recall("zebra") == []


def test_a_context_adds_to_the_meaning(store: Store) -> None:
    """What was asked helps to find the answer: both are embedded as one text."""
    seen: list[str] = []

    def read(texts: list[str]) -> list[list[float]]:
        seen.extend(texts)
        return embed(texts)

    memory = store.memory("one", embed=read)
    memory.remember("no, it is brown", context="is the horse white")
    memory.remember("no, it is late", context="has the payment come")
    memory.remember("a city")
    assert texts(memory.recall("zebra", k=1)) == ["no, it is brown"]
    assert "is the horse white no, it is brown" in seen
    assert seen.count("a city") == 1


def test_vectors_that_come_one_by_one_are_all_compared(store: Store) -> None:
    """Whether there was room for them or not."""
    memory = store.memory("one", embed=embed)
    for number in range(9):
        memory.remember(f"horse {number}")
        assert len(memory.recall("zebra", k=20)) == number + 1
    assert {round(hit.why.meaning or 0, 2) for hit in memory.recall("zebra", k=20)} == {1.0}


def test_forgotten_memories_have_no_vector(store: Store) -> None:
    """Nor does another process find them by theirs."""
    memory, other = (store.memory("one", embed=embed) for _ in range(2))
    made = memory.remember("my horse is brown")
    memory.remember("the payment is late")
    assert texts(other.recall("zebra", k=1)) == ["my horse is brown"]
    assert memory.forget(made.id).vectors == 1
    assert texts(other.recall("zebra", k=1)) == ["the payment is late"]
    assert memory.stats().embedded == 1


def test_an_index_made_anew_knows_no_old_vectors(store: Store) -> None:
    """Its rows may have other numbers."""
    memory = store.memory("one", embed=embed)
    made = memory.remember("the payment is late")
    memory.remember("my horse is brown")
    assert texts(memory.recall("zebra", k=1)) == ["my horse is brown"]
    memory.forget(made.id)
    memory.reindex()
    memory.remember("a city by the sea")
    assert texts(memory.recall("zebra", k=1)) == ["my horse is brown"]
    assert texts(memory.recall("berlin", k=1)) == ["a city by the sea"]


def test_what_is_still_there_is_not_embedded_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forgetting elsewhere has an index made anew, in portions; vectors may have cost money."""
    asked: list[str] = []

    def paid(texts: list[str]) -> list[list[float]]:
        asked.extend(texts)
        return [
            [*vector, *(0.01 * text.count(a) for a in "adehlnoprx")]
            for vector, text in zip(embed(texts), texts, strict=True)
        ]

    monkeypatch.setattr(indexed_journal, "PORTION", 2)
    there = tmp_path / "there"
    with limpet.open(tmp_path / "x.db") as store:
        memory = store.memory("one", embed=paid)
        gone = memory.remember("a horse named xylophone-4711 is brown")
        memory.remember("the payment is late", context=f"so: {gone.text}")
        memory.remember_all(["a city by the sea", "my zebra"])
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("LIMPET_CACHE", str(there))
            memory.recall("horse")
            index = open_index(store.backend, Key("default", "memory", "one"))
            stored = index.run("SELECT value FROM vector")
        memory.recall("horse")
        asked.clear()
        memory.forget(gone.id)
        assert asked == []
        assert memory.stats().embedded == 2  # a context quoted what is gone
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("LIMPET_CACHE", str(there))
            hits = memory.recall("horse", k=9)
            left = b"".join(path.read_bytes() for path in there.iterdir())
    assert sorted(asked) == ["horse", "the payment is late"]
    assert {hit.text: round(hit.why.meaning or 0) for hit in hits}["my zebra"] == 1
    assert len(stored) == 4
    assert [value in left for (value,) in stored] == [True, True, False, False]
    assert not any(word in left for word in (b"xyloph", b"4711", gone.id.encode()))


def test_an_async_function_embeds_for_an_async_store(tmp_path: Path) -> None:
    """An API's client, say. A sync store says that it cannot."""

    async def ask(texts: list[str]) -> list[list[float]]:
        await asyncio.sleep(0)
        return embed(texts)

    async def scenario() -> None:
        async with limpet.open_async(tmp_path / "a.db") as store:
            await store.memory("two", embed=ask).remember("a secret horse")
            memory = store.memory("one", embed=ask)
            await memory.remember("my horse is brown")
            assert texts(await memory.recall("zebra")) == ["my horse is brown"]

    asyncio.run(scenario())
    with limpet.open("memory:") as store:
        store.memory("one").remember("zebra")
        with pytest.raises(TypeError, match="open_async"):
            store.memory("one", embed=ask).recall("zebra")


@pytest.mark.parametrize(
    "wrong", [lambda texts: [[1.0]] * 5, lambda texts: [[float("nan")]] * len(texts)]
)
def test_a_function_that_returns_nonsense_is_told(store: Store, wrong: Any) -> None:
    """Before anything is stored of it."""
    memory = store.memory("one", embed=wrong)
    memory.remember("zebra")
    with pytest.raises(ValueError, match="embedding function"):
        memory.recall("zebra")
    assert texts(store.memory("one").recall("zebra")) == ["zebra"]


class Down(Exception):
    """An embedding service is away."""


def test_a_query_that_cannot_be_embedded_says_so_and_how_to_go_on(tmp_path: Path) -> None:
    """What was written is kept; words find it; when the service is back, meaning does."""
    down = True

    def service(texts: list[str]) -> list[list[float]]:
        if down:
            raise Down("no answer for: " + texts[0])
        return embed(texts)

    async def later(texts: list[str]) -> list[list[float]]:
        return service(texts)

    async def scenario() -> None:
        nonlocal down
        async with limpet.open_async(tmp_path / "a.db") as store:
            for memory in (store.memory(name, embed=by) for name, by in functions.items()):
                down = True
                await memory.remember("my horse is brown")
                with pytest.raises(
                    EmbeddingFailed, match=r"query .*: Down\..*without embed"
                ) as told:
                    await memory.recall("horse")
                assert isinstance(told.value.__cause__, Down)
                assert "no answer" not in str(told.value)
                with pytest.raises(EmbeddingFailed, match=r"1 memory, .*: Down\..* tries again"):
                    await memory.embed()
                words = store.memory(memory.namespace)
                assert texts(await words.recall("horse")) == ["my horse is brown"]
                stats = await words.stats()
                assert (stats.unembedded, stats.embedding_failed) == (1, "Down")
                down = False
                assert texts(await memory.recall("zebra")) == ["my horse is brown"]
                stats = await memory.stats()
                assert (stats.unembedded, stats.embedding_failed) == (0, None)

    functions: dict[str, Any] = {"one": service, "two": later}
    asyncio.run(scenario())


def test_a_text_that_is_refused_does_not_keep_others_from_their_vectors(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Too long for a service, say: it is found by its words, and recall goes on."""
    tried: list[int] = []

    def service(texts: list[str]) -> list[list[float]]:
        tried.append(len(texts))
        if any("poison" in text for text in texts):
            raise Down
        return embed(texts)

    memory = store.memory("one", embed=service)
    memory.remember_all([f"horse {number}" for number in range(20)])
    memory.remember("poison in a secret city")
    for _ in range(9):
        assert memory.recall("a secret city", k=1)[0].text.startswith("poison")
    assert "Down" in caplog.text
    assert "secret" not in caplog.text
    assert tried.count(1) > 9
    stats = memory.stats()
    assert (stats.embedded, stats.unembedded) == (20, 1)
    tried.clear()
    memory.recall("city")
    assert tried == [1]  # the query alone: what was refused is left for a while
    memory.remember_all([f"zebra {number}" for number in range(30)])
    with pytest.raises(EmbeddingFailed, match=r"1 memory, .*: Down\."):
        memory.embed()
    assert memory.stats().embedded == 50


def test_without_numpy_words_still_work(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named where meaning is asked for."""
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "numpy", None)
        store.memory("one").remember("zebra")
        assert texts(store.memory("one").recall("zebra")) == ["zebra"]
        with pytest.raises(MissingExtra, match=r"'\.\[embeddings\]'"):
            store.memory("one", embed=embed)
    with pytest.raises(TypeError, match="embed"):
        store.memory("one", embed=5)  # type: ignore[arg-type]
    assert embedding_function(None) is None


def test_the_local_model_knows_what_words_mean(store: Store) -> None:
    """It runs here, and downloads nothing."""
    pytest.importorskip("onnxruntime")
    memory = store.memory("one", embed=True)
    memory.remember_all(["Reset a forgotten password", "Bananas are yellow"])
    assert texts(memory.recall("how do I recover my login?", k=1)) == ["Reset a forgotten password"]
    assert memory.stats().model == LocalModel.model
    one, many = LocalModel.shared()(["a", "b c"]), LocalModel.shared()(["b c"])
    assert abs(one[1] - many[0]).max() < 0.05


def test_pieces_of_words_are_those_that_the_model_was_taught_with() -> None:
    """As BERT's own tokenizer has them."""
    pieces = WordPieces()
    assert pieces.numbers("Embeddings, naïve café!", 20) == [
        *(101, 7861, 8270, 4667, 2015, 1010, 15743, 7668, 999, 102),
    ]
    assert pieces.numbers("天気", 20) == [101, 1811, 100, 102]
    assert pieces.numbers("x" * 101, 20) == [101, 100, 102]
    assert len(pieces.numbers("word " * 500, 256)) == 256


# -- ranking -------------------------------------------------------------------------------------

part = st.floats(0, 1)


perhaps = part | st.none()
found = st.builds(Parts, part, part, perhaps, perhaps, part) | st.builds(
    Parts, part, speaker=perhaps, activation=part
)


def scores(*parts: Parts, usual: Usual | None = None) -> list[float]:
    """What those score who were found for one query."""
    return [score(one) for one in shares(parts, usual or Usual())]


@given(st.lists(found, min_size=1, max_size=9), st.builds(Usual, part, part))
def test_a_score_is_from_0_to_1(parts: list[Parts], usual: Usual) -> None:
    """Whatever was found, and whatever is usual."""
    assert all(0 <= one <= 1 + 1e-9 for one in scores(*parts, usual=usual))


@given(part, part, part, part, part)
def test_who_is_better_in_one_part_is_before(
    words: float, meaning: float, near: float, active: float, more: float
) -> None:
    """And as good in all others."""
    one = Parts(words, meaning, near, 0.5, active, standing=0.5)
    for name in ("words", "meaning", "word_by_word", "speaker", "activation", "standing"):
        better = structs.replace(one, **{name: max(more, getattr(one, name))})
        first, second = scores(better, one)
        assert first >= second - 1e-9


@given(part, part)
def test_use_decides_between_equals_only(a: float, b: float) -> None:
    """Who fits better by more than a twentieth is first, however popular the other is."""
    if a > b + 0.06:
        first, second = scores(Parts(a), Parts(b, activation=1.0))
        assert first > second


def test_words_and_meaning_are_on_one_scale() -> None:
    """A cosine that all memories have is worth nothing, one that stands out as much as words do."""
    usual = Usual(meaning=0.6)
    named, meant, neither = scores(Parts(0.5, 0.6), Parts(0.0, 0.9), Parts(0.0, 0.61), usual=usual)
    assert named == meant > neither
    assert neither < 0.05


def test_of_common_words_meaning_decides() -> None:
    """Words that many texts have weigh less than rare ones, and never more than they may."""
    assert weight_of_words(1000, [1, 2]) == weight_of_words(1000, []) == 1
    assert 0 < weight_of_words(1000, [900]) < weight_of_words(1000, [300, 400]) < 0.5
    found = Parts(0.6, 0.3), Parts(0.3, 0.5)
    rare = shares(found, Usual())
    common = shares(found, Usual(), weight_of_words(1000, [300, 400]))
    assert score(rare[0]) > score(rare[1])
    assert score(common[0]) < score(common[1])


def test_where_no_text_has_much_of_a_query_meaning_decides() -> None:
    """The question was put in other words; what has one of them says little."""
    much = shares([Parts(0.6, 0.2), Parts(0.0, 0.7)], Usual())
    little = shares([Parts(0.1, 0.2), Parts(0.0, 0.7)], Usual())
    assert score(much[0]) > score(much[1])
    assert score(little[0]) < score(little[1])


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=5), st.floats(0, 1e9))
def test_each_use_raises_activation(ages: list[float], more: float) -> None:
    """It fades with time, and never goes over 1."""
    assert 0 < activation(ages) < activation([*ages, more]) <= 1
    assert activation([age + 1e6 for age in ages]) < activation(ages)


@given(st.text(max_size=30), st.text(max_size=30))
def test_likeness_is_mutual(one: str, other: str) -> None:
    """And whole with oneself."""
    a, b = words_of(one), words_of(other)
    assert alike(a, b) == alike(b, a)
    assert alike(a, a) == bool(a)


@given(st.lists(st.sampled_from("abcdef"), max_size=20), st.integers(1, 8))
@settings(max_examples=30)
def test_the_order_is_the_same_every_time(words: list[str], k: int) -> None:
    """Best first, the newer of equals first; fewer hits are the beginning of more."""
    with limpet.open("memory:") as store:
        memory = store.memory("one")
        store.memory("two").remember("a b c d e f")
        memory.remember_all([f"{word} number{at}" for at, word in enumerate(words)])
        hits = memory.recall("a b", k=50)
        assert [h.id for h in memory.recall("a b", k=50)] == [h.id for h in hits]
        assert [h.id for h in memory.recall("a b", k=k)] == [h.id for h in hits][:k]
        assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)


@given(query=st.text(max_size=60))
def test_no_query_is_an_error(query: str) -> None:
    """What people and models ask is words, never syntax."""
    with limpet.open("memory:") as store:
        store.memory("one").remember("any text at all: NEAR AND OR NOT")
        store.memory("one").recall(query)


def test_words_that_say_nothing_are_left_out() -> None:
    """Unless there are no others."""
    assert terms("What did Ada's brother say about it?") == ["ada", "brother", "say"]
    assert terms("to be or not to be") == ["to", "be", "or", "not"]
    assert any_of(["a", "b"]) == '"a" OR "b"'
    assert len(terms(" ".join(map(str, range(1000))))) == 64


def test_many_memories_are_found_as_few_are(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where many texts have common words, the rare ones say which are looked at; all count."""
    monkeypatch.setattr(recall, "ENOUGH", 10)
    monkeypatch.setattr(recall, "SURE", 1)
    monkeypatch.setattr(recall, "LEAST", 3)
    monkeypatch.setattr(recall, "EACH", 1)
    memory.remember_all([f"common words here and number{n}" for n in range(200)])
    memory.remember_all(["a single zebra", "a common zebra", "the other zebra"])
    memory.remember("words of another kind", kind="note")
    (hit, *others) = memory.recall("common words zebra", k=3)
    assert hit.text == "a common zebra"
    assert {other.text for other in others} == {"a single zebra", "the other zebra"}
    assert len(memory.recall("common words zebra", kinds=["note"])) == 1
    assert memory.recall("number17", k=1)[0].text.endswith("number17")
    assert 0.3 < hit.score < 1


def test_texts_are_not_scored_for_a_word_that_most_have(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing of any of them, and to score all of them takes longest."""
    monkeypatch.setattr(recall, "ENOUGH", 10)
    monkeypatch.setattr(recall, "LEAST", 3)
    monkeypatch.setattr(recall, "EACH", 1)
    memory.remember_all([f"a customer called number{n}" for n in range(200)])
    memory.remember_all([f"zebra {n} of a customer" for n in ("one", "two", "three")])
    real, looked_at = recall._matching, []

    def noted(*values: Any, among: str | None = None, **more: Any) -> Any:
        looked_at.append(among)
        return real(*values, among=among, **more)

    monkeypatch.setattr(recall, "_matching", noted)
    assert all("zebra" in hit.text for hit in memory.recall("zebra customer", k=3))
    assert looked_at == ['"zebra"', '"zebra"', None]  # in texts; in contexts, of which is none
    assert len(memory.recall("customer", k=9)) == 9


# -- the index is derived ------------------------------------------------------------------------


def files(cache: Path) -> list[Path]:
    """The files of indexes."""
    return sorted(cache.glob("*.memory"))


def test_only_what_is_new_is_read(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a recall is that of what was told since the last."""
    memory.remember_all([f"zebra {n}" for n in range(50)])
    memory.recall("zebra")
    read: list[int] = []
    real = IndexedJournal.read

    async def counted(self: Any, after: int, upto: int) -> Any:
        found = await real(self, after, upto)
        read.append(len(found))
        return found

    monkeypatch.setattr(IndexedJournal, "read", counted)
    memory.recall("zebra")
    memory.remember("zebra 50")
    assert len(memory.recall("zebra", k=99)) == 51
    assert read == [1]


@pytest.mark.parametrize("harm", ["deleted", "garbage", "old", "emptied"])
def test_an_index_that_is_gone_or_damaged_is_made_anew(
    tmp_path: Path, cache: Path, harm: str
) -> None:
    """Nothing is lost with it."""
    url = str(tmp_path / "x.db")
    with limpet.open(url) as store:
        store.memory("two").remember("a zebra elsewhere")
        store.memory("one").remember("zebra")
        assert texts(store.memory("one").recall("zebra")) == ["zebra"]
        (file,) = files(cache)
        index = open_index(store.backend, Key("default", "memory", "one"))
        if harm == "old":
            index.run("PRAGMA user_version=99")
        elif harm == "emptied":
            index.run("DROP TABLE memory")
        index.close()
    if harm == "garbage":
        file.write_bytes(b"not a database at all" * 100)
    elif harm == "deleted":
        file.unlink()
    with limpet.open(url) as store:
        assert texts(store.memory("one").recall("zebra")) == ["zebra"]
        assert texts(store.memory("two").recall("zebra")) == ["a zebra elsewhere"]


def test_a_store_that_began_anew_is_another(store: Store, memory: Memory) -> None:
    """The same name with as many entries is told apart by its incarnation."""
    memory.remember("zebra")
    assert memory.recall("zebra")
    store.journal("memory", "one").delete()
    assert memory.recall("zebra") == []
    memory.remember("giraffe")
    assert memory.recall("zebra") == []
    assert texts(memory.recall("giraffe")) == ["giraffe"]


def test_a_stale_index_does_not_keep_what_another_machine_forgot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is behind a rewriting, and has not read what that left out."""
    url = str(tmp_path / "x.db")
    with limpet.open(url) as here:
        made = here.memory("one").remember("zebra")
        here.memory("one").remember("horse")
        here.memory("two").remember("zebra")
        assert len(here.memory("one").recall("zebra horse")) == 2
        with monkeypatch.context() as elsewhere, limpet.open(url) as there:
            elsewhere.setenv("LIMPET_CACHE", str(tmp_path / "other"))
            there.memory("one").forget(made.id)
        assert texts(here.memory("one").recall("zebra horse")) == ["horse"]
        assert texts(here.memory("two").recall("zebra")) == ["zebra"]


def test_the_index_is_the_users_own(memory: Memory, cache: Path) -> None:
    """It holds what people said, so others may not read it; and a namespace has its own."""
    memory.remember("zebra")
    memory.recall("zebra")
    (file,) = files(cache)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert b"secret" not in file.read_bytes()


def test_what_is_encrypted_is_not_written_out_beside_it(tmp_path: Path, cache: Path) -> None:
    """A codec of one's own may be there to keep things secret."""

    class Secret(Codec):
        """Stands for one that encrypts."""

    with limpet.open(tmp_path / "a.db", codec=Secret()) as store:
        store.memory("two").remember("horse")
        store.memory("one").remember("zebra")
        assert texts(store.memory("one").recall("zebra horse")) == ["zebra"]
    assert not cache.exists()


def test_without_a_cache_it_is_in_memory(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """By wish."""
    memory.remember("zebra")
    monkeypatch.setenv("LIMPET_CACHE", "none")
    assert texts(memory.recall("zebra")) == ["zebra"]
    assert memory.reindex() == 1


def _in_a_child(url: str, number: int) -> None:
    with limpet.open(url) as store:
        memory = store.memory("one")
        for at in range(5):
            memory.remember(f"zebra {number} {at}")
            memory.recall("zebra")


def test_processes_share_an_index(tmp_path: Path) -> None:
    """Each brings it up to date, and none doubles what another has added; a fork is no harm."""
    url = str(tmp_path / "shared.db")
    with limpet.open(url) as store:
        store.memory("two").remember("zebra")
        store.memory("one").remember("zebra")
        store.memory("one").recall("zebra")
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=_in_a_child, args=(url, n)) for n in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0, 0, 0]
        assert len(store.memory("one").recall("zebra", k=99)) == 16
        assert len(store.memory("two").recall("zebra", k=99)) == 1


def test_nobody_sees_an_index_that_is_half_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may begin to make it anew between what is read and what is asked."""
    monkeypatch.setattr(indexed_journal, "PORTION", 10)
    monkeypatch.setattr(forget, "PORTION", 100)
    url = tmp_path / "agents.db"
    with limpet.open(url, tenant="acme") as one, limpet.open(url, tenant="acme") as two:
        memory, rival = one.memory("one"), two.memory("one")
        made = memory.remember_all([f"zebra number {n}" for n in range(40)])
        rival.list()
        _half_make(memory, rival, made[0].id, monkeypatch)
        assert memory.get(made[-1].id).text == "zebra number 39"
        _half_make(memory, rival, made[1].id, monkeypatch)
        assert texts(memory.recall("39", k=1)) == ["zebra number 39"]


def _half_make(memory: Memory, rival: Memory, gone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let *rival* forget, and die while the index is made anew: before *memory* asks it next."""
    its = rival._core._indexed.open_index()
    catch_up, add = memory._core._indexed._catch_up, its.add

    def cut_short(before: Any, *values: Any, **more: Any) -> bool:
        if before is not None:
            raise InterruptedError
        return add(before, *values, **more)

    async def after_that() -> Any:
        found = await catch_up()
        monkeypatch.setattr(memory._core._indexed, "_catch_up", catch_up)
        monkeypatch.setattr(its, "add", cut_short)
        with pytest.raises(InterruptedError):
            rival.forget(gone)
        monkeypatch.setattr(its, "add", add)
        return found

    monkeypatch.setattr(memory._core._indexed, "_catch_up", after_that)


@pytest.mark.parametrize("error", [apsw.FullError, apsw.CantOpenError, apsw.IOError])
def test_an_index_is_not_thrown_away_for_what_is_not_its_fault(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """A full disk, or too many open files, would cost all vectors; they are there again after."""
    memory = store.memory("one", embed=embed)
    memory.remember("a zebra")
    memory.embed()
    real = Index.known

    def refuse(index: Index) -> Any:
        if index.path != ":memory:":
            raise error("not now")
        return real(index)

    monkeypatch.setattr(Index, "known", refuse)
    assert texts(memory.recall("zebra")) == ["a zebra"]
    monkeypatch.setattr(Index, "known", real)
    assert store.memory("one").stats().embedded == 1


@pytest.mark.parametrize("by", [None, embed])
def test_many_versions_of_one_memory_hide_no_other(store: Store, by: Any) -> None:
    """Nor do many that say the same, or have expired: more are looked at, until enough count."""
    memory = store.memory("one", embed=by)
    memory.remember("the zebra is in the other house, and has been there for a long time")
    versions = [memory.remember("zebra invoice 0").id]
    for number in range(1, 120):
        versions.append(memory.update(versions[-1], f"zebra invoice {number}").id)
    if by is not None:
        memory.embed()
    assert len(memory.recall("zebra invoice")) == 2
    assert len(memory.recall("zebra invoice", min_score=0.9)) == 1


def test_reindexing_shows_its_progress(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """By entries of the journal."""
    monkeypatch.setattr(indexed_journal, "PORTION", 4)
    memory.remember_all([f"zebra {n}" for n in range(10)])
    seen: list[tuple[int, int]] = []
    assert memory.reindex(lambda done, total: seen.append((done, total))) == 10
    assert seen == [(4, 10), (8, 10), (10, 10)]


def test_a_store_that_went_back_to_a_backup_takes_its_index_with_it(tmp_path: Path) -> None:
    """What was written after the backup is in nobody's memory, nor found in a conversation."""
    path, backup = tmp_path / "agents.db", tmp_path / "backup.db"

    def say(*words: str) -> None:
        with limpet.open(path) as store:
            store.memory("one").remember_all(words)
            store.conversation("alice").append(*({"role": "user", "content": w} for w in words))
            assert len(store.memory("one").list()) == len(list(store.search_conversations("word")))

    say("the first word")
    shutil.copy(path, backup)
    say("a lost word", "another lost word")
    for further in (("a new word",), ("word one", "word two"), ("word three", "word four")):
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        shutil.copy(backup, path)
        say(*further)
        with limpet.open(path) as store:
            found = {one.text for one in store.memory("one").list()}
            assert found == {"the first word", *further}
            hits = store.search_conversations("word")
            assert {hit.excerpt for hit in hits} == found
