"""Statements in ``.sql`` files, each under a name.

-- name: delete_journal
DELETE FROM limpet_journals WHERE journal = ?
"""

from __future__ import annotations

import os
import re

__all__ = ["load"]


def load(directory: str, file: str = "queries.sql") -> dict[str, str]:
    """The statements of a file by their names, without comments and line breaks."""
    with open(os.path.join(directory, file), encoding="utf-8") as opened:
        _, *parts = re.split(r"^-- name: (\w+)\n", opened.read(), flags=re.MULTILINE)
    return {
        name: " ".join(re.sub(r"--.*", "", text).split()).rstrip(";")
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }
