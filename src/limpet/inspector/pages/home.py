"""The first page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.inspector.site import Page

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from limpet.inspector.site import Site

__all__ = ["PAGES"]


async def home(request: Request, site: Site) -> Response:  # noqa: ARG001 - every page has the same parameters
    """What there is."""
    kinds = await site.scope.runtime.call(site.scope.backend.kinds)
    return site.page("home.html", kinds=[k for tenant, k in kinds if tenant == site.scope.tenant])


PAGES = [Page("home", "/", home, "Home")]
