"""A refund that somebody has to approve, run by Temporal.

    temporal server start-dev &
    python temporal_app.py worker &
    python temporal_app.py refund order-17 180
    python temporal_app.py approve order-17 yes

Kill the worker whenever you like, and start another: the refund goes on, and is paid once.
"""

from __future__ import annotations

import asyncio
import os
import sys

from temporalio.client import Client
from temporalio.worker import Worker

import limpet
from limpet.workers import temporal

ADDRESS = os.environ.get("TEMPORAL_ADDRESS", "localhost:7233")
QUEUE = os.environ.get("TEMPORAL_QUEUE", "refunds")

# -- the tasks: they know nothing of Temporal ------------------------------------------------------

registry = limpet.Registry()


@registry.task("refund")
def refund(task: limpet.Task) -> str:
    """Look at the order, ask a person if it is much, pay."""
    order, amount = task.input["order"], task.input["amount"]
    task.step("check", check, order)
    if amount > 100 and task.wait_for("approval") != "yes":
        return f"{order}: refused"
    return f"{order}: {task.step('pay', pay, amount)}"


def check(order: str) -> str:
    """Ask the shop about the order."""
    return f"{order} was delivered"


def pay(amount: float) -> str:
    """Ask the bank, with a key by which it knows a repeated call."""
    key = limpet.current_step().idempotency_key
    return f"paid {amount:.2f} ({key})"


# -- the three commands ----------------------------------------------------------------------------


async def worker(client: Client) -> None:
    """Run what Temporal hands out, until the process ends."""
    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=[temporal.TaskWorkflow],
        activities=temporal.activities(registry),  # the store is at $LIMPET_URL
    ):
        print("working", flush=True)
        await asyncio.Event().wait()


async def ask_for(client: Client, order: str, amount: str) -> None:
    """Submit a refund, and have it run."""
    async with limpet.open_async() as store:
        wanted = {"order": order, "amount": float(amount)}
        await store.submit("refund", order, f"Refund {order}", input=wanted)
    await temporal.start(client, order, task_queue=QUEUE)
    print(f"{order} is being looked at")


async def approve(client: Client, order: str, answer: str) -> None:
    """Say yes or no, and wait for the end."""
    async with limpet.open_async() as store:
        workflow = await temporal.signal(client, store, order, "approval", answer, task_queue=QUEUE)
        await workflow.result()
        print((await store.task(order).checkpoint()).outcome)


async def main(command: str, *words: str) -> None:
    """Do one of them."""
    client = await Client.connect(ADDRESS)
    if command == "worker":
        await worker(client)
    elif command == "refund":
        await ask_for(client, *words)
    else:
        await approve(client, *words)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
