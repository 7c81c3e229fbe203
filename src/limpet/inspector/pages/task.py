"""A task: what needs somebody, its steps over time, its record; what a person can do about it."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

from limpet.inspector.site import Action, Done, Page, field, json_field
from limpet.tasks.entries import KIND, WAITING
from limpet.tasks.versions import fork_task
from limpet.views.doubts import doubts_of
from limpet.views.heads import head_of
from limpet.views.journal import journal_page
from limpet.views.task import TYPES, task_view
from limpet.views.task_fork import fork_view
from limpet.views.text import duration, timestamp
from limpet.views.timeline import Axis

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from starlette.requests import Request
    from starlette.responses import Response

    from limpet.inspector.site import Site
    from limpet.views.task import TaskView
    from limpet.views.timeline import Span, StepView

__all__ = ["ACTIONS", "PAGES"]

#: Of the width of a bar: the least that can be seen.
LEAST = 0.008


async def task(request: Request, site: Site) -> Response:
    """A task, with the newest entries or those before some number, or those that fit a filter."""
    query = request.query_params
    id_ = query.get("id", "")
    head = await head_of(site.scope, KIND, id_)
    before = site.number("before", least=1)
    text, type_ = query.get("text", ""), query.get("type", "")
    whole = query.get("whole") == "1"
    found = None
    if text or type_:
        found = await journal_page(site.scope, head, before=before, text=text, type=type_)
        before = None
    view = await task_view(site.scope, head, before=before, whole=whole)
    here = partial(site.url, "task", kind=KIND, id=id_, whole="1" if whole else None)
    return site.page(
        "task.html",
        task=view,
        chart=Chart(view),
        doubts=doubts_of(view.head),
        found=found,
        here=here,
        before=before,
        text=text,
        type=type_,
        types=TYPES,
        once=f"inspector-{secrets.token_hex(8)}",
    )


class Bar:
    """A span as a rectangle: its place and width in percent, and what it says."""

    def __init__(self, span: Span, axis: Axis, now: datetime) -> None:
        start, end = axis.place(span.start), axis.place(span.end)
        width = max(end - start, LEAST)
        self.kind = span.kind.replace(" ", "-")
        self.x = f"{100 * max(min(start, 1 - width), 0):.2f}%"
        self.width = f"{100 * width:.2f}%"
        long = duration(((span.end or now) - span.start).total_seconds())
        length = "at" if span.start == span.end else f"for {long}, from"
        still = "" if span.end else ", still"
        self.text = f"{span.kind}{still} {length} {timestamp(span.start)}"


class Chart:
    """The steps of a view over time."""

    def __init__(self, view: TaskView) -> None:
        spans = [span for step in view.steps for span in step.spans]
        self._axis = Axis(spans, view.until)
        self._until = view.until
        self.kinds = list(dict.fromkeys(span.kind for span in spans))
        self.start = min((span.start for span in spans), default=None)
        self.end = max((span.end or view.until for span in spans), default=None)
        longest = max((cut.seconds for cut in self._axis.cuts), default=None)
        self.cut = None if longest is None else duration(longest)
        self.marks = [
            (f"{100 * min(self._axis.place(event.at), 0.996):.2f}%", event)
            for event in view.events
            if self.start and self.end and self.start <= event.at <= self.end
        ]

    def bars(self, step: StepView) -> list[Bar]:
        """The rectangles of one step."""
        return [Bar(span, self._axis, self._until) for span in step.spans]

    @staticmethod
    def took(step: StepView) -> str:
        """How long its last attempt took; of a wait, how long that was."""
        if step.took is not None:
            return duration(step.took)
        if step.started is None or step.ended is None:
            return ""
        return duration((step.ended - step.started).total_seconds())


# -- what a person can do --------------------------------------------------------------------------


def because(site: Site, form: Mapping[str, str]) -> str | None:
    """The reason in a form, with the name of whoever gave it: a task's entries have no other."""
    reason, by = form.get("because", "").strip(), site.access.by
    name = f"by {by}" if by else ""
    return f"{reason} ({name})" if reason and name else reason or name or None


def done(site: Site, id_: str, text: str) -> Done:
    """Back to the task."""
    return Done(text, site.journal_url(KIND, id_))


async def signal(_request: Request, site: Site, form: Mapping[str, str]) -> Done:
    """Send a signal; not one that a waiting task does not wait for, unless that is wanted."""
    id_, name = field(form, "id"), field(form, "name")
    payload: Any = json_field(form, "payload")
    view = await task_view(site.scope, await head_of(site.scope, KIND, id_))
    if view.status == WAITING and name not in view.awaited and "any" not in form:
        names = ", ".join(map(repr, view.awaited)) or "no signal"
        msg = f"Task {id_!r} waits for {names}, and not for {name!r}, which was not sent."
        raise ValueError(msg)
    await site.store.signal(id_, name, payload, id=form.get("once") or None)
    return done(site, id_, f"Sent {name} to {id_}.")


async def pause(_request: Request, site: Site, form: Mapping[str, str]) -> Done:
    """Let nobody work on it."""
    id_ = field(form, "id")
    await site.store.pause(id_, because=because(site, form))
    return done(site, id_, f"Paused {id_}: whoever works on it stops before the next step.")


async def cancel(_request: Request, site: Site, form: Mapping[str, str]) -> Done:
    """End it, and its children with it."""
    id_ = field(form, "id")
    await site.store.cancel(id_, because=because(site, form))
    return done(site, id_, f"Cancelled {id_}: whoever works on it stops before the next step.")


async def resume(_request: Request, site: Site, form: Mapping[str, str]) -> Done:
    """Let it go on: one that was paused or cancelled, or has failed."""
    id_ = field(form, "id")
    await site.store.resume(id_)
    return done(site, id_, f"{id_} is open again, and goes on where it stopped.")


async def preview(request: Request, site: Site) -> Response:
    """What a fork would begin with, and do again, before anything is made."""
    query = request.query_params
    head = await head_of(site.scope, KIND, query.get("id", ""))
    step, at = query.get("step") or None, site.number("at", least=1)
    found = await fork_view(site.scope, head, at=at, step=None if at else step)
    return site.page("task_fork.html", fork=found, step=None if at else step)


async def fork(_request: Request, site: Site, form: Mapping[str, str]) -> Done:
    """Make the fork that was looked at."""
    id_, new, at = field(form, "id"), field(form, "new").strip(), field(form, "at")
    if not at.isdecimal():
        raise ValueError("at is the number of an entry.")
    await head_of(site.scope, KIND, id_)
    await fork_task(site.store.task(id_).versions, new, int(at))
    return done(site, new, f"{new} begins with what {id_} was after entry {at}.")


PAGES = [
    Page("task", "/task", task, kinds=(KIND,), tab="Task"),
    Page("task-fork", "/task/fork", preview),
]
ACTIONS = [
    Action("signal", "/task/signal", signal),
    Action("pause", "/task/pause", pause),
    Action("cancel", "/task/cancel", cancel),
    Action("resume", "/task/resume", resume),
    Action("fork-task", "/task/fork", fork),
]
