"""``limpet inspect``: pages that show what is in the store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

import click

from limpet.cli.options import Failure, StoreOptions, pass_store, store_options, user_name
from limpet.cli.output import Screen
from limpet.core import audit
from limpet.core.addresses import is_loopback
from limpet.core.runtime import run_to_end

__all__ = ["inspect"]

TOKEN = "LIMPET_INSPECT_TOKEN"  # noqa: S105 - where the token is, not the token


@click.command(short_help="See what is in the store, in a browser.")
@click.option("--open", "open_", is_flag=True, help="Open the page in your browser.")
@click.option("--write", is_flag=True, help="Let the pages change something: signal, resolve, …")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    metavar="N",
    default=0,
    help="Where to listen. [default: a free one]",
)
@click.option(
    "--host", metavar="ADDRESS", default="127.0.0.1", help="As above. [default: 127.0.0.1]"
)
@click.option(
    "--allow-remote", is_flag=True, help=f"Let others reach it, who have the token in ${TOKEN}."
)
@click.option(
    "--allow-host",
    "names",
    metavar="NAME",
    multiple=True,
    help="A name, with its port, that browsers call it by; give it again for more.",
)
@store_options
@pass_store
def inspect(
    options: StoreOptions,
    *,
    open_: bool,
    write: bool,
    port: int,
    host: str,
    allow_remote: bool,
    names: tuple[str, ...],
) -> None:
    """Serve pages that show what agents know, did, and wait for; until Ctrl-C.

    It prints a link that works once: whoever opens it first comes in, in that browser, for twelve
    hours. Only this machine can reach it, and it changes nothing, unless you say otherwise.

    With --allow-remote, whoever opens it is asked for the token that you put in
    $LIMPET_INSPECT_TOKEN. Put a proxy with TLS before it: without, the token can be overheard.
    """
    from limpet.inspector import security, server  # noqa: PLC0415 - an extra, and slow to load

    local = is_loopback(host)
    token = os.environ.get(TOKEN) or None
    if not local and not allow_remote:
        msg = f"Others could reach {host}: say --allow-remote if they are to."
        raise click.UsageError(msg)
    if allow_remote and token is None:
        msg = (
            f"With --allow-remote, put a token of your own into ${TOKEN}: whoever has it comes in."
        )
        raise click.UsageError(msg)
    if token is not None and len(token) < security.SHORTEST:
        msg = f"${TOKEN} has under {security.SHORTEST} characters, which can be guessed."
        raise Failure(msg)
    if not local and not names:
        msg = f"Say by which name browsers call {host}, with its port: --allow-host NAME:{port}."
        raise click.UsageError(msg)

    def ready(link: str) -> None:
        screen = Screen()
        screen.verbatim(link)
        sys.stdout.flush()  # whoever reads it from a pipe waits for it
        once = "" if allow_remote else "That link works once. "
        changes = "The pages can change the store." if write else "Nothing can be changed there."
        Screen(stderr=True).block(f"{once}{changes} Ctrl-C ends it.", indent=0, style="dim")
        if open_:
            click.launch(link)

    with options.open() as store:  # who has looked at what can only be recorded by writing it
        records = run_to_end(audit.is_on(store.scope))
    readonly = not (write or records)
    with options.open(readonly=readonly) as store, contextlib.suppress(KeyboardInterrupt):
        asyncio.run(
            server.serve(
                store,
                host=host,
                port=port,
                write=write,
                by=user_name(),
                token=token if allow_remote else None,
                names=names,
                ready=ready,
            )
        )
