"""A worker killed at step 501 of 1,000: how soon its successor does something new."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from time import perf_counter

from bench._measure import Bench, Contest, Row, milliseconds

KILLED_AT, STEPS = 501, 1_000
WORKER = Path(__file__).with_name("_worker.py")


def measure(bench: Bench) -> list[Row]:
    """From the successor's start to its first new step recorded, less a bare Python's own start."""
    contest = Contest()
    for _ in bench.rounds(15, quick=3):
        path = bench.path("killed")
        _run_and_kill(path)
        contest.round({"python": _bare, "limpet": partial(_resume, path)})
    bare, resumed = contest.typical("python"), contest.typical("limpet")
    return [
        Row(
            name=f"killed at step {KILLED_AT} of {STEPS:,}, to the first new step",
            value=resumed - bare,
            unit="s",
            at_most=0.1,
            note=f"{milliseconds(resumed)} with Python's own start of {milliseconds(bare)}",
        )
    ]


def _run_and_kill(path: Path) -> None:
    """Kill a worker when it has acknowledged step 501 and not begun another."""
    with start(str(WORKER), str(path), str(KILLED_AT)) as worker:
        expect(worker, f"step {KILLED_AT}, {KILLED_AT} new")
        worker.kill()


def _resume(path: Path) -> float:
    began = perf_counter()
    with start(str(WORKER), str(path), str(KILLED_AT + 1)) as worker:
        expect(worker, f"step {KILLED_AT + 1}, 1 new")
        took = perf_counter() - began
        worker.kill()
    return took


def _bare() -> float:
    """How long a Python takes to say anything at all."""
    began = perf_counter()
    with start("-c", "print('hello', flush=True)") as python:
        expect(python, "hello")
        return perf_counter() - began


def start(*arguments: str) -> subprocess.Popen[str]:
    """A Python that can be talked to."""
    return subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def expect(process: subprocess.Popen[str], line: str) -> None:
    """Wait until it says *line*, and nothing else."""
    said = process.stdout.readline().strip() if process.stdout else ""
    if said != line:
        process.kill()
        msg = f"the worker should have said {line!r}, and said {said!r}"
        raise RuntimeError(msg)
