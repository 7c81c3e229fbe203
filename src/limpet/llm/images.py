"""What an image costs in tokens, by the rules that the providers publish.

Its size is read from the beginning of its data, where the message holds that. An image behind a
link has no size that could be known offline, and counts as the largest.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["cost", "is_image", "size_of"]

Size = tuple[int, int]

#: Parts of a message that are an image: of Chat Completions, of Responses, of Anthropic.
_KINDS = ("image_url", "input_image", "image")

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
        return self.base + self.tile * (MOST_TILES if size is None else _tiles(*size))


class _Patches(NamedTuple):
    factor: float

    def __call__(self, size: Size | None, *, low: bool) -> int:  # noqa: ARG002 - it knows no detail
        count = MOST_PATCHES if size is None else _patches(*size)
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


def is_image(part: Mapping[str, Any]) -> bool:
    """Whether *part* of a message is an image."""
    return part.get("type") in _KINDS


def cost(part: Mapping[str, Any], model: str = "") -> int:
    """How many tokens the image *part* takes: by Anthropic's rule in its shape, else by *model*'s.

    >>> cost({"type": "image_url", "image_url": {"url": "https://…", "detail": "low"}})
    85
    """
    image = part.get("image_url")
    inner = image if isinstance(image, Mapping) else part
    source = part.get("source")
    if isinstance(source, Mapping):
        return _anthropic(size_of(str(source.get("data") or "")))
    url = image if isinstance(image, str) else inner.get("url")
    data = url if isinstance(url, str) and url.startswith("data:") else ""
    size = size_of(data.partition(",")[2])
    name = model.removeprefix("openai/").removeprefix("ft:")
    rule = next(rule for start, rule in _RULES.items() if name.startswith(start))
    return rule(size, low=inner.get("detail") == "low")


def _tiles(width: int, height: int) -> int:
    shrink = min(1, SQUARE / max(width, height))
    shrink *= min(1, SHORTER / (min(width, height) * shrink))
    return math.ceil(width * shrink / TILE) * math.ceil(height * shrink / TILE)


def _patches(width: int, height: int) -> int:
    count = math.ceil(width / PATCH) * math.ceil(height / PATCH)
    if count <= MOST_PATCHES:
        return count
    shrink = math.sqrt(PATCH**2 * MOST_PATCHES / (width * height))
    wide, high = width * shrink / PATCH, height * shrink / PATCH
    shrink = min(math.floor(wide) / wide, math.floor(high) / high)
    return max(1, math.ceil(wide * shrink - 1e-6)) * max(1, math.ceil(high * shrink - 1e-6))


def _anthropic(size: Size | None) -> int:
    if size is None:
        return MOST
    shrink = min(1, LONGER / max(size))
    return min(MOST, math.ceil(size[0] * size[1] * shrink**2 / PIXELS))


# -- sizes -----------------------------------------------------------------------------------------

#: Bytes that are looked at. A JPEG may have a preview of itself before its size.
HEAD = 96 * 1024


def size_of(data: str) -> Size | None:
    """Width and height of an image, from its base64 *data*; None if it does not say."""
    try:
        head = binascii.a2b_base64(data[: HEAD // 3 * 4])
    except binascii.Error:
        return None
    for start, read in (
        (b"\x89PNG\r\n\x1a\n", _png),
        (b"GIF8", _gif),
        (b"RIFF", _webp),
        (b"\xff\xd8", _jpeg),
    ):
        if head.startswith(start):
            size = read(head)
            return size if size is not None and min(size) > 0 else None
    return None


def _png(head: bytes) -> Size | None:
    return (_big(head[16:20]), _big(head[20:24]))


def _gif(head: bytes) -> Size | None:
    return (_little(head[6:8]), _little(head[8:10]))


def _webp(head: bytes) -> Size | None:
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
    for marker, start in _segments(head):
        if marker in _FRAMES:
            return (_big(head[start + 5 : start + 7]), _big(head[start + 3 : start + 5]))
    return None


def _segments(head: bytes) -> Iterator[tuple[int, int]]:
    """Marker and start of each segment."""
    at = 2
    while at + 4 <= len(head) and head[at] == 0xFF:  # noqa: PLR2004 - what begins every marker
        yield head[at + 1], at + 2
        at += 2 + max(2, _big(head[at + 2 : at + 4]))


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")
