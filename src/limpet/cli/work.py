"""``limpet work``: run the tasks that were submitted, and those that a dead worker has left."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import traceback
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from limpet.cli.options import FAILED, Failure, StoreOptions, pass_store, store_options
from limpet.cli.output import Screen
from limpet.views.text import safe
from limpet.workers.registry import GIVE_UP_AFTER, Registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.workers.worker import Worker

__all__ = ["import_module", "work"]

_STYLES = {logging.WARNING: "yellow", logging.ERROR: "red"}


@click.command(short_help="Run tasks: a worker.")
@click.argument("app", metavar="MODULE:REGISTRY")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    metavar="N",
    help="How many tasks to run at once.",
)
@click.option(
    "--kinds",
    metavar="KIND,...",
    help="Only tasks of these kinds. [default: all of the registry]",
)
@click.option("--agent", metavar="NAME", help="What this worker is called in the store.")
@click.option(
    "--poll",
    type=click.FloatRange(min=0.01),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look while there is nothing to do.",
)
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long running tasks may take to end after SIGTERM or Ctrl-C.",
)
@click.option(
    "--give-up-after",
    type=click.IntRange(min=1),
    default=GIVE_UP_AFTER,
    show_default=True,
    metavar="N",
    help="Fail a task of which so many runs in a row came to nothing.",
)
@click.option("--until-idle", is_flag=True, help="End when there is nothing to do now.")
@store_options
@pass_store
def work(
    options: StoreOptions, /, *, app: str, kinds: str | None, until_idle: bool, **settings: Any
) -> None:
    """Run the tasks that the functions of a registry are for, until SIGTERM or Ctrl-C.

    MODULE:REGISTRY is where the limpet.Registry is, as in app:registry; the module is looked for
    in this directory first. Any number of workers may share a store. The task of a worker that died
    is taken over when its lease ends; on the same machine at once.

    SIGTERM or Ctrl-C lets running tasks end; what has not ended by then is left to its lease, and
    the exit code is 1. A second one ends at once.
    """
    from limpet.workers.worker import Worker  # noqa: PLC0415 - asyncio is slow to import

    module, _, name = app.partition(":")
    if not module:
        raise click.UsageError("Name a module and the registry in it, as in app:registry.")
    registry = registry_in(module, name or "registry")
    names = [name.strip() for name in (kinds or "").split(",") if name.strip()]
    with options.open(create=True, readonly=False) as store, log_to_screen() as log:
        try:
            worker = Worker(registry, store, kinds=names or None, **settings)
        except (LookupError, ValueError) as error:
            raise click.UsageError(str(error)) from error
        log.info("working on %s for tenant %s: %s", options.name, options.tenant, app)
        with stopping_on_signals(worker):
            left = worker.run(until_idle=until_idle)
        if left:
            log.warning("left to their leases: %s", ", ".join(left))
            _exit_now(FAILED)
        log.info("ended")
    if worker.lingers:
        _exit_now(0)


def _exit_now(code: int) -> None:
    """End although functions of the user's run: nothing waits for their threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# -- the user's module -----------------------------------------------------------------------------


def registry_in(module: str, name: str) -> Registry:
    """The registry *name* of the user's *module*."""
    found = import_module(module)
    try:
        registry = getattr(found, name)
    except AttributeError:
        there = [key for key, value in vars(found).items() if isinstance(value, Registry)]
        hint = f"It has: {', '.join(there)}." if there else "It has no limpet.Registry at all."
        raise Failure(f"The module {module} has no {name!r}. {hint}") from None
    if not isinstance(registry, Registry):
        kind = type(registry).__name__
        raise Failure(f"{module}:{name} is a {kind}, and a worker needs a limpet.Registry.")
    return registry


def import_module(module: str) -> Any:
    """The user's *module*, looked for in this directory first."""
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _broken(module, error) from error  # it is one that the module asks for
        named = " A module is named without its .py." if module.endswith(".py") else ""
        msg = f"There is no module {module!r} in {os.getcwd()}, nor installed.{named}"
        raise Failure(msg) from None
    except (Exception, SystemExit) as error:
        raise _broken(module, error) from error


def _broken(module: str, error: BaseException) -> Failure:
    """Its traceback, from where the user's own code begins."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "importlib" not in f.filename and f.filename != __file__]
    lines = [*traceback.format_list(own), *traceback.format_exception_only(error)]
    return Failure(f"The module {module} cannot be imported:\n{''.join(lines)}")


# -- signals and logging ---------------------------------------------------------------------------


@contextmanager
def stopping_on_signals(worker: Worker) -> Iterator[None]:
    """SIGTERM and Ctrl-C let the worker end; the second of them is the kernel's."""

    def stop(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        worker.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def log_to_screen() -> Iterator[logging.Logger]:
    """Show what the worker logs."""
    log = logging.getLogger("limpet.workers.worker")
    handler = ScreenHandler()
    before, log.propagate = log.propagate, False  # or a user's own handlers would print it again
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield log
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
        log.propagate = before


class ScreenHandler(logging.Handler):
    """One line an event, on standard error; with colours if that is a terminal.

    Below a failure, one line for each place that it came through.
    """

    def __init__(self) -> None:
        super().__init__()
        self._screen = Screen(stderr=True)

    def emit(self, record: logging.LogRecord) -> None:
        """Print it. If nobody reads it any more, or the disk is full, the tasks go on all the same.

        Rich exits when a pipe is broken: in the middle of somebody's task, or of the worker.
        """
        with suppress(OSError, SystemExit):
            at = self._screen.time(datetime.fromtimestamp(record.created, UTC))
            first, *places = record.getMessage().split("\n")
            style = _STYLES.get(record.levelno, "")
            self._screen.line((f"{at}  ", "dim"), (safe(first), style), cut=True)
            for place in places:
                self._screen.line((" " * len(at), "dim"), (safe(place), "dim"))
