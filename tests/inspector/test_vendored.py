"""What others wrote and the inspector carries."""

from __future__ import annotations

import hashlib
import re

from tests.support.paths import ROOT

STATIC = ROOT / "src" / "limpet" / "inspector" / "static"


def test_what_others_wrote_is_what_they_published() -> None:
    """Nobody reviews minified code: its hash must be the published one's, and its origin named."""
    told = re.findall(
        r"^\| `(\S+)` .* `([0-9a-f]{64})` \|$",
        (STATIC / "VENDORED.md").read_text("utf-8"),
        re.MULTILINE,
    )
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in STATIC.glob("*.min.*")
    }
    assert found
    assert found == dict(told)
