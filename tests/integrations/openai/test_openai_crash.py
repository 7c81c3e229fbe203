"""A chat is killed at every one of its writes, and the next process goes on as if nothing had been.

With the real SDK, against a server that refuses what the provider refuses. Whatever the write, no
message is lost, the user's is stored once, and no bill is paid twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet.llm.messages.repair import INTERRUPTED
from limpet.testing.crash import seeded, soak
from tests.support.openai_programs import ASK, Job, brain, paid, run
from tests.support.openai_rig import results_in
from tests.support.openai_server import Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

apis = pytest.mark.parametrize("api", ["chat", "responses"])
faces = pytest.mark.parametrize("face", ["sync", "async"])
ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture
def server() -> Iterator[Server]:
    """A model that pays bills."""
    with Server(brain=brain) as opened:
        yield opened


class Case:
    """One chat in a store of its own."""

    def __init__(
        self, server: Server, directory: Path, name: str, scheme: str = "sqlite", **options: Any
    ) -> None:
        self._server = server
        (directory / name).mkdir()
        self.job = Job(
            url=f"{scheme}:{directory / name}/agents.db",
            server=server.url,
            side=f"{directory / name}/side",
            **options,
        )

    def messages(self) -> list[dict[str, Any]]:
        """What is stored."""
        with limpet.open(self.job.url) as store:
            messages = store.conversation("alice").messages()
            assert store.conversation("alice").length() == len(messages)
            return messages

    def results(self) -> list[str]:
        """What the model was told of its calls."""
        return [text for message in self.messages() for text in results_in(message)]

    def check(self, before: list[dict[str, Any]]) -> None:
        """Nothing lost, nothing doubled, and nothing that a provider refuses."""
        messages = self.messages()
        assert messages[: len(before)] == before, "lost"
        assert [m for m in messages if m.get("role") == "user"] == [
            {"role": "user", "content": ASK}
        ]
        assert messages[-1].get("role") == "assistant"
        results, counts = self.results(), paid(self.job.side)
        assert len(results) == 2
        assert max(counts.values(), default=0) <= 1, counts
        for bill, result in zip("12", results, strict=True):
            assert result in (f"paid {bill}", INTERRUPTED)
            assert result == INTERRUPTED or counts[bill] == 1
        assert [request.faults for request in self._server.refused] == []

    def records(self) -> int:
        """How many appends to the conversation, and to the task, are stored."""
        with limpet.open(self.job.url) as store:
            keys = [store.journal(*of).key for of in (("conversation", "alice"), ("task", "bills"))]
            return sum(len(store.backend.read(key, limit=1000)) for key in keys)

    def crashed(self, number: int) -> list[dict[str, Any]]:
        """Let a process die, and another one go on; what was stored in between."""
        assert run(self.job.dying(number)) is None
        before = self.messages()
        assert run(self.job) is not None
        return before


def boundaries(case: Case) -> Iterator[int]:
    """The moments before and after each write that an undisturbed run makes, by number.

    Each append is among them, in whichever way the store makes it.
    """
    passed = run(case.job)
    assert passed is not None
    case.check([])
    assert case.results() == ["paid 1", "paid 2"]
    appended = [moment for moment in passed if moment.startswith("after append ")]
    assert len(appended) == case.records() >= 4
    assert {moment for moment in passed if "began" in moment} >= {
        f"{when} append conversation message request began" for when in ("before", "after")
    }
    yield from range(1, len(passed) + 1)


@pytest.mark.slow
@apis
@faces
@ways
def test_a_chat_that_is_killed_at_any_write_goes_on_and_pays_no_bill_twice(
    server: Server, tmp_path: Path, api: str, face: str, *, stream: bool
) -> None:
    """The second process says the same thing again, under the same id."""
    options: dict[str, Any] = {"api": api, "face": face, "stream": stream}
    for number in boundaries(Case(server, tmp_path, "whole", **options)):
        case = Case(server, tmp_path, str(number), **options)
        case.check(case.crashed(number))


@pytest.mark.slow
@faces
def test_it_is_the_same_on_a_store_that_has_no_appends_of_its_own_for_async_programs(
    server: Server, tmp_path: Path, face: str
) -> None:
    """They are made on threads there, and each of them is a moment to die at."""
    options: dict[str, Any] = {"api": "chat", "face": face, "scheme": "file"}
    whole = Case(server, tmp_path, "whole", **options)
    with limpet.open(whole.job.url) as store:
        assert store.backend.append_async is None
    for number in boundaries(whole):
        case = Case(server, tmp_path, str(number), **options)
        case.check(case.crashed(number))


@pytest.mark.slow
@apis
@faces
def test_with_a_task_that_can_verify_every_bill_is_paid_exactly_once(
    server: Server, tmp_path: Path, api: str, face: str
) -> None:
    """Each call is a step, and a step in doubt is looked up, not guessed."""
    options: dict[str, Any] = {"api": api, "face": face, "task": True}
    for number in boundaries(Case(server, tmp_path, "whole", **options)):
        case = Case(server, tmp_path, str(number), **options)
        case.check(case.crashed(number))
        assert case.results() == ["paid 1", "paid 2"]
        assert paid(case.job.side) == {"1": 1, "2": 1}


def test_a_bill_that_is_paid_twice_would_be_found_out(server: Server, tmp_path: Path) -> None:
    """A tool that says of itself that it may run twice does, at one write at least."""
    options: dict[str, Any] = {"api": "chat", "face": "sync", "idempotent": True}
    twice = 0
    for number in boundaries(Case(server, tmp_path, "whole", **options)):
        case = Case(server, tmp_path, str(number), **options)
        case.crashed(number)
        assert case.results() == ["paid 1", "paid 2"]
        twice += max(paid(case.job.side).values()) == 2
    assert twice == 2  # each of them, between its effect and its result


@pytest.mark.soak
@apis
@faces
def test_a_chat_that_is_killed_again_and_again_comes_to_its_end(
    server: Server, tmp_path: Path, api: str, face: str
) -> None:
    """Each process gets a little further than the one before, or not even that."""
    with seeded() as rng:
        for number in range(3 * soak()):
            case = Case(
                server, tmp_path, str(number), api=api, face=face, stream=rng.random() < 0.5
            )
            before: list[dict[str, Any]] = []
            for _ in range(5):
                if run(case.job.dying(rng.randint(1, 8))) is not None:
                    break
                assert case.messages()[: len(before)] == before
                before = case.messages()
            assert run(case.job) is not None
            case.check(before)
