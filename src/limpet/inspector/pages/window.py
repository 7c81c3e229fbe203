"""What a model would be sent of a conversation, for a budget."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from limpet.conversations.conversation import KIND
from limpet.core.runtime import run_to_end
from limpet.inspector.pages.chat import look
from limpet.inspector.site import Page
from limpet.views import PAGE
from limpet.views.heads import HeadView, head_of
from limpet.views.window import window_view

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from limpet.inspector.site import Site
    from limpet.views.window import WindowView

__all__ = ["PAGES"]

#: The budget that is shown before somebody chooses one.
TOKENS = 8_000
#: Messages that are listed, the newest; blocks in the bar; and models that the form offers.
LISTED = 100
BLOCKS = 200
MODELS = ("gpt-5", "gpt-5-mini", "gpt-4.1", "gpt-4o", "o3", "claude-sonnet-4-5", "gemini-2.5-pro")


async def window(request: Request, site: Site) -> Response:
    """The window with the options of the form."""
    query = request.query_params
    head = await head_of(site.scope, KIND, query.get("id", ""))
    most_tokens = site.number("max_tokens", least=1)
    most_messages = site.number("max_messages", least=1)
    if most_tokens is None and most_messages is None:
        most_tokens = TOKENS
    reserve, model = site.number("reserve") or 0, query.get("model", "").strip()
    making = window_view(
        site.scope.as_sync(),
        head,
        max_tokens=most_tokens,
        max_messages=most_messages,
        model=model,
        reserve=reserve,
    )
    # Counting the tokens of a large budget takes seconds, in which other pages are answered.
    found = await asyncio.to_thread(run_to_end, making)
    whole, made = query.get("all") == "1", blocks(found, most_tokens, reserve)
    first = 0 if whole else max(len(found.sent) - LISTED, 0)
    return site.page(
        "window.html",
        view=HeadView.of(head),
        found=found,
        first=first,
        blocks=made,
        legend={one.kind: one for one in made}.values(),
        listed=PAGE,
        max_tokens=most_tokens,
        max_messages=most_messages,
        reserve=reserve,
        model=model,
        models=MODELS,
        here=partial(
            site.url,
            "window",
            kind=KIND,
            id=head.key.id,
            model=model,
            max_tokens=most_tokens,
            max_messages=most_messages,
            reserve=reserve or None,
        ),
        **look(whole=whole),
    )


class Block(Struct, frozen=True):
    """What a part of the budget goes to: its place and width in percent, and what it is."""

    kind: str
    x: str
    width: str
    text: str


def blocks(found: WindowView, most: int | None, reserve: int) -> list[Block]:
    """The budget as a bar, or all that is sent where there is no budget of tokens."""
    sizes = [("set-aside", reserve, "set aside for the reply")] if reserve else []
    sizes += [(one.role, one.tokens, one.role) for one in found.sent]
    total = max(most or 0, sum(size for _, size, _ in sizes)) or 1
    if len(sizes) > BLOCKS:  # which nobody could tell apart
        by_kind: dict[tuple[str, str], int] = {}
        for kind, size, text in sizes:
            by_kind[kind, text] = by_kind.get((kind, text), 0) + size
        sizes = [(kind, size, text) for (kind, text), size in by_kind.items()]
    made, at = [], 0
    for kind, size, text in sizes:
        share = f"{100 * size / total:.3f}%"
        made.append(Block(kind, f"{100 * at / total:.3f}%", share, f"{text}: {size:,} tokens"))
        at += size
    return made


PAGES = [
    Page("window", "/window", window, tab="Window", fits=lambda view: view.kind == KIND),
]
