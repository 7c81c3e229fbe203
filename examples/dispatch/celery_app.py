"""A newsletter that is written, read by somebody, and sent; run by Celery.

    celery -A celery_app worker &
    python celery_app.py write june
    python celery_app.py release june

Kill the worker whenever you like, and start another: nothing is written or sent twice.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from celery import Celery

import limpet
from limpet.workers.celery import register

BROKER = os.environ.get("BROKER_URL", "redis://localhost:6379/0")

# -- the tasks: they know nothing of Celery --------------------------------------------------------

registry = limpet.Registry()


@registry.task("newsletter")
def newsletter(task: limpet.Task) -> dict[str, int]:
    """Collect, write, wait to be released, and send."""
    topics = task.step("collect", lambda: ["a new backend", "a faster step"])
    texts = [task.step(f"write {topic}", write, topic) for topic in topics]
    task.wait_for("release")
    # Should the worker die in the middle of it, the mail service is asked what became of it.
    sent = task.step("send", send, "\n".join(texts), in_doubt="verify", verify=was_sent)
    return {"topics": len(topics), "sent": sent}


def write(topic: str) -> str:
    """A model would do this."""
    return f"This month: {topic}."


#: Stands for a mail service, which remembers the keys that it was given.
OUTBOX = Path(os.environ.get("OUTBOX", "outbox.txt"))


def send(text: str) -> int:
    """Hand it to the mail service, under a key; how many lines it has sent."""
    key = limpet.current_step().idempotency_key
    with OUTBOX.open("a") as outbox:
        outbox.write(f"{key} {len(text.splitlines())}\n")
    return len(text.splitlines())


def was_sent(key: str) -> int | None:
    """What the mail service knows of this key; None if nothing."""
    sent = OUTBOX.read_text().splitlines() if OUTBOX.exists() else []
    return next((int(line.split()[1]) for line in sent if line.startswith(f"{key} ")), None)


# -- the app, for workers and callers alike --------------------------------------------------------

app = Celery("newsletters", broker=BROKER, backend=BROKER)
# Should a worker's machine die, Redis gives what it had to another after so many seconds.
app.conf.broker_transport_options = {"visibility_timeout": 900}
tasks = register(app, registry)  # the store is at $LIMPET_URL


def main(command: str, month: str) -> None:
    """Write one, or release it."""
    if command == "write":
        with limpet.open() as store:
            store.submit("newsletter", month, f"The newsletter of {month}")
        print(f"{month}: {tasks.start(month).get(timeout=60)}")
    else:
        print(f"{month}: {tasks.signal(month, 'release').get(timeout=60)}")
        with limpet.open() as store:
            print(store.task(month).checkpoint().outcome)


if __name__ == "__main__":
    main(*sys.argv[1:])
