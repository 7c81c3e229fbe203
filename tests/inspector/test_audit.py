"""What is recorded of those who look at pages, and change something there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import httpx
import pytest

import limpet
from limpet.core import audit
from limpet.core.runtime import run_to_end
from tests.support.browser import inspected

if TYPE_CHECKING:
    from pathlib import Path


def acts(store: limpet.Store) -> list[tuple[str, str | None, str | None, str | None]]:
    """What was recorded through the inspector."""
    return [
        (act.what, act.kind, act.id, act.who)
        for act in run_to_end(audit.acts(store.scope))
        if act.via == "inspector"
    ]


@pytest.mark.parametrize("on", [True, False])
def test_who_looked_exported_and_changed_is_recorded(tmp_path: Path, *, on: bool) -> None:
    """By the name that the gate gave them; nothing, where that was not asked for."""
    with limpet.open(tmp_path / "s.db", audit=on) as store:
        store.conversation("c").append({"role": "user", "content": "Hi"})
        store.submit("kind", "t", "A secret goal")
        with (
            inspected(store, write=True) as served,
            httpx.Client(base_url=served.url, follow_redirects=True) as client,
        ):
            client.get(served.link())
            client.get("/journal", params={"kind": "conversation", "id": "c"})
            client.get("/export", params={"kind": "conversation", "id": "c"})
            page = client.get("/task", params={"kind": "task", "id": "t"}).text
            token = re.search(r'name="form_token" value="([^"]+)"', page)
            assert token is not None
            form = {"form_token": token[1], "id": "t"}
            done = client.post("/task/pause", data=form, headers={"origin": served.url})
            assert done.status_code == 200
        found = acts(store)
        assert [one[:3] for one in found][:4] == (
            [
                ("opened", "conversation", "c"),
                ("exported", "conversation", "c"),
                ("opened", "task", "t"),
                ("paused", "task", "t"),
            ]
            if on
            else []
        )
        assert run_to_end(audit.verify(store.scope)).problem is None
