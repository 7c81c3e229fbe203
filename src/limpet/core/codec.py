"""Entries to bytes and back: data only, never code, never a class found by a name in the data.

A body is a header of four bytes, a payload, and a checksum of four::

    byte 0          format      1: UTF-8 JSON, a run [type, value, value, …], or a list of runs
    byte 1          flags       bit 0: compressed with zlib; bit 1: encrypted, by `crypto`
    bytes 2-3       key id      which data key encrypted it, big-endian; 0: none
    bytes 4 to -5   payload
    last 4 bytes    check       CRC-32 of all before it, little-endian, begun with 0x2144DF1C

Values are what JSON has. What Python has beyond that goes in by its usual text form (a datetime
as ISO 8601, bytes as base64, a set as a list) and comes back typed when the caller names the type.
Two keys of one text form are refused; a moment whose offset from UTC has seconds is written in UTC.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from limpet.errors import KeyMissing, NotStorable, TooLarge, Unreadable, WrongType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["LOST", "Codec", "convert", "fresh", "is_plain", "plain", "uncompressed_size"]

T = TypeVar("T")

#: Values of one type that follow each other: [type, value, value, …].
Run = list[Any]

#: The type of entries that stand where others were lost: numbers that were given out stay so. No
#: model knows it, and all of them pass over what they do not know.
LOST = "limpet.lost"

FORMAT = 1
COMPRESSED = 0b01
ENCRYPTED = 0b10
HEADER = 4
CHECK = 4

#: Deeper than any message or plan, and far from where a decoder runs out of stack.
MAX_DEPTH = 128
#: One append; a whole conversation is many.
MAX_BYTES = 16 * 1024 * 1024
#: Under this, compressing costs more time than the saved bytes are worth.
COMPRESS_OVER = 8 * 1024
#: What is compressed with a window of just this size, if that is all of it.
SMALL = 4 * 1024

# The headers of bodies that are not encrypted.
_PLAIN = bytes((FORMAT, 0, 0, 0))
_DEFLATED = bytes((FORMAT, COMPRESSED, 0, 0))
# The CRC-32 of anything that ends with its own CRC-32, little-endian, whatever both begin with. If
# they begin with this number, it is also the CRC-32 of many such things one behind the other: a
# page of bodies is checked by one call.
_WHOLE = 0x2144DF1C
# The CRC-32 of the headers, with which that of their bodies goes on.
_PLAIN_BEGAN = zlib.crc32(_PLAIN, _WHOLE)
_DEFLATED_BEGAN = zlib.crc32(_DEFLATED, _WHOLE)
_is_plain_body = methodcaller("startswith", _PLAIN)

# To find out how deep JSON is: every bracket square, text by its quotes, and nothing else.
_SQUARE = bytes.maketrans(b"{}", b"[]")
_NOT_STRUCTURE = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_TEXT = rb'"[^"]*"'


class Codec:
    """How one store writes bodies: its limits, and from which size on it compresses."""

    def __init__(
        self,
        *,
        max_bytes: int = MAX_BYTES,
        max_depth: int = MAX_DEPTH,
        compress_over: int | None = COMPRESS_OVER,
    ) -> None:
        self.max_bytes = max_bytes
        self.max_depth = max_depth
        self.compress_over = compress_over
        self._encode = msgspec.json.Encoder(enc_hook=_hook).encode
        self._decode = msgspec.json.Decoder().decode

    def encode(self, entries: Sequence[tuple[str, Any]], compress_over: int | None = None) -> bytes:
        """The body of one record, compressed from *compress_over* bytes on, or from our own number.

        Raises `NotStorable` with the path to the value that has no stored form, `TooLarge` over the
        limits.
        """
        return self.encode_run(_runs(entries), entries, compress_over)

    def encode_run(
        self,
        runs: list[Any],
        entries: Sequence[tuple[str, Any]] | None = None,
        compress_over: int | None = None,
    ) -> bytes:
        """`encode` for values that are all of one type, as a run: what is written most.

        It may also be several runs, and then *entries* are what is in them.
        """
        try:
            payload = self._encode(runs)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            self._explain(entries or _entries(runs), error)
            msg = f"A part of this value cannot be stored: {error}. {_INSTEAD}"
            raise NotStorable(msg) from error
        size = len(payload)
        # Most are far too short, and have too few brackets, to be over a limit.
        if (
            size > self.max_bytes
            or payload.count(b"[") + payload.count(b"{") > self.max_depth
            or b"null" in payload  # which is also what msgspec makes of NaN, silently
        ):
            self._check(payload, entries or _entries(runs))
        if not (is_plain(runs) or _is_exact(runs)):
            _refuse_twins(entries or _entries(runs))
            times = (datetime, time)
            payload = self._encode(
                _in_utc(msgspec.to_builtins(runs, builtin_types=times, enc_hook=_hook))
            )
            size = len(payload)
        header, began, most = _PLAIN, _PLAIN_BEGAN, self.compress_over
        if most is not None and compress_over is not None:
            most = min(most, compress_over)
        if most is not None and size > most:
            smaller = _deflate(payload)
            if len(smaller) < size * 0.9:
                header, began, payload = _DEFLATED, _DEFLATED_BEGAN, smaller
        check = zlib.crc32(payload, began)
        return b"".join((header, payload, check.to_bytes(CHECK, "little")))

    def decode(self, body: bytes) -> list[tuple[str, Any]]:
        """The entries of one record, as (type, value)."""
        return [(run[0], value) for run in self.runs((body,)) for value in run[1:]]

    def runs(self, bodies: Sequence[bytes]) -> list[Run]:
        """The content of many records, run by run. The lists are the caller's own."""
        found: list[Run] = []
        self.gather(bodies, "", found, found.append)
        return found

    def gather(
        self, bodies: Sequence[bytes], kind: str, found: list[Any], other: Callable[[Run], object]
    ) -> int:
        """Add all values of one *kind* in many records to *found*: the quick way through a journal.

        Runs of other kinds are given to *other*, in their order. Returns how many values there are
        in all.
        """
        decode, count, known = self._decode, 0, len(found)
        whole = zlib.crc32(b"".join(bodies), _WHOLE) == _WHOLE and all(map(_is_plain_body, bodies))
        try:
            for body in bodies:
                content = decode(body[HEADER:-CHECK] if whole else _unpack(body, self.max_bytes))
                try:
                    first = content[0]
                except (LookupError, TypeError):
                    raise _no_entries() from None
                if first == kind:
                    del content[0]
                    found += content
                    continue
                is_run = first.__class__ is str and content.__class__ is list
                for run in [content] if is_run else _several(content):
                    count += len(found) - known + len(run) - 1
                    other(run)  # which may do to *found* what it likes
                    known = len(found)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Unreadable(f"A stored body is not JSON: {error}") from error
        return count + len(found) - known

    def _check(self, payload: bytes, entries: Sequence[tuple[str, Any]]) -> None:
        """Raise if it is over a limit, or holds what has no JSON form."""
        if b"null" in payload and any(_maybe_nan(value) for _, value in entries):
            _refuse_nan(entries)
        if len(payload) > self.max_bytes:
            sizes = [len(self._encode(value)) for _, value in entries]
            size, path = max(zip(sizes, _names(entries), strict=True))
            msg = (
                f"{path} takes {size:,} bytes of JSON; one append may have {self.max_bytes:,}. "
                "Store a reference to large content instead, or open the store with another "
                "codec=Codec(max_bytes=…)."
            )
            raise TooLarge(msg, path)
        around = 1 if payload.startswith(b'["') else 2  # the levels of the run, or list of runs
        if _is_deeper(payload, self.max_depth + around):
            for path, value, depth in _walk(entries):
                if depth > self.max_depth and _is_container(value):
                    raise self._too_deep(path)
            raise self._too_deep(_names(entries)[0])  # a model that writes more than it shows

    def _explain(self, entries: Sequence[tuple[str, Any]], error: Exception) -> None:
        """Find the value that msgspec refused, and raise an error that says where it is."""
        for path, value, depth in _walk(entries):
            if depth > self.max_depth and _is_container(value):
                raise self._too_deep(path) from error
            reason = _why_not(value)
            if reason:
                raise NotStorable(f"{path} is {reason}", path) from error

    def _too_deep(self, path: str) -> TooLarge:
        path = path if len(path) <= 80 else f"{path[:80]}…"  # noqa: PLR2004 - a line
        msg = (
            f"{path} is nested over {self.max_depth} levels deep, or holds itself. "
            "Flatten it, or store it as text."
        )
        return TooLarge(msg, path)


def _runs(entries: Sequence[tuple[str, Any]]) -> list[Any]:
    """*entries* as a run, or where their types differ, as a list of runs."""
    if len(entries) == 1 and entries[0][0].__class__ is str:  # as most are
        return list(entries[0])
    runs: list[Run] = []
    for kind, value in entries:
        if kind.__class__ is not str and not isinstance(kind, str):
            raise NotStorable(f"An entry's type must be text, not {kind!r:.80}.")
        if runs and runs[-1][0] == kind:
            runs[-1].append(value)
        else:
            runs.append([kind, value])
    return runs[0] if len(runs) == 1 else runs


def _several(content: Any) -> list[Run]:
    """The runs of a record whose entries are not all of one type."""
    if not isinstance(content, list) or not all(
        isinstance(run, list) and run and isinstance(run[0], str) for run in content
    ):
        raise _no_entries()
    return content


def _no_entries() -> Unreadable:
    return Unreadable("A stored body is JSON, but no list of entries, each with its type.")


def _entries(runs: list[Any]) -> list[tuple[str, Any]]:
    """What `_runs` was given for one run."""
    return [(runs[0], value) for value in runs[1:]]


def _deflate(payload: bytes) -> bytes:
    """Compressed; what is small with a small window: to make a large one takes far longer."""
    if len(payload) > SMALL:
        return zlib.compress(payload, 1)
    stream = zlib.compressobj(1, zlib.DEFLATED, SMALL.bit_length() - 1, 5)
    return stream.compress(payload) + stream.flush()


def _unpack(body: bytes, max_bytes: int) -> bytes:
    """The payload of a body, or the reason why it cannot be had."""
    if len(body) < HEADER + CHECK:
        raise Unreadable(f"A stored body is cut short: it has {len(body)} bytes.")
    if body[0] != FORMAT:
        msg = (
            f"A stored body has format {body[0]}, but this version reads {FORMAT}. "
            "If a newer release wrote it, upgrade limpet."
        )
        raise Unreadable(msg)
    if zlib.crc32(body, _WHOLE) != _WHOLE:
        msg = "A stored body does not match its checksum: the storage has changed it."
        raise Unreadable(msg)
    if body[1] & ENCRYPTED:
        msg = (
            "A stored body is encrypted. Give limpet.open the keys=… that the store was written "
            "with, or name them in $LIMPET_KEYS."
        )
        raise KeyMissing(msg)
    if body[1] & ~COMPRESSED:
        msg = (
            f"A stored body needs a feature that this version lacks (flags {body[1]:#04x}, "
            f"key {int.from_bytes(body[2:4])}). Upgrade limpet."
        )
        raise Unreadable(msg)
    payload = body[HEADER:-CHECK]
    return _inflate(payload, max_bytes) if body[1] & COMPRESSED else payload


def _inflate(payload: bytes, max_bytes: int) -> bytes:
    """Decompress up to the limit: a small body must not become all of the memory."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(payload, max_bytes)
    except zlib.error as error:
        raise Unreadable(f"A stored body cannot be decompressed: {error}") from error
    if stream.unused_data:
        raise Unreadable("A stored body has something behind its end.")
    if not stream.eof:
        msg = f"A stored body has over {max_bytes:,} bytes; see Codec(max_bytes=…)."
        raise TooLarge(msg)
    return data


# -- values ------------------------------------------------------------------------------------


def _hook(value: object) -> object:
    """What msgspec does not know of by itself: pydantic models, mappings, kinds of text."""
    dump = getattr(type(value), "model_dump", None)
    if dump is not None:
        # In the form that model_validate takes back: by alias, and what is computed left out.
        return dump(value, mode="json", by_alias=True, round_trip=True)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str):  # of a subclass: as what it is at heart
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, msgspec.Raw):  # JSON already; but `to_builtins` does not know of it
        return msgspec.json.decode(value)
    raise TypeError(_a(value))


def plain(value: object, name: str = "value") -> Any:
    """*value* as it will be read back: dicts, lists, text, numbers, booleans, None.

    Raises `NotStorable` as storing it would; *name* is what it calls the value.
    """
    codec = _DEFAULT
    return codec.decode(codec.encode([(name, value)]))[0][1]


def fresh(value: Any) -> Any:
    """A copy of *value*, as read from a store, that its caller may change."""
    if value.__class__ is dict or value.__class__ is list:
        return msgspec.to_builtins(value)  # of what JSON has, that is a copy
    return value


def is_plain(value: object) -> bool:
    """Whether *value* is read back as it is, type by type: it is only what JSON has."""
    kind = value.__class__
    if kind is dict:
        for key, item in value.items():  # type: ignore[attr-defined]
            if key.__class__ is not str:
                return False
            if item.__class__ not in _SCALARS and not is_plain(item):
                return False
        return True
    if kind is list:
        for item in value:  # type: ignore[attr-defined] # noqa: SIM110 - a generator is slower
            if item.__class__ not in _SCALARS and not is_plain(item):
                return False
        return True
    return kind in _SCALARS


_SCALARS = frozenset({str, int, float, bool, type(None)})


def _is_exact(value: object) -> bool:
    """Whether all of *value* has its form in JSON to itself.

    A key that is not text may be the same there as one that is. And msgspec writes an offset from
    UTC in minutes: one with seconds, as those of local mean time have, would move the moment.
    """
    kind = value.__class__
    if kind in _SCALARS:
        return True
    parts: Iterable[Any]
    if kind is dict or isinstance(value, Mapping):
        for key in value:  # type: ignore[attr-defined]
            if key.__class__ is not str:
                return False
        parts = value.values()  # type: ignore[attr-defined]
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = value
    elif isinstance(value, (datetime, time)):
        offset = value.utcoffset()
        return offset is None or not offset % _MINUTE
    else:
        parts = [getattr(value, name, None) for name in _field_names(value) or ()]
    return all(map(_is_exact, parts))


_MINUTE = timedelta(minutes=1)


def _in_utc(value: Any) -> Any:
    """*value*, as `msgspec.to_builtins` leaves it, with moments in UTC that are not exact."""
    if isinstance(value, dict):
        return {_in_utc(key): _in_utc(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(map(_in_utc, value))
    if isinstance(value, (datetime, time)) and not _is_exact(value):
        if isinstance(value, datetime):
            try:
                return value.astimezone(UTC)
            except OverflowError as error:  # in the year 1, or 9999
                msg = f"{value!r:.120} has no form in UTC, in which it would be stored."
                raise NotStorable(msg) from error
        return datetime.combine(date(2000, 1, 2), value).astimezone(UTC).timetz()
    return value


def uncompressed_size(body: bytes) -> int:
    """How long *body* is, or was before it was compressed."""
    if body[1] & COMPRESSED:
        return len(zlib.decompress(body[HEADER:-CHECK]))
    return len(body)


@overload
def convert(value: object, as_: type[T], what: str = ...) -> T: ...
@overload
def convert(value: object, as_: Any, what: str = ...) -> Any: ...
def convert(value: object, as_: Any, what: str = "stored value") -> Any:
    """*value*, as read from a store, as the type *as_* that the caller names.

    *what* is what an error calls it.

    >>> from datetime import date
    >>> convert({"due": "2026-01-31"}, dict[str, date])
    {'due': datetime.date(2026, 1, 31)}
    """
    try:
        return msgspec.convert(value, as_, str_keys=True, dec_hook=_load)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        name = getattr(as_, "__name__", str(as_))
        raise WrongType(f"The {what} does not fit {name}: {error}") from error


def _load(wanted: Any, value: object) -> object:
    validate = getattr(wanted, "model_validate", None)
    if validate is not None:
        return validate(value)
    return wanted(value)


# -- finding out what is wrong: slow, and only then ----------------------------------------------

_INSTEAD = "Make a dict or text of it, or a dataclass or model of its class; or leave it out."


def _is_deeper(payload: bytes, levels: int) -> bool:
    """Whether *payload* is nested over *levels* deep.

    Most have too few brackets for that. Of others the text is cut out, and the innermost pairs are
    peeled off, level by level: all in C.
    """
    if payload.count(b"[") + payload.count(b"{") <= levels:
        return False
    unescaped = payload.replace(b"\\\\", b"").replace(b'\\"', b"")
    structure = unescaped.translate(_SQUARE, _NOT_STRUCTURE).replace(b'""', b"")
    brackets = re.sub(_TEXT, b"", structure)
    for _ in range(levels):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _walk(entries: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, Any, int]]:
    """Every value with its path and depth, without recursion."""
    stack = [(name, entry[1], 1) for name, entry in zip(_names(entries), entries, strict=True)]
    stack.reverse()
    while stack:
        path, value, depth = stack.pop()
        yield path, value, depth
        if depth < 1000:  # noqa: PLR2004 - a thing that holds itself ends here
            children = list(_children(path, value))
            stack.extend((name, child, depth + 1) for name, child in reversed(children))


def _names(entries: Sequence[tuple[str, Any]]) -> list[str]:
    """What an error calls each of *entries*: its type, with a number where there are several."""
    if len(entries) == 1:
        return [entries[0][0]]
    return [f"{kind} {number}" for number, (kind, _) in enumerate(entries, 1)]


def _children(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, child in value.items():
            if reason := _why_no_key(key):
                yield f"{path}[{key!r}]", _BadKey(reason)
            yield f"{path}[{key!r}]", child
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, child in enumerate(value):
            yield f"{path}[{index}]", child
    else:
        for name in _field_names(value) or ():
            if hasattr(value, name):
                yield f"{path}.{name}", getattr(value, name)


def _is_container(value: object) -> bool:
    kinds = (Mapping, list, tuple, set, frozenset)
    return isinstance(value, kinds) or _field_names(value) is not None


def _field_names(value: object) -> Iterable[str] | None:
    """The fields of a model, by any of the kinds we take; None if it is not one."""
    kind = type(value)
    for attribute in ("__struct_fields__", "__dataclass_fields__"):
        names: Iterable[str] | None = getattr(kind, attribute, None)
        if names is not None:
            return names
    if hasattr(kind, "__attrs_attrs__"):
        return [field.name for field in kind.__attrs_attrs__]
    if hasattr(kind, "model_fields"):  # and what a pydantic model holds besides
        return [*kind.model_fields, *(getattr(value, "model_extra", None) or ())]
    return None


class _BadKey:
    """Stands in a walk for a key that cannot be one."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def _why_no_key(key: object) -> str | None:
    if isinstance(key, str):
        reason = _why_no_text(key)
        return reason and f"under a key that is {reason}"
    try:
        msgspec.json.encode({key: None})
    except (TypeError, ValueError, OverflowError):
        return f"under a key that is {_a(key)}, and keys must be text. Use str(…) for it."
    return None


def _why_no_text(text: str) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return (
            f"text that is not valid Unicode ({error.reason} at {error.start}). Where it was made "
            'of bytes, decode them with errors="replace", or store the bytes.'
        )
    return None


def _why_not(value: object) -> str | None:
    """What *value* is that it cannot be stored, whatever it holds; None if that is not the reason.

    It goes on a sentence that says where it sits, and says what to do instead.
    """
    if isinstance(value, _BadKey):
        return value.reason
    if isinstance(value, str):
        return _why_no_text(value)
    if _is_container(value):
        return None
    try:
        msgspec.json.encode(value, enc_hook=_hook)
    except (TypeError, ValueError, OverflowError):
        if isinstance(value, int):
            return f"{_a(value)} with too many digits. Store it as text."
        return f"{_a(value)}, which cannot be stored. {_INSTEAD}"
    return None


def _a(value: object) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def _maybe_nan(value: object) -> bool:
    """False if there is no NaN or infinity in *value*: the quick look, for plain values."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if value is None or isinstance(value, (str, int)):
        return False
    if value.__class__ is dict:
        return any(map(_maybe_nan, value.values()))
    if value.__class__ is list:
        return any(map(_maybe_nan, value))
    return True


def _refuse_twins(entries: Sequence[tuple[str, Any]]) -> None:
    """Keys that are two things in Python and one in JSON: storing them would lose one."""
    for path, value, _ in _walk(entries):
        seen: dict[bytes, Any] = {}
        for key in value if isinstance(value, Mapping) else ():
            twin = seen.setdefault(msgspec.json.encode({key: None}), key)
            if twin is not key:
                msg = (
                    f"{path} has the keys {twin!r:.40} and {key!r:.40}, which are the same in "
                    "JSON. Rename one of them."
                )
                raise NotStorable(msg, path)


def _refuse_nan(entries: Sequence[tuple[str, Any]]) -> None:
    for path, value, _ in _walk(entries):
        if isinstance(value, float) and not math.isfinite(value):
            msg = f"{path} is {value}, which has no JSON form. Store None, or text."
            raise NotStorable(msg, path)


_DEFAULT = Codec()
