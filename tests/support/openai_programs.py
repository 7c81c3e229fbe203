"""A chat that pays bills, in a process of its own, which can be made to die at any write."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI

import limpet
from limpet.integrations.openai import AsyncChat, Chat, tool
from limpet.integrations.openai import reply as _openai_reply
from limpet.testing.boundaries import Boundaries
from tests.support.openai_server import Answer, Request

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ASK", "Job", "brain", "do", "paid", "run"]

ASK = "Pay bills 1 and 2."
PATIENCE = 60.0

# Children are forked from a process that has imported all this and has rehearsed it once: most of
# what a first request takes is the SDK's own imports.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__, "tests.support.openai_rehearsal"])


Api = Literal["chat", "responses"]
APIS: tuple[Api, Api] = ("chat", "responses")


@dataclass(frozen=True, slots=True)
class Job:
    """What a process is to do, and at which of its write boundaries it dies; 0: at none."""

    url: str
    server: str
    side: str
    api: Api
    face: str
    stream: bool = False
    task: bool = False
    idempotent: bool = False
    kill_at: int = 0

    def dying(self, at: int) -> Job:
        """The same, cut short at boundary number *at*."""
        return replace(self, kill_at=at)


def brain(request: Request) -> Answer:
    """A model that pays what it is told to, in one go, and then says what came of it."""
    if request.asked != ASK:
        return Answer("You are welcome.")
    if request.results:
        return Answer(f"This is what came of it, in order: {'; '.join(request.results)}.")
    return Answer(calls=(("pay", {"bill": 1}), ("pay", {"bill": 2})), reasoning="Two bills.")


def paid(side: str) -> Counter[str]:
    """How often each bill was paid."""
    path = Path(side)
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter(line.split()[0] for line in lines)


def run(job: Job) -> list[str] | None:
    """Do *job* in a process of its own: the write boundaries it passed; None if it was killed."""
    parent, child = _context.Pipe(duplex=False)
    process = _context.Process(target=_report, args=(job, child))
    process.start()
    child.close()
    process.join(PATIENCE)
    if process.exitcode not in (0, -signal.SIGKILL):
        process.kill()
        raise AssertionError(f"{job} ended with {process.exitcode}")
    passed: list[str] | None = parent.recv() if process.exitcode == 0 else None
    parent.close()
    return passed


def do(job: Job) -> list[str]:
    """Do *job* here; the write boundaries that were passed."""
    _openai_reply.PIECE_CHARACTERS = 24  # so that there are pieces to be stored
    return asyncio.run(_converse_async(job)) if job.face == "async" else _converse(job)


def _report(job: Job, to: Any) -> None:
    to.send(do(job))


def _tool(job: Job) -> Callable[..., Any]:
    """Pays a bill; as a step of a task, by a key under which it can be found."""

    def pay(bill: int) -> str:
        """Pay a bill."""
        key = limpet.current_step().idempotency_key if job.task else ""
        handle = os.open(job.side, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(handle, f"{bill} {key}\n".encode())
        os.close(handle)
        return f"paid {bill}"

    async def pay_async(bill: int) -> str:
        """Pay a bill."""
        await asyncio.sleep(0)
        return pay(bill)

    def verify(key: str) -> str | None:
        lines = Path(job.side).read_text().splitlines() if Path(job.side).exists() else []
        return next((f"paid {line.split()[0]}" for line in lines if line.endswith(key)), None)

    found: Callable[..., Any] = pay_async if job.face == "async" else pay
    found.__name__ = "pay"
    if job.task:
        return limpet.effect(in_doubt="verify", verify=verify)(found)
    return tool(found, idempotent=job.idempotent)


def _converse(job: Job) -> list[str]:
    http = DefaultHttpxClient(verify=False)  # there is nothing to verify, and that takes its time
    client = OpenAI(base_url=job.server, api_key="none", http_client=http)
    with limpet.open(job.url) as store, client:
        boundaries = Boundaries(store.backend, job.kill_at)
        working = store.task("bills", "Pay the bills") if job.task else nullcontext()
        with working as task:
            chat = Chat(
                client,
                store.conversation("alice"),
                model="gpt-5",
                api=job.api,
                tools=[_tool(job)],
                task=task,
            )
            if job.stream:
                list(chat.stream(ASK, id="ask"))
            else:
                chat.send(ASK, id="ask")
        return boundaries.passed


async def _converse_async(job: Job) -> list[str]:
    http = DefaultAsyncHttpxClient(verify=False)
    client = AsyncOpenAI(base_url=job.server, api_key="none", http_client=http)
    async with limpet.open_async(job.url) as store, client:
        boundaries = Boundaries(store.backend, job.kill_at)
        working: Any = store.task("bills", "Pay the bills") if job.task else nullcontext()
        async with working as task:
            chat = AsyncChat(
                client,
                store.conversation("alice"),
                model="gpt-5",
                api=job.api,
                tools=[_tool(job)],
                task=task,
            )
            if job.stream:
                _ = [piece async for piece in chat.stream(ASK, id="ask")]
            else:
                await chat.send(ASK, id="ask")
        return boundaries.passed
