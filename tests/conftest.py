"""The servers of `support.servers` as fixtures: started when a test asks, once a session."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support.servers import AWS_ENVIRONMENT, SHARED, close_shared, shared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest.terminal import TerminalReporter

    from tests.support.servers import Server


# Its suites are to say what was expected, and what came.
pytest.register_assert_rewrite("limpet.testing")

from limpet.testing.crash import experiments, soak  # noqa: E402 - after it is registered

# How long a machine takes says nothing about Limpet.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# A run in the background ignores Ctrl-C, and so would the commands that are tested with it.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: The marks of tests that take long.
TAKE_TIME = ("server", "slow", "soak")

#: The fixtures behind which is something that `tools/servers` installs.
TO_INSTALL = {*SHARED, "browser"}

#: Where every test takes its time: processes are killed, networks cut.
SLOW_DIRECTORIES = {"crash", "network"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a server or lies in a slow directory, and begin with what takes longest.

    Begun last, one process would be alone with it at the end.
    """
    for item in items:
        if not TO_INSTALL.isdisjoint(_asks_for(item)):
            item.add_marker(pytest.mark.server)
        if item.path.parent.name in SLOW_DIRECTORIES:
            item.add_marker(pytest.mark.slow)
    slow = Counter(item.path for item in items if any(map(item.get_closest_marker, TAKE_TIME)))
    items.sort(key=lambda item: -slow[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Note with each test how many kills and power losses it went through."""
    before = experiments.copy()
    try:
        yield
    finally:
        item.user_properties.extend((experiments - before).items())


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Say how many there were in all, and from which seed."""
    total: Counter[str] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            if report.when == "call":
                total.update(dict(report.user_properties))
    if total:
        counts = ", ".join(f"{count:,} {what}" for what, count in sorted(total.items()))
        seed = os.environ.get("LIMPET_SEED", "one for each test")
        terminalreporter.write_line(f"Experiments: {counts} (rounds: {soak()}, seed: {seed})")


def _asks_for(item: pytest.Item) -> Iterator[object]:
    """Its fixtures, and its parameters: some name a fixture that is found while the test runs."""
    yield from getattr(item, "fixturenames", ())
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        yield from (value for value in item.callspec.params.values() if isinstance(value, str))


@pytest.fixture(scope="session")
def _servers() -> Iterator[None]:
    """Ends them all with the session."""
    yield
    close_shared()


@pytest.fixture(scope="session")
def postgresql_server(_servers: None) -> Server:
    """A PostgreSQL server."""
    return shared("postgresql_server")


@pytest.fixture(scope="session")
def redis_server(_servers: None) -> Server:
    """A Redis server that syncs at every write."""
    return shared("redis_server")


@pytest.fixture(scope="session")
def redis_cluster(_servers: None) -> Server:
    """Three Redis servers that share the keys."""
    return shared("redis_cluster")


@pytest.fixture(scope="session")
def valkey_server(_servers: None) -> Server:
    """A Valkey server."""
    return shared("valkey_server")


@pytest.fixture(scope="session")
def aws_environment() -> Iterator[None]:
    """Credentials that nobody checks, and none of those that this machine has."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB"):
            patch.delenv(name, raising=False)
        for name, value in AWS_ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def dynamodb_server(_servers: None, aws_environment: None) -> Server:
    """A DynamoDB server, and credentials for it in the environment."""
    return shared("dynamodb_server")
