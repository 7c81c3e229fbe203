"""What Limpet costs, as ratios to the raw floor: ``python -m bench``, or ``make bench``.

One file a measurement or small group. Each has ``measure(bench)``, which returns rows; what they
share is in `bench._measure`. See docs/benchmarks.md.
"""
