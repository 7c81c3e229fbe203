"""``limpet mcp``: a memory, and tasks, for models that speak the Model Context Protocol."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from typing import TYPE_CHECKING, Any

import click

import limpet
from limpet.cli.options import Failure, StoreOptions, pass_store, store_options
from limpet.cli.output import Screen
from limpet.core.addresses import in_url, is_loopback, listen

if TYPE_CHECKING:
    from limpet.mcp.tools import Tools

__all__ = ["mcp"]

TOKEN = "LIMPET_MCP_TOKEN"  # noqa: S105 - where the token is, not the token
#: Characters; those of a generated one are more.
SHORTEST = 16


@click.command(short_help="Serve memory to a model, over MCP.")
@click.argument("namespace", metavar="NAMESPACE")
@click.option("--allow-write", is_flag=True, help="Let the model remember, update and forget.")
@click.option(
    "--tasks", metavar="PREFIX", default="", help="Show only tasks whose ids begin with this."
)
@click.option(
    "--by", metavar="NAME", default="mcp", help="Who is recorded as the writer. [default: mcp]"
)
@click.option(
    "--trust",
    type=click.FloatRange(0, 1),
    metavar="N",
    help="How far what it writes is to be trusted, from 0 to 1.",
)
@click.option(
    "--embeddings", is_flag=True, help="Recall by meaning too, with the local model (an extra)."
)
@click.option("--http", is_flag=True, help="Serve HTTP, not standard input and output.")
@click.option(
    "--host", metavar="ADDRESS", default="127.0.0.1", help="With --http. [default: 127.0.0.1]"
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    metavar="N",
    default=8_765,
    help="With --http; 0 takes a free one. [default: 8765]",
)
@click.option(
    "--allow-host",
    "names",
    metavar="NAME",
    multiple=True,
    help="With --http: a name that clients call this machine by; give it again for more.",
)
@store_options
@pass_store
def mcp(
    options: StoreOptions,
    *,
    namespace: str,
    allow_write: bool,
    tasks: str,
    by: str,
    trust: float | None,
    embeddings: bool,
    http: bool,
    host: str,
    port: int,
    names: tuple[str, ...],
) -> None:
    """Serve the memory NAMESPACE, and the tasks of the tenant, to a client of MCP.

    The client starts this command itself and talks to it by standard input and output. With --http
    it listens at /mcp; every request must carry a token (Authorization: Bearer …), which is that in
    $LIMPET_MCP_TOKEN, or a new one, printed once.

    Store, tenant and namespace are those of this command line; a model cannot ask for others.
    Without --allow-write nothing in the store is changed.
    """
    from limpet.mcp import server  # noqa: PLC0415 - its packages are an extra, and slow to load
    from limpet.mcp.tools import Tools  # noqa: PLC0415 - as above

    rights: dict[str, Any] = {} if allow_write else {"create": False, "readonly": True}

    async def serve() -> None:
        async with limpet.open_async(options.url, tenant=options.tenant, **rights) as store:
            memory = store.memory(namespace, embed=embeddings)
            tools = Tools(store, memory, writes=allow_write, tasks=tasks, by=by, trust=trust)
            if http:
                await serve_http(tools, host, port, names)
            else:
                # The SDK waits for a line that may never come before it lets itself be interrupted;
                # and what a call has not written yet, nobody was told that it is.
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                await server.serve_stdio(tools)

    with contextlib.suppress(KeyboardInterrupt):  # how people end it
        asyncio.run(serve())


async def serve_http(tools: Tools, host: str, port: int, names: tuple[str, ...]) -> None:
    """Serve HTTP to those who have the token."""
    from limpet.mcp import server  # noqa: PLC0415 - as above

    local = is_loopback(host)
    if not local and not names:
        msg = f"Others can reach {host}: say by which name they do, with --allow-host."
        raise click.UsageError(msg)
    token = os.environ.get(TOKEN)
    if token is not None and len(token) < SHORTEST:
        raise Failure(f"${TOKEN} has under {SHORTEST} characters, which can be guessed.")
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise Failure(f"${TOKEN} has a space, a line's end or the like, which no header can carry.")
    at = in_url(host)
    with listen(host, port) as listening:
        screen = Screen(stderr=True)
        screen.verbatim(f"Listening at http://{at}:{listening.getsockname()[1]}{server.HTTP_PATH}")
        if token is None:
            token = secrets.token_urlsafe(32)
            screen.verbatim(f"Token: {token}")
        known = (at, "localhost") if local else (at,)
        await server.serve_http(tools, listening, token, (*known, *names))
