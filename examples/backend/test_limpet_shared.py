"""The example backend, held to the contract: these two are all the tests it needs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from limpet_shared import SharedBackend

from limpet.testing.conformance import BackendContract
from limpet.testing.machine import contract_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.backends.contract import Backend


class TestShared(BackendContract):
    """Every promise of the contract, by blocking calls and by the async path."""

    backend = SharedBackend

    @pytest.fixture
    def url(self) -> str:
        """A name that nobody has used."""
        return f"shared:{uuid4().hex}"


@contextmanager
def a_name() -> Iterator[Callable[[], Backend]]:
    """The same for the state machine."""
    name = uuid4().hex
    yield lambda: SharedBackend(name)


TestSharedMachine = contract_machine(a_name, examples=20)
