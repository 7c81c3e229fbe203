"""Digests of news feeds, made by workers: ``limpet work worker_app:registry``."""

import asyncio
import json
from pathlib import Path

import limpet

registry = limpet.Registry()
OUTBOX = Path("outbox.jsonl")


@registry.task("digest", limit=2, lease=30)
def digest(task: limpet.Task) -> dict[str, int]:
    """Plain: it has a thread of its own. What it returns is the outcome."""
    headlines = task.step("fetch", fetch, task.input["feed"])
    task.step("mail", mail, headlines, in_doubt="verify", verify=mailed)
    return {"headlines": len(headlines)}


@registry.task("check")
async def check(task: limpet.AsyncTask) -> str:
    """Async: it shares an event loop with the others, and so their clients."""
    await task.step("ping", asyncio.sleep, 0.1)
    return "up"


def fetch(feed: str) -> list[str]:
    """Harmless to repeat, so it needs no policy."""
    return [f"{feed}: headline {number}" for number in (1, 2, 3)]


def mail(headlines: list[str]) -> str:
    """Must happen once: it is sent under the key by which `mailed` finds it."""
    key = limpet.current_step().idempotency_key
    with OUTBOX.open("a") as file:
        file.write(json.dumps({"key": key, "text": headlines}) + "\n")
    return key


def mailed(key: str) -> str | None:
    """Asked by a worker that takes over from one that died in the middle of `mail`."""
    sent = OUTBOX.read_text().splitlines() if OUTBOX.exists() else []
    return key if any(json.loads(line)["key"] == key for line in sent) else None
