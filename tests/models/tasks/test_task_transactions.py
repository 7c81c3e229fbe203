"""Exactly once: a step and the user's own rows are committed together."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import LeaseLost, Retry, current_step
from limpet.errors import (
    EffectsWarning,
    NotTransactional,
    TaskFinished,
    TaskNotOpen,
    TransactionMisused,
)
from tests.support.dying import Calls, ended_by

GOAL = "Pay the invoice"
PAY = "INSERT INTO payments VALUES ('invoice 7')"


class Boom(Exception):
    """What goes wrong in these tests."""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store whose database has a table of the user's."""
    if request.param == "sqlite":
        found = f"sqlite:{tmp_path / 'db'}"
    else:
        found = request.getfixturevalue("postgresql_server").place()
    with limpet.open(found) as store, store.task("set-up", GOAL) as task:
        task.transaction("table", made)
    yield found
    with limpet.open(found) as store, store.task("tear-down", GOAL) as task:
        task.transaction("table", dropped)


def crash() -> None:
    """Let it go wrong here."""
    raise Boom


def made(connection: Any) -> None:
    """The user's table."""
    connection.execute("CREATE TABLE payments (what TEXT PRIMARY KEY)")


def dropped(connection: Any) -> None:
    """Nothing is left."""
    connection.execute("DROP TABLE payments")


def payments(url: str) -> list[str]:
    """The user's rows."""
    found: list[str] = []

    def look(connection: Any) -> None:
        found.extend(row[0] for row in connection.execute("SELECT what FROM payments"))

    with limpet.open(url) as store, store.task("look", GOAL) as task:
        task.transaction("look", look)
        task.finish(keep=False)
    return found


def test_a_step_and_its_rows_are_committed_together(url: str) -> None:
    """And a resumed task finds both, and pays nothing again."""

    def pay(connection: Any, what: str) -> str:
        connection.execute(PAY)
        return f"{current_step().name} paid {what}"

    with limpet.open(url) as store:
        for _ in range(2):
            with store.task("t", GOAL) as task:
                assert task.transaction("pay", pay, "all") == "pay paid all"
                assert task.results == {"pay": "pay paid all"}
    assert payments(url) == ["invoice 7"]


def test_an_error_leaves_neither_rows_nor_result(url: str) -> None:
    """The step can be run again."""

    def pay(connection: Any) -> None:
        connection.execute(PAY)
        raise Boom

    with limpet.open(url) as store:
        with pytest.raises(Boom), store.task("t", GOAL) as task:
            task.transaction("pay", pay)
        assert payments(url) == []
        with store.task("t") as task:
            assert task.results == {}


def test_a_transaction_can_be_a_block(url: str) -> None:
    """Whose body asks whether it has been done."""
    with limpet.open(url) as store:
        for run in range(2):
            with store.task("t", GOAL) as task:
                with task.transaction("pay") as pay:
                    assert pay.done is bool(run)
                    if not pay.done:
                        pay.execute(PAY)
                        pay.result = "receipt"
                assert pay.result == "receipt"
                assert task.results == {"pay": "receipt"}
        with store.task("t") as task:
            with task.transaction("pay") as pay, pytest.raises(TaskFinished, match=r"if not it\."):
                pay.execute(PAY)
            with ended_by(Boom, task.transaction("again")) as again:
                again.connection.execute("DELETE FROM payments")
                crash()
    assert payments(url) == ["invoice 7"]


def test_a_block_is_the_current_step(url: str) -> None:
    """Within it, and no longer; also if it did not end well."""
    with limpet.open(url) as store, store.task("t", GOAL) as task:
        with task.transaction("pay") as pay:
            pay.result = current_step().name
        assert pay.result == "pay"
        with ended_by(Boom, task.transaction("again")):
            assert current_step().name == "again"
            crash()
        with pytest.raises(TaskNotOpen):
            current_step()


def test_what_would_not_be_part_of_a_transaction_is_refused_within_it(url: str) -> None:
    """It would wait for itself; nothing of the transaction is kept."""

    def within(connection: Any, function: Callable[[], Any]) -> None:
        connection.execute(PAY)
        function()

    def in_a_block(function: Callable[[], Any]) -> None:
        with task.transaction("block") as block:
            within(block, function)

    with limpet.open(url) as store, store.task("t", GOAL) as task:
        for write in (
            lambda: task.step("inner", Calls()),
            lambda: task.decide("pay"),
            lambda: task.wait_for("approval"),
            lambda: task.transaction("inner", Calls()),
            lambda: store.signal("t", "approval"),
            lambda: current_step().progress(0.5, now=True),
        ):
            with pytest.raises(TransactionMisused):
                task.transaction("pay", within, write)
            with pytest.raises(TransactionMisused):
                in_a_block(write)
        assert task.transaction("look", lambda c: task.checkpoint().completed) == []
        assert task.step("outer", lambda: task.transaction("inner", lambda c: 5)) == 5
        assert list(task.results) == ["look", "outer/inner", "outer"]
    assert payments(url) == []


def test_a_transaction_can_be_awaited(url: str) -> None:
    """Its function runs on one thread, from beginning to end."""

    async def main() -> None:
        async with limpet.open_async(url) as store:
            for _ in range(2):
                async with store.task("t", GOAL) as task:
                    found = await task.transaction(
                        "pay", lambda c: c.execute(PAY) and current_step().name
                    )
                    assert found == "pay"
                    with pytest.raises(TypeError, match="as a function"):
                        await task.transaction("block")  # type: ignore[call-overload]

    asyncio.run(main())
    assert payments(url) == ["invoice 7"]


def test_a_worker_that_was_fenced_off_pays_nothing(url: str) -> None:
    """Its rows go with its step."""
    with limpet.open(url) as store:

        def pay(connection: Any) -> None:
            connection.execute(PAY)

        with ended_by(LeaseLost, store.task("t", GOAL)) as task:
            with limpet.open(url) as other:
                other.task("t").delete()
            task.transaction("pay", pay)
    assert payments(url) == []


def test_a_backend_without_transactions_says_which_have_them() -> None:
    """Before anything is done."""
    pay = Calls()
    with limpet.open("memory:") as store, store.task("t", GOAL) as task:
        with pytest.raises(NotTransactional, match="SQLite and PostgreSQL"):
            task.transaction("pay", pay)
        with pytest.raises(NotTransactional), task.transaction("pay"):
            pass
    assert pay.calls == []


def test_a_commit_whose_answer_was_lost_counts_once(tmp_path: Path) -> None:
    """The second try finds it by its id, and what was recorded is what counts."""
    with limpet.open(tmp_path / "db") as store, store.task("t", GOAL) as task:
        receipts = iter(["first", "second"])
        task.transaction("table", made)
        with pytest.raises(Boom):
            _losing_the_answer(task, lambda c: c.execute(PAY) and next(receipts))
        task.runner.live.run.seen.clear()
        assert task.transaction("pay", lambda c: c.execute("SELECT 1") and next(receipts)) == (
            "first"
        )
        name = "x" * 510
        assert task.transaction(name, lambda c: c.execute("SELECT 1") and 1) == 1


def _losing_the_answer(task: limpet.Task, function: Any) -> None:
    """Commit, and fail before anybody knows."""
    backend: Any = task.scope.backend
    transaction = backend.transaction

    @contextmanager
    def losing() -> Iterator[Any]:
        with transaction() as opened:
            yield opened
        raise Boom

    backend.transaction = losing
    try:
        task.transaction("pay", function)
    finally:
        backend.transaction = transaction


def test_a_transaction_is_tried_again_if_it_is_told_so(url: str) -> None:
    """Nothing of the first try is kept, but that it failed."""
    tries = []

    def pay(connection: Any) -> str:
        connection.execute(PAY)
        tries.append(current_step().attempt)
        if len(tries) < 3:
            raise Boom
        return "receipt"

    with limpet.open(url) as store, store.task("t", GOAL) as task:
        assert task.transaction("pay", pay, retry=Retry(attempts=3, wait=0)) == "receipt"
    assert tries == [1, 2, 3]
    assert payments(url) == ["invoice 7"]


def test_a_transaction_after_a_rewind_is_another(url: str) -> None:
    """It warns of the rows that stay, and writes its own."""
    with limpet.open(url) as store, store.task("t", GOAL) as task:
        task.transaction("pay", lambda c: c.execute(PAY) and "first")
        with pytest.warns(EffectsWarning, match="pay"):
            task.versions.rewind(step="pay")
        assert task.transaction("pay", lambda c: c.execute("SELECT 1") and "second") == "second"
    assert payments(url) == ["invoice 7"]
