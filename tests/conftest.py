"""The servers of `support.servers` as fixtures: started when a test asks, once a session."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support.servers import AWS_ENVIRONMENT, SHARED, close_shared, shared

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers import Server


# Its suites are to say what was expected, and what came.
pytest.register_assert_rewrite("limpet.testing")

# How long a machine takes says nothing about Limpet.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# A run in the background ignores Ctrl-C, and so would the commands that are tested with it.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: What takes seconds, by how its id begins, and why it does. Only `make test` runs it.
SLOW = {
    "tests/contract/test_backends.py::TestMemoryMachine": "plays many random games",
    "tests/integrations/autogen/test_autogen": "runs teams of a framework",
    "tests/contract/test_backends.py::TestSqliteMachine": "plays many random games",
    "tests/contract/test_backends.py::test_a_backend_of_ones_own": "installs a package",
    "tests/cli/test_cli.py::test_control_characters_are_written_out_in_a_real": "starts terminals",
    "tests/cli/test_cli.py::test_following": "waits for what it follows",
    "tests/cli/test_cli.py::test_output_fits": "starts terminals",
    "tests/cli/test_demo.py": "watches the demo, which takes its time",
    "tests/test_dispatch_": "runs engines",
    "tests/contract/dynamodb/test_dynamodb.py": "talks to a server throughout",
    "tests/contract/dynamodb/test_dynamodb_expiry.py": "talks to a server throughout",
    "tests/models/test_everywhere.py": "does on each backend what the tests of each noun do on one",
    "tests/contract/sqlite/test_faults.py": "fails the disk at one write after the other",
    "tests/contract/test_fencing.py": "waits for leases to end, in many processes",
    "tests/contract/file/test_file.py::TestFileMachine": "plays many random games",
    "tests/models/transfer/test_import.py::test_whatever": "reads many random files",
    "tests/contract/test_linear.py::test_the_checker_and_a_search": "goes through all orders",
    "tests/crash/test_matrix.py": "kills a task at each of its writes",
    "tests/unit/test_messages_convert.py": "asks the providers' own packages, which are large",
    "tests/unit/test_messages_repair.py::test_what_a_crash": "tries many random histories",
    "tests/integrations/mcp/test_mcp.py": "starts servers and clients",
    "tests/models/memory/test_memory": "a part of its own, with an index to build",
    "tests/network/test_network.py": "talks to a server throughout",
    "tests/integrations/openai/test_openai": "talks to a server of its own",
    "tests/contract/postgresql/test_postgresql": "talks to a server throughout",
    "tests/models/tasks/test_recovery.py::test_every_line": "tries many random tasks",
    "tests/models/tasks/test_recovery.py::test_it_never": "tries many random tasks",
    "tests/models/tasks/test_recovery.py::test_nothing_is_left": "tries many random tasks",
    "tests/models/tasks/test_recovery.py::test_the_same_state": "tries many random tasks",
    "tests/contract/redis/test_redis_servers.py": "talks to a server throughout",
    "tests/crash/test_restart.py": "talks to a server throughout",
    "tests/network/test_servers.py": "talks to a server throughout",
    "tests/contract/sqlite/test_sqlite.py::test_a_forked_child_can_hold_tasks": "waits for leases to end",  # noqa: E501
    "tests/contract/sqlite/test_sqlite.py::test_a_store_left_open": "starts many processes",
    "tests/contract/sqlite/test_sqlite.py::test_processes": "starts many processes",
    "tests/models/tasks/test_task.py::test_a_lease_renews_itself": "waits for leases to be renewed",
    "tests/contract/test_transactions.py::test_a_killed": "starts many processes",
    "tests/contract/test_transactions.py::test_a_power_cut": "cuts the power many times",
    "tests/contract/test_transactions.py::test_transactions_of_many_processes": "starts many processes",  # noqa: E501
    "tests/models/states/test_state.py": "a part of its own, in many combinations",
    "tests/models/workers/test_worker.py": "starts workers",
    "tests/models/workers/test_work_kills.py": "kills workers for half a minute",
    "tests/models/workers/test_worker.py::test_a_poison": "starts many processes",
    "tests/models/workers/test_worker.py::test_a_process": "starts processes, and waits for them to end",  # noqa: E501
    "tests/models/workers/test_worker_examples.py": "starts many processes",
    "tests/models/conversations/test_window.py::test_it_fits": "tries many random conversations",
    "tests/models/conversations/test_window.py::test_it_is_what_reading": "tries many random conversations",  # noqa: E501
}


#: Files that take long, longest first: begun last, one process would be alone with them at the end.
LONG = (
    "tests/crash/test_restart.py",
    "tests/models/transfer/test_copy.py",
    "tests/integrations/autogen/test_autogen_kills.py",
    "tests/models/test_everywhere.py",
    "tests/contract/dynamodb/test_dynamodb",
    "tests/crash/test_crash.py",
    "tests/integrations/openai/test_openai_crash.py",
    "tests/crash/test_matrix.py",
    "tests/contract/test_transactions.py",
    "tests/models/states/test_state.py",
    "tests/network/test_servers.py",
    "tests/network/test_network.py",
    "tests/contract/test_fencing.py",
    "tests/test_file_",
    "tests/models/tasks/test_task_remember.py",
    "tests/test_work",
    "tests/integrations/autogen/test_autogen",
    "tests/integrations/openai_agents/test_openai_agents",
    "tests/integrations/engines/test_dispatch",
    "tests/contract/test_linear.py",
)


#: A test of a noun runs over two backends and both faces; two of the four are enough at first.
THE_OTHER_WAY = ("[memory-async]", "[sqlite-sync]")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where slow tests are left out, do not even import files that have no others."""
    whole = tuple(name for name in SLOW if "::" not in name)
    left_out = "not slow" in config.option.markexpr
    return (left_out and f"tests/{collection_path.name}".startswith(whole)) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, and mark what `make test-fast` is to leave out."""
    items.sort(key=_place)
    for item in items:
        if not SHARED.keys().isdisjoint(_asks_for(item)):
            item.add_marker(pytest.mark.server)
        if item.nodeid.startswith(tuple(SLOW)) or item.nodeid.endswith(THE_OTHER_WAY):
            item.add_marker(pytest.mark.slow)


def _place(item: pytest.Item) -> int:
    return next((at for at, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG))


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
