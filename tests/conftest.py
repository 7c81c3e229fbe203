"""The servers of `tests.servers` as fixtures: started when a test asks, once for the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.servers import AWS_ENVIRONMENT, SHARED, close_shared, shared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a server, so that `make test-fast` can leave it out."""
    for item in items:
        if SHARED.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.server)


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
