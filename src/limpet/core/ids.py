"""What can be a tenant, a kind, an id, a label, a ttl. Checked here; backends take it as given."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from limpet.backends.contract import UNSET, Key, UnsetType
from limpet.errors import InvalidId

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ID_FIELDS",
    "OWN",
    "check_id",
    "check_labels",
    "check_prefix",
    "check_seconds",
    "check_ttl",
    "make_key",
    "name_fields",
    "written_out",
]

#: How kinds begin that a store keeps for itself, its acts and its rules: no data of anybody's.
OWN = "limpet-"

#: Fields of entries that hold ids, by the kind of their journal: things are found by what they say,
#: so nothing is ever redacted in them.
ID_FIELDS: dict[str, frozenset[str]] = {}

#: In UTF-8. The three parts of a key and a separator fit the narrowest backend's sort key.
MAX_ID_BYTES = 512
MAX_TENANT_BYTES = 128
MAX_LABEL_BYTES = 256
#: A hundred years; what is to last longer has no end.
MAX_SECONDS = 100 * 365 * 24 * 60 * 60

# Patterns are compiled when they are first used: most ids need none of it, and it takes a while.
_KIND = r"[a-z][a-z0-9_-]{0,31}"
# Control characters, line separators, surrogates and noncharacters: nothing a person can type.
_BAD = "[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff\U0010fffe\U0010ffff]"


def make_key(tenant: str, kind: str, id_: str) -> Key:
    """A journal's key, or `InvalidId`."""
    if not isinstance(kind, str):
        raise InvalidId(f"A kind must be text, not {type(kind).__name__} ({kind!r:.80}).")
    if not re.fullmatch(_KIND, kind):
        msg = f"{kind!r:.80} cannot be a kind: use up to 32 of a-z, 0-9, _ and -, a letter first."
        raise InvalidId(msg)
    check_id(tenant, "tenant", MAX_TENANT_BYTES)
    check_id(id_, f"{kind} id")
    return Key(tenant, kind, id_)


def check_id(text: str, what: str, most: int = MAX_ID_BYTES) -> str:
    """*text* if it is a good id: not empty, printable, not too long, no space at either end."""
    if not isinstance(text, str):
        raise InvalidId(f"A {what} must be text, not {type(text).__name__} ({text!r:.80}).")
    plain = text.isascii() and text.isprintable() and 0 < len(text) <= most
    if plain and text[0] != " " != text[-1]:
        return text  # as nearly all are
    if not text or text != text.strip():
        raise InvalidId(f"{text!r:.80} cannot be a {what}: it is empty, or has space at an end.")
    bad = re.search(_BAD, text)
    if bad:
        msg = f"{text[:80]!r} cannot be a {what}: it contains {bad.group()!r}."
        raise InvalidId(msg)
    if len(text.encode()) > most:
        msg = (
            f"{text[:40]!r}… cannot be a {what}: it has {len(text.encode())} bytes, and {most} is "
            "the most. Use a hash of it."
        )
        raise InvalidId(msg)
    return text


def written_out(text: Any, prefix: str) -> str:
    """The id for what a framework calls *text*: that, wherever it can be an id.

    What is empty, too long, has spaces at its ends or characters that nobody can type is written
    out behind *prefix*, such that no two texts have one id.
    """
    if not isinstance(text, str):
        return check_id(text, "id")  # which raises
    if not text.startswith(prefix):
        with suppress(InvalidId):
            return check_id(text, "id")
    from hashlib import sha256  # noqa: PLC0415 - few ids need it, and it is slow to import
    from urllib.parse import quote  # noqa: PLC0415 - as above

    written = prefix + quote(text, safe="", errors="surrogatepass")
    if len(written) <= MAX_ID_BYTES:
        return written
    # What is written out has no colon.
    return f"{prefix}sha256:{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def check_prefix(text: str) -> str:
    """*text* if ids can begin with it; it may be empty, or end in a space."""
    bad = re.search(_BAD, text)
    if bad:
        msg = f"No id begins with {text[:80]!r}: it contains {bad.group()!r}."
        raise InvalidId(msg)
    return text


def check_labels(labels: Mapping[str, str | None]) -> dict[str, str | None]:
    """*labels* if names and values are good; a value may be empty, None removes the label."""
    for name, value in labels.items():
        check_id(name, "label", MAX_LABEL_BYTES)
        if value:
            check_id(value, f"value of label {name!r}", MAX_LABEL_BYTES)
        elif value not in ("", None):
            msg = f"The value of label {name!r} must be text, not {type(value).__name__}."
            raise InvalidId(msg)
    return dict(labels)


def check_ttl(ttl: float | UnsetType | None) -> float | UnsetType | None:
    """*ttl* if it is a good number of seconds, None (for ever) or not given."""
    return ttl if ttl is None or ttl is UNSET else check_seconds(ttl, "ttl")


def check_seconds(seconds: object, what: str) -> float:
    """*seconds* if they are a number over 0 that any clock can add."""
    if isinstance(seconds, (int, float)) and 0 < seconds <= MAX_SECONDS:
        return seconds
    msg = f"A {what} is a number of seconds over 0, up to {MAX_SECONDS:,}; not {seconds!r:.80}."
    raise ValueError(msg)


def name_fields(kind: str, *fields: str) -> None:
    """Say which *fields* of the entries of a *kind* hold ids, or lists of what has ids.

    Texts in such a list are ids too; of a dict in it, the fields of these names are.
    """
    ID_FIELDS[kind] = ID_FIELDS.get(kind, frozenset()) | frozenset(fields)
