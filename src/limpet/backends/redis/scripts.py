"""The Lua scripts, by name. What they do is written in them: see the folder ``lua``."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from typing import NamedTuple

__all__ = ["Script", "script"]

FOLDER = os.path.join(os.path.dirname(__file__), "lua")


class Script(NamedTuple):
    """A script, and the name by which a server knows it once it has seen it."""

    text: bytes
    sha: bytes


@cache
def script(name: str) -> Script:
    """``lua/NAME.lua``, with ``common.lua`` behind its first line, which holds its flags."""
    flags, _, body = _file(name).partition(b"\n")
    text = b"\n".join((flags, _file("common"), body))
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


def _file(name: str) -> bytes:
    with open(os.path.join(FOLDER, f"{name}.lua"), "rb") as file:
        return file.read()
