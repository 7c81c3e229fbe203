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

    def __init__(self, server: Server, directory: Path, name: str, **options: Any) -> None:
        self._server = server
        (directory / name).mkdir()
        self.job = Job(
            url=f"sqlite:{directory / name}/agents.db",
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

    def crashed(self, number: int, *, after: bool) -> list[dict[str, Any]]:
        """Let a process die, and another one go on; what was stored in between."""
        killed, _ = run(self.job.dying(number, after=after))
        assert killed
        before = self.messages()
        killed, _ = run(self.job)
        assert not killed
        return before


def boundaries(case: Case) -> Iterator[tuple[int, bool]]:
    """Before and after each write that an undisturbed run makes."""
    killed, writes = run(case.job)
    assert not killed
    case.check([])
    assert case.results() == ["paid 1", "paid 2"]
    assert writes >= 6
    for number in range(1, writes + 1):
        yield number, False
        yield number, True


@apis
@faces
@ways
def test_a_chat_that_is_killed_at_any_write_goes_on_and_pays_no_bill_twice(
    server: Server, tmp_path: Path, api: str, face: str, *, stream: bool
) -> None:
    """The second process says the same thing again, under the same id."""
    options = {"api": api, "face": face, "stream": stream}
    for number, after in boundaries(Case(server, tmp_path, "whole", **options)):
        case = Case(server, tmp_path, f"{number}-{after}", **options)
        case.check(case.crashed(number, after=after))


@apis
@faces
def test_with_a_task_that_can_verify_every_bill_is_paid_exactly_once(
    server: Server, tmp_path: Path, api: str, face: str
) -> None:
    """Each call is a step, and a step in doubt is looked up, not guessed."""
    options = {"api": api, "face": face, "task": True}
    for number, after in boundaries(Case(server, tmp_path, "whole", **options)):
        case = Case(server, tmp_path, f"{number}-{after}", **options)
        case.check(case.crashed(number, after=after))
        assert case.results() == ["paid 1", "paid 2"]
        assert paid(case.job.side) == {"1": 1, "2": 1}


def test_a_bill_that_is_paid_twice_would_be_found_out(server: Server, tmp_path: Path) -> None:
    """A tool that says of itself that it may run twice does, at one write at least."""
    options = {"api": "chat", "face": "sync", "idempotent": True}
    twice = 0
    for number, after in boundaries(Case(server, tmp_path, "whole", **options)):
        case = Case(server, tmp_path, f"{number}-{after}", **options)
        case.crashed(number, after=after)
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
                at, after = rng.randint(1, 4), rng.random() < 0.5
                if not run(case.job.dying(at, after=after))[0]:
                    break
                assert case.messages()[: len(before)] == before
                before = case.messages()
            assert run(case.job)[0] is False
            case.check(before)
