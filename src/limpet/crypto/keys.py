"""A user's keys: by number, one of them the current one, from a file, a variable or a KMS."""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
import stat
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from limpet.errors import InvalidKeys, KeyMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Keys"]

#: Bytes of a key.
SIZE = 32
#: The number of a key is two bytes in what it wraps; 0 is none.
MOST = 0xFFFF

_FIRST_LINES = """\
# The keys of a Limpet store. Whoever has them reads all of it; without them nobody does.
# Keep a copy in another place than the store's backups.
"""
_WORD = re.compile(r"(current|names|[1-9][0-9]{0,4})=(\S+)")


class Keys:
    """What a store is encrypted with: keys of 32 bytes by their number, 1 to 65535.

    *current* is the one that new journals are encrypted under, the highest unless it is named; the
    others are for what is there already. A key may be a function that returns it, from a KMS for
    example: it is called once, when the key is first needed. *names* is the secret of `pseudonym`,
    which never rotates.

    >>> keys = Keys({1: bytes(32), 2: lambda: b"k" * 32})
    >>> keys
    Keys(1, 2; current: 2)
    """

    def __init__(
        self,
        keys: Mapping[int, bytes | Callable[[], bytes]],
        *,
        current: int | None = None,
        names: bytes | None = None,
    ) -> None:
        self._keys = dict(keys)
        self._names = names
        #: The file they are from, and what it was when it was read.
        self._path: str | None = None
        self._stamp: tuple[int, ...] = ()
        for number, key in self._keys.items():
            if not 1 <= number <= MOST:
                raise InvalidKeys(f"The number of a key is from 1 to {MOST}, not {number!r}.")
            if not callable(key):
                _check_secret(key, f"Key {number}")
        if names is not None:
            _check_secret(names, "The secret for names")
        if not self._keys:
            raise InvalidKeys("There is no key. `limpet keys new FILE` makes one.")
        self.current = max(self._keys) if current is None else current
        if self.current not in self._keys:
            raise InvalidKeys(f"Key {self.current} is to be the current one, and is not there.")

    def __repr__(self) -> str:
        return f"Keys({', '.join(map(str, self.numbers))}; current: {self.current})"

    def __reduce__(self) -> Any:
        raise TypeError("Keys are not pickled: open the store where they are.")

    @property
    def numbers(self) -> list[int]:
        """The numbers of all keys, in order."""
        return sorted(self._keys)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The keys in a file that `limpet keys new` has made. Only its owner may read it.

        When the file is changed it is read again, before the next journal is encrypted: programs
        that share it follow a rotation by themselves.
        """
        with _reading(os.fspath(path)) as file:
            found = os.fstat(file.fileno())
            if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                msg = (
                    f"Others than its owner may use the key file {os.fspath(path)} (its mode is "
                    f"{stat.S_IMODE(found.st_mode):o}). Say: chmod 600 {os.fspath(path)}"
                )
                raise InvalidKeys(msg)
            text = file.read().decode(errors="replace")
        keys = cls.parse(text, f"The key file {os.fspath(path)}")
        keys._path = os.path.abspath(path)  # noqa: SLF001 - it is one of ours
        keys._stamp = _stamp(found)  # noqa: SLF001 - as above
        return keys

    @classmethod
    def parse(cls, text: str, what: str = "The text") -> Self:
        """The keys in a *text* as a key file has it: ``1=… 2=… current=2 names=…``, in base64."""
        found: dict[str, str] = {}
        for line in text.splitlines():
            for word in [] if line.lstrip().startswith("#") else line.split():
                pair = _WORD.fullmatch(word)
                if pair is None or pair[1] in found:
                    # Not the word itself: it may be a key with a typing error.
                    msg = f"{what} is not one of keys: it has lines like `1=KEY` and `current=1`."
                    raise InvalidKeys(msg)
                found[pair[1]] = pair[2]
        current, names = found.pop("current", None), found.pop("names", None)
        if current is not None and not current.isdecimal():
            raise InvalidKeys(f"{what} is not one of keys: `current=` has the number of one.")
        return cls(
            {int(number): _decoded(value, f"Key {number}") for number, value in found.items()},
            current=None if current is None else int(current),
            names=None if names is None else _decoded(names, "The secret for names"),
        )

    @classmethod
    def from_environment(cls) -> Self | None:
        """The keys that ``$LIMPET_KEYS`` names: a file, or the keys themselves; None without it."""
        text = os.environ.get("LIMPET_KEYS", "").strip()
        if not text:
            return None
        if all(_WORD.fullmatch(word) for word in text.split()):
            return cls.parse(text, "$LIMPET_KEYS")
        return cls.load(os.path.expanduser(text))

    @classmethod
    def generate(cls) -> Self:
        """One new key, number 1, and a secret for names."""
        return cls({1: os.urandom(SIZE)}, names=os.urandom(SIZE))

    # -- changes: each gives other keys, and leaves these as they are --------------------------

    def with_new(self, *, current: bool = True) -> Self:
        """These and a new one, which is the current one unless it is to be that later."""
        number = max(self._keys) + 1
        keys = {**self._keys, number: os.urandom(SIZE)}
        return type(self)(keys, current=number if current else self.current, names=self._names)

    def with_current(self, number: int) -> Self:
        """The same with another current one."""
        return type(self)(self._keys, current=number, names=self._names)

    def without(self, number: int) -> Self:
        """These but one."""
        if number == self.current:
            raise InvalidKeys(f"Key {number} is the current one. Make another current first.")
        if number not in self._keys:
            raise InvalidKeys(f"There is no key {number} among {self.numbers}.")
        keys = {other: key for other, key in self._keys.items() if other != number}
        return type(self)(keys, current=self.current, names=self._names)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write them to a file, which only its owner may read; durable, whole or not at all."""
        lines = [f"current={self.current}"]
        lines += [f"{number}={_encoded(self.secret(number))}" for number in self.numbers]
        lines += [] if self._names is None else [f"names={_encoded(self._names)}"]
        target = os.fspath(path)
        new = f"{target}.new-{os.urandom(4).hex()}"
        handle = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(_FIRST_LINES + "\n".join(lines) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, target)
        except BaseException:
            os.unlink(new)
            raise
        directory = os.open(os.path.dirname(target) or ".", os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    # -- use -----------------------------------------------------------------------------------

    def secret(self, number: int) -> bytes:
        """The key of this *number*; `KeyMissing` if it is not there."""
        if number not in self._keys:
            self.refresh()
        key = self._keys.get(number)
        if key is None:
            have = ", ".join(map(str, self.numbers))
            msg = (
                f"This was encrypted under key {number}, and there is only {have}. Name a file "
                "that has it in $LIMPET_KEYS, or give limpet.open the keys=… that have it."
            )
            raise KeyMissing(msg)
        if callable(key):
            key = _check_secret(key(), f"What the function for key {number} returned")
        self._keys[number] = key
        return key

    def refresh(self) -> None:
        """Read the file again, if they are from one that has been changed.

        No key is forgotten by that: what was read under one a moment ago can still be read.
        """
        if self._path is None:
            return
        try:
            if _stamp(os.stat(self._path)) == self._stamp:
                return
        except OSError:  # it is on a disk that was put away, say: those that we have are still good
            return
        now = type(self).load(self._path)
        self._keys = {**self._keys, **now._keys}  # noqa: SLF001 - one of ours
        self.current, self._stamp = now.current, now._stamp  # noqa: SLF001 - as above

    def pseudonym(self, text: str) -> str:
        """A keyed hash of *text*, for an id or a label: the same each time, and no way back.

        Ids, labels and status are not encrypted. Whoever has no keys learns from a pseudonym only
        that two are the same.

        >>> keys = Keys({1: bytes(32)}, names=bytes(32))
        >>> keys.pseudonym("ada@example.com")
        'caxc7uwhh75leoydn7djz2bt2lb2tevt'
        """
        if self._names is None:
            msg = "These keys have no secret for names. `limpet keys new FILE` makes keys with one."
            raise InvalidKeys(msg)
        digest = hmac.digest(self._names, b"limpet/1 name" + text.encode(), "sha256")
        return base64.b32encode(digest).decode().lower()[:32]


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    """What is another when a file has been written: it is replaced, or changed in place."""
    return found.st_ino, found.st_size, found.st_mtime_ns


def _reading(path: str) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        msg = f"The key file {path} cannot be read: {error.strerror or error}."
        raise InvalidKeys(msg) from error


def _check_secret(key: object, what: str) -> bytes:
    if not isinstance(key, bytes) or len(key) != SIZE:
        size = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise InvalidKeys(f"{what} must be {SIZE} bytes, not {size}.")
    return key


def _encoded(key: bytes) -> str:
    return base64.urlsafe_b64encode(key).decode()


def _decoded(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, altchars=b"-_", validate=True)
    except binascii.Error:
        raise InvalidKeys(f"{what} is not base64.") from None
