"""URLs of stores: what they name, and what of them may be shown."""

from __future__ import annotations

import pytest

import limpet
from limpet.backends.url import safe_url

SECRET = "hunter2"  # noqa: S105 - of nobody


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{SECRET}@db/agents",
        f"postgresql://ann:a@b?{SECRET}@db/agents",
        f"redis:u:{SECRET}@host",
        f"redis://:{SECRET}@host",
        f"postgresql://db/agents?password={SECRET}",
        f"postgresql://db/agents?passwd={SECRET}&timeout=3",
        f"dynamodb://table?aws_secret_access_key={SECRET}",
        f"redis://host?apikey={SECRET}",
        f"nosuch:u:{SECRET}@host?x={SECRET}",
    ],
)
def test_no_part_of_a_url_that_may_be_a_secret_is_shown(url: str) -> None:
    """Errors are pasted into tickets."""
    assert SECRET not in safe_url(url)
    with pytest.raises(limpet.LimpetError) as caught:
        limpet.open(url, timeout=0.01)
    assert SECRET not in str(caught.value)


def test_what_helps_to_see_what_is_wrong_is_shown() -> None:
    """Where it is, and what is asked of it."""
    url = "postgresql://ann@db:5432/agents?schema=limpet&timeout=3"
    assert safe_url(url) == url
    assert safe_url("file:state?durability=full") == "file:state?durability=full"
