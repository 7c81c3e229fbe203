"""Statements in ``.sql`` files, each under a name.

-- name: delete_journal
DELETE FROM limpet_journals WHERE journal = ?

``{name}`` in a statement stands for another one of the file, or for what its reader puts there.
"""

from __future__ import annotations

import os
import re

__all__ = ["load"]


def load(directory: str, file: str = "queries.sql", **parts: str) -> dict[str, str]:
    """The statements of a file by their names, without comments and line breaks.

    *parts* are put in where their names are in braces.
    """
    with open(os.path.join(directory, file), encoding="utf-8") as opened:
        _, *found = re.split(r"^-- name: (\w+)\n", opened.read(), flags=re.MULTILINE)
    texts = {
        name: " ".join(re.sub(r"--.*", "", text).split()).rstrip(";")
        for name, text in zip(found[::2], found[1::2], strict=True)
    }

    def filled(text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda match: filled((texts | parts)[match[1]]), text)

    return {name: filled(text) for name, text in texts.items()}
