"""The values of LangGraph's channels as JSON, and back by LangGraph's own serialiser.

What JSON has is stored as it is. Anything else goes through the serialiser, whose MessagePack is
then written out as JSON, so that people and tools can read it, and no class is needed to do so::

    {"$ext": [code, value]}     an object, by LangGraph's code and its module, name and arguments
    {"$map": [[key, value]]}    a dict whose keys are not text, or begin with "$"
    {"$bytes": "…"}             bytes, as base64
    {"$float": "nan"}           a number that JSON has not
    {"$typed": [type, "…"]}     what another serialiser made, as base64

The serialiser is strict: of all that is read, only types that are allowed become objects.
"""

from __future__ import annotations

import math
import sys
import threading
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any, Self

import msgspec
import ormsgpack
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.jsonplus import (
    EXT_CONSTRUCTOR_KW_ARGS,
    EXT_CONSTRUCTOR_POS_ARGS,
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_METHOD_SINGLE_ARG,
    EXT_PYDANTIC_V1,
    EXT_PYDANTIC_V2,
    JsonPlusSerializer,
)

from limpet.errors import NotStorable, Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from langgraph.checkpoint.serde.base import SerializerProtocol

__all__ = ["StrictSerializer", "Values"]

#: Ext types that name a class, which must be one that is allowed.
_NAMED = {
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_CONSTRUCTOR_POS_ARGS,
    EXT_CONSTRUCTOR_KW_ARGS,
    EXT_METHOD_SINGLE_ARG,
    EXT_PYDANTIC_V1,
    EXT_PYDANTIC_V2,
}

_SCALARS = frozenset({str, int, bool, type(None)})

#: What no class is read back as: then the serialiser could not make the object.
_BUILTIN = frozenset({dict, list, tuple, str, int, float, bool, bytes, type(None)})

_OPTIONS = ormsgpack.OPT_NON_STR_KEYS

_decode = msgspec.json.Decoder().decode


class StrictSerializer(JsonPlusSerializer):
    """LangGraph's serialiser, which makes objects only of types that are *allowed*.

    Its own types and those of LangChain's messages always are. Where it would put a dict, or None,
    in the place of an object that it may not or cannot make, this one raises.
    """

    def __init__(self, allowed: Iterable[type | tuple[str, ...]] = ()) -> None:
        names = {
            (one.__module__, one.__name__) if isinstance(one, type) else tuple(one)
            for one in allowed
        }
        super().__init__(allowed_msgpack_modules=names or None)
        self.allowed: frozenset[tuple[str, ...]] = SAFE_MSGPACK_TYPES | names
        make = self._unpack_ext_hook
        self._failed = failed = threading.local()

        def hook(code: int, data: bytes) -> Any:
            made = make(code, data)
            if code in _NAMED and made.__class__ in _BUILTIN:
                module, name, *_ = ormsgpack.unpackb(data, ext_hook=_Ext, option=_OPTIONS)
                failed.name = f"{module}.{name}"  # an exception would not get through MessagePack
            return made

        # What it makes of an object within an object it makes by itself, and not by its hook.
        cells = dict(zip(make.__code__.co_freevars, make.__closure__ or (), strict=True))
        cells["ext_hook"].cell_contents = hook
        self._unpack_ext_hook = hook

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The value of what `dumps_typed` returned."""
        self._failed.name = None
        loaded = super().loads_typed(data)
        if self._failed.name is not None:
            msg = (
                f"A stored {self._failed.name} cannot be made again: its class is not there any "
                "more under that name, or does not take what was stored. Put it back, or go back "
                "to a checkpoint that has none."
            )
            raise Unreadable(msg)
        return loaded

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[tuple[str, ...] | type]) -> Self:
        """The same, with more that is allowed."""
        extra = StrictSerializer(extra_allowlist).allowed
        return self if extra <= self.allowed else type(self)(self.allowed | extra)

    def check(self, module: str, name: str) -> None:
        """`NotStorable`, if that type is not allowed."""
        if (module, name) in self.allowed:
            return
        path = f"{module}.{name}"
        msg = (
            f"A {path} is not stored: only types that are allowed are ever made from what is "
            "stored, so that nobody who can write to the store can run code here. Allow it, if "
            f"its class does nothing else when it is made: LimpetSaver(store, allow=[{name}]). "
            "With LANGGRAPH_STRICT_MSGPACK=true, LangGraph allows all types in your graph's state."
        )
        raise NotStorable(msg, path)


class Values:
    """Values to JSON and back, by one serialiser; *redacted* is what is stored of such a tree."""

    def __init__(
        self, serde: SerializerProtocol, redacted: Callable[[Any], Any] = lambda tree: tree
    ) -> None:
        self.serde = serde
        self._redacted = redacted
        self._strict = serde if isinstance(serde, StrictSerializer) else None
        # One that was made of LangGraph's may encrypt: it sees every value.
        self._is_known = type(serde).dumps_typed is JsonPlusSerializer.dumps_typed

    def dump(self, value: Any) -> Any:
        """*value* as a tree of what JSON has; its parts may be the value's own."""
        if self._is_known and _is_plain(value):
            return self._redacted(value)
        kind, data = self.serde.dumps_typed(value)
        if kind == "msgpack" and self._is_known:
            tree = self._written_out(ormsgpack.unpackb(data, ext_hook=_Ext, option=_OPTIONS))
            return self._redacted(tree)
        if kind == "null" and self._is_known:
            return None
        return {"$typed": [kind, b64encode(data).decode()]}

    def load(self, data: bytes) -> Any:
        """The value that `dump` made this JSON of."""
        tree = _decode(data)
        if b'"$' not in data:
            return tree
        if tree.__class__ is dict and "$typed" in tree:
            kind, text = tree["$typed"]
            return self.serde.loads_typed((kind, b64decode(text)))
        packed = ormsgpack.packb(self._packable(tree), option=_OPTIONS)
        return self.serde.loads_typed(("msgpack", packed))

    def _written_out(self, value: Any) -> Any:  # noqa: PLR0911 - one line for each type
        kind = value.__class__
        if kind in _SCALARS:
            return value
        if kind is _Ext:
            inner = ormsgpack.unpackb(value.data, ext_hook=_Ext, option=_OPTIONS)
            if value.code in _NAMED and self._strict is not None:
                self._strict.check(*inner[:2])
                _check_found(*inner[:2])
            return {"$ext": [value.code, self._written_out(inner)]}
        if kind is list:
            return [self._written_out(item) for item in value]
        if kind is dict:
            if all(key.__class__ is str and key[:1] != "$" for key in value):
                return {key: self._written_out(item) for key, item in value.items()}
            pairs = [[self._written_out(k), self._written_out(v)] for k, v in value.items()]
            return {"$map": pairs}
        if kind is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        return {"$bytes": b64encode(self._redacted(value)).decode()}

    def _packable(self, tree: Any) -> Any:  # noqa: PLR0911 - as above
        kind = tree.__class__
        if kind is list:
            return [self._packable(item) for item in tree]
        if kind is not dict:
            return tree
        if len(tree) == 1:
            ((key, value),) = tree.items()
            if key == "$ext":
                code, inner = value
                if code in _NAMED and self._strict is not None:
                    self._strict.check(*inner[:2])
                packed = ormsgpack.packb(self._packable(inner), option=_OPTIONS)
                return ormsgpack.Ext(code, packed)
            if key == "$map":
                return {_hashable(self._packable(k)): self._packable(v) for k, v in value}
            if key == "$bytes":
                return b64decode(value)
            if key == "$float":
                return float(value)
        return {key: self._packable(value) for key, value in tree.items()}


class _Ext:
    """A MessagePack extension, taken as it is."""

    __slots__ = ("code", "data")

    def __init__(self, code: int, data: bytes) -> None:
        self.code = code
        self.data = data

    def __hash__(self) -> int:  # it may be a key
        return hash((self.code, self.data))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Ext) and (self.code, self.data) == (other.code, other.data)


def _check_found(module: str, name: str) -> None:
    """`NotStorable`, if a class cannot be found again by its name: it is local to a function."""
    if not hasattr(sys.modules.get(module), name):
        path = f"{module}.{name}"
        msg = (
            f"A {path} is not stored: no reader could make it again, since its module has nothing "
            "of that name. Define the class at the top of the module."
        )
        raise NotStorable(msg, path)


def _is_plain(value: Any) -> bool:
    """Whether *value* is read back as it is, type by type, and no key looks like one of ours."""
    kind = value.__class__
    if kind in _SCALARS:
        return True
    if kind is dict:
        return all(
            key.__class__ is str and key[:1] != "$" and _is_plain(item)
            for key, item in value.items()
        )
    if kind is list:
        return all(map(_is_plain, value))
    return kind is float and math.isfinite(value)


def _hashable(key: Any) -> Any:
    return tuple(key) if key.__class__ is list else key
