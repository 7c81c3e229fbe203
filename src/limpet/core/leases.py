"""Leases that renew themselves, and holders that are known to be dead.

A lease is kept alive by threads of the store, for sync and async tasks alike: an event loop that
is busy for a minute does not lose its task.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Self

from limpet.backends.contract import Key, from_micros
from limpet.backends.decide import holder_for_people
from limpet.errors import LeaseHeld, LeaseLost, besides

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from limpet.backends.contract import Backend, Lease
    from limpet.core.runtime import Runtime

__all__ = [
    "HeldLease",
    "LeaseKeeper",
    "LeaseLock",
    "holder_name",
    "is_dead",
    "is_on_this_machine",
    "is_this_process",
    "store_now",
]

#: Seconds after which a store is asked for its time again: clocks drift, and are put right.
ASK_AGAIN = 600.0

#: Renewals at once: one server, or one file, may not answer while the others do.
MOST_THREADS = 8

#: A lease is renewed when this share of it has passed: two renewals may fail before it ends.
RENEW_AT = 1 / 3

#: Seconds between two tries to take a lease that somebody else has.
TRY_AGAIN = 0.2


class HeldLease:
    """A lease we hold, renewed until it is dropped. ``lost`` says why it no longer is ours."""

    def __init__(
        self, key: Key, lease: Lease, ttl: float, on_renewed: Callable[[], None], every: float
    ) -> None:
        self.key = key
        self.ttl = ttl
        self.on_renewed = on_renewed
        self.interval = min(ttl * RENEW_AT, every)
        self.due = time.monotonic() + self.interval
        self.lost: BaseException | None = None
        #: Taken by the thread that renews it, for as long as that takes.
        self.renewal = threading.Lock()
        self._lease = lease

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
    def is_parents(self) -> bool:
        """Whether it is that of the process which this one was forked from."""
        return isinstance(self.lost, LeaseHeld)

    def leave_to_parent(self) -> None:
        """In a fork: let it be the parent's alone."""
        lease, what = self._lease, f"{self.key.kind.capitalize()} {self.key.id!r}"
        msg = (
            f"{what} is open in process {os.getppid()}, and this is a fork of that: nothing was "
            "written. Let the fork return what it has found, and record it there; or give it an id "
            "of its own to open."
        )
        holder = holder_for_people(lease.holder)
        self.lost = LeaseHeld(msg, holder, from_micros(lease.until), lease.epoch)


class LeaseKeeper:
    """Renews leases in the background, from the first `keep` to the last `drop`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._reset()
        _keepers.add(self)

    def _reset(self) -> None:
        # Taken by `with self._lock`, which Python lets go whatever strikes; a condition has methods
        # for that, and an interrupt might come before they have begun.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._held: list[HeldLease] = []
        self._renewing: set[HeldLease] = set()
        self._threads: set[threading.Thread] = set()
        self._taking: dict[Key, int] = {}  # which thread is just about to take a lease

    def after_fork(self) -> None:
        """In a forked child: what is held is the parent's, to write under and to renew."""
        held = self._held
        self._reset()
        for one in held:
            one.leave_to_parent()

    def take(
        self,
        key: Key,
        ttl: float,
        *,
        agent: str | None = None,
        over: int | None = None,
        on_taken: Callable[[HeldLease], None] = lambda _: None,
        on_renewed: Callable[[], None] = lambda: None,
        every: float = 60,
    ) -> HeldLease:
        """Take the lease on *key*, and renew it until `drop`.

        *on_taken* is given it: whoever is interrupted on the way back from here has it to release.
        After each renewal, *every* so many seconds, *on_renewed* is called. In one call, which ends
        although its caller is cancelled: a lease is not left with nobody to renew or release it.
        """
        held: HeldLease | None = None
        try:
            try:
                with self._lock:
                    self._taking[key] = threading.get_ident()
                lease = self._backend.acquire(key, holder_name(agent), ttl, over=over)
                held = HeldLease(key, lease, ttl, on_renewed, every)
                with self._lock:
                    self._held.append(held)
                    self._start_thread()
                    self._changed.notify_all()
                on_taken(held)
            finally:
                with self._lock:
                    self._taking.pop(key, None)
        except BaseException as error:  # an interrupt: nobody gets to know that we have it
            if held is not None:
                self.forget(held)
                with besides(error, f"{key.kind} {key.id!r} could not be released"):
                    self._backend.release(key, held.lease)
            raise
        return held

    def knows(self, key: Key, epoch: int) -> bool:
        """Whether the lease with this *epoch* is one of ours, or may become one at this moment."""
        with self._lock:
            if self._taking.get(key, threading.get_ident()) != threading.get_ident():
                return True
            held = [*self._held, *self._renewing]
            return any(one.key == key and one._lease.epoch == epoch for one in held)  # noqa: SLF001

    def drop(self, held: HeldLease) -> None:
        """Renew it no more. On return no renewal of it is under way or to come."""
        self.forget(held)
        # Not by a thread of ours: the garbage collector may end a stream on the very one that
        # renews its lease, and it would wait for itself.
        if threading.current_thread() not in self._threads:
            with held.renewal:
                pass

    def forget(self, held: HeldLease) -> None:
        """Begin no renewal of it any more."""
        with self._lock:
            if held in self._held:
                self._held.remove(held)
            self._changed.notify_all()

    def stop(self) -> None:
        """Renew nothing more."""
        with self._lock:
            self._held.clear()
            self._changed.notify_all()
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            thread.join(timeout=5)

    # -- the threads -------------------------------------------------------------------------

    def _start_thread(self) -> None:
        """See to it that a thread is free for what is due next. Under the lock."""
        free = len(self._threads) - len(self._renewing)
        if free < 1 and len(self._threads) < MOST_THREADS:
            # A daemon, so that a task left open does not hold up the interpreter's exit.
            thread = threading.Thread(target=self._run, name="limpet-leases", daemon=True)
            try:
                self._threads.add(thread)
                thread.start()
            except BaseException:  # an interrupt: it runs, and counts itself, or never will
                self._threads.discard(thread)
                raise

    def _run(self) -> None:
        with self._lock:
            self._threads.add(threading.current_thread())
        # Not under the lock: a store that does not answer keeps one renewal waiting, and no other.
        while (held := self._next()) is not None:
            try:
                self._renew(held)
            finally:
                with self._lock:
                    self._renewing.discard(held)
                    held.renewal.release()
                    self._changed.notify_all()

    def _next(self) -> HeldLease | None:
        """The next to be renewed, when it is due; None when there is none, and the thread ends."""
        with self._lock:
            while waiting := [held for held in self._held if held not in self._renewing]:
                if len(self._threads) - len(self._renewing) > 1:
                    break  # one is enough to wait for what is due
                held = min(waiting, key=lambda held: held.due)
                wait = held.due - time.monotonic()
                if wait <= 0:
                    self._renewing.add(held)
                    held.renewal.acquire()
                    if len(waiting) > 1:
                        self._start_thread()
                    return held
                self._changed.wait(wait)
            self._threads.discard(threading.current_thread())
            return None

    def _renew(self, held: HeldLease) -> None:
        try:
            held.lease = self._backend.renew(held.key, held.lease, held.ttl)
            held.on_renewed()
        except LeaseLost as error:
            held.lost = error
            with self._lock:
                if held in self._held:
                    self._held.remove(held)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the next renewal may succeed
            # The store is away for now. Ask again soon; the writer will see the error for itself.
            held.lost = error
            held.due = time.monotonic() + held.ttl * RENEW_AT / 4
        else:
            held.lost = None
            held.due = time.monotonic() + held.interval


_keepers: weakref.WeakSet[LeaseKeeper] = weakref.WeakSet()


class LeaseLock:
    """The right to write one journal: acquired, renewed while it is needed, and released.

    Made by `Scope.lock`. What is written under it names its ``lease``, so that a process that slept
    through a takeover can write nothing more::

        async with scope.lock("board", "alice") as lock:  # LeaseHeld, if another has it
            await journal.append(("moved", "e4"), lease=lock.lease)  # LeaseLost, if it is gone

    ``held`` is the lease while it is ours. Whoever enters the block waits up to *wait* seconds for
    it. *on_renewed* is called after renewals, *every* so often.
    """

    def __init__(
        self,
        runtime: Runtime,
        keeper: LeaseKeeper,
        key: Key,
        ttl: float,
        *,
        wait: float = 0,
        agent: str | None = None,
        on_renewed: Callable[[], None] = lambda: None,
        every: float = 60,
    ) -> None:
        self._runtime = runtime
        self._keeper = keeper
        self._key = key
        self._ttl = ttl
        self._wait = wait
        self._agent = agent
        self._on_renewed = on_renewed
        self._every = every
        self.held: HeldLease | None = None

    @property
    def lease(self) -> Lease:
        """What a write relies on; `LeaseLost` if we have none."""
        if self.held is None:
            what = f"{self._key.kind} {self._key.id!r}"
            raise LeaseLost(f"The lease on {what} is not ours: it was not taken, or was released.")
        return self.held.lease

    async def __aenter__(self) -> Self:
        """Take it, and let go of it at the end of the block."""
        await self.acquire(self._wait)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give it up."""
        try:
            with besides(error, f"{self._key.kind} {self._key.id!r} could not be released"):
                await self.release()
        finally:
            await self.release()

    async def acquire(self, wait: float) -> None:
        """Take it; `LeaseHeld` if another has it for longer than *wait* seconds.

        It is taken over at once from a holder that was a process of this machine and is no more;
        and from this very process, where an interrupt or an error has left it with nobody.
        """
        deadline = time.monotonic() + wait
        over: int | None = None
        before = self.held
        try:
            while True:
                try:
                    return await self._runtime.call(self._take, over)
                except LeaseHeld as held:
                    if over != held.epoch and self._is_abandoned(held):
                        over = held.epoch
                        continue
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise
                    await self._runtime.sleep(min(left, TRY_AGAIN))
        except BaseException:  # a cancellation, an interrupt: it may be ours by now
            if self.held is not before:
                await self.release()
            raise

    def _take(self, over: int | None) -> None:
        def hold(held: HeldLease) -> None:
            self.held = held

        self._keeper.take(
            self._key,
            self._ttl,
            agent=self._agent,
            over=over,
            on_taken=hold,
            on_renewed=self._on_renewed,
            every=self._every,
        )

    def _is_abandoned(self, held: LeaseHeld) -> bool:
        if is_this_process(held.holder):
            return not any(keeper.knows(self._key, held.epoch) for keeper in _keepers)
        return is_dead(held.holder)

    def confirm(self) -> None:
        """Make sure that it is still ours, blocking; `LeaseLost` if it is not."""
        if self.held is not None:
            self._runtime.backend.renew(self.held.key, self.held.lease, self.held.ttl)

    async def release(self) -> None:
        """Give it up, if we have it.

        Where an interrupt came before that began, ``held`` is still there: call it again.
        """
        if self.held is not None and not self.is_parents:
            await self._runtime.call(self.release_now)

    def release_now(self) -> None:
        """The same, blocking."""
        held = self.held
        if held is None or held.is_parents:
            return
        try:
            self._keeper.drop(held)
        except BaseException:  # an interrupt: it must not be renewed for as long as we live
            self._keeper.forget(held)
            raise
        finally:
            self.held = None
            self._runtime.backend.release(held.key, held.lease)

    @property
    def is_parents(self) -> bool:
        """Whether we are a fork of the process that has it."""
        return self.held is not None and self.held.is_parents


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


def is_on_this_machine(holder: str) -> bool:
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
