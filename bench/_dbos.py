"""Workflows of DBOS for `bench.peers`, which do what ours do.

``python -m bench._dbos URL LAST begin`` takes a workflow up to step LAST, says so, and waits for
its end; with ``resume`` in place of ``begin``, DBOS itself finds the workflow and goes on with it.
"""

from __future__ import annotations

import sys
import time

from dbos import DBOS, SetWorkflowID

from bench import _walker

last = 0  # the step to stop at: of this process, not of the workflow
new = 0


@DBOS.step()
def work(number: int) -> dict[str, object]:
    """What a step does."""
    return _walker.work(number)


@DBOS.step()
async def work_async(number: int) -> dict[str, object]:
    """The same, awaited."""
    return _walker.work(number)


@DBOS.workflow()
def walking() -> None:
    """A step for each line that is read."""
    _walker.walk(work)


@DBOS.workflow()
async def walking_async() -> None:
    """The same, awaited."""
    await _walker.walk_async(work_async)


@DBOS.step()
def count() -> dict[str, str]:
    """A step that is counted."""
    global new  # noqa: PLW0603 - of this process
    new += 1
    return {"status": "ok"}


@DBOS.workflow()
def job() -> None:
    """A thousand steps, of which this process takes those up to `last`."""
    for number in range(1, 1_001):
        count()
        if number == last:
            print(f"step {last}, {new} new", flush=True)
            time.sleep(60)


def launch(url: str) -> None:
    """DBOS as it is by default, but that it keeps its log to itself."""
    place = url if "://" in url else f"sqlite:///{url}"
    DBOS(
        config={
            "name": "bench",
            "system_database_url": place,
            "application_version": "1",
            "log_level": "CRITICAL",
        }
    )
    DBOS.launch()


def main(url: str, stop: int, how: str) -> None:
    """Begin the job, or let it be resumed."""
    global last  # noqa: PLW0603 - of this process
    last = stop
    print("imported", flush=True)
    launch(url)
    if how == "begin":
        with SetWorkflowID("job"):
            DBOS.start_workflow(job)
    time.sleep(120)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
