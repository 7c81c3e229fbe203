"""One journal as a JSON file, as ``limpet export`` writes it."""

from __future__ import annotations

import asyncio
import re
from itertools import chain, islice
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.responses import StreamingResponse

from limpet import AsyncStore, Store
from limpet.inspector.site import Page
from limpet.llm.quoting import HIDDEN
from limpet.transfer import export as exporting
from limpet.views.heads import head_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from limpet.inspector.site import Site

__all__ = ["PAGES", "disposition"]

#: Characters of a file's name, and what is not to be in one anywhere.
NAME = 100
_FORBIDDEN = re.compile(rf"[\x00-\x1f{HIDDEN}/\\:*?\"<>|%\ud800-\udfff]")


async def export(request: Request, site: Site) -> Response:
    """All that is stored of a journal, read as it is sent: it is in memory at no time."""
    query = request.query_params
    head = await head_of(site.scope, query.get("kind", ""), query.get("id", ""))
    parts = exporting.stream(Store(AsyncStore(site.scope.as_sync())), head)
    # Its beginning first: what cannot be read is a page that says so, and no file.
    begin = await asyncio.to_thread(lambda: list(islice(parts, 3)))
    return StreamingResponse(
        chain(begin, parts),
        media_type="application/json",
        headers={"content-disposition": disposition(f"{head.key.kind}-{head.key.id}.json")},
    )


def disposition(name: str) -> str:
    """The header that makes of an answer a file called *name*, without what no name should have.

    >>> print(disposition("task-Überfall/1.json"))
    attachment; filename="task-_berfall_1.json"; filename*=UTF-8''task-%C3%9Cberfall_1.json
    """
    stem, dot, suffix = name.rpartition(".")
    wide = _FORBIDDEN.sub("_", stem)[:NAME] + dot + suffix
    narrow = re.sub(r"[^A-Za-z0-9._-]", "_", wide)
    return f"attachment; filename=\"{narrow}\"; filename*=UTF-8''{quote(wide, safe='')}"


PAGES = [Page("export", "/export", export)]
