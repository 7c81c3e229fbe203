"""``python -m bench.memory DATA``: how well memory finds the evidence, and what that takes.

DATA is LoCoMo's ``locomo10.json``; ``--beam`` adds a second set, of another kind. Evidence recall@k
is the share of a question's evidence among the k that were recalled, averaged over the questions.
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

from bench import _beam, _locomo, _memory_scale, _memory_sweep
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
LOCOMO, BEAM = "LoCoMo", "BEAM"
WORDS, EMBEDDED, TOLD = "Limpet, full text", "Limpet, with embeddings", ", told who speaks"
#: What is asked of ours at 10; see docs/memory.md.
TARGETS = {LOCOMO: {WORDS: 74.0, EMBEDDED: 78.0}, BEAM: {WORDS: 56.0, EMBEDDED: 68.0}}

OUTPUT = click.Path(dir_okay=False, writable=True, path_type=Path)


class Score(Struct):
    """What one way has found, over all questions."""

    name: str
    #: In percent: by depth; at 10, of each half of the conversations; at 10, by category.
    recall: dict[int, float] = field(default_factory=dict)
    halves: tuple[float, float] | None = None
    categories: dict[str, float] = field(default_factory=dict)
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
    categories: dict[str, list[float]] = defaultdict(list)
    halves: tuple[list[float], list[float]] = ([], [])
    took: list[float] = []
    found = Score(name)
    for number, sample in enumerate(samples):
        clock.start()
        way.index(sample.turns)
        found.index += clock.stop()
        for question in sample.questions:
            clock.start()
            ids = way.recall(question.text, max(DEPTHS))
            took.append(clock.stop())
            for depth in DEPTHS:
                hit = len(question.evidence.intersection(ids[:depth])) / len(question.evidence)
                shares[depth].append(100 * hit)
            categories[question.category].append(shares[10][-1])
            halves[number % 2].append(shares[10][-1])
        tell(1)
    way.close()
    found.recall = {depth: fmean(values) for depth, values in shares.items()}
    found.halves = (fmean(halves[0]), fmean(halves[1])) if all(halves) else None
    found.categories = {key: fmean(categories[key]) for key in sorted(categories)}
    found.query = median(took)
    return found


def ways(
    embed: Embedder | None, place: Path, *, speakers: bool
) -> dict[str, Callable[[], Recaller]]:
    """All that can be run here, by name; without *embed* only what needs no model.

    *speakers*: it is known who said what, and ours is told so in rows of their own.
    """
    told: dict[str, Callable[[], Recaller]] = {}
    if speakers:
        told[WORDS + TOLD] = lambda: Ours(place, with_speaker=True)
        if embed is not None:
            told[EMBEDDED + TOLD] = lambda: Ours(place, embed, with_speaker=True)
    found: dict[str, Callable[[], Recaller]] = {
        WORDS: lambda: Ours(place),
        "plain BM25": PlainBM25,
        "plain BM25, context added to the text": lambda: PlainBM25(context=True),
    }
    if embed is not None:
        found = {
            EMBEDDED: lambda: Ours(place, embed),
            **found,
            "plain vectors": lambda: PlainVectors(embed),
            "plain vectors, context added to the text": lambda: PlainVectors(embed, context=True),
            "reciprocal-rank fusion of both": lambda: RankFusion(embed),
            **installed(embed),
        }
    return {**told, **found}


@click.command()
@click.argument("data", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--beam",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A directory of BEAM's chats, each in a directory of its own: the second set.",
)
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
    beam: Path | None,
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
        run = _Run(data, beam, Path(place), bar, vectors_file, quick=quick)
        for part in (only,) if only else ("recall", "sweep", "scale"):
            getattr(run, part)()
            run.keep()
    run.show(console)
    if json_file is not None:
        json_file.write_bytes(run.as_json())
    if plot_file is not None and run.scores:
        plot_file.write_text(as_svg(run.scores[LOCOMO]), encoding="utf-8")


class _Run:
    """All parts of a run, and what they have found."""

    def __init__(
        self,
        data: Path,
        beam: Path | None,
        place: Path,
        bar: Progress,
        vectors: Path | None,
        *,
        quick: bool,
    ) -> None:
        some = 2 if quick else None
        self._sets = {LOCOMO: _locomo.load(data)[:some]}
        if beam is not None:
            self._sets[BEAM] = _beam.load(beam)[:some]
        self._place = place
        self._bar = bar
        self._quick = quick
        model = local_model()
        self._embed = Embedder(model, vectors) if model else None
        self.scores: dict[str, list[Score]] = {}
        self._paraphrases: float | None = None
        self._points: list[_memory_sweep.Point] = []
        self._rows: list[Row] = []

    def keep(self) -> None:
        """What was embedded, for other runs."""
        if self._embed is not None:
            self._embed.keep()

    def _step(self, name: str, total: int) -> Callable[[float], None]:
        task = self._bar.add_task(name, total=total)
        return lambda part: self._bar.advance(task, part)

    def recall(self) -> None:
        """Every way, every question, of every set."""
        for name, samples in self._sets.items():
            speakers = any(turn.by for sample in samples for turn in sample.turns)
            found = self.scores[name] = []
            for way, make in ways(self._embed, self._place, speakers=speakers).items():
                tell = self._step(f"{name}: {way}", len(samples))
                found.append(score(way, make(), samples, self._embed, tell))
        if self._embed is not None:
            ours = Ours(self._place, self._embed)
            self._paraphrases = _memory_sweep.paraphrased(ours, self._sets[LOCOMO][0])
            ours.close()

    def sweep(self) -> None:
        """Other numbers than ours."""
        tell = self._step("numbers", sum(len(values) for *_, values in _memory_sweep.VALUES))
        self._points = _memory_sweep.measure(self._sets, self._place, self._embed, tell)

    def scale(self) -> None:
        """Time, at some sizes."""
        bench = Bench(self._place, quick=self._quick, advance=self._step("time", 4))
        self._rows = _memory_scale.measure(bench)

    def show(self, console: Console) -> None:
        """A table each."""
        for name, scores in self.scores.items():
            targets = {} if self._quick else TARGETS[name]
            console.print(_recalls(name, scores, self._sets[name], self._embed, targets))
            console.print(_by_category(name, scores))
        if self._paraphrases is not None:
            console.print(f"Paraphrases found, at 5: {self._paraphrases:.1f} %.")
        if self._points:
            console.print(_memory_sweep.as_table(self._points))
        if self._rows:
            console.print(as_table(self._rows))

    def as_json(self) -> bytes:
        """The figures."""
        found = {
            "quick": self._quick,
            "recall": self.scores,
            "paraphrases": self._paraphrases,
            "numbers": self._points,
            "rows": self._rows,
        }
        return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"


def _recalls(
    name: str,
    found: Sequence[Score],
    samples: Sequence[Sample],
    embed: Embedder | None,
    targets: dict[str, float],
) -> Table:
    questions = sum(len(sample.questions) for sample in samples)
    turns = sum(len(sample.turns) for sample in samples)
    caption = f"{questions:,} questions about {turns:,} turns; halves: every second conversation."
    if embed is not None and embed.count:
        each = embed.seconds / embed.count
        caption += f" Times are without embedding, the same for all: {milliseconds(each)} a text."
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left")
    table.add_column(f"{name}, evidence recall, %")
    for depth in DEPTHS:
        table.add_column(f"@{depth}", justify="right")
    for column in ("halves @10", "index", "query"):
        table.add_column(column, justify="right")
    for one in found:
        target = targets.get(one.name)
        mark = "" if target is None else (" ✓" if one.recall[10] >= target else f" ✗ {target:.0f}")
        values = [f"{one.recall[depth]:.1f}" for depth in DEPTHS]
        values[1] += mark
        values.append(" ".join(f"{half:.1f}" for half in one.halves or ()))
        table.add_row(one.name, *values, f"{one.index:.2f} s", milliseconds(one.query))
    return table


def _by_category(name: str, found: Sequence[Score]) -> Table:
    """Each category beside the better of the two plain ways, which ours must not fall behind."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    by_name = {one.name: one.categories for one in found}
    plain = [by_name[way] for way in ("plain BM25", "plain vectors") if way in by_name]
    ours = [way for way in by_name if way.startswith("Limpet")]
    table.add_column(f"{name}, by category, @10")
    for column in (*ours, *(way for way in ("plain BM25", "plain vectors") if way in by_name)):
        table.add_column(column, justify="right")
    for category in found[0].categories:
        values = [f"{by_name[way][category]:.1f}" for way in ours]
        values += [f"{one[category]:.1f}" for one in plain]
        table.add_row(category, *values)
    return table


if __name__ == "__main__":
    main()
