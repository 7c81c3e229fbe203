"""Which of several memories say what another one, said later, says otherwise.

"Ada now prefers tea" is about the same as "Ada prefers coffee"; "the API allows 200 calls" takes
the place of 100. Nobody has said so, as `update` would: so both stay, and the newest comes first.
Rather too few are found than too many. Pure, and English.
"""

from __future__ import annotations

import re
from itertools import permutations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from limpet.memory.results import Remembered

__all__ = ["is_telling", "outdated"]

#: Of the words of the longer one, the share that both have, from which on they are about the same.
ALIKE = 0.6
#: Characters of a text that may be such a sentence.
LONGEST = 400

# What says that something was otherwise before; and what says that it is over.
_OVER = r"no longer|not any ?more|any ?more|stopped|gave up|quit"
_NEWS = re.compile(
    rf"\b(?:now|nowadays|these days|from now on|since then|instead|changed|switched|moved|went back"
    rf"|replaced|renamed|used to|{_OVER})\b",
    re.IGNORECASE,
)
_ENDED = re.compile(rf"\b(?:{_OVER})\b", re.IGNORECASE)
# What has one value at a time: what comes before it is what it is about.
_HAS = re.compile(
    r"^(?P<about>.{2,80}?)(?:\s*[:=]\s+|\s+(?P<verb>is|are|was|were|equals?|costs?|allows?|takes?|lasts?"
    r"|lives? (?:in|at)|works? (?:at|for)|(?:is|are) called|(?:is|are) named|(?:is|are) due)\s+)"
    r"(?P<value>.+)$",
    re.IGNORECASE | re.DOTALL,
)
# Without one of these it is neither.
_TELLING = frozenset(
    """: = is are was were equal equals cost costs allow allows take takes last lasts live lives
    work works now nowadays days since instead changed switched moved went replaced renamed used
    longer more anymore stopped gave quit""".split()  # noqa: SIM905 - as people read it
)
_WORD = re.compile(r"[^\W_]+")
_EMPTY = frozenset(
    """a an and any are as at be by for from has have he her his i in is it its my no not now of on
    or our she so that the their then they this to was we were with you your more longer anymore
    nowadays these days instead changed switched moved went back replaced renamed used since before
    stopped gave up quit""".split()  # noqa: SIM905 - as people read it
)


def is_telling(text: str) -> bool:
    """Whether *text* may say how something is, or that it is so no longer: most do not."""
    words = text.casefold().replace(":", " : ").replace(".", " ").replace(",", " ").split()
    return len(text) <= LONGEST and not _TELLING.isdisjoint(words)


def outdated(memories: Sequence[Remembered]) -> dict[str, list[str]]:
    """The ids of newer ones, each with those of *memories* that it says otherwise."""
    telling = [one for one in memories if is_telling(one.text)]
    pairs = dict.fromkeys(
        (newer.id, older.id)
        for newer, older in [*_of_one_subject(telling), *_with_news(telling, memories)]
        if _later(newer, older)
    )
    found: dict[str, list[str]] = {}
    for newer_id, older_id in pairs:
        found.setdefault(newer_id, []).append(older_id)
    return found


def _of_one_subject(telling: list[Remembered]) -> Iterator[tuple[Remembered, Remembered]]:
    """Those that give another value to the same."""
    about: dict[str, list[Remembered]] = {}
    for one in telling:
        about.setdefault(_subject(one.text), []).append(one)
    about.pop("", None)
    for group in about.values():
        for one, other in permutations(group, 2):
            if _value(one.text) != _value(other.text):
                yield one, other


def _with_news(
    telling: list[Remembered], memories: Sequence[Remembered]
) -> Iterator[tuple[Remembered, Remembered]]:
    """Those that say that something has changed, each with what they may say it of."""
    for newer in telling:
        if _NEWS.search(newer.text):
            for older in memories:
                if len(older.text) <= LONGEST and _is_news_of(newer.text, older.text):
                    yield newer, older


def _later(newer: Remembered, older: Remembered) -> bool:
    """Whether one was said after the other, by somebody who is not less to be trusted."""
    trusted = newer.trust is None or older.trust is None or newer.trust >= older.trust
    return trusted and _said(newer) > _said(older) and newer.id != older.id


def _said(one: Remembered) -> datetime:
    return one.said_at or one.at


def _subject(text: str) -> str:
    """What a sentence gives one value to; nothing if it is not of that kind, or says too little."""
    found = _HAS.match(text.strip())
    if found is None:
        return ""
    words = [_stem(word) for word in _words(found["about"])]
    verb = (found["verb"] or "is").lower()
    # "Ada is" may go on with many things that are all true; "the limit is 5" does not.
    plain = verb in {"is", "are", "was", "were"}
    enough = len(words) > 1 or (words and (not plain or _begins_with_number(found["value"])))
    sort = "is" if plain else _stem(verb.split()[0]) + verb.partition(" ")[2]
    return " ".join([*words, sort]) if enough else ""


def _begins_with_number(value: str) -> bool:
    return any(map(str.isdigit, " ".join(value.split()[:3])))


def _value(text: str) -> str:
    found = _HAS.match(text.strip())
    return " ".join(_WORD.findall(found["value"].casefold())) if found else ""


def _is_news_of(newer: str, older: str) -> bool:
    new, old = frozenset(map(_stem, _words(newer))), frozenset(map(_stem, _words(older)))
    common = new & old
    if len(common) < 2 or len(common) < ALIKE * max(len(new), len(old)):  # noqa: PLR2004 - who, and what
        return False
    return bool(old - new) if not _ENDED.search(newer) else True


def _words(text: str) -> list[str]:
    """The words that say something."""
    return [word for word in _WORD.findall(text.casefold()) if word not in _EMPTY]


def _stem(word: str) -> str:
    """A word without its ending, roughly: prefers, preferred."""
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) > len(ending) + 2:
            word = word.removesuffix(ending)
            break
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word  # noqa: PLR2004 - letters
