"""What an image costs in tokens, by the rules that the providers publish.

Its size is read from the beginning of its data, where the message holds that. An image behind a
link has no size that could be known offline, and counts as the largest.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["cost", "size_of"]

Size = tuple[int, int]


# OpenAI, tiles: fitted into a square of this, then its shorter side to that, then in tiles.
SQUARE, SHORTER, TILE = 2048, 768, 512
MOST_TILES = 8
# OpenAI's smaller models, patches.
PATCH, MOST_PATCHES = 32, 1536
# Anthropic: pixels to a token, and what the longer side and the whole are brought down to.
PIXELS, LONGER, MOST = 750, 1568, 1600


class _Tiles(NamedTuple):
    base: int
    tile: int

    def __call__(self, size: Size | None, *, low: bool) -> int:
        if low:
            return self.base
        tiles = MOST_TILES
        if size is not None:
            shrink = min(1, SQUARE / max(size))
            shrink *= min(1, SHORTER / (min(size) * shrink))
            tiles = math.prod(math.ceil(side * shrink / TILE) for side in size)
        return self.base + self.tile * tiles


class _Patches(NamedTuple):
    factor: float

    def __call__(self, size: Size | None, *, low: bool) -> int:  # noqa: ARG002 - it knows no detail
        count = MOST_PATCHES
        if size is not None:
            count = math.prod(math.ceil(side / PATCH) for side in size)
        if size is not None and count > MOST_PATCHES:
            shrink = math.sqrt(PATCH**2 * MOST_PATCHES / math.prod(size)) / PATCH
            wide, high = size[0] * shrink, size[1] * shrink
            shrink = min(math.floor(wide) / wide, math.floor(high) / high)
            count = math.prod(
                max(1, math.ceil(patches * shrink - 1e-6)) for patches in (wide, high)
            )
        return math.ceil(count * self.factor)


# The first that a model's name begins with counts.
_RULES: dict[str, _Tiles | _Patches] = {
    "gpt-5-nano": _Patches(2.46),
    "gpt-5-mini": _Patches(1.62),
    "gpt-5": _Tiles(70, 140),
    "gpt-4.1-nano": _Patches(2.46),
    "gpt-4.1-mini": _Patches(1.62),
    "gpt-4o-mini": _Tiles(2833, 5667),
    "o4-mini": _Patches(1.72),
    "o1": _Tiles(75, 150),
    "o3": _Tiles(75, 150),
    "computer-use": _Tiles(65, 129),
    "": _Tiles(85, 170),
}


def cost(part: Mapping[str, Any], model: str = "") -> int:
    """How many tokens the image *part* takes: by Anthropic's rule in its shape, else by *model*'s.

    >>> cost({"type": "image_url", "image_url": {"url": "https://…", "detail": "low"}})
    85
    """
    image = part.get("image_url")
    inner = image if isinstance(image, Mapping) else part
    source = part.get("source")
    if isinstance(source, Mapping):  # Anthropic's
        size = size_of(str(source.get("data") or ""))
        if size is None:
            return MOST
        shrink = min(1, LONGER / max(size))
        return min(MOST, math.ceil(math.prod(size) * shrink**2 / PIXELS))
    url = image if isinstance(image, str) else inner.get("url")
    data = url if isinstance(url, str) and url.startswith("data:") else ""
    size = size_of(data.partition(",")[2])
    name = model.removeprefix("openai/").removeprefix("ft:")
    rule = next(rule for start, rule in _RULES.items() if name.startswith(start))
    return rule(size, low=inner.get("detail") == "low")


# -- sizes -----------------------------------------------------------------------------------------

#: Bytes that are looked at. A JPEG may have a preview of itself before its size.
HEAD = 96 * 1024


def size_of(data: str) -> Size | None:
    """Width and height of an image, from its base64 *data*; None if it does not say."""
    try:
        head = binascii.a2b_base64(data[: HEAD // 3 * 4])
    except binascii.Error:
        return None
    size: Size | None = None
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        size = _big(head[16:20]), _big(head[20:24])
    elif head.startswith(b"GIF8"):
        size = _little(head[6:8]), _little(head[8:10])
    elif head.startswith(b"RIFF"):
        size = _webp(head)
    elif head.startswith(b"\xff\xd8"):
        size = _jpeg(head)
    return size if size is not None and min(size) > 0 else None


def _webp(head: bytes) -> Size:
    kind = head[12:16]
    if kind == b"VP8X":
        return (_little(head[24:27]) + 1, _little(head[27:30]) + 1)
    if kind == b"VP8L":
        bits = _little(head[21:25])
        return ((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    return (_little(head[26:28]) & 0x3FFF, _little(head[28:30]) & 0x3FFF)


# Markers of frames, of which one has the size; the others among these numbers are tables.
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}


def _jpeg(head: bytes) -> Size | None:
    at = 2
    while at + 4 <= len(head) and head[at] == 0xFF:  # noqa: PLR2004 - what begins every marker
        if head[at + 1] in _FRAMES:
            return _big(head[at + 7 : at + 9]), _big(head[at + 5 : at + 7])
        at += 2 + max(2, _big(head[at + 2 : at + 4]))  # over the segment, by its length
    return None


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")
