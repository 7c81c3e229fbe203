"""Processes that die with the tests, and what they need."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import time
import traceback
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["alive", "children_of", "free_port", "in_a_process", "kill", "mortal", "roomy", "until"]

HOST = "127.0.0.1"
PATIENCE = 60.0  # seconds; Java on a busy machine needs some to start


def free_port() -> int:
    """A port that nobody listens on, and that no connection is given by chance.

    A client that looks for a server that is away would otherwise, sooner or later, be given the
    very port that it looks for, and find itself.
    """
    while True:
        port = SystemRandom().randrange(12_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port


def roomy(directory: str, size: int) -> str | None:
    """*directory*, if it is there and has room for *size* bytes."""
    there = os.access(directory, os.W_OK) and shutil.disk_usage(directory).free > size
    return directory if there else None


def mortal(dying: signal.Signals, user: int | None) -> list[str]:
    """What goes before a command so that it gets the signal *dying* when we die; as *user*."""
    if shutil.which("setpriv") is None:  # not Linux, and hence no need for another user
        return []
    with_us = ["setpriv", f"--pdeathsig={dying.name.removeprefix('SIG')}"]
    if user is None:
        return with_us
    group = pwd.getpwuid(user).pw_gid
    return [*with_us, f"--reuid={user}", f"--regid={group}", "--clear-groups"]


def until(condition: Callable[[], bool]) -> bool:
    """Wait until *condition* holds; False if that takes too long."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def in_a_process(function: Callable[[], Any]) -> tuple[int, Any]:
    """What *function* returned in a child of this process; or the signal that ended it."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read)
            with os.fdopen(write, "w") as file:
                json.dump(function(), file)
            code = 0
        except BaseException:  # noqa: BLE001 - the parent sees the code, people the traceback
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as file:
        said = file.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status), None
    if os.WEXITSTATUS(status):
        raise AssertionError("it failed; its traceback is above, or in the captured output")
    return 0, json.loads(said)


def children_of(pid: int) -> list[int]:
    """The processes that *pid* has started, as far as the system tells."""
    numbers = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [number for number in numbers if _stat(number)[1:2] == [str(pid)]]


def alive(pid: int) -> bool:
    """Whether there is such a process."""
    return _stat(pid)[:1] not in ([], ["Z"])  # one that is only not yet buried is dead


def _stat(pid: int) -> list[str]:
    """State, parent and more; nothing if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def kill(pid: int) -> None:
    """End it, if it is there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
