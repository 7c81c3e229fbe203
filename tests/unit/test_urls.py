"""URLs of stores: what they name, and what of them may be shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import limpet
from limpet.backends.url import safe_url
from limpet.errors import InvalidURL

if TYPE_CHECKING:
    from pathlib import Path

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
        f"redis://u:two\nlines{SECRET}@host",
        f"dynamodb://u:{SECRET}@table",
        f"file://u:{SECRET}@host/state",
        f"sqlite://u:{SECRET}@host",
        f"//u:{SECRET}@host",
        f"agents.db?passwd={SECRET}",
        f"memory:?passwd={SECRET}",
    ],
)
def test_no_part_of_a_url_that_may_be_a_secret_is_shown(url: str) -> None:
    """Errors are pasted into tickets."""
    assert SECRET not in safe_url(url)
    with pytest.raises(limpet.LimpetError) as caught:
        limpet.open(url, timeout=0.01)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "scheme", ["", "sqlite:", "file:", "redis://", "postgresql://", "dynamodb://", "memory:"]
)
@pytest.mark.parametrize("nul", ["\0", "%00"])
def test_a_nul_in_a_name_is_an_invalid_url(
    scheme: str, nul: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a bare ValueError of the operating system, and nothing is made up to the NUL."""
    monkeypatch.chdir(tmp_path)
    if (scheme, nul) != ("", "%00"):  # which is a file's good name
        with pytest.raises(InvalidURL, match="NUL"):
            limpet.open(f"{scheme}a{nul}b")
    assert list(tmp_path.iterdir()) == []


def test_a_path_object_is_taken_as_it_is(tmp_path: Path) -> None:
    """With a NUL it is refused; what would mean something in a URL means nothing in a path."""
    with pytest.raises(InvalidURL, match="NUL"):
        limpet.open(tmp_path / "a\0b.db")
    for name in ("a%00b.db", "a?passwd=x.db", "redis:u:x@host"):
        limpet.open(tmp_path / name).close()
        assert (tmp_path / name).is_file()


def test_what_helps_to_see_what_is_wrong_is_shown() -> None:
    """Where it is, and what is asked of it."""
    url = "postgresql://ann@db:5432/agents?schema=limpet&timeout=3"
    assert safe_url(url) == url
    assert safe_url("file:state?durability=full") == "file:state?durability=full"
