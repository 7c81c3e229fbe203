"""The inspector served by itself: ``limpet inspect``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.core.addresses import in_url, is_loopback, listen
from limpet.errors import MissingExtra
from limpet.inspector.app import ENTRY, Inspector
from limpet.inspector.security import Tokens

try:
    import uvicorn
except ImportError as error:
    raise MissingExtra.of("limpet inspect", "uvicorn", "inspector") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from limpet import Store

__all__ = ["serve"]

#: Seconds that requests have to end in when the server is stopped; those who follow never would.
GRACE = 1


async def serve(
    store: Store,
    *,
    host: str,
    port: int,
    write: bool,
    by: str | None,
    token: str | None,
    names: Iterable[str],
    ready: Callable[[str], None],
) -> None:
    """Serve *store* until this process is told to end; *ready* is given the link that lets in.

    *names*: by which browsers may call it besides, with a port where that is not 80 or 443. With a
    *token* of the user's the link has none: the first page asks for it.
    """
    gate = Tokens(by=by, token=token)
    with listen(host, port) as listening:
        at, bound = in_url(host), listening.getsockname()[1]
        own = {f"{at}:{bound}"} | ({f"localhost:{bound}"} if is_loopback(host) else set())
        inspector = Inspector(store, gate, write=write, hosts={*own, *names}, place=True)
        config = uvicorn.Config(
            inspector,
            log_level="warning",
            access_log=False,  # ids are in its lines, and the token of a link
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=GRACE,
        )
        link = f"http://{at}:{bound}"
        ready(f"{link}/" if token else f"{link}{ENTRY}?token={gate.link()}")
        await uvicorn.Server(config).serve([listening])
