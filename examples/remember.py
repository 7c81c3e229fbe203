"""What one task has found out the next one knows, though nothing else is left of the first.

    $ python remember.py survey
    billing can be called
    $ python remember.py send
    - "Send the old invoices to billing"
    - "billing allows 100 calls a minute" (from "survey", 2026-03-01, 0 days old)
    - "use version 2 of billing (because 1 ends soon)" (from "survey", 2026-03-01, 0 days old)
    - "How is billing called?: billing can be called" (from "survey", 2026-03-01, 0 days old)
    sent, 100 a minute

`limpet --store agents.db memory show tasks` shows what is remembered; `memory forget` removes it.
"""

import re
import sys
from typing import Any

import limpet


def survey(store: limpet.Store) -> None:
    """A task that learns something, and of which nothing else stays."""
    with store.task("survey", goal="How is billing called?") as task:
        limit = task.step("probe", lambda: 100)
        task.discover(f"billing allows {limit} calls a minute")
        task.decide("use version 2 of billing", because="1 ends soon")
        # Outcome, decisions and discoveries are safe in memory before the record goes. They are
        # there once, wherever on the way the process dies.
        print(task.finish("billing can be called", remember=True, keep=False))


def send(store: limpet.Store) -> None:
    """Another task, in another process: its first context has what bears on its goal."""
    with store.task("send", goal="Send the old invoices to billing") as task:
        messages = task.resume_messages(memories=True, max_tokens=1_000)
        data = [line for line in messages[1]["content"].splitlines() if line.startswith("- ")]
        print(*data, sep="\n")
        print(task.finish(model(messages), remember=True, keep=False))


def model(messages: list[dict[str, Any]]) -> str:
    """What a model would say to that."""
    limit = re.search(r"allows (\d+) calls a minute", messages[1]["content"])
    return f"sent, {limit[1]} a minute" if limit else "sent one by one, as no limit is known"


if __name__ == "__main__":
    with limpet.open("agents.db") as opened:
        {"survey": survey, "send": send}[sys.argv[1]](opened)
