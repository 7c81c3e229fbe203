"""Going through all journals in the background, for as long as somebody looks at home.

What no index finds (calls in doubt, tasks that nobody works on, sizes) is found by looking at every
head: some at a time, and for a tenth of the time at most, however many there are. One walker serves
all pages of an app, and tells them when something has changed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from limpet.errors import StoreError
from limpet.inspector.follow import Topic
from limpet.views.listing import ordered_kinds
from limpet.views.survey import Survey, look_further

if TYPE_CHECKING:
    from limpet.core.scope import Scope
    from limpet.inspector.site import Site
    from limpet.views.heads import HeadView

__all__ = ["Walker", "walker_of"]

log = logging.getLogger(__name__)

#: Heads that are looked at between two pauses.
SLICE = 200
#: A pause takes so many times as long as the look before it: in all rounds but the first, which
#: people wait for, and in that.
LEISURE, HASTE = 9, 4
#: Seconds between two rounds, at least; and more for each page that asks anew after a change.
REST, EACH = 2.0, 0.05
#: Seconds for which it goes on after the last page was asked for.
LINGER = 30.0


class Walker:
    """Goes round; ``survey`` is the last round that was complete, or what there is of the first."""

    def __init__(self, scope: Scope) -> None:
        self.topic = Topic()
        self.survey = Survey()
        #: When the last round was complete, by the monotonic clock, and how long one takes.
        self.ended: float | None = None
        self.took = 0.0
        self._scope = scope
        self._task: asyncio.Task[None] | None = None
        self._wanted = 0.0
        self._begun = asyncio.Event()  # the first slice was looked at
        self._seen: dict[str | None, int] = {}  # what the slices were like in the last round

    async def look(self) -> None:
        """Somebody looks: go round, if need be; returns when there is something to show."""
        self._wanted = time.monotonic()
        task, loop = self._task, asyncio.get_running_loop()
        if task is None or task.done() or task.get_loop() is not loop:
            self._task = asyncio.create_task(self._walk())
        await self._begun.wait()

    @property
    def every(self) -> float:
        """Seconds from one round to the next."""
        return self.took + self._rest()

    def _rest(self) -> float:
        return max(REST, EACH * self.topic.followers)

    async def _walk(self) -> None:
        try:
            while True:
                try:
                    await self._round()
                except RuntimeError:  # `StoreClosed`, or its threads' that they are ending
                    return
                except StoreError as error:  # a server that is away comes back
                    log.warning("the journals cannot be looked through now: %s", error)
                    self._begun.set()
                await asyncio.sleep(self._rest())
                if not self.topic.followers and time.monotonic() - self._wanted >= LINGER:
                    return
        finally:
            self._begun.set()

    async def _round(self) -> None:
        began, leisure = time.monotonic(), HASTE if self.ended is None else LEISURE
        survey, seen = Survey(), dict[str | None, int]()
        changed, after = False, None
        kinds = await ordered_kinds(self._scope)
        while True:
            start = time.monotonic()
            here = after
            after, views = await look_further(self._scope, survey, kinds, here, SLICE)
            seen[here] = hash(tuple(map(_shown, views)))
            changed = changed or self._seen.get(here) != seen[here]
            if self.ended is None:
                self.survey = survey
                self._begun.set()
            if after is None:
                break
            await asyncio.sleep(leisure * (time.monotonic() - start))
        changed = changed or seen.keys() != self._seen.keys()
        changed = changed or survey.stuck.count != self.survey.stuck.count  # time has passed
        self.ended = time.monotonic()
        self.took = self.ended - began
        self.survey, self._seen = survey, seen
        if changed:
            self.topic.change()


def walker_of(site: Site) -> Walker:
    """The one that serves all pages of an app."""
    found = site.shared.get("walker")
    if not isinstance(found, Walker):
        found = site.shared["walker"] = Walker(site.scope)
    return found


def _shown(view: HeadView) -> tuple[object, ...]:
    """What of a head makes the page another one."""
    alive = view.holder and view.holder.alive
    return view.kind, view.id, view.incarnation, view.seq, view.status, len(view.doubts), alive
