"""One browser for all tests of pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.browser import chromium, connected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def _chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The system's Chromium."""
    with chromium(tmp_path_factory.mktemp("chromium")) as address:
        yield address


@pytest.fixture
def browser(_chromium: str) -> Iterator[Browser]:
    """The same, as one test uses it."""
    with connected(_chromium) as found:
        yield found
