"""Deltas: a patch makes the new document of the old one, is small, and is refused where it lies."""

import copy
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.core import deltas
from limpet.core.deltas import BadPatch, Digest, NotPlain, apply, diff, digest, encode, is_patched
from tests.support.documents import documents, edited


def stored(value: Any) -> Any:
    """*value* as it is read back."""
    return msgspec.json.decode(msgspec.json.encode(value))


def patched(old: Any, new: Any, *, exact: bool = True) -> Any:
    """What a reader makes of *old* by the patch that leads to *new*."""
    patch = diff(old, new, exact=exact)
    return stored(old) if patch is None else apply(stored(old), stored(patch))


def size(patch: Any) -> int:
    """How much room a patch takes."""
    return len(msgspec.json.encode(patch))


# -- what they promise -----------------------------------------------------------------------------


@pytest.mark.slow
@given(st.data())
@settings(max_examples=400)
def test_a_patch_makes_the_new_document_of_the_old(data: st.DataObject) -> None:
    """To the byte: types, numbers, the order of keys."""
    old = data.draw(documents())
    new = data.draw(edited(old))
    assert encode(patched(old, new)) == encode(new)
    assert patched(old, new, exact=False) == new


@pytest.mark.slow
@given(documents(), documents())
@settings(max_examples=200)
def test_of_any_two_documents(old: Any, new: Any) -> None:
    """Those that have nothing to do with each other, too."""
    assert encode(patched(old, new)) == encode(new)


@pytest.mark.slow
@given(documents())
def test_a_document_is_no_change_of_itself(document: Any) -> None:
    """Nothing has changed, so there is nothing to write."""
    assert diff(document, copy.deepcopy(document), exact=True) is None
    assert diff(document, copy.deepcopy(document)) is None


@pytest.mark.slow
@given(st.data())
@settings(max_examples=200)
def test_documents_are_left_as_they_are_by_comparing_them(data: st.DataObject) -> None:
    """They belong to somebody."""
    old = data.draw(documents())
    new = data.draw(edited(old))
    before = encode([old, new])
    diff(old, new)
    diff(old, new, exact=True)
    assert encode([old, new]) == before


# -- their size ------------------------------------------------------------------------------------

LONG = [{"role": "user", "content": f"{number} " + "word " * 50} for number in range(200)]


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ([1, 2], [1, 2, 3, 4], {"add": [3, 4]}),
        ([1, 2, 3, 4], [3, 4, 5], {"cut": [[0, 2, []], [2, 0, [5]]]}),
        ([1, 2, 1, 3, 4], [1, 3, 4], {"cut": [[1, 2, []]]}),
        ([1, 2, 3], [1, 3], {"cut": [[1, 1, []]]}),
        ([1, 3], [1, 2, 3], {"cut": [[1, 0, [2]]]}),
        ([1, 2, 3], [1, 5, 3], {"at": [[1, {"put": 5}]]}),
        ([1, 2, 3, 4], [1, 5, 6, 4], {"cut": [[1, 2, [5, 6]]]}),
        ([{"n": 1}, 2], [{"n": 2}, 2], {"at": [[0, {"in": {"n": {"put": 2}}}]]}),
        ([{"n": 1}], [{"n": 2}, 3], {"at": [[0, {"in": {"n": {"put": 2}}}]], "cut": [[1, 0, [3]]]}),
        ({"a": 1}, {"a": 1, "b": 2}, {"in": {"b": {"put": 2}}}),
        ({"a": 1, "b": 2}, {"b": 2}, {"drop": ["a"]}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"order": ["b", "a"]}),
        ({"a": 1}, {"b": 2, "a": 1}, {"in": {"b": {"put": 2}}, "order": ["b", "a"]}),
        ("x" * 50, "x" * 50 + "y", {"add": "y"}),
        ("x" * 50 + "z" * 50, "x" * 50 + "y" + "z" * 50, {"cut": [50, 0, "y"]}),
        ("short", "shorter", {"put": "shorter"}),
        (1, True, {"put": True}),
        (1, 1.0, {"put": 1.0}),
        ([], {}, {"put": {}}),
        (None, 0, {"put": 0}),
    ],
)
def test_patches_are_as_people_would_write_them(old: Any, new: Any, patch: Any) -> None:
    """What is stored can be read, and has the shape of what it changes."""
    assert diff(old, new, exact=True) == patch
    assert encode(apply(stored(old), stored(patch))) == encode(new)


def test_a_history_that_grows_costs_what_is_new() -> None:
    """The commonest change there is."""
    old = {"type": "AssistantAgentState", "llm_context": {"messages": LONG}}
    new = {"type": "AssistantAgentState", "llm_context": {"messages": [*LONG, LONG[0]]}}
    for exact in (False, True):
        assert size(diff(old, new, exact=exact)) < size(LONG[0]) + 60


def test_a_history_that_forgets_its_oldest_costs_what_is_new() -> None:
    """One that keeps the newest so many, although all its messages move."""
    same = [{"role": "user", "content": "yes"}] * 3
    for old in (LONG, [*same, *LONG[:20], *same, *LONG[20:]]):
        assert size(diff(old, [*old[1:], LONG[7]])) < size(LONG[7]) + 60


def test_every_part_of_a_team_that_grew_costs_its_own() -> None:
    """Changes far from each other do not take with them what lies between."""
    old = {"agents": {name: {"messages": LONG} for name in "abcd"}, "turn": 1}
    new = {"agents": {name: {"messages": [*LONG, LONG[0]]} for name in "abcd"}, "turn": 2}
    assert size(diff(old, new)) < 5 * size(LONG[0])


@pytest.mark.slow
@given(st.data())
@settings(max_examples=400)
def test_what_a_patch_made_is_known_from_what_was_there(data: st.DataObject) -> None:
    """True of the new document, and of no other."""
    old = data.draw(documents())
    new = data.draw(edited(old))
    patch = diff(old, new, exact=True)
    if patch is None:
        return
    made = patched(old, new)
    assert is_patched(made, patch, encode(old), encode(new))
    other = data.draw(edited(new))
    assert is_patched(made, patch, encode(old), encode(other)) == (encode(other) == encode(new))


@pytest.mark.parametrize("behind", [{}, {"turn": 7}, {"turn": {}, "more": [LONG[0], []]}], ids=str)
@pytest.mark.parametrize("before", [[], LONG], ids=["empty", "long"])
@pytest.mark.parametrize("added", [LONG[:1], LONG[:3]], ids=["one", "three"])
def test_a_history_that_grew_is_known_by_its_end(
    behind: dict[str, Any], before: list[Any], added: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever in the document it lies; what was there is not encoded again."""
    old = {"type": "agent", "context": {"said": before, **behind}, **behind}
    new = {"type": "agent", "context": {"said": before + added, **behind}, **behind}
    patch = diff(old, new)
    assert patch is not None
    made, was, is_ = patched(old, new), encode(old), encode(new)
    encoded: list[int] = []

    def seen(part: Any) -> bytes:
        encoded.append(size(part))
        return encode(part)

    monkeypatch.setattr(deltas, "encode", seen)
    assert is_patched(made, patch, was, is_)
    for other in (was, is_[:-1], is_.replace(b"agent", b"AGENT"), is_.replace(b"said", b"SAID")):
        assert not is_patched(made, patch, was, other)
    assert max(encoded) <= max(size(added), size(behind))


# -- what they refuse ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "patch"),
    [
        ({}, None),
        ({}, []),
        ({}, {}),
        ({}, {"unheard": 1}),
        ({}, {"put": 1, "in": {}}),
        ({}, {"drop": ["a"]}),
        ({}, {"in": {"a": {"add": "x"}}}),
        ({}, {"in": ["a"]}),
        ({"a": 1}, {"order": ["a", "b"]}),
        ({"a": 1, "b": 2}, {"order": ["a", "a"]}),
        ({}, {"add": [1]}),
        ([], {"in": {}}),
        ([], {"add": "x"}),
        ([], {"add": [1], "cut": []}),
        ([], {"at": [[0, {"put": 1}]]}),
        ([1], {"at": [[-1, {"put": 1}]]}),
        ([1], {"at": [[True, {"put": 1}]]}),
        ([1], {"cut": [[0, 2, []]]}),
        ([1], {"cut": [[-1, 1, []]]}),
        ([1], {"cut": [[1, -1, [2]]]}),
        ([1], {"cut": [[0, 1, "x"]]}),
        ([1], {"cut": [[0, 1]]}),
        ([1], {"cut": 7}),
        ("x", {"add": ["y"]}),
        ("x", {"cut": [0, 2, ""]}),
        ("x", {"cut": [0, 1, 1]}),
        ("x", {"at": []}),
        (7, {"add": "x"}),
        (None, {"in": {}}),
    ],
)
def test_a_patch_that_does_not_fit_is_refused(document: Any, patch: Any) -> None:
    """Never guessed at: half a patch would make a document that nobody wrote."""
    with pytest.raises(BadPatch):
        apply(document, patch)


@pytest.mark.slow
@given(documents(), documents())
def test_whatever_is_applied_it_fits_or_is_refused(document: Any, patch: Any) -> None:
    """No other error comes from stored data."""
    with suppress(BadPatch):
        apply(document, patch)


@pytest.mark.parametrize(
    "value", [(1, 2), {1, 2}, b"x", {1: "a"}, object()], ids=lambda v: type(v).__name__
)
def test_what_is_not_plain_is_noticed(value: Any) -> None:
    """It has to be made plain before it can be compared."""
    with pytest.raises(NotPlain):
        diff({"a": {}}, {"a": value})


@given(st.lists(st.tuples(st.integers(0, 90), st.binary(max_size=60)), max_size=6))
def test_a_digest_is_the_same_whatever_went_before(edits: list[tuple[int, bytes]]) -> None:
    """It goes on from what two documents have in common, and that changes nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deltas, "BLOCK", 16)
        encoded, before = b"", None
        for at, text in edits:
            encoded = encoded[:at] + text + encoded[at:]
            before = Digest(encoded, before)
            assert before.text == digest(encoded)


def test_a_digest_is_of_every_byte() -> None:
    """It is what tells readers that a document is what was saved."""
    text = encode({"messages": LONG})
    assert digest(text) != digest(text[:-1] + b" ")
    assert digest(text) == digest(bytes(bytearray(text)))
