"""Leases that renew themselves, and holders that are known to be dead.

A lease is kept alive by one thread a store, for sync and async tasks alike: an event loop that is
busy for a minute does not lose its task.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from limpet.backends.contract import Key, for_people, from_micros
from limpet.errors import Fenced, LeaseHeld

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.backends.contract import Backend, Lease
    from limpet.core.runtime import Port

__all__ = [
    "Held",
    "Hold",
    "Keeper",
    "holder_name",
    "is_dead",
    "is_here",
    "is_this_process",
    "store_now",
    "take",
]

#: Seconds after which a store is asked for its time again: clocks drift, and are put right.
ASK_AGAIN = 600.0

#: Renewals at once: one server, or one file, may not answer while the others do.
MOST = 8

#: A lease is renewed when this share of it has passed: two renewals may fail before it ends.
RENEW_AT = 1 / 3


class Held:
    """A lease we hold, renewed until it is let go. ``lost`` says why it no longer is ours."""

    def __init__(
        self, key: Key, lease: Lease, ttl: float, beat: Callable[[], None], every: float
    ) -> None:
        self.key = key
        self._lease = lease
        self.ttl = ttl
        self.beat = beat
        self.pace = min(ttl * RENEW_AT, every)
        self.due = time.monotonic() + self.pace
        self.lost: Exception | None = None

    @property
    def lease(self) -> Lease:
        """What a write relies on. `LeaseHeld` in a fork: its epoch is good, but it is not ours."""
        if isinstance(self.lost, LeaseHeld):
            raise LeaseHeld(*self.lost.args)
        return self._lease

    @lease.setter
    def lease(self, renewed: Lease) -> None:
        self._lease = renewed

    @property
    def elsewhere(self) -> bool:
        """Whether it is that of the process which this one was forked from."""
        return isinstance(self.lost, LeaseHeld)

    def leave_behind(self) -> None:
        """In a fork: let it be the parent's alone."""
        lease, what = self._lease, f"{self.key.kind.capitalize()} {self.key.id!r}"
        msg = (
            f"{what} is open in process {os.getppid()}, and this is a fork of that: nothing was "
            "written. Let the fork return what it has found, and record it there; or give it an id "
            "of its own to open."
        )
        self.lost = LeaseHeld(msg, for_people(lease.holder), from_micros(lease.until), lease.epoch)


class Keeper:
    """Renews leases in the background, from the first `keep` to the last `drop`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.begin()
        _keepers.add(self)

    def begin(self) -> None:
        """Hold nothing."""
        self._news = threading.Condition()
        self._held: list[Held] = []
        self._renewing: set[Held] = set()
        self._threads: set[threading.Thread] = set()

    def begin_anew(self) -> None:
        """The same in a fork: what is held is the parent's, to write under and to renew."""
        left = self._held
        self.begin()
        for held in left:
            held.leave_behind()

    def keep(
        self,
        key: Key,
        lease: Lease,
        ttl: float,
        beat: Callable[[], None] = lambda: None,
        every: float = 60,
    ) -> Held:
        """Renew *lease* until `drop`; after each renewal, *every* so many seconds, call *beat*."""
        held = Held(key, lease, ttl, beat, every)
        with self._news:
            self._held.append(held)
            self._hire()
            self._news.notify_all()
        return held

    def _hire(self) -> None:
        """See to it that a thread is free for what is due next. Under the lock."""
        free = len(self._threads) - len(self._renewing)
        if free < 1 and len(self._threads) < MOST:
            # A daemon, so that a task left open does not hold up the interpreter's exit.
            thread = threading.Thread(target=self._run, name="limpet-leases", daemon=True)
            self._threads.add(thread)
            thread.start()

    def drop(self, held: Held) -> None:
        """Renew it no more. On return no renewal of it is under way or to come."""
        with self._news:
            if held in self._held:
                self._held.remove(held)
            self._news.notify_all()
            # Not by a thread of ours: the garbage collector may end a stream on the very one that
            # renews its lease, and it would wait for itself.
            while held in self._renewing and threading.current_thread() not in self._threads:
                self._news.wait()

    def stop(self) -> None:
        """Renew nothing more."""
        with self._news:
            self._held.clear()
            self._news.notify_all()
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            thread.join(timeout=5)

    def _run(self) -> None:
        # Not under the lock: a store that does not answer keeps one renewal waiting, and no other.
        while (held := self._next()) is not None:
            self._renew(held)
            with self._news:
                self._renewing.discard(held)
                self._news.notify_all()

    def _next(self) -> Held | None:
        """The next to be renewed, when it is due; None when there is none, and the thread ends."""
        with self._news:
            while waiting := [held for held in self._held if held not in self._renewing]:
                if len(self._threads) - len(self._renewing) > 1:
                    break  # one is enough to wait for what is due
                held = min(waiting, key=lambda held: held.due)
                wait = held.due - time.monotonic()
                if wait <= 0:
                    self._renewing.add(held)
                    if len(waiting) > 1:
                        self._hire()
                    return held
                self._news.wait(wait)
            self._threads.discard(threading.current_thread())
            return None

    def _renew(self, held: Held) -> None:
        try:
            held.lease = self._backend.renew(held.key, held.lease, held.ttl)
            held.beat()
        except Fenced as error:
            held.lost = error
            with self._news:
                if held in self._held:
                    self._held.remove(held)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next renewal may succeed
            # The store is away for now. Ask again soon; the writer will see the error for itself.
            held.lost = error
            held.due = time.monotonic() + held.ttl * RENEW_AT / 4
        else:
            held.lost = None
            held.due = time.monotonic() + held.pace


_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()


def _begin_anew() -> None:
    for keeper in _keepers:
        keeper.begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


class Hold:
    """The right to write one journal: taken, kept for as long as it is needed, and given up.

    ``held`` is the lease while it is ours. *beat* is called after renewals, *every* so often.
    """

    def __init__(
        self,
        port: Port,
        keeper: Keeper,
        key: Key,
        ttl: float,
        *,
        agent: str | None = None,
        beat: Callable[[], None] = lambda: None,
        every: float = 60,
    ) -> None:
        self._port = port
        self._keeper = keeper
        self._key = key
        self._ttl = ttl
        self._agent = agent
        self._beat = beat
        self._every = every
        self.held: Held | None = None

    async def take(self, wait: float) -> None:
        """Take it; `LeaseHeld` if another has it for longer than *wait* seconds."""
        await take(self._port, self._acquire, wait)

    def _acquire(self, over: int | None) -> None:
        holder = holder_name(self._agent)
        lease = self._port.backend.acquire(self._key, holder, self._ttl, over=over)
        self.held = self._keeper.keep(self._key, lease, self._ttl, self._beat, self._every)

    def renew(self) -> None:
        """Make sure that it is still ours, blocking; `Fenced` if it is not."""
        if self.held is not None:
            self._port.backend.renew(self.held.key, self.held.lease, self.held.ttl)

    async def let_go(self) -> None:
        """Give it up, if we have it."""
        if self.held is not None and not self.elsewhere:
            await self._port.call(self.end)

    def end(self) -> None:
        """The same, blocking."""
        if self.elsewhere:
            return
        held, self.held = self.held, None
        if held is not None:
            self._keeper.drop(held)
            self._port.backend.release(held.key, held.lease)

    @property
    def elsewhere(self) -> bool:
        """Whether we are a fork of the process that has it."""
        return self.held is not None and self.held.elsewhere


async def take(port: Port, acquire: Callable[[int | None], None], wait: float) -> None:
    """Call *acquire* until it does not raise `LeaseHeld`, for up to *wait* seconds.

    It gets the epoch that it may take the lease over from: that of a holder that was a process of
    this machine and is no more. It does all there is to do in one call: if the caller is cancelled
    meanwhile, the lease is not left with nobody to renew or release it.
    """
    deadline = time.monotonic() + wait
    over: int | None = None
    while True:
        try:
            return await port.call(acquire, over)
        except LeaseHeld as held:
            if over != held.epoch and is_dead(held.holder):
                over = held.epoch
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            await port.sleep(min(left, 0.2))


# -- who holds it ----------------------------------------------------------------------------------


def store_now(backend: Backend, tenant: str) -> datetime:
    """The time by the store's clock, as a lease tells it: this machine's may be another."""
    known = _clocks.get(backend)
    if known is None or time.monotonic() >= known[0]:
        known = time.monotonic() + ASK_AGAIN, _ahead(backend, tenant)
        _clocks[backend] = known
    return datetime.now(UTC) + known[1]


def _ahead(backend: Backend, tenant: str) -> timedelta:
    """How far the store's clock is before this machine's."""
    key = Key(tenant, "clock", "now")  # which has no entries, and so is nowhere to be seen
    try:
        lease = backend.acquire(key, holder_name(None), 1)
    except LeaseHeld as held:  # another worker asks
        return held.until - timedelta(seconds=1) - datetime.now(UTC)
    found = from_micros(lease.until) - timedelta(seconds=1) - datetime.now(UTC)
    backend.release(key, lease)
    return found


#: When to ask a store for its time again, and how far it was ahead when it was asked.
_clocks: weakref.WeakKeyDictionary[Backend, tuple[float, timedelta]] = weakref.WeakKeyDictionary()


def holder_name(agent: str | None) -> str:
    """Who we are, for people (agent, host, process) and for `is_dead` (the part in brackets)."""
    host = os.uname().nodename if hasattr(os, "uname") else "this machine"
    mark = _mark(os.getpid())
    who = f"{agent or 'a worker'} on {host}, process {os.getpid()}"
    return f"{who} [{mark}]" if mark else who


def is_dead(holder: str) -> bool:
    """True if *holder* was a process of this very boot and pid namespace, and has ended.

    Only the kernel's word counts: a process of another machine, or of a container that cannot see
    ours, is never called dead, and its lease runs to its end.
    """
    pid = _pid_here(holder)
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # it is there, and somebody else's
    return _mark(pid) not in ("", _mark_of(holder))  # there is such a process, but it began later


def is_here(holder: str) -> bool:
    """True if *holder* is, or was, a process that this machine's kernel can tell us of."""
    return _pid_here(holder) is not None


def is_this_process(holder: str) -> bool:
    """True if *holder* is us."""
    return _mark_of(holder) == _mark(os.getpid()) != ""


def _pid_here(holder: str) -> int | None:
    """The process that *holder* is, if it is one of this very boot and pid namespace."""
    mark, here = _mark_of(holder), _mark(os.getpid())
    if not here or mark.count("/") != here.count("/"):
        return None
    place, pid, _ = mark.rsplit("/", 2)
    return int(pid) if place == here.rsplit("/", 2)[0] and pid.isdecimal() else None


def _mark_of(holder: str) -> str:
    return holder.rpartition("[")[2].removesuffix("]")


def _mark(pid: int) -> str:
    """Boot, pid namespace, pid and start of a process: never used twice. "" if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
        with open(f"/proc/{pid}/stat") as file:
            # The name in brackets may contain anything; the fields behind it do not.
            state, *fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    # Started, in clock ticks since boot: field 22 of all. A zombie has ended, but for its name.
    started = "ended" if state in "ZX" else fields[18]
    return f"{boot}/{namespace}/{pid}/{started}"
