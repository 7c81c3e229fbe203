"""How much room 5,000 turns take."""

from __future__ import annotations

from bench._measure import Bench, Row, fill_raw, fill_store, make_turns

TURNS = 5_000


def measure(bench: Bench) -> list[Row]:
    """The closed files' sizes, everything moved out of their logs."""
    ours, raw = bench.path("limpet"), bench.path("raw")
    turns = make_turns(TURNS)
    for _ in bench.rounds(1, quick=1):
        fill_store(ours, ["chat"], turns)
        fill_raw(raw, ["chat"], turns)
    size, floor = ours.stat().st_size, raw.stat().st_size
    return [
        Row(
            name=f"disk for {TURNS:,} turns",
            value=size / floor,
            at_most=1.05,
            note=f"{size / 1e6:.2f} MB, raw {floor / 1e6:.2f} MB",
        )
    ]
