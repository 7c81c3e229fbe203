"""What is not to be stored is replaced before it is: secrets, card numbers, addresses, your own.

A `Redactor` goes through a value once, before it is encoded, and changes texts only: what it has
replaced is marked, such as ``[redacted: api key]``. It is stable: what it returns it would not
change again, so the same value is stored as the same bytes whenever it is stored. Ids are left as
they are, and so are labels: a thing that is found by its name must keep it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Protocol
from uuid import UUID

import msgspec
from msgspec import Struct

from limpet.core.codec import plain
from limpet.core.ids import ID_FIELDS
from limpet.errors import NotStorable, TooLarge

__all__ = [
    "CARDS",
    "DETECTORS",
    "EMAILS",
    "FORGOTTEN",
    "PHONES",
    "SECRETS",
    "Detector",
    "Redactor",
    "is_marked",
    "marker",
    "pattern",
    "redactor_of",
    "text_in",
]

#: What stands where a subject was mentioned that was forgotten; see `limpet.erasure`.
FORGOTTEN = "[forgotten]"

#: Deeper than any codec stores by itself; far from where Python's stack ends.
DEEPEST = 256

#: How often a text is gone through until nothing more is found: twice, nearly always.
ROUNDS = 20

#: Characters behind a hint within which the sign of an assignment is: the rest of the name, quotes
#: and spaces.
NEAR = 24


def marker(what: str) -> str:
    """What stands in the place of *what* was there.

    >>> marker("api key")
    '[redacted: api key]'
    """
    return f"[redacted: {what}]"


def is_marked(value: Any) -> bool:
    """Whether something in *value*, of plain data, was replaced by a `marker`, or forgotten."""
    if isinstance(value, str):
        return "[redacted: " in value or FORGOTTEN in value
    if isinstance(value, dict):
        return any(is_marked(key) or is_marked(item) for key, item in value.items())
    return isinstance(value, (list, tuple)) and any(map(is_marked, value))


class Detector(Protocol):
    """Finds one sort of thing in texts.

    ``names_secret`` says whether the text under a key of that name is replaced whole, whatever it
    looks like; and as what. A plain function is a detector without that.
    """

    def __call__(self, text: str) -> str:
        """*text* with what was found replaced by a `marker`."""

    def names_secret(self, name: str, text: str) -> str | None:
        """What *text* under the key *name* is, if it is to go; None if not."""


class _Rule(Struct, frozen=True):
    """Patterns, and what they find: all that matches, or the part of it that is called "it".

    A text that has none of *hints*, in small letters, has none of it: patterns are slow. With
    *assigned*, nor has one without a sign of assignment right behind a hint: most have words such
    as "token".
    """

    what: str
    found: tuple[re.Pattern[str], ...]
    hints: tuple[str, ...] = ()
    assigned: bool = False

    def replace(self, text: str, small: str) -> str:
        """*text* without it; *small* is the same in small letters."""
        for hint in self.hints:
            if hint in small and (not self.assigned or _is_assigned(hint, small)):
                break
        else:
            if self.hints:
                return text
        for one in self.found:
            text = one.sub(self._replaced, text)
        return text

    def _replaced(self, found: re.Match[str]) -> str:
        if "it" not in found.re.groupindex:
            return marker(self.what)
        begin, end = found.span("it")
        whole = found.string
        return whole[found.start() : begin] + marker(self.what) + whole[end : found.end()]


def _is_assigned(hint: str, small: str) -> bool:
    at = small.find(hint)
    while at >= 0:
        at += len(hint)
        behind = small[at : at + NEAR]
        if ":" in behind or "=" in behind:
            return True
        at = small.find(hint, at)
    return False


class Patterns(Struct, frozen=True):
    """A detector made of patterns."""

    rules: tuple[_Rule, ...]

    def __call__(self, text: str) -> str:
        """*text* with what was found replaced."""
        small = text.lower()
        for rule in self.rules:
            text = rule.replace(text, small)
        return text

    def names_secret(self, name: str, text: str) -> str | None:  # noqa: ARG002 - a detector's
        """No name says enough."""
        return None


def pattern(what: str, regex: str | re.Pattern[str]) -> Patterns:
    """A detector of your own: *regex* finds it, or the part of it that is called ``(?P<it>…)``.

    >>> staff = pattern("staff number", r"STAFF-[0-9]{6}")
    >>> staff("Ask STAFF-004711.")
    'Ask [redacted: staff number].'
    """
    return Patterns((_Rule(what, (re.compile(regex),)),))


# -- secrets ---------------------------------------------------------------------------------------

#: What a secret has and a word has not: a digit, a capital behind a small letter, a sign.
_NO_WORD = r"(?=[^\s\"',;]*(?:[0-9=+/_~$%^*#]|(?-i:[a-z][A-Z])))"
_UNMARKED = r"(?!\[redacted:)"
_NAME = (
    r"(?:api[_-]?key|api[_-]?token|access[_-]?key(?:[_-]?id)?|secret[_-]?(?:access[_-]?)?key"
    r"|client[_-]?secret|private[_-]?key|account[_-]?key|shared[_-]?access[_-]?(?:key|signature)"
    r"|(?:access|refresh|auth|id|session|bearer)[_-]?token|secret|token)"
)
_PASSWORD = r"(?:password|passwd|passphrase|pwd)"  # noqa: S105 - a pattern
#: An assignment's sign, with the quotes that JSON within JSON has before and behind it.
_IS = r"[\\\"']{0,4}\s{0,4}(?:=>|[:=])\s{0,4}"
_QUOTE = rf"(?P<quote>\\{{0,3}}[\"']){_UNMARKED}"
_QUOTED = rf"{_QUOTE}(?P<it>(?:(?!(?P=quote)).){{1,4096}})"
_LONG_QUOTED = rf"{_QUOTE}(?P<it>(?:(?!(?P=quote)).){{8,4096}})"
_UNQUOTED = rf"{_UNMARKED}(?P<it>[^\s\"'\\,;&<>(){{}}\[\]]"


def _rule(what: str, hints: str, *regexes: str, flags: int = 0) -> _Rule:
    patterns = tuple(re.compile(regex, flags) for regex in regexes)
    return _Rule(what, patterns, tuple(hints.split()))


def _assigned(what: str, hints: str, *regexes: str) -> _Rule:
    patterns = tuple(re.compile(regex, re.IGNORECASE | re.DOTALL) for regex in regexes)
    return _Rule(what, patterns, tuple(hints.split()), assigned=True)


class _Secrets(Patterns, frozen=True):
    def names_secret(self, name: str, text: str) -> str | None:
        """What a text under such a key is."""
        plain_name = "".join(filter(str.isalnum, name)).lower()
        if plain_name == "token" or plain_name.endswith("cookie"):
            return "token" if _LIKE_TOKEN.fullmatch(text) else None
        return next((what for end, what in _NAMES if plain_name.endswith(end)), None)


_LIKE_TOKEN = re.compile(r"(?=.*[0-9])\S{16,}", re.DOTALL)
_NAMES = (
    *((name, "password") for name in ("password", "passwd", "passphrase", "pwd")),
    *((name, "api key") for name in ("apikey", "apitoken", "accesskey", "accountkey")),
    *((name, "secret") for name in ("clientsecret", "secretkey", "secretaccesskey", "secret")),
    ("privatekey", "private key"),
    *((f"{name}token", "token") for name in ("access", "refresh", "auth", "id", "session")),
    *(("bearertoken", "token"), ("authorization", "authorization")),
    ("connectionstring", "credentials"),
)

#: API keys, tokens, passwords that are named so, Authorization headers, private keys, and the
#: credentials in URLs and connection strings.
SECRETS: Detector = _Secrets(
    (
        _rule(
            "private key",
            "-----begin",
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?"
            r"(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
            flags=re.DOTALL,
        ),
        _assigned(
            "authorization",
            "authorization",
            rf"authorization{_IS}[\\\"']{{0,4}}(?:bearer|basic|digest|token|apikey)\s{{1,4}}"
            rf"{_UNMARKED}(?P<it>[^\s\"'\\,;]{{4,}})",
            rf"authorization{_IS}[\\\"']{{0,4}}{_UNMARKED}"
            rf"(?P<it>AWS4-[^\n\"'\\]{{8,}}|{_NO_WORD}[^\s\"'\\,;]{{8,}})",
        ),
        _rule(
            "token",
            "bearer basic",
            rf"(?i:\b(?:bearer|basic))\s{{1,4}}{_UNMARKED}{_NO_WORD}(?P<it>[\w+/=.~-]{{8,}})",
        ),
        _rule("token", "eyj", r"(?<![A-Za-z0-9])eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"),
        _rule(
            "api key",
            "sk- pk- rk- k_live_ k_test_ whsec_ gho_ ghp_ ghr_ ghs_ ghu_ github_pat_ glpat- xox "
            "xapp- hf_ npm_ pypi- dop_v1_ akia asia aiza sg. ya29.",
            r"(?<![\w-])(?:"
            r"[prs]k-(?=[\w-]*[A-Za-z0-9]{16})[\w-]{16,}"
            r"|(?:[prs]k_(?:live|test)_|whsec_)[A-Za-z0-9]{10,}"
            r"|gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
            r"|xox[abeprs]-[\w-]{10,}|xapp-[\w-]{10,}"
            r"|hf_[A-Za-z0-9]{20,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{40,}|dop_v1_[0-9a-f]{40,}"
            r"|(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"
            r"|AIza[\w-]{35}|SG\.[\w-]{16,}\.[\w-]{16,}|ya29\.[\w-]{20,}"
            r")",
        ),
        _rule(
            "credentials",
            "://",
            rf"[a-z0-9+.-]://{_UNMARKED}"
            r"(?P<it>[^\s/@:\"'<>\[]{0,256}:[^\s/@\"'<>]{1,256}|[\w-]{20,256})@",
            flags=re.IGNORECASE,
        ),
        _assigned(
            "password",
            "password passwd passphrase pwd",
            _PASSWORD + _IS + _QUOTED,
            _PASSWORD + _IS + _UNQUOTED + "{4,})",
        ),
        _assigned(
            "secret",
            "token secret apikey api_key api-key accesskey access_key access-key privatekey "
            "private_key private-key accountkey account_key account-key sharedaccess "
            "shared_access shared-access",
            _NAME + _IS + _LONG_QUOTED,
            _NAME + _IS + _NO_WORD + _UNQUOTED + "{8,})",
        ),
    )
)


# -- card numbers ----------------------------------------------------------------------------------

#: Spaces and hyphens as pages have them, too, which do not break.
_RUN = re.compile("[0-9](?:[ \u00a0\u2007\u2009\u202f\u2010-\u2015-]?[0-9]){12,}")
_GROUP = re.compile(r"[0-9]+")
_HEX_AND_DASH = re.compile(r"[0-9a-fA-F]{4,}-\Z")
_DASH_AND_HEX = re.compile(r"-[0-9a-fA-F]{4,}")
#: How long the numbers are that begin so, by who gives out cards of them.
_ISSUED = re.compile(
    r"4(?:[0-9]{12}|[0-9]{15}|[0-9]{18})"
    r"|(?:5[1-5]|222[1-9]|22[3-9][0-9]|2[3-6][0-9]{2}|27[01][0-9]|2720)[0-9]*(?<=\A[0-9]{16})"
    r"|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}"
    r"|(?:6011|64[4-9][0-9]|65[0-9]{2})[0-9]{12}|35(?:2[89]|[3-8][0-9])[0-9]{12}"
    r"|62[0-9]{14,17}"
)


def _is_card(digits: str) -> bool:
    if not _ISSUED.fullmatch(digits) or len(set(digits)) == 1:
        return False
    odd, even = digits[::-2], digits[-2::-2]
    return (sum(map(int, odd)) + sum(sum(divmod(2 * int(one), 10)) for one in even)) % 10 == 0


class _Cards(Struct, frozen=True):
    """Card numbers, by issuer, length and check digit; with spaces or hyphens or without."""

    def __call__(self, text: str) -> str:
        return _RUN.sub(self._without, text)

    def _without(self, run: re.Match[str]) -> str:
        text, start = run.string, run.start()
        groups = [found.span() for found in _GROUP.finditer(text, start, run.end())]
        made, done, at = [], start, 0
        while at < len(groups):
            end = self._end_of_card(text, groups, at)
            if end is None:
                at += 1
                continue
            made += [text[done : groups[at][0]], marker("card number")]
            done, at = groups[end][1], end + 1
        return "".join([*made, text[done : run.end()]])

    def _end_of_card(self, text: str, groups: list[tuple[int, int]], at: int) -> int | None:
        digits = ""
        for end in range(at, len(groups)):
            digits += text[slice(*groups[end])]
            if len(digits) > 19:  # noqa: PLR2004 - the longest there are
                return None
            whole = groups[at][0], groups[end][1]
            if _is_card(digits) and not _is_within(text, *whole):
                return end
        return None

    def names_secret(self, name: str, text: str) -> str | None:  # noqa: ARG002 - a detector's
        """No name says enough."""
        return None


def _is_within(text: str, start: int, end: int) -> bool:
    """Whether those digits are a part of something else: a hash, a UUID, a number with a point."""
    before, behind = text[max(start - 24, 0) : start], text[end : end + 24]
    return bool(
        (before[-1:].isalnum() or before[-1:] == "_")
        or (behind[:1].isalnum() or behind[:1] == "_")
        or (before[-1:] == "." and before[-2:-1].isdigit())
        or (behind[:1] == "." and behind[1:2].isdigit())
        or (_HEX_AND_DASH.search(before) and not before[-5:-1].isdigit())
        or (_DASH_AND_HEX.match(behind) and not behind[1:5].isdigit())
    )


#: Card numbers: of a known issuer, of its length, and with the right check digit.
CARDS: Detector = _Cards()


# -- addresses -------------------------------------------------------------------------------------

_EMAIL = r"(?<![\w.+-])[\w+-][\w.+-]{0,63}@(?:[\w-]{1,63}\.){1,8}[^\W\d_][\w-]{1,23}(?!\w)"
_PHONE = (
    r"(?<![\w.+-])(?:"
    r"(?:\+|00)[1-9][0-9]{0,2}(?:[ ./()-]{0,2}[0-9]){6,12}"
    r"|(?:1[ .-])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[ .-])[2-9][0-9]{2}[ .-][0-9]{4}"
    r"|\(?0[1-9][0-9]{1,4}\)?[ /-](?:[0-9]{2,8}[ -]?){1,3}[0-9]"
    r")(?![\w+]|[.-][0-9])"
)

#: E-mail addresses.
EMAILS: Detector = Patterns((_rule("e-mail", "@", _EMAIL),))

#: Phone numbers: international ones, and those of North America and of Europe with their signs.
PHONES: Detector = Patterns((_rule("phone number", "", _PHONE),))

#: The built-in ones, by the names that ``redact=`` takes.
DETECTORS: dict[str, Detector] = {
    "secrets": SECRETS,
    "cards": CARDS,
    "emails": EMAILS,
    "phones": PHONES,
}


# -- values ----------------------------------------------------------------------------------------

_AS_THEY_ARE = (type(None), bool, float, datetime, date, time, timedelta, UUID, Decimal, Enum)

_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")


def text_in(data: bytes) -> str | None:
    """The text that *data* is in UTF-8; None if it is something else, which nobody may cut into."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(text) else text


class Redactor:
    """Replaces what *detectors* find, in texts and in whatever holds texts."""

    def __init__(self, detectors: Iterable[Detector | Callable[[str], str]]) -> None:
        self._detectors = tuple(detectors)
        self._named = tuple(
            one.names_secret for one in self._detectors if hasattr(one, "names_secret")
        )
        self._has_own = len(self._named) < len(self._detectors)
        self._finds_numbers = CARDS in self._detectors

    def text(self, text: str) -> str:
        """*text* without what is found in it; `NotStorable` if that would change again."""
        for _ in range(ROUNDS):
            made = self._once(text)
            if made == text:
                return text
            text = made  # what was beside it may stand by itself now
        if self._has_own:
            msg = (
                "A function in redact= changes what it has returned, so the same value would be "
                "stored as another one each time. Let it leave its own replacement alone."
            )
            raise NotStorable(msg)
        return marker("text")

    def _once(self, text: str) -> str:
        for detect in self._detectors:
            text = detect(text)
        return text

    def value(self, value: Any) -> Any:
        """*value* without what is found in it: itself, if that is nothing.

        Containers are copied where something in them changes; types of numbers, times, ids and
        bytes stay. Bytes are looked into where they are a text. Of a model or dataclass in which
        something is replaced comes what would be stored. A whole number that is a card number
        becomes the marker.
        """
        return self._value(value, 0)

    def _value(self, value: Any, depth: int) -> Any:  # noqa: PLR0911 - one line for each type
        if isinstance(value, str) and not isinstance(value, Enum):
            return self.text(value if value.__class__ is str else str.__str__(value))
        if isinstance(value, _AS_THEY_ARE):
            return value
        if isinstance(value, (bytes, bytearray, memoryview)):
            held = text_in(bytes(value))
            found = held and self.text(held)
            return value if found is None or found == held else found.encode()
        if isinstance(value, int):
            if not self._finds_numbers or value < 10**12 or value >= 10**19:
                return value
            text = CARDS(str(value))
            return value if text == str(value) else text
        if depth > DEEPEST:
            msg = f"A value is nested over {DEEPEST} levels deep, or holds itself. Flatten it."
            raise TooLarge(msg)
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, (list, tuple, set, frozenset)):
            made = [self._value(item, depth + 1) for item in value]
            unchanged = all(new is old for new, old in zip(made, value, strict=True))
            return value if unchanged else made
        as_stored = plain(value)
        made = self._value(as_stored, depth)
        return value if made is as_stored or made == as_stored else made

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> Any:
        made: dict[Any, Any] = {}
        changed = False
        for key, item in value.items():
            new_key = self.text(key) if key.__class__ is str else key
            new = self._under(key, item, depth) if key.__class__ is str else None
            new = self._value(item, depth + 1) if new is None else new
            if new_key != key:
                # Two keys may have been replaced by the same: both values stay.
                free, number = new_key, 1
                while free in made or free in value:
                    number += 1
                    free = f"{new_key} {number}"
                new_key = free
            changed = changed or new is not item or new_key != key
            made[new_key] = new
        return made if changed else value

    def _under(self, key: str, item: Any, depth: int) -> Any:
        """What replaces *item*, all of which goes for what its key says; None if it does not."""
        if item.__class__ is list:
            parts = [self._under(key, one, depth) for one in item]
            if any(part is not None for part in parts):
                return [
                    self._value(one, depth + 1) if part is None else part
                    for one, part in zip(item, parts, strict=True)
                ]
            return None
        text = text_in(item) if item.__class__ is bytes else item
        if text.__class__ is not str or not text or text.startswith("[redacted: "):
            return None
        for name_secret in self._named:
            what = name_secret(key, text)
            if what is not None:
                return marker(what).encode() if item.__class__ is bytes else marker(what)
        return None

    def entry(self, kind: str, body: Any) -> Any:
        """The *body* of an entry in a journal of some *kind*: ids that models keep in it stay."""
        kept = ID_FIELDS.get(kind)
        if kept is not None and isinstance(body, list):
            return self._kept(kept, body)
        if kept is None or not isinstance(body, dict):
            return self.value(body)
        made = {}
        for key, item in body.items():
            new = self._kept(kept, item) if key in kept else self._under(key, item, 0)
            made[key] = self._value(item, 1) if new is None and key not in kept else new
        return body if all(made[key] is body[key] for key in body) else made

    def _kept(self, kept: frozenset[str], value: Any) -> Any:
        if value.__class__ is list:
            parts = [self._kept(kept, one) for one in value]
            unchanged = all(new is old for new, old in zip(parts, value, strict=True))
            return value if unchanged else parts
        if value.__class__ is dict:
            made = {
                key: item if key in kept else self._value(item, 1) for key, item in value.items()
            }
            return value if all(made[key] is value[key] for key in value) else made
        return value

    def meta(self, meta: bytes) -> bytes:
        """What a head says, without what is found in the errors of its calls."""
        if b'"error"' not in meta:
            return meta
        found = msgspec.json.decode(meta)
        for call in found.get("calls", {}).values():
            if call.get("error"):
                call["error"] = self.text(call["error"])
        return msgspec.json.encode(found)


def redactor_of(
    redact: Iterable[str | Detector | Callable[[str], str]] | Redactor | None,
) -> Redactor | None:
    """What ``redact=`` asks for; None if that is nothing."""
    if redact is None or isinstance(redact, Redactor):
        return redact
    if isinstance(redact, str) or not isinstance(redact, Iterable):
        raise TypeError('redact= takes a list, for example ["secrets", "cards"].')
    found: list[Detector | Callable[[str], str]] = []
    for one in redact:
        if isinstance(one, str):
            if one not in DETECTORS:
                known = ", ".join(DETECTORS)
                msg = f"redact= knows no {one!r}. There are {known}; or give a function of a text."
                raise ValueError(msg)
            found.append(DETECTORS[one])
        elif callable(one):
            found.append(one)
        else:
            raise TypeError(f"redact= takes names and functions, not a {type(one).__name__}.")
    # Functions first: what a person wrote for their own texts is to see them as they are.
    built_in = [one for one in found if hasattr(one, "names_secret")]
    own = [one for one in found if not hasattr(one, "names_secret")]
    return Redactor([*own, *built_in]) if found else None
