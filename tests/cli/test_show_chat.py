"""``limpet show`` of what is a chat, whatever framework stored it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from tests.support import chats
from tests.support.commands import run
from tests.support.doubtful import leave_in_doubt

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with a chat of each kind."""
    monkeypatch.chdir(tmp_path)
    for name in ("LIMPET_URL", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    with limpet.open("limpet.db") as store:
        chats.every_chat(store)


def show(id_: str, *options: str) -> str:
    """What the command prints, without times."""
    return re.sub(r" · 20[-\dT:]+Z", "", run("show", id_, *options).stdout)


def data(id_: str, *options: str) -> Any:
    """The same for programs."""
    return json.loads(run("show", id_, *options, "--json").stdout)


def test_a_conversation_has_its_notes_where_they_belong() -> None:
    """Results with calls, what was repaired, pinned and summed up; not what was taken back."""
    text = show("alice")
    assert "user  #3\n(pinned)\n  I prefer e-mail.\n" in text.replace("  (pinned)", "(pinned)")
    assert (
        "assistant  #6\n  I look.\n  → find_order(number=7)\n"
        '  ← {"status": "sent", "by": "ship"}\n  → track()\n  ← It is in Rotterdam.'
    ) in text
    assert "summary: A summary stands in windows for the messages up to 8\n" in text
    assert "  5 messages about order 7." in text
    assert "the call 'c3' to refund has no result" in text
    assert "  ← (no result)\n" in text
    assert "[image: image/png, 3.0 KB]" in text
    assert "Nobody can say that." not in text
    assert "#3" not in show("alice", "--last", "2")


def test_a_thread_says_which_calls_of_its_nodes_are_in_doubt() -> None:
    """Though they are in another journal, which the commands that resolve them name."""
    assert data("thread-1")["in_doubt"] == {}
    with limpet.open("limpet.db") as store:
        leave_in_doubt(store, "thread-effects", "thread-1", "pay")
    text = show("thread/thread-1")
    assert "In doubt\nthread-effects/thread-1  pay (c1)" in text
    assert "limpet resolve thread-effects/thread-1 c1 skip" in text
    assert data("thread/thread-1")["in_doubt"]["c1"]["name"] == "pay"


def test_a_thread_names_models_tokens_and_failed_calls() -> None:
    """As far as its messages say so."""
    text = show("thread-1")
    assert "assistant clerk  #2 · gpt-5-mini · 21 → 9 tokens\n  I look.\n" in text
    assert "  → find_order(number=7)\n  ← (error) no such order\n" in text
    assert "assistant  #4 · 40 → 6 tokens\n" in text
    assert "Asks, and waits for an answer\n  - person: Shall I ask the carrier?\n" in text


def test_a_team_is_shown_as_who_said_what() -> None:
    """Not as a document, unless that is asked for; and what each agent knows by its name."""
    text = show("writers")
    assert "What was said 11 messages\n\nuser  #1\n  Write about order 7, look it up.\n" in text
    assert 'assistant ben  #3 · 0 → 1 tokens\n  → look(text="n3")\n  ← n3 found\n' in text
    assert "There is also (--of NAME)\n  anna  What anna knows, 5 messages\n" in text
    of_ben = show("writers", "--of", "ben")
    assert "What ben knows 10 messages" in of_ben
    assert (
        "There are no messages of 'dora' here"
        in run("show", "writers", "--of", "dora", code=3).stderr
    )
    assert len(re.findall("#", show("writers", "--last", "2"))) == 2
    document = show("writers", "--document")
    assert '"message_thread": [' in document
    assert data("writers") == data("writers", "--document")
    assert data("writers")["document"]["type"] == "TeamState"
    assert "is a document" in run("show", "writers", "--document", "--last", "2", code=2).stderr


def test_an_agent_by_itself_is_shown_by_what_its_model_knows() -> None:
    """There is no other record of what was said."""
    text = show("helper")
    assert "What its model knows 4 messages" in text
    assert 'assistant helper  #2\n  → look(text="n2")\n  ← n2 found\n' in text


def test_a_run_says_what_was_decided() -> None:
    """And who said what so far."""
    text = show("agents-run/refund-7")
    assert "Decided\n  - s2 approved by maria\n" in text
    assert 'assistant desk  #6\n  → refund(number="7")\n  ← (approved by maria)\n' in text


def test_of_is_for_what_has_several_lists_of_messages() -> None:
    """A typing error is told at once."""
    with limpet.open("limpet.db") as store:
        store.state("settings").save({"theme": "dark"})
    assert "--of is for teams" in run("show", "settings", "--of", "ben", code=2).stderr
    assert '"theme": "dark"' in show("settings")
