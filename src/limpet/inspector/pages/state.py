"""A state: its document, now or as it was, and how its size has grown."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from limpet.backends.facts import human_size
from limpet.inspector.documents import shown
from limpet.inspector.site import Page
from limpet.states.format import KIND
from limpet.views.heads import HeadView, head_of
from limpet.views.states import state_view
from limpet.views.transcript import is_chat
from limpet.views.versions import versions_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from limpet.inspector.site import Site
    from limpet.views.versions import Version

__all__ = ["PAGES"]

#: Versions that are listed below the document; the chart has all that were read.
LISTED = 8
#: The chart: units of its width and height.
WIDTH, HEIGHT = 600, 48


class Bar(Struct, frozen=True):
    """A version in the chart of sizes."""

    x: float
    y: float
    width: float
    height: float
    title: str


async def state(request: Request, site: Site) -> Response:
    """The newest save, or the one that *at* says."""
    head = await head_of(site.scope, KIND, request.query_params.get("id", ""))
    at = site.number("at", least=1)
    found = await state_view(site.scope, head, at)
    page = await versions_page(site.scope, head)
    here = partial(site.url, "state", kind=KIND, id=head.key.id)
    newest = page.versions[0].number if page.versions else head.seq
    return site.page(
        "state.html",
        view=HeadView.of(head),
        found=found,
        document=shown(request, site, found.document, partial(here, at=at)),
        here=here,
        is_chat=is_chat,
        at=at,
        newest=newest,
        versions=page.versions[:LISTED],
        more=page.older is not None or len(page.versions) > LISTED,
        bars=bars(page.versions[::-1]),
        width=WIDTH,
        height=HEIGHT,
    )


def bars(versions: Sequence[Version]) -> list[Bar]:
    """The size of each of *versions*, oldest first, as a chart."""
    sized = [(one.number, one.size) for one in versions if one.size is not None]
    if len(sized) < 2:  # noqa: PLR2004 - one bar says nothing
        return []
    most = max(size for _, size in sized) or 1
    step = WIDTH / len(sized)
    found = []
    for place, (number, size) in enumerate(sized):
        height = max(round(HEIGHT * size / most, 1), 1)
        title = f"{number:,}: {human_size(size)}"
        x, y = round(step * place, 2), round(HEIGHT - height, 1)
        found.append(Bar(x, y, round(step * 0.86, 2), height, title))
    return found


PAGES = [Page("state", "/state", state, tab="State", kinds=(KIND,))]
