"""The codec: what goes in comes out, what cannot is refused by path, damage is noticed."""

import enum
import math
import socket
import types
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, Json, computed_field

from limpet import Codec, NotStorable, TooLarge
from limpet.core.codec import CHECK, HEADER, convert, fresh, plain
from limpet.errors import Unreadable, WrongType

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # Brackets, quotes and backslashes: text that could pass for structure.
    | st.text()
    | st.text(alphabet='[]{}"\\,:null '),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
entries = st.lists(
    st.tuples(st.sampled_from(["message", "step", "é"]), json_values), min_size=1, max_size=4
)


class Colour(enum.Enum):
    """An Enum of text."""

    RED = "red"


class Level(enum.IntEnum):
    """An Enum of numbers."""

    HIGH = 3


class Point(NamedTuple):
    """A named tuple."""

    x: int
    y: int


@dataclass
class Address:
    """A dataclass."""

    city: str
    since: date
    tags: set[str] = field(default_factory=set)


class Person(BaseModel):
    """A pydantic model."""

    name: str
    born: date
    homes: list[Address] = []


class Invoice(msgspec.Struct):
    """A msgspec model."""

    number: int
    total: Decimal
    buyer: Person | None = None


class Strict(BaseModel):
    """A pydantic model that takes only what it names."""

    model_config = ConfigDict(extra="forbid")
    id_: str = Field(alias="id")
    parsed: Json[list[int]]

    @computed_field  # type: ignore[prop-decorator]  # mypy has no word for it
    @property
    def shout(self) -> str:
        """Made from other fields, so it is not stored."""
        return self.id_.upper()


class Word(str):
    """A subclass of str, as templating libraries have them."""

    __slots__ = ()


@dataclass
class Fetched:
    """A result that holds on to its connection."""

    rows: list[Any]
    session: Any = None


class Loose(BaseModel):
    """A pydantic model that takes anything."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="allow")
    session: Any = None


HOME = Address("Bergen", date(2020, 2, 29), {"old"})
ANNA = Person(name="Anna", born=date(1999, 12, 31), homes=[HOME])


@given(entries)
def test_every_json_value_comes_back_as_it_went_in(stored: list[tuple[str, Any]]) -> None:
    """Numbers of any size, any text, nested in any way, of several types in one record."""
    codec = Codec(compress_over=64)
    assert codec.decode(codec.encode(stored)) == stored


@pytest.mark.slow
@given(st.lists(entries, max_size=3))
def test_many_records_read_as_runs_hold_the_same_values(
    records: list[list[tuple[str, Any]]],
) -> None:
    """The quick way through a long journal leaves nothing out."""
    codec = Codec()
    runs = list(codec.runs([codec.encode(record) for record in records]))
    found = [(run[0], value) for run in runs for value in run[1:]]
    assert found == [entry for record in records for entry in record]


@pytest.mark.parametrize(
    ("value", "as_"),
    [
        (datetime(2026, 1, 31, 12, 30, 15, 250000, tzinfo=UTC), datetime),
        (datetime(2026, 1, 31, 12, 30), datetime),  # noqa: DTZ001 - a naive one stays naive
        (date(2026, 1, 31), date),
        (time(12, 30), time),
        (timedelta(days=2, seconds=3), timedelta),
        (UUID(int=7), UUID),
        (Decimal("1.10"), Decimal),
        (b"\x00\xff", bytes),
        ({1, 2}, set[int]),
        (frozenset("a"), frozenset[str]),
        ((1, "a"), tuple[int, str]),
        (Point(1, 2), Point),
        (Colour.RED, Colour),
        (Level.HIGH, Level),
        (HOME, Address),
        (ANNA, Person),
        (Invoice(1, Decimal("9.90"), ANNA), Invoice),
        ([ANNA, ANNA], list[Person]),
        ({"due": date(2026, 1, 31)}, dict[str, date]),
        ({date(2026, 1, 31): [HOME]}, dict[date, list[Address]]),
        ({1: Colour.RED}, dict[int, Colour]),
        ({UUID(int=7): (ANNA, None)}, dict[UUID, tuple[Person, Person | None]]),
        (Strict.model_validate({"id": "x", "parsed": "[1, 2]"}), Strict),
    ],
    ids=lambda value: str(value)[:30],
)
def test_python_values_come_back_typed_when_the_caller_names_the_type(value: Any, as_: Any) -> None:
    """What JSON does not have goes in by its usual text form and is asked back by type."""
    found = convert(plain(value), as_)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        (Word("text"), "text"),
        ({Word("key"): [Word("x")]}, {"key": ["x"]}),
        (Level.HIGH, 3),
        (True, True),
        ({1.5: 1, 2: 2}, {"1.5": 1, "2": 2}),
        (-0.0, -0.0),
        (2**200, 2**200),
    ],
)
def test_what_is_like_json_is_stored_as_that(value: object, stored: object) -> None:
    """A subclass of str or a read-only dict is not the user's fault."""
    assert repr(plain(value)) == repr(stored)


@pytest.mark.parametrize("hide", [lambda when: when, lambda when: Fetched([when])])
def test_an_offset_from_utc_with_seconds_keeps_the_moment(hide: Callable[[Any], Any]) -> None:
    """As local mean time had until the 1930s, and zoneinfo has it: JSON's offset is in minutes."""
    amsterdam = timezone(timedelta(minutes=19, seconds=32))
    when = datetime(1900, 1, 1, 12, tzinfo=amsterdam)
    assert plain(hide(when)) == plain(hide(when.astimezone(UTC)))
    assert convert(plain({when: 1}), dict[datetime, int]) == {when: 1}
    whole = datetime(1950, 1, 1, 12, tzinfo=timezone(timedelta(minutes=20)))
    assert plain([when, whole])[1] == "1950-01-01T12:00:00+00:20"  # others stay as they are
    assert convert(plain(when.timetz()), time) == when.timetz()
    assert plain({1: msgspec.Raw(b"[1]"), "at": when})["1"] == [1]
    with pytest.raises(NotStorable, match="has no form in UTC"):
        plain(hide(datetime.min.replace(tzinfo=amsterdam)))


@pytest.mark.parametrize(
    "value",
    [
        {"__class__": "os.system", "args": ["true"]},
        {"py/object": "os.system", "py/reduce": []},
        {"type": "Person", "module": __name__, "name": "Anna", "born": "1999-12-31"},
        {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {}},
        "2026-01-31T00:00:00Z",
        "\x80\x04cos\nsystem\n.",
    ],
)
def test_data_never_chooses_what_it_becomes(value: object) -> None:
    """Reading is not executing: without a type named by the caller, data stays data."""
    assert plain(value) == value


def test_a_value_that_does_not_fit_the_type_says_where() -> None:
    """The error leads to the field, not to the whole."""
    with pytest.raises(WrongType, match=r"does not fit list.*`int`, got `str`.*\$\[0\]\.number"):
        convert([{"number": "seven", "total": "1"}], list[Invoice])
    with pytest.raises(WrongType, match=r"does not fit Person.*\n?born"):
        convert({"name": "Anna"}, Person)


def test_fresh_copies_can_be_changed() -> None:
    """What one caller does to a value, the next does not see."""
    value = {"rows": [{"n": 1}]}
    copy = fresh(value)
    copy["rows"][0]["n"] = 2
    assert value == {"rows": [{"n": 1}]}


# -- what cannot be stored -------------------------------------------------------------------------


def refused(value: object) -> str:
    """What the error says that storing *value* raises."""
    with pytest.raises(NotStorable) as caught:
        Codec().encode([("value", value)])
    assert isinstance(caught.value, TypeError)
    assert str(caught.value).startswith(caught.value.path)
    return str(caught.value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_has_no_word_for_are_refused_with_their_path(number: float) -> None:
    """They would come back as null, and nobody would know why."""
    assert refused({"scores": [1.0, number]}).startswith(f"value['scores'][1] is {number}, ")
    assert refused(Fetched(rows=[number])).startswith("value.rows[0] is ")
    assert refused(Loose.model_validate({"extra": [number]})).startswith("value.extra[0] is ")
    assert refused(types.MappingProxyType({"a": number})).startswith("value['a'] is ")


def test_keys_that_are_one_in_json_are_refused_with_their_path() -> None:
    """One of the two would be lost, and which one depends on their order."""
    assert refused({"a": [{1: "x", "1": "y"}]}) == (
        "value['a'][0] has the keys 1 and '1', which are the same in JSON. Rename one of them."
    )
    assert refused({date(2026, 1, 31): 1, "2026-01-31": 2}).startswith("value has the keys ")
    assert refused(Fetched([{"1": 1, 1: 2}])).startswith("value.rows[0] has the keys '1' and 1")
    assert refused(types.MappingProxyType({1: 1, "1": 2})).startswith("value has the keys ")
    assert plain({1: "x", "2": "y"}) == {"1": "x", "2": "y"}


def test_null_is_a_value_like_any_other() -> None:
    """Only numbers are looked at twice because of it."""
    assert plain([None, {"a": None}, "null", 1.5]) == [None, {"a": None}, "null", 1.5]


@pytest.mark.parametrize(
    ("hide", "path"),
    [
        (lambda thing: thing, "value"),
        (lambda thing: {"a": [1, thing]}, "value['a'][1]"),
        (lambda thing: Fetched([1], thing), "value.session"),
        (lambda thing: {"all": [Fetched([], thing)]}, "value['all'][0].session"),
        (lambda thing: Loose(session=thing), "value.session"),
        (lambda thing: Loose.model_validate({"more": {"x": thing}}), "value.more['x']"),
        (msgspec.defstruct("S", ["held"]), "value.held"),
        (lambda thing: types.MappingProxyType({"a": thing}), "value['a']"),
        (lambda thing: {1, (2, thing)}, None),
    ],
)
def test_the_path_leads_to_what_cannot_be_stored(
    hide: Callable[[object], object], path: str | None
) -> None:
    """In a result of a thousand fields, a type's name alone helps nobody."""
    with socket.socket() as thing:
        message = refused(hide(thing))
    assert message.startswith(path or "value[")
    assert (
        f"{path or ']'} is a socket, which cannot be stored. Make a dict or text of it" in message
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "value is an object, which cannot be stored. "),
        (1j, "value is a complex, "),
        ([range(3)], "value[0] is a range, "),
        (ValueError("x"), "value is a ValueError, "),
        ({"f": len}, "value['f'] is a builtin_function_or_method"),
        ({"M": Person}, "value['M'] is a ModelMetaclass"),
        ((n for n in "ab"), "value is a generator, "),
        (10**5000, "value is an int with too many digits. Store it as text."),
        ("a\ud800", "value is text that is not valid Unicode (surrogates not allowed at 1)"),
        (["ok", {"k": "\udfff"}], "value[1]['k'] is text that is not valid Unicode"),
        ({"a": {"\ud800": 1}}, "value['a']['\\ud800'] is under a key that is text that"),
        ({None: 1}, "value[None] is under a key that is a NoneType, and keys must be text"),
        ({True: 1}, "value[True] is under a key that is a bool, and keys must be text"),
        ([{(1, 2): 1}], "value[0][(1, 2)] is under a key that is a tuple, and keys"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_stored_is_called_by_its_kind(value: object, message: str) -> None:
    """Where, what, and what to do."""
    said = refused(value)
    assert said.startswith(message)
    assert said.endswith(".")


def test_of_several_entries_the_error_says_which() -> None:
    """Three messages in one append: the second is the bad one."""
    with pytest.raises(NotStorable, match=r"^message 2\['x'\] is an object, which"):
        Codec().encode([("message", {"x": 1}), ("message", {"x": object()})])


def test_an_entry_type_is_text() -> None:
    """Anything else could be written, and would then make the journal unreadable."""
    with pytest.raises(NotStorable, match="type must be text, not 5"):
        Codec().encode([(5, "value")])  # type: ignore[list-item]


# -- limits --------------------------------------------------------------------------------------


def nested(levels: int, wrap: Callable[[Any], object]) -> Any:
    """A value within as many *levels* of something else."""
    value: Any = "core"
    for _ in range(levels):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: [inner],
        lambda inner: {"a": inner},
        lambda inner: {"a": 1, "b": inner, "c": None},
        # Text that closes and opens brackets, so that the depth would cancel out.
        lambda inner: ["]", inner, "["],
        lambda inner: {'"}\\': inner, "z": '\\"{'},
    ],
)
@pytest.mark.parametrize("before", [[], [("other", 1)]])
def test_depth_is_limited_exactly(
    wrap: Callable[[Any], object], before: list[tuple[str, Any]]
) -> None:
    """What is stored can be read on any stack; what is deeper is refused, with a path."""
    codec = Codec(max_depth=40)
    just_right = [*before, ("plan", nested(40, wrap))]
    assert codec.decode(codec.encode(just_right)) == just_right
    with pytest.raises(TooLarge, match=r"^plan.*over 40 levels deep.*Flatten it"):
        codec.encode([*before, ("plan", nested(41, wrap))])


def test_lists_in_dicts_count_as_two_levels() -> None:
    """However the kinds of nesting take turns."""
    codec = Codec(max_depth=40)
    codec.encode([("plan", nested(20, lambda inner: {"a": [inner]}))])
    with pytest.raises(TooLarge):
        codec.encode([("plan", nested(21, lambda inner: {"a": [inner]}))])


def test_brackets_in_text_are_not_depth() -> None:
    """A message may quote as much code as it likes."""
    value = ["[" * 500, "{" * 500, '"[', "\\", '\\"[', {'}]"': "]" * 500}] + [
        [n] for n in range(200)
    ]
    assert plain(value) == value


def test_what_holds_itself_is_refused() -> None:
    """With an error, not with a crash."""
    endless: list[Any] = []
    endless.append({"again": endless})
    with pytest.raises(TooLarge, match=r"value\[0\]\['again'\].*or holds itself"):
        plain(endless)


def test_far_too_deep_is_refused_too() -> None:
    """Deeper than the encoder's own stack."""
    with pytest.raises(TooLarge, match="over 128 levels deep"):
        plain(nested(100_000, lambda inner: [inner]))


def test_too_large_says_what_how_large_and_the_limit() -> None:
    """The user hears of it when writing, with a number, and not from a server."""
    codec = Codec(max_bytes=1000)
    with pytest.raises(TooLarge) as caught:
        codec.encode([("message", "small"), ("message", "x" * 2000)])
    assert str(caught.value).startswith("message 2 takes 2,002 bytes of JSON")
    assert "may have 1,000" in str(caught.value)
    assert "Codec(max_bytes=" in str(caught.value)


@pytest.mark.parametrize("text", ["x", "\N{SNOWMAN}", '"'])
def test_what_is_just_small_enough_can_be_read_again(text: str) -> None:
    """The limit when reading is not under the limit when writing, compressed or not."""
    for compress_over in (None, 10):
        value = text * 300
        size = len(msgspec.json.encode(["m", value]))
        codec = Codec(max_bytes=size, compress_over=compress_over)
        assert codec.decode(codec.encode([("m", value)])) == [("m", value)]


# -- bodies --------------------------------------------------------------------------------------


def body(payload: bytes, *, form: int = 1, flags: int = 0, key: int = 0) -> bytes:
    """A body made by hand, as the module's page says."""
    whole = bytes((form, flags)) + key.to_bytes(2) + payload
    return whole + zlib.crc32(whole, 0x2144DF1C).to_bytes(4, "little")


def test_a_body_is_header_payload_and_checksum() -> None:
    """As documented, so that others can read it."""
    codec = Codec()
    assert codec.encode([("message", {"n": 1})]) == body(b'["message",{"n":1}]')
    assert codec.encode([("a", 1), ("a", 2)]) == body(b'["a",1,2]')
    assert codec.encode([("a", 1), ("b", 2)]) == body(b'[["a",1],["b",2]]')


def test_compression_starts_over_the_threshold() -> None:
    """Small bodies stay readable in the file, and cheap."""
    codec = Codec(compress_over=1000)
    small, large = codec.encode([("m", "x" * 900)]), codec.encode([("m", "x" * 1100)])
    assert (small[1], large[1]) == (0, 1)
    for count in (1100, 9900):  # with a small window, and with the usual one
        large = codec.encode([("m", "x" * count)])
        packed = large[HEADER:-CHECK]
        assert large == body(packed, flags=1)
        assert zlib.decompress(packed) == b'["m","' + b"x" * count + b'"]'
    assert codec.encode([("m", "x" * 900)], 500)[1] == 1
    assert Codec(compress_over=None).encode([("m", "x" * 99_999)], 500)[1] == 0


def test_compression_is_used_only_if_it_pays() -> None:
    """What gets no smaller must not get slower."""
    no_two_alike = "".join(chr(n) for n in range(0x30, 0x80))
    assert Codec(compress_over=10).encode([("m", no_two_alike)])[1] == 0


def test_a_small_body_cannot_become_all_of_the_memory() -> None:
    """A decompression bomb is refused at the limit, before it goes off."""
    bomb = body(zlib.compress(b'["m","' + b"x" * 50_000_000 + b'"]'), flags=1)
    assert len(bomb) < 100_000
    with pytest.raises(TooLarge, match="over 16,777,216 bytes"):
        Codec().decode(bomb)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"", "cut short: it has 0 bytes"),
        (b"\x01\x00\x00\x00", "cut short: it has 4 bytes"),
        (body(b'["m",1]', form=2), "format 2, but this version reads 1.*upgrade"),
        (b'{"json": "of somebody else"}', "format 123"),
        (body(b'["m",1]', flags=2, key=7), "encrypted.*keys="),
        (body(b'["m",1]', flags=0x80), "flags 0x80.*Upgrade"),
        (body(b'["m",1]', flags=1), "cannot be decompressed"),
        (body(b'["m",'), "not JSON"),
        (body(b""), "not JSON"),
        (body(b'["m","\xff"]'), "not JSON"),
    ],
)
def test_bodies_that_cannot_be_read_say_why(bad: bytes, message: str) -> None:
    """A newer release, another key, a damaged disk: each has another remedy."""
    with pytest.raises(Unreadable, match=message):
        Codec().decode(bad)


@pytest.mark.parametrize("compress_over", [None, 10])
def test_every_changed_byte_is_noticed(compress_over: int | None) -> None:
    """Rotten storage must not become a slightly different conversation."""
    codec = Codec(compress_over=compress_over)
    good = codec.encode([("message", {"role": "user", "content": "ha" * 20})])
    assert good[1] == (0 if compress_over is None else 1)
    for at in range(len(good)):
        for flip in (*(1 << bit for bit in range(8)), 0xFF):
            bad = good[:at] + bytes((good[at] ^ flip,)) + good[at + 1 :]
            with pytest.raises(Unreadable):
                codec.decode(bad)


@pytest.mark.parametrize("compress_over", [None, 10])
def test_every_truncation_is_noticed(compress_over: int | None) -> None:
    """Half a record is no record; nor is one with something behind it."""
    codec = Codec(compress_over=compress_over)
    good = codec.encode([("message", {"role": "user", "content": "ha" * 20})])
    for bad in [*(good[:length] for length in range(len(good))), good + b"\x00", good * 2]:
        with pytest.raises(Unreadable):
            codec.decode(bad)


# Written by release 0.1.0. Never change one of these: somebody's conversation is made of them.
GOLDEN = [
    (
        (
            "010000005b226d657373616765222c7b22726f6c65223a2275736572222c22636f6e74656e74223a22492070726566"
            "657220652d6d61696c2e227d5d2a8f4ca4"
        ),
        [("message", {"role": "user", "content": "I prefer e-mail."})],
    ),
    (
        (
            "010000005b226d657373616765222c7b22726f6c65223a2275736572222c22636f6e74656e74223a224772c3bcc39f"
            "6520e29895227d2c7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a6e756c6c2c226e223a"
            "5b312c2d322e352c747275655d7d5d078f0f84"
        ),
        [
            ("message", {"role": "user", "content": "Grüße ☕"}),
            ("message", {"role": "assistant", "content": None, "n": [1, -2.5, True]}),
        ],
    ),
    (
        (
            "010000005b5b22636f70696564222c7b22726f6c65223a2275736572222c22636f6e74656e74223a2261227d5d2c5b"
            "22666f726b6564222c7b2266726f6d223a22616c696365222c226174223a31327d5d5dde0a96bb"
        ),
        [
            ("copied", {"role": "user", "content": "a"}),
            ("forked", {"from": "alice", "at": 12}),
        ],
    ),
    (
        (
            "010100007801edd03b0a02310045d1bdbc3a880836d9ca30854844f013998958887b1797219ce6c26dcf9475b447ca"
            "3bf7c3ada5e6d4c6f19c92a5adcfeb489db2f4d7ef9500010204081020408000010204081020408000010204081020"
            "4080000102040810204080000102040810204080000102040810204080000102040810204080000102040810204080"
            "00010204fe5a602e19bd5f52b79bddfe337f01ba27f0375fdf673d"
        ),
        [("step", {"name": "fetch", "result": ["row"] * 3000, "took": 0.25})],
    ),
]


@pytest.mark.parametrize(("written", "entries"), GOLDEN, ids=lambda value: str(value)[:20])
def test_bodies_of_earlier_releases_are_read_for_ever(
    written: str, entries: list[tuple[str, Any]]
) -> None:
    """A format changes by a new number, never by a new meaning."""
    assert Codec().decode(bytes.fromhex(written)) == entries
