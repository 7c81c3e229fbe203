"""``shared:NAME``: a store in memory that everybody in this process finds under its name.

The smallest backend that is of use: it inherits what it stores from `MemoryBackend`, which is also
the plainest reading of the contract if yours has to do everything itself.
"""

from __future__ import annotations

from typing import Any, Self

from limpet.backends.memory import MemoryBackend
from limpet.backends.url import flag, url_parameters
from limpet.errors import InvalidURL, StoreNotFound

__all__ = ["SharedBackend"]

_contents: dict[str, dict[str, Any]] = {}


class SharedBackend(MemoryBackend):
    """Journals that stay until the process ends, whoever opens and closes them."""

    def __init__(self, name: str, *, create: bool = True, readonly: bool = False) -> None:
        super().__init__(f"shared:{name}", readonly=readonly)
        if name not in _contents and (readonly or not create):
            raise StoreNotFound(f"There is no store shared:{name}. Open it with create=True.")
        shared = _contents.setdefault(name, {"_lock": self._lock, "_journals": self._journals})
        self.__dict__.update(shared)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """``shared:NAME``."""
        kinds = {"create": flag, "readonly": flag}
        name, parameters = url_parameters(url.removeprefix("shared:"), kinds)
        if not name:
            raise InvalidURL(f"{url} names no store. Write shared:NAME.")
        return cls(name, **(parameters | options))

    def _close(self) -> None:
        """Leave everything to the others."""
