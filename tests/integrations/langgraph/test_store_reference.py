"""LimpetStore does what LangGraph's InMemoryStore does, operation by operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, PutOp, SearchOp

from limpet.integrations.langgraph.store import journal as store_journal
from limpet.integrations.langgraph.store.names import id_of
from tests.support.langgraph_stores import PLACES, Reference, Rig, embed, plain
from tests.support.places import SERVERS

if TYPE_CHECKING:
    from collections.abc import Iterator

INDEX: Any = {"dims": 5, "embed": embed, "fields": ["text"]}

#: How many runs of batches are tried at each place.
EXAMPLES = {"memory": 40, "sqlite": 16, "file": 10, "postgresql": 6, "redis": 6, "dynamodb": 2}

# Labels that LangGraph's own put refuses come through its batch, and are labels.
labels = st.sampled_from(["a", "b", "ü", " x ", "%", "a.b", "", "A"])
namespaces = st.lists(labels, max_size=3).map(tuple)
keys = st.sampled_from(["k", "l", "m", ""])
texts = st.text("abcde ", max_size=4)
scalars = st.sampled_from([None, True, 0, 1, 2.5, -3, "2", "b"])
values = st.fixed_dictionaries(
    {"text": texts},
    optional={
        "n": scalars,
        "tags": st.lists(texts, max_size=3),
        "deep": st.fixed_dictionaries({"n": scalars, "list": st.lists(scalars, max_size=2)}),
    },
)
operators = st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"])
compared = st.dictionaries(operators, st.sampled_from([0, 1, 2.5, "2"]), min_size=1, max_size=2)
filters = st.fixed_dictionaries(
    {},
    optional={
        "text": texts,
        "n": scalars | compared,
        "tags": st.lists(texts, max_size=2),
        "deep": st.fixed_dictionaries({}, optional={"n": scalars | compared}),
        "missing": scalars,
    },
)
puts = st.builds(
    PutOp,
    namespaces,
    keys,
    values | values | st.none(),
    st.sampled_from([None, None, False, ["text"], ["tags[*]", "deep.n"]]),
    st.none(),
)
few = st.integers(0, 5)
reads = (
    st.builds(GetOp, namespaces, keys)
    | st.builds(
        SearchOp,
        namespaces,
        filters | st.none(),
        few,
        few,
        st.none() | st.text("abcde", min_size=1),
    )
    | st.builds(
        ListNamespacesOp,
        st.lists(
            st.builds(
                MatchCondition,
                st.sampled_from(["prefix", "suffix"]),
                st.lists(labels | st.just("*"), max_size=2).map(tuple),
            ),
            max_size=2,
        ).map(tuple),
        st.none() | st.integers(0, 3),
        few,
        few,
    )
)


def in_one_order(batch: list[Any]) -> list[Any]:
    """*batch* with its puts in the order in which namespaces that begin together are listed."""
    writes = [op for op in batch if isinstance(op, PutOp)]
    writes.sort(key=lambda op: id_of(op.namespace))
    return [op for op in batch if not isinstance(op, PutOp)] + writes


batches = st.lists(puts | reads, max_size=6).map(in_one_order)
runs = st.lists(st.tuples(st.booleans(), batches), min_size=1, max_size=12)


def _rigs() -> Iterator[Any]:
    for name in PLACES:
        marks = [pytest.mark.server] if name in SERVERS else []
        yield pytest.param(f"{name}-sync", marks=marks)
        yield pytest.param(f"{name}-async", marks=marks)


@pytest.fixture(params=_rigs())
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Each place, by sync and async methods."""
    name, _, way = request.param.rpartition("-")
    made = Rig(name, way, request)
    yield made
    made.close()


@pytest.mark.parametrize("compacting", [False, True], ids=["plainly", "compacting"])
def test_any_operations_do_what_they_do_in_memory(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, compacting: bool
) -> None:
    """Two processes take turns, and each sees what one store in memory would show it."""
    if compacting:  # at every write, whether that is worth it or not
        monkeypatch.setattr(store_journal, "LOOK_EVERY", 1)
        monkeypatch.setattr(store_journal, "SLACK", 0)
        monkeypatch.setattr(store_journal, "CHUNK", 150)

    @settings(
        max_examples=EXAMPLES[rig.name] // (1 + compacting),
        phases=[Phase.generate, Phase.shrink],
        database=None,
    )
    @given(run=runs)
    def compare(run: list[tuple[bool, list[Any]]]) -> None:
        stores = rig.store(index=INDEX), rig.again(index=INDEX)
        reference = Reference(index=INDEX)
        for which, batch in run:
            expected = plain(reference.batch(batch))
            assert plain(stores[which].batch(batch)) == expected, batch
        everything = SearchOp((), None, 1000)
        for store in (*stores, rig.again(index=INDEX)):
            assert plain(store.batch([everything])) == plain(reference.batch([everything]))

    compare()
