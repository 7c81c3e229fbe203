"""``python -m bench.memory DATA``: how well memory finds the evidence, and what that takes.

DATA is LoCoMo's ``locomo10.json``. Evidence recall@k is the share of a question's evidence among
the k that were recalled, averaged over the questions.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec import Struct, field
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench import _memory_scale, _memory_sweep
from bench._locomo import CHOSEN_ON, load
from bench._measure import Bench, Row, milliseconds
from bench._memory_peers import installed
from bench._memory_plot import as_svg
from bench._recallers import Embedder, Ours, PlainBM25, PlainVectors, RankFusion, local_model
from bench._report import as_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench._locomo import Sample
    from bench._recallers import Recaller

DEPTHS = (5, 10, 20)
#: What is asked of ours at 10; see docs/memory.md.
TARGETS = {"Limpet, full text": 70.0, "Limpet, with embeddings": 75.0}

OUTPUT = click.Path(dir_okay=False, writable=True, path_type=Path)


class Score(Struct):
    """What one way has found, over all questions."""

    name: str
    #: In percent: by depth; at 10, of the last conversations only; at 10, by category.
    recall: dict[int, float] = field(default_factory=dict)
    rest: float | None = None
    categories: dict[int, float] = field(default_factory=dict)
    #: Of all turns, of the median question, in seconds, without embedding.
    index: float = 0
    query: float = 0


class Stopwatch:
    """Seconds, less those in which a text was embedded."""

    def __init__(self, embed: Embedder | None) -> None:
        self._embed = embed
        self._began = 0.0

    def _now(self) -> float:
        return perf_counter() - (self._embed.seconds if self._embed else 0)

    def start(self) -> None:
        """Begin."""
        self._began = self._now()

    def stop(self) -> float:
        """How long it was."""
        return self._now() - self._began


def score(
    name: str,
    way: Recaller,
    samples: Sequence[Sample],
    embed: Embedder | None,
    tell: Callable[[float], object],
) -> Score:
    """Ask *way* every question."""
    clock = Stopwatch(embed)
    shares: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    categories: dict[int, list[float]] = defaultdict(list)
    each: list[list[float]] = []
    took: list[float] = []
    found = Score(name)
    for sample in samples:
        clock.start()
        way.index(sample.turns)
        found.index += clock.stop()
        each.append([])
        for question in sample.questions:
            clock.start()
            ids = way.recall(question.text, max(DEPTHS))
            took.append(clock.stop())
            for depth in DEPTHS:
                hit = len(question.evidence.intersection(ids[:depth])) / len(question.evidence)
                shares[depth].append(100 * hit)
            categories[question.category].append(shares[10][-1])
            each[-1].append(shares[10][-1] / 100)
        tell(1)
    way.close()
    found.recall = {depth: fmean(values) for depth, values in shares.items()}
    found.rest = _memory_sweep.halves(each).rest
    found.categories = {key: fmean(categories[key]) for key in sorted(categories)}
    found.query = median(took)
    return found


def ways(embed: Embedder | None, place: Path) -> dict[str, Callable[[], Recaller]]:
    """All that can be run here, by name; without *embed* only what needs no model."""
    found: dict[str, Callable[[], Recaller]] = {
        "Limpet, full text": lambda: Ours(place),
        "plain BM25": PlainBM25,
        "plain BM25, context added to the text": lambda: PlainBM25(context=True),
    }
    if embed is not None:
        found = {
            "Limpet, with embeddings": lambda: Ours(place, embed),
            **found,
            "plain vectors": lambda: PlainVectors(embed),
            "plain vectors, context added to the text": lambda: PlainVectors(embed, context=True),
            "reciprocal-rank fusion of both": lambda: RankFusion(embed),
            **installed(embed),
        }
    return found


@click.command()
@click.argument("data", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--quick", is_flag=True, help="Two conversations, small stores: to see it work.")
@click.option("--json", "json_file", type=OUTPUT, help="Write the figures to this file, too.")
@click.option("--plot", "plot_file", type=OUTPUT, help="Draw recall against depth as SVG.")
@click.option("--vectors", "vectors_file", type=OUTPUT, help="Keep embeddings here for other runs.")
@click.option("--only", type=click.Choice(["recall", "sweep", "scale"]), help="Only this part.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    default=Path(),
    help="Measure on the disk of this directory; all is removed afterwards.  [default: this one]",
)
def main(
    data: Path,
    *,
    quick: bool,
    json_file: Path | None,
    plot_file: Path | None,
    vectors_file: Path | None,
    only: str | None,
    directory: Path,
) -> None:
    """Measure recall on DATA (locomo10.json), and what recalling and remembering take."""
    console = Console() if sys.stdout.isatty() else Console(width=110)
    columns = TextColumn("{task.description:<38}"), BarColumn(), TimeElapsedColumn()
    with (
        tempfile.TemporaryDirectory(prefix=".bench-", dir=directory) as place,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        run = _Run(data, Path(place), bar, vectors_file, quick=quick)
        for part in (only,) if only else ("recall", "sweep", "scale"):
            getattr(run, part)()
            run.keep()
    run.show(console)
    if json_file is not None:
        json_file.write_bytes(run.as_json())
    if plot_file is not None and run.scores:
        plot_file.write_text(as_svg(run.scores), encoding="utf-8")


class _Run:
    """All parts of a run, and what they have found."""

    def __init__(
        self, data: Path, place: Path, bar: Progress, vectors: Path | None, *, quick: bool
    ) -> None:
        self._data = data
        self._some = 2 if quick else None
        self._samples = load(data)[: self._some]
        self._place = place
        self._bar = bar
        self._quick = quick
        model = local_model()
        self._embed = Embedder(model, vectors) if model else None
        self.scores: list[Score] = []
        self._points: list[_memory_sweep.Point] = []
        self._contexts: list[_memory_sweep.Window] = []
        self._rows: list[Row] = []

    def keep(self) -> None:
        """What was embedded, for other runs."""
        if self._embed is not None:
            self._embed.keep()

    def _step(self, name: str, total: int) -> Callable[[float], None]:
        task = self._bar.add_task(name, total=total)
        return lambda part: self._bar.advance(task, part)

    def recall(self) -> None:
        """Every way, every question."""
        for name, make in ways(self._embed, self._place).items():
            tell = self._step(name, len(self._samples))
            self.scores.append(score(name, make(), self._samples, self._embed, tell))

    def sweep(self) -> None:
        """Other weights, other contexts."""
        tell = self._step("weights", len(self._samples))
        self._points = _memory_sweep.measure(self._samples, self._place, self._embed, tell)
        tell = self._step("context", len(_memory_sweep.WINDOWS))
        self._contexts = _memory_sweep.measure_context(
            self._data, self._some, self._place, self._embed, tell
        )

    def scale(self) -> None:
        """Time, at some sizes."""
        bench = Bench(self._place, quick=self._quick, advance=self._step("time", 4))
        self._rows = _memory_scale.measure(bench)

    def show(self, console: Console) -> None:
        """A table each."""
        if self.scores:
            targets = {} if self._quick else TARGETS
            console.print(_recalls(self.scores, self._samples, self._embed, targets))
        if self._points:
            console.print(_memory_sweep.as_table(self._points))
        if self._contexts:
            console.print(_memory_sweep.as_context_table(self._contexts))
        if self._rows:
            console.print(as_table(self._rows))

    def as_json(self) -> bytes:
        """The figures."""
        found = {
            "quick": self._quick,
            "recall": self.scores,
            "weights": self._points,
            "context": self._contexts,
            "rows": self._rows,
        }
        return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"


def _recalls(
    found: Sequence[Score],
    samples: Sequence[Sample],
    embed: Embedder | None,
    targets: dict[str, float],
) -> Table:
    questions = sum(len(sample.questions) for sample in samples)
    turns = sum(len(sample.turns) for sample in samples)
    caption = (
        f"{questions:,} questions of categories 1 to 4, {turns:,} turns; the rest: without the "
        f"first {CHOSEN_ON} conversations, by which the context was chosen."
    )
    if embed is not None and embed.count:
        each = embed.seconds / embed.count
        caption += f" Times are without embedding, the same for all: {milliseconds(each)} a text."
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left")
    table.add_column("evidence recall, %")
    for depth in DEPTHS:
        table.add_column(f"@{depth}", justify="right")
    table.add_column("rest @10", justify="right")
    table.add_column("by category @10", justify="right")
    table.add_column("index", justify="right")
    table.add_column("query", justify="right")
    for one in found:
        target = targets.get(one.name)
        mark = "" if target is None else (" ✓" if one.recall[10] >= target else f" ✗ {target:.0f}")
        values = [f"{one.recall[depth]:.1f}" for depth in DEPTHS]
        values[1] += mark
        values.append("" if one.rest is None else f"{one.rest:.1f}")
        kinds = " ".join(f"{value:.0f}" for value in one.categories.values())
        table.add_row(one.name, *values, kinds, f"{one.index:.2f} s", milliseconds(one.query))
    return table


if __name__ == "__main__":
    main()
