"""Whether the store is well: what is so of its place at once, every record when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.inspector.checker import Checker
from limpet.inspector.site import Page
from limpet.views.doctor import UNREADABLE, diagnosis

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from limpet.inspector.checker import Check
    from limpet.inspector.site import Site
    from limpet.views.doctor import Diagnosis

__all__ = ["PAGES"]

#: Findings, and damaged records, that are listed; the command lists all.
MOST = 200


async def doctor(_request: Request, site: Site) -> Response:
    """What was found. *check*: read every record, if that is the number of the next check."""
    checker = _checker(site)
    await checker.look(check=site.number("check", least=1))
    number = checker.topic.number  # what comes after this is told
    facts = _found(checker.facts)
    found = _found(checker.records, complete=not checker.running)
    said = {one.name for one in facts.findings} if facts else set[str]()
    return site.page(
        "doctor.html",
        place=checker.place,
        facts=facts,
        error=checker.facts.report.error if checker.facts else None,
        records=checker.records,
        verdict=found and found.verdict,
        problems=[one for one in found.findings if one.name == UNREADABLE] if found else [],
        found=[one for one in found.findings if one.name not in said | {UNREADABLE}]
        if found
        else [],
        running=checker.running,
        next=checker.count + 1,
        most=MOST,
        events=site.url("doctor-events", seen=number),
    )


def _found(check: Check | None, *, complete: bool = False) -> Diagnosis | None:
    if check is None:
        return None
    return diagnosis(check.report, complete=complete and not check.stopped)


def _checker(site: Site) -> Checker:
    found = site.shared.get("checker")
    if not isinstance(found, Checker):
        found = site.shared["checker"] = Checker(site.scope, place=site.shows_place)
    return found


async def events(_request: Request, site: Site) -> Response:
    """An event whenever something has changed that the page shows."""
    return site.followers.topic(_checker(site).topic, site.number("seen"))


PAGES = [
    Page("doctor", "/doctor", doctor, "Doctor"),
    Page("doctor-events", "/doctor/events", events),
]
