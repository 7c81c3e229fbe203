"""A memory to test, always with neighbours of whose data nothing may be seen or changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet import Memory, Store

__all__ = ["Scopes"]


class Scopes:
    """The memory *name* of acme, another namespace of acme's, and another tenant's of its name.

    *open_* opens a store for a ``tenant``.
    """

    def __init__(self, open_: Callable[..., Store], name: str = "support", **options: Any) -> None:
        self.store = open_(tenant="acme")
        self.rival = open_(tenant="rival")
        self.memory: Memory = self.store.memory(name, **options)
        self.others: list[Memory] = [
            self.store.memory(f"{name}/eu", **options),
            self.rival.memory(name, **options),
        ]
        self.secrets = [
            other.remember(f"Secret {number} about Ada and zebra e-mail", tags=["contact"])
            for number, other in enumerate(self.others)
        ]

    def check(self) -> None:
        """The neighbours have what they had, and nothing else; none of it is seen from here."""
        for other, secret in zip(self.others, self.secrets, strict=True):
            assert [one.id for one in other.list(superseded=True)] == [secret.id]
            assert [hit.id for hit in other.recall("zebra Ada e-mail")] == [secret.id]
        found = [*self.memory.list(superseded=True), *self.memory.recall("Secret zebra Ada", k=99)]
        assert not [one for one in found if one.text.startswith("Secret")]
