"""Which values fit a filter of LangGraph's, and which namespaces its conditions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langgraph.store.base import MatchCondition

__all__ = ["fits", "matches"]


def fits(value: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a stored *value* has what the filter *wanted* asks for, as in `InMemoryStore`.

    As its users have asked for, an item that lacks a field is not greater or less than anything,
    where `InMemoryStore` raises an error; and ``"user.name"`` is also the field of a field.
    """
    return all(_is(_field(value, name), one) for name, one in wanted.items())


def _field(value: Mapping[str, Any], name: str) -> Any:
    if name in value or "." not in name:
        return value.get(name)
    found: Any = value
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _is(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        if any(isinstance(name, str) and name.startswith("$") for name in wanted):
            return all(_compares(value, how, with_) for how, with_ in wanted.items())
        return isinstance(value, Mapping) and all(
            _is(value.get(name), one) for name, one in wanted.items()
        )
    if isinstance(wanted, (list, tuple)):
        return (
            isinstance(value, list)
            and len(value) == len(wanted)
            and all(_is(one, other) for one, other in zip(value, wanted, strict=True))
        )
    return bool(value == wanted)


def _compares(value: Any, how: str, wanted: Any) -> bool:
    if how == "$eq":
        return bool(value == wanted)
    if how == "$ne":
        return bool(value != wanted)
    if how not in ("$gt", "$gte", "$lt", "$lte"):
        msg = f"{how!r} is no operator: use $eq, $ne, $gt, $gte, $lt or $lte."
        raise ValueError(msg)
    limit = float(wanted)  # an error where the filter is wrong, and none where an item is
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    if how.startswith("$g"):
        return number > limit or (how == "$gte" and number == limit)
    return number < limit or (how == "$lte" and number == limit)


def matches(namespace: tuple[str, ...], condition: MatchCondition) -> bool:
    """Whether *namespace* begins, or ends, with the path of a *condition*; ``*`` is any label."""
    path = tuple(condition.path)
    if condition.match_type not in ("prefix", "suffix"):
        msg = f"Unsupported match type: {condition.match_type!r}. Use 'prefix' or 'suffix'."
        raise ValueError(msg)
    if len(namespace) < len(path):
        return False
    start = 0 if condition.match_type == "prefix" else len(namespace) - len(path)
    labels = namespace[start : start + len(path)]
    return all(one in ("*", label) for one, label in zip(path, labels, strict=True))
