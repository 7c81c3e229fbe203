"""An open store, and one tenant of it: what every model is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, structs

from limpet.backends import forks
from limpet.backends.logs import warn
from limpet.backends.url import command, is_default
from limpet.core.codec import Codec
from limpet.core.ids import check_labels, check_prefix, check_seconds, make_key
from limpet.core.journal import AsyncJournal
from limpet.core.leases import LeaseKeeper, LeaseLock
from limpet.core.runtime import AsyncRuntime, Pages, Runtime, SyncRuntime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from limpet.backends.contract import Backend, Head
    from limpet.core.redaction import Redactor

T = TypeVar("T")

__all__ = ["OpenStore", "Scope"]


class OpenStore:
    """What everything that belongs to one open store shares, whoever's it is, sync and async."""

    def __init__(
        self,
        backend: Backend,
        *,
        codec: Codec | None = None,
        ttl: float | None = None,
        redactor: Redactor | None = None,
        make_memory: Callable[..., Any],
        embed: Any = None,
    ) -> None:
        self.backend = backend
        self.codec = codec or (Codec(compress_over=None) if backend.readable else Codec())
        self.ttl = ttl
        #: Takes out of every value what is not to be stored; None: nothing.
        self.redactor = redactor
        #: Makes the memory of a scope: a task asks for one, and does not know that model.
        self.make_memory = make_memory
        #: What embeds the memories of all namespaces, unless one names another.
        self.embed = embed
        self.leases = LeaseKeeper(backend)
        self.sync_runtime = SyncRuntime(backend)
        self.async_runtime = AsyncRuntime(backend)
        #: What is called with the checkpoint of each task that finishes here.
        self.on_finish: list[Callable[[Any], Any]] = []
        forks.register(self)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.backend.closed

    def close(self) -> None:
        """Finish what is under way and let go of everything. A second call does nothing."""
        self.leases.stop()
        self.async_runtime.close()
        self.backend.close()

    def before_fork(self) -> None:
        """Nothing of its own: the backend comes to rest by itself."""

    def after_fork_in_parent(self) -> None:
        """Nothing of its own, as before."""

    def after_fork_in_child(self) -> None:
        """Threads, and leases, are the parent's."""
        self.leases.after_fork()
        self.async_runtime.after_fork()


class Scope(Struct, frozen=True):
    """One tenant of an open store, reached through one runtime."""

    store: OpenStore
    tenant: str
    runtime: Runtime

    @property
    def backend(self) -> Backend:
        """Where the journals live."""
        return self.store.backend

    def journal(self, kind: str, id_: str, **attributes: Any) -> AsyncJournal:
        """The journal *id_* of some *kind*; *attributes* are those of `AsyncJournal`."""
        return AsyncJournal(
            self.runtime,
            self.store.codec,
            make_key(self.tenant, kind, id_),
            default_ttl=self.store.ttl,
            **{"redactor": self.store.redactor, **attributes},
        )

    def redacted(self, value: T) -> T:
        """*value* without what the store is not to have: itself, if it has none.

        Each journal does that to what is written to it. For a model that compares, or derives
        something from, what it is given: it must do so with what will be stored.
        """
        if self.store.redactor is None:
            return value
        return self.store.redactor.value(value)  # type: ignore[no-any-return]

    def lock(self, kind: str, id_: str, ttl: float = 60, **options: Any) -> LeaseLock:
        """The lease on the journal *id_* of some *kind*, to be taken for the length of a block.

        It renews itself; *ttl* seconds after the process has died, at the latest, another can take
        it. *options* are those of `LeaseLock`.
        """
        check_seconds(ttl, "lease")
        key = make_key(self.tenant, kind, id_)
        return LeaseLock(self.runtime, self.store.leases, key, ttl, **options)

    def list(
        self,
        kind: str,
        show: Callable[[Head], T],
        *,
        prefix: str = "",
        labels: Mapping[str, str] | None = None,
        status: str | None = None,
        fits: Callable[[Head], bool] = lambda _head: True,
    ) -> AsyncIterator[T]:
        """What *show* makes of each journal of one *kind* that *fits*, page by page when asked."""
        check_prefix(prefix)
        check_labels(labels or {})
        heads: list[Head] = []  # of the page that is being gone through, the next one last
        cursor: str | None = None
        more = True

        async def pull() -> T | None:
            nonlocal cursor, more
            while more and not heads:
                page = await self.runtime.call(
                    self.backend.scan,
                    self.tenant,
                    kind,
                    cursor=cursor,
                    prefix=prefix,
                    labels=labels,
                    status=status,
                )
                for key, error in page.damaged:  # which hides none of the others
                    warn("%s %r is left out of a list: %s", key.kind, key.id, error)
                heads[:] = filter(fits, page.heads[::-1])
                cursor, more = page.cursor, page.cursor is not None
            return show(heads.pop()) if heads else None

        return Pages(pull)

    def memory(self, namespace: str, embed: Any = None) -> Any:
        """What is remembered in a *namespace* of this tenant; *embed*: False for words alone."""
        chosen = self.store.embed if embed is None else embed
        return self.store.make_memory(self, namespace, chosen)

    def command(self, *words: str) -> str:
        """The command ``limpet`` *words* for this store, as errors name it: it can be pasted."""
        import shlex  # noqa: PLC0415 - for errors only

        url = self.backend.url
        named = None if is_default(url) else url
        return f"`{command(shlex.join(words), url=named, tenant=self.tenant)}`"

    @property
    def is_sync(self) -> bool:
        """Whether it is for code that blocks."""
        return self.runtime is self.store.sync_runtime

    def as_sync(self) -> Scope:
        """The same for code that blocks."""
        return self if self.is_sync else structs.replace(self, runtime=self.store.sync_runtime)

    def as_async(self) -> Scope:
        """The same for code that awaits."""
        return structs.replace(self, runtime=self.store.async_runtime) if self.is_sync else self
