"""Programs that are killed in the middle of their work, and what must be there afterwards.

A program calls `ack` for each write that it has been told is safe. `crash` runs one or several,
ends them with SIGKILL at a random `Moment` and returns what each had acknowledged. `Talk` and
`Work` are such programs, with the checks that go with them, for a store of any URL::

    with seeded() as rng:
        talk = Talk("postgresql://…")
        for _ in range(50):
            talk.learn(crash([talk.program("ann")], [Moment.random(rng)]))
            with limpet.open(talk.url) as store:
                assert talk.check(store) == 0, "lost"
"""

from __future__ import annotations

import atexit
import functools
import itertools
import math
import multiprocessing
import os
import pkgutil
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import shake_128
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any

import limpet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Self

__all__ = [
    "Moment",
    "Outcome",
    "Program",
    "Talk",
    "Work",
    "ack",
    "crash",
    "experiments",
    "run",
    "seeded",
    "soak",
    "steps_of",
    "talk",
    "talk_async",
    "turn",
    "turns_of",
    "visit",
    "work",
    "work_async",
]

#: What this process has gone through so far: how many "kills" and "power losses".
experiments: Counter[str] = Counter()

#: The first line of every program, before it does anything: moments are counted from here.
READY = b"#ready\n"


@contextmanager
def seeded() -> Iterator[Random]:
    """Random numbers from a seed that is printed and noted on errors; $LIMPET_SEED repeats it."""
    seed = int(os.environ.get("LIMPET_SEED") or SystemRandom().getrandbits(32))
    sys.stdout.write(f"LIMPET_SEED={seed}\n")
    try:
        yield Random(seed)
    except BaseException as error:
        error.add_note(f"To repeat this, set LIMPET_SEED={seed}")
        raise


def soak() -> int:
    """How many times as long a random experiment shall be: $LIMPET_SOAK, or once."""
    return int(os.environ.get("LIMPET_SOAK") or 1)


# -- the harness -----------------------------------------------------------------------------------


def ack(what: str) -> None:
    """Tell the harness, from within a program, that *what* is safe: one line, one write(2)."""
    os.write(1, f"{what}\n".encode())


@dataclass(frozen=True, slots=True)
class Program:
    """A function of text arguments, as ``package.module:name``; or a script, as its path."""

    target: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Moment:
    """*seconds* after the *acks*-th acknowledgement; with no acks, after the program has begun."""

    acks: int
    seconds: float

    @classmethod
    def random(cls, rng: Random, *, acks: int = 150, seconds: float = 0.15) -> Moment:
        """Within half a millisecond of an acknowledgement, or anywhere from the very beginning."""
        if rng.random() < 0.7:
            return cls(rng.randint(1, acks), rng.uniform(0, 0.0005))
        return cls(0, rng.uniform(0, seconds))


def _name(function: Callable[..., None]) -> str:
    return f"{function.__module__}:{function.__qualname__}"


NEVER = Moment(0, math.inf)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program had acknowledged, line by line, and whether it was killed or had ended."""

    acked: list[str]
    killed: bool


def crash(
    programs: Sequence[Program], moments: Sequence[Moment], *, patience: float = 60
) -> list[Outcome]:
    """Run *programs* side by side and kill each at its moment; or all at once, if there is one.

    That one moment counts the acknowledgements of them all. An `AssertionError` carries the words
    of a program that failed by itself or had anything to say on stderr. *patience* is how many
    seconds everything may take.
    """
    crews = (
        [(programs, moments[0])]
        if len(moments) == 1
        else [([program], moment) for program, moment in zip(programs, moments, strict=True)]
    )
    deadline = time.monotonic() + patience
    with ExitStack() as stack:
        groups = [stack.enter_context(_Group(crew, moment)) for crew, moment in crews]
        while alive := [group for group in groups if not group.ended]:
            _listen(alive, deadline)
            for group in alive:
                group.strike_if_due()
        outcomes = [child.outcome() for group in groups for child in group.children]
    experiments["kills"] += sum(outcome.killed for outcome in outcomes)
    return outcomes


def run(*programs: Program, patience: float = 60) -> list[Outcome]:
    """Run *programs* side by side to their end."""
    return crash(programs, [NEVER] * len(programs), patience=patience)


class _Starter:
    """A process that has Limpet imported, and forks each program: many times as fast as anew.

    It opens no store and has one thread, so that a program finds nothing but what it would have
    imported itself.
    """

    def __init__(self) -> None:
        ours, theirs = multiprocessing.Pipe()
        self._orders = ours
        self._one_at_a_time = threading.Lock()
        start = f"from limpet.testing import crash; crash.serve({theirs.fileno()})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", start],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        theirs.close()
        atexit.register(self._end)

    def start(self, program: Program, group: int, out: int, errors: int) -> int:
        """Start *program* in that process group (0: a new one), and return its number."""
        path = [entry for entry in sys.path if entry]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        with self._one_at_a_time:
            self._orders.send((program, group, path, environment, os.getcwd()))
            send_handle(self._orders, out, self._process.pid)
            send_handle(self._orders, errors, self._process.pid)
            pid: int = self._orders.recv()
        return pid

    def wait(self, pid: int) -> int:
        """How the program ended. Until then nobody else can get its number."""
        with self._one_at_a_time:
            self._orders.send(pid)
            code: int = self._orders.recv()
        return code

    def _end(self) -> None:
        self._process.kill()  # closing our end would not do: a fork of this process has it too
        self._process.wait()
        self._orders.close()


_starter = functools.cache(_Starter)


def serve(handle: int) -> None:
    """Fork programs as `_Starter` asks, until it is gone; and be each of them, in the fork."""
    orders: Connection[Any, Any] = Connection(handle)
    while True:
        try:
            order = orders.recv()
        except EOFError:
            return
        if isinstance(order, int):
            orders.send(os.waitstatus_to_exitcode(os.waitpid(order, 0)[1]))
            continue
        program, group, path, environment, directory = order
        out, errors = recv_handle(orders), recv_handle(orders)
        pid = os.fork()
        if pid == 0:
            break
        os.setpgid(pid, group)  # both do it: neither may go on before it is so
        os.close(out)
        os.close(errors)
        orders.send(pid)
    os.setpgid(0, group)
    orders.close()
    for ours, number in ((out, 1), (errors, 2)):
        os.dup2(ours, number)
        os.close(ours)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    sys.argv = [program.target, *program.args]
    os.chdir(directory)
    if program.target.endswith(".py"):
        go: Callable[[], object] = partial(runpy.run_path, program.target, run_name="__main__")
    else:
        go = partial(pkgutil.resolve_name(program.target), *program.args)
    os.write(1, READY)
    go()


class _Child:
    """A program while it runs, and what it has said."""

    def __init__(self, program: Program, group: int) -> None:
        self.program = program
        self.ended = False
        self._code: int | None = None
        self.acks = -1  # the first line says that it is ready
        self._heard = bytearray()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - until `close`
        self._out, theirs = os.pipe()
        try:
            self.pid = _starter().start(program, group, theirs, self._errors.fileno())
        finally:
            os.close(theirs)

    def fileno(self) -> int:
        return self._out

    def listen(self) -> None:
        said = os.read(self.fileno(), 65536)
        self.ended = not said
        self.acks += said.count(b"\n")
        self._heard += said

    def outcome(self) -> Outcome:
        code = self.wait()
        complaints = self.complaints()
        assert code in (0, -signal.SIGKILL), f"{self.program} ended with {code}:\n{complaints}"
        assert not complaints, f"{self.program} said:\n{complaints}"
        lines = bytes(self._heard).split(b"\n")[1:-1]  # not the first, and only whole ones
        return Outcome([line.decode() for line in lines], code != 0)

    def complaints(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def wait(self) -> int:
        if self._code is None:
            self._code = _starter().wait(self.pid)
        return self._code

    def close(self) -> None:
        self.wait()
        os.close(self._out)
        self._errors.close()


class _Group:
    """Programs in a process group of their own: one signal ends them all."""

    def __init__(self, programs: Iterable[Program], moment: Moment) -> None:
        self._moment = moment
        self._due: float | None = None
        self.children: list[_Child] = []
        for program in programs:
            self.children.append(_Child(program, self.children[0].pid if self.children else 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.ended:
            self._kill()
        for child in self.children:
            child.close()

    @property
    def ended(self) -> bool:
        return all(child.ended for child in self.children)

    def due(self) -> float:
        """When to strike, as far as that is known."""
        if self._due is None:
            acks = [child.acks for child in self.children]
            if min(acks) < 0 or sum(acks) < self._moment.acks:
                return math.inf
            self._due = time.monotonic() + self._moment.seconds
        return self._due

    def strike_if_due(self) -> None:
        if self.due() <= time.monotonic():
            self._kill()

    def _kill(self) -> None:
        # None has been waited for, so the number cannot be anybody else's by now.
        os.killpg(self.children[0].pid, signal.SIGKILL)
        for child in self.children:
            while not child.ended:
                child.listen()


def _listen(groups: list[_Group], deadline: float) -> None:
    """Hear what the programs say, until the first moment comes."""
    children = [child for group in groups for child in group.children if not child.ended]
    now = time.monotonic()
    if now > deadline:
        heard = "\n".join(f"{c.program}: {c.acks} lines. {c.complaints()}" for c in children)
        raise TimeoutError(f"These programs did not come to their end in time:\n{heard}")
    until = min(deadline, *(group.due() for group in groups))
    # Not a selector: epoll rounds a wait up to whole milliseconds.
    for child in select.select(children, [], [], max(0.0, until - now))[0]:
        child.listen()


# -- a conversation --------------------------------------------------------------------------------

TALK = "talk"


def turn(writer: str, number: int) -> list[dict[str, Any]]:
    """What *writer* says the *number*-th time: one message or two, now and then of many pages."""
    size = 10_000 if number % 40 == 0 else 1 + number % 200
    return [
        {
            "role": role,
            "writer": writer,
            "turn": number,
            "content": shake_128(f"{writer} {number} {role}".encode()).hexdigest(size),
        }
        for role in (("user", "assistant") if number % 3 == 0 else ("user",))
    ]


def turns_of(store: limpet.Store, id: str = TALK) -> Counter[str]:
    """How many turns of each writer are stored: every one whole, once, and in order."""
    messages = store.conversation(id).messages()
    counts: Counter[str] = Counter()
    at = 0
    while at < len(messages):
        writer, number = messages[at]["writer"], messages[at]["turn"]
        expected = turn(writer, number)
        found = messages[at : at + len(expected)]
        assert found == expected, f"turn {number} of {writer} is not whole: {found}"
        assert number == counts[writer] + 1, f"{writer}: turn {number} after {counts[writer]}"
        counts[writer] = number
        at += len(expected)
    return counts


class Talk:
    """Writers who add turn after turn to one conversation.

    Each append has an id. Writers that come back repeat the turn whose acknowledgement they never
    saw: it must be there once, whatever became of it the first time.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.acked: Counter[str] = Counter()

    def program(self, *writers: str, way: Callable[..., None] | None = None) -> Program:
        """One process with these writers; the *way* they go is `talk`, `talk_async` or `visit`."""
        turns = (f"{writer}:{self.acked[writer] + 1}" for writer in writers)
        return Program(_name(way or talk), (self.url, *turns))

    def learn(self, outcomes: Iterable[Outcome]) -> None:
        """Take in what was acknowledged."""
        for outcome in outcomes:
            for line in outcome.acked:
                writer, number = line.split()
                assert int(number) == self.acked[writer] + 1, f"{line} after {self.acked}"
                self.acked[writer] += 1

    def check(self, store: limpet.Store) -> int:
        """How many acknowledged turns are lost. All else that could be wrong is an error."""
        stored = turns_of(store)
        for writer, count in stored.items():
            beyond = count - self.acked[writer]
            assert beyond <= 1, f"{writer} had one turn in flight, and {beyond} more are stored"
        return (self.acked - stored).total()


def talk(url: str, *turns: str) -> None:
    """Add to the conversation for ever; *turns* say with which turn each writer goes on."""
    with limpet.open(url) as store:
        _in_threads(partial(_talk, store), turns)


def visit(url: str, *turns: str) -> None:
    """The same, with the store opened and closed for every turn."""

    def go(start: str) -> None:
        for writer, number in _turns(start):
            with limpet.open(url) as store:
                _say(store, writer, number)

    _in_threads(go, turns)


def _in_threads(go: Callable[[str], None], turns: Sequence[str]) -> None:
    """One writer in this thread, the others in threads of their own."""
    for start in turns[1:]:
        threading.Thread(target=go, args=(start,)).start()
    go(turns[0])


def _talk(store: limpet.Store, start: str) -> None:
    for writer, number in _turns(start):
        _say(store, writer, number)


def _say(store: limpet.Store, writer: str, number: int) -> None:
    store.conversation(TALK).append(*turn(writer, number), id=f"{writer}-{number}")
    ack(f"{writer} {number}")


def talk_async(url: str, *turns: str) -> None:
    """The same as `talk`, with asyncio tasks in place of threads."""
    import asyncio  # noqa: PLC0415 - the other programs start faster without it

    async def all_of_them() -> None:
        async with limpet.open_async(url) as store:
            chat = store.conversation(TALK)
            await asyncio.gather(*(_talk_async(chat, start) for start in turns))

    asyncio.run(all_of_them())


async def _talk_async(chat: limpet.AsyncConversation, start: str) -> None:
    for writer, number in _turns(start):
        await chat.append(*turn(writer, number), id=f"{writer}-{number}")
        ack(f"{writer} {number}")


def _turns(start: str) -> Iterator[tuple[str, int]]:
    writer, _, first = start.partition(":")
    return ((writer, number) for number in itertools.count(int(first)))


# -- tasks -----------------------------------------------------------------------------------------

PLAN = [f"step-{number:02}" for number in range(1, 41)]


def steps_of(store: limpet.Store) -> set[str]:
    """The stored steps, as ``task:step``: of each task the first few, with the right results."""
    found: set[str] = set()
    for info in store.tasks():
        task = store.task(info.id)
        point = task.checkpoint()
        assert point.completed == PLAN[: len(point.completed)], f"{info.id}: {point.completed}"
        results = {name: result_of(f"{info.id}:{name}") for name in point.completed}
        assert point.results == results, f"{info.id} has wrong results: {point.results}"
        assert not task.done or (point.completed, task.outcome) == (PLAN, len(PLAN)), info.id
        found.update(f"{info.id}:{name}" for name in results)
    return found


def result_of(step: str) -> dict[str, str]:
    """What a step returns."""
    return {"step": step, "text": shake_128(step.encode()).hexdigest(100)}


class Work:
    """Workers with one task after the other, each task of many steps.

    Before it returns, the function of a step adds a line to the file *side*: who ran which step.
    """

    def __init__(self, url: str, side: str) -> None:
        self.url = url
        self.acked: dict[str, str] = {}  # step: the run that acknowledged it
        self.finished: set[str] = set()  # tasks
        self._side = side
        self._runs = itertools.count(1)
        self._ran: dict[str, int] = {}  # a stored step: how often it ran until it was

    def program(
        self, worker: str, *, upto: int | None = None, way: Callable[..., None] | None = None
    ) -> Program:
        """One process with the tasks of *worker*; of several with the same, one works at a time.

        It goes on with the first task that is not known to be finished, and for ever, or *upto* a
        task of that number. The *way* is `work` or `work_async`.
        """
        done = [int(task.rpartition("-")[2]) for task in self.finished if _is_of(task, worker)]
        numbers = f"{max(done, default=0) + 1}:{'' if upto is None else upto}"
        args = (self.url, self._side, f"run-{next(self._runs)}", worker, numbers)
        return Program(_name(way or work), args)

    def learn(self, outcomes: Iterable[Outcome]) -> None:
        """Take in what was acknowledged."""
        for outcome in outcomes:
            for line in outcome.acked:
                who, what = line.split()
                if ":" not in what:
                    self.finished.add(what)
                else:
                    assert what not in self.acked, f"{who} was offered {what}, which was done"
                    self.acked[what] = who

    def check(self, store: limpet.Store) -> int:
        """How many acknowledged steps are lost. All else that could be wrong is an error."""
        stored, runs = steps_of(store), self._runs_of_steps()
        self._check_none_ran_again(stored, runs)
        self._check_in_flight(runs)
        done = {task.id for task in store.tasks(status="done")}
        assert self.finished <= done, f"acknowledged as finished: {self.finished - done}"
        return len(self.acked.keys() - stored)

    def _check_none_ran_again(self, stored: set[str], runs: dict[str, list[str]]) -> None:
        for step, who in self.acked.items():
            assert runs[step][-1] == who, f"{step}: {who} had done it, then {runs[step][-1]} ran it"
        for step in stored:
            assert runs[step], f"{step} is stored, and nobody ran it"
            times = self._ran.setdefault(step, len(runs[step]))
            assert times == len(runs[step]), f"{step} was stored, and ran again: {runs[step]}"

    def _check_in_flight(self, runs: dict[str, list[str]]) -> None:
        """A step may run again if its run was killed before it was stored; each has one such."""
        pairs = [(who, step) for step, those in runs.items() for who in those]
        assert len(set(pairs)) == len(pairs), "a process ran a step twice"
        in_flight = Counter(who for who, step in pairs if self.acked.get(step) != who)
        assert max(in_flight.values(), default=0) <= 1, f"steps not acknowledged: {in_flight}"

    def _runs_of_steps(self) -> dict[str, list[str]]:
        """Who ran each step, in order."""
        runs: dict[str, list[str]] = defaultdict(list)
        if os.path.exists(self._side):
            with open(self._side) as file:
                for line in file:
                    who, step = line.split()
                    runs[step].append(who)
        return runs


def _is_of(task: str, worker: str) -> bool:
    return task.rpartition("-")[0] == worker


def work(url: str, side: str, who: str, worker: str, numbers: str) -> None:
    """Do the tasks of *worker*, each a plan of many steps."""
    with limpet.open(url) as store:
        for number in _numbers(numbers):
            with store.task(f"{worker}-{number}", "Finish the plan", agent=who, wait=60) as task:
                task.plan(PLAN)
                for step in task.remaining():
                    step.run(_perform, side, who, f"{task.id}:{step.name}")
                    ack(f"{who} {task.id}:{step.name}")
                task.finish(len(task.results))
            ack(f"{who} {task.id}")


def work_async(url: str, side: str, who: str, worker: str, numbers: str) -> None:
    """The same, awaited."""
    import asyncio  # noqa: PLC0415 - the other programs start faster without it

    async def all_of_them() -> None:
        async with limpet.open_async(url) as store:
            for number in _numbers(numbers):
                await _work_async(
                    store.task(f"{worker}-{number}", "Finish the plan", wait=60), side, who
                )

    asyncio.run(all_of_them())


async def _work_async(task: limpet.AsyncTask, side: str, who: str) -> None:
    async with task:
        await task.plan(PLAN)
        for step in task.remaining():
            await step.run(_perform, side, who, f"{task.id}:{step.name}")
            ack(f"{who} {task.id}:{step.name}")
        await task.finish(len(task.results))
    ack(f"{who} {task.id}")


def _numbers(span: str) -> Iterable[int]:
    first, _, last = span.partition(":")
    return range(int(first), int(last) + 1) if last else itertools.count(int(first))


def _perform(side: str, who: str, step: str) -> dict[str, str]:
    handle = os.open(side, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, f"{who} {step}\n".encode())
    finally:
        os.close(handle)
    return result_of(step)
