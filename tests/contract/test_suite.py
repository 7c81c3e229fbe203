"""The conformance suite itself: a backend that breaks a promise fails the test of that promise."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pytest

from limpet.backends.memory import MemoryBackend
from limpet.backends.sqlite.backend import SqliteBackend
from limpet.errors import LimpetError
from limpet.testing.conformance import BackendContract, Caller

if TYPE_CHECKING:
    from pathlib import Path

    from limpet.backends.contract import Backend, Key

FAILED = (AssertionError, LimpetError, pytest.fail.Exception)


class _WritesReadOnly(SqliteBackend):
    """Takes ``readonly`` and forgets it."""

    def __init__(self, path: str, *, readonly: bool = False, create: bool = True) -> None:
        super().__init__(path, create=create and not readonly)


class _CreatesAlways(SqliteBackend):
    """Takes ``create`` and forgets it."""

    def __init__(self, path: str, *, create: bool = True, readonly: bool = False) -> None:
        del create
        SqliteBackend(path).close()
        super().__init__(path, readonly=readonly)


class _IgnoresOptions(SqliteBackend):
    """Hears only what the URL says."""

    @classmethod
    def from_url(cls, url: str, **_options: Any) -> Self:
        return super().from_url(url)


class _IgnoresParameters(SqliteBackend):
    """Hears only what the options say."""

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        return super().from_url(url.partition("?")[0], **options)


class _OpensAnother(SqliteBackend):
    """Opens a new file each time."""

    opened: ClassVar[int] = 0

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        _OpensAnother.opened += 1
        return super().from_url(f"{url}-{_OpensAnother.opened}", **{**options, "readonly": False})


class _IgnoresExpiry(MemoryBackend):
    """Leaves an expired journal to readers: they do not see it, and writers go on with it."""

    def _live(self, key: Key, now: int) -> Any:
        del now
        return self._journals.get(key)


class _SweepsLeases(MemoryBackend):
    """Takes a lease alone for rubbish."""

    def sweep(self, limit: int = 1000) -> int:
        freed = super().sweep(limit)
        self._journals = {key: one for key, one in self._journals.items() if one.head.seq}
        return freed


class _SweepsEverything(MemoryBackend):
    """Takes the limit for a hint."""

    def sweep(self, limit: int = 1000) -> int:
        return super().sweep(limit + 1000)


class _ClaimsTransactions(MemoryBackend):
    """Says that it has what it has not."""

    transactional: ClassVar[bool] = True


class _DeniesTransactions(SqliteBackend):
    """Says that it has not what it has."""

    transactional: ClassVar[bool] = False


@pytest.mark.parametrize(
    ("broken", "test", "arguments"),
    [
        (_WritesReadOnly, "a_store_opened_read_only_is_read_and_not_written", [None]),
        (
            _CreatesAlways,
            "a_store_that_is_not_there_is_not_found_and_not_created",
            ["create=false"],
        ),
        (
            _CreatesAlways,
            "a_store_that_is_not_there_is_not_found_and_not_created",
            ["readonly=true"],
        ),
        (_IgnoresOptions, "an_option_goes_before_the_same_parameter_of_the_url", []),
        (_IgnoresParameters, "an_option_goes_before_the_same_parameter_of_the_url", []),
        (_IgnoresParameters, "an_unknown_parameter_of_a_url_is_refused", []),
        (_OpensAnother, "a_url_opens_the_store_that_was_written_under_it", []),
    ],
)
def test_a_backend_that_opens_wrongly_is_found_out(
    broken: type[Backend], test: str, arguments: list[Any], tmp_path: Path
) -> None:
    """And one that does not break the promise passes the same test."""
    run_test(SqliteBackend, test, f"sqlite:{tmp_path}/right.db", *arguments)
    with pytest.raises(FAILED):
        run_test(broken, test, f"sqlite:{tmp_path}/broken.db", *arguments)


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (_IgnoresExpiry, "a_lease_on_an_expired_journal_brings_nothing_of_it_back"),
        (_IgnoresExpiry, "compacting_an_expired_journal_does_nothing"),
        (_SweepsLeases, "a_sweep_leaves_a_lease_that_is_valid"),
        (_SweepsEverything, "a_sweep_frees_no_more_than_its_limit"),
        (_ClaimsTransactions, "a_backend_has_transactions_if_it_says_so"),
    ],
)
def test_a_backend_that_breaks_a_promise_is_found_out(broken: type[Backend], test: str) -> None:
    """The same for what is called."""
    with closing(Caller(MemoryBackend(), None)) as store:
        run_test(MemoryBackend, test, store)
    with closing(Caller(broken.from_url("memory:"), None)) as store, pytest.raises(FAILED):
        run_test(broken, test, store)


def test_a_backend_that_denies_its_transactions_is_found_out(tmp_path: Path) -> None:
    """Callers would do without what they could have."""
    with closing(Caller(_DeniesTransactions(str(tmp_path / "a.db")), None)) as store:
        for test in (
            "a_backend_has_transactions_if_it_says_so",
            "appends_to_several_journals_are_one_act",
        ):
            with pytest.raises(FAILED):
                run_test(_DeniesTransactions, test, store)


def run_test(backend: type[Backend], test: str, *arguments: Any) -> None:
    """Run one test of the suite on *backend*."""
    suite = BackendContract()
    suite.backend = backend
    getattr(suite, f"test_{test}")(*arguments)
