"""Times that English names: in a text, by when it was said; in a question, by when it is asked.

"Yesterday" of the 8th of May is the 7th; "in May 2023" is a month. A time is a span, from its
beginning up to its end. What may be another word ("may", "march", a number) is not taken for one
unless what stands beside it says so. Pure: a text, a moment, and what that comes to.
"""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    Read = Callable[[re.Match[str], "Moment"], "Span | None"]

__all__ = ["Question", "Span", "read_question", "spans_in"]

DAY = timedelta(days=1)
#: What has no beginning, or no end: nobody speaks of more.
_EVER, _NEVER = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
_NAMES = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september"),
    *("october", "november", "december"),
)
_MONTHS = {name: number for number, name in enumerate(_NAMES, 1)}
_MONTHS |= {name[:3]: number for name, number in _MONTHS.items()} | {"sept": 9}
#: Months that are words of another meaning, too.
_AMBIGUOUS = {"may", "march", "mar"}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}
_COUNTS = {
    word: number
    for number, words in enumerate(
        "a|an|one two|couple three|few four five|several six seven eight nine ten".split(),  # noqa: SIM905 - as people read it
        1,
    )
    for word in words.split("|")
}
_ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4}

_M = "|".join(sorted(_MONTHS, key=len, reverse=True))
_D, _Y = r"(\d{1,2})(st|nd|rd|th)?", r"((?:1[5-9]|20)\d\d)"
_UNIT = "day|week|month|year"
_N = rf"\d{{1,3}}|{'|'.join(_COUNTS)}"
_W = "|".join(_WEEKDAYS)


class Span(NamedTuple):
    """From *start* up to *end*: a time that has a name."""

    start: datetime
    end: datetime


class Moment(NamedTuple):
    """When something was said, and whether it speaks of what has been."""

    at: datetime
    past: bool


class Question(NamedTuple):
    """The times that a question asks about, and what else it says.

    Or an event, in the words of the question, and whether it asks for what was *before* it.
    """

    spans: list[Span]
    rest: str
    event: str | None = None
    before: bool = False


# -- reading one expression ------------------------------------------------------------------------


def _midnight(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


def _day(at: datetime) -> Span:
    start = _midnight(at)
    return Span(start, start + DAY)


def _of(at: datetime, year: int, month: int = 0, day: int = 0) -> Span | None:
    """A year, a month or a day; None if there is none such."""
    try:
        start = _midnight(at).replace(year=year, month=month or 1, day=day or 1)
    except ValueError:
        return None
    if day:
        return Span(start, start + DAY)
    return Span(start, _later(start, 1 if month else 12))


def _later(at: datetime, months: int) -> datetime:
    """The same day so many months later, or the last one of a shorter month."""
    number = at.year * 12 + at.month - 1 + months
    year, month = divmod(number, 12)
    return at.replace(year=year, month=month + 1, day=min(at.day, monthrange(year, month + 1)[1]))


def _nearest(said: Moment, month: int, day: int = 0) -> Span | None:
    """That month, or day, in the year in which it was last, or else in which it is nearest."""
    years = (said.at.year + step for step in (-1, 0, 1))
    found = [span for year in years if (span := _of(said.at, year, month, day))]
    if said.past:
        found = [one for one in found if one.start <= said.at][-1:]
    return min(found, key=lambda one: abs(one.start - said.at), default=None)


def _numbers(found: re.Match[str], said: Moment) -> Span | None:
    year, month, day = (int(part or 0) for part in found.groups())
    return _of(said.at, year, month, day) if month else None


def _dotted(found: re.Match[str], said: Moment) -> Span | None:
    first, mark, second, year = found[1], found[2], found[3], int(found[4])
    day, month = int(first), int(second)
    if mark == "/" and day <= 12 and month <= 12 and day != month:  # noqa: PLR2004 - months
        return None  # some write the month first
    if month > 12:  # noqa: PLR2004 - months
        day, month = month, day
    return _of(said.at, year, month, day)


def _day_of_month(said: Moment, day: str, suffix: str | None, month: str, year: str) -> Span | None:
    name = month.lower()
    unsure = name in _AMBIGUOUS and not year and not suffix and not month[0].isupper()
    if unsure or not int(day):
        return None
    if year:
        return _of(said.at, int(year), _MONTHS[name], int(day))
    return _nearest(said, _MONTHS[name], int(day))


def _part(found: re.Match[str], said: Moment) -> Span | None:
    """A month, with or without a year, or a part of it; alone only behind what leads to a time."""
    lead, part, month, year = found["lead"], found["part"], found["month"], found["year"]
    if not (lead or part or year) or (month.lower() in _AMBIGUOUS and not year and not lead):
        return None
    number = _MONTHS[month.lower()]
    which = (lead or "").lower()
    whole = _of(said.at, int(year), number) if year else _nearest(said, number)
    if whole is not None and not year:
        if which in {"next", "coming"} and whole.start <= said.at:
            whole = Span(_later(whole.start, 12), _later(whole.start, 13))
        elif which == "last" and whole.end > said.at:
            whole = Span(_later(whole.start, -12), _later(whole.start, -11))
    if whole is None or not part:
        return whole
    start, end, words = whole.start, whole.end, part.lower()
    if "week" in words:
        return _week_of(start, end, words)
    if words.startswith(("early", "beginning", "start")):
        return Span(start, start + 10 * DAY)
    if words.startswith(("mid", "middle")):
        return Span(start + 9 * DAY, start + 20 * DAY)
    return Span(end - 11 * DAY, end)


def _week_of(start: datetime, end: datetime, words: str) -> Span:
    ordinal = words.split(maxsplit=1)[0]
    if "weekend" in words:
        saturdays = [
            start + day * DAY
            for day in range((end - start).days)
            if (start + day * DAY).weekday() == 5  # noqa: PLR2004 - Saturday
        ]
        first = saturdays[-1 if ordinal == "last" else _ORDINALS[ordinal] - 1]
        return Span(first, first + 2 * DAY)
    if ordinal == "last":
        return Span(end - 8 * DAY, end)
    first = start + 7 * (_ORDINALS[ordinal] - 1) * DAY
    return Span(first, min(first + 7 * DAY, end))


def _near(found: re.Match[str], said: Moment) -> Span | None:
    words = " ".join(found[0].lower().split())
    days = {"day before yesterday": -2, "yesterday": -1, "last night": -1, "tomorrow": 1}
    days["day after tomorrow"] = 2
    return _day(said.at + days.get(words.removeprefix("the "), 0) * DAY)


_STEPS = {"last": -1, "past": -1, "previous": -1, "this": 0, "current": 0}


def _named(found: re.Match[str], said: Moment) -> Span | None:
    """The last, this or the next week, month, year, weekend, quarter, season or weekday."""
    which, unit, today = found[1].lower(), found[2].lower(), _midnight(said.at)
    step = _STEPS.get(which, 1)
    monday, first = today - today.weekday() * DAY, today.replace(day=1)
    span: Span | None
    if unit in _WEEKDAYS:
        span = _weekday(today, unit, step or (-1 if said.past else 1))
    elif which == "past" and unit in {"week", "month", "year"}:
        span = Span(_back(today, 1, unit), today + DAY)
    elif unit == "week":
        span = Span(monday + 7 * step * DAY, monday + 7 * (step + 1) * DAY)
    elif unit == "weekend":
        # The coming one is that of this week.
        saturday = monday + (5 + 7 * (0 if which == "coming" else step)) * DAY
        span = Span(saturday, saturday + 2 * DAY)
    elif unit in {"month", "quarter"}:
        size = 3 if unit == "quarter" else 1
        begun = _later(first, -((first.month - 1) % size) + size * step)
        span = Span(begun, _later(begun, size))
    elif unit in _SEASONS:
        span = _season_beside(today, unit, step)
    else:
        span = _of(today, today.year + step)
    return span


def _season_beside(today: datetime, name: str, step: int) -> Span:
    """The season of that name that is over, runs or comes first, or comes next."""
    seasons = [_season(today, today.year + year, name) for year in (-2, -1, 0, 1, 2)]
    number = sum(one.end <= today for one in seasons)
    if step > 0 and seasons[number].start <= today:
        number += 1
    return seasons[number - (step < 0)]


def _weekday(today: datetime, name: str, step: int) -> Span:
    """The day of that name before or after *today*."""
    ahead = (_WEEKDAYS.index(name) - today.weekday()) % 7
    return _day(today + (ahead or 7) * DAY if step > 0 else today + (ahead - 7) * DAY)


def _season(at: datetime, year: int, name: str) -> Span:
    start = _midnight(at).replace(year=year, month=_SEASONS[name], day=1)
    return Span(start, _later(start, 3))


def _seasonal(found: re.Match[str], said: Moment) -> Span | None:
    return _season(said.at, int(found[2]), found[1].lower())


def _quarter(found: re.Match[str], said: Moment) -> Span | None:
    start = _midnight(said.at).replace(year=int(found[2]), month=3 * int(found[1]) - 2, day=1)
    return Span(start, _later(start, 3))


def _back(at: datetime, number: int, unit: str) -> datetime:
    if unit in {"day", "week"}:
        return at - number * (7 if unit == "week" else 1) * DAY
    return _later(at, -number * (12 if unit == "year" else 1))


def _number(word: str) -> int:
    return int(word) if word.isdigit() else _COUNTS[word.lower()]


#: How far to both sides "so many of them ago" reaches.
_ROUGHLY = {"day": 0, "week": 3, "month": 15, "year": 182}


def _ago(found: re.Match[str], said: Moment) -> Span | None:
    number, unit = _number(found[1]), found[2].lower()
    try:
        day = _midnight(_back(said.at, number if found[3].lower() == "ago" else -number, unit))
    except (ValueError, OverflowError):
        return None
    roughly = _ROUGHLY[unit]
    if unit == "day" and found[1].lower() in {"few", "several", "couple"}:
        roughly = 2
    return Span(day - roughly * DAY, day + (roughly + 1) * DAY)


def _rolling(found: re.Match[str], said: Moment) -> Span | None:
    number, unit, today = _number(found[2]), found[3].lower(), _midnight(said.at)
    try:
        if found[1].lower() == "next":
            return Span(today, _back(today, -number, unit) + DAY)
        return Span(_back(today, number, unit), today + DAY)
    except (ValueError, OverflowError):
        return None


def _on(found: re.Match[str], said: Moment) -> Span | None:
    return _weekday(_midnight(said.at), found[1].lower(), -1 if said.past else 1)


def _year(found: re.Match[str], said: Moment) -> Span | None:
    return _of(said.at, int(found[1]))


_LEAD = (
    r"in|since|during|as\s+of|of|until|till|by|last|next|coming|this|before|after|from|to|around"
)
_PARTS = r"early|mid|middle of|late|beginning of|start of|end of"
_WEEKS = r"(?:first|second|third|fourth|last)\s+week(?:end)?\s+of"
# What is in a text that names a time in one of these ways: most texts have none of it.
_NUMBER = "four digits"
_MONTHLY = frozenset(_MONTHS)
_SEASONAL = frozenset(_SEASONS)
_WEEKLY = frozenset(_WEEKDAYS)
_UNITS = frozenset(f"{unit}{s}" for unit in _UNIT.split("|") for s in ("", "s"))
_DAYTIMES = frozenset(
    "yesterday today tonight tomorrow night morning afternoon evening".split()  # noqa: SIM905 - as people read it
)
_QUARTERS = frozenset({"q1", "q2", "q3", "q4"})
_YEARS = frozenset({_NUMBER})
#: Each way to name a time, what must be there for it, and what reads it; the first one counts.
_WAYS: tuple[tuple[frozenset[str], str, Read], ...] = (
    (_YEARS, r"(?<![\d/.-])(\d{4})[-/](\d{2})(?:[-/](\d{2}))?(?![\d/-])", _numbers),
    (_YEARS, r"(?<![\d/.])(\d{1,2})([/.])(\d{1,2})\2(\d{4})(?![\d/])", _dotted),
    (
        _MONTHLY,
        rf"(?<![\d.,:/-]){_D}(?:\s+of)?\s+({_M})\b\.?(?:,?\s+{_Y})?",
        lambda m, said: _day_of_month(said, m[1], m[2], m[3], m[4]),
    ),
    (
        _MONTHLY,
        rf"\b({_M})\.?\s+{_D}(?![\d:.]\d)(?!\d)(?:,?\s+{_Y})?",
        lambda m, said: _day_of_month(said, m[2], m[3], m[1], m[4]),
    ),
    (
        _MONTHLY,
        (
            rf"(?:\b(?P<lead>{_LEAD})\s+)?(?:the\s+)?(?:(?P<part>{_PARTS}|{_WEEKS})[\s-]+)?"
            rf"\b(?P<month>{_M})\b\.?(?:,?\s+(?:of\s+)?(?P<year>(?:1[5-9]|20)\d\d)\b)?"
        ),
        _part,
    ),
    (_SEASONAL, rf"\b({'|'.join(_SEASONS)})(?:\s+of)?\s+{_Y}\b", _seasonal),
    (_QUARTERS, rf"\bQ([1-4])[\s/-]+{_Y}\b", _quarter),
    (
        _YEARS,
        (
            r"\b(?:in|during|since|until|till|by|before|after|as\s+of|of|from|to|year|around)"
            rf"\s+{_Y}\b"
        ),
        _year,
    ),
    (
        _DAYTIMES,
        (
            r"\b(?:(?:the\s+)?day\s+before\s+yesterday|(?:the\s+)?day\s+after\s+tomorrow|yesterday|today"
            r"|tonight|tomorrow|last\s+night|this\s+(?:morning|afternoon|evening))\b"
        ),
        _near,
    ),
    (_UNITS, rf"\b(last|past|next)\s+({_N})\s+({_UNIT})s?\b", _rolling),
    (
        _UNITS | _SEASONAL | _WEEKLY | {"weekend", "quarter"},
        (
            r"\b(last|past|previous|this|current|next|coming|following)\s+"
            rf"(week|weekend|month|year|quarter|{'|'.join(_SEASONS)}|{_W})\b"
        ),
        _named,
    ),
    (_UNITS, rf"\b({_N})(?:\s+of)?\s+({_UNIT})s?\s+(ago|from\s+now)\b", _ago),
    (_WEEKLY, rf"\b(?:on|since|until|till|by|before|after)\s+({_W})\b", _on),
)
_READ = [(needed, re.compile(way, re.IGNORECASE), read) for needed, way, read in _WAYS]
_FOUR = re.compile(r"\d{4}")
_ANY = frozenset().union(*(needed for needed, _, _ in _WAYS))
_ONLY_WORDS = {number: " " for number in range(128) if not chr(number).isalnum()}
_AHEAD = re.compile(
    r"\b(?:will|shall|going to|gonna|plan\w*|tomorrow|upcoming|book\w*|schedul\w+|until)\b"
    r"|['\u2019]ll\b",
    re.IGNORECASE,
)


class _Found(NamedTuple):
    start: int
    end: int
    span: Span


def _find(text: str, at: datetime, *, asked: bool) -> list[_Found]:
    """The times that *text* names, none within another; *asked*: it is a question."""
    words = set(text.lower().translate(_ONLY_WORDS).split())
    if _FOUR.search(text):
        words.add(_NUMBER)
    if words.isdisjoint(_ANY):
        return []
    said = Moment(at, past=asked or not _AHEAD.search(text))
    found: list[_Found] = []
    for needed, way, read in _READ:
        if words.isdisjoint(needed):
            continue
        for match in way.finditer(text):
            start, end = match.span()
            if any(one.start < end and start < one.end for one in found):
                continue
            try:
                span = read(match, said)
            except (ValueError, OverflowError, IndexError):
                span = None  # a year before the first, a fifth weekend
            if span is not None:
                found.append(_beside(text, _Found(start, end, span)))
    return sorted(found)


_BESIDE = re.compile(
    rf"(?:\bthe\s+)?\b(day|week|weekend|month|{_W})\s+(before|after|of|prior\s+to|following)\s+$",
    re.IGNORECASE,
)


def _beside(text: str, one: _Found) -> _Found:
    """The week before it, the Friday after it: if that is what the text says."""
    # What led to the time may be a part of it.
    inner = re.match(r"(?:before|after|of)\s+", text[one.start : one.end], re.IGNORECASE)
    before = text[: one.start + (inner.end() if inner else 0)]
    found = _BESIDE.search(before)
    start, end = one.span
    if found is None or end - start > 8 * DAY:
        return one
    unit, side = found[1].lower(), found[2].lower()
    if side == "of":
        monday = start - start.weekday() * DAY
        span = Span(monday, monday + 7 * DAY)
    elif side in {"before", "prior to"}:
        span = Span(start - {"day": 1, "month": 31}.get(unit, 7) * DAY, start)
        if unit in _WEEKDAYS:
            span = _weekday(start, unit, -1)
    else:
        span = Span(end, end + {"day": 1, "month": 31}.get(unit, 7) * DAY)
        if unit in _WEEKDAYS:
            span = _weekday(start, unit, 1)
    return _Found(found.start(), one.end, span)


# -- a text, and a question ------------------------------------------------------------------------


def spans_in(text: str, said: datetime) -> list[Span]:
    """The times that a *text* names, which was *said* then.

    >>> from datetime import UTC
    >>> [
    ...     (a.date().isoformat(), b.date().isoformat())
    ...     for a, b in spans_in(
    ...         "We met yesterday, and in May 2022", datetime(2023, 5, 8, tzinfo=UTC)
    ...     )
    ... ]
    [('2023-05-07', '2023-05-08'), ('2022-05-01', '2022-06-01')]
    """
    return [one.span for one in _find(text, said, asked=False)]


_SIDE = re.compile(
    r"\b(since|after|from|before|until|till|by|prior\s+to|as\s+of|between|up\s+to)\s*$",
    re.IGNORECASE,
)
_LED = re.compile(r"(since|after|from|before|until|till|by|to|as\s+of)\s", re.IGNORECASE)
_AND = re.compile(r"\s*(?:and|to|until|till|-|\u2013)\s*$", re.IGNORECASE)
_EVENT = re.compile(
    r"\b(before|prior\s+to|until|till|after|since)\s+"
    r"((?:(?:the|my|our|his|her|their|your|its|an?)\s+|(?:I|we|he|she|they|it)\s+|[A-Z])[^?.,;!]+)"
)


def read_question(text: str, now: datetime) -> Question | None:
    """What a question asks about time, asked *now*; None if it does not.

    >>> from datetime import UTC
    >>> asked = read_question("What did we do last week?", datetime(2023, 5, 10, tzinfo=UTC))
    >>> asked.spans[0].start.date().isoformat(), asked.rest
    ('2023-05-01', 'What did we do ?')
    >>> read_question("What may Ada do?", datetime(2023, 5, 10, tzinfo=UTC))
    """
    found = _find(text, now, asked=True)
    if not found:
        event = _EVENT.search(text)
        if event is None:
            return None
        before = event[1].lower() not in {"after", "since"}
        return Question([], text, event[2].strip(), before)
    spans: list[Span] = []
    rest, end = [], 0
    for number, one in enumerate(found):
        between = text[end : one.start]
        side = _SIDE.search(between)
        led = _LED.match(text, one.start, one.end)
        word = " ".join((led or side or [""])[0].lower().split()) if led or side else ""
        goes_on = _AND.fullmatch(between) or (
            not between.strip() and word in {"to", "until", "till"}
        )
        if number and goes_on and _opens(text, found[number - 1]):
            spans[-1] = Span(spans[-1].start, one.span.end)
        else:
            spans.append(_sided(one.span, word, now))
        rest.append(between[: side.start()] if side else between)
        end = one.end
    rest.append(text[end:])
    return Question(spans, "".join(rest))


def _opens(text: str, one: _Found) -> bool:
    """Whether the time is one from which, or between which and another, it goes on."""
    led = _LED.match(text, one.start, one.end)
    side = _SIDE.search(text[: one.start])
    word = (led or side or [""])[0].lower().strip() if led or side else ""
    return word in {"between", "from", "since"}


def _sided(span: Span, word: str, now: datetime) -> Span:
    if word in {"since", "from"}:
        return Span(span.start, max(now, span.end))
    if word == "after":
        return Span(span.end, _NEVER)
    if word in {"before", "prior to"}:
        return Span(_EVER, span.start)
    if word in {"until", "till", "by", "as of", "up to"}:
        return Span(_EVER, span.end)
    return span
