"""What ``import limpet`` takes, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from bench._measure import Bench, Contest, Row, milliseconds, timed

STATEMENTS = {
    "python": "pass",
    "parts": "import apsw, msgspec",
    "limpet": "import limpet",
}


def measure(bench: Bench) -> list[Row]:
    """Whole processes, so all three include the interpreter's own start and end."""
    contestants = {name: timed(partial(_run, statement)) for name, statement in STATEMENTS.items()}
    Contest().round(contestants)  # to warm up: compiles what was not
    contest = Contest()
    for _ in bench.rounds(15, quick=3):
        contest.round(contestants, calls=5)
    bare, parts, ours = (contest.typical(name) for name in STATEMENTS)
    return [
        Row(
            name="import limpet, to importing apsw and msgspec",
            value=contest.ratio("limpet", to="parts"),
            at_most=1.4,
            note=f"{milliseconds(ours)} to {milliseconds(parts)}; beyond a bare Python's"
            f" {milliseconds(bare)}: {(ours - bare) / (parts - bare):.2f}",
        )
    ]


def _run(statement: str) -> None:
    subprocess.run([sys.executable, "-c", statement], check=True)
