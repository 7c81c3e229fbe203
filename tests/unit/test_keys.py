"""Keys: where they come from, and that nobody sees them by accident."""

from __future__ import annotations

import base64
import pickle
from typing import TYPE_CHECKING

import pytest

from limpet.crypto.keys import Keys
from limpet.errors import InvalidKeys, KeyMissing

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO = b"1" * 32, b"2" * 32
TEXT = base64.urlsafe_b64encode(ONE).decode()


def test_the_highest_key_is_the_current_one_unless_another_is_named() -> None:
    """New journals are encrypted under it."""
    assert Keys({1: ONE, 2: TWO}).current == 2
    assert Keys({1: ONE, 2: TWO}, current=1).current == 1


@pytest.mark.parametrize(
    "keys", [{}, {0: ONE}, {65536: ONE}, {1: b"short"}, {1: "text"}, {1: ONE * 2}]
)
def test_what_cannot_be_keys_is_refused(keys: dict[int, bytes]) -> None:
    """With an error that does not say what the key is."""
    with pytest.raises(InvalidKeys) as caught:
        Keys(keys)
    assert "short" not in str(caught.value)


def test_a_current_key_that_is_not_there_is_refused() -> None:
    """It would be noticed at the first write only."""
    with pytest.raises(InvalidKeys, match="Key 3"):
        Keys({1: ONE}, current=3)


def test_a_key_is_asked_of_its_function_once() -> None:
    """A service for keys is slow, and costs money."""
    asked = []

    def decrypt() -> bytes:
        asked.append(1)
        return ONE

    keys = Keys({1: decrypt})
    assert not asked
    assert [keys.secret(1), keys.secret(1)] == [ONE, ONE]
    assert len(asked) == 1


def test_what_a_function_returns_is_checked() -> None:
    """A service that answers with text, say."""
    with pytest.raises(InvalidKeys, match="function for key 1"):
        Keys({1: lambda: b"no"}).secret(1)


def test_keys_are_saved_and_loaded(tmp_path: Path) -> None:
    """To a file that only its owner may read."""
    path = tmp_path / "keys"
    made = Keys.generate().with_new()
    made.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    found = Keys.load(path)
    assert (found.numbers, found.current) == ([1, 2], 2)
    assert [found.secret(n) for n in (1, 2)] == [made.secret(n) for n in (1, 2)]
    assert found.pseudonym("ada") == made.pseudonym("ada")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    """With the command that helps."""
    path = tmp_path / "keys"
    Keys.generate().save(path)
    path.chmod(mode)
    with pytest.raises(InvalidKeys, match=r"chmod 600"):
        Keys.load(path)


def test_a_key_that_came_into_the_file_later_is_found(tmp_path: Path) -> None:
    """Another process has made it the current one: nothing may be unreadable here."""
    path = tmp_path / "keys"
    Keys.generate().save(path)
    keys = Keys.load(path)
    Keys.load(path).with_new().save(path)
    assert keys.secret(2) == Keys.load(path).secret(2)
    with pytest.raises(KeyMissing, match="key 3"):
        keys.secret(3)


def test_keys_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file, or as they are."""
    monkeypatch.delenv("LIMPET_KEYS", raising=False)
    assert Keys.from_environment() is None
    monkeypatch.setenv("LIMPET_KEYS", f"current=1 1={TEXT} 7={TEXT}")
    keys = Keys.from_environment()
    assert keys is not None
    assert (keys.numbers, keys.current, keys.secret(7)) == ([1, 7], 1, ONE)
    Keys({3: TWO}).save(tmp_path / "keys")
    monkeypatch.setenv("LIMPET_KEYS", str(tmp_path / "keys"))
    keys = Keys.from_environment()
    assert keys is not None
    assert keys.numbers == [3]


@pytest.mark.parametrize("text", [f"1={TEXT} nonsense", f"1={TEXT} 1={TEXT}", f"1={TEXT[:-2]}!!"])
def test_a_file_of_something_else_is_refused_and_not_quoted(text: str) -> None:
    """It may be a key with a typing error."""
    with pytest.raises(InvalidKeys) as caught:
        Keys.parse(text)
    assert TEXT[:20] not in str(caught.value)


def test_no_representation_shows_a_key() -> None:
    """Neither in a log, nor in a traceback, nor in a pickle."""
    keys = Keys({1: ONE, 2: TWO}, names=ONE)
    for text in (repr(keys), str(keys), f"{keys!r}"):
        assert text == "Keys(1, 2; current: 2)"
    with pytest.raises(TypeError):
        pickle.dumps(keys)


def test_a_key_is_taken_out_unless_it_is_the_current_one() -> None:
    """Rotation ends with that."""
    keys = Keys({1: ONE, 2: TWO})
    assert keys.without(1).numbers == [2]
    with pytest.raises(InvalidKeys, match="current"):
        keys.without(2)
    with pytest.raises(InvalidKeys, match="no key 9"):
        keys.without(9)


def test_a_pseudonym_is_the_same_after_a_rotation() -> None:
    """Ids and labels are looked up by it."""
    keys = Keys.generate()
    later = keys.with_new().without(1)
    assert later.pseudonym("ada@example.com") == keys.pseudonym("ada@example.com")
    assert later.pseudonym("ada@example.com") != later.pseudonym("ada@example.org")
    assert Keys.generate().pseudonym("ada") != keys.pseudonym("ada")
    with pytest.raises(InvalidKeys, match="secret for names"):
        Keys({1: ONE}).pseudonym("ada")
