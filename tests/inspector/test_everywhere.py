"""The pages over every backend: what each can do for pages, all of them must do alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

import limpet
from limpet.inspector.pages import ACTIONS
from tests.support import places, stores
from tests.support.browser import inspected
from tests.support.crawling import crawl
from tests.support.doubtful import leave_in_doubt
from tests.support.dying import ended_by

if TYPE_CHECKING:
    from collections.abc import Iterator

cache = stores.cache


@pytest.fixture(params=["memory", *places.EVERYWHERE])
def store(request: pytest.FixtureRequest) -> Iterator[limpet.Store]:
    """One of each model, and calls in doubt, of two tenants."""
    name = request.param
    url = "memory:" if name == "memory" else places.find(name, request).url
    with limpet.open(url) as opened:
        for tenant in (opened, opened.as_tenant("acme")):
            tenant.conversation("alice", labels={"channel": "web"}).append(
                {"role": "user", "content": f"Where is the okapi of {tenant.tenant}?"},
                {"role": "assistant", "content": "It hides."},
            )
            with ended_by(limpet.TaskWaiting, tenant.task("find/it", "Find the okapi")) as task:
                task.step("look", lambda: "nothing")
                task.wait_for("hint")
            for number in range(3):
                tenant.state("team").save({"turn": number, "animal": "okapi"})
            memory = tenant.memory("facts")
            memory.update(memory.remember("An okapi is a zebra").id, "An okapi is a giraffe")
            leave_in_doubt(tenant, "order", "o-1", "ship")
        yield opened


def test_every_page_works_over_every_backend(store: limpet.Store) -> None:
    """Home, tasks, conversations, states, memories, doubts, search, the doctor: each with all."""
    with (
        inspected(store, write=True, place=True) as served,
        httpx.Client(base_url=served.url, timeout=60) as client,
    ):
        client.get(served.link())
        found = list(crawl(client, "/search?q=okapi", "/memory?id=facts&q=okapi"))
        assert [(one.url, one.wrong) for one in found if one.wrong] == []
        assert len(found) > 50
        for path, words in (
            ("/", "in doubt: ship"),
            ("/?kind=task&status=waiting", "find/it"),
            ("/?label=channel%3Dweb&order=size", "alice"),
            ("/?q=okapi&newer=1h", "find/it"),
            ("/task?kind=task&id=find/it", "for the signal"),
            ("/journal?kind=conversation&id=alice", "It hides."),
            ("/state?kind=state&id=team", "okapi"),
            ("/diff?kind=state&id=team", "turn"),
            ("/memory?kind=memory&id=facts", "giraffe"),
            ("/memory?kind=memory&id=facts&q=okapi", "An older version fits"),
            ("/doubts", "ship"),
            ("/search?q=okapi", "okapi"),
            ("/doctor", "durability"),
            ("/export?kind=task&id=find/it", "Find the okapi"),
        ):
            assert words in client.get(path).text, path


def test_what_a_link_asks_for_is_refused_where_it_cannot_be(store: limpet.Store) -> None:
    """Links are typed, cut and forged: each backend would stumble over something else."""
    with inspected(store) as served, httpx.Client(base_url=served.url, timeout=60) as client:
        client.get(served.link())
        for path in (
            "/?after=task/%00",
            "/?after=task/%ff",
            "/?after=task/%F4%8F%BF%BF",
            f"/?after=task/{'x' * 2_000}",
            "/doubts?after=order/%00",
            "/doubts?after=nothing/x",
            "/?prefix=%00",
            f"/?kind=task&prefix={'y' * 2_000}",
            "/?status=%00",
            "/?label=%00=x",
            "/?label=a=%00",
            "/?kind=%00",
            "/?q=%00",
            "/task?id=%00",
            "/task?kind=task&id=find/it&before=999999999999999",
            "/journal?kind=..&id=x",
            "/journal?kind=conversation&id=alice&seq=999999999999999",
            "/state?kind=state&id=team&at=999999999999999",
            "/diff?kind=state&id=team&a=999999999999999&b=1",
            "/memory?id=facts&memory=%00",
            "/memory?id=facts&tag=%00&before=999999999999999",
            "/memory/forget?id=facts&tag=%00",
            "/events?kind=..&id=..",
            "/export?kind=conversation&id=%00",
            "/search?q=%00%22%2a%28",
        ):
            answer = client.get(path)
            assert answer.status_code in (200, 400, 404), (path, answer.text[-300:])


def test_no_way_leads_to_another_tenant(store: limpet.Store) -> None:
    """Not by an id, a kind, a place to go on from, nor by a form."""
    theirs = store.as_tenant("acme")
    theirs.conversation("only theirs").append({"role": "user", "content": "the password"})
    with ended_by(limpet.TaskWaiting, theirs.task("their task", "the password")) as task:
        task.wait_for("hint")
    leave_in_doubt(theirs, "order", "their order", "ship")
    before = {
        (head.key.kind, head.key.id): head.seq
        for tenant, kind in theirs.backend.kinds()
        if tenant == "acme"
        for head in theirs.backend.heads("acme", kind)
    }
    with (
        inspected(store, write=True) as served,
        httpx.Client(base_url=served.url, timeout=60) as client,
    ):
        client.get(served.link())
        text = client.get("/task?kind=task&id=find/it").text
        token = text.partition('name="form_token" value="')[2].partition('"')[0]
        assert token
        separators = ("/", "\x1f", "\x00", ":")
        ids = [
            "their task",
            *(f"acme{sep}task{sep}their task" for sep in separators),
            *(f"..{sep}..{sep}acme{sep}task{sep}their task" for sep in separators[:1]),
        ]
        for id_ in ids:
            for path in ("/task", "/journal", "/export", "/versions", "/task/fork"):
                for kind in ("task", "../acme/task", "acme/task"):
                    answer = client.get(path, params={"kind": kind, "id": id_})
                    assert answer.status_code in (400, 404), (path, kind, id_)
        # Every change that there is, with whatever any of them asks for.
        given = {"form_token": token, "call": "c1", "name": "hint", "at": "1", "new": "stolen"}
        given |= {"memory": "m-1"}
        answers = (
            ("task", "skip"),
            ("order", "skip"),
            ("conversation", "skip"),
            ("run", "approve"),
        )
        for id_ in (*ids[:2], "their order", "only theirs"):
            for action in ACTIONS:
                for kind, how in answers:
                    form = {**given, "id": id_, "kind": kind, "how": how}
                    answer = client.post(action.path, data=form, headers={"origin": served.url})
                    assert answer.status_code in (400, 404, 409), (action.path, form)
        for path in (
            "/",
            "/?after=conversation/",
            "/?after=acme/conversation/",
            "/?q=password",
            "/doubts",
            "/search?q=password",
            "/doctor?check=1",
        ):
            answer = client.get(path)
            assert answer.status_code in (200, 400)
            assert "only theirs" not in answer.text, path
            assert "their task" not in answer.text, path
    after = {
        (head.key.kind, head.key.id): head.seq
        for tenant, kind in theirs.backend.kinds()
        if tenant == "acme"
        for head in theirs.backend.heads("acme", kind)
    }
    assert after == before
