"""A document that is about to be saved: what it is stored as, and whether that is all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from limpet.core import deltas
from limpet.core.codec import CHECK, HEADER, Codec, plain
from limpet.errors import NotStorable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Draft", "check_text"]

_REFUSED = (TypeError, ValueError, OverflowError, RecursionError)


class Draft:
    """A document as its user has it, and the JSON of it. `make_plain` if that is in doubt.

    What JSON has not (a model, a set, a number that is none) msgspec may write in silence as
    something else. Who finds a difference to what is read back makes it plain, which says where.
    """

    def __init__(self, document: Any, codec: Codec, name: str = "state") -> None:
        self.document = document
        self.is_plain = False
        self._codec = codec
        self._name = name
        self._proof: deltas.Proof | None = None
        self._before: deltas.Proof | None = None
        if document.__class__ in (dict, list):  # as nearly all are
            try:
                self.encoded = deltas.encode(document)
            except _REFUSED:  # a value that the codec knows of, or can say what is wrong with
                self.make_plain()
        else:
            self.make_plain()

    def follow(self, before: deltas.Proof | None) -> None:
        """Let *before* be what was saved before it: it has much in common with that."""
        self._before = before

    @property
    def proof(self) -> deltas.Proof:
        """The digest of it."""
        if self._proof is None:
            self._proof = deltas.Proof(self.encoded, self._before)
        return self._proof

    @property
    def content(self) -> str:
        """The same as text."""
        return self.proof.digest

    def make_plain(self) -> None:
        """Let it be what it will be read back as; `NotStorable` or `TooLarge` if it cannot be."""
        if self.is_plain:
            return
        own = Codec(
            max_bytes=self._codec.max_bytes, max_depth=self._codec.max_depth, compress_over=None
        )
        body = own.encode([(self._name, self.document)])
        payload = msgspec.json.decode(body[HEADER:-CHECK], type=tuple[str, msgspec.Raw])[1]
        plain = msgspec.json.decode(payload)
        self.encoded, self._proof = deltas.encode(plain), None
        if self.encoded != bytes(payload):
            _refuse_twins(self._name, self.document)
        self.document, self.is_plain = plain, True


def check_text(text: Any, name: str) -> str | None:
    """*text*, if it is text, or None: what is stored as anything else could not be read again."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise NotStorable(f"{name} is text, not {text!r:.80}.", name)
    return plain(text, name)  # type: ignore[no-any-return]


def _refuse_twins(name: str, document: Any) -> None:
    """Keys that are several things in Python and one in JSON: storing them would lose some."""
    for path, keys in _dicts(name, document):
        seen: dict[bytes, Any] = {}
        for key in keys:
            twin = seen.setdefault(msgspec.json.encode({key: None}), key)
            if twin is not key:
                msg = (
                    f"{path} has the keys {twin!r:.40} and {key!r:.40}, which are the same in "
                    "JSON. Rename one of them."
                )
                raise NotStorable(msg, path)


def _dicts(path: str, value: Any) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    if isinstance(value, Mapping):
        yield path, value
        for key, child in value.items():
            yield from _dicts(f"{path}[{key!r}]", child)
    elif isinstance(value, (list, tuple)):
        for index, child in enumerate(value):
            yield from _dicts(f"{path}[{index}]", child)
