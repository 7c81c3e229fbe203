"""``python -m bench``: measure, show a table, and exit with 0 whether targets are met or not."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench import (
    append,
    backends,
    concurrency,
    disk,
    encryption,
    imports,
    inspector,
    langgraph,
    lists,
    peers,
    reading,
    resume,
    sessions,
    state,
    step,
    window,
)
from bench._chart import as_chart
from bench._growth_plot import as_growth
from bench._measure import Bench, Row
from bench._plot import as_svg
from bench._report import as_json, as_table

if TYPE_CHECKING:
    from collections.abc import Callable

MEASUREMENTS: dict[str, Callable[[Bench], list[Row]]] = {
    "append": append.measure,
    "step": step.measure,
    "dbos": peers.measure,
    "concurrency": concurrency.measure,
    "load": reading.measure_load,
    "window": reading.measure_window,
    "trim": window.measure,
    "sessions": sessions.measure,
    "state": state.measure,
    "langgraph": langgraph.measure,
    "lists": lists.measure,
    "disk": disk.measure,
    "resume": resume.measure,
    "encryption": encryption.measure,
    "import": imports.measure,
    "inspector": inspector.measure,
    "backends": backends.measure,
}

OUTPUT = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command()
@click.argument(
    "names", nargs=-1, metavar="[MEASUREMENT]...", type=click.Choice(list(MEASUREMENTS))
)
@click.option("--quick", is_flag=True, help="Few rounds: to see that it works, not to quote.")
@click.option("--json", "json_file", type=OUTPUT, help="Write the figures to this file, too.")
@click.option("--plot", "plot_file", type=OUTPUT, help="Draw the cost of a turn as SVG.")
@click.option("--chart", "chart_file", type=OUTPUT, help="Draw all figures and targets as SVG.")
@click.option("--growth", "growth_file", type=OUTPUT, help="Draw LangGraph's savers as SVG.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    default=Path(),
    help="Measure on the disk of this directory; all is removed afterwards.  [default: this one]",
)
def main(
    names: tuple[str, ...],
    *,
    quick: bool,
    json_file: Path | None,
    plot_file: Path | None,
    chart_file: Path | None,
    growth_file: Path | None,
    directory: Path,
) -> None:
    """Measure what Limpet costs, as ratios to a raw insert in the same run.

    Without names, everything: append, step, dbos, concurrency, load, window, trim, sessions, state,
    langgraph, lists, disk, resume, encryption, import, inspector, backends.
    """
    names = names or tuple(MEASUREMENTS)
    drawings = [
        (plot_file, "append", as_svg),
        (growth_file, "langgraph", as_growth),
        (chart_file, None, as_chart),
    ]
    for file, needs, _ in drawings:
        if file is not None and needs not in (None, *names):
            msg = f"{file.name} shows what the measurement {needs!r} finds; name it, too."
            raise click.UsageError(msg)
    for file in (json_file, plot_file, chart_file, growth_file):
        if file is not None and not file.parent.is_dir():
            raise click.UsageError(f"There is no directory {file.parent} to write {file.name} to.")
    console = Console() if sys.stdout.isatty() else Console(width=110)
    if _file_system(directory) in ("tmpfs", "ramfs"):
        console.print(
            "[yellow]This directory is in memory, where fsync is free and ratios mean nothing."
            " Name one on a disk with --dir.[/]"
        )
    rows, failed = _measure(names, directory, console, quick=quick)
    console.print(as_table(rows))
    if json_file is not None:
        json_file.write_bytes(as_json(rows, quick=quick))
    for file, needs, draw in drawings:
        if file is not None and needs not in failed:
            file.write_text(draw(rows), encoding="utf-8")
    if failed:
        raise click.ClickException(f"These could not be measured: {', '.join(failed)}.")


def _measure(
    names: tuple[str, ...], directory: Path, console: Console, *, quick: bool
) -> tuple[list[Row], list[str]]:
    """The rows of all measurements, and the names of those that broke off."""
    rows: list[Row] = []
    failed: list[str] = []
    columns = TextColumn("{task.description:<12}"), BarColumn(), TimeElapsedColumn()
    with (
        tempfile.TemporaryDirectory(prefix=".bench-", dir=directory) as place,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        shown = bar.add_task("", total=len(names))
        bench = Bench(Path(place), quick=quick, advance=lambda part: bar.advance(shown, part))
        for done, name in enumerate(names):
            bar.update(shown, description=name, completed=done)
            try:
                rows += MEASUREMENTS[name](bench)
            except Exception:  # noqa: BLE001 - the other measurements are worth having
                console.print_exception()
                failed.append(name)
    return rows, failed


def _file_system(directory: Path) -> str:
    """What *directory* is stored on, where the kernel says so; "" elsewhere."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    found = {Path(mount.split()[1]): mount.split()[2] for mount in mounts}
    place = directory.resolve()
    return next((found[path] for path in (place, *place.parents) if path in found), "")


if __name__ == "__main__":
    main()
