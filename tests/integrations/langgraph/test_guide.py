"""The guide: its sessions print what they show."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[3] / "docs" / "langgraph.md"


@pytest.mark.slow
def test_the_sessions_of_the_guide_print_what_they_show() -> None:
    """One after the other, as somebody would type them who follows the page."""
    blocks = re.findall(r"^```pycon\n(.*?)^```", GUIDE.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "langgraph.md", str(GUIDE), 0)
    assert doctest.DocTestRunner().run(test).failed == 0
