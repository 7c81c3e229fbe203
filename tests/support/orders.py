"""The app of `test_work_kills.py`: orders whose charges must each happen once.

``limpet work tests.support.orders:registry`` runs them. Charges are rows of the user's own, outside
of Limpet; $ORDERS_LEDGER says where. With $ORDERS_LEASE seconds of a lease, workers behave as on
machines of their own: none knows that another's process has died, and each lease runs to its end.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import limpet
from limpet.core import leases

if TYPE_CHECKING:
    from limpet import AsyncTask, Task

__all__ = ["NAP", "PARTS", "Ledger", "registry"]

#: Seconds. What a step takes.
NAP = 0.25
PARTS = 8

#: Seconds of a lease.
LEASE = float(os.environ.get("ORDERS_LEASE") or 60)

registry = limpet.Registry()

if os.environ.get("ORDERS_LEASE"):
    leases._mark = lambda pid: ""  # no machine knows the processes of another


class Ledger:
    """A table of charges by idempotency key, which does not mind if a key comes twice."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._connection: Any = None

    def _run(self, sql: str, *values: str) -> list[Any]:
        with self._lock, closing(self._connect().cursor()) as cursor:
            cursor.execute(sql if self._is_postgres else sql.replace("%s", "?"), values)
            return cursor.fetchall() if cursor.description else []

    @property
    def _is_postgres(self) -> bool:
        return self._url.startswith("postgresql:")

    def _connect(self) -> Any:
        if self._connection is None and self._is_postgres:
            import psycopg  # noqa: PLC0415 - only where it is needed

            self._connection = psycopg.connect(self._url, autocommit=True)
        elif self._connection is None:
            self._connection = sqlite3.connect(
                self._url, isolation_level=None, check_same_thread=False, timeout=60
            )
        return self._connection

    def create(self) -> None:
        """Make the table."""
        self._run("CREATE TABLE charges (key TEXT)")

    def add(self, key: str) -> None:
        """Charge."""
        self._run("INSERT INTO charges VALUES (%s)", key)

    def find(self, key: str) -> str | None:
        """The key, if it was charged."""
        return key if self._run("SELECT key FROM charges WHERE key = %s", key) else None

    def all(self) -> list[str]:
        """Every charge that was made."""
        return [key for (key,) in self._run("SELECT key FROM charges ORDER BY key")]

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()


ledger = Ledger(os.environ.get("ORDERS_LEDGER", ""))


def charge() -> str:
    """The effect that must happen once. It may be cut short before it, and after it."""
    key = limpet.current_step().idempotency_key
    time.sleep(NAP / 2)
    ledger.add(key)
    time.sleep(NAP / 2)
    return key


@registry.task("order", lease=LEASE)
def order(task: Task) -> int:
    """An order of a few parts."""
    for part in range(PARTS):
        task.step(f"pack-{part}", time.sleep, NAP)
        task.step(f"charge-{part}", charge, in_doubt="verify", verify=ledger.find)
    return PARTS


@registry.task("order-async", lease=LEASE)
async def order_async(task: AsyncTask) -> int:
    """The same, awaited."""
    import asyncio  # noqa: PLC0415 - as in an app that has nothing else async

    async def later() -> str:
        # Threads do not know which step is running unless the context goes with them: it does.
        return await asyncio.to_thread(charge)

    for part in range(PARTS):
        await task.step(f"pack-{part}", asyncio.sleep, NAP)
        await task.step(f"charge-{part}", later, in_doubt="verify", verify=ledger.find)
    return PARTS
