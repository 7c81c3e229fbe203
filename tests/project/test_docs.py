"""The documentation: nothing public is missing from the reference, and the site can be built."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import limpet
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def is_error(name: str) -> bool:
    """Whether a public name is one of those that the page about errors has, all of them at once."""
    found = getattr(limpet, name)
    return inspect.isclass(found) and issubclass(found, BaseException)


def test_the_reference_has_every_public_name() -> None:
    """What can be imported can be looked up."""
    text = "".join(path.read_text("utf-8") for path in (DOCS / "reference").glob("*.md"))
    shown = set(re.findall(r"^::: limpet\.(\w+)$", text, flags=re.MULTILINE))
    names = {name for name in limpet.__all__ if not is_error(name)}
    assert names - shown == set()


def test_every_page_can_be_reached_from_the_navigation() -> None:
    """A page that nobody finds is not documentation."""
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert [page for page in PAGES if f": {page}\n" not in navigation] == []


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """As ``make docs`` does; and a method of a sync class has its parameters and its docstring."""
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        build, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "reference" / "conversations.html").read_text("utf-8")
    text = re.sub(r"<[^>]+>", "", page)
    assert re.search(r"append\(\s*\*messages: object,\s*expect: int \| None = None,", text)
    assert "Add messages at the end, all or none" in text
    assert re.search(r"fork\(\s*id: str, \*, at: int \| None = None\s*\) -&gt; Conversation", text)
