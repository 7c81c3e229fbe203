"""A worker for `bench.resume`: takes a task up to step LAST, says so, and waits for its end.

``python _worker.py STORE LAST``
"""

import sys
import time

import limpet


def main(path: str, last: int) -> None:
    """Work on the task up to step *last*, and say how many of the steps were new."""
    new = 0

    def work() -> dict[str, str]:
        nonlocal new
        new += 1
        return {"status": "ok"}

    with limpet.open(path) as store, store.task("job", goal="Take a thousand steps") as task:
        for number in range(1, last + 1):
            task.step(f"step-{number}", work)
        print(f"step {last}, {new} new", flush=True)
        time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
