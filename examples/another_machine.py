"""One task, two machines: what one began, the other ends. They share a URL, and nothing else.

    a$ export LIMPET_URL='dynamodb://agents?region=eu-west-1&create_table=true'
    a$ python another_machine.py
    list
    page 1
    page 2
    page 3
    Killed
    b$ export LIMPET_URL='dynamodb://agents?region=eu-west-1'
    b$ python another_machine.py
    goes on behind page 2
    page 3
    page 4
    page 5
    page 6
    6 pages, 78 words

Any URL of a server will do: postgresql://, redis://, valkey://. The second machine waits until the
first one's lease has ended, here at most ten seconds; on the same machine it goes on at once,
because there the kernel knows that the first process is dead. The long step reports how far it has
come, and that is stored once a second: so the third page, read but not yet reported, is read again.
"""

import os
import sys
import time
from typing import Any

import limpet

PACE = float(os.environ.get("PACE", "1"))  # seconds that a page takes
PAGES = 6


def list_pages() -> list[str]:
    """A short step: it is recorded when it returns, and never runs again."""
    print("list", flush=True)
    return [f"page {number}" for number in range(1, PAGES + 1)]


def read(pages: list[str]) -> dict[str, Any]:
    """A long step: it begins where the last report of an earlier attempt was."""
    step = limpet.current_step()
    found = {"pages": 0, "words": 0}
    if step.last_progress is not None:
        found = step.last_progress.data
        print("goes on behind", pages[found["pages"] - 1], flush=True)
    for page in pages[found["pages"] :]:
        print(page, flush=True)
        time.sleep(PACE)
        found = {"pages": found["pages"] + 1, "words": found["words"] + 13}
        step.progress(found["pages"] / len(pages), page, found)
    return found


def main() -> None:
    """The same on both machines."""
    if "LIMPET_URL" not in os.environ:
        sys.exit("Set LIMPET_URL, for instance to dynamodb://agents?region=eu-west-1")
    with (
        limpet.open() as store,
        # The lease: how long after a machine's death its task is free. heartbeat: how often it is
        # renewed, and progress stored (60 seconds by default). wait: for the lease of another.
        store.task("survey", goal="Count the words", lease=10, heartbeat=1, wait=60) as task,
    ):
        pages = task.step("list", list_pages)
        found = task.step("read", read, pages)
        print(task.finish(f"{found['pages']} pages, {found['words']} words"))


if __name__ == "__main__":
    main()
