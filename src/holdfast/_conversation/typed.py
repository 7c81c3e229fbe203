"""What a type checker is told of `Conversation.messages`: `blocking` keeps one signature only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from holdfast.messages.repair import Rule

__all__ = ["Messages"]

R = TypeVar("R")


class Messages(Protocol):
    """The method, bound."""

    @overload
    def __call__(
        self,
        *,
        last: int | None = None,
        everything: bool = False,
        repair: Rule | None = None,
        as_: None = None,
    ) -> list[dict[str, Any]]: ...
    @overload
    def __call__(
        self,
        *,
        last: int | None = None,
        everything: bool = False,
        repair: Rule | None = None,
        as_: type[R],
    ) -> list[R]: ...
    @overload
    def __call__(
        self,
        *,
        last: int | None = None,
        everything: bool = False,
        repair: Rule | None = None,
        as_: Any,
    ) -> list[Any]: ...
